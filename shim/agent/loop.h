/* What the agent's own thread waits for: descriptors, each with who is to be called. */
#ifndef GS_SHIM_AGENT_LOOP_H
#define GS_SHIM_AGENT_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

/* First in the struct of who waits. */
struct source {
    int fd; /* the waiter's own; -1: none, and what the kernel still says of it counts nothing */
    uint32_t events;
    void (*ready)(struct source *source, uint32_t events);
};

/* All false: the kernel has no room. */
static inline bool loop_add(int epoll, struct source *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = source};

    source->events = events;
    return epoll_ctl(epoll, EPOLL_CTL_ADD, source->fd, &event) == 0;
}

static inline bool loop_want(int epoll, struct source *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = source};

    if (source->events == events)
        return true;
    source->events = events;
    return epoll_ctl(epoll, EPOLL_CTL_MOD, source->fd, &event) == 0;
}

#endif
