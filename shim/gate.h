/*
 * The gate of a process that sleeps (core/process/sleep.h): while it is closed, calls that the
 * table of entry points says to stop wait at their beginning, and calls under way are waited for.
 *
 * A hook that stops is marked, in a variable of its thread, from its first line to its return:
 *
 *   mark; is the state ready? ── no ──► unmark, wait until it is, mark
 *     │ yes
 *   the call ── return ──► unmark
 *
 * Who closes the gate sets the state, makes every running thread see that (membarrier), and looks
 * at the marks: one that is not there yet finds the gate closed. So nothing is counted, no thread
 * is known beforehand, and a call that passes pays three instructions more; the look goes by the
 * threads that /proc lists.
 */
#ifndef GPUSHIM_SHIM_GATE_H
#define GPUSHIM_SHIM_GATE_H

#include <stddef.h>
#include <stdint.h>

#include "entry_points.h"
#include "state.h"

/* What a thread is in. */
struct gs_gate_mark {
    uint32_t call; /* a row of the table and 1; GS_GATE_OTHER; 0: in none that stops */
    /* It passes whatever the gate is: within such a call already, or it closed the gate. */
    uint32_t passing;
    /* The last call that came to a closed gate: the process could not be woken for it. */
    uint32_t refused;
};
GS_INSIDE extern __thread struct gs_gate_mark gs_gate_mark
    __attribute__((tls_model("initial-exec")));

#define GS_GATE_OTHER (GS_ROWS + 1) /* one of gpushim.h */

/* The slow half: waits at the closed gate; and what gs_state_enter says then. They preserve errno.
 * False, of a call that is made from its row: it may also be refused. */
bool gs_gate_wait(uint32_t call);
bool gs_gate_stop(uint32_t call);
static inline bool gs_gate_refuses(bool entered)
{
    return !entered && gs_gate_mark.refused;
}

/* Before the gate first opens: when calls come is noted from then on; a closed gate has `wake`
 * called by who comes, which is given an end for it: 0, EBUSY where another thread is at it, or an
 * errno. */
void gs_gate_watch(void);
void gs_gate_wakes_by(int (*wake)(uint64_t until_ns));
/* How long none has come; 0: it is not noted, or the gate is closed. */
uint64_t gs_gate_idle_ns(void);

/* Whether the gate is open; after what was written before. In two instructions: compilers load what
 * is atomic before they compare it. */
static inline bool gs_gate_is_open(void)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    __asm__ goto("cmpl %1, %0\n\tjne %l[other]"
                 :
                 : "m"(*(const int *)&gs_state), "i"(GS_STATE_READY)
                 : "cc", "memory"
                 : other);
    return true;
other:
    return false;
#else
    __asm__ volatile("" ::: "memory");
    return __builtin_expect(atomic_load_explicit(&gs_state, memory_order_acquire) == GS_STATE_READY,
                            1);
#endif
}

/* As gs_state_enter, at the gate. A signal of the program's may come before the mark is set or
 * after. */
static inline bool gs_gate_enter(uint32_t call)
{
    gs_gate_mark.call = call;
    return gs_gate_is_open() || gs_gate_stop(call);
}

static inline void gs_gate_leave(const bool *entered)
{
    __asm__ volatile("" ::: "memory");
    gs_gate_mark.call = 0;
}

/* The first line of a hook that stops, by its name; `gs_entered` is what gs_state_enter would
 * say. */
#define GS_AT_GATE(symbol)                                                  \
    __attribute__((cleanup(gs_gate_leave), unused)) const bool gs_entered = \
        gs_gate_enter(GS_ROW_##symbol + 1)

/* The gate of a call that asks about an address: whatever the driver says of what is away is
 * wrong. */
bool gs_gate_stop_about(uint32_t call, uint64_t address);
static inline bool gs_gate_enter_about(uint32_t call, uint64_t address)
{
    gs_gate_mark.call = call;
    return gs_gate_is_open() || gs_gate_stop_about(call, address);
}
#define GS_AT_GATE_ABOUT(symbol, address)                                   \
    __attribute__((cleanup(gs_gate_leave), unused)) const bool gs_entered = \
        gs_gate_enter_about(GS_ROW_##symbol + 1, address)

/* The gate of a call after which nothing is unmarked, so that it may be left by a jump: one that
 * touches no memory, which is not waited for. */
static inline bool gs_gate_look(uint32_t call)
{
    bool entered = true;

    if (!gs_gate_is_open()) {
        entered = gs_gate_stop(call);
        gs_gate_mark.call = 0;
    }
    return entered;
}

/* Around a call of another library, or of the program's own functions, which call hooks themselves:
 * those pass. They may have nothing to do with CUDA, which is not started by them. */
static inline bool gs_gate_enter_around(uint32_t call)
{
    gs_gate_mark.call = call;
    __asm__ volatile("" ::: "memory");
    gs_gate_wait(call);
    gs_gate_mark.passing++;
    return true;
}
static inline void gs_gate_leave_around(const bool *entered)
{
    if (--gs_gate_mark.passing == 0)
        gs_gate_leave(entered);
}
#define GS_AROUND_AT_GATE_AS(call)                                                 \
    __attribute__((cleanup(gs_gate_leave_around), unused)) const bool gs_entered = \
        gs_gate_enter_around(call)
#define GS_AROUND_AT_GATE(symbol) GS_AROUND_AT_GATE_AS(GS_ROW_##symbol + 1)

/* Around a function of the program's, or of another library, that is called within a call, or by a
 * thread of the library's own: what it calls itself passes, for others wait for it, and the call
 * stays marked. */
static inline uint32_t gs_gate_enter_within(void)
{
    gs_gate_mark.passing++;
    return gs_gate_mark.call;
}
static inline void gs_gate_leave_within(const uint32_t *call)
{
    gs_gate_mark.call = *call;
    __asm__ volatile("" ::: "memory");
    gs_gate_mark.passing--;
}
#define GS_WITHIN_A_CALL                                                             \
    __attribute__((cleanup(gs_gate_leave_within), unused)) const uint32_t gs_outer = \
        gs_gate_enter_within()

struct gs_sleep_why; /* core/process/sleep.h */
/* Closes it. Who waits asks `holds` each 10 ms whether it is closed for the next order, though the
 * process is awake; it may open the gate. False: it is open. One thread at a time, as all of
 * these. */
bool gs_gate_close(bool (*holds)(void), struct gs_sleep_why *ret_why);
/* Until no thread but this one is in a call that stops. False: EBUSY, there is one at that time
 * still; ENOTSUP. */
bool gs_gate_await(uint64_t until_ns, struct gs_sleep_why *ret_why);
/* One call that waits at the closed gate goes on. False: none waits. */
bool gs_gate_let_pass(void);
void gs_gate_open(void);
/* The process ends while it is closed: all calls are the driver's from now on. */
void gs_gate_end(void);
/* This thread, which is to call hooks while the gate is closed, passes; or no more. */
static inline void gs_gate_pass(bool passes)
{
    gs_gate_mark.passing += passes ? 1 : -1u;
}

/* A call that the library does not know is looked up: the gate cannot be whole from then on, so
 * nobody sleeps behind it. Who looked it up then waits where it is closed (gs_gate_look). */
void gs_gate_unknown(const char *symbol);

#endif
