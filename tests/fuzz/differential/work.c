/* Steps that submit work: fills, copies, kernels. */
#include "world.h"

/* A stream that may do the work on the block, -1 for the legacy one, and the block behind what was
 * done with it; false: nothing is to be done. */
static bool place(int block, int *ret_stream)
{
    int stream = one_in(3) ? -1 : any_stream();
    struct order order = order_of(stream);

    *ret_stream = stream;
    return order.context >= 0 && world.context[order.context].device == world.block[block].device &&
           world_order(block, order);
}

void step_fill(void)
{
    int slot = any_block(DEVICE_KINDS), stream;
    const struct block *block = &world.block[slot < 0 ? 0 : slot];
    unsigned value = pick(256), width;
    size_t offset, size;
    CUstream handle;
    CUdeviceptr at;

    if (slot < 0 || !place(slot, &stream))
        return;
    size = pick_part(block, 8 * KIB, &offset);
    at = block->ptr + offset;
    width = at % 4 == 0 && size % 4 == 0 ? 4 : at % 2 == 0 && size % 2 == 0 ? 2 : 1;
    handle = stream_handle(stream);
    say(" b%d+%zu %zu s%d", slot, offset, size, stream);
    if (stream < 0 && one_in(2)) {
        if (width == 4)
            CALL(cuMemsetD32, at, value, size / 4);
        else if (width == 2)
            CALL(cuMemsetD16, at, value, size / 2);
        else
            CALL(cuMemsetD8, at, value, size);
    } else if (width == 4) {
        CALL(cuMemsetD32Async, at, value, size / 4, handle);
    } else if (width == 2) {
        CALL(cuMemsetD16Async, at, value, size / 2, handle);
    } else {
        CALL(cuMemsetD8Async, at, value, size, handle);
    }
    world_used(slot, order_of(stream));
}

void step_copy(void)
{
    int to = any_block(ALL_KINDS), from = any_block(ALL_KINDS), stream;
    size_t to_offset, from_offset, size, other;
    CUdeviceptr dst, src;

    if (to < 0 || to == from || world.block[to].device != world.block[from].device)
        return;
    if (!place(to, &stream) || !world_order(from, order_of(stream)))
        return;
    size = pick_part(&world.block[to], 8 * KIB, &to_offset);
    other = pick_part(&world.block[from], size, &from_offset);
    size = other < size ? other : size;
    dst = world.block[to].ptr + to_offset;
    src = world.block[from].ptr + from_offset;
    say(" b%d+%zu b%d+%zu %zu s%d", to, to_offset, from, from_offset, size, stream);
    switch (pick(4)) {
    case 0:
        CALL(cuMemcpyAsync, dst, src, size, stream_handle(stream));
        break;
    case 1:
        if (stream < 0)
            CALL(cuMemcpy, dst, src, size);
        else
            CALL(cuMemcpyAsync, dst, src, size, stream_handle(stream));
        break;
    case 2:
        CALL(cuMemcpyDtoDAsync, dst, src, size, stream_handle(stream));
        break;
    default:
        if (stream < 0)
            CALL(cuMemcpyDtoD, dst, src, size);
        else
            CALL(cuMemcpyDtoDAsync, dst, src, size, stream_handle(stream));
    }
    world_used(to, order_of(stream));
    world_used(from, order_of(stream));
}

/* Memory of the program's own, which is read or written by the time the call returns. */
void step_host_copy(void)
{
    static unsigned char bytes[8 * KIB];
    int slot = any_block(DEVICE_KINDS), stream;
    const struct block *block = &world.block[slot < 0 ? 0 : slot];
    size_t offset, size;

    if (slot < 0 || !place(slot, &stream))
        return;
    size = pick_part(block, sizeof bytes, &offset);
    say(" b%d+%zu %zu s%d", slot, offset, size, stream);
    if (one_in(2)) {
        for (size_t i = 0; i < size; i++)
            bytes[i] = (unsigned char)(i * 7 + size);
        if (stream < 0)
            CALL(cuMemcpyHtoD, block->ptr + offset, bytes, size);
        else
            CALL(cuMemcpyHtoDAsync, block->ptr + offset, bytes, size, stream_handle(stream));
        world_used(slot, order_of(stream));
        world_settle(slot); /* the bytes are the next step's */
        return;
    }
    if (stream < 0)
        CALL(cuMemcpyDtoH, bytes, block->ptr + offset, size);
    else
        CALL(cuMemcpyDtoHAsync, bytes, block->ptr + offset, size, stream_handle(stream));
    world_used(slot, order_of(stream));
    if (world_settle(slot))
        say_bytes(bytes, size);
}

