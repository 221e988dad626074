/*
 * What every conformance test uses: checks that name the driver's result, the device and its
 * context, the kernels of kernels.h, reading memory back, and probes.
 *
 * The same binary runs four ways: on the software driver and on a real one, each natively and under
 * the shim, and a test states what must be seen in all four. Where the shim is meant to behave
 * differently (it works better, or has not come to it yet) a test asks under_shim(); where only the
 * software driver can be asked something (filling the whole device), software_driver(). Where the
 * native answer is not documented or measured, a test prints a probe and asserts only what is sure.
 *
 * Nothing here may be called from a forked child, and CHECK, OK and FAILS only on the test's own
 * thread: Criterion ends a test with longjmp. Each test is a process: what it has made goes with
 * it, and is given back only where that is to be seen.
 */
#ifndef CONFORMANCE_CONFORM_H
#define CONFORMANCE_CONFORM_H

#include <cuda.h>

#include "copies.h"
#include "tests/clock.h"
#include "tests/system.h"

#define KIB         ((size_t)1 << 10)
#define MIB         ((size_t)1 << 20)
#define MILLISECOND 1000000ull

/* An address that no allocation has. */
#define NOWHERE ((CUdeviceptr)0x1234000)

#define CHECK(expected, call)                                                                     \
    do {                                                                                          \
        CUresult check_got = (call);                                                              \
        cr_assert(check_got == (expected), "%s: %s instead of %s", #call, result_name(check_got), \
                  result_name(expected));                                                         \
    } while (0)
