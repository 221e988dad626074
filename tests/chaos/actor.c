/*
 * One actor of the chaos program (chaos.h): an ordinary CUDA program that knows nothing of the
 * shim. It takes one random step after another until its end, which may come at any instant.
 */
#include "actor.h"

#define PROMISE_MS 400 /* how long a survivor keeps a block that it shares, at most */

/* ---- Reporting ------------------------------------------------------------------------------ */

void actor_step(struct actor *actor, enum chaos_step step)
{
    atomic_store(&actor->slot->step, step);
    atomic_store(&actor->slot->step_ns, now_ns());
}

void actor_wrong(struct actor *actor, const char *format, ...)
{
    va_list args;
    int n = snprintf(actor->slot->wrong, sizeof actor->slot->wrong,
                     "process %u (life %u): ", actor->number, actor->life);

    va_start(args, format);
    vsnprintf(actor->slot->wrong + n, sizeof actor->slot->wrong - (size_t)n, format, args);
    va_end(args);
    actor->slot->wrong_ns = now_ns();
    atomic_store(&actor->slot->is_wrong, true);
    _exit(3);
}

void actor_must(struct actor *actor, const char *call, CUresult result)
{
    if (result != CUDA_SUCCESS)
        actor_wrong(actor, "%s: %s", call, gpu_error(result));
}

/* ---- Verifying ------------------------------------------------------------------------------ */

/* Whether all words are `stamp`; the first other one. By the copy engine, now and then by a
 * kernel, whose way to the memory is another. */
static bool is_intact(struct actor *actor, CUdeviceptr ptr, uint64_t words, uint32_t stamp,
                      uint64_t *ret_index)
{
    uint32_t others = 0;

    atomic_fetch_add(&actor->slot->checks, 1);
    if (chaos_below(&actor->random, 5) == 0) {
        actor_must(actor, "counting foreign words",
                   gpu_count_other(&actor->gpu, ptr, stamp, words, actor->counter, &others));
        if (!others)
            return true;
    }
    actor_must(actor, "cuMemcpyDtoH", cuMemcpyDtoH(actor->host, ptr, words * 4));
    for (*ret_index = 0; *ret_index < words; ++*ret_index)
        if (actor->host[*ret_index] != stamp)
            return false;
    if (others)
        actor_wrong(actor, "a kernel saw %u foreign words in a block of stamp %08x", others, stamp);
    return true;
}

void actor_verify_own(struct actor *actor, const struct actor_block *block)
{
    uint64_t i;

    if (!is_intact(actor, block->ptr, block->words, block->stamp, &i))
        actor_wrong(actor, "its own block of %llu words, stamp %08x, has %08x in word %llu",
                    (unsigned long long)block->words, block->stamp, actor->host[i],
                    (unsigned long long)i);
}

void actor_verify_held(struct actor *actor, const struct actor_held *held)
{
    const struct chaos_record *record = &held->record;
    uint64_t i;

    if (!is_intact(actor, held->ptr, record->words, record->stamp, &i))
        actor_wrong(actor,
                    "holds a block of %llu words, stamp %08x, that process %u (life %u) shared, "
                    "and sees %08x in word %llu",
                    (unsigned long long)record->words, record->stamp, record->slot, record->life,
                    actor->host[i], (unsigned long long)i);
}

/* ---- Own blocks ----------------------------------------------------------------------------- */

static uint64_t some_words(struct actor *actor)
{
    unsigned kind = chaos_below(&actor->random, 10);

    if (kind < 6)
        return 128 + chaos_below(&actor->random, 16 << 10);
    if (kind < 9)
        return (16 << 10) + chaos_below(&actor->random, 240 << 10);
    return (256 << 10) + chaos_below(&actor->random, (unsigned)ACTOR_MAX_WORDS - (256 << 10));
}

