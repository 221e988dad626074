/*
 * External memory (gpushim_attach, gpushim_detach): somebody else made it.
 *
 *   external shared KIND   attached, asked about, shared, opened by another process, held beyond its
 *                          detach, and given up: exported, memfd; and read-only
 *   external address       memory of the program's own, of a device and of the host
 *   external work          the end waits for GPU work, in whichever context
 *   external named         it is found by a name
 *   external context       its context ends: so does it
 *   external reopened HOW  its importer's context ends, while that has it open or has closed it, and it is opened
 *                          again in another: open, closed
 *   external exits HOW     the process ends in order: held, or in a deleter, or in a forked child
 *   external refused       what is no external memory; nothing is left of it
 *   external dma-buf       taken where the driver's import takes it
 *   external churn         threads attach, share, detach and end all at once
 *   external importer        opens, reads, writes and closes as it is told
 *
 * The library is preloaded. What is mapped and registered is asked of the software driver.
 */
#include "importer.h"
#include "shim/gpushim.h"
#include "softcuda.h"
#include "tests/rest.h"
#include "tests/system.h"

#define SIZE ((size_t)4 << 20)
#define LONG UINT64_C(60000000000) /* what has to come is waited for for so long */
#define SOON UINT64_C(20000000)

static __typeof__(&gpushim_attach) attach;
static __typeof__(&gpushim_detach) detach;
static __typeof__(&gpushim_externals) externals;
static __typeof__(&gpushim_publish) publish;
static __typeof__(&gpushim_lookup) lookup;

static void find_functions(void)
{
    attach = (__typeof__(attach))dlsym(RTLD_DEFAULT, "gpushim_attach");
    detach = (__typeof__(detach))dlsym(RTLD_DEFAULT, "gpushim_detach");
    externals = (__typeof__(externals))dlsym(RTLD_DEFAULT, "gpushim_externals");
    publish = (__typeof__(publish))dlsym(RTLD_DEFAULT, "gpushim_publish");
    lookup = (__typeof__(lookup))dlsym(RTLD_DEFAULT, "gpushim_lookup");
    expect("the library has no external memory",
           attach && detach && externals && publish && lookup);
}

/* ---- What is attached ------------------------------------------------------------------------ */

/* What its maker has, beside the descriptor. */
struct made {
    CUmemGenericAllocationHandle handle;
    int fd;
};

static struct made make_exported(void)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                      .requestedHandleTypes =
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    struct made made;

    must("cuMemCreate", cuMemCreate(&made.handle, SIZE, &prop, 0));
    must("export", cuMemExportToShareableHandle(&made.fd, made.handle,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return made;
}

/* What is attached begins a page into it. */
static struct made make_memfd(void)
{
    struct made made = {0, memfd_create("external", MFD_CLOEXEC | MFD_ALLOW_SEALING)};

    expect("memfd", made.fd >= 0 && ftruncate(made.fd, SIZE + 4096) == 0);
    return made;
}

static struct made make(const char *kind)
{
    return strcmp(kind, "exported") == 0 ? make_exported() : make_memfd();
}

static void unmake(struct made *made)
{
    close(made->fd);
    if (made->handle)
        must("cuMemRelease", cuMemRelease(made->handle));
}

static unsigned deleted; /* atomic */
static bool deleter_could_call;

static void count_deleted(void *arg)
{
    CUdeviceptr block;

    deleter_could_call =
        cuMemAlloc(&block, 4096) == CUDA_SUCCESS && cuMemFree(block) == CUDA_SUCCESS;
    __atomic_add_fetch((unsigned *)arg, 1, __ATOMIC_SEQ_CST);
}

static unsigned deleted_now(void)
{
    return __atomic_load_n(&deleted, __ATOMIC_SEQ_CST);
}

static struct gpushim_external external_of(const struct made *made)
{
    return (struct gpushim_external){.size = sizeof(struct gpushim_external),
                                     .kind = made->handle ? GPUSHIM_EXPORTED : GPUSHIM_MEMFD,
                                     .access = GPUSHIM_MUTABLE,
                                     .fd = made->fd,
                                     .offset = made->handle ? 0 : 4096,
                                     .bytes = SIZE,
                                     .label = "weights",
                                     .deleter = count_deleted,
                                     .arg = &deleted};
}

static uint64_t must_attach(const struct gpushim_external *external)
{
    uint64_t address = 0;
    int error = attach(external, &address);

    if (error)
        fail("gpushim_attach", error);
    return address;
}

static void write_at(CUdeviceptr address, uint32_t word)
{
    must("cuMemsetD32", cuMemsetD32(address, word, 1));
    must("cuCtxSynchronize", cuCtxSynchronize());
}

struct counts {
    struct softcuda_census of;
    unsigned files;
};

static struct counts counts(void)
{
    struct counts now;

    softcuda_census(&now.of);
    now.files = open_files(getpid());
    return now;
}

static bool is_as_before(struct counts before)
{
    struct counts now = counts();

    return now.of.handles == before.of.handles && now.of.mappings == before.of.mappings &&
           now.of.reservations == before.of.reservations &&
           now.of.host_blocks == before.of.host_blocks &&
           now.of.exported_fds == before.of.exported_fds && now.files == before.files;
}

static void expect_as_before(struct counts before)
{
    struct counts now;

    if (AWAIT(is_as_before(before)))
        return;
    now = counts();
    fprintf(stderr,
            "handles %u %u, mappings %u %u, reservations %u %u, of the host %u %u, exported %u %u, "
            "files %u %u\n",
            before.of.handles, now.of.handles, before.of.mappings, now.of.mappings,
            before.of.reservations, now.of.reservations, before.of.host_blocks, now.of.host_blocks,
            before.of.exported_fds, now.of.exported_fds, before.files, now.files);
    fail("something is left of it", 0);
}

/* What the first one starts stays: a thread, a socket. What it had on its way out is gone. */
static void warm_up(void)
{
    struct made made = make_exported();
    struct gpushim_external external = external_of(&made);
    CUipcMemHandle handle;
    uint64_t address = must_attach(&external);

    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, address));
    expect("it does not end", detach(address, LONG) == 0 && deleted_now() == 1);
    deleted = 0;
    unmake(&made);
    expect("the library does not come to rest", all_rest(0));
}

