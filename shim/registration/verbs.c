/*
 * Memory regions of libibverbs. The program gets the library's own ibv_mr: one of exactly the range
 * it asked for, or, where it will be kept, one that may be of a larger range around it. The latter
 * is lent to one user at a time, and shows that user the address and length it asked for (programs
 * send mr->addr around); the library sees the true ones again before it is given back. Keys count
 * from the program's address either way, since the larger range's start is moved along with it.
 *
 * Kept by default are regions that no other machine can reach: a remote key in somebody's hands
 * must die when the program says so.
 */
#include <unistd.h>

#include "shim/hooks/hook.h"
#include "pinning.h"
#include "shim/start.h"

#define ACCESS_REMOTE  (2u | 4u | 8u)      /* remote write, read, atomic */
#define ACCESS_APART   (16u | 32u | 64u)   /* window binding, zero based, on demand: never kept */
#define ACCESS_DMABUF  (UINT64_C(1) << 32) /* not the library's: tells the two kinds apart, */
#define ACCESS_ADOPTED (UINT64_C(1) << 33) /* and what was registered otherwise from what is kept */

#define REREG_TRANSLATION 1
#define REREG_PD          2
#define REREG_ACCESS      4

#define ATTR_IOVA      1u
#define ATTR_ADDR      2u
#define ATTR_FD        4u
#define ATTR_FD_OFFSET 8u

/* One registration on its way: what the program asked, and by which call. */
struct call {
    enum {
        REG_MR,
        REG_IOVA,
        REG_IOVA2,
        REG_EX,
        REG_DMABUF,
        REG_ADOPT
    } how; /* the first four by address */
    struct ibv_pd *pd;
    uint64_t addr; /* of the GPU memory */
    size_t length;
    uint64_t iova;
    unsigned access;
    const struct ibv_mr_init_attr *attr;
    int fd;            /* of a dma-buf */
    uint64_t offset;   /* into it */
    struct ibv_mr *mr; /* REG_ADOPT: it is registered already */
};

static struct ibv_mr *register_ex(const struct call *call, uint64_t base, size_t size,
                                  uint64_t iova)
{
    struct ibv_mr_init_attr attr = *call->attr;

    /* As it came, but for what was made larger. */
    if (!(attr.comp_mask & ATTR_FD)) {
        attr.addr = (void *)(uintptr_t)base;
        attr.length = size;
        if (attr.comp_mask & ATTR_IOVA)
            attr.iova = iova;
    }
    return GS_PIN_REAL(ibv_reg_mr_ex)(call->pd, &attr);
}

static struct ibv_mr *call_library(const struct call *call, uint64_t base, size_t size)
{
    uint64_t iova = call->iova - call->addr + base;
    void *addr = (void *)(uintptr_t)base;

    switch (call->how) {
    case REG_MR:
        return GS_PIN_REAL(ibv_reg_mr)(call->pd, addr, size, (int)call->access);
    case REG_IOVA:
        return GS_PIN_REAL(ibv_reg_mr_iova)(call->pd, addr, size, iova, (int)call->access);
    case REG_IOVA2:
        return GS_PIN_REAL(ibv_reg_mr_iova2)(call->pd, addr, size, iova, call->access);
    case REG_EX:
        return register_ex(call, base, size, iova);
    case REG_DMABUF:
        return GS_PIN_REAL(ibv_reg_dmabuf_mr)(call->pd, call->offset, size, iova, call->fd,
                                              (int)call->access);
    case REG_ADOPT:
        break;
    }
    return call->mr;
}

/*
 * The kernel's way to GPU memory by its address takes one of the driver's allocations, and a block
 * may lie across several; a dma-buf may be of them all. NULL: errno is of what was tried last.
 */
static struct ibv_mr *register_across(const struct call *call, uint64_t base, size_t size)
{
    __typeof__(&ibv_reg_dmabuf_mr) real = GS_PIN_REAL(ibv_reg_dmabuf_mr);
    struct ibv_mr *mr = NULL;
    int error = errno, fd;
    uint64_t offset;

    if (call->how >= REG_DMABUF || !gs_core_pin_crosses(gs_core, base, size))
        return NULL;
    fd = real ? gs_core_pin_dmabuf(gs_core, call->addr, base, size, &offset) : -1;
    if (fd >= 0) {
        mr = real(call->pd, offset, size, call->iova - call->addr + base, fd, (int)call->access);
        error = errno;
        close(fd);
    }
    if (!mr && error != ENOMEM)
        gs_pin_say_across("libibverbs", base, size);
    errno = error;
    return mr;
}

