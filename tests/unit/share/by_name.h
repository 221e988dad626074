/* A holder by hand, which says who it is, over as many connections as it likes. */
#ifndef GS_TESTS_BY_NAME_H
#define GS_TESTS_BY_NAME_H

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "core/share/wire.h"
#include "scene.h"

static inline int connect_by_name(const unsigned char *ipc_handle, uint32_t number, uint32_t holds)
{
    union gs_wire_message message;
    int fd = side_dial(dir, ipc_handle);

    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, ipc_handle + 8, GS_INSTANCE_SIZE);
    memset(message.hello.from, 7, sizeof message.hello.from);
    message.hello.pid = (uint64_t)getpid();
    message.hello.holds = holds;
    message.hello.number = number;
    cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
    return fd;
}

static inline void say(int fd, enum gs_wire_type type, uint32_t generation, uint64_t block_id)
{
    union gs_wire_message message;

    gs_wire_start(&message, type, generation);
    message.resume.block_id = block_id;
    cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
}

static inline uint64_t open_again(int fd, const unsigned char *ipc_handle, uint32_t generation)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_OPEN, generation);
    memcpy(message.open.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_GRANT);
    cr_assert_eq(message.head.request, generation);
    return message.grant.block_id;
}

#endif
