/*
 * UCX's cuda_ipc over memory that the program makes and maps itself: one process registers a range
 * of 1 to 64 mapped pieces, another gets it into such memory of its own and puts other words into
 * it. UCX refuses to register such memory where the driver has no handle for it: each outcome is a
 * "GAIN". With UCX_PROTO_INFO=y UCX says by which transport it goes.
 *
 *   UCX_TLS=cuda_ipc,cuda_copy,sm ucx_vmm
 */
#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#define PIECE   ((size_t)2 << 20)
#define PIECES  64
#define LIMIT_S 40

static void die(const char *what, int error)
{
    fprintf(stderr, "ucx_vmm: %s: %d\n", what, error);
    _exit(1);
}

#define CU(call)                     \
    do {                             \
        CUresult cu_result = (call); \
        if (cu_result)               \
            die(#call, cu_result);   \
    } while (0)
#define UCS(call)                         \
    do {                                  \
        ucs_status_t ucs_result = (call); \
        if (ucs_result != UCS_OK)         \
            die(#call, ucs_result);       \
    } while (0)

static void all(ssize_t (*move)(int, void *, size_t), int fd, void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t now = move(fd, (char *)bytes + done, size - done);

        if (now <= 0)
            die("the pipe", (int)now);
        done += (size_t)now;
    }
}

static ssize_t write_some(int fd, void *bytes, size_t size)
{
    return write(fd, bytes, size);
}

static void tell(int fd, const void *bytes, size_t size)
{
    all(write_some, fd, (void *)(uintptr_t)bytes, size);
}

static void hear(int fd, void *bytes, size_t size)
{
    all(read, fd, bytes, size);
}

/* Memory as PyTorch's expandable segments have it: pieces of one handle each, side by side. */
static CUdeviceptr map_pieces(unsigned count)
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {.location = properties.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base;

    CU(cuMemAddressReserve(&base, count * PIECE, 0, 0, 0));
    for (unsigned i = 0; i < count; i++) {
        CU(cuMemCreate(&handle, PIECE, &properties, 0));
        CU(cuMemMap(base + i * PIECE, PIECE, 0, handle, 0));
        CU(cuMemRelease(handle));
    }
    CU(cuMemSetAccess(base, count * PIECE, &access, 1));
    return base;
}

static void fill(CUdeviceptr base, unsigned pieces, unsigned word)
{
    for (unsigned i = 0; i < pieces; i++)
        CU(cuMemsetD32(base + i * PIECE, word + i, PIECE / 4));
    CU(cuCtxSynchronize());
}

static bool has(CUdeviceptr base, unsigned pieces, unsigned word)
{
    uint32_t *words = malloc(PIECE);
    bool good = true;

    for (unsigned i = 0; i < pieces && good; i++) {
        CU(cuMemcpyDtoH(words, base + i * PIECE, PIECE));
        for (size_t k = 0; k < PIECE / 4 && good; k++)
            good = words[k] == word + i;
    }
    free(words);
    return good;
}

struct side {
    ucp_context_h context;
    ucp_worker_h worker;
};

static void begin(struct side *side)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_RMA};
    const ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SINGLE};
    CUdevice device;
    CUcontext context;

    alarm(LIMIT_S);
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    UCS(ucp_init(&params, NULL, &side->context));
    UCS(ucp_worker_create(side->context, &worker, &side->worker));
}

static void finish(struct side *side, void *request)
{
    ucs_status_t status;

    if (UCS_PTR_IS_ERR(request))
        die("the request", UCS_PTR_STATUS(request));
    if (!request)
        return;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
        ucp_worker_progress(side->worker);
    ucp_request_free(request);
    UCS(status);
}

/* Has the memory; makes progress until the other says that it is done. */
static void serve(int from, int to)
{
    struct side side;
    ucp_address_t *address;
    size_t size;
    ssize_t got;
    char word;

    begin(&side);
    UCS(ucp_worker_get_address(side.worker, &address, &size));
    tell(to, &size, sizeof size);
    tell(to, address, size);
    for (unsigned pieces = 1; pieces <= PIECES; pieces *= 8) {
        CUdeviceptr base = map_pieces(pieces);
        const ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                                           UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                           UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
                                             .address = (void *)base,
                                             .length = pieces * PIECE,
                                             .memory_type = UCS_MEMORY_TYPE_CUDA};
        ucp_mem_h memory;
        void *key;

        fill(base, pieces, 100);
        UCS(ucp_mem_map(side.context, &params, &memory));
        UCS(ucp_rkey_pack(side.context, memory, &key, &size));
        tell(to, &base, sizeof base);
        tell(to, &size, sizeof size);
        tell(to, key, size);
        while ((got = read(from, &word, 1)) < 1) { /* it does not block */
            if (got == 0)
                die("the other process ended", 0);
            for (int i = 0; i < 100; i++)
                ucp_worker_progress(side.worker);
        }
        printf("GAIN put_%u %s\n", pieces, has(base, pieces, 500) ? "ok" : "WRONG");
        ucp_rkey_buffer_release(key);
        UCS(ucp_mem_unmap(side.context, memory));
        CU(cuMemUnmap(base, pieces * PIECE));
        CU(cuMemAddressFree(base, pieces * PIECE));
    }
}

static double since(const struct timespec *began)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - began->tv_sec) * 1e6 +
           (double)(now.tv_nsec - began->tv_nsec) / 1e3;
}

static void use(int from, int to)
{
    const ucp_request_param_t none = {0};
    ucp_ep_params_t peer = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    struct side side;
    struct timespec began;
    ucp_ep_h end;
    ucp_rkey_h key;
    void *bytes;
    size_t size;

    begin(&side);
    hear(from, &size, sizeof size);
    bytes = malloc(size);
    hear(from, bytes, size);
    peer.address = bytes;
    UCS(ucp_ep_create(side.worker, &peer, &end));
    for (unsigned pieces = 1; pieces <= PIECES; pieces *= 8) {
        CUdeviceptr here = map_pieces(pieces), there;

        hear(from, &there, sizeof there);
        hear(from, &size, sizeof size);
        bytes = realloc(bytes, size);
        hear(from, bytes, size);
        UCS(ucp_ep_rkey_unpack(end, bytes, &key));
        fill(here, pieces, 0);
        clock_gettime(CLOCK_MONOTONIC, &began);
        finish(&side, ucp_get_nbx(end, (void *)here, pieces * PIECE, there, key, &none));
        printf("TIME get of %u pieces %.0f us\n", pieces, since(&began));
        printf("GAIN get_%u %s\n", pieces, has(here, pieces, 100) ? "ok" : "WRONG");
        fill(here, pieces, 500);
        finish(&side, ucp_put_nbx(end, (void *)here, pieces * PIECE, there, key, &none));
        finish(&side, ucp_ep_flush_nbx(end, &none));
        ucp_rkey_destroy(key);
        fflush(stdout);
        tell(to, "", 1);
    }
}

int main(void)
{
    int there[2], back[2], status;
    pid_t child;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (pipe(there) || pipe(back) || fcntl(back[0], F_SETFL, O_NONBLOCK))
        die("pipe", 0);
    signal(SIGPIPE, SIG_IGN);
    child = fork();
    if (child == 0) {
        close(back[0]);
        close(there[1]);
        use(there[0], back[1]);
        _exit(0);
    }
    close(back[1]);
    close(there[0]);
    serve(back[0], there[1]);
    waitpid(child, &status, 0);
    return status ? 1 : 0;
}
