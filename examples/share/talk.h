/*
 * What the producer and the consumer say to each other, over a socket pair: the producer offers a
 * block, the consumer answers that it holds it; a byte later, or the end of the connection, tells
 * it to stop, and it reports what it saw.
 */
#ifndef EXAMPLES_SHARE_TALK_H
#define EXAMPLES_SHARE_TALK_H

#include "gpu.h"

#include <stdbool.h>
#include <stdint.h>

/* The block that is on offer: its handle, how many bytes of it to read, what is in each. */
struct offer {
    struct gpu_handle handle;
    uint32_t bytes;
    uint8_t byte;
};

/* What the consumer saw so far. */
struct report {
    char failed[96]; /* the call that failed and its error; empty when none did */
    uint32_t reads;  /* of the whole block */
    bool foreign;    /* it read a byte that is not the offer's: */
    uint8_t byte;
};

/* Both move all `size` bytes; false when the other side is gone. */
bool talk_send(int socket, const void *message, size_t size);
bool talk_receive(int socket, void *ret, size_t size);

/* The consumer's whole life. Returns its exit status. */
int consumer_main(int socket);

#endif
