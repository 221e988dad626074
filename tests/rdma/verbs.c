/*
 * What a verbs program sees of its registrations of GPU memory under the library, one case a run:
 * linked with the software driver and the stand-in libibverbs, which counts and checks.
 */
#include <cuda.h>
#include <infiniband/verbs.h>

#include "card.h"
#include "tests/system.h"

/* ---- Kept -------------------------------------------------------------------------------- */

static void kept(void)
{
    CUdeviceptr a = allocate(64 * KIB), b = allocate(100 * KIB), big = allocate(8 * MIB);
    struct ibv_mr *first, *second, *third;

    errno = 77;
    first = reg(a, 64 * KIB, LOCAL);
    dereg(first);
    CHECK(errno == 77);                /* also where it had to look for libraries */
    second = reg(b, 100 * KIB, LOCAL); /* another block of the same chunk */
    CHECK(second == first && counts().registered == 1);
    third = reg(a + 512, 1000, LOCAL); /* while that one is in use: one of its own */
    CHECK(third && third != second && third->lkey != second->lkey && counts().registered == 2);
    dereg(third);
    dereg(second);
    CHECK(counts().live == 2);
    for (int i = 0; i < 10; i++)
        dereg(reg(big + 64 * KIB * i, 64 * KIB, LOCAL));
    CHECK(counts().registered == 12);
    for (int i = 0; i < 10; i++)
        dereg(reg(big + 64 * KIB * i + 5, 64 * KIB - 10, LOCAL));
    CHECK(counts().registered == 12);
    dereg(reg(big, 8 * MIB, LOCAL)); /* more than those: pinned anew, in the place of all of them */
    dereg(reg(big + 300, 7 * MIB, LOCAL));
    CHECK(counts().registered == 13 && counts().wrong == 0);
}

/* Keys that others may hold die when the program says so, and reach what it named. */
static void remote(void)
{
    CUdeviceptr a = allocate(64 * KIB);

    static const int others[] = {IBV_ACCESS_REMOTE_WRITE,  IBV_ACCESS_REMOTE_READ,
                                 IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_MW_BIND,
                                 IBV_ACCESS_ZERO_BASED,    IBV_ACCESS_ON_DEMAND};

    for (int i = 0; i < 3; i++)
        dereg(reg(a, 64 * KIB, REMOTE));
    CHECK(counts().registered == 3 && counts().live == 0);
    for (unsigned i = 0; i < sizeof others / sizeof others[0]; i++) {
        dereg(reg(a, 64 * KIB, LOCAL | others[i]));
        CHECK(counts().registered == 4 + i && counts().live == 0);
    }
    release(a);
}

/* Under registrations.keep = none. */
static void none_kept(void)
{
    CUdeviceptr a = allocate(64 * KIB);

    for (unsigned i = 1; i <= 3; i++) {
        dereg(reg(a, 64 * KIB, LOCAL));
        CHECK(counts().registered == i && counts().live == 0);
    }
    release(a);
}

/* Under registrations.keep = all: but of what can be reached no more than was named. */
static void all_kept(void)
{
    CUdeviceptr a = allocate(64 * KIB);

    for (int i = 0; i < 3; i++)
        dereg(reg(a, 64 * KIB, REMOTE));
    CHECK(counts().registered == 1 && counts().live == 1);
    dereg(reg(a, 64 * KIB, LOCAL | IBV_ACCESS_REMOTE_ATOMIC));
    dereg(reg(a, 32 * KIB, REMOTE));
    CHECK(counts().registered == 3 && counts().live == 3);
    dereg(reg(a, 64 * KIB, LOCAL | IBV_ACCESS_MW_BIND));
    CHECK(counts().registered == 4 && counts().live == 3);
    release(a);
    trim();
    CHECK(counts().live == 0 && counts().wrong == 0);
}

/* Under debug.registrations_count = 2. */
static void two_kept(void)
{
    for (int i = 0; i < 4; i++) {
        dereg(reg(allocate(4 * MIB), 4 * MIB, LOCAL));
        CHECK(counts().live == (i == 0 ? 1 : 2));
    }
}

