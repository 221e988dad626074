/*
 * The few CUDA calls that the stories need. driver_api.c makes them with the driver API,
 * runtime_api.c with the runtime API; each of the two becomes a program of its own.
 *
 * Every function returns NULL on success and otherwise the CUDA name of its error; what it was to
 * return is then untouched. Nothing here knows of libgpushim.
 */
#ifndef EXAMPLES_SHARE_GPU_H
#define EXAMPLES_SHARE_GPU_H

#include <stddef.h>
#include <stdint.h>

typedef uintptr_t gpu_address;

/* What one process gives another to open its memory: CUDA's IPC memory handle, plain bytes. */
struct gpu_handle {
    unsigned char bytes[64];
};

/* The calls by the names that this API has for them, for messages. */
extern const char gpu_alloc_async_name[];
extern const char gpu_share_name[];

/* Takes the first device; its name, cut to `size` bytes, goes to `ret_name`. */
const char *gpu_start(char *ret_name, size_t size);

/* Gives back what gpu_start took. Everything else must have been freed and closed. */
const char *gpu_stop(void);

const char *gpu_alloc(size_t bytes, gpu_address *ret);
const char *gpu_free(gpu_address address);

/* Stream-ordered: on a stream of the program, and waited for. */
const char *gpu_alloc_async(size_t bytes, gpu_address *ret);
const char *gpu_free_async(gpu_address address);

/* Both return when the GPU is done. */
const char *gpu_fill(gpu_address address, unsigned char byte, size_t bytes);
const char *gpu_read(gpu_address address, void *ret, size_t bytes);

/* share: in the process that allocated; open and close: in another one. */
const char *gpu_share(gpu_address address, struct gpu_handle *ret);
const char *gpu_open(const struct gpu_handle *handle, gpu_address *ret);
const char *gpu_close(gpu_address address);

/* Device memory that is free, in bytes. */
const char *gpu_memory_free(size_t *ret);

#endif
