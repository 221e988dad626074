/*
 * Calls that go first: threads of the program's beside a background thread, in calls of a driver
 * that does one thing at a time and gives whoever calls again its turn before one that sleeps for
 * it. The background waits before each of its calls until none of the others is at one.
 */
#ifndef GS_CORE_BASE_TURN_H
#define GS_CORE_BASE_TURN_H

#include <stdbool.h>
#include <stdint.h>

struct gs_turn {
    unsigned first; /* atomic: threads that go first */
    bool awaited;   /* atomic: somebody waits for them */
};

/* Around what goes first; several may be at it. */
void gs_turn_begin(struct gs_turn *turn);
void gs_turn_end(struct gs_turn *turn);
/* Waits until nobody is at it, *left_ns at most, from which it takes what it waited. They end it,
 * with their calls of the driver. NULL waits for nobody. */
void gs_turn_let(struct gs_turn *turn, uint64_t *left_ns);

#endif