static void iova(void)
{
    CUdeviceptr a = allocate(64 * KIB);
    struct ibv_mr *mr = ibv_reg_mr_iova(pd, (void *)(a + 4096), 4096, 0x1000, LOCAL), *other;

    CHECK(mr && (CUdeviceptr)mr->addr == a + 4096);
    CHECK(stand_in_at(mr, 0x1000) == a + 4096 && stand_in_at(mr, 0x1fff) == a + 8191);
    dereg(mr);
    other = ibv_reg_mr_iova2(pd, (void *)(a + 4096), 4096, 0x1000, LOCAL);
    CHECK(other == mr && counts().registered == 1); /* the same by another call */
    dereg(other);
    dereg(ibv_reg_mr_iova2(pd, (void *)(a + 4096), 4096, 0x2000, LOCAL));
    CHECK(counts().registered == 2);
    mr = ibv_reg_mr_iova2(pd, (void *)(a + 8192), 4096, 0x3000, LOCAL);
    CHECK(stand_in_at(mr, 0x3000) == a + 8192);
    dereg(mr);
    CHECK(counts().registered == 2); /* as far from its addresses as the last */
}

/* ---- Memory that goes ------------------------------------------------------------------------ */

static void free_and_unmap(void)
{
    CUdeviceptr a = allocate(64 * KIB), big = allocate(8 * MIB);

    dereg(reg(a, 64 * KIB, LOCAL));
    dereg(reg(big, 8 * MIB, LOCAL));
    release(a);
    release(big);
    CHECK(counts().live == 2); /* freed memory that is kept stays registered */
    trim();
    CHECK(counts().live == 0 && held() == 0 && counts().wrong == 0);
}

static void free_in_use(void)
{
    CUdeviceptr a = allocate(8 * MIB), b;
    struct ibv_mr *mr = reg(a, 8 * MIB, REMOTE);

    release(a);
    trim();
    b = allocate(8 * MIB);
    CHECK(b != a && counts().live == 1 && counts().wrong == 0); /* it waits */
    dereg(mr);
    trim();
    CHECK(counts().live == 0 && held() == 8 * MIB && counts().wrong == 0);
    release(b);
}

/* A freed block waits for its own registration alone, however much more that pins. */
static void neighbours(void)
{
    CUdeviceptr a = allocate(64 * KIB), b = allocate(64 * KIB), again;
    struct ibv_mr *mr = reg(a, 64 * KIB, LOCAL);

    release(b);
    trim();
    again = allocate(64 * KIB);
    CHECK(again == b);
    release(a);
    trim();
    for (int i = 0; i < 20; i++)
        CHECK(allocate(64 * KIB) != a);
    dereg(mr);
    trim();
    CHECK(allocate(64 * KIB) == a && counts().wrong == 0);
}

/* What is freed in stream order is used again by that stream at once, but not while registered. */
static void stream_order(void)
{
    CUstream stream;
    CUdeviceptr a, b;
    struct ibv_mr *mr;

    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(cuMemAllocAsync(&a, 4 * MIB, stream) == CUDA_SUCCESS);
    mr = reg(a, 4 * MIB, REMOTE);
    CHECK(cuMemFreeAsync(a, stream) == CUDA_SUCCESS);
    CHECK(cuMemAllocAsync(&b, 4 * MIB, stream) == CUDA_SUCCESS);
    CHECK(a != b);
    dereg(mr);
    mr = reg(b, 4 * MIB, LOCAL);
    dereg(mr);
    softcuda_hold(1); /* the stream does not get there */
    CHECK(cuMemsetD8Async(b, 1, 4 * MIB, stream) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(b, stream) == CUDA_SUCCESS);
    CHECK(counts().live == 1);
    softcuda_hold(0);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    trim();
    CHECK(counts().live == 0 && counts().wrong == 0 && held() == 0);
    CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
}

