/*
 * Registers GPU memory with what a machine has for it, natively and under the library: dma-buf
 * descriptors of the real driver, the real cuFile in its compatibility mode, and as much of
 * UCX as answers without a network card. Everything is found by dlopen.
 *
 *   registration [PART…]      parts: dmabuf cufile ucx; all of them by default
 *
 * Prints "RESULT what = answer" for what has to be the same with and without the library, "PROBE"
 * for what may differ, "SKIP part: why" for what this machine does not have. Each part runs in a
 * process of its own. Exit status 1: something is not as it must be.
 *
 * CUFILE_LIBRARY and UCX_LIBRARY name libcufile.so.0 and libucp.so.0 where the loader does not find
 * them.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cuda.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB          ((size_t)1 << 10)
#define MIB          ((size_t)1 << 20)
#define PART_SECONDS 60

static const char *part;
static bool failed;

__attribute__((format(printf, 3, 4))) static void say(const char *kind, const char *what,
                                                      const char *format, ...)
{
    va_list args;

    printf("%s %s: %s = ", kind, part, what);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}
#define RESULT(what, ...) say("RESULT", what, __VA_ARGS__)
#define PROBE(what, ...)  say("PROBE", what, __VA_ARGS__)

/* What must hold natively as well as under the library. */
static void must_be(bool holds, const char *what)
{
    RESULT(what, "%s", holds ? "yes" : "NO");
    failed |= !holds;
}

__attribute__((format(printf, 1, 2), noreturn)) static void skip(const char *format, ...)
{
    va_list args;

    printf("SKIP %s: ", part);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    _exit(failed);
}

/* ---- The driver ---------------------------------------------------------------------------- */

static void *libcuda;

static void *cuda_symbol(const char *name)
{
    void *found = dlsym(libcuda, name);

    if (!found)
        skip("libcuda.so.1 has no %s", name);
    return found;
}
#define CU(name) ((__typeof__(&name))cuda_symbol(#name))

static const char *name_of(CUresult result)
{
    const char *name = NULL;

    CU(cuGetErrorName)(result, &name);
    return name ? name : "an unknown error";
}

static void must(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    RESULT("stopped", "%s gave %s", what, name_of(result));
    _exit(1);
}
#define MUST(call) must(call, #call)

static void start_cuda(void)
{
    CUcontext context;
    CUdevice device;

    libcuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!libcuda)
        skip("%s", dlerror());
    MUST(CU(cuInit)(0));
    MUST(CU(cuDeviceGet)(&device, 0));
    MUST(CU(cuDevicePrimaryCtxRetain)(&context, device));
    MUST(CU(cuCtxSetCurrent)(context));
}

static CUdeviceptr allocate(size_t size)
{
    CUdeviceptr address;

    MUST(CU(cuMemAlloc_v2)(&address, size));
    return address;
}

static void fill(CUdeviceptr address, unsigned word, size_t size)
{
    MUST(CU(cuMemsetD32_v2)(address, word, size / 4));
    MUST(CU(cuCtxSynchronize)());
}

/* ---- dma-buf ------------------------------------------------------------------------------- */

