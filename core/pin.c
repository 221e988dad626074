/* Registrations of memory: whose it is, and how much of it is worth pinning (core/pin.h). */
#include "core/pin.h"

#include "core/context.h"

static uint64_t round_down(uint64_t address)
{
    return address & ~(GS_REG_PAGE - 1);
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

/* Whether a live block has part of the range. Called with the pool's lock held. */
static bool any_live(const struct gs_chunk *chunk, uint64_t base, uint64_t end)
{
    const struct gs_block *block = gs_chunk_find(chunk, base);

    for (; block && block->base < end; block = block->above)
        if (block->state == GS_BLOCK_LIVE)
            return true;
    return false;
}

/*
 * A chunk of 2 MiB is pinned as a whole: then one registration serves every block that will ever
 * lie in it. Of a larger one no more is pinned than was asked for, but for the rest of 64 KiB
 * pages. Chunks are multiples of these, so rounding does not leave them.
 */
static void widen(struct gs_reg_request *request, const struct gs_chunk *chunk)
{
    uint64_t end = request->base + request->size;

    if (!request->keep || request->exact)
        return;
    request->cover = round_down(request->base);
    request->cover_size = round_down(end + GS_REG_PAGE - 1) - request->cover;
    if (request->key.backend->lends && chunk->span.size == GS_PAGE_SIZE) {
        request->cover = chunk->span.base;
        request->cover_size = chunk->span.size;
    }
}

/* The registration is entered under the pool's lock: from then on the chunk stays. */
static gs_status begin_pool(struct gs_core *core, struct gs_reg_request *request,
                            struct gs_reg **ret_reg, bool *ret_hit)
{
    struct gs_chunk *chunk;
    gs_status status = gs_context_lock_chunk(core, request->base, &chunk);
    struct gs_pool *pool;
    uint64_t end = request->base + request->size;

    if (status != GS_OK)
        return GS_NOT_OURS;
    pool = chunk->pool;
    if (end > chunk->span.base + chunk->span.size)
        status = GS_INVALID;
    else if (!any_live(chunk, request->base, end))
        status = GS_NOT_LIVE;
    if (status == GS_OK) {
        widen(request, chunk);
        status = gs_regcache_begin(core->regcache, request, ret_reg, ret_hit);
    }
    gs_latch_release(&pool->lock);
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

/* Memory that can go without our knowing: registered as it was asked for, and found again only
 * while its buffer id is the same. */
static gs_status begin_foreign(struct gs_core *core, struct gs_reg_request *request,
                               struct gs_reg **ret_reg, bool *ret_hit)
{
    request->id = buffer_id(core, request->base);
    request->exact = true;
    if (request->id == 0)
        return GS_NOT_OURS;
    *ret_hit = true;
    *ret_reg = gs_regcache_hit(core->regcache, request);
    if (*ret_reg)
        return GS_OK;
    if (!is_device_memory(core, request->base))
        return GS_NOT_OURS;
    return gs_regcache_begin(core->regcache, request, ret_reg, ret_hit);
}

static bool is_pool(struct gs_core *core, uint64_t address)
{
    const struct gs_span *span = gs_map_find(&core->map, address);

    return span && span->kind == GS_SPAN_CHUNK;
}

gs_status gs_core_pin(struct gs_core *core, const struct gs_pin *pin, struct gs_reg **ret_reg)
{
    struct gs_reg_request request = request_of(pin);
    gs_status status = GS_NOT_OURS;
    bool hit;

    if (pin->size == 0 || pin->base + pin->size < pin->base)
        return GS_NOT_OURS;
    if (is_pool(core, pin->base)) {
        *ret_reg = gs_regcache_hit(core->regcache, &request);
        if (*ret_reg)
            return GS_OK;
        status = begin_pool(core, &request, ret_reg, &hit);
    }
    if (status == GS_NOT_OURS)
        status = begin_foreign(core, &request, ret_reg, &hit);
    if (status != GS_OK || hit)
        return status;
    return gs_regcache_complete(core->regcache, *ret_reg, pin->arg);
}

int gs_core_unpin(struct gs_core *core, struct gs_reg *reg)
{
    return gs_regcache_release(core->regcache, reg);
}

gs_status gs_core_repin(struct gs_core *core, struct gs_reg *reg, const struct gs_pin *pin)
{
    struct gs_reg_request request = request_of(pin);

    if (!is_pool(core, pin->base)) {
        request.id = buffer_id(core, pin->base);
        if (request.id == 0 || !is_device_memory(core, pin->base)) {
            gs_regcache_forget(core->regcache, reg);
            return GS_NOT_OURS;
        }
    }
    gs_regcache_change(core->regcache, reg, &request);
    return GS_OK;
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

void gs_core_on_unmap(struct gs_core *core, void (*unmapping)(uint64_t address, size_t size))
{
    __atomic_store_n(&core->shared.unmapping, unmapping, __ATOMIC_RELEASE);
}

struct gs_regcache *gs_core_regcache(struct gs_core *core)
{
    return core->regcache;
}
