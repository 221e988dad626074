/* Stamped blocks of the race programs (stamps.h). */
#include "stamps.h"
#include "tests/system.h"

unsigned stamps_failures;

void stamps_fail(const char *what, unsigned a, unsigned b)
{
    if (__atomic_fetch_add(&stamps_failures, 1, __ATOMIC_SEQ_CST) < 10)
        fprintf(stderr, "%s: %u, %u\n", what, a, b);
}

static uint32_t *word_at(CUdeviceptr address)
{
    return (uint32_t *)(uintptr_t)address;
}

void stamps_publish(struct stamps_slot *slot, const unsigned char ipc_handle[GS_IPC_HANDLE_SIZE],
                    uint32_t stamp)
{
    gs_lock_take(&slot->lock);
    memcpy(slot->ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    slot->stamp = stamp;
    gs_lock_release(&slot->lock);
}

bool stamps_live(struct side *side, const struct side_chunk *chunk, size_t offset, uint32_t stamp,
                 struct stamps_slot *slot, unsigned published_us, uint64_t back_ns)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    uint64_t freed;

    __atomic_store_n(word_at(chunk->base + offset), stamp, __ATOMIC_SEQ_CST);
    if (side_export(side, chunk, offset, STAMPS_BLOCK, &export) != GS_OK)
        abort();
    gs_export_handle(export, ipc_handle);
    stamps_publish(slot, ipc_handle, stamp);
    usleep(published_us);
    freed = side_now();
    gs_share_freed(side->share, export, freed);
    while (!gs_share_withdraw(side->share, export)) {
        if (side_now() - freed > back_ns) {
            stamps_fail("a block is never given back", stamp, 0);
            return false;
        }
        usleep(50);
    }
    return true;
}

/* False: nothing is published there yet. */
static bool read_slot(struct stamps_slot *slot, unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE],
                      uint32_t *ret_stamp)
{
    gs_lock_take(&slot->lock);
    memcpy(ret_ipc_handle, slot->ipc_handle, GS_IPC_HANDLE_SIZE);
    *ret_stamp = slot->stamp;
    gs_lock_release(&slot->lock);
    return gs_ipc_handle_is_ours(ret_ipc_handle);
}

bool stamps_open(struct side *side, struct stamps_slot *slot, CUcontext context, unsigned late_us,
                 unsigned *refused, CUdeviceptr *ret_address, uint32_t *ret_stamp)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    gs_status status;

    if (!read_slot(slot, ipc_handle, ret_stamp))
        return false;
    if (late_us)
        usleep(late_us);
    status = gs_share_open(side->share, ipc_handle, context, 0, ret_address);
    if (status == GS_STALE || (status == GS_UNREACHABLE && slot->may_be_gone))
        __atomic_add_fetch(refused, 1, __ATOMIC_RELAXED);
    else if (status != GS_OK)
        stamps_fail("open", (unsigned)-status, *ret_stamp);
    return status == GS_OK;
}

void stamps_look(CUdeviceptr address, uint32_t expected)
{
    for (int i = 0; i < 3; i++) {
        uint32_t seen = __atomic_load_n(word_at(address), __ATOMIC_SEQ_CST);

        if (seen != expected)
            stamps_fail("a foreign stamp was seen", seen, expected);
        usleep(20);
    }
}
