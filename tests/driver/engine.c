/*
 * Work that runs later. An operation knows how many others it waits for; when that number is 0 it
 * is ready, and a thread of ours takes it and runs it without the lock. Order in a stream is each
 * operation waiting for the one before it, so an event, a wait, a context event or a graph is
 * nothing but more waiting: a join, an operation that has nothing to run.
 *
 * Threads are made as needed and leave after a while without work. They are detached: the process
 * may end at any time, and the work ends with it.
 */
#include "internal.h"

#define IDLE_SECONDS 2
#define STACK_BYTES  ((size_t)1 << 20)

static pthread_cond_t work_ready = PTHREAD_COND_INITIALIZER;
static pthread_cond_t work_done = PTHREAD_COND_INITIALIZER;

/* Protected by sd_lock, as everything in an operation. */
static struct sd_op *ready_first, *ready_last;
static size_t ready_count;
static unsigned idle_threads, waiters;
static bool held;

uint64_t sd_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

struct sd_op *sd_op_new(struct sd_context *context, const struct sd_work *work)
{
    struct sd_op *op = calloc(1, sizeof *op);

    if (!op)
        return NULL;
    op->refs = 1;
    op->waits = 1;
    op->context = context;
    if (work)
        op->work = *work;
    return op;
}

struct sd_op *sd_op_ref(struct sd_op *op)
{
    op->refs++;
    return op;
}

void sd_op_unref(struct sd_op *op)
{
    if (!op || --op->refs)
        return;
    sd_work_unref(&op->work);
    free(op->staging);
    free(op->follow);
    free(op);
}

void sd_op_after(struct sd_op *op, struct sd_op *before)
{
    if (!before || before->done)
        return;
    if (before->follow_count == before->follow_room) {
        size_t room = before->follow_room ? before->follow_room * 2 : 4;
        struct sd_op **follow = realloc(before->follow, room * sizeof *follow);
        if (!follow)
            abort(); /* order that cannot be kept must not look kept */
        before->follow = follow;
        before->follow_room = room;
    }
    before->follow[before->follow_count++] = sd_op_ref(op);
    op->waits++;
}

/* What needs a thread; a join, a free and a signal are done as soon as they may. */
static bool needs_thread(const struct sd_op *op)
{
    return op->work.kind != SD_JOIN && op->work.kind != SD_FREE && op->work.kind != SD_SIGNAL;
}

static void *worker(void *unused);

static void thread_start(void)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    int error = EAGAIN;

    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    /* While another thread is in execve, no thread can be made: it succeeds, and this one ends, or
     * it fails. */
    for (int i = 0; error == EAGAIN && i < 1000; i++) {
        error = pthread_create(&thread, &attr, worker, NULL);
        if (error == EAGAIN)
            nanosleep(&pause, NULL);
    }
    if (error == 0)
        idle_threads++; /* it will ask for work; it counts from now so that one is enough */
    else
        abort(); /* work that never runs would look like a hang of the program under test */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
}

static void make_threads(void)
{
    if (held || !ready_count)
        return;
    if (idle_threads < ready_count)
        thread_start();
    pthread_cond_signal(&work_ready);
}

static void ready_push(struct sd_op *op)
{
    op->next_ready = NULL;
    if (ready_last)
        ready_last->next_ready = op;
    else
        ready_first = op;
    ready_last = op;
    ready_count++;
    make_threads();
}

static struct sd_op *ready_pop(void)
{
    struct sd_op *op = ready_first;

    ready_first = op->next_ready;
    if (!ready_first)
        ready_last = NULL;
    ready_count--;
    return op;
}

/* One fewer to wait for. Gives the reference that the waiting held over to the list or drops it. */
static void op_release(struct sd_op *op, struct sd_op **now)
{
    if (--op->waits) {
        sd_op_unref(op);
    } else if (needs_thread(op)) {
        ready_push(op);
    } else {
        op->next_ready = *now;
        *now = op;
    }
}

/* The operation is done, and all that only waited for it; `op` is a reference to drop. */
static void op_finish(struct sd_op *op)
{
    struct sd_op *now = NULL;

    op->next_ready = NULL;
    for (now = op; now;) {
        struct sd_op *done = now;
        now = done->next_ready;
        if (done->work.kind == SD_FREE)
            sd_block_release(done->work.free.block, NULL, NULL);
        else if (done->work.kind == SD_SIGNAL) /* in a dead context too: others wait for it */
            sd_shared_done(done->work.event.shared, done->work.event.record);
        done->done = true;
        done->done_at = sd_now();
        for (size_t i = 0; i < done->follow_count; i++)
            op_release(done->follow[i], &now);
        done->follow_count = 0;
        sd_op_unref(done);
    }
    if (waiters)
        pthread_cond_broadcast(&work_done);
}

void sd_op_submit(struct sd_op *op)
{
    struct sd_op *now = NULL;

    op_release(sd_op_ref(op), &now);
    if (now)
        op_finish(now);
}

void sd_op_wait(struct sd_op *op)
{
    if (!op)
        return;
    sd_op_ref(op);
    waiters++;
    while (!op->done)
        pthread_cond_wait(&work_done, &sd_lock);
    waiters--;
    sd_op_unref(op);
}

void sd_engine_hold(bool hold)
{
    held = hold;
    for (size_t i = 0; i < ready_count && !held; i++)
        make_threads();
    if (!held)
        pthread_cond_broadcast(&work_ready);
}

static void call_back(struct sd_op *op, CUresult status)
{
    sd_thread.in_callback = true;
    atomic_fetch_or(&sd_gate, SD_GATE_CALLBACK);
    if (op->work.kind == SD_HOST_FUNCTION)
        op->work.host.fn(op->work.host.data);
    else
        op->work.callback.fn(op->work.callback.stream, status, op->work.callback.data);
    sd_thread.in_callback = false;
}

/* In a context that an error killed nothing runs any more, but stream callbacks are told. */
static void op_run(struct sd_op *op)
{
    CUresult status = op->context->sticky;
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_unlock(&sd_lock);
    if (op->work.kind == SD_STREAM_CALLBACK || (op->work.kind == SD_HOST_FUNCTION && !status))
        call_back(op, status);
    else if (!status && op->work.kind == SD_COPY)
        result = sd_copy_run(op->context, &op->work);
    else if (!status && op->work.kind == SD_SET)
        result = sd_set_run(op->context, &op->work);
    else if (!status && op->work.kind == SD_KERNEL)
        result = sd_kernel_run(op->context, &op->work);
    else if (!status && op->work.kind == SD_AWAIT)
        sd_shared_wait(op->work.event.shared, op->work.event.record);
    pthread_mutex_lock(&sd_lock);
    if (result && !op->context->sticky)
        op->context->sticky = result;
    op_finish(op);
}

/* Waits for work; false when none came for a while. */
static bool work_wait(void)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += IDLE_SECONDS;
    while (!ready_count || held)
        if (pthread_cond_timedwait(&work_ready, &sd_lock, &until) == ETIMEDOUT)
            return ready_count && !held;
    return true;
}

static void *worker(void *unused)
{
    pthread_setname_np(pthread_self(), "softcuda");
    pthread_mutex_lock(&sd_lock);
    while (work_wait()) {
        struct sd_op *op = ready_pop();
        idle_threads--;
        op_run(op);
        idle_threads++;
    }
    idle_threads--;
    pthread_mutex_unlock(&sd_lock);
    return NULL;
}