static int pin(const struct gs_reg_key *key, uint64_t base, size_t size, void *arg,
               void **ret_handle)
{
    struct ibv_mr *mr;

    gs_pin_bound_by_bar1();
    gs_pin_inside++;
    errno = 0;
    mr = call_library(arg, base, size);
    if (!mr)
        mr = register_across(arg, base, size);
    gs_pin_inside--;
    *ret_handle = mr;
    return mr ? 0 : errno ? errno : EIO;
}

static int unpin(const struct gs_reg_key *key, void *handle)
{
    GS_WITHIN_A_CALL;
    int error;

    gs_pin_inside++;
    error = GS_PIN_REAL(ibv_dereg_mr)(handle);
    gs_pin_inside--;
    return error < 0 ? (errno ? errno : EIO) : error;
}

static const struct gs_reg_backend verbs = {.name = "libibverbs",
                                            .lends = true,
                                            .pin = pin,
                                            .unpin = unpin};

static bool keeps(unsigned access)
{
    return gs_pin_keep != GS_PIN_KEEP_NONE && !(access & ACCESS_APART) &&
           (gs_pin_keep == GS_PIN_KEEP_ALL || !(access & ACCESS_REMOTE));
}

static struct gs_pin pin_of(struct call *call)
{
    bool dmabuf = call->how == REG_DMABUF;

    return (struct gs_pin){
        .key = {.backend = &verbs,
                .domain = (uintptr_t)call->pd,
                .access = call->access | (dmabuf ? ACCESS_DMABUF : 0) |
                          (call->how == REG_ADOPT ? ACCESS_ADOPTED : 0),
                .shift = call->iova - call->addr},
        .base = call->addr,
        .size = call->length,
        .keep = call->how != REG_ADOPT && keeps(call->access),
        /* What others reach is what was named; a dma-buf is no larger than it is. */
        .exact = dmabuf || call->access & ACCESS_REMOTE,
        .arg = call,
    };
}

/* The address that the library shows in a region of this call. */
static void *shown_address(const struct call *call)
{
    return (void *)(uintptr_t)(call->how == REG_DMABUF ? call->offset : call->addr);
}

static int errno_of(gs_status status)
{
    switch (status) {
    case GS_NO_HOST_MEMORY:
        return ENOMEM;
    case GS_NOT_LIVE:
    case GS_INVALID:
        return EFAULT; /* what the kernel says of memory that is not there */
    default:
        return status;
    }
}

/* True: *ret_mr is the answer. False: the call is the library's alone. */
static bool acquire(struct call *call, struct ibv_mr **ret_mr)
{
    struct gs_pin wanted = pin_of(call);
    int saved = errno;
    struct gs_reg *reg;
    gs_status status = gs_core_pin(gs_core, &wanted, &reg);
    struct ibv_mr *mr;

    if (status == GS_NOT_OURS) {
        errno = saved;
        return false;
    }
    if (call->how == REG_ADOPT) { /* as it came */
        errno = saved;
        if (status == GS_OK) {
            gs_reg_note(reg)[0] = (uintptr_t)call->mr->addr;
            gs_reg_note(reg)[1] = call->mr->length;
        }
        return true;
    }
    if (status != GS_OK) {
        errno = errno_of(status);
        *ret_mr = NULL;
        return true;
    }
    mr = gs_reg_handle(reg);
    gs_reg_note(reg)[0] = (uintptr_t)mr->addr;
    gs_reg_note(reg)[1] = mr->length;
    mr->addr = shown_address(call);
    mr->length = call->length;
    errno = saved;
    *ret_mr = mr;
    return true;
}

#define ABSENT_MR(symbol) \
    (GS_PIN_REAL(symbol) ? false : (errno = ENOSYS, true)) /* nothing to pass on to */

GS_HOOK struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    GS_AROUND_AT_GATE(ibv_reg_mr);
    struct call call = {.how = REG_MR,
                        .pd = pd,
                        .addr = (uintptr_t)addr,
                        .length = length,
                        .iova = (uintptr_t)addr,
                        .access = (unsigned)access};
    struct ibv_mr *mr;

    if (ABSENT_MR(ibv_reg_mr))
        return NULL;
    if (gs_pin_active() && acquire(&call, &mr))
        return mr;
    return GS_PIN_REAL(ibv_reg_mr)(pd, addr, length, access);
}

