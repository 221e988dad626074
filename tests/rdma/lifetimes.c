/*
 * Memory that goes in other ways than by a free of the arena's, and what a program may do wrong
 * with registrations; one case a run, as verbs.c.
 */
#include "card.h"

#include "shim/gpushim.h"
#include "tests/system.h"

#define MILLISECOND UINT64_C(1000000)

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* ---- The driver's own memory --------------------------------------------------------------- */

/* Memory that the arena cannot have, and so is the driver's. */
static CUdeviceptr allocate_native(size_t size)
{
    CUdeviceptr address;

    CHECK(softcuda_fail("cuMemCreate", 0, CUDA_ERROR_NOT_SUPPORTED) == 0);
    address = allocate(size);
    softcuda_reset();
    return address;
}

static void native_free(void)
{
    CUdeviceptr a = allocate_native(8 * MIB);
    struct ibv_mr *mr;

    for (int i = 0; i < 3; i++)
        dereg(reg(a, 64 * KIB, LOCAL));
    CHECK(counts().registered == 1 && counts().live == 1);
    mr = reg(a + MIB, 64 * KIB, LOCAL);
    release(a);
    CHECK(counts().live == 1 && counts().wrong == 1); /* as natively: this one was in use */
    dereg(mr);
    CHECK(counts().live == 0 && counts().wrong == 1);
    CHECK(!reg(a, 64 * KIB, LOCAL) && errno == EFAULT);
}

/* ---- Memory that somebody else made --------------------------------------------------------- */

#define LONG UINT64_C(30000000000)

static __typeof__(&gpushim_detach) detach;
static unsigned deleted; /* atomic */
static struct stand_in_counts when_deleted;
static size_t held_when_deleted;

static void note_deleted(void *unused)
{
    when_deleted = counts();
    held_when_deleted = held();
    __atomic_add_fetch(&deleted, 1, __ATOMIC_SEQ_CST);
}

static unsigned deleted_now(void)
{
    return __atomic_load_n(&deleted, __ATOMIC_SEQ_CST);
}

static CUdeviceptr attach_exported(void)
{
    __typeof__(&gpushim_attach) attach = (__typeof__(attach))dlsym(RTLD_DEFAULT, "gpushim_attach");
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                      .requestedHandleTypes =
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    struct gpushim_external external = {.size = sizeof external,
                                        .kind = GPUSHIM_EXPORTED,
                                        .access = GPUSHIM_MUTABLE,
                                        .bytes = 4 * MIB,
                                        .deleter = note_deleted};
    CUmemGenericAllocationHandle made;
    uint64_t address;

    detach = (__typeof__(detach))dlsym(RTLD_DEFAULT, "gpushim_detach");
    CHECK(attach && detach);
    CHECK(cuMemCreate(&made, 4 * MIB, &prop, 0) == CUDA_SUCCESS);
    CHECK(cuMemExportToShareableHandle(&external.fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                       0) == CUDA_SUCCESS);
    CHECK(attach(&external, &address) == 0);
    close(external.fd);
    CHECK(cuMemRelease(made) == CUDA_SUCCESS);
    return address;
}

/* Kept beyond its end as any; what is kept ends with the memory, before its deleter may free what
 * was attached. One that is in use keeps the memory. */
static void external(void)
{
    size_t before = held();
    CUdeviceptr a = attach_exported();
    struct ibv_mr *mr;

    for (int i = 0; i < 3; i++)
        dereg(reg(a, 64 * KIB, LOCAL));
    CHECK(counts().registered == 1 && counts().live == 1);
    CHECK(detach(a, LONG) == 0 && deleted_now() == 1);
    CHECK(when_deleted.live == 0 && counts().wrong == 0);
    CHECK(held_when_deleted == before);

    a = attach_exported();
    mr = reg(a + MIB, 64 * KIB, LOCAL);
    CHECK(detach(a, 20 * MILLISECOND) == EBUSY && deleted_now() == 1);
    CHECK(counts().live == 1 && held() == before + 4 * MIB);
    dereg(mr);
    CHECK(detach(a, LONG) == 0 || deleted_now() == 2); /* ENOENT: it has ended by itself */
    CHECK(deleted_now() == 2 && when_deleted.live == 0 && counts().wrong == 0);
    CHECK(held_when_deleted == before);
    CHECK(!reg(a, 64 * KIB, LOCAL) && errno == EFAULT);
}

