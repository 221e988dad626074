/*
 * The test's side and the second process's side of peer.h. One request is one datagram of a
 * SOCK_SEQPACKET pair and has one answer, so neither side ever parses a stream.
 */
#include "peer.h"

#include <criterion/criterion.h>
#include <spawn.h>

#define PEER_SOCKET    3 /* the descriptor the peer finds its socket at */
#define ANSWER_SECONDS 30

enum peer_op {
    PEER_ALLOC,
    PEER_FREE,
    PEER_SHARE,
    PEER_OPEN,
    PEER_CLOSE,
    PEER_FILL,
    PEER_SPIN_FILL,
    PEER_COUNT_OTHER,
    PEER_IMPORT,
    PEER_STORE,
    PEER_BAD_BATCH,
    PEER_IMPORT_POOL,
    PEER_QUIT
};

struct request {
    enum peer_op op;
    enum memory_kind kind;
    CUdeviceptr ptr;
    size_t size; /* bytes, or words where the call counts words */
    uint64_t ns;
    uint32_t value;
    bool read_only;
    CUipcMemHandle handle;
    CUmemPoolPtrExportData pointer;
};

struct answer {
    CUresult result;
    CUdeviceptr ptr;
    uint32_t count;
    size_t failed;
    CUipcMemHandle handle;
};

struct peer {
    pid_t pid;
    int socket;
};

/* ---- the test's side ---- */

/* The environment without Criterion's own variable, by which it would take the peer for a test. */
static char **peer_environment(void)
{
    size_t n = 0, kept = 0;
    char **env;

    while (environ[n])
        n++;
    env = calloc(n + 1, sizeof *env);
    cr_assert(env, "out of host memory");
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "BXFI_", 5) != 0)
            env[kept++] = environ[i];
    return env;
}

/* conformance_peer lies beside this program. */
static void peer_program(char ret_path[PATH_MAX])
{
    static const char name[] = "conformance_peer";
    ssize_t length = readlink("/proc/self/exe", ret_path, PATH_MAX - sizeof name);
    char *slash;

    cr_assert_gt(length, 0);
    ret_path[length] = '\0';
    slash = strrchr(ret_path, '/');
    cr_assert(slash);
    memcpy(slash + 1, name, sizeof name);
}

struct peer *peer_start(int stdout_fd)
{
    struct peer *peer = calloc(1, sizeof *peer);
    char program[PATH_MAX];
    char *argv[] = {program, NULL};
    char **env = peer_environment();
    struct timeval limit = {.tv_sec = ANSWER_SECONDS};
    posix_spawn_file_actions_t actions;
    int pair[2];

    cr_assert(peer, "out of host memory");
    peer_program(program);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_eq(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    if (pair[1] == PEER_SOCKET) {
        /* dup2 onto itself would keep close-on-exec. */
        int moved = dup(pair[1]);
        cr_assert_geq(moved, 0);
        close(pair[1]);
        pair[1] = moved;
    }
    posix_spawn_file_actions_init(&actions);
    if (stdout_fd >= 0)
        posix_spawn_file_actions_adddup2(&actions, stdout_fd, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, pair[1], PEER_SOCKET);
    cr_assert_eq(posix_spawn(&peer->pid, program, &actions, NULL, argv, env), 0);
    posix_spawn_file_actions_destroy(&actions);
    free(env);
    close(pair[1]);
    peer->socket = pair[0];
    return peer;
}

/* What came; a limit of time lets a machine that stands still for a moment interrupt it. */
static ssize_t hear(struct peer *peer, struct answer *ret_answer)
{
    ssize_t got;

    do
        got = recv(peer->socket, ret_answer, sizeof *ret_answer, 0);
    while (got < 0 && errno == EINTR);
    return got;
}

static struct answer peer_call_fd(struct peer *peer, const struct request *request, int fd)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec data = {(void *)(uintptr_t)request, sizeof *request};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    struct answer answer;