GS_HOOK struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                       int access)
{
    GS_AROUND_AT_GATE(ibv_reg_mr_iova);
    struct call call = {.how = REG_IOVA,
                        .pd = pd,
                        .addr = (uintptr_t)addr,
                        .length = length,
                        .iova = iova,
                        .access = (unsigned)access};
    struct ibv_mr *mr;

    if (ABSENT_MR(ibv_reg_mr_iova))
        return NULL;
    if (gs_pin_active() && acquire(&call, &mr))
        return mr;
    return GS_PIN_REAL(ibv_reg_mr_iova)(pd, addr, length, iova, access);
}

GS_HOOK struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                        unsigned int access)
{
    GS_AROUND_AT_GATE(ibv_reg_mr_iova2);
    struct call call = {.how = REG_IOVA2,
                        .pd = pd,
                        .addr = (uintptr_t)addr,
                        .length = length,
                        .iova = iova,
                        .access = access};
    struct ibv_mr *mr;

    if (ABSENT_MR(ibv_reg_mr_iova2))
        return NULL;
    if (gs_pin_active() && acquire(&call, &mr))
        return mr;
    return GS_PIN_REAL(ibv_reg_mr_iova2)(pd, addr, length, iova, access);
}

/* Fills in whose memory a part of a dma-buf is; false: not known, or not that much of it. */
static bool find_dmabuf(struct call *call)
{
    uint64_t address;
    size_t size;

    if (!gs_pin_dmabuf_find(call->fd, &address, &size) || call->offset > size ||
        call->length > size - call->offset)
        return false;
    call->addr = address + call->offset;
    return true;
}

GS_HOOK struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
                                         uint64_t iova, int fd, int access)
{
    GS_AROUND_AT_GATE(ibv_reg_dmabuf_mr);
    struct call call = {.how = REG_DMABUF,
                        .pd = pd,
                        .length = length,
                        .iova = iova,
                        .access = (unsigned)access,
                        .fd = fd,
                        .offset = offset};
    struct ibv_mr *mr;

    if (ABSENT_MR(ibv_reg_dmabuf_mr))
        return NULL;
    if (gs_pin_active() && find_dmabuf(&call) && acquire(&call, &mr))
        return mr;
    return GS_PIN_REAL(ibv_reg_dmabuf_mr)(pd, offset, length, iova, fd, access);
}

/* A region of attributes that this file knows. */
static bool plain_attributes(const struct ibv_mr_init_attr *attr)
{
    return attr && (attr->comp_mask & ~(uint64_t)ATTR_IOVA) == ATTR_ADDR;
}

GS_HOOK struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr)
{
    GS_AROUND_AT_GATE(ibv_reg_mr_ex);
    struct call call = {.how = REG_EX, .pd = pd, .attr = attr};
    struct ibv_mr *mr;

    if (ABSENT_MR(ibv_reg_mr_ex))
        return NULL;
    if (!gs_pin_active() || !attr)
        return GS_PIN_REAL(ibv_reg_mr_ex)(pd, attr);
    call.length = attr->length;
    call.access = (unsigned)attr->access;
    call.addr = (uintptr_t)attr->addr;
    if (attr->comp_mask & ATTR_FD) {
        call.fd = attr->fd;
        call.offset = attr->comp_mask & ATTR_FD_OFFSET ? attr->fd_offset : 0;
        if (!find_dmabuf(&call))
            return GS_PIN_REAL(ibv_reg_mr_ex)(pd, attr);
    }
    call.iova = attr->comp_mask & ATTR_IOVA ? attr->iova : call.addr;
    if (plain_attributes(attr)) {
        if (acquire(&call, &mr))
            return mr;
        return GS_PIN_REAL(ibv_reg_mr_ex)(pd, attr);
    }
    /* Anything more is registered as it came, and then known, and not kept. */
    gs_pin_inside++;
    mr = GS_PIN_REAL(ibv_reg_mr_ex)(pd, attr);
    gs_pin_inside--;
    if (mr) {
        call.how = REG_ADOPT;
        call.mr = mr;
        acquire(&call, &call.mr);
    }
    return mr;
}

/* ---- Ends ------------------------------------------------------------------------------------ */

