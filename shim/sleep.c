/*
 * gpushim_sleep and gpushim_wake: the gate (gate.h) around what core does (core/process/sleep.h).
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/background.h"
#include "core/base/clock.h"
#include "core/process/neighbour.h"
#include "core/process/sleep.h"
#include "core/share/share.h"
#include "shim/gate.h"
#include "shim/gpushim.h"
#include "shim/hooks/hook.h"
#include "shim/log.h"
#include "shim/sleep.h"
#include "shim/start.h"

#define SLEPT_LEAST offsetof(struct gpushim_asleep, text)
#define HEAD_NS \
    (250 * GS_NS_PER_MS) /* who asked for the memory has it first: 60 GiB take 0.2 s to be had */
#define IDLE_NS \
    (100 * GS_NS_PER_MS) /* for the GPU, of a program that has called nothing for long */

#define ENDS_NS \
    (3 * GS_NS_PER_S) /* an exit waits so long for who is at it just then: a copy takes that */

#define HOLD_NS \
    (10 * GS_NS_PER_S) /* a gate that is closed for the next order: whoever gives it may be gone */
#define LONG_NS \
    (100 * GS_NS_PER_MS) /* for work that ends by itself, before calls pass; then twice as long */
#define SOON_NS  (GS_NS_PER_MS / 2)  /* for what one call was waited for, */
#define AGAIN_NS (10 * GS_NS_PER_MS) /* or for what it submitted */
#define PASSES   200                 /* of calls, between two waits */

extern int __cxa_atexit(void (*function)(void *), void *arg, void *handle);
/* Weak: other libcs than glibc have another name for it. */
extern int __cxa_at_quick_exit(void (*function)(void *), void *handle) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

static atomic_bool busy; /* a thread is at it; what is not atomic is its */
static _Atomic uint64_t
    held_ns;             /* until then the gate is closed, though it is awake; 0: it is not */
static atomic_bool ends; /* the program does */
static atomic_uintptr_t last_one; /* of the handlers of its end that were registered */

static uint64_t until(uint64_t timeout_ns)
{
    const uint64_t now = gs_now_ns();

    return timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
}

static bool is_asleep(void)
{
    struct gs_asleep asleep;

    gs_core_asleep(gs_core, &asleep);
    return asleep.since_ns != 0;
}

/* The program ends. While its memory is away all that is called from here on is the driver's, which
 * knows none of it, and nobody waits for a wake that may never come. From now on nobody puts it to
 * sleep. */
static void at_exit(void *one)
{
    const uint64_t end = gs_now_ns() + ENDS_NS;

    if ((uintptr_t)one != atomic_load(&last_one) || !gs_state_is_on())
        return;
    atomic_store(&ends, true);
    if (gs_gate_mark.passing == 0 && atomic_load(&busy))
        gs_core_sleep_ends(gs_core);
    while (gs_gate_mark.passing == 0 && atomic_load(&busy) && gs_now_ns() < end)
        gs_rest_ns(GS_NS_PER_MS);
    if (!atomic_exchange(&busy, true)) {
        if (!is_asleep())
            gs_gate_open();
        atomic_store(&busy, false);
    }
    if (atomic_load(&gs_state) != GS_STATE_CLOSED)
        return;
    gs_shim_at_exit();
    gs_gate_end();
}

/* The last one that was registered comes first. */
static void ends_quickly(void *unused)
{
    if (!atomic_load(&ends))
        at_exit((void *)atomic_load(&last_one));
}

/* Each sleep registers them anew, for 32 bytes of libc's each, and the last one counts: the
 * handlers that were registered since the sleep before may free what is away. To take one back libc
 * holds two locks, which a child that is forked just then would keep. */
static bool be_first_at_exit(void)
{
    const uintptr_t one = atomic_load(&last_one) + 1;

    if (__cxa_atexit(at_exit, (void *)one, &__dso_handle) != 0)
        return false;
    atomic_store(&last_one, one);
    return !__cxa_at_quick_exit || __cxa_at_quick_exit(ends_quickly, &__dso_handle) == 0;
}

/* What is done behind it: one of core's steps (core/process/sleep.h). */
struct step {
    enum gs_sleep_verb verb;
    uint64_t until_ns;
    const char *directory, *discard;
};

