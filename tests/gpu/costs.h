/*
 * What the programs that ask a driver for its costs have in common: calling it, ending where it
 * refuses, and sending descriptors to another process.
 */
#ifndef TESTS_GPU_COSTS_H
#define TESTS_GPU_COSTS_H

#include <cuda.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static void *libcuda;
#define D(name) ((__typeof__(&name))dlsym(libcuda, #name))
#define MUST(call)                                                                                 \
    do {                                                                                           \
        CUresult must = (call);                                                                    \
        if (must) {                                                                                \
            printf("FACT stopped = %s: %d\n", #call, (int)must);                                   \
            fflush(stdout);                                                                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static inline void send_fd(int socket, int fd)
{
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                            .msg_controllen = sizeof control};
    struct cmsghdr *attached = CMSG_FIRSTHDR(&header);

    attached->cmsg_level = SOL_SOCKET;
    attached->cmsg_type = SCM_RIGHTS;
    attached->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(attached), &fd, sizeof fd);
    if (sendmsg(socket, &header, MSG_NOSIGNAL) != 1)
        exit(1);
}

static inline int receive_fd(int socket)
{
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                            .msg_controllen = sizeof control};
    int fd;

    if (recvmsg(socket, &header, 0) != 1 || !CMSG_FIRSTHDR(&header))
        _exit(1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof fd);
    return fd;
}

#endif
