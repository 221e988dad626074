/*
 * Descriptors that are sent to do harm: each kind is such that it may hold up whoever closes it, or
 * looks at it, or is something else than what was asked for.
 */
#ifndef GS_TESTS_BOMBS_H
#define GS_TESTS_BOMBS_H

enum bomb {
    BOMB_LINGER, /* a socket whose last close waits for somebody to take its data */
    BOMB_NESTED, /* a socket in which lies another such */
    BOMB_PIPE,
    BOMB_MEMORY, /* that has become smaller than it was said to be */
    BOMB_PIDFD,
    BOMB_EPOLL,
    BOMB_NULL,
    BOMBS
};

extern const char *const bomb_names[BOMBS];

/* A new one, which holds up until bombs_end; the caller gives it away by bomb_gone, and whoever has it then is the last. */
int bomb_new(enum bomb kind);
void bomb_gone(enum bomb kind, int fd);
/* Nobody has it: its close would hold this process up, and is left for the end. */
void bomb_unsent(int fd);
/* The other ends take what they are sent: no close is held up any more. */
void bombs_end(void);

#endif