static CUresult export_range(int *ret_fd, CUdeviceptr address, size_t size)
{
    *ret_fd = -1;
    return CU(cuMemGetHandleForAddressRange)(ret_fd, address, size,
                                             CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
}

/* Whether the descriptor's first bytes are this word; -1: it cannot be read here. */
static int begins_with(int fd, size_t size, unsigned word)
{
    const volatile unsigned *bytes = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    int same;

    if (bytes == MAP_FAILED)
        return -1;
    same = bytes[0] == word;
    munmap((void *)bytes, size);
    return same;
}

/* The same through CUDA: the descriptor is imported as external memory and copied from. */
static int imports_with(int fd, size_t size, unsigned word, const char **ret_why)
{
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {
        .type = (CUexternalMemoryHandleType)9, /* a dma-buf: of CUDA 13.0 */
        .handle.fd = dup(fd),
        .size = size};
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {.size = size};
    CUexternalMemory memory;
    CUdeviceptr mapped;
    unsigned found = 0;
    CUresult result = CU(cuImportExternalMemory)(&memory, &desc);

    if (result == CUDA_SUCCESS)
        result = CU(cuExternalMemoryGetMappedBuffer)(&mapped, memory, &buffer);
    if (result == CUDA_SUCCESS)
        result = CU(cuMemcpyDtoH_v2)(&found, mapped, sizeof found);
    *ret_why = name_of(result);
    return result == CUDA_SUCCESS ? found == word : -1;
}

/* What the descriptor's offset 0 is: the address that was exported. One of more bytes than were
 * asked for is of the memory around it, as the software driver's are, and says nothing. */
static void offset_right(int fd, size_t size, unsigned word, const char *what)
{
    const char *why = "";
    off_t has = lseek(fd, 0, SEEK_END);
    int is = begins_with(fd, size, word);

    if (is < 0)
        is = imports_with(fd, size, word, &why);
    if (is < 0)
        PROBE(what, "cannot be seen here: no mmap, and import gave %s", why);
    else if (has > (off_t)size)
        PROBE(what, "it has %lld bytes", (long long)has);
    else
        must_be(is, what);
}

static void part_dmabuf(void)
{
    CUdeviceptr big, small, neighbour, again;
    int supported = 0, fd, other;
    struct stat status;
    CUresult result;
    CUdevice device;

    start_cuda();
    MUST(CU(cuCtxGetDevice)(&device));
    MUST(CU(cuDeviceGetAttribute)(&supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device));
    if (!supported)
        skip("the device says that it does not export dma-bufs");
    big = allocate(4 * MIB);
    small = allocate(64 * KIB);
    neighbour = allocate(64 * KIB);
    fill(big, 0xb16, 4 * MIB);
    fill(big + MIB, 0xb17, 3 * MIB);
    fill(small, 0x5a11, 64 * KIB);
    fill(neighbour, 0x4e16, 64 * KIB);

    result = export_range(&fd, big, 4 * MIB);
    if (result != CUDA_SUCCESS) {
        RESULT("export of a block", "%s", name_of(result));
        skip("the driver exports no dma-buf here: %s", name_of(result));
    }
    RESULT("export of a block", "%s, %lld bytes", name_of(result),
           (long long)lseek(fd, 0, SEEK_END));
    offset_right(fd, 4 * MIB, 0xb16, "its first bytes are the block's");
    RESULT("export of a part", "%s", name_of(export_range(&other, big + MIB, MIB)));
    if (other >= 0) {
        RESULT("its size", "%lld", (long long)lseek(other, 0, SEEK_END));
        offset_right(other, MIB, 0xb17, "its first bytes are the part's");
        close(other);
    }
    RESULT("export of a small block", "%s", name_of(export_range(&other, small, 64 * KIB)));
    if (other >= 0) {
        offset_right(other, 64 * KIB, 0x5a11, "its first bytes are the small block's");
        close(other);
    }
    /* The driver may hand out what lies in its own 2 MiB; the library keeps to the block. */
    result = export_range(&other, small < neighbour ? small : neighbour, 128 * KIB);
    PROBE("export of two neighbours", "%s", name_of(result));
    if (other >= 0)
        close(other);
    RESULT("export past a block of 4 MiB", "%s", name_of(export_range(&other, big, 64 * MIB)));
    if (other >= 0)
        close(other);

    /* The descriptor holds the memory after the free. */
    MUST(CU(cuMemFree_v2)(big));
    must_be(fstat(fd, &status) == 0 && lseek(fd, 0, SEEK_END) == (off_t)(4 * MIB),
            "the descriptor is good after the free");
    RESULT("export of freed memory", "%s", name_of(export_range(&other, big, 4 * MIB)));
    if (other >= 0)
        close(other);
    again = allocate(4 * MIB);
    PROBE("the next block of this size has its address", "%s", again == big ? "yes" : "no");
    must_be(close(fd) == 0, "the descriptor closes");
    MUST(CU(cuMemFree_v2)(again));
    MUST(CU(cuMemFree_v2)(small));
    MUST(CU(cuMemFree_v2)(neighbour));
}

/* ---- cuFile -------------------------------------------------------------------------------- */

typedef struct {
    int err, cu_err;
} cufile_error;
typedef struct {
    int type; /* 1: a file descriptor */
    union {
        int fd;
        void *handle;
    } handle;
    const void *fs_ops;
} cufile_descr;

static void *find_library(const char *name, const char *variable, const char *const *places)
{
    const char *named = getenv(variable);
    void *found = dlopen(named ? named : name, RTLD_NOW | RTLD_GLOBAL);
    char path[512];

    for (; !found && *places; places++) {
        snprintf(path, sizeof path, "%s/%s", *places, name);
        found = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    }
    return found;
}

/* A file of settings that lets cuFile work without its kernel module. */
static void allow_compatibility(const char *folder)
{
    char path[300];
    FILE *file;

    snprintf(path, sizeof path, "%s/cufile.json", folder);
    file = fopen(path, "w");
    if (!file)
        return;
    fprintf(file,
            "{\"logging\": {\"dir\": \"%s\", \"level\": \"ERROR\"}, "
            "\"properties\": {\"allow_compat_mode\": true, \"use_pci_p2pdma\": false}}\n",
            folder);
    fclose(file);
    setenv("CUFILE_ENV_PATH_JSON", path, 1);
    setenv("CUFILE_FORCE_COMPAT_MODE", "true", 1);
}

struct cufile {
    cufile_error (*driver_open)(void), (*driver_close)(void);
    cufile_error (*handle_register)(void **fh, cufile_descr *descr);
    void (*handle_deregister)(void *fh);
    cufile_error (*buf_register)(const void *base, size_t length, int flags);
    cufile_error (*buf_deregister)(const void *base);
    ssize_t (*read)(void *fh, void *base, size_t size, off_t file_offset, off_t base_offset);
    ssize_t (*write)(void *fh, const void *base, size_t size, off_t file_offset, off_t base_offset);
};

static void *library_symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);

    if (!found)
        skip("the library has no %s", name);
    return found;
}

