/*
 * Work that the program gives the GPU. Every hook of a call that can make it touch device memory
 * tells core to which stream, before the driver's function: while all work goes to one stream, what
 * is freed is free at once (core/gpu/single.h). tests/preload/check_table.py wants no call of the
 * driver to be forgotten; those that take a stream and submit no such work are in no_work.txt.
 */
#ifndef GPUSHIM_SHIM_SUBMIT_H
#define GPUSHIM_SHIM_SUBMIT_H

#include "hook.h"
#include "shim/start.h"

#include "core/gpu/single.h"

/* The per-thread forms mean another stream by 0. */
static inline CUstream gs_per_thread(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

/* NULL: the legacy default stream. The per-thread forms say CU_STREAM_PER_THREAD. Enters the
 * state, and preserves errno. */
static inline void gs_submits(CUstream stream)
{
    if (gs_state_enter())
        gs_single_submits(gs_single, stream);
}

/* Work is submitted where the state was entered, or was not to be. */
static inline void gs_submits_if(bool entered, CUstream stream)
{
    if (__builtin_expect(entered, 1))
        gs_single_submits(gs_single, stream);
}

/* Of a call that is given a stream, by the name that it has also where it is given as 0; else it
 * stalls all streams of a context, and none is told. The state was entered. */
static inline void gs_stalls(bool is_given, CUstream stream)
{
    gs_single_stalls(gs_single, !is_given ? NULL : stream ? stream : CU_STREAM_LEGACY);
}

/* Whether it still matters to which stream work goes; the state was entered. */
static inline bool gs_single_matters(void)
{
    return __atomic_load_n(&gs_single->stream, __ATOMIC_RELAXED) != GS_SINGLE_MULTI;
}

/* A copy or a fill is submitted, which touches nothing of ours but what is at these addresses (0,
 * or not ours: nothing), and so need not end single-stream mode. The state was entered; errno is
 * the caller's to keep. */
static inline void gs_submits_at(CUstream stream, CUdeviceptr dst, CUdeviceptr src)
{
    if (!gs_single_knows(gs_single, stream))
        gs_core_touches(gs_core, stream, dst, src);
}

/* Whether what is submitted to the stream is recorded into a graph. A stream whose state cannot be
 * told is left to the driver as well. The state was entered. */
static inline bool gs_captures(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return gs_core_capturing(gs_core) &&
           (gs_core_stream_status(gs_core, stream, &status) != CUDA_SUCCESS ||
            status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* ---- Around calls that begin and end a stream's capture (capture.c) ---- */

/* Before the driver's call: *ret_noted tells whether it was counted. False: it must not begin. */
bool gs_capture_may_begin(CUstream stream, bool *ret_noted);
/* After it. */
CUresult gs_capture_begun(CUstream stream, bool noted, CUresult result);
/* After the driver ended a capture, or refused to; the state was entered before. */
CUresult gs_capture_ended(CUstream stream, CUresult result);

#endif
