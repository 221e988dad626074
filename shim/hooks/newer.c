/*
 * Calls of a driver that is newer than this library. What they submit is not seen, so single-stream
 * mode ends when the first is looked up, and one line says so. Those that by their names begin or
 * end a stream's capture are led through stand-ins, since no event may be recorded meanwhile
 * (core/gpu/fence.h): their first argument is the stream, and all others are words that are passed
 * on.
 */
#include "newer.h"
#include "hook.h"
#include "shim/log.h"
#include "shim/lookup/known_names.h"
#include "shim/start.h"
#include "submit.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* More than any call has: where it takes fewer, the rest are read from the caller's stack and
 * ignored. */
#define WORDS                                                                                  \
    uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f, uintptr_t g, \
        uintptr_t h, uintptr_t i
#define PASSED a, b, c, d, e, f, g, h, i

typedef CUresult CUDAAPI call_fn(CUstream, WORDS);

#define STAND_INS 8
static struct {
    pthread_mutex_t mutex; /* for who looks up; what was handed out does not change */
    struct stand_in {
        call_fn *real;
        bool per_thread, ends;
    } of[STAND_INS];
} stand_ins = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static CUresult stand_in(const struct stand_in *in, CUstream stream, WORDS)
{
    const CUstream means = in->per_thread ? gs_per_thread(stream) : stream;
    bool noted;

    if (in->ends) {
        gs_state_enter();
        return gs_capture_ended(means, in->real(stream, PASSED));
    }
    if (!gs_capture_may_begin(means, &noted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return gs_capture_begun(means, noted, in->real(stream, PASSED));
}

#define EACH_STAND_IN(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define STAND_IN(n)                                              \
    static CUresult CUDAAPI stand_in_##n(CUstream stream, WORDS) \
    {                                                            \
        return stand_in(&stand_ins.of[n], stream, PASSED);       \
    }
EACH_STAND_IN(STAND_IN)
#define ADDRESS(n) stand_in_##n,
static call_fn *const addresses[STAND_INS] = {EACH_STAND_IN(ADDRESS)};

/* NULL: all are in use. */
static void *stand_in_for(void *found, bool per_thread, bool ends)
{
    int n = 0;

    pthread_mutex_lock(&stand_ins.mutex);
    while (n < STAND_INS && stand_ins.of[n].real && (void *)stand_ins.of[n].real != found)
        n++;
    if (n < STAND_INS && !stand_ins.of[n].real)
        stand_ins.of[n] = (struct stand_in){(call_fn *)found, per_thread, ends};
    pthread_mutex_unlock(&stand_ins.mutex);
    return n < STAND_INS ? (void *)addresses[n] : NULL;
}

/* The driver's are cuStreamBeginCaptureToGraph, cuStreamBeginRecaptureToGraph and the like. */
static bool is_capture(const char *symbol, const char *verb)
{
    return strncmp(symbol, verb, strlen(verb)) == 0 && strstr(symbol, "apture");
}

void *gs_newer_found(const char *symbol, int version, void *found, bool per_thread)
{
    GS_KEEP_CALLER;
    static bool said;
    const bool begins = is_capture(symbol, "cuStreamBegin");
    const bool ends = is_capture(symbol, "cuStreamEnd");
    void *led = begins || ends ? stand_in_for(found, per_thread, ends) : NULL;
    char form[32] = "", why[160];

    if (version)
        snprintf(form, sizeof form, " for CUDA %d.%d", version / 1000, version % 1000 / 10);
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        gs_log(
            GS_LOG_WARNING,
            "this driver's %s%s is newer than this library, which knows CUDA %d.%d: what it does "
            "is not seen, so freed memory waits for the GPU; install a newer libgpushim",
            symbol, form, GS_KNOWN_CUDA / 1000, GS_KNOWN_CUDA % 1000 / 10);
    snprintf(why, sizeof why, "%s is newer than this library", symbol);
    gs_gate_unknown(symbol);
    gs_gate_look(GS_GATE_OTHER); /* asleep nobody gets it */
    gs_single_drain(gs_single, why);
    return led ? led : found;
}
