/*
 * Descriptors that are sent to do harm: each kind is something else than what was asked for.
 */
#ifndef GS_TESTS_BOMBS_H
#define GS_TESTS_BOMBS_H

enum bomb {
    BOMB_PIPE,
    BOMB_MEMORY, /* that has become smaller than it was said to be */
    BOMB_PIDFD,
    BOMB_EPOLL,
    BOMB_NULL,
    BOMBS
};

extern const char *const bomb_names[BOMBS];

/* A new one; the caller gives it away by bomb_gone, and whoever has it then is the last. */
int bomb_new(enum bomb kind);
void bomb_gone(enum bomb kind, int fd);

#endif
