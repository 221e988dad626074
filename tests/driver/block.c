/*
 * The table of everything allocated, by address: what a call is told about a pointer comes from
 * here, interior pointers included.
 */
#include "internal.h"

struct sd_ranges sd_blocks;

struct sd_block *sd_block_new(enum sd_block_kind kind, uint64_t base, size_t size,
                              struct sd_segment *segment, struct sd_context *context, int device)
{
    struct sd_block *block = calloc(1, sizeof *block);

    if (!block || !sd_ranges_add(&sd_blocks, base, size, block)) {
        free(block);
        return NULL;
    }
    block->kind = kind;
    block->base = base;
    block->size = size;
    block->segment = segment;
    block->context = context;
    block->device = device;
    block->sync_memops = -1;
    block->id = sd_next_id();
    return block;
}

void sd_block_hide(struct sd_block *block)
{
    if (!block->hidden)
        sd_ranges_remove(&sd_blocks, block->base);
    block->hidden = true;
}

void sd_block_delete(struct sd_block *block)
{
    sd_block_hide(block);
    free(block);
}

struct sd_block *sd_block_find(uint64_t address)
{
    struct sd_block *block = sd_ranges_find(&sd_blocks, address);

    return block && !block->freeing ? block : NULL;
}

bool sd_block_is_device(const struct sd_block *block)
{
    return block && block->kind != SD_BLOCK_HOST && block->kind != SD_BLOCK_MANAGED;
}

/* A range may run on through neighbouring mappings, but never from one allocation into the next. */
bool sd_block_range_ok(const struct sd_context *context, uint64_t base, size_t size,
                       enum sd_access access, bool other_devices)
{
    uint64_t end = base + size;

    if (end < base)
        return false;
    for (uint64_t at = base; at < end;) {
        const struct sd_block *block = sd_block_find(at);
        if (!block || (at != base && block->kind != SD_BLOCK_VMM))
            return false;
        if ((sd_segment_access(block->segment, context) & access) != access &&
            !(other_devices && !block->segment->listed && !block->segment->read_only))
            return false;
        if (block->kind != SD_BLOCK_VMM)
            return end <= block->base + block->size;
        at = block->base + block->size;
    }
    return true;
}

static void piece_unlink(struct sd_piece **list, struct sd_piece *piece)
{
    while (*list != piece)
        list = &(*list)->next;
    *list = piece->next;
}

static void release_small(struct sd_block *block)
{
    struct sd_piece *piece = block->piece;

    sd_piece_give(piece, block->base, NULL, NULL);
    if (!sd_piece_empty(piece))
        return;
    piece_unlink(&block->context->pieces, piece);
    sd_segment_delete(piece->segment);
    sd_piece_free(piece);
}

void sd_block_release(struct sd_block *block, struct sd_op *after, const struct sd_queue *queue)
{
    uint64_t base = block->base;
    size_t size = block->size;

    sd_block_hide(block);
    if (block->pool) {
        sd_pool_give(block->pool, block, after, queue);
    } else if (block->piece) {
        release_small(block);
    } else if (sd_block_is_device(block)) {
        sd_segment_delete(block->segment);
    } else {
        sd_segment_unmap(block->segment);
        if (!block->registered)
            munmap((void *)base, size);
    }
    free(block);
}

/* A block that a free is waiting to release stays for it. */
void sd_context_drop_blocks(struct sd_context *context)
{
    for (size_t i = sd_blocks.count; i-- > 0;) {
        struct sd_block *block = sd_blocks.at[i].value;
        if (block->context == context && !block->freeing && !block->leaving)
            sd_block_release(block, NULL, NULL);
    }
}