static struct cufile find_cufile(void *library)
{
    return (struct cufile){
        .driver_open = (cufile_error (*)(void))library_symbol(library, "cuFileDriverOpen"),
        .driver_close = (cufile_error (*)(void))library_symbol(library, "cuFileDriverClose"),
        .handle_register =
            (cufile_error (*)(void **, cufile_descr *))library_symbol(library,
                                                                      "cuFileHandleRegister"),
        .handle_deregister = (void (*)(void *))library_symbol(library, "cuFileHandleDeregister"),
        .buf_register = (cufile_error (*)(const void *, size_t,
                                          int))library_symbol(library, "cuFileBufRegister"),
        .buf_deregister =
            (cufile_error (*)(const void *))library_symbol(library, "cuFileBufDeregister"),
        .read = (ssize_t (*)(void *, void *, size_t, off_t, off_t))library_symbol(library,
                                                                                  "cuFileRead"),
        .write = (ssize_t (*)(void *, const void *, size_t, off_t,
                              off_t))library_symbol(library, "cuFileWrite"),
    };
}

/* How many registrations the library keeps; -1 natively. */
static long registrations(void)
{
    size_t (*list)(void *, size_t) =
        (size_t (*)(void *, size_t))dlsym(RTLD_DEFAULT, "gpushim_registrations");

    return list ? (long)list(NULL, 0) : -1;
}

static bool holds_word(CUdeviceptr address, size_t size, unsigned word)
{
    unsigned *copy = malloc(size);
    bool same = copy != NULL;

    MUST(CU(cuMemcpyDtoH_v2)(copy, address, size));
    for (size_t i = 0; same && i < size / 4; i++)
        same = copy[i] == word;
    free(copy);
    return same;
}

/* A file written from one buffer and read into another, at an offset. */
static void transfer(const struct cufile *lib, void *fh, CUdeviceptr from, CUdeviceptr to)
{
    ssize_t moved;

    fill(from, 0xf11e, MIB);
    fill(to, 0, MIB);
    moved = lib->write(fh, (void *)from, MIB, 0, 0);
    RESULT("bytes written from GPU memory", "%zd", moved);
    moved = lib->read(fh, (void *)to, MIB / 2, 0, (off_t)(MIB / 2));
    RESULT("bytes read into GPU memory", "%zd", moved);
    MUST(CU(cuCtxSynchronize)());
    must_be(holds_word(to + MIB / 2, MIB / 2, 0xf11e), "the bytes arrived");
    must_be(holds_word(to, MIB / 2, 0), "and no others");
}

