/*
 * Lines of events (core/gpu/fence.h), as the files of core/gpu see them: fence.c has those of
 * drivers with cuCtxRecordEvent, where an event is one; told_line.c those of others, where it is a
 * set (core/gpu/told.h).
 */
#ifndef GS_CORE_GPU_LINE_H
#define GS_CORE_GPU_LINE_H

#include "core/gpu/fence.h"

/* A thread's default stream that a thread never asked the key of. */
#define GS_NO_THREAD 2

/* Waits for its holder, which is in calls of the driver that wait for no work. */
void gs_line_take(struct gs_fence_line *line);
void gs_line_release(struct gs_fence_line *line);
/* Stays taken while no capture is open and the context is not about to go. */
gs_status gs_line_enter_waiting(struct gs_fence_line *line);

/* With the line taken: a spare event, or a new one; back to the spare ones. */
gs_status gs_line_event_take(struct gs_fence_line *line, struct gs_fence_event **ret);
void gs_line_event_give(struct gs_fence_line *line, struct gs_fence_event *event);
/* With the line taken: whether an event has passed, as the driver says; also while a capture is open. */
gs_status gs_line_event_query(struct gs_fence_line *line, const struct gs_fence_event *event);

/* Whether its events are sets. */
static inline bool gs_line_tells(const struct gs_fence_line *line)
{
    return !line->of_stream && line->fences->tells;
}

/* With the line taken, and no capture open: the next set. As record() of fence.c. */
gs_status gs_told_record(struct gs_fence_line *line, const struct gs_fence_pool *pool);
/* With the line taken: takes out what has passed, up to the fence; GS_OK: the fence has. GS_CAPTURING:
 * what is missing can be had when no capture is open any more. */
gs_status gs_told_advance(struct gs_fence_line *line, const struct gs_fence *fence);
/* With the line taken, and no capture open: the stream's work from now on waits for a fence. */
bool gs_told_order(struct gs_fence_line *line, const struct gs_fence *fence, CUstream stream);
/* The same: what sets lack of this thread is recorded. */
void gs_told_serve(struct gs_fence_line *line);
/* With the line taken, and the lock of `fences` held: the stream goes, or its thread will not come by
 * for long. It has its event now, and what sets lack of it. */
void gs_told_leave(struct gs_fence_line *line, struct gs_told_stream *stream);
/* With the line taken: what it lacks of a thread that ends is lacking for good; of all. */
void gs_told_orphan(struct gs_fence_line *line, uint64_t own);
void gs_told_line_over(struct gs_fence_line *line);

/* Waits for all work of the line's context, where sets lack something: as long as that takes, which
 * is what the driver's own free does. False: there is nothing to wait for, or it cannot be. */
bool gs_told_synchronize(struct gs_fence_line *line);
/* A capture is counted: waits for who is at that. */
void gs_fences_await_waits(struct gs_fences *fences);

#endif