/* The program's own mapping, which goes and comes back at the same address as something else. */
static void foreign(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr a;
    struct ibv_mr *mr;
    uint32_t key;

    CHECK(cuMemAddressReserve(&a, 2 * MIB, 0, 0, 0) == CUDA_SUCCESS);
    for (unsigned i = 0; i < 3; i++) {
        CHECK(cuMemCreate(&handle, 2 * MIB, &prop, 0) == CUDA_SUCCESS);
        CHECK(cuMemMap(a, 2 * MIB, 0, handle, 0) == CUDA_SUCCESS);
        CHECK(cuMemSetAccess(a, 2 * MIB, &access, 1) == CUDA_SUCCESS);
        mr = reg(a, 64 * KIB, LOCAL);
        key = mr->lkey;
        dereg(mr);
        mr = reg(a, 64 * KIB, LOCAL);
        CHECK(mr->lkey == key && counts().registered == i + 1);
        dereg(mr);
        if (i == 2)
            mr = reg(a, 64 * KIB, LOCAL); /* in use: what goes is the program's business */
        CHECK(cuMemUnmap(a, 2 * MIB) == CUDA_SUCCESS);
        CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
    }
    CHECK(counts().live == 1 && counts().wrong == 1);
    dereg(mr); /* and it is not kept after that */
    CHECK(counts().live == 0 && counts().wrong == 1);
}

/* ---- Other ways to register ----------------------------------------------------------------- */

