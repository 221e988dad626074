/*
 * Memory in a stream's order for allocators that take functions (gpushim.h): the hooks' own, in a
 * context of the device that is named.
 *
 * While a stream captures memory is as cuMemAlloc's, since a graph keeps its address. What is
 * allocated then belongs to the graphs whose begin was told, until their end: a free gives it to
 * their next captures, and to nobody else. That memory is listed here, and so is what was used in
 * other streams than its own: whoever frees it is behind all of them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "core/base/list.h"
#include "shim/gpushim.h"
#include "shim/hooks/hook.h"
#include "shim/hooks/submit.h"
#include "shim/lookup/driver.h"
#include "shim/start.h"

#define LARGER 2 /* a graph's free block serves what is not smaller than a half of it */

struct graphs {
    struct graphs *next;
    int device;
    struct gpushim_graphs id;
    unsigned uses; /* begins without an end of theirs */
    bool open;
};

struct block {
    CUdeviceptr address;
    size_t size;
    struct graphs *graphs;    /* whose it is; NULL: nobody's */
    CUstream stream;          /* in whose order it was freed, by graphs */
    CUstream other;           /* that it was used in, too; */
    bool is_used, by_several; /* if in any, and if in more */
    bool is_free;             /* for the next capture of the graphs */
    struct block *next;       /* of those that go with their graphs */
    UT_hash_handle hh;
};

static struct gs_lock lock = GS_LOCK_INITIALIZER(GS_RANK_ORDERED); /* protects all below */
static struct block *blocks;                                       /* by address */
static unsigned count;                                             /* atomic: of blocks */
static struct graphs *all;
static struct graphs
    nobodys;         /* of captures at once, which cannot be told apart: theirs until the end */
static bool is_lost; /* a begin found no room: what any capture allocates stays its until the end */
static bool is_untold; /* atomic: a use found no room here, so that any block may have had one */
static gpushim_failure_fn *failure; /* atomic */

/* ---- The list -------------------------------------------------------------------------------- */

static struct block *find_locked(CUdeviceptr address)
{
    struct block *block;

    gs_lock_assert_held(&lock);
    HASH_FIND(hh, blocks, &address, sizeof address, block);
    return block;
}

/* NULL: there is no host memory. */
static struct block *add_locked(CUdeviceptr address)
{
    struct block *block = find_locked(address);

    if (block || !(block = calloc(1, sizeof *block)))
        return block;
    block->address = address;
    HASH_ADD(hh, blocks, address, sizeof block->address, block);
    if (!block->hh.tbl) {
        free(block);
        return NULL;
    }
    __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
    return block;
}

/* Out of the table; it is the caller's. */
static void take_out_locked(struct block *block)
{
    HASH_DEL(blocks, block);
    __atomic_sub_fetch(&count, 1, __ATOMIC_RELAXED);
}

static struct graphs *graphs_locked(int device, struct gpushim_graphs id)
{
    struct graphs *graphs;

    gs_lock_assert_held(&lock);
    LL_FOREACH(all, graphs)
        if (graphs->device == device && memcmp(&graphs->id, &id, sizeof id) == 0)
            break;
    return graphs;
}

/* Whose memory captures on the device allocate by now; NULL: that of nobody who was told of. */
static struct graphs *open_locked(int device)
{
    struct graphs *found = is_lost ? &nobodys : NULL;

    gs_lock_assert_held(&lock);
    for (struct graphs *graphs = all; graphs; graphs = graphs->next)
        if (graphs->open && graphs->device == device)
            found = found ? &nobodys : graphs;
    return found;
}

/* ---- The device ------------------------------------------------------------------------------ */

/* Whether the current context is of the device. */
static bool is_there(int device)
{
    static void *kept;
    CUresult (*get_device)(CUdevice *) = __atomic_load_n(&kept, __ATOMIC_RELAXED);
    CUdevice current;

    if (!get_device) {
        get_device = gs_driver_symbol("cuCtxGetDevice");
        __atomic_store_n(&kept, (void *)get_device, __ATOMIC_RELAXED);
    }
    return get_device && get_device(&current) == CUDA_SUCCESS && current == device;
}

/* A context of the device becomes current, if none is: its primary one, if that is active. By the
 * driver's own functions: nothing begins or ends. */