    if (fd >= 0) {
        struct cmsghdr *header = &control.header;
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    cr_assert_eq(sendmsg(peer->socket, &message, MSG_NOSIGNAL), (ssize_t)sizeof *request,
                 "the peer is gone");
    cr_assert_eq(hear(peer, &answer), (ssize_t)sizeof answer, "the peer does not answer request %d",
                 (int)request->op);
    return answer;
}

/* ASK(peer, op, what else is in the request) */
#define ASK(peer, ...) peer_call_fd(peer, &(struct request){.op = __VA_ARGS__}, -1)

static void peer_reap(struct peer *peer)
{
    close(peer->socket);
    cr_assert_eq(waitpid(peer->pid, NULL, 0), peer->pid);
    free(peer);
}

void peer_quit(struct peer *peer)
{
    ASK(peer, PEER_QUIT);
    peer_reap(peer);
}

void peer_kill(struct peer *peer)
{
    kill(peer->pid, SIGKILL);
    peer_reap(peer);
}

CUresult peer_alloc(struct peer *peer, enum memory_kind kind, CUdeviceptr *ret_ptr, size_t size)
{
    struct answer a = ASK(peer, PEER_ALLOC, .kind = kind, .size = size);

    *ret_ptr = a.ptr;
    return a.result;
}

CUresult peer_free(struct peer *peer, enum memory_kind kind, CUdeviceptr ptr)
{
    return ASK(peer, PEER_FREE, .kind = kind, .ptr = ptr).result;
}

CUresult peer_share(struct peer *peer, CUdeviceptr ptr, CUipcMemHandle *ret_handle)
{
    struct answer a = ASK(peer, PEER_SHARE, .ptr = ptr);

    *ret_handle = a.handle;
    return a.result;
}

CUresult peer_open(struct peer *peer, const CUipcMemHandle *handle, CUdeviceptr *ret_ptr)
{
    struct answer a = ASK(peer, PEER_OPEN, .handle = *handle);

    *ret_ptr = a.ptr;
    return a.result;
}

CUresult peer_close(struct peer *peer, CUdeviceptr ptr)
{
    return ASK(peer, PEER_CLOSE, .ptr = ptr).result;
}

CUresult peer_fill(struct peer *peer, CUdeviceptr ptr, uint32_t value, size_t words)
{
    return ASK(peer, PEER_FILL, .ptr = ptr, .value = value, .size = words).result;
}

CUresult peer_spin_fill(struct peer *peer, CUdeviceptr ptr, uint32_t value, size_t words,
                        uint64_t ns)
{
    return ASK(peer, PEER_SPIN_FILL, .ptr = ptr, .value = value, .size = words, .ns = ns).result;
}

CUresult peer_count_other(struct peer *peer, CUdeviceptr ptr, uint32_t value, size_t words,
                          uint32_t *ret_count)
{
    struct answer a = ASK(peer, PEER_COUNT_OTHER, .ptr = ptr, .value = value, .size = words);

    *ret_count = a.count;
    return a.result;
}

uint32_t peer_other(struct peer *peer, CUdeviceptr ptr, uint32_t value, size_t words)
{
    uint32_t count = UINT32_MAX;

    OK(peer_count_other(peer, ptr, value, words, &count));
    return count;
}

CUdeviceptr peer_opens(struct peer *peer, CUdeviceptr ours)
{
    CUipcMemHandle handle;
    CUdeviceptr ptr = 0;

    OK(cuIpcGetMemHandle(&handle, ours));
    OK(peer_open(peer, &handle, &ptr));
    return ptr;
}

CUdeviceptr opened_from(struct peer *peer, CUdeviceptr theirs)
{
    CUipcMemHandle handle;
    CUdeviceptr ptr = 0;

    OK(peer_share(peer, theirs, &handle));
    OK(cuIpcOpenMemHandle(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    return ptr;
}

CUresult peer_import(struct peer *peer, int fd, size_t size, bool read_only, CUdeviceptr *ret_ptr)
{
    struct request r = {.op = PEER_IMPORT, .size = size, .read_only = read_only};
    struct answer a = peer_call_fd(peer, &r, fd);

    *ret_ptr = a.ptr;
    return a.result;
}

CUresult peer_store(struct peer *peer, CUdeviceptr ptr, uint32_t value)
{
    return ASK(peer, PEER_STORE, .ptr = ptr, .value = value).result;
}

CUresult peer_import_pool(struct peer *peer, int fd, const CUmemPoolPtrExportData *pointer,
                          CUdeviceptr *ret_ptr)
{
    struct request r = {.op = PEER_IMPORT_POOL, .pointer = *pointer};
    struct answer a = peer_call_fd(peer, &r, fd);

    *ret_ptr = a.ptr;
    return a.result;
}

bool peer_bad_batch(struct peer *peer, int form, enum bad_batch what, CUresult *ret_result,
                    size_t *ret_failed)
{
    struct request request = {.op = PEER_BAD_BATCH, .value = (uint32_t)what, .size = (size_t)form};
    struct answer answer;

    cr_assert_eq(send(peer->socket, &request, sizeof request, MSG_NOSIGNAL),
                 (ssize_t)sizeof request);
    if (hear(peer, &answer) != (ssize_t)sizeof answer)
        return false;
    *ret_result = answer.result;
    *ret_failed = answer.failed;
    return true;
}

/* ---- the peer's side: no Criterion here ---- */

static CUresult serve_bad_batch(int form, enum bad_batch what, size_t *ret_failed)
{
    CUdeviceptr small = 0, other = 0, neighbour = 0;
    CUstream stream = NULL;
    size_t sizes[] = {1000, what == BATCH_PAST_THE_END ? 1001 : 8};
    CUresult r = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);

    if (r == CUDA_SUCCESS)
        r = cuMemAlloc(&small, 1000);
    if (r == CUDA_SUCCESS)
        r = cuMemAlloc(&neighbour, 1000);
    if (r == CUDA_SUCCESS)
        r = cuMemAlloc(&other, MIB);
    if (r == CUDA_SUCCESS && what == BATCH_OF_FREED_MEMORY)
        r = cuMemFree(neighbour);
    if (r != CUDA_SUCCESS)
        return CUDA_ERROR_UNKNOWN; /* no answer of a batch */
    r = copy_batch(form, (CUdeviceptr[]){small, neighbour}, (CUdeviceptr[]){other, other}, sizes,
                   ret_failed, stream);
    cuStreamSynchronize(stream);
    return r;
}

static CUresult serve_count_other(const struct request *request, uint32_t *ret_count)
{
    CUdeviceptr out;
    CUresult r = cuMemAlloc(&out, sizeof *ret_count);

    if (r != CUDA_SUCCESS)
        return r;
    r = cuMemsetD32(out, 0, 1);
    if (r == CUDA_SUCCESS)
        r = launch_count_other(CU_STREAM_LEGACY, request->ptr, request->value, request->size, out);
    if (r == CUDA_SUCCESS)
        r = cuMemcpyDtoH(ret_count, out, sizeof *ret_count);
    cuMemFree(out);
    return r;
}

static CUresult serve_import(const struct request *request, int fd, CUdeviceptr *ret_ptr)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                              .flags = request->read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                          : CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUresult r = cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    if (r != CUDA_SUCCESS)
        return r;
    r = cuMemAddressReserve(ret_ptr, request->size, 0, 0, 0);
    if (r == CUDA_SUCCESS)
        r = cuMemMap(*ret_ptr, request->size, 0, handle, 0);
    if (r == CUDA_SUCCESS)
        r = cuMemSetAccess(*ret_ptr, request->size, &access, 1);
    cuMemRelease(handle);
    return r;
}

static CUresult serve_import_pool(const struct request *request, int fd, CUdeviceptr *ret_ptr)
{
    __typeof__(&cuMemPoolImportFromShareableHandle) import =
        (__typeof__(import))driver_lookup("cuMemPoolImportFromShareableHandle", 11020, 0);
    __typeof__(&cuMemPoolImportPointer) import_pointer =
        (__typeof__(import_pointer))driver_lookup("cuMemPoolImportPointer", 11020, 0);
    CUmemPoolPtrExportData pointer = request->pointer;
    CUmemoryPool pool = NULL;
    CUresult r = CUDA_ERROR_NOT_FOUND;

    if (import && import_pointer)
        r = import(&pool, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (r != CUDA_SUCCESS)
        return r;
    if (cuMemAllocFromPoolAsync(ret_ptr, 4096, pool, CU_STREAM_LEGACY) == CUDA_SUCCESS)
        return CUDA_ERROR_UNKNOWN; /* an imported pool allocates nothing */
    return import_pointer(ret_ptr, pool, &pointer);
}

static CUresult serve(const struct request *request, int fd, struct answer *answer)
{
    switch (request->op) {
    case PEER_ALLOC:
        return memory_alloc(request->kind, &answer->ptr, request->size);
    case PEER_FREE:
        return memory_free(request->kind, request->ptr);
    case PEER_SHARE:
        return cuIpcGetMemHandle(&answer->handle, request->ptr);
    case PEER_OPEN:
        return cuIpcOpenMemHandle(&answer->ptr, request->handle,
                                  CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    case PEER_CLOSE:
        return cuIpcCloseMemHandle(request->ptr);
    case PEER_FILL:
        return fill_now(request->ptr, request->value, request->size);
    case PEER_SPIN_FILL:
        return launch_spin_fill(CU_STREAM_LEGACY, request->ptr, request->value, request->size,
                                request->ns);
    case PEER_COUNT_OTHER:
        return serve_count_other(request, &answer->count);
    case PEER_IMPORT:
        return serve_import(request, fd, &answer->ptr);
    case PEER_STORE:
        return cuMemcpyHtoD(request->ptr, &request->value, sizeof request->value);
    case PEER_BAD_BATCH:
        return serve_bad_batch((int)request->size, (enum bad_batch)request->value, &answer->failed);
    case PEER_IMPORT_POOL:
        return serve_import_pool(request, fd, &answer->ptr);
    case PEER_QUIT:
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* Receives one request and the descriptor that came with it, or -1. False at the end. */
static bool receive(int socket, struct request *request, int *ret_fd)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec data = {request, sizeof *request};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};

    *ret_fd = -1;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *request)
        return false;
    if (CMSG_FIRSTHDR(&message))
        memcpy(ret_fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof *ret_fd);
    return true;
}

int peer_main(void)
{
    struct request request;
    CUresult started;
    int fd;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* Criterion's descriptors: a peer that outlives its test must not keep Criterion waiting. */
    close_range(PEER_SOCKET + 1, ~0u, 0);
    started = cuInit(0);
    if (started == CUDA_SUCCESS)
        started = cuDeviceGet(&device, 0);
    if (started == CUDA_SUCCESS)
        started = cuDevicePrimaryCtxRetain(&context, device);
    if (started == CUDA_SUCCESS)
        started = cuCtxSetCurrent(context);
    while (receive(PEER_SOCKET, &request, &fd)) {
        struct answer answer = {.result = started};

        if (started == CUDA_SUCCESS)
            answer.result = serve(&request, fd, &answer);
        if (fd >= 0)
            close(fd);
        if (send(PEER_SOCKET, &answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer)
            return 1;
        if (request.op == PEER_QUIT)
            return 0;
    }
    return 0;
}
