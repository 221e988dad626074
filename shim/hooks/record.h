/*
 * Hooks that are recorded (general.record): what they do is a function of its own (made.h), so that
 * a process that records nothing pays for one look.
 */
#ifndef GPUSHIM_SHIM_RECORD_H
#define GPUSHIM_SHIM_RECORD_H

#include "hook.h"
#include "shim/start.h"

#include "core/process/record.h"

/* What a hook does; inline in it and in what records it. And what records it. */
#define GS_DOES    static inline __attribute__((always_inline))
#define GS_RECORDS __attribute__((cold, noinline)) static

/* Where the program called the hook. */
#define GS_CALLER __builtin_return_address(0)

struct gs_recorded {
    struct gs_trace_mark mark;
    CUdevice device; /* below 0: that of the context, or of the address afterwards */
    unsigned frames;
    uint64_t frame[GS_TRACE_FRAMES_MAX];
};

/* Before the call. For one that is given an address: whose memory that is by now; 0: none. */
void gs_record_begin(struct gs_recorded *recorded, void *caller, CUdeviceptr address);
/* After it. */
void gs_record_alloc(struct gs_recorded *recorded, enum gs_trace_op op, CUresult result,
                     const CUdeviceptr *address, size_t size, CUstream stream);
void gs_record_free(struct gs_recorded *recorded, enum gs_trace_op op, CUresult result,
                    CUdeviceptr address, CUstream stream);
/* Of CUDA IPC: the block that it is about. */
void gs_record_shared(struct gs_recorded *recorded, enum gs_trace_op op, CUresult result,
                      CUdeviceptr address, size_t size);
/* The block that has the address, also of another process; false: it is none of ours. */
bool gs_record_block(CUdeviceptr address, CUdeviceptr *ret_base, size_t *ret_size);

#endif
