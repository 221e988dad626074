/*
 * Other allocators: see other.h.
 */
#include "other.h"
#include "bench.h"

static void *library;

static void *symbol(const char *name, const char *way_out)
{
    void *found = dlsym(library, name);

    if (!found)
        bench_die("there is no %s in that library: %s", name, way_out);
    return found;
}

/* ---- cudaMallocAsync ---- */

static CUresult mempool_allocate(CUdeviceptr *ret_address, size_t size, CUstream stream)
{
    return cuMemAllocAsync(ret_address, size, stream);
}

static CUresult mempool_release(CUdeviceptr address, size_t size, CUstream stream)
{
    (void)size;
    return cuMemFreeAsync(address, stream);
}

static void mempool_start(void)
{
    cuuint64_t all = UINT64_MAX;
    CUmemoryPool pool;
    CUdevice device;

    MUST(cuCtxGetDevice(&device));
    MUST(cuDeviceGetDefaultMemPool(&pool, device));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

static const struct other mempool = {mempool_allocate, mempool_release, NULL};

/* ---- PyTorch: its functions for compiled models, whose interface is C and stays (2.8 has them)
 * --- */

static struct {
    int32_t (*allocate)(uint64_t size, void **ret_block);
    int32_t (*release)(void *block);
    int32_t (*guard_create)(void *stream, int32_t device, void **ret_guard);
    int32_t (*guard_delete)(void *guard);
} torch;

static __thread void *torch_guard; /* this thread's stream, as long as it lives */

static CUresult torch_allocate(CUdeviceptr *ret_address, size_t size, CUstream stream)
{
    void *block;

    (void)stream; /* torch_use has said which */
    if (torch.allocate(size, &block) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *ret_address = (CUdeviceptr)block;
    return CUDA_SUCCESS;
}

static CUresult torch_release(CUdeviceptr address, size_t size, CUstream stream)
{
    (void)size;
    (void)stream;
    return torch.release((void *)address) == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static void torch_use(CUstream stream)
{
    if (torch_guard && torch.guard_delete(torch_guard) != 0)
        bench_die("PyTorch does not end a guard of a stream");
    if (torch.guard_create(stream, 0, &torch_guard) != 0)
        bench_die("PyTorch does not take a stream");
}

/* A first tensor starts PyTorch's CUDA, and with it the allocator. */
static void torch_first_tensor(const char *way_out)
{
    int32_t (*type)(void), (*cuda)(void), (*forget)(void *);
    int32_t (*make)(int64_t dimensions, const int64_t *sizes, const int64_t *strides, int32_t type,
                    int32_t device_type, int32_t device, void **ret_tensor);
    const int64_t one = 1;
    void *tensor;

    *(void **)&type = symbol("aoti_torch_dtype_float32", way_out);
    *(void **)&cuda = symbol("aoti_torch_device_type_cuda", way_out);
    *(void **)&make = symbol("aoti_torch_empty_strided", way_out);
    *(void **)&forget = symbol("aoti_torch_delete_tensor_object", way_out);
    if (make(1, &one, &one, type(), cuda(), 0, &tensor) != 0 || forget(tensor) != 0)
        bench_die("PyTorch does not start");
}

static void torch_start(void)
{
    static const char way_out[] = "PyTorch 2.8 or newer, built with CUDA, has it";

    *(void **)&torch.allocate = symbol("aoti_torch_cuda_caching_allocator_raw_alloc", way_out);
    *(void **)&torch.release = symbol("aoti_torch_cuda_caching_allocator_raw_delete", way_out);
    *(void **)&torch.guard_create = symbol("aoti_torch_create_cuda_stream_guard", way_out);
    *(void **)&torch.guard_delete = symbol("aoti_torch_delete_cuda_stream_guard", way_out);
    torch_first_tensor(way_out);
}

static const struct other torch_other = {torch_allocate, torch_release, torch_use};

/* ---- a library of other_rmm.cpp's functions ---- */

static void *(*foreign_allocate_block)(size_t size, CUstream stream);
static int (*foreign_release_block)(void *block, size_t size, CUstream stream);

static CUresult foreign_allocate(CUdeviceptr *ret_address, size_t size, CUstream stream)
{
    void *block = foreign_allocate_block(size, stream);

    *ret_address = (CUdeviceptr)block;
    return block ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult foreign_release(CUdeviceptr address, size_t size, CUstream stream)
{
    return foreign_release_block((void *)address, size, stream) == 0 ? CUDA_SUCCESS
                                                                     : CUDA_ERROR_UNKNOWN;
}

static void foreign_start(const char *kind)
{
    static const char way_out[] = "build it from tests/bench/other_rmm.cpp";
    int (*start)(const char *kind);

    *(void **)&start = symbol("other_start", way_out);
    *(void **)&foreign_allocate_block = symbol("other_allocate", way_out);
    *(void **)&foreign_release_block = symbol("other_release", way_out);
    if (start(kind) != 0)
        bench_die("there is no allocator of kind %s in that library", kind);
}

static const struct other foreign = {foreign_allocate, foreign_release, NULL};

const struct other *other_open(const char *name)
{
    const char *colon = strchr(name, ':');

    if (strcmp(name, "mempool") == 0) {
        mempool_start();
        return &mempool;
    }
    if (!colon)
        bench_die("there is no other allocator %s: it is mempool, torch:LIBRARY or KIND:LIBRARY",
                  name);
    library = dlopen(colon + 1, RTLD_LAZY | RTLD_GLOBAL);
    if (!library)
        bench_die("%s", dlerror());
    if (strncmp(name, "torch:", 6) == 0) {
        torch_start();
        return &torch_other;
    }
    char *kind = strndup(name, (size_t)(colon - name));
    foreign_start(kind);
    free(kind);
    return &foreign;
}