/* One of a range that leaves its block is refused, before the driver is asked. */
static void dmabuf_of_a_neighbour(void)
{
    static const size_t beyond[] = {1, 4096, 64 * KIB};
    CUdeviceptr low = allocate(64 * KIB), high = allocate(64 * KIB);
    unsigned long asked = softcuda_calls("cuMemGetHandleForAddressRange");
    int fd;

    CHECK(high == low + 64 * KIB);
    for (unsigned i = 0; i < sizeof beyond / sizeof beyond[0]; i++)
        CHECK(cuMemGetHandleForAddressRange(&fd, low, 64 * KIB + beyond[i],
                                            CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                            0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemGetHandleForAddressRange(&fd, low + 4096, SIZE_MAX - 8191,
                                        CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                        0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(softcuda_calls("cuMemGetHandleForAddressRange") == asked);
    CHECK(cuMemGetHandleForAddressRange(&fd, low, 64 * KIB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                        0) == CUDA_SUCCESS);
    close(fd);
    release(low);
    release(high);
}

static int dmabuf_of(CUdeviceptr address, size_t size)
{
    int fd;

    CHECK(cuMemGetHandleForAddressRange(&fd, address, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                        0) == CUDA_SUCCESS);
    return fd;
}

/* One file may stand for one range after the other: the last counts. */
static void dmabuf_of_one_file(void)
{
    CUdeviceptr a = allocate(4 * MIB);
    unsigned long before = counts().live;
    int fd[2] = {dmabuf_of(a, 64 * KIB), dmabuf_of(a + 2 * MIB, MIB)};
    struct stat file[2];

    CHECK(fstat(fd[0], &file[0]) == 0 && fstat(fd[1], &file[1]) == 0);
    CHECK(file[0].st_ino == file[1].st_ino);
    dereg(ibv_reg_dmabuf_mr(pd, 0, MIB, a + 2 * MIB, fd[1], LOCAL));
    CHECK(counts().live == before + 1); /* known, and so kept */
    close(fd[0]);
    close(fd[1]);
    release(a);
    trim();
}

/* A descriptor keeps its memory, and says nothing about what lies at the address by then. */
static void dmabuf_of_what_went(void)
{
    CUdeviceptr a = allocate(16 * MIB), others[64];
    int fd = dmabuf_of(a, 16 * MIB);
    unsigned long live;
    unsigned count = 0;

    release(a);
    trim();
    do /* until other memory has the address */
        CHECK(count < 64);
    while ((others[count] = allocate(16 * MIB), others[count++] != a));
    live = counts().live;
    dereg(ibv_reg_dmabuf_mr(pd, 0, 64 * KIB, a, fd, LOCAL));
    CHECK(counts().live == live); /* not kept as one of the new memory */
    close(fd);
    while (count > 0)
        release(others[--count]);
    trim();
}

/* What is more than the dma-buf has, and what is none, is for the card to judge, and not known. */
static void dmabuf_of_more_than_there_is(void)
{
    CUdeviceptr a = allocate(4 * MIB);
    int fd = dmabuf_of(a, 64 * KIB), closed = dup(fd);
    unsigned long live = counts().live;
    struct ibv_mr *mr;

    close(closed);
    mr = ibv_reg_dmabuf_mr(pd, 32 * KIB, 64 * KIB, a, fd, LOCAL);
    if (mr)
        dereg(mr);
    CHECK(counts().live == live);
    mr = ibv_reg_dmabuf_mr(pd, 0, 64 * KIB, a, fd, LOCAL);
    CHECK(!ibv_reg_dmabuf_mr(pd, 0, 64 * KIB, a, closed, LOCAL));
    dereg(mr);
    close(fd);
    release(a);
    trim();
    CHECK(counts().live == live);
}

/* Nor one whose memory has gone in part. */
static void dmabuf_of_what_went_in_part(void)
{
    CUdeviceptr low = allocate(MIB), block = allocate(7 * MIB), again;
    int fd = dmabuf_of(block, 7 * MIB);
    unsigned long live;

    release(block);
    trim();
    again = allocate(7 * MIB);
    CHECK(again == block || !crosses());
    live = counts().live;
    dereg(ibv_reg_dmabuf_mr(pd, 0, 64 * KIB, again, fd, LOCAL));
    CHECK(counts().live == live);
    close(fd);
    release(again);
    release(low);
    trim();
}

static void dmabuf(void)
{
    CUdeviceptr a;
    struct ibv_mr *mr;
    int fd;
    unsigned long before;

    dmabuf_of_one_file();
    dmabuf_of_what_went();
    dmabuf_of_more_than_there_is();
    dmabuf_of_what_went_in_part();
    before = counts().registered;
    a = allocate(4 * MIB);
    for (int i = 0; i < 3; i++) {
        fd = dmabuf_of(a, 4 * MIB);
        mr = ibv_reg_dmabuf_mr(pd, 64 * KIB, 64 * KIB, a + 64 * KIB, fd, LOCAL);
        CHECK(mr && (size_t)mr->addr == 64 * KIB && mr->length == 64 * KIB);
        close(fd);
        dereg(mr);
    }
    CHECK(counts().registered == before + 1 && counts().live == 1);
    dereg(reg(a + 64 * KIB, 64 * KIB, LOCAL)); /* by its address: another kind */
    CHECK(counts().registered == before + 2);
    dmabuf_of_a_neighbour();
    release(a);
    trim();
    CHECK(counts().live == 0 && counts().wrong == 0 && held() == 0);
}

/* ---- Across allocations of the driver's ------------------------------------------------------ */

/* The card moves bytes between two addresses of one process, by keys that it has for them. */
static void move(const struct ibv_mr *from, uint64_t from_iova, const struct ibv_mr *to,
                 uint64_t to_iova, uint32_t bytes)
{
    struct ibv_cq *cq = ibv_create_cq(card, 4, NULL, NULL, 0);
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    struct ibv_sge source = {from_iova, bytes, from->lkey}, target = {to_iova, bytes, to->lkey};
    struct ibv_recv_wr receive = {.sg_list = &target, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.sg_list = &source, .num_sge = 1}, *bad_send;
    struct ibv_wc done[2];

    CHECK(ibv_post_recv(qp, &receive, &bad_receive) == 0);
    CHECK(ibv_post_send(qp, &send, &bad_send) == 0);
    CHECK(ibv_poll_cq(cq, 2, done) == 2 && done[0].status == IBV_WC_SUCCESS);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

static struct ibv_mr *reg_by(unsigned call, CUdeviceptr address, size_t size, uint64_t iova,
                             int access)
{
    typedef struct ibv_mr *reg_ex(struct ibv_pd *, struct stand_in_attr *);
    struct stand_in_attr attr = {.length = size,
                                 .access = access,
                                 .comp_mask = 1 | 2,
                                 .iova = iova,
                                 .addr = (void *)address};

    switch (call) {
    case 0:
        return ibv_reg_mr_iova(pd, (void *)address, size, iova, access);
    case 1:
        return ibv_reg_mr_iova2(pd, (void *)address, size, iova, (unsigned)access);
    default:
        return ((reg_ex *)dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex"))(pd, &attr);
    }
}

static unsigned long dmabufs(void)
{
    return softcuda_calls("cuMemGetHandleForAddressRange");
}

/* A program cannot tell where the driver's allocations end: the key reaches all that was named. */
static void across_by_every_call(CUdeviceptr block, CUdeviceptr border, CUdeviceptr small)
{
    struct ibv_mr *here = reg(small, 4096, LOCAL), *mr;
    static const int access[] = {LOCAL, REMOTE};
    unsigned char there[200], back[200];
    unsigned long before = dmabufs();

    for (unsigned i = 0; i < 8; i++) {
        const CUdeviceptr at = border - 100 - i;
        const uint64_t iova = i < 2 ? at : 0x10000000 + at % 4096; /* the same in the page */

        for (unsigned j = 0; j < sizeof there; j++)
            there[j] = (unsigned char)(i * 31 + j);
        CHECK(cuMemcpyHtoD(at, there, sizeof there) == CUDA_SUCCESS);
        CHECK(cuMemsetD8(small, 0, 4096) == CUDA_SUCCESS && cuCtxSynchronize() == CUDA_SUCCESS);
        mr = i < 2 ? reg(at, sizeof there, access[i % 2])
                   : reg_by(i / 2 - 1, at, sizeof there, iova, access[i % 2]);
        CHECK(mr && (CUdeviceptr)mr->addr == at && mr->length == sizeof there);
        CHECK(stand_in_access(mr) == (unsigned)access[i % 2]);
        move(mr, iova, here, small, sizeof there);
        CHECK(cuMemcpyDtoH(back, small, sizeof back) == CUDA_SUCCESS);
        CHECK(memcmp(back, there, sizeof there) == 0);
        dereg(mr);
    }
    CHECK((dmabufs() > before) == crosses());
    CHECK(counts().wrong == 0 && census().exported_fds == 0);
    mr = reg(block, 8 * MIB, REMOTE);
    CHECK(cuMemsetD8(small, 77, 200) == CUDA_SUCCESS && cuCtxSynchronize() == CUDA_SUCCESS);
    move(here, small, mr, block + 8 * MIB - 200, 200);
    CHECK(cuMemcpyDtoH(back, block + 8 * MIB - 200, 200) == CUDA_SUCCESS && back[0] == 77 &&
          back[199] == 77);
    dereg(mr);
    dereg(here);
}

static void across_kept(CUdeviceptr block, CUdeviceptr border)
{
    unsigned long before;

    dereg(reg(block, 8 * MIB, LOCAL));
    before = counts().registered;
    for (unsigned i = 0; i < 3; i++) {
        dereg(reg(block, 8 * MIB, LOCAL));
        dereg(reg(border - 512, 1024, LOCAL));
        dereg(reg(border + MIB, MIB, LOCAL));
    }
    CHECK(counts().registered == before);
    CHECK(!reg(block, 8 * MIB + 64 * KIB, LOCAL) && errno == EFAULT); /* beyond the block */
}

/* Where no dma-buf is to be had the answer is the library's, of the call that was made. */
static void across_refused(CUdeviceptr block, CUdeviceptr border)
{
    const unsigned long live = counts().live;

    CHECK(softcuda_fail("cuMemGetHandleForAddressRange", 0, CUDA_ERROR_NOT_SUPPORTED) == 0);
    errno = 0;
    CHECK(!reg(border - 512, 1024, REMOTE) && errno == EFAULT);
    dereg(reg(border, 1024, REMOTE)); /* of one allocation */
    softcuda_reset();
    stand_in_room((unsigned)live);
    dereg(reg(block, 8 * MIB, REMOTE)); /* what is kept makes room */
    stand_in_room(100);
    stand_in_fail(1, EPERM);
    CHECK(!reg(block, 8 * MIB, REMOTE) && errno == EPERM);
    stand_in_fail(0, 0);
    CHECK(counts().live < live && counts().wrong == 0 && census().exported_fds == 0);
}

/* No CUDA call is the program's: it needs no context, and has none after it. */
static void across_without_a_context(CUdeviceptr border)
{
    CUcontext before, now;

    CHECK(cuCtxGetCurrent(&before) == CUDA_SUCCESS && cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
    dereg(reg(border - 512, 1024, REMOTE));
    CHECK(cuCtxGetCurrent(&now) == CUDA_SUCCESS && !now);
    CHECK(cuCtxSetCurrent(before) == CUDA_SUCCESS);
}

static void across(void)
{
    CUdeviceptr small = allocate(4096), block = allocate(8 * MIB), border = block + PIECE, next;
    struct ibv_mr *mr;

    across_by_every_call(block, border, small);
    across_without_a_context(border);
    across_kept(block, border);
    if (crosses())
        across_refused(block, border);
    release(small);
    mr = reg(border - 512, 1024, REMOTE);
    dereg(reg(block, 8 * MIB, LOCAL));
    release(block);
    trim();
    next = allocate(8 * MIB);
    CHECK(next != block && held() == 16 * MIB && counts().wrong == 0); /* it waits */
    CHECK(!reg(border - 512, 1024, REMOTE) && errno == EFAULT);
    release(next);
    trim();
    dereg(mr);
    trim();
    CHECK(counts().live == 0 && counts().wrong == 0 && held() == 0);
}

typedef struct ibv_mr *reg_ex(struct ibv_pd *, struct stand_in_attr *);

static void extended(void)
{
    reg_ex *ibv_reg_ex = (reg_ex *)dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
    CUdeviceptr a = allocate(4 * MIB);
    struct stand_in_attr attr = {.length = 64 * KIB,
                                 .access = LOCAL,
                                 .comp_mask = 2,
                                 .addr = (void *)a};
    struct ibv_mr *mr;

    CHECK(ibv_reg_ex);
    dereg(ibv_reg_ex(pd, &attr));
    dereg(reg(a, 64 * KIB, LOCAL));
    CHECK(counts().registered == 1);
    attr.comp_mask |= 1;
    attr.iova = 0x7000;
    mr = ibv_reg_ex(pd, &attr);
    CHECK(stand_in_at(mr, 0x7000) == a &&
          stand_in_at(mr, 0x7000 + 64 * KIB - 1) == a + 64 * KIB - 1);
    dereg(mr);
    CHECK(counts().registered == 2);
    attr.comp_mask ^= 1;
    attr.comp_mask |= 16; /* something this library does not know: registered as it came */
    mr = ibv_reg_ex(pd, &attr);
    CHECK(counts().registered == 3 && counts().live == 3);
    release(a);
    trim();
    CHECK(held() == PIECE && counts().wrong == 0); /* and known */
    dereg(mr);
    trim();
    CHECK(held() == 0 && counts().live == 0 && counts().wrong == 0);
    attr.addr = (void *)64;
    CHECK(!ibv_reg_ex(pd, &attr) && errno == EFAULT);
}

static void moved(void)
{
    CUdeviceptr a = allocate(64 * KIB), b = allocate(PIECE);
    struct ibv_mr *mr = reg(a, 64 * KIB, LOCAL);
    char host[4096];

    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, REMOTE) == 0);
    CHECK((CUdeviceptr)mr->addr == a && mr->length == 64 * KIB); /* no more is open to others */
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)b, PIECE, 0) == 0);
    release(a);
    release(b);
    trim();
    CHECK(held() == PIECE && counts().wrong == 0); /* b waits, a went */
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, host, sizeof host, 0) == 0);
    trim();
    CHECK(held() == 0);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)64, 64, 0) != 0);
    /* That it may be reached is not where it is. */
    a = allocate(64 * KIB);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, (void *)a, 64 * KIB, REMOTE) == 0);
    release(a);
    trim();
    CHECK(held() == 0);
    dereg(mr);
    CHECK(counts().live == 0 && counts().wrong == 0);
}