/* ---- The importer ---------------------------------------------------------------------------- */

static uint64_t must_open_there(const struct party *party, CUipcMemHandle handle)
{
    struct opened opened = try_open_there(party, handle);

    must("cuIpcOpenMemHandle there", opened.result);
    expect("it has another size there", opened.size == SIZE);
    return opened.address;
}

static uint32_t mapped_there(const struct party *party)
{
    const struct held held = held_there(party);

    return held.mappings + held.host_blocks + held.reservations;
}

/* ---- What is shown --------------------------------------------------------------------------- */

/* It answers as memory of cuMemAlloc does, and is listed. */
static void check_asked(uint64_t address, const struct gpushim_external *external)
{
    struct gpushim_attached attached[2];
    unsigned long long id = 0;
    CUdeviceptr base = 0;
    CUcontext context = NULL, current;
    size_t size = 0;
    int capable = 0;
    CUmemorytype type = 0;

    must("cuMemGetAddressRange", cuMemGetAddressRange(&base, &size, address + 77));
    expect("its range", base == address && size == SIZE);
    must("context", cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address));
    must("cuCtxGetCurrent", cuCtxGetCurrent(&current));
    expect("its context", context == current);
    must("type", cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    expect("its type",
           type == (external->kind == GPUSHIM_MEMFD ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    must("id", cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address));
    must("capable",
         cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address));
    expect("its attributes", id != 0 && capable == 1);
    expect("it can be freed", cuMemFree(address) == CUDA_ERROR_INVALID_VALUE);
    expect("it can be closed", cuIpcCloseMemHandle(address) == CUDA_ERROR_INVALID_VALUE);
    expect("a copy may leave it",
           cuMemsetD8(address + SIZE - 8, 1, 16) == CUDA_ERROR_INVALID_VALUE);
    expect("it is not listed", externals(attached, 2) == 1 && attached[0].address == address &&
                                   attached[0].bytes == SIZE && !attached[0].detached &&
                                   strcmp(attached[0].label, "weights") == 0);
}

