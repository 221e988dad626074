/*
 * What tests of sharing have a puppet call (tests/puppet.c) beside the driver and the library:
 * questions to a broker, an importer that ignores the library, and threads that unmap and map anew
 * without a rest.
 */
#include <setjmp.h>

#include "core/share/ipc_handle.h"
#include "core/share/wire.h"
#include "shim/gpushim.h"
#include "tests/unit/share/side.h"

#define PIECE  ((size_t)2 << 20)
#define BLOCK  ((size_t)4 << 20)
#define PIECES 12

static void must(const char *call, int result)
{
    if (result == 0)
        return;
    fprintf(stderr, "puppet: %s gave %d\n", call, result);
    _exit(1);
}

#pragma GCC visibility push(default)

/* ---- Brokers -------------------------------------------------------------------------------- */

uint64_t broker_has(const char *dir);
uint64_t broker_has(const char *dir)
{
    return side_broker_published(dir);
}

bool broker_ends(const char *dir);
bool broker_ends(const char *dir)
{
    return side_broker_end(dir);
}

/* ---- Descriptors ----------------------------------------------------------------------------- */

#define FILLERS 256

static int fillers[FILLERS];
static unsigned filled;

void free_all(void);
void free_all(void)
{
    while (filled > 0)
        close(fillers[--filled]);
}

/* All numbers are taken but so many. */
void leave_free(unsigned room);
void leave_free(unsigned room)
{
    int fd;

    while (filled < FILLERS && (fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0)
        fillers[filled++] = fd;
    while (room-- > 0 && filled > 0)
        close(fillers[--filled]);
}

/* Its parents end. */
int be_daemon(void);
int be_daemon(void)
{
    if (fork() != 0 || setsid() < 0 || fork() != 0)
        _exit(0);
    return 0;
}

/* Sharing may fail from some time on. */
void share_on(unsigned times);
void share_on(unsigned times)
{
    CUipcMemHandle handle;
    CUdeviceptr block;

    for (unsigned i = 0; i < times; i++) {
        must("cuMemAlloc", (int)cuMemAlloc(&block, BLOCK));
        cuIpcGetMemHandle(&handle, block);
        must("cuMemFree", (int)cuMemFree(block));
    }
}

/* ---- Events ---------------------------------------------------------------------------------- */

/* Descriptors of the files that they lie in. */
unsigned count_event_files(void);
unsigned count_event_files(void)
{
    char path[32], file[64] = "";
    unsigned count = 0;

    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, file, sizeof file - 1) > 0)
            count += strstr(file, "/cuda.shm.") != NULL;
        memset(file, 0, sizeof file);
    }
    return count;
}

int open_event_often(uint64_t unused, CUipcEventHandle handle);
int open_event_often(uint64_t unused, CUipcEventHandle handle)
{
    CUevent event;

    for (int i = 0; i < 20; i++) {
        must("cuIpcOpenEventHandle", (int)cuIpcOpenEventHandle(&event, handle));
        must("cuEventQuery", (int)cuEventQuery(event));
        must("cuEventDestroy", (int)cuEventDestroy(event));
    }
    return 0;
}

/* ---- An importer that ignores the library ---------------------------------------------------- */

/* How many words there are, of `value` or (0) that are not zero. */
uint64_t count_words(CUdeviceptr from, size_t size, uint32_t value);
uint64_t count_words(CUdeviceptr from, size_t size, uint32_t value)
{
    uint32_t *words = malloc(size);
    uint64_t found = 0;

    must("cuMemcpyDtoH", (int)cuMemcpyDtoH(words, from, size));
    for (size_t i = 0; i < size / 4; i++)
        found += value ? words[i] == value : words[i] != 0;
    free(words);
    return found;
}

static int thief = -1;
static struct gs_wire_grant granted;
static CUdeviceptr mapped;