/* ---- Domains, pressure ---------------------------------------------------------------------- */

static void domains(void)
{
    struct ibv_pd *other = ibv_alloc_pd(card);
    CUdeviceptr a = allocate(64 * KIB);
    struct ibv_mr *mr;

    dereg(reg(a, 64 * KIB, LOCAL));
    mr = ibv_reg_mr(other, (void *)a, 64 * KIB, LOCAL);
    CHECK(mr && mr->pd == other && counts().registered == 2);
    CHECK(ibv_dealloc_pd(other) == EBUSY); /* in use: the kernel's own answer */
    dereg(mr);
    CHECK(counts().live == 1); /* a domain that is to go keeps nothing more */
    CHECK(ibv_dealloc_pd(other) == 0 && counts().live == 1);
    CHECK(ibv_close_device(card) == 0 && counts().live == 0 && counts().wrong == 0);
    card = NULL;
}

static void full(void)
{
    CUdeviceptr a[6];
    unsigned long tried;

    stand_in_room(3);
    for (int i = 0; i < 6; i++)
        a[i] = allocate(4 * MIB);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 6; i++) {
            struct ibv_mr *mr = reg(a[i], 4 * MIB, LOCAL);

            CHECK(mr && counts().live <= 3); /* what is kept makes room */
            dereg(mr);
        }
    for (int i = 0; i < 3; i++)
        CHECK(reg(a[i], 4 * MIB, LOCAL));
    errno = 0;
    tried = counts().tried;
    CHECK(!reg(a[3], 4 * MIB, LOCAL) && errno == ENOMEM); /* the caller's error */
    CHECK(counts().tried == tried + 1); /* nothing was unused, so nothing was worth another try */
    stand_in_room(100);
    dereg(reg(a[3], 4 * MIB, LOCAL));
    stand_in_fail(1, ENOMEM);
    tried = counts().tried;
    CHECK(!reg(a[4], 4 * MIB, LOCAL) && errno == ENOMEM && counts().live == 3);
    CHECK(counts().tried == tried + 2); /* once more, without what was unused */
    stand_in_fail(1, EPERM);
    errno = 0;
    CHECK(!reg(a[4], 4 * MIB, LOCAL) && errno == EPERM && counts().tried == tried + 3);
    CHECK(counts().live == 3 && counts().wrong == 0);
}

