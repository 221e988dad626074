/* Threads of simulated processes: stacks of their own in this one thread (simulation.h). */
#undef _FORTIFY_SOURCE /* its longjmp knows one stack */
#include "simulation.h"

#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#define STACK_SIZE ((size_t)128 << 10)
#define GUARD_SIZE ((size_t)4 << 10)

struct fibre_body {
    jmp_buf place;
    char *stack;
    bool begun;
};

static jmp_buf scheduler;

static struct fibre_body *body_new(void)
{
    struct fibre_body *body = sim_alloc(sizeof *body);

    body->stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (body->stack == MAP_FAILED)
        abort();
    mprotect(body->stack, GUARD_SIZE, PROT_NONE);
    return body;
}

/* Stacks stay for the next fibre of the same place. */
void fibre_start(struct fibre *fibre, struct process *process, void *(*run)(void *), void *arg)
{
    struct fibre_body *body = fibre->body ? fibre->body : body_new();

    *fibre = (struct fibre){.body = body,
                            .process = process,
                            .state = FIBRE_READY,
                            .until_ns = NEVER,
                            .run = run,
                            .arg = arg};
    body->begun = false;
#ifdef __SANITIZE_ADDRESS__
    /* Functions that never returned have left their marks there. */
    ASAN_UNPOISON_MEMORY_REGION(body->stack + GUARD_SIZE, STACK_SIZE - GUARD_SIZE);
#endif
}

static void leave(void)
{
    struct fibre *fibre = world.current;

    fibre->error = errno;
    if (_setjmp(fibre->body->place) == 0)
        _longjmp(scheduler, 1);
    errno = world.current->error;
}

static void begin(void)
{
    struct fibre *fibre = world.current;

    fibre->run(fibre->arg);
    fibre->state = FIBRE_NONE;
    fibre_wake_all(fibre->process, fibre);
    _longjmp(scheduler, 1);
}

/* The first time by a context of its own, which takes a system call; then by jumps. */
void fibre_resume(struct fibre *fibre, unsigned points)
{
    ucontext_t first;

    world.current = fibre;
    if (process_here() && fibre == &process_here()->threads[0])
        process_here()->still_ns = 0;
    world.points = points;
    world.clock_looks = 0;
    if (_setjmp(scheduler) == 0) {
        if (fibre->body->begun)
            _longjmp(fibre->body->place, 1);
        fibre->body->begun = true;
        getcontext(&first);
        first.uc_stack.ss_sp = fibre->body->stack + GUARD_SIZE;
        first.uc_stack.ss_size = STACK_SIZE - GUARD_SIZE;
        first.uc_link = NULL;
        makecontext(&first, begin, 0);
        setcontext(&first);
    }
    world.current = NULL;
}

void fibre_kill(struct fibre *fibre)
{
    fibre->state = FIBRE_NONE;
}

bool fibre_wait(const void *on, uint64_t until_ns)
{
    struct fibre *fibre = world.current;

    fibre->state = FIBRE_WAITING;
    fibre->waits_on = on;
    fibre->until_ns = until_ns;
    fibre->woken = false;
    leave();
    return fibre->woken;
}

void fibre_idle(void)
{
    world.current->state = FIBRE_IDLE;
    leave();
}

void fibre_wake(struct fibre *fibre)
{
    if (fibre->state != FIBRE_WAITING)
        return;
    fibre->state = FIBRE_READY;
    fibre->woken = true;
}

void fibre_wake_all(const struct process *process, const void *on)
{
    for (unsigned i = 0; i < THREADS; i++) {
        struct fibre *fibre = (struct fibre *)&process->threads[i];

        if (fibre->state == FIBRE_WAITING && fibre->waits_on == on)
            fibre_wake(fibre);
    }
}

void sim_point(void)
{
    if (!world.current || world.points == 0)
        return;
    if (--world.points > 0)
        return;
    world.current->midway = true;
    leave();
    world.current->midway = false;
}
