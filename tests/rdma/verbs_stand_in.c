/*
 * A libibverbs.so.1 without a network card: the calls that register memory, under their real
 * symbol versions, and as much of queue pairs as it takes to send a message to oneself.
 *
 * It stands in for kernel and card: a registration remembers which pages it pinned (file and offset
 * of the mapping, as the software CUDA driver's memory is files), and
 *   - with STAND_IN_KERNEL=peermem (the default) dies when its pages go: its key moves nothing;
 *   - with STAND_IN_KERNEL=dmabuf, and for a dma-buf always, holds them: it goes on reaching them.
 * By its address no more than one allocation of the GPU's is registered; a dma-buf may be of
 * several. Whenever it is called, it looks whether a live registration covers memory that has gone,
 * and at a deregistration whether that came too late; each is counted as wrong.
 *
 * Environment: STAND_IN_REPORT=PATH appends a line of counts at exit.
 *
 * As the real library does, ibv_reg_mr calls ibv_reg_mr_iova2 by its exported name.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pages.h"
#include "verbs_stand_in.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

#define EXPORT __attribute__((visibility("default")))

#define DMA_BUF "softcuda-dma-buf-" /* and its address, as the software driver names one */
#define PAGE    ((uint64_t)4096)
#define PART    ((uint64_t)2 << 20) /* no allocation begins or ends within such a part */

struct region {
    struct ibv_mr mr; /* first: what the program has */
    struct region *prev, *next;
    uint64_t base, iova; /* of what was pinned; mr.addr may show something else meanwhile */
    size_t size;
    unsigned access;
    struct pages pages;
    void *shown; /* in mr.addr */
    bool by_fd;  /* registered by a dma-buf, */
    uint64_t of; /* which is of what lies here; 0: not known */
    bool holds;  /* the pages stay; else the key dies with them */
    bool dead;
    uint8_t *held; /* its own mapping of them */
    size_t held_size;
};

struct domain {
    struct ibv_pd pd;
    unsigned regions;
    bool gone;           /* given back; it stays allocated, so that its next use is seen */
    struct domain *next; /* all there were: one that is gone is still known */
};

static struct domain *domains;

static struct {
    pthread_mutex_t mutex;
    struct region *first;
    uint32_t next_key;
    unsigned fail_each, room;
    int fail_errno;
    bool kernel_holds, started, gone;
    struct stand_in_counts counts;
} card = {.mutex = PTHREAD_MUTEX_INITIALIZER, .next_key = 1, .room = 1000000};

static void report(void)
{
    const char *path = getenv("STAND_IN_REPORT");
    FILE *file = path ? fopen(path, "a") : NULL;

    if (!file)
        return;
    fprintf(file, "registered %lu deregistered %lu live %lu killed %lu sent %lu wrong %lu\n",
            card.counts.registered, card.counts.deregistered, card.counts.live, card.counts.killed,
            card.counts.sent, card.counts.wrong);
    fclose(file);
}

static void start_locked(void)
{
    const char *kernel = getenv("STAND_IN_KERNEL");

    if (card.started)
        return;
    card.started = true;
    card.kernel_holds = kernel && strcmp(kernel, "dmabuf") == 0;
    atexit(report);
}

static void wrong(const char *what, const struct region *region)
{
    if (card.counts.wrong++ < 5)
        fprintf(stderr, "stand-in libibverbs: %s: %#llx, %zu bytes\n", what,
                (unsigned long long)region->base, region->size);
}

static bool has_gone(const struct region *region)
{
    struct pages now;

    return !pages_behind(region->of ? region->of : region->base, region->size, &now) ||
           memcmp(&now, &region->pages, sizeof now) != 0;
}

/* The kernel learns of memory that went: what does not hold its pages dies. */
static void notice_locked(void)
{
    for (struct region *r = card.first; r; r = r->next) {
        if (r->dead || !has_gone(r))
            continue;
        r->dead = true;
        card.counts.killed += !r->holds;
        wrong("memory went with a registration over it", r);
    }
}

void stand_in_counts(struct stand_in_counts *ret_counts)
{
    pthread_mutex_lock(&card.mutex);
    notice_locked();
    *ret_counts = card.counts;
    pthread_mutex_unlock(&card.mutex);
}

void stand_in_fail(unsigned each, int error)
{
    pthread_mutex_lock(&card.mutex);
    card.fail_each = each;
    card.fail_errno = error;
    pthread_mutex_unlock(&card.mutex);
}

void stand_in_room(unsigned registrations)
{
    pthread_mutex_lock(&card.mutex);
    card.room = registrations;
    pthread_mutex_unlock(&card.mutex);
}