/* Asks for the block by hand, and maps all of its piece. */
void take_piece(const unsigned char *ipc_handle, const char *dir);
void take_piece(const unsigned char *ipc_handle, const char *dir)
{
    union gs_wire_message message;
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    struct gs_wire_fds fds;
    int length = snprintf(to.sun_path, sizeof to.sun_path, "%.70s/", dir), error;

    for (int i = 0; i < GS_INSTANCE_SIZE; i++) /* its instance */
        sprintf(to.sun_path + length + 2 * i, "%02x", ipc_handle[8 + i]);
    if (thief >= 0)
        close(thief);
    thief = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    must("connect", connect(thief, (struct sockaddr *)&to, sizeof to));
    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, ipc_handle + 8, GS_INSTANCE_SIZE);
    gs_wire_send(thief, &message, -1);
    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    memcpy(message.open.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    message.open.want_fd = 1;
    gs_wire_send(thief, &message, -1);
    while ((error = gs_wire_receive_all(thief, &message, &fds)) == -EAGAIN)
        usleep(1000);
    must("granted", error || message.head.type != GS_WIRE_GRANT || fds.count != 1);
    granted = message.grant;
    must("import", (int)cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fds.fd[0],
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fds.fd[0]);
    must("reserve", (int)cuMemAddressReserve(&mapped, granted.chunk_size, 0, 0, 0));
    must("map", (int)cuMemMap(mapped, granted.chunk_size, 0, handle, 0));
    must("access", (int)cuMemSetAccess(mapped, granted.chunk_size, &access, 1));
}

/* Where the piece lies, its size, and where in it the block does. */
uint64_t taken(unsigned part);
uint64_t taken(unsigned part)
{
    return part == 0 ? mapped : part == 1 ? granted.chunk_size : granted.offset;
}

/* Writes over the block and gives the hold back, but keeps the mapping. */
void leave_piece(uint32_t word);
void leave_piece(uint32_t word)
{
    union gs_wire_message message;

    must("cuMemsetD32", (int)cuMemsetD32(mapped + granted.offset, word, granted.size / 4));
    must("cuCtxSynchronize", (int)cuCtxSynchronize());
    gs_wire_start(&message, GS_WIRE_CLOSE, granted.head.request);
    message.close.block_id = granted.block_id;
    gs_wire_send(thief, &message, -1);
}

/* ---- What is called where an allocation fails ------------------------------------------------ */

static jmp_buf back;

void say_failure(const char *function, const char *file, uint32_t line, const char *text);
void say_failure(const char *function, const char *file, uint32_t line, const char *text)
{
    fprintf(stderr, "failure: %s %s\n", function, text);
}

static void leave(const char *function, const char *file, uint32_t line, const char *text)
{
    longjmp(back, 1);
}

/* 1: its handler was called, and left it. */
int leave_allocation(size_t size);
int leave_allocation(size_t size)
{
    gpushim_on_failure(leave);
    if (setjmp(back) != 0)
        return 1;
    gpushim_allocate(size, 0, NULL);
    return 0;
}

/* ---- Threads without a rest ------------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t stamps[PIECES], last, published, gone; /* published, gone: atomic */
static bool ends;                                      /* atomic */

void end_churn(void);
void end_churn(void)
{
    __atomic_store_n(&ends, true, __ATOMIC_SEQ_CST);
}

/* The handle is released at once: the mapping has the memory. */
static void map_stamped(CUdeviceptr address, uint32_t stamp)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {.location = prop.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;

    must("cuMemCreate", (int)cuMemCreate(&handle, PIECE, &prop, 0));
    must("cuMemMap", (int)cuMemMap(address, PIECE, 0, handle, 0));
    must("cuMemRelease", (int)cuMemRelease(handle));
    must("cuMemSetAccess", (int)cuMemSetAccess(address, PIECE, &access, 1));
    must("cuMemsetD32", (int)cuMemsetD32(address, stamp, 1));
    must("cuCtxSynchronize", (int)cuCtxSynchronize());
}

/* As they were mapped before either of two threads is at them. */
static void number_stamps_locked(void)
{
    for (; last < PIECES; last++)
        stamps[last] = last + 1;
}