static CUresult alloc(struct actor *actor, struct actor_block *block)
{
    size_t pitch = 0, bytes = block->words * 4;

    if (block->kind == BY_ASYNC)
        return cuMemAllocAsync(&block->ptr, bytes, actor->gpu.stream);
    if (block->kind == BY_PITCH)
        return cuMemAllocPitch(&block->ptr, &pitch, bytes < 4096 ? bytes : 4096,
                               (bytes + 4095) / 4096, 4);
    return cuMemAlloc(&block->ptr, bytes);
}

static void step_alloc(struct actor *actor)
{
    struct actor_block block = {.words = some_words(actor)};
    CUresult r;

    if (actor->own_count == ACTOR_BLOCKS)
        return;
    actor_step(actor, STEP_ALLOC);
    block.kind = (enum actor_kind)chaos_below(&actor->random, 3);
    /* The last one needs a broker, which takes the place of one that was killed. */
    if (!(actor->flags & ACTOR_LAST) && chaos_below(&actor->random, 4) == 0)
        block.kind = (enum actor_kind)(BY_MAP + chaos_below(&actor->random, KINDS - BY_MAP));
    r = block.kind < BY_MAP ? alloc(actor, &block) : actor_make(actor, &block);
    if (r == CUDA_ERROR_OUT_OF_MEMORY)
        return;
    actor_must(actor, "allocating", r);
    actor_step(actor, STEP_STAMP);
    block.stamp = actor->life << 16 | (++actor->next_stamp & 0xffff);
    actor_must(actor, "stamping", gpu_stamp(&actor->gpu, block.ptr, block.stamp, block.words));
    actor->own[actor->own_count++] = block;
}

/* Work that is still to write the block's own stamp when the free or close after it comes. */
static void submit_late(struct actor *actor, CUdeviceptr ptr, uint32_t stamp, uint64_t words)
{
    uint64_t ns = (1 + chaos_below(&actor->random, 3000)) * UINT64_C(1000);

    actor_must(actor, "launching a kernel", gpu_stamp_late(&actor->gpu, ptr, stamp, words, ns));
}

/* Stream-ordered memory is the driver's where that has no cuCtxRecordEvent: it has no handle, and
 * cuMemFree waits for none of its work. */
static bool is_shareable(CUdeviceptr ptr)
{
    int capable = 0;

    return cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr) !=
               CUDA_SUCCESS ||
           capable;
}

void actor_free(struct actor *actor, unsigned index)
{
    struct actor_block block = actor->own[index];
    CUresult r;

    actor_step(actor, STEP_FREE);
    actor_verify_own(actor, &block);
    actor->own[index] = actor->own[--actor->own_count];
    if (chaos_below(&actor->random, 3) == 0)
        submit_late(actor, block.ptr, block.stamp, block.words);
    if (block.kind >= BY_MAP) {
        actor_unmake(actor, &block);
        return;
    }
    if (chaos_below(&actor->random, 3) == 0 || /* also memory of cuMemAlloc, as it may be */
        (block.kind == BY_ASYNC && !is_shareable(block.ptr)))
        r = cuMemFreeAsync(block.ptr, actor->gpu.stream);
    else
        r = cuMemFree(block.ptr);
    actor_must(actor, "freeing", r);
}

static void step_free(struct actor *actor)
{
    unsigned i;

    if (!actor->own_count)
        return;
    i = chaos_below(&actor->random, actor->own_count);
    if (actor->own[i].keep_until_ns < now_ns())
        actor_free(actor, i);
}

/* ---- Passing handles on ---------------------------------------------------------------------- */

