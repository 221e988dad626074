/* What gpushim stats (stats.c) and its page, gpushim top (top.c), have in common. */
#ifndef GS_SHIM_COMMAND_STATS_H
#define GS_SHIM_COMMAND_STATS_H

#include "shim/command/figures.h"
#include "shim/command/show.h"

/* What each did a second since it was seen before; one that has ended does nothing. */
void stats_rates(struct table *table, const struct table *before);
/* Its rows, and whom each keeps freed memory for; sheet_free ends it. */
void stats_sheet(const struct table *table, struct sheet *ret);

/* The page, until q, SIGINT or SIGTERM, or until nobody reads it; only the process `only`, unless 0. An exit status. */
int top_run(long only, uint64_t every_ns);

#endif
