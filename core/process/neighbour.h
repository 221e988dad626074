/*
 * Processes of one user that share a GPU ask each other for idle memory: who asks for how much, and
 * who gives how much, how often. How they speak: core/share/pressure.c. A process can be asked once
 * it has a trimmer, which puts its socket up, once it shares memory, and soon after it opened some:
 * what it keeps of others' is asked for as well.
 */
#ifndef GS_CORE_PROCESS_NEIGHBOUR_H
#define GS_CORE_PROCESS_NEIGHBOUR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

struct gs_core;
struct gs_device;

/* Atomic. */
struct gs_neighbour_counts {
    uint64_t asked;    /* times this process asked, */
    uint64_t got;      /* and bytes that others said they gave back then */
    uint64_t answered; /* times others asked this process, */
    uint64_t given;    /* and bytes that it gave back then */
};

struct gs_neighbour {
    struct gs_neighbour_counts counts;
    bool joined; /* atomic: others can ask */
    /* The trimmer's own. */
    uint64_t gave_ns;                /* when it gave something, */
    uint64_t gave_grown, gave_asked; /* and how often it had grown and asked others by then */
    uint64_t pause_ns;               /* until the next time, at least */
    uint64_t answered_ns;
    /* Of who asks; atomic, only ever guesses. */
    uint64_t asked_ns, wanted, quiet_until_ns;
    unsigned silent; /* who did not answer the last time, */
    int silent_pid;  /* and one of them; 0: not seen from here */
};

/* The trimmer begins, or the program puts itself to sleep: from now on others can ask. Costs a
 * socket the first time; where that cannot be had it may be tried again. */
void gs_neighbour_join(struct gs_core *core);
/* The trimmer: gives what others ask for, as far as it is idle, and tells them. */
void gs_neighbour_answer(struct gs_core *core);

/*
 * The device is full and this process has given up what it can: asks the others for `size` bytes.
 * No lock is held. True: somebody has given something, or may have; the driver is worth another
 * try. `context` is one of the device. Waits as gs_share_ask does.
 */
bool gs_neighbour_ask(struct gs_core *core, const struct gs_device *device, CUcontext context,
                      size_t size);

#endif
