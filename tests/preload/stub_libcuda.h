/*
 * What stub_libcuda.c counts.
 */
#ifndef GPUSHIM_TESTS_PRELOAD_STUB_LIBCUDA_H
#define GPUSHIM_TESTS_PRELOAD_STUB_LIBCUDA_H

enum stub_call {
    STUB_INIT,
    STUB_ALLOC,
    STUB_FREE,
    STUB_ALLOC_ASYNC,
    STUB_ALLOC_ASYNC_PTSZ,
    STUB_GET_INFO,
    STUB_CALLS,
};

/* How often an entry point was called since the library was loaded. */
int stub_calls(enum stub_call call);
typedef int stub_calls_fn(enum stub_call call);

#endif