static void use_cufile(const struct cufile *lib, const char *folder)
{
    cufile_descr descr = {.type = 1};
    CUdeviceptr a = allocate(4 * MIB), b = allocate(4 * MIB);
    char path[300];
    cufile_error error;
    void *fh = NULL;

    snprintf(path, sizeof path, "%s/file", folder);
    descr.handle.fd = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
    if (descr.handle.fd < 0) /* a file system in memory */
        descr.handle.fd = open(path, O_RDWR | O_CREAT, 0600);
    error = lib->handle_register(&fh, &descr);
    RESULT("cuFileHandleRegister", "%d/%d", error.err, error.cu_err);
    for (int i = 0; i < 3; i++) {
        error = lib->buf_register((void *)a, MIB, 0);
        RESULT("cuFileBufRegister", "%d/%d", error.err, error.cu_err);
        if (!error.err) {
            error = lib->buf_deregister((void *)a);
            RESULT("cuFileBufDeregister", "%d/%d", error.err, error.cu_err);
        }
    }
    PROBE("registrations kept by the library", "%ld", registrations());
    error = lib->buf_deregister((void *)a);
    RESULT("deregistering it twice", "%d/%d", error.err, error.cu_err);
    error = lib->buf_register((void *)a, 0, 0);
    RESULT("registering nothing", "%d/%d", error.err, error.cu_err);
    error = lib->buf_register((void *)b, 4 * MIB, 0);
    RESULT("registering 4 MiB", "%d/%d", error.err, error.cu_err);
    error = lib->buf_register((void *)b, 4 * MIB, 0);
    RESULT("registering it twice", "%d/%d", error.err, error.cu_err);
    if (fh && descr.handle.fd >= 0) {
        transfer(lib, fh, a, b); /* one without a registration, one with */
        transfer(lib, fh, b, a);
    }
    /* Freed with a registration over it; the address then means something else. */
    RESULT("cuMemFree of a registered block", "%s", name_of(CU(cuMemFree_v2)(b)));
    error = lib->buf_register((void *)b, MIB, 0);
    PROBE("registering freed memory", "%d/%d", error.err, error.cu_err);
    b = allocate(4 * MIB);
    if (fh && descr.handle.fd >= 0)
        transfer(lib, fh, a, b);
    error = lib->buf_deregister((void *)b);
    PROBE("deregistering after the free", "%d/%d", error.err, error.cu_err);
    MUST(CU(cuMemFree_v2)(a));
    MUST(CU(cuMemFree_v2)(b));
    if (fh)
        lib->handle_deregister(fh);
    close(descr.handle.fd);
    unlink(path);
}

static void part_cufile(void)
{
    static const char *const places[] = {"/usr/local/cuda/lib64",
                                         "/usr/local/cuda/targets/x86_64-linux/lib",
                                         "/usr/lib/x86_64-linux-gnu", NULL};
    char folder[] = "/tmp/registration.XXXXXX", path[300];
    struct cufile lib;
    cufile_error error;
    void *library;

    if (!mkdtemp(folder))
        skip("no folder in /tmp: %s", strerror(errno));
    allow_compatibility(folder);
    library = find_library("libcufile.so.0", "CUFILE_LIBRARY", places);
    if (!library)
        skip("%s", dlerror());
    start_cuda();
    lib = find_cufile(library);
    error = lib.driver_open();
    RESULT("cuFileDriverOpen", "%d/%d", error.err, error.cu_err);
    if (!error.err) {
        use_cufile(&lib, folder);
        error = lib.driver_close();
        RESULT("cuFileDriverClose", "%d/%d", error.err, error.cu_err);
        PROBE("registrations left", "%ld", registrations());
    }
    snprintf(path, sizeof path, "%s/cufile.json", folder);
    unlink(path);
    rmdir(folder); /* stays when cuFile left its log there */
}

