/* Calls of the agent's that fail, as a test says (the linker's --wrap, failing.c). */
#ifndef GS_TESTS_AGENT_FAILING_H
#define GS_TESTS_AGENT_FAILING_H

#include <stddef.h>

/* Allocations: the next one of this size, in any thread; and the one that comes as the n-th of this
 * thread's. 0: none. */
extern size_t fails_size;
extern _Thread_local unsigned fails_at;
/* Reads: the n-th from now on. Writes: all, for want of room. */
extern unsigned fails_read;
extern _Bool disk_is_full;

#endif
