/* Waiting for what is said, in place of a time (patience.h). */
#include "patience.h"

#include <poll.h>
#include <stdbool.h>

#include "core/base/clock.h"
#include "core/share/conn.h"
#include "side.h"

void __wrap_gs_conn_wait_any(const int *sockets, unsigned count, uint64_t ns);
uint64_t __real_gs_look_counts(uint64_t *looked);
uint64_t __wrap_gs_look_counts(uint64_t *looked);

#define SLICE_MS 5

static int to_come = -1; /* atomic, all */
static uint64_t passed;
static unsigned waits;

static _Thread_local bool has_waited; /* and its time is not the machine's */
static _Thread_local uint64_t passes;

void patience_for(int answers)
{
    __atomic_store_n(&to_come, answers, __ATOMIC_SEQ_CST);
}

uint64_t patience_took(void)
{
    return __atomic_exchange_n(&passed, 0, __ATOMIC_SEQ_CST);
}

unsigned patience_waits(void)
{
    return __atomic_load_n(&waits, __ATOMIC_SEQ_CST);
}

void __wrap_gs_conn_wait_any(const int *sockets, unsigned count, uint64_t ns)
{
    struct pollfd fds[GS_CONN_ANY];
    const uint64_t end = gs_now_ns() + SIDE_PATIENCE_MS * GS_NS_PER_MS;
    int left, come;

    for (unsigned i = 0; i < count; i++)
        fds[i] = (struct pollfd){.fd = sockets[i], .events = POLLIN};
    __atomic_add_fetch(&waits, 1, __ATOMIC_SEQ_CST);
    do {
        left = __atomic_load_n(&to_come, __ATOMIC_SEQ_CST);
        come = poll(fds, count, left ? SLICE_MS : 0);
    } while (come <= 0 && left && gs_now_ns() < end);
    if (come > 0)
        ns = 0;
    else if (left)
        ns = SIDE_PATIENCE_MS * GS_NS_PER_MS; /* it does not come */
    if (left > 0)
        __atomic_sub_fetch(&to_come, 1, __ATOMIC_SEQ_CST);
    has_waited = true;
    passes = ns;
    __atomic_add_fetch(&passed, ns, __ATOMIC_SEQ_CST);
}

uint64_t __wrap_gs_look_counts(uint64_t *looked)
{
    uint64_t counts = __real_gs_look_counts(looked);

    if (has_waited)
        counts = passes;
    has_waited = false;
    return counts;
}
