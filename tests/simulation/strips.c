/* Strips: memory that simulated programs map themselves, share and unmap while others have it
 * (core/share/strip.c); and blocks of the library's that lie across pieces. One world of ten has
 * the first, another one the second, and the others are what they were before there were any: those
 * in which something was found (meson.build, tests/mutants) stay as they are. */
#include "simulation.h"

#include <stdlib.h>
#include <string.h>

#include "core/gpu/driver.h"
#include "core/gpu/map.h"
#include "core/share/internal.h"

static bool has_strips(void)
{
    return world.seed % 10 == 4 && !world.cluster;
}

uint64_t strip_base(const struct block *block, uint64_t address)
{
    return address - block->piece * GS_PAGE_SIZE - block->slot * (GS_PAGE_SIZE / SLOTS);
}

static size_t size_of(const struct block *block)
{
    return block->piece_count * GS_PAGE_SIZE;
}

static struct block *live_of(const struct process *process)
{
    struct block *block = world.blocks;

    while (block && (block->image != process->image || !block->piece_count || block->crosses ||
                     block->state == BLOCK_GONE))
        block = block->next;
    return block;
}

/* Nothing of it is mapped any more. */
static void gone(struct block *block)
{
    block->export = NULL;
    block->state = BLOCK_GONE;
    block->gone_ns = world.now_ns;
    for (unsigned i = 0; i < block->piece_count && block->pieces[i]; i++) {
        block->pieces[i]->released = true;
        block->pieces[i]->released_ns = world.now_ns;
    }
}

/* ---- Mapping and sharing --------------------------------------------------------------------- */

/* One piece behind the other; false: the driver has failed, and nothing is mapped. */
static bool map_pieces(struct block *block, CUdeviceptr base)
{
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at = base;
    bool good = true;

    for (unsigned i = 0; i < block->piece_count && good; i++) {
        uint64_t handle;

        block->pieces[i] = phys_new(&handle);
        good =
            block->pieces[i] && sim_driver.mem_map(at, GS_PAGE_SIZE, 0, handle, 0) == CUDA_SUCCESS;
        if (block->pieces[i])
            driver_release(handle);
        at += good ? GS_PAGE_SIZE : 0;
    }
    if (good && sim_driver.mem_set_access(base, size_of(block), &access, 1) == CUDA_SUCCESS)
        return true;
    if (at > base)
        sim_driver.mem_unmap(base, at - base);
    return false;
}

gs_status strip_export(struct process *process, struct block *block)
{
    struct gs_share_strip *strip =
        calloc(1, sizeof *strip + block->piece_count * sizeof *strip->sizes);
    struct gs_share_source source = {.chunk_id = GS_STRIP_IDS | block->id,
                                     .chunk_size = size_of(block),
                                     .offset = block->address - strip_base(block, block->address),
                                     .size = block->size,
                                     .address = block->crosses ? block->address
                                                               : strip_base(block, block->address),
                                     .alone = true,
                                     .strip = strip};
    gs_status status;

    if (!strip)
        return GS_NO_HOST_MEMORY;
    strip->references = 1;
    strip->pieces = block->piece_count;
    strip->id = source.chunk_id;
    strip->is_block = block->crosses;
    for (unsigned i = 0; i < block->piece_count; i++)
        strip->sizes[i] = GS_PAGE_SIZE;
    status = gs_share_export(process->share, &source, &block->export);
    gs_share_strip_unref(strip);
    return status;
}

static struct block *strip_new(struct process *process, unsigned arg)
{
    struct block *block = sim_alloc(sizeof *block);

    block->id = ++world.next_number;
    block->maker = process;
    block->image = process->image;
    block->piece_count = 1 + arg / 3 % STRIP_MAX;
    block->piece = arg / 9 % block->piece_count;
    block->size = size_of(block);
    block->next = world.blocks;
    world.blocks = block;
    return block;
}

