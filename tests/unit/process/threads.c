/* What threads have in common: nothing that a warm allocation or free writes. */
#include <criterion/criterion.h>

#include "core/process/context.h"
#include "tests/system.h"
#include "tests/unit/fixture.h"

#define SIZE     ((size_t)64 << 10)
#define WARM     4000 /* pairs: every arena has all it needs, and ids for long */
#define PAIRS    3000 /* several epochs */
#define MEETINGS 1000 /* more than it takes for a thread to move */

struct worker {
    struct fixture *fixture;
    pthread_barrier_t step;
};

static void pair(struct fixture *f, CUstream stream)
{
    CUdeviceptr block;

    MUST(stream ? gs_core_alloc_async(f->core, SIZE, NULL, stream, &block)
                : gs_core_alloc(f->core, SIZE, &block));
    MUST(stream ? gs_core_free_async(f->core, block, stream) : gs_core_free(f->core, block));
}

static struct gs_arena *arena_of(struct fixture *f, unsigned i)
{
    return __atomic_load_n(&f->core->contexts->arenas[i], __ATOMIC_ACQUIRE);
}

/* The worker meets somebody in the first arena until it has one of its own. */
static void make_it_move(struct fixture *f)
{
    struct gs_latch *lock = &arena_of(f, 0)->lock;

    for (int i = 0; i < MEETINGS && !arena_of(f, 1); i++) {
        gs_latch_take(lock);
        for (int look = 0; look < 1000 && !arena_of(f, 1); look++) {
            if (__atomic_load_n(&lock->state, __ATOMIC_RELAXED) == 2)
                break;
            usleep(100);
        }
        gs_latch_release(lock);
        usleep(100);
    }
    cr_assert_not_null(arena_of(f, 1), "the thread has not moved");
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    struct fixture *f = worker->fixture;
    CUstream stream;

    MUST(cuCtxSetCurrent(f->context));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    while (!arena_of(f, 1))
        pair(f, NULL);
    for (int i = 0; i < WARM; i++)
        pair(f, i % 2 ? stream : NULL);
    pthread_barrier_wait(&worker->step); /* warm */
    pthread_barrier_wait(&worker->step); /* what others use is protected */
    for (int i = 0; i < PAIRS; i++)
        pair(f, i % 2 ? stream : NULL);
    pthread_barrier_wait(&worker->step); /* done */
    return NULL;
}

static void written(int signal_number, siginfo_t *info, void *context)
{
    static const char text[] = "a warm pair uses what other threads write\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);

    (void)ignored;
    _exit(1);
}

/* The pages that are all an object's; what else it has is compared afterwards. */
static void protect(const void *object, size_t size, int protection)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)object + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)object + size) & ~(page - 1);

    cr_assert_lt(begin, end);
    cr_assert_eq(mprotect((void *)begin, end - begin, protection), 0);
}

/* No lock, count or list that another thread uses is written, epochs included: they could not be,
 * even for a moment. Nor is anything read of another thread's arena: its lines are always on the
 * move. */
Test(threads, write_nothing_in_common_once_they_are_warm)
{
    struct sigaction action = {.sa_sigaction = written, .sa_flags = SA_SIGINFO};
    static struct gs_arena arena_before;
    static struct gs_core core_before;
    struct gs_arena *nobody, *first;
    struct worker worker;
    struct fixture f;
    pthread_t thread;

    if (fixture_is_old())
        cr_skip_test("work is told of in common there");
    nobody = mmap(NULL, sizeof *nobody, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(nobody, MAP_FAILED);
    fixture_options(&f);
    fixture_start(&f);
    worker.fixture = &f;
    pthread_barrier_init(&worker.step, NULL, 2);
    pair(&f, NULL);
    MUST(pthread_create(&thread, NULL, work, &worker));
    make_it_move(&f);
    pthread_barrier_wait(&worker.step);
    sigaction(SIGSEGV, &action, NULL);
    first = arena_of(&f, 0);
    arena_before = *first;
    core_before = *f.core;
    protect(f.core, sizeof *f.core, PROT_READ);
    protect(arena_of(&f, 0), sizeof(struct gs_arena), PROT_READ);
    __atomic_store_n(&f.core->contexts->arenas[0], nobody, __ATOMIC_RELEASE);
    pthread_barrier_wait(&worker.step);
    pthread_barrier_wait(&worker.step);
    __atomic_store_n(&f.core->contexts->arenas[0], first, __ATOMIC_RELEASE);
    cr_assert_eq(memcmp(&arena_before, arena_of(&f, 0), sizeof arena_before), 0);
    cr_assert_eq(memcmp(&core_before, f.core, sizeof core_before), 0);
    protect(f.core, sizeof *f.core, PROT_READ | PROT_WRITE);
    protect(arena_of(&f, 0), sizeof(struct gs_arena), PROT_READ | PROT_WRITE);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&worker.step);
    cr_assert_eq(arena_of(&f, 1)->live, 0);
    cr_assert_gt(arena_of(&f, 1)->counts.events, 2);
    fixture_end(&f);
}