/* Pieces at random, until the end: all are mapped then. */
void churn_pieces(CUdeviceptr base);
void churn_pieces(CUdeviceptr base)
{
    unsigned seed = 7;

    while (!__atomic_load_n(&ends, __ATOMIC_SEQ_CST)) {
        unsigned piece = (unsigned)rand_r(&seed) % PIECES;

        pthread_mutex_lock(&lock);
        number_stamps_locked();
        must("cuMemUnmap", (int)cuMemUnmap(base + piece * PIECE, PIECE));
        stamps[piece] = ++last;
        map_stamped(base + piece * PIECE, last);
        pthread_mutex_unlock(&lock);
        usleep((unsigned)rand_r(&seed) % 2000); /* others come in between, or do not */
    }
}

/* The handle of all of them, and what each had when it was given out. */
void handle_of_pieces(CUdeviceptr base, CUipcMemHandle *ret_handle, uint32_t *ret_stamps);
void handle_of_pieces(CUdeviceptr base, CUipcMemHandle *ret_handle, uint32_t *ret_stamps)
{
    pthread_mutex_lock(&lock);
    number_stamps_locked();
    must("cuIpcGetMemHandle", (int)cuIpcGetMemHandle(ret_handle, base));
    memcpy(ret_stamps, stamps, sizeof stamps);
    pthread_mutex_unlock(&lock);
}

/* One piece, which is published each time it is mapped. */
void churn_name(CUdeviceptr address, const char *name);
void churn_name(CUdeviceptr address, const char *name)
{
    struct gpushim_publication publication = {.size = sizeof publication, .address = address};

    for (uint32_t stamp = 1; !__atomic_load_n(&ends, __ATOMIC_SEQ_CST); stamp++) {
        map_stamped(address, stamp);
        __atomic_store_n(&published, stamp, __ATOMIC_SEQ_CST);
        must("gpushim_publish", gpushim_publish(name, &publication));
        usleep(stamp * 7919 % 3000);
        must("cuMemUnmap", (int)cuMemUnmap(address, PIECE));
        __atomic_store_n(&gone, stamp, __ATOMIC_SEQ_CST);
    }
}

/* The newest stamp that is published, or is about to be; and the newest that is no more. */
uint32_t newest_stamp(bool is_gone);
uint32_t newest_stamp(bool is_gone)
{
    return __atomic_load_n(is_gone ? &gone : &published, __ATOMIC_SEQ_CST);
}

static void count_up(void *count)
{
    __atomic_add_fetch((unsigned *)count, 1, __ATOMIC_SEQ_CST);
}

/* Memory of others is attached, shared, used and detached. What this says comes to the rounds. */
static unsigned deletions;
void churn_external(unsigned rounds);
void churn_external(unsigned rounds)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                      .requestedHandleTypes =
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};

    for (unsigned i = 0; i < rounds; i++) {
        struct gpushim_external external = {.size = sizeof external,
                                            .kind = i % 2 ? GPUSHIM_EXPORTED : GPUSHIM_MEMFD,
                                            .access = GPUSHIM_MUTABLE,
                                            .bytes = BLOCK,
                                            .deleter = count_up,
                                            .arg = &deletions};
        CUmemGenericAllocationHandle made = 0;
        CUipcMemHandle handle;
        uint64_t address;
        int error;

        if (i % 2) {
            must("cuMemCreate", (int)cuMemCreate(&made, BLOCK, &prop, 0));
            must("export",
                 (int)cuMemExportToShareableHandle(&external.fd, made,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        } else {
            external.fd = memfd_create("external", MFD_CLOEXEC | MFD_ALLOW_SEALING);
            must("ftruncate", ftruncate(external.fd, BLOCK));
        }
        must("gpushim_attach", gpushim_attach(&external, &address));
        if (i % 3 == 0)
            must("cuIpcGetMemHandle", (int)cuIpcGetMemHandle(&handle, address));
        must("cuMemsetD32", (int)cuMemsetD32Async(address, i, 1, CU_STREAM_PER_THREAD));
        error = gpushim_detach(address, i % 5 == 0 ? 0 : UINT64_C(60000000000));
        must("gpushim_detach", error == EBUSY && i % 5 == 0 ? 0 : error);
        close(external.fd);
        if (made)
            must("cuMemRelease", (int)cuMemRelease(made));
    }
}

unsigned deletions_now(void);
unsigned deletions_now(void)
{
    return __atomic_load_n(&deletions, __ATOMIC_SEQ_CST);
}

#pragma GCC visibility pop
