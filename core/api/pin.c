/* Registrations of memory: whose it is, and how much of it is worth pinning. */
#include "core/api/pin.h"

#include "core/process/context.h"

#define DMABUF_PAGE UINT64_C(4096)

static uint64_t round_down(uint64_t address)
{
    return address & ~(GS_REG_PAGE - 1);
}

static uint64_t round_up(uint64_t address)
{
    return round_down(address + GS_REG_PAGE - 1);
}

static struct gs_reg_request request_of(const struct gs_pin *pin)
{
    return (struct gs_reg_request){
        .key = pin->key,
        .base = pin->base,
        .size = pin->size,
        .keep = pin->keep,
        .exact = pin->exact,
        .cover = pin->base,
        .cover_size = pin->size,
    };
}

/* Whether the range is all in a live block's pages. The devices map pages of 64 KiB, so programs
 * round their ranges out to them. Called with the arena's lock held. */
static bool is_live(const struct gs_piece *piece, uint64_t base, uint64_t end)
{
    const struct gs_block *block = gs_piece_find_locked(piece, round_down(base));

    for (; block && block->base < end; block = block->above)
        if (block->state == GS_BLOCK_LIVE && round_down(block->base) <= base &&
            end <= round_up(block->base + block->entry.size))
            return true;
    return false;
}

/* A piece of 2 MiB is pinned as a whole: then one registration serves every block that will ever
 * lie in it. Of a larger one what was asked for is, and the rest of 64 KiB pages. */
static void widen(struct gs_reg_request *request, const struct gs_piece *piece)
{
    uint64_t end = request->base + request->size;

    if (!request->keep || request->exact)
        return;
    request->cover = round_down(request->base);
    request->cover_size = round_up(end) - request->cover;
    if (request->key.backend->lends && piece->span.size == GS_PAGE_SIZE &&
        end <= gs_piece_end(piece)) {
        request->cover = piece->span.base;
        request->cover_size = piece->span.size;
    }
}

/* Entered, or a kept one taken, under the arena's lock: what is kept may be of memory that the
 * program has freed since, and from then on the piece stays. */
static gs_status begin_arena(struct gs_core *core, struct gs_reg_request *request,
                             struct gs_reg **ret_reg, bool *ret_hit)
{
    struct gs_piece *piece;
    gs_status status;

    gs_single_drain(&core->single, "memory is registered");
    status = gs_context_lock_piece(core, request->base, &piece);
    if (status != GS_OK)
        return status;
    if (is_live(piece, request->base, request->base + request->size)) {
        widen(request, piece);
        status = gs_regcache_begin(core->regcache, request, ret_reg, ret_hit);
    } else {
        status = GS_NOT_LIVE;
    }
    gs_latch_release(&piece->arena->lock);
    return status;
}

/* The driver's tag of whatever allocation has the address; 0: it is not the GPU's. */
static uint64_t buffer_id(struct gs_core *core, uint64_t address)
{
    unsigned long long id = 0;

    if (!core->driver.pointer_get_attribute ||
        core->driver.pointer_get_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) !=
            CUDA_SUCCESS)
        return 0;
    return id;
}

static bool is_device_memory(struct gs_core *core, uint64_t address)
{
    CUmemorytype type = CU_MEMORYTYPE_HOST;

    return core->driver.pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
               CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE;
}

/* Memory of another process is known by what it was opened as: that number never comes again, and
 * its sign bit tells it from the driver's. */
static gs_status import_id(struct gs_core *core, struct gs_reg_request *request)
{
    struct gs_import_info import;

    if (gs_share_find(core->share, request->base, &import) != GS_OK)
        return GS_NOT_LIVE;
    if (round_up(request->base + request->size) > round_up(import.base + import.size))
        return GS_INVALID;
    request->id = import.id | UINT64_C(1) << 63;
    return GS_OK;
}

/* Memory that can go without our knowing: registered as it was asked for, and found again only
 * while its id is the same. */
static gs_status begin_foreign(struct gs_core *core, const struct gs_span *span,
                               struct gs_reg_request *request, struct gs_reg **ret_reg,
                               bool *ret_hit)
{
    gs_status status = GS_OK;

    request->exact = true;
    if (span)
        status = import_id(core, request);
    else
        request->id = buffer_id(core, request->base);
    if (status != GS_OK)
        return status;
    if (request->id == 0)
        return GS_NOT_OURS;
    *ret_hit = true;
    *ret_reg = gs_regcache_hit(core->regcache, request);
    if (*ret_reg)
        return GS_OK;
    if (!span && !is_device_memory(core, request->base))
        return GS_NOT_OURS;
    return gs_regcache_begin(core->regcache, request, ret_reg, ret_hit);
}