void stand_in_gone(void)
{
    pthread_mutex_lock(&card.mutex);
    card.gone = true;
    pthread_mutex_unlock(&card.mutex);
}

/* ---- Registering ----------------------------------------------------------------------------- */

static int refuse_locked(void)
{
    static unsigned long tried;

    card.counts.tried++;
    if (card.gone)
        return EIO;
    if (card.fail_each && ++tried % card.fail_each == 0)
        return card.fail_errno;
    return card.counts.live >= card.room ? ENOMEM : 0;
}

/* A kernel that holds the pages has its own way to them. */
static void hold(struct region *r)
{
    uint64_t page = r->base & ~UINT64_C(4095);

    r->held_size = r->base + r->size - page;
    r->held = mremap((void *)(uintptr_t)page, 0, r->held_size, MREMAP_MAYMOVE);
    if (r->held == MAP_FAILED) /* not shared: host memory */
        r->held = NULL;
}

/* A dma-buf of several allocations has its address in its name: its pages, in a row. */
static uint8_t *map_several(uint64_t address, size_t size)
{
    uint8_t *held = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t end = address + size, part;

    for (uint64_t at = address; held != MAP_FAILED && at < end; at += part) {
        part = PART - at % PART < end - at ? PART - at % PART : end - at;
        if (mremap((void *)(uintptr_t)at, 0, part, MREMAP_MAYMOVE | MREMAP_FIXED,
                   held + (at - address)) == MAP_FAILED)
            return MAP_FAILED;
    }
    return held;
}

/* Whole pages of a dma-buf from this one on; false: it does not have them. */
static bool hold_dmabuf(struct region *r, int fd, uint64_t offset, size_t size)
{
    char link[64], name[256];
    uint64_t address;
    ssize_t length;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, name, sizeof name - 1);
    name[length < 0 ? 0 : length] = 0;
    if (lseek(fd, 0, SEEK_END) < (off_t)(offset + size))
        return false;
    if (sscanf(name, "/memfd:" DMA_BUF "%" SCNx64, &address) == 1) {
        r->of = address + offset;
        r->held = map_several(r->of, size);
    } else {
        r->held = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    }
    r->held_size = size;
    return r->held != MAP_FAILED;
}

static struct ibv_mr *pin(struct ibv_pd *pd, uint64_t base, size_t size, uint64_t iova,
                          unsigned access, int fd, uint64_t offset)
{
    struct region *r = calloc(1, sizeof *r);
    int error = size ? 0 : EINVAL;

    pthread_mutex_lock(&card.mutex);
    start_locked();
    notice_locked();
    if (((struct domain *)pd)->gone)
        error = EINVAL;
    if (!error)
        error = refuse_locked();
    if (!error && fd < 0 && (!pages_behind(base, size, &r->pages) || !one_allocation(&r->pages)))
        error = EFAULT;
    if (!error && fd >= 0) {
        uint64_t in_page = offset % PAGE;

        if (hold_dmabuf(r, fd, offset - in_page, size + in_page) && in_page == iova % PAGE) {
            base = (uintptr_t)r->held + in_page;
            r->of += r->of ? in_page : 0;
            pages_behind(base, size, &r->pages);
        } else {
            error = EINVAL;
        }
    }
    if (error) {
        free(r);
        r = NULL;
    } else {
        r->shown = (void *)(uintptr_t)(fd >= 0 ? offset : base);
        r->mr = (struct ibv_mr){.context = pd->context,
                                .pd = pd,
                                .addr = r->shown,
                                .length = size,
                                .lkey = card.next_key,
                                .rkey = card.next_key};
        card.next_key++;
        r->base = base;
        r->size = size;
        r->iova = iova;
        r->access = access;
        r->by_fd = fd >= 0;
        r->holds = r->by_fd || card.kernel_holds;
        if (fd < 0 && r->holds)
            hold(r);
        r->next = card.first;
        if (r->next)
            r->next->prev = r;
        card.first = r;
        card.counts.registered++;
        card.counts.live++;
        ((struct domain *)pd)->regions++;
    }
    pthread_mutex_unlock(&card.mutex);
    errno = error;
    return r ? &r->mr : NULL;
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                       unsigned int access)
{
    return pin(pd, (uintptr_t)addr, length, iova, access, -1, 0);
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned)access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                      int access)
{
    return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned)access);
}

EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
                                        uint64_t iova, int fd, int access)
{
    return pin(pd, 0, length, iova, (unsigned)access, fd, offset);
}

struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct stand_in_attr *attr);
EXPORT struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct stand_in_attr *attr)
{
    uint64_t iova = attr->comp_mask & 1 ? attr->iova : (uintptr_t)attr->addr;

    if (attr->comp_mask & 4)
        return pin(pd, 0, attr->length, iova, (unsigned)attr->access, attr->fd,
                   attr->comp_mask & 8 ? attr->fd_offset : 0);
    return pin(pd, (uintptr_t)attr->addr, attr->length, iova, (unsigned)attr->access, -1, 0);
}

struct ibv_mr *stand_in_reg(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    return pin(pd, (uintptr_t)addr, length, (uintptr_t)addr, (unsigned)access, -1, 0);
}

static struct region *find_locked(const struct ibv_mr *mr)
{
    struct region *r = card.first;

    while (r && &r->mr != mr)
        r = r->next;
    return r;
}

unsigned stand_in_access(const struct ibv_mr *mr)
{
    const struct region *r;
    unsigned access;

    pthread_mutex_lock(&card.mutex);
    r = find_locked(mr);
    access = r ? r->access : UINT_MAX;
    pthread_mutex_unlock(&card.mutex);
    return access;
}

static void forget_locked(struct region *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        card.first = r->next;
    if (r->next)
        r->next->prev = r->prev;
    card.counts.live--;
    ((struct domain *)r->mr.pd)->regions--;
    if (r->held)
        munmap(r->held, r->held_size);
    free(r);
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
    struct region *r;
    int error = 0;

    pthread_mutex_lock(&card.mutex);
    notice_locked();
    r = find_locked(mr);
    if (!r) {
        card.counts.unknown++;
        error = EINVAL;
    } else if (card.gone) {
        error = EIO;
    } else {
        if (mr->addr != r->shown || mr->length != r->size)
            wrong("dereg of a region that shows another range", r);
        card.counts.deregistered++;
        forget_locked(r);
    }
    pthread_mutex_unlock(&card.mutex);
    return error;
}

EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
                        int access)
{
    struct region *r;
    struct pages pages;
    int error = 0;

    pthread_mutex_lock(&card.mutex);
    r = find_locked(mr);
    if (!r)
        error = EINVAL;
    else if (card.gone)
        error = EIO;
    else if (flags & IBV_REREG_MR_CHANGE_TRANSLATION &&
             (!pages_behind((uintptr_t)addr, length, &pages) || !one_allocation(&pages)))
        error = IBV_REREG_MR_ERR_INPUT;
    if (!error && flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
        r->pages = pages;
        r->base = r->iova = (uintptr_t)addr;
        r->size = length;
        r->by_fd = false;
        r->of = 0;
        r->mr.addr = r->shown = addr;
        r->mr.length = length;
        r->dead = false;
        if (r->held)
            munmap(r->held, r->held_size);
        r->held = NULL;
        if (card.kernel_holds)
            hold(r);
    }
    if (!error && flags & IBV_REREG_MR_CHANGE_PD) {
        ((struct domain *)r->mr.pd)->regions--;
        ((struct domain *)pd)->regions++;
        r->mr.pd = pd;
    }
    if (!error && flags & IBV_REREG_MR_CHANGE_ACCESS)
        r->access = (unsigned)access;
    pthread_mutex_unlock(&card.mutex);
    return error;
}

/* The ABI of 2006, under the version that programs of then ask for. Nothing here works with it. */
struct ibv_mr *stand_in_reg_mr_1_0(void *pd, void *addr, size_t length, int access);
EXPORT struct ibv_mr *stand_in_reg_mr_1_0(void *pd, void *addr, size_t length, int access)
{
    errno = EOPNOTSUPP;
    return NULL;
}
__asm__(".symver stand_in_reg_mr_1_0, ibv_reg_mr@IBVERBS_1.0");

/* ---- Devices, domains ------------------------------------------------------------------------ */

static struct ibv_device device = {.name = "stand_in0",
                                   .dev_name = "uverbs0",
                                   .node_type = IBV_NODE_CA,
                                   .transport_type = IBV_TRANSPORT_IB};

EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
    struct ibv_device **list = calloc(2, sizeof *list);

    if (list)
        list[0] = &device;
    if (count)
        *count = 1;
    return list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *which)
{
    return which->name;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc);

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *which)
{
    struct ibv_context *context = calloc(1, sizeof *context);

    if (!context)
        return NULL;
    context->device = which;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_recv;
    context->ops.poll_cq = poll_cq;
    return context;
}

