/* What a process says before it leaves a block with a broker, by hand: nobody else may open, and
 * the blocks 0 to 1023 are confirmed, each in the slot of its id. */
#ifndef GS_TESTS_LEAVE_BY_HAND_H
#define GS_TESTS_LEAVE_BY_HAND_H

#include "core/share/wire.h"
#include "tests/system.h"

#define PUBLISH_SLOTS 1024

static inline int leave_memory(void)
{
    int memory = memfd_create("confirmed", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    for (uint64_t id = 0; id < PUBLISH_SLOTS; id++)
        if (write(memory, &id, sizeof id) != (ssize_t)sizeof id)
            abort();
    if (fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        abort();
    return memory;
}

static inline void leave_by_hand_in(int fd, int memory)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_PUBLISH, 0);
    gs_wire_send(fd, &message, memory);
}

/* The block in this slot is taken back, and the broker is told that there is something to read. */
static inline void ring_by_hand(int fd, int memory, uint64_t slot)
{
    const uint64_t none = 0;
    union gs_wire_message message;

    if (pwrite(memory, &none, sizeof none, (off_t)(slot * sizeof none)) != (ssize_t)sizeof none)
        abort();
    gs_wire_start(&message, GS_WIRE_RING, 1);
    gs_wire_send(fd, &message, -1);
}

/* Reads until it is asked for what is next; false: it has been hung up on. */
static inline bool is_asked_by_hand(int fd)
{
    union gs_wire_message message;

    do
        if (recv(fd, &message, sizeof message, 0) <= 0)
            return false;
    while (message.head.type != GS_WIRE_PULL);
    return true;
}

static inline void leave_by_hand(int fd)
{
    int memory = leave_memory();

    leave_by_hand_in(fd, memory);
    close(memory);
}

#endif
