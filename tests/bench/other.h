/*
 * Another allocator behind the same calls: one that a program could use instead of cudaMalloc under
 * the library. Each hands out memory in the order of a stream.
 */
#ifndef OTHER_H
#define OTHER_H

#include <cuda.h>
#include <stddef.h>

struct other {
    /* CUDA_ERROR_OUT_OF_MEMORY where it gives none, whatever the reason. */
    CUresult (*allocate)(CUdeviceptr *ret_address, size_t size, CUstream stream);
    CUresult (*release)(CUdeviceptr address, size_t size, CUstream stream);
    /* Before this thread's next allocations, which are on that stream; NULL: allocate is enough. */
    void (*use)(CUstream stream);
};

/*
 * name is one of
 *
 *   mempool        cudaMallocAsync, from a pool that gives nothing back (its release threshold)
 *   torch:LIBRARY  PyTorch's caching allocator, from that libtorch_cuda.so, without Python
 *   KIND:LIBRARY   what other_rmm.cpp was built to: pool, arena and async of RMM
 *
 * Device 0's primary context is current. Ends the program where it is not to be had. Called once.
 */
const struct other *other_open(const char *name);

#endif