EXPORT int ibv_close_device(struct ibv_context *context)
{
    struct region *next;

    pthread_mutex_lock(&card.mutex);
    for (struct region *r = card.first; r; r = next) {
        next = r->next;
        if (r->mr.context != context)
            continue;
        if (!card.gone)
            wrong("a device is closed with a registration", r);
        forget_locked(r); /* the kernel ends what is left */
    }
    pthread_mutex_unlock(&card.mutex);
    free(context);
    return 0;
}

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct domain *domain = calloc(1, sizeof *domain);

    if (!domain)
        return NULL;
    domain->pd.context = context;
    pthread_mutex_lock(&card.mutex);
    domain->next = domains;
    domains = domain;
    pthread_mutex_unlock(&card.mutex);
    return &domain->pd;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
    struct domain *domain = (struct domain *)pd;
    int error = 0;

    pthread_mutex_lock(&card.mutex);
    if (card.gone)
        error = EIO;
    else if (domain->regions)
        error = EBUSY;
    else
        domain->gone = true;
    pthread_mutex_unlock(&card.mutex);
    return error;
}

EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port,
                          struct _compat_ibv_port_attr *attr)
{
    struct ibv_port_attr *full = (struct ibv_port_attr *)attr;

    full->state = IBV_PORT_ACTIVE;
    full->active_mtu = IBV_MTU_4096;
    full->lid = 1;
    return 0;
}

/* ---- Queue pairs, to oneself ----------------------------------------------------------------- */

#define DEPTH 16

struct queue_pair {
    struct ibv_qp qp;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_sge receive[DEPTH];
    uint64_t id[DEPTH];
    unsigned posted, taken;
};

struct completions {
    struct ibv_cq cq;
    struct ibv_wc done[2 * DEPTH];
    unsigned first, last;
};

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int size, void *cq_context,
                                    struct ibv_comp_channel *channel, int vector)
{
    struct completions *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->cq.context = context;
    return &c->cq;
}

EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
    free(cq);
    return 0;
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct queue_pair *q = calloc(1, sizeof *q);

    if (!q)
        return NULL;
    q->qp.context = pd->context;
    q->qp.qp_num = 1;
    q->send_cq = attr->send_cq;
    q->recv_cq = attr->recv_cq;
    return &q->qp;
}

EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    return 0;
}

EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
    free(qp);
    return 0;
}

static void complete(struct ibv_cq *cq, uint64_t id, enum ibv_wc_status status, uint32_t bytes)
{
    struct completions *c = (struct completions *)cq;

    c->done[c->last++ % (2 * DEPTH)] =
        (struct ibv_wc){.wr_id = id, .status = status, .byte_len = bytes};
}

/* Where the card finds what a key and an address mean; NULL: it refuses. */
static uint8_t *translate_locked(const struct ibv_sge *sge)
{
    struct region *r = card.first;

    while (r && r->mr.lkey != sge->lkey)
        r = r->next;
    if (!r || sge->addr < r->iova || sge->addr + sge->length > r->iova + r->size ||
        (r->dead && !r->held))
        return NULL;
    if (r->dead && !r->by_fd) /* what it holds is elsewhere now */
        return r->held + (r->base & 4095) + (sge->addr - r->iova);
    return (uint8_t *)(uintptr_t)(r->base + (sge->addr - r->iova));
}

uint64_t stand_in_at(const struct ibv_mr *mr, uint64_t address)
{
    const struct ibv_sge byte = {.addr = address, .length = 1, .lkey = mr->lkey};
    uint64_t found;

    pthread_mutex_lock(&card.mutex);
    found = (uintptr_t)translate_locked(&byte);
    pthread_mutex_unlock(&card.mutex);
    return found;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct queue_pair *q = (struct queue_pair *)qp;

    q->receive[q->posted % DEPTH] = wr->sg_list[0];
    q->id[q->posted++ % DEPTH] = wr->wr_id;
    return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct queue_pair *q = (struct queue_pair *)qp;
    const struct ibv_sge *to = &q->receive[q->taken % DEPTH], *from = wr->sg_list;
    uint8_t *source, *target;
    enum ibv_wc_status status = IBV_WC_SUCCESS;

    if (q->taken == q->posted) {
        *bad = wr;
        return ENOMEM;
    }
    pthread_mutex_lock(&card.mutex);
    notice_locked();
    source = translate_locked(from);
    target = translate_locked(to);
    if (source && target && from->length <= to->length)
        memcpy(target, source, from->length);
    else
        status = IBV_WC_LOC_PROT_ERR;
    card.counts.sent += status == IBV_WC_SUCCESS;
    pthread_mutex_unlock(&card.mutex);
    complete(q->recv_cq, q->id[q->taken++ % DEPTH], status, from->length);
    complete(q->send_cq, wr->wr_id, status, from->length);
    return 0;
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
    struct completions *c = (struct completions *)cq;
    int found = 0;

    while (found < count && c->first < c->last)
        wc[found++] = c->done[c->first++ % (2 * DEPTH)];
    return found;
}
