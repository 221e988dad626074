/* Preloaded: the time of day of this process is SKEW_S seconds later. The library's, curl's and TLS's too. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#pragma GCC visibility push(default)

int clock_gettime(clockid_t clock, struct timespec *ret_time)
{
    const char *skew = getenv("SKEW_S");
    int error = (int)syscall(SYS_clock_gettime, clock, ret_time);

    if (error == 0 && skew && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        ret_time->tv_sec += strtol(skew, NULL, 10);
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

    clock_gettime(CLOCK_REALTIME, &now);
    ret_time->tv_sec = now.tv_sec;
    ret_time->tv_usec = now.tv_nsec / 1000;
    return 0;
}
