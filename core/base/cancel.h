/*
 * A thread that the program cancels ends at its next cancellation point, which most calls that may
 * sleep are: with it would end what it is at, a lock held or a remote marked busy for ever.
 * Natively no call of the driver's is left half done by that. So whatever of this library may sleep
 * runs to its end first, and the thread is cancelled at its next point outside.
 */
#ifndef GS_CORE_BASE_CANCEL_H
#define GS_CORE_BASE_CANCEL_H

#include <pthread.h>

/* From here to the end of the block the calling thread is not cancelled. */
#define GS_UNCANCELLED \
    __attribute__((cleanup(gs_cancel_restore), unused)) int gs_cancel_state = gs_cancel_off()

static inline int gs_cancel_off(void)
{
    int state = PTHREAD_CANCEL_ENABLE;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    return state;
}

static inline void gs_cancel_restore(const int *state)
{
    int ignored;

    pthread_setcancelstate(*state, &ignored);
}

#endif
