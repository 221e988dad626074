/* Blocks on their way from one thread to another (stress.h), each with the event behind which its
 * new owner may touch it. */
#include "stress.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    struct block block;
    CUcontext context;
    CUevent ready;
} offered[OFFERED];
static unsigned count;

bool exchange_put(struct world *world, const struct block *block)
{
    CUevent ready;
    bool put;

    MUST(cuEventCreate(&ready, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventRecord(ready, world->stream[block->home]));
    pthread_mutex_lock(&lock);
    put = count < OFFERED;
    if (put) {
        offered[count].block = *block;
        offered[count].context = world->context;
        offered[count++].ready = ready;
    }
    pthread_mutex_unlock(&lock);
    if (!put)
        MUST(cuEventDestroy(ready));
    return put;
}

bool exchange_take(struct world *world, struct block *ret_block)
{
    CUevent ready = NULL;

    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count && !ready; i++)
        if (offered[i].context == world->context) {
            *ret_block = offered[i].block;
            ready = offered[i].ready;
            offered[i] = offered[--count];
        }
    pthread_mutex_unlock(&lock);
    if (!ready)
        return false;
    ret_block->home = stress_below(&world->random, world->streams);
    MUST(cuStreamWaitEvent(world->stream[ret_block->home], ready, 0));
    MUST(cuEventDestroy(ready));
    return true;
}

void exchange_clear(bool tidy)
{
    for (unsigned i = 0; i < count; i++) {
        if (!tidy && !offered[i].block.ordered)
            continue;
        MUST(cuEventSynchronize(offered[i].ready));
        MUST(cuEventDestroy(offered[i].ready));
        MUST(cuMemFree(offered[i].block.address));
    }
    count = 0;
}
