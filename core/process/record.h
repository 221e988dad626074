/*
 * What is recorded of a process's memory (general.record): the calls of the program's, as the hooks
 * tell them; pieces, as they are made and given back; and every millisecond in which something was
 * recorded of a device, how much there is of what. Nothing here may be called with a lock held: it
 * may wait for the file.
 */
#ifndef GS_CORE_PROCESS_RECORD_H
#define GS_CORE_PROCESS_RECORD_H

#include <stdint.h>

#include "core/record/trace.h"
#include "core/process/process.h"

/* A call is done, that began at the mark. core NULL: in a child that was forked, which passes all
 * on. `device` below 0: not known, which counts as the first. */
void gs_record_call(struct gs_core *core, const struct gs_trace_mark *mark, CUdevice device,
                    struct gs_trace_event *event, const uint64_t *frame);
/* A piece was made, and others may have had it, and given it back, since it was ready; or it has
 * gone (`ready_ns` 0). */
void gs_record_piece(struct gs_core *core, const struct gs_trace_mark *mark, uint64_t ready_ns,
                     CUdevice device, const struct gs_span *span);

/* The device whose memory of ours lies at an address; below 0: none does. */
CUdevice gs_record_device_at(const struct gs_core *core, uint64_t address);
/* That of the current context, or of the stream's; below 0: there is none. */
CUdevice gs_record_device_of(struct gs_core *core, CUstream stream);

/* The last figures, at the exit. Waits for nobody. */
void gs_record_at_exit(struct gs_core *core);

#endif