/* Under a stand-in for NVML that says that 64 MiB of each GPU can be seen from outside. */
static void bar1(void)
{
    CUdeviceptr a[8];

    for (int i = 0; i < 8; i++)
        dereg(reg(a[i] = allocate(12 * MIB), 12 * MIB, LOCAL));
    CHECK(counts().registered == 8 && counts().live == 2); /* half of it is kept at most */
    dereg(reg(a[7], 12 * MIB, LOCAL));
    CHECK(counts().registered == 8);
    dereg(reg(a[0], 12 * MIB, LOCAL));
    dereg(reg(a[7], 12 * MIB, LOCAL));
    CHECK(counts().registered == 9); /* the least recently used one went */
}

/* Host memory is the library's alone. */
static void host(void)
{
    static char memory[64 << 10];
    void *pinned;

    for (int i = 0; i < 3; i++)
        dereg(ibv_reg_mr(pd, memory, sizeof memory, LOCAL));
    CHECK(cuMemAllocHost(&pinned, 64 * KIB) == CUDA_SUCCESS);
    for (int i = 0; i < 3; i++)
        dereg(ibv_reg_mr(pd, pinned, 64 * KIB, LOCAL));
    CHECK(counts().registered == 6 && counts().live == 0);
}

/* A child holds nothing: its calls reach the library as they are, and its end ends nothing. */
static void forked(void)
{
    size_t (*registrations)(void *, size_t) =
        (size_t (*)(void *, size_t))dlsym(RTLD_DEFAULT, "gpushim_registrations");
    static char memory[4096];
    CUdeviceptr a = allocate(64 * KIB), b = allocate(4 * MIB);
    struct ibv_mr *used = reg(b, 4 * MIB, LOCAL);
    reg_ex *ibv_reg_ex = (reg_ex *)dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
    struct stand_in_attr attr = {.length = 64 * KIB,
                                 .access = LOCAL,
                                 .comp_mask = 2,
                                 .addr = (void *)a};
    int status;
    pid_t child;

    dereg(reg(a, 64 * KIB, LOCAL));
    CHECK(registrations && registrations(NULL, 0) == 2);
    child = fork();
    if (child == 0) {
        struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, LOCAL);

        CHECK(mr && ibv_dereg_mr(mr) == 0);
        mr = ibv_reg_ex(pd, &attr);
        CHECK(mr && ibv_dereg_mr(mr) == 0);
        CHECK(registrations(NULL, 0) == 0);
        CHECK(counts().registered == 4 && counts().live == 2); /* as the card's side sees it */
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(registrations(NULL, 0) == 2);
    dereg(reg(a, 64 * KIB, LOCAL));
    dereg(used);
    CHECK(counts().registered == 2 && counts().live == 2 && counts().wrong == 0);
}