static CUresult enter(int device, bool *ret_pushed)
{
    CUresult (*get_state)(CUdevice, unsigned *, int *) =
        gs_driver_symbol("cuDevicePrimaryCtxGetState");
    CUresult (*push)(CUcontext) = gs_driver_symbol("cuCtxPushCurrent_v2");
    CUcontext context;
    CUresult result;
    unsigned flags;
    int active = 0;

    *ret_pushed = false;
    if (is_there(device))
        return CUDA_SUCCESS;
    if (!get_state || !push)
        return CUDA_ERROR_NOT_INITIALIZED;
    result = get_state(device, &flags, &active);
    if (result == CUDA_SUCCESS && !active)
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS)
        result = gs_real.cuDevicePrimaryCtxRetain(&context, device);
    if (result != CUDA_SUCCESS)
        return result;
    gs_real.cuDevicePrimaryCtxRelease_v2(device);
    result = push(context);
    *ret_pushed = result == CUDA_SUCCESS;
    return result;
}

static void leave(bool pushed)
{
    CUresult (*pop)(CUcontext *) = gs_driver_symbol("cuCtxPopCurrent_v2");
    CUcontext popped;

    if (pushed)
        pop(&popped);
}

/* ---- Allocating ------------------------------------------------------------------------------ */

/* The smallest that fits and was freed in the same stream. */
static struct block *reuse_locked(const struct graphs *graphs, size_t size, CUstream stream)
{
    struct block *best = NULL;

    gs_lock_assert_held(&lock);
    if (graphs == &nobodys)
        return NULL;
    for (struct block *block = blocks; block; block = block->hh.next)
        if (block->graphs == graphs && block->is_free && !block->is_used &&
            block->stream == stream && block->size >= size && block->size / LARGER <= size &&
            (!best || block->size < best->size))
            best = block;
    return best;
}

static CUresult allocate_captured(CUdeviceptr *ret_address, size_t size, int device,
                                  CUstream stream)
{
    struct graphs *graphs;
    struct block *block;
    CUresult result;

    gs_lock_take(&lock);
    graphs = open_locked(device);
    block = graphs ? reuse_locked(graphs, size, stream) : NULL;
    if (block) {
        block->is_free = false;
        *ret_address = block->address;
    }
    gs_lock_release(&lock);
    if (block)
        return CUDA_SUCCESS;
    result = cuMemAlloc_v2(ret_address, size);
    if (result != CUDA_SUCCESS)
        return result;
    gs_lock_take(&lock);
    graphs = open_locked(device);
    block = graphs ? add_locked(*ret_address) : NULL;
    if (block)
        block->graphs = graphs, block->size = size;
    gs_lock_release(&lock);
    if (block || !graphs)
        return CUDA_SUCCESS;
    cuMemFree_v2(*ret_address);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate(CUdeviceptr *ret_address, size_t size, int device, CUstream stream)
{
    bool pushed;
    CUresult result;
    bool is_captured;

    gs_state_enter();
    GS_KEEP_CALLER;
    result = enter(device, &pushed);
    if (result != CUDA_SUCCESS)
        return result;
    is_captured = gs_state_enter() && gs_captures(stream);
    result = is_captured ? allocate_captured(ret_address, size, device, stream)
                         : cuMemAllocAsync(ret_address, size, stream);
    leave(pushed);
    return result;
}

/* Nothing here is left to clean up by who does not return. */
static void fail(size_t size, int device, CUresult result)
{
    gpushim_failure_fn *call = __atomic_load_n(&failure, __ATOMIC_ACQUIRE);
    char text[128];

    if (!call)
        return;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        snprintf(text, sizeof text, "CUDA out of memory. Tried to allocate %zu bytes on GPU %d.",
                 size, device);
    else
        snprintf(text, sizeof text, "CUDA error %d: %zu bytes on GPU %d are not allocated.",
                 (int)result, size, device);
    call("gpushim_allocate", "libgpushim", 0, text);
}

GS_HOOK void *gpushim_allocate(size_t size, int device, void *stream)
{
    CUdeviceptr address = 0;
    CUresult result;

    if (size == 0)
        return NULL;
    result = allocate(&address, size, device, stream);
    if (result == CUDA_SUCCESS)
        return (void *)(uintptr_t)address;
    fail(size, device, result);
    return NULL;
}

GS_HOOK int gpushim_on_failure(gpushim_failure_fn *call)
{
    __atomic_store_n(&failure, call, __ATOMIC_RELEASE);
    return 0;
}

/* ---- Freeing --------------------------------------------------------------------------------- */

/* How a block is freed. */
enum end { IN_ORDER, BEHIND_ALL, KEPT };

/* What is listed of it ends, but for the memory of graphs. */
static enum end end_of(CUdeviceptr address, CUstream stream)
{
    enum end end = IN_ORDER;
    struct block *block;

    if (__atomic_load_n(&is_untold, __ATOMIC_RELAXED))
        end = BEHIND_ALL;
    if (__atomic_load_n(&count, __ATOMIC_RELAXED) == 0)
        return end;
    gs_lock_take(&lock);
    block = find_locked(address);
    if (block && block->graphs) {
        block->is_free = true;
        block->stream = stream;
        end = KEPT;
    } else if (block) {
        if (block->by_several || block->other != stream)
            end = BEHIND_ALL;
        take_out_locked(block);
        free(block);
    }
    gs_lock_release(&lock);
    return end;
}

GS_HOOK void gpushim_free(void *memory, size_t size, int device, void *stream)
{
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)memory;
    bool pushed;
    bool is_entered = gs_state_enter();
    enum end end;

    if (!memory)
        return;
    GS_KEEP_CALLER;
    end = is_entered ? end_of(address, stream) : IN_ORDER;
    if (end == KEPT || enter(device, &pushed) != CUDA_SUCCESS)
        return;
    /* In no order where the stream captures: the work that is behind the free is none of the
     * graph's. */
    if (end == IN_ORDER && is_entered && gs_captures(stream) && gs_ours(address))
        end = BEHIND_ALL;
    if (end == IN_ORDER)
        cuMemFreeAsync(address, stream);
    else
        cuMemFree_v2(address);
    leave(pushed);
}

