/*
 * A time of day that is not the machine's, for a whole process or for what is preloaded into one:
 * what asks for it, the library and others, gets it later by away_s(). Included by one file, after
 * that function.
 */
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#pragma GCC visibility push(default)

int clock_gettime(clockid_t clock, struct timespec *ret_time)
{
    int error = (int)syscall(SYS_clock_gettime, clock, ret_time);

    if (error == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        ret_time->tv_sec += away_s();
    return error;
}

time_t time(time_t *ret_time)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (ret_time)
        *ret_time = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict ret_time, void *restrict zone)
{
    struct timespec now;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *ret_time = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

#pragma GCC visibility pop
