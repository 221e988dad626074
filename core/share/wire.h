/*
 * What opener and exporter say to each other: fixed messages over a SOCK_SEQPACKET socket.
 *
 *   opener                               exporter
 *   HELLO (+ own pidfd)      ------->    who opens; no answer unless it is refused
 *   OPEN token, want_fd      ------->
 *                            <-------    GRANT (+ the chunk's descriptor), or REFUSE reason
 *   CLOSE block              ------->    one hold less; no answer
 *
 * An opener has one OPEN under way at a time; `request` ties the answer to it. One GRANT is one
 * hold and is given back by one CLOSE. A message that is not exactly of its type's length, of
 * another version or of a type the receiver does not take is refused, and so is its sender.
 * New types and versions may come; the fields of a type in one version never change.
 */
#ifndef GS_CORE_SHARE_WIRE_H
#define GS_CORE_SHARE_WIRE_H

#include <stdint.h>

#include "core/share/token.h"

enum gs_wire_type {
    GS_WIRE_HELLO = 1,
    GS_WIRE_OPEN = 2,
    GS_WIRE_GRANT = 3,
    GS_WIRE_REFUSE = 4,
    GS_WIRE_CLOSE = 5,
    GS_WIRE_TYPES
};

enum gs_wire_reason {
    GS_REFUSED_TOKEN = 1,   /* unknown, stale or changed */
    GS_REFUSED_USER = 2,    /* another user's process */
    GS_REFUSED_BUSY = 3,    /* max_clients are being served */
    GS_REFUSED_FDS = 4,     /* the exporter has no descriptor left */
    GS_REFUSED_DRIVER = 5,  /* the driver did not export: see driver_error */
    GS_REFUSED_MEMORY = 6,  /* the exporter has no host memory left */
    GS_REFUSED_ENDING = 7,  /* the exporter is ending */
    GS_REFUSED_MESSAGE = 8, /* a message that the protocol does not have */
};

struct gs_wire_head {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint32_t size; /* of the whole message */
    uint32_t request;
};

struct gs_wire_hello {
    struct gs_wire_head head;
    unsigned char instance[GS_INSTANCE_SIZE]; /* of the exporter that is meant */
    uint64_t pid;                             /* as the opener sees itself: for people */
    char name[16];                            /* of the program: for people */
};

struct gs_wire_open {
    struct gs_wire_head head;
    unsigned char token[GS_TOKEN_SIZE];
    uint32_t want_fd; /* 0: the opener has the chunk mapped already */
    uint32_t zero;
};

struct gs_wire_grant {
    struct gs_wire_head head;
    uint64_t block_id;
    uint64_t chunk_id;
    uint64_t chunk_size;
    uint64_t offset, size;  /* of the block within the chunk */
    unsigned char uuid[16]; /* of the device that holds the memory */
};

struct gs_wire_refuse {
    struct gs_wire_head head;
    uint32_t reason;
    uint32_t driver_error;
};

struct gs_wire_close {
    struct gs_wire_head head;
    uint64_t block_id;
};

union gs_wire_message {
    struct gs_wire_head head;
    struct gs_wire_hello hello;
    struct gs_wire_open open;
    struct gs_wire_grant grant;
    struct gs_wire_refuse refuse;
    struct gs_wire_close close;
};

/* Fills in the head for a message of `type`, whose other bytes become zero. */
void gs_wire_start(union gs_wire_message *message, enum gs_wire_type type, uint32_t request);

/* Whether `length` received bytes are a message of this version, exactly as long as its type. */
bool gs_wire_valid(const union gs_wire_message *message, size_t length);

/*
 * Sends one message, with `fd` unless that is -1 (it stays the caller's). Never waits, never
 * signals. 0, or a negative errno; -EAGAIN: the other side does not read.
 */
int gs_wire_send(int socket, const union gs_wire_message *message, int fd);

/*
 * Receives one message without waiting. 0; -EAGAIN: nothing there; -ENOTCONN: the other side has
 * hung up; -EPROTO: not a message; -EMFILE: it came with a descriptor for which this process had
 * no room (the message is in *ret_message); another negative errno. *ret_fd is the descriptor
 * that came along, close-on-exec and the caller's, or -1; -1 on every failure.
 */
int gs_wire_receive(int socket, union gs_wire_message *ret_message, int *ret_fd);

#endif