static bool take_step(const struct step *step, struct gs_sleep_why *why)
{
    switch (step->verb) {
    case GS_SLEEP_WAKES:
        return gs_core_wake(gs_core, step->until_ns, why);
    case GS_SLEEP_RETURNS:
        return gs_core_return(gs_core, step->until_ns, why);
    case GS_SLEEP_LETS_GO:
        return gs_core_let_go(gs_core, step->discard, step->until_ns, why);
    default:
        return gs_core_sleep(gs_core, step->directory, step->discard, step->until_ns, why);
    }
}

static bool refuse_as_it_ends(struct gs_sleep_why *why)
{
    return gs_sleep_refuse(why, ESHUTDOWN, "the program ends");
}

/* Nobody is in a call, and the GPU has nothing to do. */
static bool stands_still(uint64_t until_ns, struct gs_sleep_why *why)
{
    return gs_gate_await(until_ns, why) && gs_core_await_work(gs_core, until_ns, why);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* One call after the other, until the GPU stands still, or while it does after each. */
static bool let_pass(unsigned most, uint64_t until_ns, bool while_still, struct gs_sleep_why *why)
{
    bool still = while_still;

    for (unsigned i = 0; i < most && still == while_still && gs_gate_let_pass(); i++) {
        still = stands_still(gs_now_ns() + (while_still ? AGAIN_NS : SOON_NS), why);
        if (gs_now_ns() >= until_ns)
            break;
    }
    return still;
}

/*
 * What stopped at the gate may be what the GPU's work waits for: the launch that another thread's
 * all-reduce is for. Where that work does not end, calls pass until it does. They may as well be
 * what keeps the GPU busy: so that is done rarely.
 */
static bool come_to_rest(uint64_t until_ns, struct gs_sleep_why *why)
{
    for (uint64_t patience = LONG_NS;; patience *= 2) {
        if (stands_still(earlier(until_ns, gs_now_ns() + patience), why))
            return true;
        if (why->error != EBUSY || gs_now_ns() >= until_ns)
            return false;
        if (atomic_load(&ends))
            return refuse_as_it_ends(why);
        if (let_pass(PASSES, until_ns, false, why))
            return true;
        gs_rest_ns(SOON_NS); /* while a stream captures nobody is waited for */
    }
}

/* For the next order, whatever the GPU is at: false, and it is at something. What sleeps already is
 * at nothing. */
static bool stop(const struct step *step, struct gs_sleep_why *why)
{
    if (is_asleep())
        return true;
    return step->verb == GS_SLEEP_PASSES ? let_pass(UINT_MAX, step->until_ns, true, why)
                                         : stands_still(step->until_ns, why);
}

/* Whether it is closed for the next order, by who waits at it. False: none came, or it is at it;
 * the gate is open where none came. */
static bool still_holds(void)
{
    const uint64_t until_ns = atomic_load(&held_ns);

    if (until_ns == 0 || gs_now_ns() < until_ns || atomic_exchange(&busy, true))
        return until_ns != 0;
    if (atomic_load(&held_ns) == until_ns && !is_asleep()) {
        atomic_store(&held_ns, 0);
        gs_gate_open();
    }
    atomic_store(&busy, false);
    return false;
}

static bool close_gate(struct gs_sleep_why *why)
{
    return be_first_at_exit() ? gs_gate_close(still_holds, why) : refuse_as_it_ends(why);
}

static bool begin(struct gs_sleep_why *why)
{
    why->error = 0;
    why->text[0] = 0;
    if (gs_gate_mark.call || gs_gate_mark.passing)
        return gs_sleep_refuse(why, EDEADLK,
                               "it was called within a call that would be waited for");
    return !atomic_exchange(&busy, true) ||
           gs_sleep_refuse(why, EBUSY, "another thread is putting it to sleep, or wakes it");
}

static void say(const char *what, const struct gs_sleep_why *why)
{
    struct gs_asleep asleep;
    char took[256];

    gs_core_asleep(gs_core, &asleep);
    gs_core_sleep_took(gs_core, took, sizeof took);
    if (why->error)
        gs_log(GS_LOG_INFO, "%s: %s", what, why->text);
    else if (asleep.since_ns)
        gs_log(GS_LOG_INFO, "asleep: %zu MiB are off the GPU, %zu of them kept on the host; %s",
               asleep.away >> 20, asleep.copied >> 20, took);
    else
        gs_log(GS_LOG_INFO, "awake; %s", took);
}

static bool stops(const struct step *step)
{
    return step->verb == GS_SLEEP_STOPS || step->verb == GS_SLEEP_PASSES;
}

static bool wakes(const struct step *step)
{
    return step->verb == GS_SLEEP_WAKES || step->verb == GS_SLEEP_RETURNS;
}

static bool is_kept(const struct step *step, const struct gs_sleep_why *why)
{
    return stops(step) && (why->error == 0 || why->error == EINPROGRESS);
}

/* Behind the closed gate. It stays closed while the process sleeps, and for the next order. */
static void step_behind_gate(const struct step *step, struct gs_sleep_why *why)
{
    const bool may = wakes(step) || gs_core_can_sleep(gs_core, step->discard, why);

    gs_gate_pass(true);
    if (may && stops(step)) {
        if (!stop(step, why) && why->error == EBUSY)
            why->error = EINPROGRESS;
    } else if (may && (wakes(step) || is_asleep() || come_to_rest(step->until_ns, why))) {
        take_step(step, why);
    }
    gs_gate_pass(false);
    if (is_asleep())
        return;
    if (is_kept(step, why))
        atomic_store(&held_ns, gs_now_ns() + HOLD_NS);
    else
        gs_gate_open();
}

/* `whole`: of a wake, the host has its memory back as well then. */
static void take_whole_step(const struct step *step, bool whole, struct gs_sleep_why *ret_why)
{
    if (!begin(ret_why))
        return;
    /* Before it closes: who waits then looks at it. */
    atomic_store(&held_ns, stops(step) && !is_asleep() ? gs_now_ns() + HOLD_NS : 0);
    if (atomic_load(&ends) && !wakes(step))
        refuse_as_it_ends(ret_why);
    else if (wakes(step) && atomic_load(&gs_state) != GS_STATE_CLOSED)
        gs_sleep_refuse(ret_why, EALREADY, "it is awake already");
    else if (atomic_load(&gs_state) == GS_STATE_CLOSED || close_gate(ret_why))
        step_behind_gate(step, ret_why);
    if (ret_why->error != EALREADY && !is_kept(step, ret_why))
        say(wakes(step) ? "not woken" : "not put to sleep", ret_why);
    if (whole)
        gs_core_await_freed(gs_core);
    atomic_store(&busy, false);
}

/* The state was entered. ret_why->error is 0, or an errno. */
static void fall_asleep(const char *directory, const char *discard, uint64_t timeout_ns,
                        struct gs_sleep_why *ret_why)
{
    const struct step step = {GS_SLEEP_GOES, until(timeout_ns), directory, discard};

    take_whole_step(&step, false, ret_why);
}

static void wake(uint64_t timeout_ns, struct gs_sleep_why *ret_why)
{
    const struct step step = {.verb = GS_SLEEP_WAKES, .until_ns = until(timeout_ns)};

    take_whole_step(&step, false, ret_why);
}

/* ---- By itself ------------------------------------------------------------------------------- */

static uint64_t sleeps_after_ns;
static _Atomic uint64_t gave_ns; /* when it last went to sleep for others */

/* In the thread that calls. */
static int wake_for_use(uint64_t until_ns)
{
    const uint64_t now = gs_now_ns();
    struct gs_sleep_why why;

    if (now - atomic_load(&gave_ns) < HEAD_NS)
        return EBUSY;
    GS_KEEP_CALLER;
    wake(until_ns > now ? until_ns - now : 0, &why);
    return why.error;
}

/* 0, or an errno. */
static int sleep_idle(bool does)
{
    struct gs_sleep_why why = {0};

    if (!sleeps_after_ns || gs_gate_idle_ns() < sleeps_after_ns)
        return EBUSY;
    if (!does)
        return 0;
    fall_asleep(NULL, NULL, IDLE_NS, &why);
    if (why.error == 0)
        atomic_store(&gave_ns, gs_now_ns());
    return why.error;
}

void gs_shim_sleeps_by_itself(uint64_t after_ns, bool wakes_by_use)
{
    sleeps_after_ns = after_ns;
    if (after_ns)
        gs_gate_watch();
    if (wakes_by_use)
        gs_gate_wakes_by(wake_for_use);
}

/* ---- By order of others ---------------------------------------------------------------------- */

static struct {
    bool running;    /* atomic; while it is true all below but the number is the thread's */
    unsigned number; /* of the last one, from 1 on */
    enum gs_sleep_verb verb;
    uint64_t timeout_ns;
    char directory[GS_SLEEP_DIRECTORY], discard[GS_SLEEP_TAG];
    struct gs_sleep_why why;
} order;

static void *run_order(void *unused)
{
    const struct step step = {order.verb, until(order.timeout_ns),
                              order.directory[0] ? order.directory : NULL,
                              order.discard[0] ? order.discard : NULL};

    /* Another may be told to sleep next, to the host's memory. */
    take_whole_step(&step, order.verb == GS_SLEEP_WAKES || order.verb == GS_SLEEP_RETURNS,
                    &order.why);
    __atomic_store_n(&order.running, false, __ATOMIC_RELEASE);
    return NULL;
}

/* Nobody waits for the thread's end, which runs the driver's code, and the program's. */
static void begin_order(const struct gs_sleep_order *told)
{
    struct gs_background background;
    int error;

    order.number++;
    order.verb = told->verb;
    order.timeout_ns = told->timeout_ns;
    snprintf(order.directory, sizeof order.directory, "%s", told->directory);
    snprintf(order.discard, sizeof order.discard, "%s", told->discard);
    __atomic_store_n(&order.running, true, __ATOMIC_RELAXED);
    error = gs_background_start(&background, run_order, NULL);
    if (error == 0) {
        pthread_detach(background.thread);
        return;
    }
    gs_sleep_refuse(&order.why, error, "no thread can be started for it");
    __atomic_store_n(&order.running, false, __ATOMIC_RELAXED);
}

static void tell_order(struct gs_sleep_order *told, int error, const char *text)
{
    told->error = error;
    snprintf(told->text, sizeof told->text, "%s", text);
}

void gs_shim_told_to_sleep(struct gs_sleep_order *told)
{
    if (told->verb >= GS_SLEEP_MAY_IDLE) {
        told->error = sleep_idle(told->verb == GS_SLEEP_GOES_IDLE);
        return;
    }
    if (told->verb == GS_SLEEP_STATE && told->order != order.number) {
        tell_order(told, ESTALE, "another order came after it, before it was told what came of it");
        return;
    }
    if (told->verb != GS_SLEEP_STATE) {
        if (__atomic_load_n(&order.running, __ATOMIC_ACQUIRE)) {
            tell_order(told, EBUSY, "it is at another order still");
            return;
        }
        begin_order(told);
    }
    if (__atomic_load_n(&order.running, __ATOMIC_ACQUIRE))
        told->busy = order.number;
    else
        tell_order(told, order.why.error, order.why.text);
}

/* ---- gpushim.h ------------------------------------------------------------------------------- */

static void tell(struct gpushim_asleep *ret, const struct gs_sleep_why *why)
{
    struct gpushim_asleep all = {.size = ret ? ret->size : 0};
    struct gs_asleep asleep;

    if (!ret)
        return;
    gs_core_asleep(gs_core, &asleep);
    all.since_ns = asleep.since_ns;
    all.away = asleep.away;
    all.copied = asleep.copied;
    all.shared = asleep.stays[GS_STAYS_SHARED];
    all.registered = asleep.stays[GS_STAYS_REGISTERED];
    all.ending = asleep.stays[GS_STAYS_ENDING];
    all.refused = asleep.stays[GS_STAYS_REFUSED];
    all.own = asleep.stays[GS_STAYS_OWN];
    if (why)
        memcpy(all.text, why->text,
               sizeof all.text < sizeof why->text ? sizeof all.text : sizeof why->text);
    memcpy(ret, &all, ret->size < sizeof all ? ret->size : sizeof all);
}

static bool is_good(const struct gpushim_asleep *ret)
{
    return !ret || ret->size >= SLEPT_LEAST;
}

GS_HOOK int gpushim_sleep(const struct gpushim_sleep_how *how, struct gpushim_asleep *asleep)
{
    struct gs_sleep_why why;

    if (!how || how->size < sizeof *how || !is_good(asleep))
        return EINVAL;
    if (!gs_state_enter())
        return ENODEV;
    GS_KEEP_CALLER;
    gs_neighbour_join(gs_core); /* another process may wake it, however little it holds */
    fall_asleep(how->directory, how->discard, how->timeout_ns, &why);
    tell(asleep, &why);
    return why.error;
}

GS_HOOK int gpushim_wake(uint64_t timeout_ns, struct gpushim_asleep *asleep)
{
    struct gs_sleep_why why;

    if (!is_good(asleep))
        return EINVAL;
    if (!gs_state_enter())
        return ENODEV;
    GS_KEEP_CALLER;
    wake(timeout_ns, &why);
    tell(asleep, &why);
    return why.error;
}

GS_HOOK int gpushim_asleep(struct gpushim_asleep *asleep)
{
    if (!asleep || !is_good(asleep))
        return EINVAL;
    if (!gs_state_is_on())
        return ENODEV;
    tell(asleep, NULL);
    return 0;
}
