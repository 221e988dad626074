/*
 * Around the driver's calls that begin and end a stream's capture.
 */
#ifndef GPUSHIM_SHIM_CAPTURE_H
#define GPUSHIM_SHIM_CAPTURE_H

#include "hook.h"

/* Before the driver's call: *ret_noted tells whether it was counted. False: it must not begin. */
bool gs_capture_may_begin(CUstream stream, bool *ret_noted);
/* After it. */
CUresult gs_capture_begun(CUstream stream, bool noted, CUresult result);
/* After the driver ended a capture, or refused to; the state was entered before. */
CUresult gs_capture_ended(CUstream stream, CUresult result);

#endif