void step_launch(void)
{
    const unsigned kinds = 1u << PLAIN | 1u << ASYNC | 1u << POOLED | 1u << VMM;
    int slot = any_block(kinds), other = any_block(kinds), stream, context;
    const struct block *block = &world.block[slot < 0 ? 0 : slot];
    size_t offset, from_offset, size;
    unsigned value = pick(1000);
    CUdeviceptr at, from;
    uint64_t count;

    if (slot < 0 || !place(slot, &stream))
        return;
    context = order_of(stream).context;
    size = pick_part(block, 8 * KIB, &offset) / 4;
    offset &= ~(size_t)3;
    if (!size || block->ptr % 4)
        return;
    at = block->ptr + offset;
    count = size;
    say(" b%d+%zu %zu s%d", slot, offset, size, stream);
    if (one_in(2) || other == slot || world.block[other].device != block->device) {
        launch(0, context, stream_handle(stream), (void *[]){&at, &value, &count});
    } else if (world_order(other, order_of(stream))) {
        count = pick_part(&world.block[other], size * 4, &from_offset) / 4;
        from = world.block[other].ptr + (from_offset & ~(size_t)3);
        say(" b%d+%zu %zu", other, from_offset, (size_t)count);
        if (from % 4 == 0)
            launch(1, context, stream_handle(stream), (void *[]){&at, &from, &count});
        world_used(other, order_of(stream));
    }
    world_used(slot, order_of(stream));
}

void step_read(void)
{
    int slot = any_block(DEVICE_KINDS);
    const struct block *block = &world.block[slot < 0 ? 0 : slot];
    static unsigned char bytes[64 * KIB];
    size_t head = block->kind == PITCH ? block->width : block->size;

    if (slot < 0 || !world_settle(slot))
        return;
    head = head < 32 * KIB ? head : 32 * KIB;
    say(" b%d %s", slot, kind_names[block->kind]);
    if (is_far(block)) {
        LIMIT(LIMIT_FAR, cuMemcpyDtoH, bytes, block->ptr, head);
        return;
    }
    if (CALL(cuMemcpyDtoH, bytes, block->ptr, head) == CUDA_SUCCESS)
        say_bytes(bytes, head);
    if (block->kind != PITCH && block->size >= 64 * KIB &&
        CALL(cuMemcpyDtoH, bytes, block->ptr + block->size - head, head) == CUDA_SUCCESS)
        say_bytes(bytes, head);
}

/* Calls that go past a block's end, by a little. */
void step_past_end(void)
{
    int slot = any_block(1u << PLAIN | 1u << PITCH | 1u << ASYNC | 1u << POOLED);
    const struct block *block = &world.block[slot < 0 ? 0 : slot];
    size_t inside, beyond = 1 + pick(600);
    static unsigned char bytes[8 * KIB];
    CUdeviceptr at;

    if (slot < 0 || current_context() < 0 || !world_settle(slot))
        return;
    inside = 1 + random_next() % (block->size < 4 * KIB ? block->size : 4 * KIB);
    at = block->ptr + block->size - inside;
    say(" b%d-%zu+%zu", slot, inside, beyond);
    switch (pick(6)) {
    case 0:
        CALL(cuMemsetD8, at, 1, inside + beyond);
        break;
    case 1:
        CALL(cuMemcpyDtoH, bytes, at, inside + beyond);
        break;
    case 2:
        CALL(cuMemcpyHtoD, at, bytes, inside + beyond);
        break;
    case 3:
        CALL(cuMemsetD2D8, at, inside + beyond, 1, inside, 2);
        break;
    case 4:
        CALL(cuMemsetD32, at | 1, 1, 1);
        break;
    default:
        CALL(cuMemsetD8, block->ptr + block->size - inside, 1, 0);
    }
}