/* ---- Look-ups -------------------------------------------------------------------------------- */

static void look_ups(void)
{
    void *library = dlopen("libibverbs.so.1", RTLD_NOW), *self = dlopen(NULL, RTLD_NOW);
    void *hook = dlsym(library, "ibv_reg_mr_iova2");
    void *shim = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    Dl_info hook_info, shim_info, old_info;
    void *old = dlvsym(library, "ibv_reg_mr", "IBVERBS_1.0");

    CHECK(library && self && hook && shim);
    CHECK(dladdr(hook, &hook_info) && dladdr(shim, &shim_info));
    CHECK(hook_info.dli_fbase == shim_info.dli_fbase);
    CHECK(dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8") == hook);
    CHECK(dlsym(RTLD_DEFAULT, "ibv_reg_mr_iova2") == hook);
    CHECK(dlsym(self, "ibv_reg_mr_iova2") == hook);
    CHECK(!dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.1"));
    CHECK(old && dladdr(old, &old_info) && old_info.dli_fbase != shim_info.dli_fbase);
    CHECK(!dlsym(RTLD_DEFAULT, "gdr_pin_buffer") && !dlsym(RTLD_DEFAULT, "cuFileBufRegister"));
    CHECK(dlsym(library, "ibv_alloc_pd") == (void *)ibv_alloc_pd);
}

int main(int argc, char **argv)
{
    static const struct card_case cases[] = {{"kept", kept},
                                             {"none-kept", none_kept},
                                             {"all-kept", all_kept},
                                             {"two-kept", two_kept},
                                             {"remote", remote},
                                             {"iova", iova},
                                             {"free-and-unmap", free_and_unmap},
                                             {"free-in-use", free_in_use},
                                             {"neighbours", neighbours},
                                             {"stream-order", stream_order},
                                             {"foreign", foreign},
                                             {"across", across},
                                             {"dmabuf", dmabuf},
                                             {"extended", extended},
                                             {"moved", moved},
                                             {"domains", domains},
                                             {"full", full},
                                             {"bar1", bar1},
                                             {"host", host},
                                             {"forked", forked},
                                             {"look-ups", look_ups}};

    open_card();
    return RUN_CASE(cases, argc, argv);
}