/* ---- Contexts ------------------------------------------------------------------------------- */

/* The prototype changed with CUDA 13. */
static CUcontext make_context(void)
{
    CUcontext context;

#if CUDA_VERSION >= 13000
    CHECK(cuCtxCreate(&context, NULL, 0, 0) == CUDA_SUCCESS);
#else
    CHECK(cuCtxCreate(&context, 0, 0) == CUDA_SUCCESS);
#endif
    return context;
}

/* A context ends, and the driver's memory with it. */
static void context_ends(void)
{
    CUcontext before, context;
    CUdeviceptr a;

    CHECK(cuCtxGetCurrent(&before) == CUDA_SUCCESS);
    context = make_context();
    a = allocate_native(8 * MIB);
    dereg(reg(a, 64 * KIB, LOCAL));
    CHECK(counts().live == 1);
    CHECK(cuCtxDestroy(context) == CUDA_SUCCESS);
    CHECK(counts().live == 0 && counts().wrong == 0);
    CHECK(cuCtxSetCurrent(before) == CUDA_SUCCESS);
    a = allocate_native(8 * MIB);
    dereg(reg(a, 64 * KIB, LOCAL));
    CHECK(counts().live == 1);
    CHECK(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
    CHECK(counts().live == 0 && counts().wrong == 0);
}

/* The arena's memory ends with the context as well, but for what is registered and in use. */
static void context_ends_in_use(void)
{
    CUcontext context;
    CUdeviceptr a, b;
    struct ibv_mr *mr;

    context = make_context();
    a = allocate(8 * MIB);
    b = allocate(16 * MIB);
    mr = reg(a, 8 * MIB, LOCAL);
    dereg(reg(b, 16 * MIB, LOCAL));
    CHECK(cuCtxDestroy(context) == CUDA_SUCCESS);
    CHECK(counts().live == 1 && counts().wrong == 0 && held() == 8 * MIB);
    dereg(mr);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
          cuCtxSetCurrent(context) == CUDA_SUCCESS);
    trim();
    CHECK(counts().live == 0 && counts().wrong == 0 && held() == 0);
}

