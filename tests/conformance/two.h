/*
 * Two devices, for the tests of what one of them may do with memory of the other.
 */
#ifndef CONFORMANCE_TWO_H
#define CONFORMANCE_TWO_H

#include "conform.h"

extern CUcontext second;      /* the primary context of device 1 */
extern CUdeviceptr near, far; /* memory of device 0, filled with 1; of device 1, filled with 2 */

/* Makes them, `size` bytes each, with device 0 current; they go with the process. Skips the test
 * where there is one device. */
void two_devices(size_t size);

/* Another `far`, which no earlier copy has made reachable: its first 2 MiB are filled. */
void far_anew(size_t size);

/* Skips the test where device 0 does not reach memory of device 1. */
void need_reach(void);

/* Fails the test where one of so many words of `far` is not value. */
void far_words(uint32_t value, size_t words);

#endif
