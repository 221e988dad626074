/*
 * Programs that are linked with --wrap=gs_conn_wait_any and --wrap=gs_look_counts: who asks other
 * processes waits there for what they say, however long a busy machine takes over it, and its time
 * passes only where the test says that nobody answers.
 */
#ifndef GS_TESTS_PATIENCE_H
#define GS_TESTS_PATIENCE_H

#include <stdint.h>

/* From here on nothing is said but so many times (-1: as often as it likes). */
void patience_for(int answers);
/* The time that has passed for who asks, since this was asked last. */
uint64_t patience_took(void);
/* How often it has begun to wait: what was said before the last time has been heard. */
unsigned patience_waits(void);

#endif
