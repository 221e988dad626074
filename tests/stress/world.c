/* Stamping and checking (stress.h): the CUDA calls that every step of the program is made of. */
#include "stress.h"

#include "../conformance/kernels.h"

#define LATE_NS      300000   /* a late kernel begins up to so much later */
#define VERY_LATE_NS 3000000  /* one in sixteen of them */
#define BEHIND_NS    20000000 /* of delays that one thread has submitted and not waited for, */
#define BEHIND       400      /* and kernels */
#define OWNERS       65536    /* of the last blocks: to say whose a tag was */

static const size_t common_sizes[] = {512, 4096, 24 << 10, 64 << 10, 64 << 10, 256 << 10, 2 << 20};
#define COMMON (sizeof common_sizes / sizeof *common_sizes)

static uint32_t tags; /* atomic: the last one given */

/* Written by the tag's thread, read by anyone for a message: atomic, and a guess. */
static struct owner {
    uint64_t address, words, freed_ns;
    uint32_t tag, thread;
} owners[OWNERS];

static const unsigned stream_flags[STREAMS] = {0,
                                               0,
                                               CU_STREAM_DEFAULT,
                                               CU_STREAM_NON_BLOCKING,
                                               CU_STREAM_NON_BLOCKING,
                                               CU_STREAM_NON_BLOCKING};

void world_open(struct world *world)
{
    CUmodule module;

    MUST(cuCtxGetCurrent(&world->context));
    MUST(cuModuleLoadData(&module, kernels_ptx));
    MUST(cuModuleGetFunction(&world->spin_fill, module, "spin_fill"));
    MUST(cuModuleGetFunction(&world->count_other, module, "count_other"));
    MUST(cuEventCreate(&world->order, CU_EVENT_DISABLE_TIMING));
    MUST(cuMemAllocHost((void **)&world->foreign, CHECKS * sizeof *world->foreign));
    MUST(cuMemAllocHost((void **)&world->page, STRESS_PAGE));
    memset(world->foreign, 0, CHECKS * sizeof *world->foreign);
    world->stream[0] = stress_below(&world->random, 2) ? NULL : CU_STREAM_LEGACY;
    world->stream[1] = CU_STREAM_PER_THREAD;
    world->streams = STREAMS;
    for (unsigned i = STREAM_OWN; i < STREAMS; i++)
        MUST(cuStreamCreate(&world->stream[i], stream_flags[i]));
}

void world_close(struct world *world)
{
    for (unsigned i = 0; i < STREAMS; i++)
        MUST(cuStreamSynchronize(world->stream[i]));
    world_look(world);
    for (unsigned i = STREAM_OWN; i < STREAMS; i++)
        MUST(cuStreamDestroy(world->stream[i]));
    MUST(cuEventDestroy(world->order));
    MUST(cuMemFreeHost(world->foreign));
    MUST(cuMemFreeHost(world->page));
}

void world_new_stream(struct world *world, unsigned i)
{
    CUstream old = world->stream[i];

    MUST(cuStreamDestroy(old));
    MUST(cuStreamCreate(&world->stream[i], stream_flags[i]));
}

void world_order(struct world *world, unsigned from, unsigned to)
{
    if (from == to)
        return;
    MUST(cuEventRecord(world->order, world->stream[from]));
    MUST(cuStreamWaitEvent(world->stream[to], world->order, 0));
}

/* ---- allocate and free ---- */

/* Most are small, and many of the same sizes; a few are as large as the rest together. */
static size_t random_size(uint64_t *random)
{
    uint32_t kind = stress_below(random, 200);

    if (kind < 100)
        return common_sizes[stress_below(random, COMMON)];
    if (kind < 160)
        return 4 + stress_below(random, 64 << 10);
    if (kind < 190)
        return 4 + stress_below(random, 1 << 20);
    if (kind < 199)
        return (1 << 20) + stress_below(random, 3 << 20);
    return (4 << 20) + stress_below(random, 28 << 20);
}

static void note_owner(const struct world *world, const struct block *block)
{
    struct owner *owner = &owners[block->tag % OWNERS];

    __atomic_store_n(&owner->address, block->address, __ATOMIC_RELAXED);
    __atomic_store_n(&owner->words, block->words, __ATOMIC_RELAXED);
    __atomic_store_n(&owner->freed_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&owner->thread, world->thread, __ATOMIC_RELAXED);
    __atomic_store_n(&owner->tag, block->tag, __ATOMIC_RELAXED);
}

bool world_refused(struct world *world, CUresult result)
{
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        MUST(result);
    world->refused += result != CUDA_SUCCESS;
    return result != CUDA_SUCCESS;
}

bool world_allocate(struct world *world, struct block *ret_block)
{
    struct block block = {.home = stress_below(&world->random, world->streams)};
    size_t size = random_size(&world->random);

    block.ordered = !world->plain && stress_below(&world->random, 2);
    if (block.ordered
            ? REFUSED(world, cuMemAllocAsync(&block.address, size, world->stream[block.home]))
            : REFUSED(world, cuMemAlloc(&block.address, size)))
        return false;
    block.words = size / 4;
    block.tag = __atomic_add_fetch(&tags, 1, __ATOMIC_RELAXED);
    note_owner(world, &block);
    world->blocks++;
    *ret_block = block;
    return true;
}

