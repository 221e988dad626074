/*
 * Work of other threads, and of streams that are gone: memory that it still touches is nobody
 * else's, and an event that a thread records in its default stream as it ends is behind its work.
 */
#include "conform.h"

#include <criterion/criterion.h>

TestSuite(threads, .init = conform_start, .timeout = 60);

#define LATE_NS (100 * MILLISECOND)
#define SIZE    (8 * MIB)
#define WORDS   (SIZE / 4)
#define OLD     0x01d01d01u

static CUdeviceptr block;
static sem_t step, done;

/* It is freed, and the next owner's memory stays as it is while the last one's work is done. */
static void the_next_owners_is_its_own(void)
{
    CUstream stream = new_stream();

    OK(cuMemFree(block));
    next_owners(4, SIZE, stream, 0);
    OK(cuStreamDestroy(stream));
}

static void *works_and_sleeps(void *arg)
{
    OK(cuCtxSetCurrent(context));
    OK(launch_spin_fill(CU_STREAM_PER_THREAD, block, OLD, WORDS, LATE_NS));
    sem_post(&done);
    if (arg)
        sem_wait(&step);
    return NULL;
}

static pthread_t other_thread(void *sleeps)
{
    pthread_t thread;

    sem_init(&step, 0, 0);
    sem_init(&done, 0, 0);
    OK(launch_fill(NULL, block, OLD, 1)); /* not its first one */
    OK(cuCtxSynchronize());
    cr_assert_eq(pthread_create(&thread, NULL, works_and_sleeps, sleeps), 0);
    sem_wait(&done);
    return thread;
}

Test(threads, memory_in_the_default_stream_of_a_thread_that_sleeps)
{
    pthread_t thread;

    OK(cuMemAlloc(&block, SIZE));
    thread = other_thread(&step);
    the_next_owners_is_its_own();
    sem_post(&step);
    pthread_join(thread, NULL);
}

Test(threads, memory_in_the_default_stream_of_a_thread_that_ended)
{
    OK(cuMemAlloc(&block, SIZE));
    pthread_join(other_thread(NULL), NULL);
    the_next_owners_is_its_own();
}

/* The stream waits for another one, whose work may be of a context that the free knows nothing
 * of. */
Test(threads, memory_that_a_stream_waits_for)
{
    CUstream stream = new_stream(), other = new_stream();
    CUevent event;

    OK(cuMemAlloc(&block, SIZE));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(launch_fill(other, block, OLD, 1));
    OK(launch_spin_fill(stream, block, OLD, WORDS, LATE_NS));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(other, event, 0));
    the_next_owners_is_its_own();
}

/* ---- Of a thread that ends ---- */

extern int __cxa_thread_atexit_impl(void (*function)(void *), void *arg, void *dso);
extern void *__dso_handle;

struct ends {
    CUevent event;
    unsigned long long first, last;
    CUresult recorded;
};

static void records(void *arg)
{
    struct ends *ends = arg;

    if (cuStreamGetId(CU_STREAM_PER_THREAD, &ends->last) == CUDA_SUCCESS)
        ends->recorded = cuEventRecord(ends->event, CU_STREAM_PER_THREAD);
}

static void *works_and_ends(void *arg)
{
    struct ends *ends = arg;

    OK(cuCtxSetCurrent(context));
    __cxa_thread_atexit_impl(records, ends, &__dso_handle);
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &ends->first));
    OK(launch_spin(CU_STREAM_PER_THREAD, 5 * LATE_NS));
    return NULL;
}

/* The library records one there on drivers without cuCtxRecordEvent, and believes it where the
 * stream has the same number still. */
Test(threads, an_event_recorded_as_a_thread_ends_is_behind_its_work)
{
    struct ends ends = {.recorded = CUDA_ERROR_UNKNOWN};
    pthread_t thread;

    OK(launch_spin(NULL, 1));
    OK(cuCtxSynchronize());
    OK(cuEventCreate(&ends.event, CU_EVENT_DISABLE_TIMING));
    cr_assert_eq(pthread_create(&thread, NULL, works_and_ends, &ends), 0);
    pthread_join(thread, NULL);
    probe("default_stream_of_a_thread_that_ends", "%s, %s", result_name(ends.recorded),
          ends.first == ends.last ? "the same" : "another");
    if (ends.recorded == CUDA_SUCCESS && ends.first == ends.last) {
        OK(cuEventSynchronize(ends.event));
        OK(cuEventQuery(ends.event));
        cr_assert_eq(cuStreamQuery(NULL), CUDA_SUCCESS, "the event is behind all there was to do");
    }
}