static void check_shared(const char *kind)
{
    struct party first = party_start("importer", NULL), late = party_start("importer", NULL);
    struct made made = make(kind);
    struct gpushim_external external = external_of(&made);
    struct counts before = counts();
    uint64_t address = must_attach(&external), there, held = mapped_there(&first);
    CUipcMemHandle handle, again;
    uint32_t word = 0;

    check_asked(address, &external);
    write_at(address, 11);
    if (external.kind == GPUSHIM_MEMFD)
        expect("it is other memory", pread(made.fd, &word, 4, 4096) == 4 && word == 11);
    handle = handle_of(address + 5);
    again = handle_of(address);
    expect("it has two handles", memcmp(&handle, &again, sizeof handle) == 0);
    there = must_open_there(&first, handle);
    expect("what was written here", read_there(&first, there) == 11);
    must("cuMemsetD32 there", try_write_there(&first, there + SIZE - 4, 12));
    expect("what was written there", word_at(address + SIZE - 4) == 12);
    unmake(&made); /* who made it may let go of it */
    expect("it is gone with its maker", word_at(address) == 11);

    expect("it is detached while it is open", detach(address, SOON) == EBUSY);
    expect("its deleter is called while it is open", deleted_now() == 0);
    expect("who has it open is not named", times_logged("has it open for") == 1);
    expect("a stale handle is opened",
           try_open_there(&late, handle).result == CUDA_ERROR_NOT_PERMITTED);
    expect("it has a handle still", cuIpcGetMemHandle(&again, address) != CUDA_SUCCESS);
    expect("it is gone there", read_there(&first, there) == 11);
    close_there(&first, there);
    expect("it does not end", detach(address, LONG) == 0 || deleted_now() == 1);
    expect("its deleter was not called once", deleted_now() == 1 && deleter_could_call);
    expect("it is attached still", detach(address, LONG) == ENOENT && externals(NULL, 0) == 0);
    expect("the driver knows it still",
           cuPointerGetAttribute(&word, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS);
    expect("the importer keeps something", AWAIT(mapped_there(&first) == held));
    before.files -=
        external.kind == GPUSHIM_EXPORTED ? 2 : 1; /* the driver has one of each handle */
    before.of.handles -= external.kind == GPUSHIM_EXPORTED;
    before.of.exported_fds -= external.kind == GPUSHIM_EXPORTED;
    expect("an importer failed", party_end(&first) == 0 && party_end(&late) == 0);
    before.files -= 2; /* their sockets */
    expect_as_before(before);
}

/* Neither this process nor who opens it writes to it. */
static void check_read_only(const char *kind)
{
    struct party other = party_start("importer", NULL);
    struct made made = make(kind);
    struct gpushim_external external = external_of(&made);
    uint64_t address, there;

    if (external.kind == GPUSHIM_MEMFD)
        expect("pwrite", pwrite(made.fd, "data", 4, 4096) == 4);
    external.access = GPUSHIM_READ_ONLY;
    address = must_attach(&external);
    there = must_open_there(&other, handle_of(address));
    expect("it is written there", try_write_there(&other, there, 5) != CUDA_SUCCESS);
    expect("it is written here", cuMemsetD32(address, 5, 1) != CUDA_SUCCESS);
    if (external.kind == GPUSHIM_MEMFD)
        expect("it is not read there",
               read_there(&other, there) == word_at(address) && word_at(address) != 0);
    close_there(&other, there);
    expect("it does not end", detach(address, LONG) == 0 && deleted_now() == 1);
    unmake(&made);
    expect("the importer failed", party_end(&other) == 0);
}

/* Its driver's matter as before, until the end. */
static void check_address_of(uint64_t memory, bool is_host)
{
    struct gpushim_external external = {.size = sizeof external,
                                        .kind = GPUSHIM_ADDRESS,
                                        .access = GPUSHIM_MUTABLE,
                                        .address = memory,
                                        .bytes = SIZE,
                                        .deleter = count_deleted,
                                        .arg = &deleted};
    struct gpushim_publication publication = {.size = sizeof publication, .address = memory};
    unsigned before = deleted_now();
    struct counts counts_before = counts();
    CUmemorytype type = 0;
    uint64_t address = must_attach(&external), another;

    expect("it lies elsewhere", address == memory);
    must("type", cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    expect("its type", type == (is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    write_at(address, 5);
    expect("it is attached twice", attach(&external, &another) == EINVAL);
    external.bytes = 4096;
    external.address += SIZE - 4096;
    expect("a part of it is attached too", attach(&external, &another) == EINVAL);
    expect("it is published", publish("name", &publication) == ENODEV);
    expect("it is not listed", externals(NULL, 0) == 1);
    expect("it does not end", detach(address, LONG) == 0);
    expect("its deleter was not called once", deleted_now() == before + 1);
    expect_as_before(counts_before);
}

static void check_address(const char *more)
{
    void *plain = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
         *pinned;

    must("cuMemHostAlloc", cuMemHostAlloc(&pinned, SIZE, 0));
    check_address_of((uintptr_t)plain, true);
    check_address_of((uintptr_t)plain, true);
    check_address_of((uintptr_t)pinned, true);
    must("cuMemFreeHost", cuMemFreeHost(pinned));
}

static void check_work(const char *more)
{
    struct made made = make_exported();
    struct gpushim_external external = external_of(&made);
    uint64_t address = must_attach(&external);
    CUcontext second, first;

    must("cuCtxGetCurrent", cuCtxGetCurrent(&first));
    must("cuCtxCreate", cuCtxCreate_v4(&second, NULL, 0, 0));
    use_memory(); /* from here on the library knows the second one */
    softcuda_hold(1);
    must("cuMemsetD32Async", cuMemsetD32Async(address, 1, 1, NULL));
    must("cuCtxSetCurrent", cuCtxSetCurrent(first));
    expect("it ends while the GPU is at it", detach(address, SOON) == EBUSY);
    expect("that is not said", times_logged("the GPU has not done") == 1);
    expect("its deleter is called while the GPU is at it", deleted_now() == 0);
    softcuda_hold(0);
    expect("it does not end", AWAIT(deleted_now() == 1) && AWAIT(externals(NULL, 0) == 0));
    must("cuCtxDestroy", cuCtxDestroy(second));
    unmake(&made);
}

static void check_named(const char *more)
{
    struct party other = party_start("importer", NULL);
    struct made made = make_memfd();
    struct gpushim_external external = external_of(&made);
    struct gpushim_publication publication = {.size = sizeof publication, .label = "label"};
    struct gpushim_named named = {.size = sizeof named};
    CUipcMemHandle handle;
    CUdeviceptr block;
    uint64_t there;

    must("cuMemAlloc", cuMemAlloc(&block, SIZE)); /* whose name it takes */
    publication.address = block;
    expect("a block is not published", publish("external", &publication) == 0);
    publication.address = must_attach(&external);
    write_at(publication.address + 8, 5);
    publication.address += 8;
    expect("it is not published", publish("external", &publication) == 0);
    expect("a broker is to have it", times_logged("no broker has the name") == 0);
    expect("it is not found", lookup("external", &named) == 0);
    expect("what is found",
           named.bytes == SIZE && named.offset == 8 && named.address == publication.address);
    memcpy(&handle, named.handle, sizeof handle);
    there = must_open_there(&other, handle);
    expect("what is there", read_there(&other, there + named.offset) == 5);
    close_there(&other, there);
    expect("it does not end", detach(publication.address - 8, LONG) == 0);
    expect("its name stays", AWAIT(lookup("external", &named) == ENOENT));
    unmake(&made);
    expect("the importer failed", party_end(&other) == 0);
}

static CUcontext deleter_context;

static void note_context(void *arg)
{
    must("cuCtxGetCurrent", cuCtxGetCurrent(&deleter_context));
    count_deleted(arg);
}

static void check_context(const char *more)
{
    struct made exported = make_exported(), memfd = make_memfd();
    struct gpushim_external external = external_of(&exported);
    struct counts before = counts();
    CUcontext second, primary;
    uint64_t address;

    must("cuCtxGetCurrent", cuCtxGetCurrent(&primary));
    must("cuCtxCreate", cuCtxCreate_v4(&second, NULL, 0, 0));
    external.deleter = note_context;
    address = must_attach(&external);
    external = external_of(&memfd);
    external.deleter = note_context;
    must_attach(&external);
    expect("they are not there", externals(NULL, 0) == 2);
    must("cuCtxSetCurrent", cuCtxSetCurrent(primary));
    softcuda_hold(1);
    must("cuMemsetD32Async", cuMemsetD32Async(address, 1, 1, NULL));
    must("cuCtxDestroy", cuCtxDestroy(second));
    expect("one ends while another context is at it",
           detach(address, SOON) == EBUSY && externals(NULL, 0) >= 1);
    softcuda_hold(0);
    expect("they do not end with their context", AWAIT(deleted_now() == 2));
    expect("the deleter has no primary context", deleter_context == primary && deleter_could_call);
    expect("they are there still", AWAIT(externals(NULL, 0) == 0));
    expect_as_before(before);
    unmake(&exported);
    unmake(&memfd);
}

/* ---- The end of the process ------------------------------------------------------------------ */

static int told = -1; /* where a deleter says that it was called, once */

static void tell_of_deleter(void *arg)
{
    char could = 'n';

    count_deleted(&deleted);
    if (deleter_could_call)
        could = 'y';
    expect("write", write(told, &could, 1) == 1);
    if (arg)
        exit(0);
}

/* Attaches, and ends by `how`. */
static int leaver(const char *how)
{
    struct made exported, memfd;
    struct gpushim_external external;
    CUipcMemHandle handle;
    uint64_t address;
    int status;
    char go;
    pid_t child;

    start_driver();
    find_functions();
    told = PARTY_SOCKET;
    exported = make_exported();
    memfd = make_memfd();
    external = external_of(&exported);
    external.deleter = tell_of_deleter;
    external.arg = strcmp(how, "deleter") == 0 ? &deleted : NULL;
    address = must_attach(&external);
    write_at(address, 33);
    handle = handle_of(address);
    if (!external.arg) {
        external = external_of(&memfd);
        external.deleter = tell_of_deleter;
        external.arg = NULL;
        must_attach(&external);
    }
    say(PARTY_SOCKET, &handle, sizeof handle);
    hear(PARTY_SOCKET, &go, 1);
    if (strcmp(how, "fork") == 0) {
        child = fork();
        if (child == 0)
            exit(attach(&external, &address) == ENODEV ? 0 : 1);
        expect("the child failed", waitpid(child, &status, 0) == child && status == 0);
    }
    if (external.arg) {
        detach(address, 0);
        pause(); /* its deleter ends the process */
    }
    return 0;
}

static void check_exits(const char *how)
{
    struct party other = party_start("importer", NULL), leaving = party_start("leaver", how);
    const unsigned expected = strcmp(how, "deleter") == 0 ? 1 : 2;
    CUipcMemHandle handle;
    uint64_t there = 0;
    char said[8] = {0};
    unsigned count = 0;

    hear(leaving.socket, &handle, sizeof handle);
    if (expected == 2)
        there = must_open_there(&other, handle); /* and keeps it */
    say(leaving.socket, "g", 1);
    while (count < sizeof said && hear_or_end(leaving.socket, &said[count], 1))
        count++;
    expect("its deleters were not called once each", count == expected);
    expect("a deleter could not call CUDA", said[0] == 'y' && (count < 2 || said[1] == 'y'));
    expect("it ended otherwise", party_end(&leaving) == 0);
    if (there) {
        expect("what an importer has went with it", read_there(&other, there) == 33);
        close_there(&other, there);
    }
    expect("the importer failed", party_end(&other) == 0);
}

/* ---- Opened again ---------------------------------------------------------------------------- */

static CUdeviceptr open_of(CUipcMemHandle handle)
{
    CUdeviceptr address;

    must("cuIpcOpenMemHandle",
         cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    return address;
}

/* Opens it in one context, and when that is gone in another. */
static int reimporter(const char *how)
{
    CUcontext primary, other;
    CUipcMemHandle handle;
    CUdeviceptr address;

    start_driver();
    must("cuCtxGetCurrent", cuCtxGetCurrent(&primary));
    hear(PARTY_SOCKET, &handle, sizeof handle);
    must("cuCtxCreate", cuCtxCreate_v4(&other, NULL, 0, 0));
    address = open_of(handle);
    expect("what is there", word_at(address) == 33);
    if (strcmp(how, "closed") == 0)
        must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(address));
    must("cuCtxDestroy", cuCtxDestroy(other));
    must("cuCtxSetCurrent", cuCtxSetCurrent(primary));
    address = open_of(handle);
    expect("what is there then", word_at(address) == 33);
    write_at(address, 44);
    must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(address));
    say(PARTY_SOCKET, "y", 1);
    hear_or_end(PARTY_SOCKET, &address, sizeof address);
    return 0;
}

static void check_reopened(const char *how)
{
    struct party other = party_start("reimporter", how);
    struct made made = make_memfd();
    struct gpushim_external external = external_of(&made);
    uint64_t address = must_attach(&external);
    CUipcMemHandle handle;
    char done;

    write_at(address, 33);
    handle = handle_of(address);
    say(other.socket, &handle, sizeof handle);
    hear(other.socket, &done, 1);
    expect("what its importer wrote", word_at(address) == 44);
    expect("it does not end", detach(address, LONG) == 0 && deleted_now() == 1);
    unmake(&made);
    expect("the importer failed", party_end(&other) == 0);
}

/* ---- Refusals -------------------------------------------------------------------------------- */

static void refuse(const char *what, struct gpushim_external external, int error)
{
    const struct counts before = counts();
    uint64_t address = 77;
    int got = attach(&external, &address);

    if (got != error)
        fail(what, got);
    expect(what, address == 77 && is_as_before(before) && externals(NULL, 0) == 0);
}

static void check_refused(const char *more)
{
    struct made exported = make_exported(), memfd = make_memfd(), unsealed;
    struct gpushim_external good = external_of(&exported), external = good;
    struct gpushim_external host = external_of(&memfd);
    uint64_t address;
    CUdeviceptr block;
    int ends[2];
    void *plain = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    expect("nothing is given", attach(NULL, &address) == EINVAL && attach(&good, NULL) == EINVAL);
#define REFUSED(field, value, error)                  \
    do {                                              \
        external.field = value;                       \
        refuse(#field " = " #value, external, error); \
        external.field = good.field;                  \
    } while (0)
    REFUSED(size, sizeof good - 8, EINVAL);
    REFUSED(kind, 0, EINVAL);
    REFUSED(kind, GPUSHIM_ADDRESS + 1, EINVAL);
    REFUSED(access, 0, EINVAL);
    REFUSED(bytes, 0, EINVAL);
    REFUSED(bytes, UINT64_MAX, EINVAL);
    REFUSED(bytes, SIZE - 4096, EINVAL);
    REFUSED(bytes, SIZE + (2 << 20), EINVAL);
    REFUSED(offset, 2 << 20, EINVAL);
    REFUSED(device, 5, ENODEV);
    REFUSED(device, -1, ENODEV);
    REFUSED(fd, -1, EINVAL);
    REFUSED(fd, 4711, EINVAL);
    REFUSED(label, "a\nb", EINVAL);
    REFUSED(label, "0123456789012345678901234567890123456789012345678901234567890123", EINVAL);
    expect("pipe", pipe2(ends, O_CLOEXEC) == 0);
    REFUSED(fd, ends[0], EINVAL);
    good = external = host;
    REFUSED(bytes, SIZE + 4096, EINVAL);
    REFUSED(bytes, SIZE - 1, EINVAL);
    REFUSED(offset, 8, EINVAL);
    REFUSED(fd, ends[0], EINVAL);
    REFUSED(fd, exported.fd, EINVAL);
    unsealed.fd = memfd_create("unsealed", MFD_CLOEXEC);
    expect("ftruncate", ftruncate(unsealed.fd, SIZE + 4096) == 0);
    REFUSED(fd, unsealed.fd, EINVAL);
    good = external = (struct gpushim_external){.size = sizeof good,
                                                .kind = GPUSHIM_ADDRESS,
                                                .access = GPUSHIM_MUTABLE,
                                                .address = (uintptr_t)plain,
                                                .bytes = SIZE,
                                                .deleter = count_deleted,
                                                .arg = &deleted};
    must("cuMemAlloc", cuMemAlloc(&block, SIZE));
    REFUSED(address, 0, EINVAL);
    REFUSED(address, block, EINVAL);
    REFUSED(address, block + SIZE - 4096, EINVAL);
    REFUSED(address, UINT64_MAX - 4096, EINVAL);
    REFUSED(address, (uintptr_t)plain + 1, EINVAL);
    REFUSED(deleter, NULL, EINVAL);
    softcuda_fail("cuMemHostRegister", 1, CUDA_ERROR_NOT_SUPPORTED);
    refuse("memory that cannot be registered", external, ENOTSUP);
    softcuda_reset();
    must("cuMemFree", cuMemFree(block));
    expect("reasons are not said", times_logged("external memory is not attached") > 5);
    expect("a deleter was called", deleted_now() == 0);
    expect("nothing is detached", detach(block, 0) == ENOENT && detach(0, 0) == ENOENT);
    /* What fits is taken after all of that. */
    external = external_of(&exported);
    address = must_attach(&external);
    expect("it does not end", detach(address, LONG) == 0);
    unmake(&exported);
    unmake(&memfd);
}

/* A dma-buf is a descriptor as any to gpushim_attach, and the driver's import says whether it is
 * taken: of the driver here it is, for its dma-bufs are the memory itself; of one that takes none
 * nothing is left. */
static void check_dma_buf(const char *more)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    struct gpushim_external external;
    struct made made;
    CUdeviceptr base;
    uint64_t address;

    must("cuMemCreate", cuMemCreate(&made.handle, SIZE, &prop, 0));
    must("cuMemAddressReserve", cuMemAddressReserve(&base, SIZE, 0, 0, 0));
    must("cuMemMap", cuMemMap(base, SIZE, 0, made.handle, 0));
    must("cuMemSetAccess", cuMemSetAccess(base, SIZE, &access, 1));
    must("cuMemGetHandleForAddressRange",
         cuMemGetHandleForAddressRange(&made.fd, base, SIZE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                       0));
    external = external_of(&made);
    for (int i = 0; i < 2; i++) {
        const CUresult why[] = {CUDA_ERROR_UNKNOWN, CUDA_ERROR_INVALID_VALUE};

        softcuda_fail("cuMemImportFromShareableHandle", 1, why[i]);
        refuse("a dma-buf that the driver does not take", external, i == 0 ? ENOTSUP : EINVAL);
        softcuda_reset();
    }
    expect("it is not said whose refusal it is", times_logged("the driver does not take it") == 2);
    write_at(base, 0xd3aff);
    address = must_attach(&external);
    expect("it is other memory", word_at(address) == 0xd3aff);
    write_at(address, 4711);
    expect("what is written there", word_at(base) == 4711);
    expect("it does not end", detach(address, LONG) == 0 && deleted_now() == 1);
    must("cuMemUnmap", cuMemUnmap(base, SIZE));
    must("cuMemAddressFree", cuMemAddressFree(base, SIZE));
    unmake(&made);
}

/* ---- Many at once ---------------------------------------------------------------------------- */

#define THREADS 4
#define ROUNDS  60

static CUcontext churn_context;

static void *churn(void *arg)
{
    unsigned *count = arg;

    must("cuCtxSetCurrent", cuCtxSetCurrent(churn_context));
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct made made = i % 2 ? make_exported() : make_memfd();
        struct gpushim_external external = external_of(&made);
        uint64_t address;
        int error;

        external.arg = count;
        address = must_attach(&external);
        if (i % 3 == 0)
            handle_of(address);
        must("cuMemsetD32", cuMemsetD32Async(address, i, 1, CU_STREAM_PER_THREAD));
        error = detach(address, i % 5 == 0 ? 0 : LONG);
        if (error && !(error == EBUSY && i % 5 == 0))
            fail("gpushim_detach", error);
        unmake(&made);
    }
    return NULL;
}

static void check_churn(const char *more)
{
    struct counts before = counts();
    unsigned count[THREADS] = {0};
    pthread_t thread[THREADS];

    must("cuCtxGetCurrent", cuCtxGetCurrent(&churn_context));
    for (unsigned i = 0; i < THREADS; i++)
        expect("pthread_create", pthread_create(&thread[i], NULL, churn, &count[i]) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    expect("some do not end", AWAIT(externals(NULL, 0) == 0));
    for (unsigned i = 0; i < THREADS; i++)
        if (__atomic_load_n(&count[i], __ATOMIC_SEQ_CST) != ROUNDS)
            fail("deleters were not called once each", (int)count[i]);
    expect_as_before(before);
}

static const struct {
    const char *how;
    void (*check)(const char *more);
} checks[] = {{"shared", check_shared},    {"read-only", check_read_only},
              {"address", check_address},  {"work", check_work},
              {"named", check_named},      {"context", check_context},
              {"exits", check_exits},      {"refused", check_refused},
              {"churn", check_churn},      {"dma-buf", check_dma_buf},
              {"reopened", check_reopened}};

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "", *more = argc > 2 ? argv[2] : "";

    if (strcmp(how, "importer") == 0)
        return importer();
    if (strcmp(how, "leaver") == 0)
        return leaver(more);
    if (strcmp(how, "reimporter") == 0)
        return reimporter(more);
    surroundings_new();
    start_driver();
    find_functions();
    warm_up();
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (strcmp(how, checks[i].how) == 0)
            return checks[i].check(more), 0;
    fail("what is to be shown", 0);
}
