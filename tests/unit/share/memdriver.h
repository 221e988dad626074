/*
 * The driver operations that sharing needs, on memfds: small enough to be seen to be right, and
 * with fences that pass when the test says so. The software driver of tests/driver/ is for
 * everything that wants a whole driver.
 */
#ifndef GS_TESTS_MEMDRIVER_H
#define GS_TESTS_MEMDRIVER_H

#include <stdbool.h>

#include "core/gpu/driver.h"

void memdriver_fill(struct gs_driver *ret_driver);

/* While held, fences do not pass. */
void memdriver_hold(bool held);
/* Nor do those that were recorded in this context; NULL: there is none. */
void memdriver_busy(CUcontext context);
/* Every mem_export fails with this; CUDA_SUCCESS ends it. */
void memdriver_fail_export(CUresult result);
/* Every mem_export takes this long. */
void memdriver_delay_export(unsigned microseconds);

/* Handles, reservations, mappings and events that exist. */
int memdriver_alive(void);
unsigned memdriver_exports(void);
unsigned memdriver_mapped(void); /* mappings */

#endif
