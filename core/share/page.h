/*
 * The page by which processes ask each other for memory (core/process/neighbour.h): a file in the
 * runtime directory, what lies where in it, and the locks and futexes on it. All of it is read and
 * written by system calls, one field or record at a time; its mapping is for futexes alone.
 */
#ifndef GS_CORE_SHARE_PAGE_H
#define GS_CORE_SHARE_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define GS_PAGE_FILE_NAME   "memory-3" /* the number is that of the layout below */
#define GS_PAGE_BYTES       4096
#define GS_PAGE_SLOTS       128

struct gs_page_slot {
    uint32_t started, finished; /* the requests that its process has got to, and is done with */
    uint64_t given;             /* bytes, with `finished` */
    uint32_t pid, zero;         /* as its process sees itself: for people */
};

struct gs_page_request {
    unsigned char uuid[16]; /* of the device */
    uint64_t wanted;        /* bytes */
    uint32_t slot;          /* of who asks; GS_PAGE_SLOTS: it has none */
    uint32_t zero;
};

struct gs_page {
    uint32_t asked;    /* a futex: the number of the last request */
    uint32_t answered; /* a futex: changes with each answer */
    struct gs_page_request request;
    uint32_t missed[GS_PAGE_SLOTS]; /* requests that a process did not start on in time; 0: it
                                       answers */
    struct gs_page_slot slots[GS_PAGE_SLOTS];
};

_Static_assert(sizeof(struct gs_page) <= GS_PAGE_BYTES, "it is one page");

/* Bytes behind the page, for locks alone: who asks, and the slots' owners. */
enum { GS_PAGE_ASKER_BYTE = GS_PAGE_BYTES, GS_PAGE_SLOT_BYTE };

#define GS_PAGE_AT(field)    ((off_t)offsetof(struct gs_page, field))
#define GS_PAGE_AT_SLOT(i)   (GS_PAGE_AT(slots) + (off_t)((i) * sizeof(struct gs_page_slot)))
#define GS_PAGE_AT_MISSED(i) (GS_PAGE_AT(missed) + (off_t)((i) * sizeof(uint32_t)))

/* The file as it is now, close-on-exec, or -1 with errno: EPERM where it is not this user's alone.
 * `make` makes it, empty. */
int gs_page_open(int directory, bool make);

/* Removes the file where no other open one listens: all slots are locked here then, so that nobody
 * takes one before the name has gone. Without a name it is not what the name stands for now. */
void gs_page_remove_unused(int fd, int directory);
/* The same of what killed processes left in the runtime directory. */
void gs_page_sweep(int directory);

/* A field; false: the file is too short, or cannot be read or written. */
bool gs_page_get(int fd, off_t at, void *value, size_t size);
bool gs_page_put(int fd, off_t at, const void *value, size_t size);

/* F_WRLCK or F_UNLCK of some bytes: 0, or an errno; EAGAIN where another holds one of them. Locks are
 * those of an open file and end with it. */
int gs_page_lock(int fd, short type, off_t byte, off_t count);
/* Waits until another has let go of the byte, which a process that is stopped, or means harm, never
 * does. False: `ns` are over, or there are no such locks. */
bool gs_page_lock_within(int fd, off_t byte, uint64_t ns);
/* Whether another open file has a lock on one of the bytes. */
bool gs_page_is_locked(int fd, off_t byte, off_t count);

/* Wakes all who sleep on a field; sleeps on it while it is `seen`, for `ns` at most (0: without
 * end). `page` is the mapping. */
void gs_page_wake(const char *page, off_t at);
void gs_page_wait(const char *page, off_t at, uint32_t seen, uint64_t ns);

void gs_page_pause(uint64_t ns);

#endif
