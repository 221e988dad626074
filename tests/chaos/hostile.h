/*
 * What hostile.c, which judges, and attackers.c, which does what is to be borne, have in common.
 */
#ifndef CHAOS_HOSTILE_H
#define CHAOS_HOSTILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/share/ipc_handle.h"
#include "core/share/wire.h"
#include "tests/clock.h"

#define BUCKETS 40

enum timed { T_ALLOC, T_FREE, T_HANDLE, T_OPEN, TIMED };

/* Shared by all processes of the test. */
struct board {
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE]; /* of the block that honest openers open; then: */
    _Atomic bool ready;
    _Atomic bool opener_stops, exporter_stops; /* in this order, or an honest open finds nobody */
    _Atomic bool over; /* the phase: its attackers end */
    unsigned char own[GS_IPC_HANDLE_SIZE]; /* of a block of the exporter; then: */
    _Atomic bool has_own;
    bool by_broker;                   /* what is attacked is the broker */
    pid_t honest;                     /* the honest opener, whom others claim to be */
    _Atomic uint64_t worst[TIMED]; /* in nanoseconds, as the bounds of the buckets */
    _Atomic uint64_t bucket[TIMED][BUCKETS];
    _Atomic unsigned honest_opens, unanswered, connected, turned_away;
    char wrong[256];
    _Atomic bool is_wrong;
};

extern struct board *board;
extern char hostile_dir[128];

void sleep_us(long us);
/* Notes what went wrong, once. */
void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct phase {
    const char *name;
    void (*attack)(void); /* until the phase is over; NULL: nobody attacks */
    unsigned attackers;
    bool is_many, is_other_user; /* these have rules of their own */
    bool for_broker;             /* means nothing to an exporter */
};

extern const struct phase phases[];
extern const unsigned phase_count;

/* A connection to what is attacked, or -1 with errno. */
int dial(void);

#endif