/* ---- UCX ------------------------------------------------------------------------------------ */

/* ucm_event_t's part for memory of a device. */
struct ucm_event {
    void *address;
    size_t size;
    int type;
};
#define UCM_MEM_TYPE_ALLOC (1 << 20)
#define UCM_MEM_TYPE_FREE  (1 << 21)

static struct {
    uintptr_t address; /* that is listened for */
    size_t freed_size;
    unsigned allocs, frees;
} heard;

static void hear(int type, struct ucm_event *event, void *arg)
{
    (void)arg;
    if ((uintptr_t)event->address != heard.address && type == UCM_MEM_TYPE_FREE)
        return;
    if (type == UCM_MEM_TYPE_ALLOC) {
        heard.allocs++;
    } else if (type == UCM_MEM_TYPE_FREE) {
        heard.frees++;
        heard.freed_size = event->size;
    }
}

static bool start_ucp(void *ucp)
{
    int (*init)(unsigned, unsigned, const void *, void *, void **) =
        (int (*)(unsigned, unsigned, const void *, void *,
                 void **))library_symbol(ucp, "ucp_init_version");
    uint64_t params[64] = {1, 1}; /* only the features are given: tagged messages */
    void *context = NULL;
    int status = init(1, 0, params, NULL, &context);

    RESULT("ucp_init", "%d", status);
    return status == 0;
}

/* UCX's own knowledge of an address (its memory type cache, or the driver's answer). */
static void part_ucx(void)
{
    static const char *const places[] = {"/opt/ucx/lib", "/opt/hpcx/ucx/lib", "/usr/local/ucx/lib",
                                         "/usr/local/lib", NULL};
    void *ucp, *ucm;
    int (*listen)(int, int, void (*)(int, struct ucm_event *, void *), void *);
    CUdeviceptr a, b;
    int status;

    ucp = find_library("libucp.so.0", "UCX_LIBRARY", places);
    if (!ucp)
        skip("%s", dlerror());
    start_cuda();
    if (!start_ucp(ucp))
        skip("UCX does not start here");
    ucm = dlopen("libucm.so.0", RTLD_NOW | RTLD_NOLOAD);
    if (!ucm)
        skip("libucp did not load libucm: %s", dlerror());
    listen = (int (*)(int, int, void (*)(int, struct ucm_event *, void *),
                      void *))library_symbol(ucm, "ucm_set_event_handler");
    status = listen(UCM_MEM_TYPE_ALLOC | UCM_MEM_TYPE_FREE, 1000, hear, NULL);
    RESULT("ucm_set_event_handler", "%d", status);
    if (status)
        skip("this UCX has no hooks for CUDA memory");
    a = allocate(3 * MIB);
    RESULT("allocations that its hooks heard", "%s", heard.allocs ? "some" : "none");
    heard.address = a;
    MUST(CU(cuMemFree_v2)(a));
    RESULT("frees that its hooks heard", "%u, of %zu bytes", heard.frees, heard.freed_size);
    heard.frees = 0;
    for (int i = 0; i < 100; i++) {
        b = allocate(3 * MIB);
        heard.address = b;
        MUST(CU(cuMemFree_v2)(b));
    }
    RESULT("of 100 more", "%u", heard.frees);
}

/* ---- All of them ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {{"dmabuf", part_dmabuf}, {"cufile", part_cufile}, {"ucx", part_ucx}};

/* In a process of its own: none of these libraries can be relied on to leave. */
static bool run_part(size_t i)
{
    int status = 0;
    pid_t child;

    part = parts[i].name;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        alarm(PART_SECONDS);
        parts[i].run();
        fflush(stdout);
        _exit(failed);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return false;
    if (WIFSIGNALED(status))
        RESULT("ended by signal", "%d", WTERMSIG(status));
    return status == 0;
}

int main(int argc, char **argv)
{
    bool good = true;

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        bool wanted = argc == 1;

        for (int at = 1; at < argc; at++)
            wanted |= strcmp(argv[at], parts[i].name) == 0;
        if (wanted)
            good &= run_part(i);
    }
    return good ? 0 : 1;
}