GS_HOOK void gpushim_used(void *memory, void *stream)
{
    struct block *block;

    if (!memory || !gs_state_enter())
        return;
    GS_KEEP_CALLER;
    gs_lock_take(&lock);
    block = add_locked((CUdeviceptr)(uintptr_t)memory);
    if (block) {
        block->by_several |= block->is_used && block->other != (CUstream)stream;
        block->is_used = true;
        block->other = stream;
    } else {
        __atomic_store_n(&is_untold, true, __ATOMIC_RELAXED);
    }
    gs_lock_release(&lock);
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

GS_HOOK void gpushim_graphs_begin(int device, struct gpushim_graphs id, const void *unused)
{
    struct graphs *graphs;

    if (!gs_state_enter())
        return;
    GS_KEEP_CALLER;
    gs_lock_take(&lock);
    graphs = graphs_locked(device, id);
    if (!graphs && (graphs = calloc(1, sizeof *graphs))) {
        *graphs = (struct graphs){.device = device, .id = id};
        LL_PREPEND(all, graphs);
    }
    if (graphs) {
        graphs->uses++;
        graphs->open = true;
    } else {
        is_lost = true;
    }
    gs_lock_release(&lock);
}

GS_HOOK void gpushim_graphs_end(int device, struct gpushim_graphs id)
{
    struct graphs *graphs;

    if (!gs_state_enter())
        return;
    GS_KEEP_CALLER;
    gs_lock_take(&lock);
    graphs = graphs_locked(device, id);
    if (graphs)
        graphs->open = false;
    gs_lock_release(&lock);
}

/* Its free blocks, which are listed no more. What the program still has is nobody's from now on,
 * and of several streams: a graph may be launched in any. */
static struct block *take_back_locked(const struct graphs *graphs)
{
    struct block *taken = NULL, *block, *next;

    gs_lock_assert_held(&lock);
    HASH_ITER(hh, blocks, block, next) {
        if (block->graphs == graphs && !block->is_free) {
            block->graphs = NULL;
            block->is_used = block->by_several = true;
        } else if (block->graphs == graphs) {
            take_out_locked(block);
            LL_PREPEND(taken, block);
        }
    }
    return taken;
}

GS_HOOK void gpushim_graphs_gone(int device, struct gpushim_graphs id)
{
    struct graphs *graphs;
    struct block *taken = NULL, *block, *next;
    bool pushed, is_entered;

    if (!gs_state_enter())
        return;
    GS_KEEP_CALLER;
    gs_lock_take(&lock);
    graphs = graphs_locked(device, id);
    if (graphs && --graphs->uses == 0) {
        LL_DELETE(all, graphs);
        taken = take_back_locked(graphs);
        free(graphs);
    }
    gs_lock_release(&lock);
    if (!taken)
        return;
    is_entered = enter(device, &pushed) == CUDA_SUCCESS; /* else its memory went with its context */
    LL_FOREACH_SAFE(taken, block, next) {
        if (is_entered)
            cuMemFree_v2(block->address);
        free(block);
    }
    leave(is_entered && pushed);
}