void world_free(struct world *world, struct block *block)
{
    CUstream home = world->stream[block->home];
    uint32_t how = stress_below(&world->random, 8);
    unsigned other = stress_below(&world->random, world->streams);

    __atomic_store_n(&owners[block->tag % OWNERS].freed_ns, now_ns(), __ATOMIC_RELAXED);
    if (!block->ordered && how > 0) {
        MUST(cuMemFree(block->address)); /* behind whatever still runs */
    } else if (block->ordered && how > 2) {
        MUST(cuMemFreeAsync(block->address, home));
    } else if (block->ordered && how > 0) {
        world_order(world, block->home, other);
        MUST(cuMemFreeAsync(block->address, world->stream[other]));
    } else { /* each with the other's call, which promises no order */
        MUST(cuStreamSynchronize(home));
        MUST(block->ordered ? cuMemFree(block->address) : cuMemFreeAsync(block->address, home));
    }
    block->words = 0;
}

/* ---- stamp and check ---- */

static void launch(struct world *world, CUfunction function, CUstream stream, uint64_t words,
                   void **args)
{
    unsigned grid = words >= 262144 ? 1024 : (unsigned)((words + 255) / 256);

    world->behind++;
    MUST(cuLaunchKernel(function, grid, 1, 1, 256, 1, 1, 0, stream, args, NULL));
}

static uint64_t lateness(struct world *world)
{
    bool very = stress_below(&world->random, 16) == 0;
    uint64_t ns = stress_below(&world->random, very ? VERY_LATE_NS : LATE_NS);

    world->behind_ns += ns;
    return ns;
}

void world_keep_up(struct world *world)
{
    if (world->behind_ns < BEHIND_NS && world->behind < BEHIND)
        return;
    for (unsigned i = 0; i < STREAMS; i++)
        MUST(cuStreamSynchronize(world->stream[i]));
    world->behind_ns = world->behind = 0;
    world_look(world);
}

void world_stamp(struct world *world, const struct block *block, CUstream stream, bool late)
{
    uint64_t ns = late ? lateness(world) : 0;
    CUdeviceptr address = block->address;
    uint64_t words = block->words;
    uint32_t tag = block->tag;

    if (!late && stress_below(&world->random, 2))
        MUST(cuMemsetD32Async(address, tag, words, stream));
    else
        launch(world, world->spin_fill, stream, words, (void *[]){&address, &tag, &words, &ns});
}

/* The delay is a kernel of its own, which stamps nothing. */
void world_check(struct world *world, const struct block *block, CUstream stream, bool late)
{
    unsigned i = world->next_check++ % CHECKS;
    CUdeviceptr address = block->address, out = (CUdeviceptr)(uintptr_t)&world->foreign[i];
    uint64_t words = block->words, none = 0, ns = late ? lateness(world) : 0;
    uint32_t tag = block->tag;

    world->checked[i] = *block;
    if (late)
        launch(world, world->spin_fill, stream, 1, (void *[]){&address, &tag, &none, &ns});
    launch(world, world->count_other, stream, words, (void *[]){&address, &tag, &words, &out});
    world->checks++;
}

/* ---- what was found ---- */

static const char *whose(uint32_t tag, char *text, size_t size)
{
    const struct owner *owner = &owners[tag % OWNERS];
    uint64_t freed = __atomic_load_n(&owner->freed_ns, __ATOMIC_RELAXED);
    int length;

    if (tag == 0 || __atomic_load_n(&owner->tag, __ATOMIC_RELAXED) != tag)
        return "no block's tag";
    length = snprintf(text, size, "the tag of thread %u's block at 0x%llx of %llu words, ",
                      __atomic_load_n(&owner->thread, __ATOMIC_RELAXED),
                      (unsigned long long)__atomic_load_n(&owner->address, __ATOMIC_RELAXED),
                      (unsigned long long)__atomic_load_n(&owner->words, __ATOMIC_RELAXED));
    if (freed)
        snprintf(text + length, size - (size_t)length, "freed %llu us ago",
                 (unsigned long long)(now_ns() - freed) / 1000);
    else
        snprintf(text + length, size - (size_t)length, "which is live");
    return text;
}

/* `words` words of the block from `first` on are in the page. */
static void compare(const struct world *world, const struct block *block, uint64_t first,
                    uint64_t words)
{
    char text[200];

    for (uint64_t i = 0; i < words; i++)
        if (world->page[i] != block->tag)
            stress_wrong("word %llu of thread %u's block at 0x%llx of %llu words, tag %u, is "
                         "0x%x: %s",
                         (unsigned long long)(first + i), world->thread,
                         (unsigned long long)block->address, (unsigned long long)block->words,
                         block->tag, world->page[i], whose(world->page[i], text, sizeof text));
}

void world_read(struct world *world, const struct block *block)
{
    uint64_t words = block->words, first = 0;
    CUstream home = world->stream[block->home];

    if (words > STRESS_PAGE / 4) {
        words = STRESS_PAGE / 4;
        first = stress_below(&world->random, (uint32_t)(block->words - words + 1));
    }
    MUST(cuMemcpyDtoHAsync(world->page, block->address + first * 4, words * 4, home));
    MUST(cuStreamSynchronize(home));
    compare(world, block, first, words);
    world->checks++;
}

void world_look(struct world *world)
{
    for (unsigned i = 0; i < CHECKS; i++) {
        const struct block *block = &world->checked[i];
        uint32_t foreign = __atomic_load_n(&world->foreign[i], __ATOMIC_RELAXED);

        if (foreign)
            stress_wrong("a kernel of thread %u found %u foreign words in its block at 0x%llx of "
                         "%llu words, tag %u",
                         world->thread, foreign, (unsigned long long)block->address,
                         (unsigned long long)block->words, block->tag);
    }
}

CUcontext stress_context(CUdevice device)
{
    CUcontext context;

#if CUDA_VERSION >= 13000
    MUST(cuCtxCreate(&context, NULL, 0, device));
#else
    MUST(cuCtxCreate(&context, 0, device));
#endif
    return context;
}
