/* gpushim who, of one block (who_block.c). */
#ifndef GS_SHIM_COMMAND_WHO_H
#define GS_SHIM_COMMAND_WHO_H

#include "core/share/wire.h"

/* Whether the text is an IPC handle of the library's in hexadecimal, or 0x and an address: then *ret_query is
 * what to ask for. */
bool who_is_block(const char *text, struct gs_wire_query *ret_query);
/* Tells who shares it, and who has it open; `text` is what was asked for. An exit status. */
int who_block(const struct gs_wire_query *query, const char *text, bool as_json);

#endif
