/* Host memory: that of a simulated process goes with it, and may run out (the linker's --wrap). */
#include "simulation.h"

#include <stdlib.h>

#define MAGIC UINT64_C(0x5ca1ab1e0ddba11)

struct heap_block { /* right before what its owner has */
    struct heap_block *next, *previous;
    struct process *owner;
    void *start; /* of all of it */
    uint64_t magic, unused;
};

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void __wrap_free(void *memory);

void *sim_alloc(size_t size)
{
    void *memory = __real_calloc(1, size);

    if (!memory)
        abort();
    return memory;
}

void sim_free(void *memory)
{
    __real_free(memory);
}

static bool runs_out(struct process *process)
{
    return process->allocations_left > 0 && --process->allocations_left == 0;
}

/* `start` has room for the record, and what follows that is as strictly aligned as asked for. */
static void *heap_enter(struct process *process, void *start, size_t before)
{
    struct heap_block *block = (struct heap_block *)((char *)start + before) - 1;

    *block = (struct heap_block){.next = process->heap,
                                 .owner = process,
                                 .start = start,
                                 .magic = MAGIC};
    if (block->next)
        block->next->previous = block;
    process->heap = block;
    process->heap_count++;
    return block + 1;
}

static void *heap_new(struct process *process, size_t size)
{
    return runs_out(process) ? NULL
                             : heap_enter(process, sim_alloc(sizeof(struct heap_block) + size),
                                          sizeof(struct heap_block));
}

static struct heap_block *block_of(void *memory)
{
    struct heap_block *block = (struct heap_block *)memory - 1;

    return block;
}

static void heap_drop(struct heap_block *block)
{
    struct process *process = block->owner;

    if (block->magic != MAGIC)
        sim_fail("host memory: process %u frees what it has not, or twice",
                 process_here() ? process_here()->index : 0);
    *(block->previous ? &block->previous->next : &process->heap) = block->next;
    if (block->next)
        block->next->previous = block->previous;
    block->magic = 0;
    process->heap_count--;
    __real_free(block->start);
}

void heap_free_all(struct process *process)
{
    while (process->heap)
        heap_drop(process->heap);
}

void *__wrap_malloc(size_t size)
{
    return process_here() ? heap_new(process_here(), size) : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return process_here() ? heap_new(process_here(), count * size) : __real_calloc(count, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    struct process *process = process_here();
    size_t before = alignment > sizeof(struct heap_block) ? alignment : sizeof(struct heap_block);

    if (!process)
        return __real_aligned_alloc(alignment, size);
    return runs_out(process)
               ? NULL
               : heap_enter(process, __real_aligned_alloc(alignment, before + size), before);
}

void *__wrap_realloc(void *memory, size_t size)
{
    struct heap_block *block, *grown;

    if (!process_here())
        return __real_realloc(memory, size);
    if (!memory)
        return heap_new(process_here(), size);
    if (runs_out(process_here()))
        return NULL;
    block = block_of(memory);
    grown = __real_realloc(block, sizeof *block + size);
    grown->start = grown;
    *(grown->previous ? &grown->previous->next : &grown->owner->heap) = grown;
    if (grown->next)
        grown->next->previous = grown;
    return grown + 1;
}

void __wrap_free(void *memory)
{
    if (!memory)
        return;
    if (process_here())
        heap_drop(block_of(memory));
    else
        __real_free(memory);
}