#define OK(call) CHECK(CUDA_SUCCESS, call)
#define FAILS(call)                                                                          \
    do {                                                                                     \
        CUresult fails_got = (call);                                                         \
        cr_assert(fails_got != CUDA_SUCCESS, "%s: CUDA_SUCCESS instead of an error", #call); \
    } while (0)

/* How a program reaches memory; what each kind's calls are is in conform.c. */
enum memory_kind { MEMORY_PLAIN, MEMORY_ASYNC, MEMORY_PITCH };

extern CUdevice device;   /* device 0, set by conform_start */
extern CUcontext context; /* its primary context, current on the test's thread */

/* The fixture of every suite: cuInit, device 0, its primary context made current. Fails the test
 * where that does not work. */
void conform_start(void);

bool under_shim(void);
/* And its driver has cuCtxRecordEvent: else stream-ordered memory is the driver's, and what
 * cuMemFreeAsync frees of the library's comes back with the next cuMemFree. */
bool under_shim_with_events(void);
bool software_driver(void);

/* CUDA_ERROR_… or, where the driver knows no name, the number; good for eight more calls. */
const char *result_name(CUresult result);

/* One line "PROBE name = value" on stdout, for comparing drivers. */
__attribute__((format(printf, 2, 3))) void probe(const char *name, const char *format, ...);

/* The entry point a program built for this version (such as 12050) gets, or NULL where the driver
 * has none. */
void *driver_lookup(const char *name, int version, cuuint64_t flags);

void sleep_ms(unsigned int ms);

/* A test that looks at what is so while a kernel runs looks again, up to so often, where the kernel
 * had ended by then: the machine may have stood still. */
#define BUSY_TRIES 15

/* Whether work of the stream is still to be done. Fails the test where the driver does not say. */
bool is_busy(CUstream stream);

/* The primary context of device 1, made current. Skips the test where there is one device. */
CUcontext second_device(void);
/* A new context, made current. Fails the test where there is none. */
CUcontext context_create(CUdevice on);
/* What memory of device 0 that a program makes itself is made with, and access of that device to
 * it. */
CUmemAllocationProp device_memory(CUmemAllocationHandleType types);
void access_set(CUdeviceptr ptr, size_t size, CUmemAccess_flags flags);
/* As much physical memory of the device, made and released: what the driver says to it. */
CUresult physical_memory(size_t size);

/* A non-blocking stream of the current context, and one that waits for the legacy default stream.
 * They fail the test where there is none. */
CUstream new_stream(void);
CUstream blocking_stream(void);

/* Ends a capture that may have been invalidated, and says how it went. */
CUresult capture_result(CUstream stream);

/* An event without timing; a pool of the program's own of device 0. They fail the test likewise. */
CUevent new_event(void);
CUmemoryPool new_pool(CUmemAllocationHandleType types);

/* What cuGetProcAddress is asked with for either kind of default streams. */
extern const cuuint64_t default_streams[2];

/* Ends a capture whose graph nobody wants. Fails the test where that does not work. */
void end_capture(CUstream stream);

/* What the software driver is told and asks (softcuda.h); NULL on a real one. */
struct software {
    int (*fail)(const char *call, unsigned nth, CUresult error);
    int (*delay)(const char *call, unsigned microseconds);
    unsigned long (*calls)(const char *call);
    void (*reset)(void);
    void (*hold)(int held);
};
const struct software *software(void);

/* Allocates and frees memory of a kind in the current context; async memory on the legacy stream,
 * which free does not wait for. */
CUresult memory_alloc(enum memory_kind kind, CUdeviceptr *ret_ptr, size_t size);
CUresult memory_free(enum memory_kind kind, CUdeviceptr ptr);

/* Memory of cuMemAlloc; and such whose words have that value. Fail the test where there is none. */
CUdeviceptr allocated(size_t size);
CUdeviceptr filled(size_t size, uint32_t value);

/* The kernels, launched on stream in the current context; safe from any thread. Words are 32 bits.
 */
CUresult launch_spin(CUstream stream, uint64_t ns);
/* By a programmatic dependent launch: it may begin before the kernel before it in its stream has
 * ended. NOT_SUPPORTED: the driver has none. */
CUresult launch_early_fill(CUstream stream, CUdeviceptr ptr, uint32_t value, size_t words);
CUresult launch_fill(CUstream stream, CUdeviceptr ptr, uint32_t value, size_t words);
CUresult launch_spin_fill(CUstream stream, CUdeviceptr ptr, uint32_t value, size_t words,
                          uint64_t ns);
CUresult launch_scribble(CUstream stream, CUdeviceptr ptr, size_t words, uint64_t ns);
CUresult launch_count_other(CUstream stream, CUdeviceptr ptr, uint32_t value, size_t words,
                            CUdeviceptr out);
CUresult launch_copy(CUstream stream, CUdeviceptr dst, CUdeviceptr src, size_t words);

/* Two copies by cuMemcpyBatchAsync in its form of CUDA 12.8 (0) or of CUDA 13 (1), which has no
 * place for the index; ret_fail is 77 then. NOT_FOUND where the driver has no such form. */
CUresult copy_batch(int form, CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t *ret_fail,
                    CUstream stream);

/* Memory changes its owner behind late work: it is had, worked on, freed, and had by the next one,
 * each in a context (NULL: the test's) and, but for PLAINLY, in the order of a stream. */
#define PLAINLY ((CUstream)(uintptr_t)-1)
struct turn {
    CUcontext owner, worker, freer, taker;
    CUstream has, works, frees, takes, fills; /* the last: where the next owner fills it */
    bool destroys;                            /* the stream that works, before the free */
};
/* What the next one filled it with is there when all work is done. */
void turn_over(const struct turn *turn, size_t size);
/* Of every size, so many rounds. */
void turns_over(const struct turn *turn, int rounds);

/* So many (16 at most) have memory of that size next, and fill it in the stream. It stays as it is
 * until all work of the context is done, or for so long where others' work cannot be waited for. */
void next_owners(unsigned count, size_t size, CUstream stream, unsigned late_ms);

/* An instance of the graph runs in the stream, to its end, and goes. */
void run_graph(CUgraph graph, CUstream stream);

/* Forgets the loaded kernels of the current context, because the context is about to die. */
void kernels_forget(void);
/* A graph's node that fills so many words, in that context or in the current one (NULL). */
CUgraphNodeParams a_fill(CUdeviceptr dst, unsigned int value, size_t words, CUcontext in);

/* One that copies so many bytes, in `context`. */
CUgraphNodeParams a_copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes);

/* Fills, and waits until it is done. */
CUresult fill_now(CUdeviceptr ptr, uint32_t value, size_t words);

/* How many of the words are not value, by copying them to the host; does not wait for other work.
 * SIZE_MAX where the copy fails. */
size_t words_other(CUdeviceptr ptr, uint32_t value, size_t words);

/* Free memory of the device in bytes. Fails the test where the driver does not say. */
size_t memory_free_bytes(void);

#endif