static void put_on_board(struct actor *actor, const struct chaos_record *record)
{
    char made[CHAOS_PATH + 32], path[CHAOS_PATH + 32];
    int fd;

    snprintf(made, sizeof made, "%s/new%u", actor->world->board, actor->number);
    snprintf(path, sizeof path, "%s/%u", actor->world->board,
             chaos_below(&actor->random, CHAOS_FILES));
    fd = open(made, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    if (write(fd, record, sizeof *record) == (ssize_t)sizeof *record)
        rename(made, path);
    close(fd);
}

static void pass_on(struct actor *actor, const struct chaos_record *record, bool by_pipe_only)
{
    unsigned to = chaos_below(&actor->random, actor->world->slots);
    ssize_t written;

    if (!by_pipe_only && chaos_below(&actor->random, 4) == 0) {
        put_on_board(actor, record);
        return;
    }
    /* Whole or not at all; a pipe that nobody empties is full. */
    written = write(actor->world->inbox_write[to], record, sizeof *record);
    (void)written;
}

static bool take_record(struct actor *actor, struct chaos_record *ret_record)
{
    char path[CHAOS_PATH + 32];
    ssize_t got;
    int fd;

    if (chaos_below(&actor->random, 4) != 0)
        return read(actor->world->inbox_read[actor->number], ret_record, sizeof *ret_record) ==
               (ssize_t)sizeof *ret_record;
    snprintf(path, sizeof path, "%s/%u", actor->world->board,
             chaos_below(&actor->random, CHAOS_FILES));
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    got = read(fd, ret_record, sizeof *ret_record);
    close(fd);
    return got == (ssize_t)sizeof *ret_record;
}

/* Shares block `index`. A survivor promises to keep it for a while; or it frees it at once, and
 * the only importer must still get it within the grace. */
static void step_share(struct actor *actor)
{
    struct chaos_record record = {.slot = actor->number, .owner_slot = actor->number};
    bool survives = actor->flags & ACTOR_SURVIVES, once;
    struct actor_block *block;
    unsigned index;

    if (!actor->own_count)
        return;
    actor_step(actor, STEP_SHARE);
    index = chaos_below(&actor->random, actor->own_count);
    block = &actor->own[index];
    if (block->kind == BY_ASYNC && !is_shareable(block->ptr))
        return;
    once = survives && !block->given_out && block->kind < BY_MAP &&
           chaos_below(&actor->random, 4) == 0;
    actor_must(actor, "cuIpcGetMemHandle", cuIpcGetMemHandle(&record.ipc_handle, block->ptr));
    atomic_fetch_add(&actor->slot->shared, 1);
    block->given_out = true;
    record.life = actor->life;
    record.stamp = block->stamp;
    record.words = block->words;
    if (once) {
        record.freed_ns = now_ns(); /* or later: the grace ends no sooner than after this */
        actor_free(actor, index);
        record.valid_until_ns = record.freed_ns + actor->world->grace_ns / 2;
    } else if (survives) {
        record.valid_until_ns = now_ns() + chaos_below(&actor->random, PROMISE_MS) * MS;
        if (block->keep_until_ns < record.valid_until_ns)
            block->keep_until_ns = record.valid_until_ns;
    }
    pass_on(actor, &record, once);
}

/* ---- Blocks of others ----------------------------------------------------------------------- */

static void step_open(struct actor *actor)
{
    struct actor_held held = {.ptr = 0};
    CUresult r;

    if (actor->held_count == ACTOR_BLOCKS)
        return;
    actor_step(actor, STEP_OPEN);
    if (!take_record(actor, &held.record) || held.record.words > ACTOR_MAX_WORDS ||
        held.record.owner_slot == actor->number)
        return;
    r = cuIpcOpenMemHandle(&held.ptr, held.record.ipc_handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (r != CUDA_SUCCESS) {
        atomic_fetch_add(&actor->slot->refused, 1);
        if (now_ns() < held.record.valid_until_ns)
            actor_wrong(actor,
                        "process %u (life %u) shared stamp %08x and %s, but opening it gives %s "
                        "%llu ms before that ends",
                        held.record.slot, held.record.life, held.record.stamp,
                        held.record.freed_ns ? "its grace runs" : "keeps it", gpu_error(r),
                        (unsigned long long)((held.record.valid_until_ns - now_ns()) / MS));
        return;
    }
    atomic_fetch_add(&actor->slot->opened, 1);
    actor_verify_held(actor, &held);
    actor->held[actor->held_count++] = held;
}

void actor_close(struct actor *actor, unsigned index)
{
    struct actor_held held = actor->held[index];

    actor_step(actor, STEP_CLOSE);
    actor_verify_held(actor, &held);
    actor->held[index] = actor->held[--actor->held_count];
    if (chaos_below(&actor->random, 2) == 0)
        submit_late(actor, held.ptr, held.record.stamp, held.record.words);
    actor_must(actor, "cuIpcCloseMemHandle", cuIpcCloseMemHandle(held.ptr));
}

static void step_close(struct actor *actor)
{
    if (actor->held_count)
        actor_close(actor, chaos_below(&actor->random, actor->held_count));
}

/* Shares on what another process owns. */
static void step_reshare(struct actor *actor)
{
    struct chaos_record record;
    struct actor_held *held;
    CUresult r;

    if (!actor->held_count)
        return;
    actor_step(actor, STEP_RESHARE);
    held = &actor->held[chaos_below(&actor->random, actor->held_count)];
    record = held->record;
    r = cuIpcGetMemHandle(&record.ipc_handle, held->ptr);
    if (r != CUDA_SUCCESS) /* its connection to the exporter is gone, or the exporter is */
        return;
    record.slot = actor->number;
    record.life = actor->life;
    record.valid_until_ns = record.freed_ns = 0;
    atomic_fetch_add(&actor->slot->shared, 1);
    pass_on(actor, &record, false);
}

static void step_verify(struct actor *actor)
{
    actor_step(actor, STEP_VERIFY);
    if (actor->held_count)
        actor_verify_held(actor, &actor->held[chaos_below(&actor->random, actor->held_count)]);
    if (actor->own_count)
        actor_verify_own(actor, &actor->own[chaos_below(&actor->random, actor->own_count)]);
}

static void step_work(struct actor *actor)
{
    struct actor_held *held;

    if (!actor->held_count)
        return;
    actor_step(actor, STEP_WORK);
    held = &actor->held[chaos_below(&actor->random, actor->held_count)];
    submit_late(actor, held->ptr, held->record.stamp, held->record.words);
}

/* ---- Fork, exec, exit ----------------------------------------------------------------------- */

/* The child has what every child has of its parent: memory and descriptors, no CUDA. It may
 * outlive its parent, not for long. */
static void step_fork(struct actor *actor)
{
    unsigned kind = chaos_below(&actor->random, 3), ms = chaos_below(&actor->random, 800);
    pid_t pid;

    actor_step(actor, STEP_FORK);
    pid = fork();
    if (pid < 0)
        return;
    if (pid == 0) {
        alarm(5);
        if (kind == 1)
            chaos_sleep_us(ms * 1000);
        if (kind == 2)
            execl("/proc/self/exe", "sleeper", (char *)NULL);
        _exit(0);
    }
    atomic_fetch_add(&actor->slot->forks, 1);
}

static void step_end(struct actor *actor)
{
    char role[] = "actor", world[16], slot[16], flags[16];

    if (!actor->end_by_exec) {
        actor_step(actor, STEP_EXIT);
        exit(0); /* with all it has, as programs do */
    }
    actor_step(actor, STEP_EXEC);
    atomic_fetch_add(&actor->slot->execs, 1);
    snprintf(world, sizeof world, "%d", actor->world_fd);
    snprintf(slot, sizeof slot, "%u", actor->number);
    snprintf(flags, sizeof flags, "%u", actor->flags | ACTOR_EXECED);
    execv("/proc/self/exe", (char *[]){role, world, slot, flags, NULL});
    actor_wrong(actor, "exec failed");
}

/* ---- An actor's life ------------------------------------------------------------------------ */

static void step_random(struct actor *actor)
{
    unsigned choice = chaos_below(&actor->random, 100);

    if (choice < 18)
        step_alloc(actor);
    else if (choice < 38)
        step_share(actor);
    else if (choice < 62)
        step_open(actor);
    else if (choice < 72)
        step_verify(actor);
    else if (choice < 80)
        step_free(actor);
    else if (choice < 88)
        step_close(actor);
    else if (choice < 94)
        step_reshare(actor);
    else if (choice < 98)
        step_work(actor);
    else
        step_fork(actor);
}

static void verify_all(struct actor *actor)
{
    actor_step(actor, STEP_VERIFY);
    for (unsigned i = 0; i < actor->held_count; i++)
        actor_verify_held(actor, &actor->held[i]);
}

static void live(struct actor *actor)
{
    unsigned steps = 0;

    while (atomic_load(&actor->world->phase) == PHASE_RUN) {
        step_random(actor);
        if (++steps % 64 == 0)
            verify_all(actor);
        if (actor->end_ns && now_ns() > actor->end_ns)
            step_end(actor);
        actor_step(actor, STEP_REST);
        chaos_sleep_us(chaos_below(&actor->random, 4000));
    }
}

/* Shares something, so that this process has a socket, and has looked for dead ones. */
static void live_shortly(struct actor *actor)
{
    while (!atomic_load(&actor->slot->shared)) {
        step_alloc(actor);
        step_share(actor);
    }
}

static bool begin(struct actor *actor, char **argv)
{
    actor->world_fd = atoi(argv[1]);
    actor->number = (unsigned)atoi(argv[2]);
    actor->flags = (unsigned)atoi(argv[3]);
    actor->world =
        mmap(NULL, sizeof *actor->world, PROT_READ | PROT_WRITE, MAP_SHARED, actor->world_fd, 0);
    actor->host = malloc(ACTOR_MAX_WORDS * 4);
    if (actor->world == MAP_FAILED || !actor->host || actor->number >= CHAOS_SLOTS)
        return false;
    actor->slot = &actor->world->slot[actor->number];
    actor_step(actor, STEP_START);
    actor->life = atomic_fetch_add(&actor->world->next_life, 1) & 0xffff;
    actor->random = actor->world->seed ^ (uint64_t)actor->number << 32 ^
                    (uint64_t)atomic_fetch_add(&actor->slot->lives, 1) << 40;
    chaos_random(&actor->random);
    if (!(actor->flags & (ACTOR_SURVIVES | ACTOR_LAST)))
        actor->end_ns = now_ns() + (100 + chaos_below(&actor->random, 4000)) * MS;
    actor->end_by_exec = chaos_below(&actor->random, 2);
    return true;
}

int chaos_actor(int argc, char **argv)
{
    struct actor actor = {.number = 0};

    if (argc != 4 || !begin(&actor, argv))
        return 2;
    if (gpu_start(&actor.gpu) != CUDA_SUCCESS)
        actor_wrong(&actor, "CUDA does not start");
    signal(SIGCHLD, SIG_IGN); /* nobody waits for its forked children; a driver may for its own */
    actor_must(&actor, "cuMemAlloc", cuMemAlloc(&actor.counter, 4));
    actor.free_at_start = gpu_free_bytes();
    actor.fds_at_start = actor_descriptors();
    if (actor.flags & ACTOR_LAST)
        live_shortly(&actor);
    else
        live(&actor);
    if (actor.flags & ACTOR_EXECED) { /* what it had open before the exec is its own until then */
        actor_step(&actor, STEP_EXIT);
        exit(0);
    }
    actor_account(&actor);
    atomic_store(&actor.slot->finished, true);
    while (atomic_load(&actor.world->phase) != PHASE_LEAVE) {
        atomic_store(&actor.slot->step_ns, 0);
        chaos_sleep_us(20000);
    }
    actor_step(&actor, STEP_EXIT);
    return 0;
}