gs_status gs_core_pin(struct gs_core *core, const struct gs_pin *pin, struct gs_reg **ret_reg)
{
    struct gs_reg_request request = request_of(pin);
    const struct gs_span *span = gs_map_find(&core->map, pin->base);
    gs_status status = GS_NOT_OURS;
    bool hit;

    if (pin->size == 0 || pin->base + pin->size < pin->base)
        return GS_NOT_OURS;
    if (span && span->kind == GS_SPAN_PIECE) {
        status = begin_arena(core, &request, ret_reg, &hit);
        if (status == GS_NOT_OURS) /* it went just now */
            span = NULL;
    }
    if (status == GS_NOT_OURS)
        status = begin_foreign(core, span, &request, ret_reg, &hit);
    if (status != GS_OK || hit)
        return status;
    return gs_regcache_complete(core->regcache, *ret_reg, pin->arg);
}

gs_status gs_core_repin(struct gs_core *core, struct gs_reg *reg, const struct gs_pin *pin)
{
    struct gs_reg_request request = request_of(pin);
    const struct gs_span *span = gs_map_find(&core->map, pin->base);

    if (!span)
        request.id = buffer_id(core, pin->base);
    if (span && span->kind == GS_SPAN_PIECE)
        gs_single_drain(&core->single, "memory is registered");
    if (span ? span->kind == GS_SPAN_IMPORT && import_id(core, &request) != GS_OK
             : request.id == 0 || !is_device_memory(core, pin->base)) {
        gs_regcache_forget(core->regcache, reg);
        return GS_NOT_OURS;
    }
    gs_regcache_change(core->regcache, reg, &request);
    return GS_OK;
}

/* ---- Across allocations of the driver's ---------------------------------------------------- */

bool gs_core_pin_crosses(struct gs_core *core, uint64_t base, size_t size)
{
    const struct gs_driver *driver = &core->driver;
    CUdeviceptr first = 0;
    size_t bytes = 0;

    return gs_map_find(&core->map, base) && driver->pointer_get_attribute &&
           driver->pointer_get_attribute(&first, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, base) ==
               CUDA_SUCCESS &&
           driver->pointer_get_attribute(&bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, base) ==
               CUDA_SUCCESS &&
           base + size > first + bytes;
}

int gs_core_pin_dmabuf(struct gs_core *core, uint64_t live, uint64_t base, size_t size,
                       uint64_t *ret_offset)
{
    const uint64_t from = base & ~(DMABUF_PAGE - 1);
    const uint64_t to = (base + size + DMABUF_PAGE - 1) & ~(DMABUF_PAGE - 1);
    const struct gs_driver *driver = &core->driver;
    struct gs_block_info info;
    int fd;

    if (!driver->mem_get_range_handle || gs_core_find(core, live, &info) != GS_OK || !info.context)
        return -1;
    *ret_offset = base - from;
    GS_ENTER(entered, driver, info.context);
    return !entered.result && driver->mem_get_range_handle(&fd, from, to - from,
                                                           CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                                           0) == CUDA_SUCCESS
               ? fd
               : -1;
}

void gs_core_pin_apart(struct gs_core *core)
{
    __atomic_store_n(&core->shared.crosses, false, __ATOMIC_RELAXED);
}

static bool is_foreign(const struct gs_regcache_info *info, void *arg)
{
    const struct gs_regcache_info *range = arg;

    return info->id != 0 && info->base < range->base + range->size &&
           info->base + info->size > range->base;
}

void gs_core_foreign_going(struct gs_core *core, CUdeviceptr address, size_t size)
{
    struct gs_regcache_info range = {.base = address, .size = size};
    CUdeviceptr base;

    if (gs_regcache_empty(core->regcache))
        return;
    if (size == 0) {
        if (!core->driver.mem_get_address_range ||
            core->driver.mem_get_address_range(&base, &range.size, address) != CUDA_SUCCESS)
            return;
        range.base = base;
    }
    gs_regcache_flush(core->regcache, is_foreign, &range);
}

void gs_core_context_going(struct gs_core *core)
{
    struct gs_regcache_info everything = {.size = SIZE_MAX};

    gs_regcache_flush(core->regcache, is_foreign, &everything);
}

void gs_core_on_unmap(struct gs_core *core, void (*unmapping)(uint64_t address, size_t size))
{
    __atomic_store_n(&core->programs.unmapping, unmapping, __ATOMIC_RELEASE);
}

struct gs_regcache *gs_core_regcache(struct gs_core *core)
{
    return core->regcache;
}
