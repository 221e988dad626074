/*
 * RMM's resources behind four functions of C, for other.c. `sh tests/gpu/bench.sh bundle` builds it where
 * RMM's headers are; nothing else of the project needs them.
 */
#include <cuda_runtime_api.h>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <optional>

static std::optional<cuda::mr::any_resource<cuda::mr::device_accessible>> resource;

static bool emplace(const char *kind)
{
    /* The pool grows as it is used; half of the device's memory, which Python's begins with, would
     * say nothing about it. The arena has no other way to grow than to be made larger: it takes its
     * own default, which is that half. */
    if (std::strcmp(kind, "pool") == 0)
        resource.emplace(rmm::mr::pool_memory_resource(rmm::mr::cuda_memory_resource{}, 0));
    else if (std::strcmp(kind, "arena") == 0)
        resource.emplace(rmm::mr::arena_memory_resource(rmm::mr::cuda_memory_resource{}));
    else if (std::strcmp(kind, "async") == 0)
        resource.emplace(rmm::mr::cuda_async_memory_resource{});
    return resource.has_value();
}

extern "C" int other_start(const char *kind)
try {
    cudaFree(nullptr); /* the runtime takes the context that is there */
    return emplace(kind) ? 0 : 1;
} catch (const std::exception &error) {
    std::fprintf(stderr, "RMM: %s\n", error.what());
    return 1;
}

/* No exception may leave: the caller is C. */
extern "C" void *other_allocate(std::size_t size, cudaStream_t stream) noexcept
try {
    return resource->allocate(cuda::stream_ref{stream}, size, alignof(std::max_align_t));
} catch (const std::exception &error) {
    std::fprintf(stderr, "RMM: %s\n", error.what());
    return nullptr;
}

extern "C" int other_release(void *block, std::size_t size, cudaStream_t stream) noexcept
try {
    resource->deallocate(cuda::stream_ref{stream}, block, size, alignof(std::max_align_t));
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "RMM: %s\n", error.what());
    return 1;
}