/* In addresses that are reserved, and given back where it cannot be had. */
static void put(struct process *process, struct block *block, CUdeviceptr base)
{
    gs_status status;

    if (!map_pieces(block, base)) {
        sim_driver.mem_address_free(base, size_of(block));
        gone(block);
        return;
    }
    block->phys = block->pieces[block->piece];
    block->address = base + block->piece * GS_PAGE_SIZE;
    for (unsigned i = 0; i < block->piece_count; i++)
        block->pieces[i]->slots[0] = block;
    status = strip_export(process, block);
    if (status != GS_OK) {
        if (world.settled &&
            !world.options.limbo_limit) /* what others still have of one counts there */
            sim_fail("liveness: process %u cannot share a strip, status %d", process->index,
                     status);
        sim_driver.mem_unmap(base, size_of(block));
        sim_driver.mem_address_free(base, size_of(block));
        gone(block);
        return;
    }
    gs_export_handle(block->export, block->ipc_handle);
    block->wire_id = ((const struct gs_ipc_handle *)(const void *)block->ipc_handle)->block_id;
    block->state = BLOCK_LIVE;
    sim_trace("    block %llu (%llu) is a strip of %u pieces", (unsigned long long)block->id,
              (unsigned long long)block->wire_id, block->piece_count);
    handle_enter(block);
}

bool strip_share(struct process *process, unsigned arg)
{
    struct block *block;
    CUdeviceptr base;

    if (!has_strips() || arg % 3 != 0 || live_of(process))
        return false;
    block = strip_new(process,
                      arg); /* its place is taken: another thread of the process's makes none */
    if (sim_driver.mem_address_reserve(&base, size_of(block), 0, 0, 0) == CUDA_SUCCESS)
        put(process, block, base);
    else
        gone(block);
    return true;
}

/* ---- Unmapping ------------------------------------------------------------------------------- */

void strip_unmap(struct process *process, struct block *block)
{
    const CUdeviceptr base = strip_base(block, block->address);

    if (block->state != BLOCK_LIVE || block->naming > 0)
        return;
    block->state = BLOCK_MADE; /* one thread is at it */
    gs_share_freed(process->share, block->export, gs_now_ns());
    sim_point();
    sim_driver.mem_unmap(base, size_of(block));
    gone(block);
    sim_trace("    strip %llu has gone", (unsigned long long)block->id);
    if (block->id % 2 || world.calm) {
        sim_driver.mem_address_free(base, size_of(block));
        return;
    }
    /* Others are mapped in its place, as many. */
    block = strip_new(process, (block->piece_count - 1) * 3 + block->piece * 9);
    put(process, block, base);
}

void strips_end(struct process *process)
{
    struct block *block;

    while ((block = live_of(process))) {
        const CUdeviceptr base = strip_base(block, block->address);

        sim_driver.mem_unmap(base, size_of(block));
        sim_driver.mem_address_free(base, size_of(block));
        gone(block);
    }
}

/* ---- Blocks of the library's, across pieces -------------------------------------------------- */

static bool has_across(void)
{
    return world.seed % 10 == 7 && !world.cluster && !world.options.isolate;
}

struct block *across_new(struct process *process, unsigned arg)
{
    struct block *block;
    CUdeviceptr base;

    if (!has_across() || arg % 3 != 0)
        return NULL;
    if (world.settled) /* a broker is to have all of it */
        arg = 3 * (STRIP_MAX - 1);
    block = strip_new(process, arg);
    block->piece = 0;
    block->crosses = true;
    block->slot = arg / 9 % SLOTS;
    if (sim_driver.mem_address_reserve(&base, size_of(block), 0, 0, 0) != CUDA_SUCCESS) {
        gone(block);
        return NULL;
    }
    if (!map_pieces(block, base)) {
        sim_driver.mem_address_free(base, size_of(block));
        gone(block);
        return NULL;
    }
    block->mapped = true;
    block->phys = block->pieces[0];
    block->address = base + block->slot * (GS_PAGE_SIZE / SLOTS);
    block->size = base + size_of(block) - block->address - arg % 4096;
    for (unsigned i = 0; i < block->piece_count; i++)
        block->pieces[i]->slots[i ? 0 : block->slot] = block;
    return block;
}

void across_trim(struct process *process, bool at_the_end)
{
    for (struct block *block = world.blocks; block; block = block->next) {
        CUdeviceptr base;

        if (block->image != process->image || !block->crosses || !block->mapped ||
            (block->state != BLOCK_GONE && !at_the_end))
            continue;
        block->mapped = false; /* another thread leaves it alone */
        base = strip_base(block, block->address);
        if (!at_the_end) { /* then others keep what they have open */
            for (unsigned i = 0; i < block->piece_count; i++)
                block->pieces[i]->slots[i ? 0 : block->slot] = NULL;
            gone(block);
        }
        sim_driver.mem_unmap(base, size_of(block));
        sim_driver.mem_address_free(base, size_of(block));
    }
}
