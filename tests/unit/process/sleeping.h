/* A process that sleeps and wakes, for the tests of it: core without the gate. */
#ifndef TESTS_UNIT_PROCESS_SLEEPING_H
#define TESTS_UNIT_PROCESS_SLEEPING_H

#include "core/process/sleep.h"
#include "tests/driver/softcuda.h"
#include "tests/unit/fixture.h"

#define SECOND UINT64_C(1000000000)

/* On a GPU with so much memory. */
void sleeping_start(struct fixture *f, const char *memory);
bool goes(struct fixture *f, struct gs_sleep_why *why);
bool comes(struct fixture *f, struct gs_sleep_why *why);
struct gs_asleep asleep(const struct fixture *f);
size_t device_bytes(void);

/* For the driver's: by a number that is no handle any more another's might be. */
CUresult release_what_is_had(CUmemGenericAllocationHandle handle);

/* The driver's memory is the host's too. */
void fill(CUdeviceptr at, size_t size, unsigned seed);
bool is_filled(CUdeviceptr at, size_t size, unsigned seed);

/* Whatever call fails, with whatever error: the process is awake or asleep, and the next try is
 * right. Returns how many calls failed, one in each process that is made. */
struct slept {
    void (*make)(struct fixture *f);
    bool (*are_right)(void);
    void (*end)(struct fixture *f);
};
unsigned fail_each(const struct slept *slept, bool wakes, CUresult error);

#endif
