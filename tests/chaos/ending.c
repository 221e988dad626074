/* How an actor of the chaos program ends in order: everything back, and nothing left (actor.h). */
#include "actor.h"

/* Longer than a lease may outlive its holder: a forked child lives 5 s, then it rests. */
#define COME_BACK_NS (UINT64_C(45000) * MS)

static unsigned count_descriptors(const char *kind)
{
    char path[64], target[256];
    DIR *list = opendir("/proc/self/fd");
    const struct dirent *entry;
    unsigned count = 0;

    while (list && (entry = readdir(list))) {
        ssize_t length;

        snprintf(path, sizeof path, "/proc/self/fd/%.20s", entry->d_name);
        length = readlink(path, target, sizeof target - 1);
        if (length <= 0)
            continue;
        target[length] = 0;
        count += strstr(target, kind) != NULL;
    }
    if (list)
        closedir(list);
    return count;
}

/* The tests' driver has a memfd for each piece of memory. */
unsigned actor_descriptors(void)
{
    return count_descriptors("") - count_descriptors("/memfd:");
}

/*
 * All that this process made is free again: the device says so, and nearly all of it can be had in
 * one piece, for which whatever was kept back has to be given up. On a real device both are
 * everybody's.
 */
static void check_memory(struct actor *actor)
{
    uint64_t end = now_ns() + COME_BACK_NS;
    size_t most = actor->free_at_start / 10 * 9, free_bytes;
    CUdeviceptr all = 0;

    if (!actor->gpu.software)
        return;
    actor_step(actor, STEP_ACCOUNT);
    while ((free_bytes = gpu_free_bytes()) != actor->free_at_start ||
           (!all && cuMemAlloc(&all, most) != CUDA_SUCCESS)) {
        if (now_ns() > end)
            actor_wrong(actor,
                        "%zu bytes are free at the end, %zu were at the start, and %zu in "
                        "one piece cannot be had",
                        free_bytes, actor->free_at_start, most);
        chaos_sleep_us(20000);
    }
    actor_must(actor, "cuMemFree", cuMemFree(all));
}

/*
 * A listener, a thread's epoll and its like, one connection and one pidfd for each process that
 * lives, in both directions, and what those that have just ended had: no more, however many have
 * come and gone.
 */
static void check_descriptors(struct actor *actor)
{
    unsigned most = actor->fds_at_start + 64 + 6 * actor->world->slots;
    uint64_t end = now_ns() + COME_BACK_NS;
    unsigned now;

    while ((now = actor_descriptors()) > most) {
        if (now_ns() > end)
            actor_wrong(actor,
                        "%u descriptors are open at the end, %u sockets and %u pidfds among them; "
                        "%u were at the start",
                        now, count_descriptors("socket:"), count_descriptors("pidfd"),
                        actor->fds_at_start);
        chaos_sleep_us(50000);
    }
}

/* Others may be at opening what was promised to them. */
static void keep_promise(const struct actor_block *block)
{
    uint64_t now = now_ns();

    if (block->keep_until_ns > now)
        chaos_sleep_us((unsigned)((block->keep_until_ns - now) / 1000) + 1);
}

void actor_account(struct actor *actor)
{
    while (actor->held_count)
        actor_close(actor, actor->held_count - 1);
    while (actor->own_count) {
        keep_promise(&actor->own[actor->own_count - 1]);
        actor_free(actor, actor->own_count - 1);
    }
    actor_step(actor, STEP_ACCOUNT);
    actor_must(actor, "cuCtxSynchronize", cuCtxSynchronize());
    check_memory(actor);
    check_descriptors(actor);
}