static void managed(void)
{
    CUdeviceptr a;

    for (unsigned i = 0; i < 3; i++) {
        CHECK(cuMemAllocManaged(&a, 4 * MIB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
        dereg(reg(a, MIB, LOCAL));
        dereg(reg(a, MIB, LOCAL));
        release(a);
        CHECK(counts().live == 0 && counts().wrong == 0);
    }
    CHECK(counts().registered == 3);
}

/* ---- Memory of the arena --------------------------------------------------------------------- */

/* What is freed and only kept makes room before anything fails. */
static void out_of_memory(void)
{
    CUdeviceptr a = allocate(16 * MIB), rest, b;
    size_t left, total;

    CHECK(cuMemGetInfo(&left, &total) == CUDA_SUCCESS);
    rest = allocate((left - 2 * MIB) & ~(2 * MIB - 1));
    dereg(reg(a, 16 * MIB, LOCAL));
    release(a);
    CHECK(counts().live == 1);
    b = allocate(18 * MIB); /* of which 16 are those */
    CHECK(counts().live == 0 && counts().wrong == 0);
    release(b);
    release(rest);
}

/* The other half of a process that shares a block: it allocates, frees when told to, and says
 * whether it got the same memory again. */
static void exporter(int from, int to)
{
    CUcontext context;
    CUipcMemHandle handle;
    CUdeviceptr a, b;
    char order;

    CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
          cuCtxSetCurrent(context) == CUDA_SUCCESS);
    a = allocate(8 * MIB);
    CHECK(cuIpcGetMemHandle(&handle, a) == CUDA_SUCCESS);
    CHECK(write(to, &handle, sizeof handle) == sizeof handle);
    CHECK(read(from, &order, 1) == 1);
    release(a);
    CHECK(write(to, &order, 1) == 1);
    while (read(from, &order, 1) == 1) { /* again and again: is it to be had? */
        b = allocate(8 * MIB);
        order = b == a;
        release(b);
        CHECK(write(to, &order, 1) == 1);
    }
    _exit(0);
}

static int to_exporter, from_exporter;
static pid_t exporter_process;

/* Before any CUDA call of this process. */
static void start_exporter(void)
{
    int there[2], back[2];

    CHECK(pipe(there) == 0 && pipe(back) == 0);
    exporter_process = fork();
    if (exporter_process == 0) {
        close(there[1]);
        close(back[0]);
        exporter(there[0], back[1]);
    }
    close(there[0]);
    close(back[1]);
    to_exporter = there[1];
    from_exporter = back[0];
}

static bool exporter_answers(void)
{
    char answer = 0;

    CHECK(write(to_exporter, &answer, 1) == 1 && read(from_exporter, &answer, 1) == 1);
    return answer;
}

/* Another process's block that is registered when this one closes it stays until that ends. */
static void imported(void)
{
    unsigned before = census().mappings, with;
    CUipcMemHandle handle;
    CUdeviceptr a;
    struct ibv_mr *mr, *kept;
    int status;

    CHECK(read(from_exporter, &handle, sizeof handle) == sizeof handle);
    CHECK(cuIpcOpenMemHandle(&a, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS);
    CHECK(!reg(a, 9 * MIB, LOCAL) && errno == EFAULT);
    kept = reg(a, MIB, LOCAL);
    dereg(kept);
    kept = reg(a, MIB, LOCAL);
    CHECK(counts().registered == 1);
    dereg(kept);
    mr = reg(a + MIB, MIB, REMOTE);
    with = census().mappings;
    CHECK(counts().registered == 2 && with > before);
    dereg(reg(a, 8 * MIB, REMOTE)); /* across the driver's allocations, if it is */
    CHECK(counts().registered == 3);
    CHECK(cuIpcCloseMemHandle(a) == CUDA_SUCCESS);
    CHECK(!reg(a, MIB, LOCAL) && errno == EFAULT); /* closed */
    exporter_answers();                            /* it freed the block */
    for (int i = 0; i < 20; i++, nap())
        CHECK(!exporter_answers());
    CHECK(census().mappings == with && counts().wrong == 0);
    dereg(mr);
    for (int i = 0; i < 400 && census().mappings != before; i++)
        nap();
    CHECK(census().mappings == before && counts().live == 0 && counts().wrong == 0);
    status = 0;
    for (int i = 0; i < 400 && !status; i++, nap())
        status = exporter_answers();
    CHECK(status); /* the block came back to it */
    close(to_exporter);
    CHECK(waitpid(exporter_process, &status, 0) == exporter_process && status == 0);
}

/* ---- Mistakes -------------------------------------------------------------------------------- */

static void mistakes(void)
{
    CUdeviceptr a = allocate(64 * KIB), b = allocate(256 * KIB), c = allocate(256 * KIB);
    CUdeviceptr gone = allocate(8 * MIB), low = b < c ? b : c;
    struct ibv_mr *mr;

    CHECK(!reg(a, 0, LOCAL) && errno == EINVAL);       /* nothing */
    CHECK(!reg(a, 4 * MIB, LOCAL) && errno == EFAULT); /* past the end of its chunk */
    dereg(reg(b, 256 * KIB, LOCAL)); /* all of the chunk is registered, and kept */
    CHECK((b > c ? b - c : c - b) == 256 * KIB);
    CHECK(!reg(low, 512 * KIB, LOCAL) && errno == EFAULT); /* two blocks */
    CHECK(!reg(low + 128 * KIB, 192 * KIB, LOCAL) && errno == EFAULT);
    release(gone);
    CHECK(!reg(gone, 8 * MIB, LOCAL) && errno == EFAULT); /* freed */
    trim();
    CHECK(!reg(gone, 8 * MIB, LOCAL) && errno == EFAULT); /* unmapped */
    mr = reg(a, 64 * KIB, LOCAL);
    dereg(mr);
    CHECK(ibv_dereg_mr(mr) == EINVAL); /* twice */
    CHECK(counts().live == 1 && counts().wrong == 0 && counts().unknown == 0);
}

/* Memory that was freed, though a region over it is kept. */
static void freed(void)
{
    CUdeviceptr small = allocate(64 * KIB), other = allocate(64 * KIB), big = allocate(8 * MIB);
    CUdeviceptr again;

    for (int i = 0; i < 3; i++) {
        dereg(reg(small, 64 * KIB, LOCAL));
        dereg(reg(big, 8 * MIB, LOCAL));
    }
    CHECK(counts().registered == 2);
    release(small);
    release(big);
    errno = 0;
    CHECK(!reg(small, 64 * KIB, LOCAL) && errno == EFAULT);
    CHECK(!reg(small + 512, 512, LOCAL) && errno == EFAULT);
    CHECK(!reg(big + MIB, MIB, LOCAL) && errno == EFAULT);
    dereg(reg(other, 64 * KIB, LOCAL)); /* its neighbour lives, and hits */
    again = allocate(8 * MIB);
    if (again == big) {
        dereg(reg(again, 8 * MIB, LOCAL));
        CHECK(counts().registered == 2);
    }
    CHECK(counts().wrong == 0);
}

/* A region that was made by a call that nobody sees. */
static void unseen(void)
{
    CUdeviceptr a = allocate(64 * KIB);
    struct ibv_mr *mr = stand_in_reg(pd, (void *)a, 64 * KIB, LOCAL), *ours;
    struct ibv_mr none = {.pd = pd, .addr = (void *)a, .length = 64};

    CHECK(mr);
    ours = reg(a, 64 * KIB, LOCAL);
    CHECK(ours && ours != mr);
    CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(ibv_dereg_mr(&none) == EINVAL && counts().unknown == 1); /* the library's own answer */
    dereg(ours);
    CHECK(counts().live == 1 && counts().wrong == 0);
}

/* A domain that was given back. */
static void no_domain(void)
{
    struct ibv_pd *other = ibv_alloc_pd(card);
    CUdeviceptr a = allocate(64 * KIB);

    dereg(ibv_reg_mr(other, (void *)a, 64 * KIB, LOCAL));
    CHECK(ibv_dealloc_pd(other) == 0);
    errno = 0;
    CHECK(!ibv_reg_mr(other, (void *)a, 64 * KIB, LOCAL) && errno == EINVAL);
    CHECK(counts().live == 0);
}

/* The card is pulled out with one registration in use and one kept. */
static void device_gone(void)
{
    CUdeviceptr a = allocate(8 * MIB), b = allocate(16 * MIB), c = allocate(32 * MIB);
    struct ibv_mr *mr = reg(a, 8 * MIB, REMOTE);

    dereg(reg(b, 16 * MIB, LOCAL));
    stand_in_gone();
    CHECK(!reg(c, 32 * MIB, LOCAL) && errno == EIO);
    CHECK(ibv_dereg_mr(mr) == EIO);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL) == EIO);
    CHECK(ibv_dealloc_pd(pd) == EIO);
    release(a);
    release(b);
    trim();
    CHECK(counts().live == 2 && counts().wrong == 0 &&
          held() == 56 * MIB); /* all wait, and c lives */
    CHECK(ibv_close_device(card) == 0 && counts().live == 0);
    trim();
    CHECK(counts().wrong == 0 && held() == 32 * MIB);
    release(c);
}

int main(int argc, char **argv)
{
    static const struct card_case cases[] = {{"native-free", native_free},
                                             {"context-ends", context_ends},
                                             {"context-ends-in-use", context_ends_in_use},
                                             {"managed", managed},
                                             {"out-of-memory", out_of_memory},
                                             {"imported", imported},
                                             {"mistakes", mistakes},
                                             {"freed", freed},
                                             {"unseen", unseen},
                                             {"no-domain", no_domain},
                                             {"device-gone", device_gone},
                                             {"external", external}};

    if (argc > 1 && strcmp(argv[1], "imported") == 0)
        start_exporter();
    open_card();
    return RUN_CASE(cases, argc, argv);
}
