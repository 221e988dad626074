/*
 * The test's side of the software CUDA driver (tests/driver/): orders to it and questions about it.
 *
 * The driver itself is a libcuda.so.1 on ordinary memory and needs nothing from here: programs are
 * steered from outside by the environment. A test that wants to steer from inside looks the
 * functions up with dlsym in libcuda.so.1, and by finding softcuda_version there learns that it
 * is not on a real driver; a test that only ever runs on this one may link with softcuda_dep.
 *
 * Environment, read by the first call of any entry point and by cuInit; what cannot be understood
 * ends the program with status 125 and a line on stderr:
 *
 *   SOFTCUDA_DEVICES=N        devices the machine has, 0 to 16; default 2
 *   SOFTCUDA_MEMORY=SIZE      memory of each device in bytes, or with K, M or G; default 1G
 *   SOFTCUDA_MACHINE=PATH     processes that name the same file share the memory of their devices,
 *                             and what a killed one held is free again, when the children that it
 *                             forked have ended or called exec; default: each has its own
 *   SOFTCUDA_WITHOUT=LIST     features off: vmm, posix_fd, rdma, ctx_record_event, async,
 *                             peer (devices do not reach each other), sync_memops (new memory
 *                             has SYNC_MEMOPS off), dma_buf
 *   SOFTCUDA_FABRIC=FOLDER    on tmpfs: the NVLink domain of the machine, and its IMEX channel.
 *                             Processes that name the same one, of whatever namespaces, open each
 *                             other's memory by fabric handles; one that a killed process left is
 *                             removed with the folder alone. Default: there is no channel
 *   SOFTCUDA_FAULTS=RULES     see below
 *   SOFTCUDA_REPORT=PATH      at exit one line is appended there: the census of live objects
 *   CUDA_VISIBLE_DEVICES      as for the real driver: a list of indices or GPU-uuid
 *
 * RULES is a list, separated by ',' or ';', of
 *
 *   NAME:N:ERROR      the N-th call of NAME fails with the number ERROR, nothing having been done
 *   NAME:N+:ERROR     the N-th and all later calls fail
 *   NAME:*:ERROR      every call fails
 *   NAME:delay:USEC   every call is delayed by USEC microseconds before anything is done
 *   NAME:kill:N       the process kills itself with SIGKILL at the entry of the N-th call
 *
 * NAME is the plain name (cuMemAlloc: every variant of it counts), an exact symbol
 * (cuMemAlloc_v2), or * for all calls. A rule counts calls from the moment it was
 * made, the first is number 1.
 *
 * What differs from a real device, and a test should know:
 *
 *   - device memory can be read and written by the host at the same address;
 *   - work ends with its process: a killed process's kernels do not write on for a while;
 *   - the limit and cuMemGetInfo count what this process made, or all processes of the same
 *     SOFTCUDA_MACHINE hold; what is under way to another one by descriptor alone counts nowhere;
 *   - kernels are those of kernels.c, chosen by the names in the PTX text; nothing is compiled;
 *   - memory costs descriptors: one each 2 MiB piece, large block, pool piece or handle, above the
 *     soft limit of the descriptor table where the hard one leaves room;
 *   - what a killed process recorded on an event of several processes is never done;
 *   - nothing reads a texture, a library (cuLibrary*) has variables alone, multicast is not
 *     supported, and of checkpoints there are only questions; other names are not found. A green
 *     context is given all of its device. Nodes that are added to a graph by hand copy, fill,
 *     or are memory.
 */
#ifndef SOFTCUDA_H
#define SOFTCUDA_H

#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the process holds of the driver at this moment. */
struct softcuda_census {
    unsigned contexts;     /* alive: made by cuCtxCreate, or primary and active */
    unsigned streams;      /* made by cuStreamCreate, not destroyed */
    unsigned events;       /* made by cuEventCreate, not destroyed */
    unsigned modules;      /* loaded */
    unsigned graphs;       /* graphs and instantiated graphs */
    unsigned handles;      /* VMM handles with references from the program */
    unsigned reservations; /* VMM address ranges */
    unsigned mappings;     /* VMM mappings */
    unsigned exported_fds; /* descriptors given out by exports that are still open here */
    unsigned blocks;       /* live device allocations that are not VMM, pool memory included */
    unsigned ipc_opened;   /* legacy IPC handles opened, not closed */
    unsigned host_blocks;  /* pinned, registered or managed host memory */
    unsigned pools;        /* made by cuMemPoolCreate */
    unsigned long long device_bytes; /* physical memory that counts against the devices' limits */
};

/*
 * Calls, and forms of calls, that no CUDA has: what a library meets in a driver newer than itself.
 * cuGetProcAddress gives them for version 14000.
 */
CUresult CUDAAPI cuCtxGetFlags_v2(unsigned int *flags);
CUresult CUDAAPI cuLaunchKernelEx_v2(const CUlaunchConfig *config, CUfunction f, void **params,
                                     void **extra);
CUresult CUDAAPI cuLaunchKernelNext(const CUlaunchConfig *config, CUfunction f, void **params,
                                    void **extra);
CUresult CUDAAPI cuStreamBeginCaptureNext(CUstream stream, CUstreamCaptureMode mode);
CUresult CUDAAPI cuStreamBeginCaptureNext_ptsz(CUstream stream, CUstreamCaptureMode mode);
CUresult CUDAAPI cuStreamEndCaptureNext(CUstream stream, CUgraph *graph);

/* The driver's own version as a number, 1 so far. */
int softcuda_version(void);

/*
 * Make call `name` fail with `error`: its nth call from now, or every call when nth is 0.
 * Returns 0, or -1 when there is no such call or no room for another rule.
 */
int softcuda_fail(const char *name, unsigned nth, CUresult error);

/* The plain name of the last call that failed by order; "" before any did. */
const char *softcuda_last_failed(void);

/* Delay every call of `name` by `microseconds`. Returns as softcuda_fail. */
int softcuda_delay(const char *name, unsigned microseconds);

/* SIGKILL this process at the entry of the nth call of `name` from now. Returns as softcuda_fail.
 */
int softcuda_kill(const char *name, unsigned nth);

/* How many calls of `name`, "*" of all, were made since the start or the last softcuda_reset. */
unsigned long softcuda_calls(const char *name);

/* Drop every rule (those of the environment too), set the call counts to 0, end a hold. */
void softcuda_reset(void);

/*
 * Switch features off, as SOFTCUDA_WITHOUT does; "" switches all on again. Returns 0, or -1 when a
 * word is unknown (nothing is changed then). What cuGetProcAddress answers changes with it.
 */
int softcuda_without(const char *features);

/*
 * While held, no work that was submitted to a stream starts (what runs already goes on), so a test
 * decides when the GPU gets to it. Calls that wait for such work wait until softcuda_hold(0).
 */
void softcuda_hold(int held);

/* Fill in the census. */
void softcuda_census(struct softcuda_census *ret_census);

#ifdef __cplusplus
}
#endif

#endif
