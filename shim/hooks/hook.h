/*
 * What every hook is written with. A hook has the exact name and prototype of the entry point that
 * it takes the place of. One that stops at the gate of a sleeping process begins with GS_AT_GATE
 * (gate.h). It asks gs_state_enter first; where that says no it returns what gs_real.NAME says, and
 * else keeps errno (GS_KEEP_ERRNO).
 *
 * gs_real.X is always callable: before libcuda is found it answers CUDA_ERROR_NOT_INITIALIZED, and
 * where the program's driver has no X, CUDA_ERROR_NOT_SUPPORTED.
 */
#ifndef GPUSHIM_SHIM_HOOK_H
#define GPUSHIM_SHIM_HOOK_H

#include "shim/cuda_exact.h"
#include "shim/entry_points.h"
#include "shim/gate.h"
#include "shim/state.h"

#include "core/base/cancel.h"

#include <errno.h>
#include <stddef.h>

/* Exported, and without endbr64 at the start, where other libraries write jumps (patchable.h). */
#define GS_HOOK __attribute__((visibility("default")))

/* The driver's own functions, by name and by row. Written once, before gs_state_enter() first
 * returns true. */
union gs_real {
    struct {
#define GS_ENTRY(symbol, ...) __typeof__(&symbol) symbol;
        GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
    };
    void *row[GS_DRIVER_ROWS];
};
GS_INSIDE extern union gs_real gs_real;

/* From here to the end of the block, errno comes out as it went in. What is called often has this
 * alone: there core itself sees to it where it may sleep (core/base/cancel.h). */
#define GS_KEEP_ERRNO __attribute__((cleanup(gs_errno_restore), unused)) int gs_saved_errno = errno
static inline void gs_errno_restore(int *saved)
{
    errno = *saved;
}

/* Keeps errno, and the thread is not cancelled meanwhile. */
#define GS_KEEP_CALLER \
    GS_KEEP_ERRNO;     \
    GS_UNCANCELLED

/* The result of the driver's call, of which core is told where it went well. */
#define GS_NOTED(call, told)                            \
    ({                                                  \
        const bool gs_tells = gs_state_enter();         \
        const CUresult gs_result_of = (call);           \
                                                        \
        if (gs_tells && gs_result_of == CUDA_SUCCESS) { \
            GS_KEEP_CALLER;                             \
            told;                                       \
        }                                               \
        gs_result_of;                                   \
    })

#endif