static struct gs_reg *find(const struct ibv_mr *mr)
{
    return mr ? gs_regcache_find(gs_core_regcache(gs_core), &verbs, mr) : NULL;
}

static void show(struct ibv_mr *mr, void *addr, size_t length)
{
    mr->addr = addr;
    mr->length = length;
}

GS_HOOK int ibv_dereg_mr(struct ibv_mr *mr)
{
    GS_AROUND_AT_GATE(ibv_dereg_mr);
    __typeof__(&ibv_dereg_mr) real = GS_PIN_REAL(ibv_dereg_mr);
    struct gs_reg *reg;
    size_t length;
    void *addr;
    int error;

    if (!real)
        return ENOSYS;
    reg = gs_pin_active() ? find(mr) : NULL;
    if (!reg) {
        /* One that is kept was given back already: a second time is the program's mistake. */
        if (gs_pin_active() && gs_regcache_knows(gs_core_regcache(gs_core), &verbs, mr))
            return EINVAL;
        return real(mr);
    }
    addr = mr->addr;
    length = mr->length;
    show(mr, (void *)(uintptr_t)gs_reg_note(reg)[0], gs_reg_note(reg)[1]);
    error = gs_regcache_release(gs_core_regcache(gs_core), reg);
    if (error)
        show(mr, addr, length);
    return error;
}

/* The program moves a region. One that is larger than it knows is first made what it asked for. */
GS_HOOK int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
                         int access)
{
    GS_AROUND_AT_GATE(ibv_rereg_mr);
    __typeof__(&ibv_rereg_mr) real = GS_PIN_REAL(ibv_rereg_mr);
    struct gs_reg *reg;
    struct call call;
    struct gs_pin wanted;
    void *shown;
    size_t shown_length;
    int error;

    if (!real)
        return ENOSYS;
    if (!gs_pin_active())
        return real(mr, flags, pd, addr, length, access);
    reg = find(mr);
    if (!reg) {
        error = real(mr, flags, pd, addr, length, access);
        if (!error && flags & REREG_TRANSLATION) { /* it may be GPU memory now */
            call = (struct call){.how = REG_ADOPT,
                                 .pd = mr->pd,
                                 .mr = mr,
                                 .addr = (uintptr_t)addr,
                                 .iova = (uintptr_t)addr,
                                 .length = length,
                                 .access = ACCESS_REMOTE};
            acquire(&call, &call.mr);
        }
        return error;
    }
    shown = mr->addr;
    shown_length = mr->length;
    if (!(flags & REREG_TRANSLATION) && gs_reg_kept(reg)) {
        flags |= REREG_TRANSLATION;
        addr = (void *)(uintptr_t)gs_reg_view(reg);
        length = shown_length;
    }
    show(mr, (void *)(uintptr_t)gs_reg_note(reg)[0], gs_reg_note(reg)[1]);
    gs_pin_inside++;
    error = real(mr, flags, pd, addr, length, access);
    gs_pin_inside--;
    if (error) {
        show(mr, shown, shown_length);
        return error;
    }
    call = (struct call){.how = REG_ADOPT,
                         .pd = flags & REREG_PD ? pd : mr->pd,
                         .addr = flags & REREG_TRANSLATION ? (uintptr_t)addr : gs_reg_view(reg),
                         .length = flags & REREG_TRANSLATION ? length : shown_length,
                         .access = flags & REREG_ACCESS ? (unsigned)access
                                                        : (unsigned)gs_reg_key(reg)->access};
    call.iova = call.addr;
    wanted = pin_of(&call);
    gs_reg_note(reg)[0] = (uintptr_t)mr->addr;
    gs_reg_note(reg)[1] = mr->length;
    gs_core_repin(gs_core, reg, &wanted);
    return 0;
}

static bool of_domain(const struct gs_regcache_info *info, void *pd)
{
    return info->key.backend == &verbs && info->key.domain == (uintptr_t)pd;
}

static bool of_context(const struct gs_regcache_info *info, void *context)
{
    return info->key.backend == &verbs &&
           ((const struct ibv_pd *)info->key.domain)->context == context;
}

/* The kernel refuses while regions live. Where it does not, its device has gone. */
GS_PIN_ENDS(ibv_dealloc_pd, struct ibv_pd, of_domain)
GS_PIN_ENDS(ibv_close_device, struct ibv_context, of_context)
