/*
 * What is seen from outside the program: the device memory in use, however the allocator underneath
 * counts it in cuMemGetInfo, and the calls that reach the driver.
 */
#ifndef USAGE_H
#define USAGE_H

#include <stdbool.h>
#include <stdint.h>

/* After bench_start. Returns false where nobody can be asked (no NVML): usage_bytes is not to be
 * called then. */
bool usage_start(void);

/* Bytes of device 0 that are in use: by NVML, all processes together; of the software driver, those
 * of this process. */
uint64_t usage_bytes(void);

/* Calls of all entry points so far. The software driver alone counts them. */
uint64_t usage_driver_calls(void);

#endif
