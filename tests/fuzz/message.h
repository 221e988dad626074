/* Messages as a hostile neighbour sends them: any bytes, any number of any descriptors. */
#ifndef GS_TESTS_FUZZ_MESSAGE_H
#define GS_TESTS_FUZZ_MESSAGE_H

#include "fuzz.h"

#include "core/share/wire.h"
#include "tests/system.h"

#define FUZZ_FDS   3
#define FUZZ_BYTES 1024 /* longer than any message */

struct fuzz_fds {
    int fds[FUZZ_FDS];
    unsigned count;
};

/* Up to three descriptors, as the input says; fuzz_fds_close closes them. */
struct fuzz_fds fuzz_fds_make(struct fuzz_input *input);
void fuzz_fds_close(const struct fuzz_fds *fds);
/* How long what is sent is to be, up to FUZZ_BYTES. */
size_t fuzz_length(struct fuzz_input *input);
/* The ids and numbers of a message that has only one, and of PUBLISH all, as the input says. */
void fuzz_fill(struct fuzz_input *input, union gs_wire_message *message);
/* What comes with a PUBLISH: a sealed memfd with a few ids, or another descriptor. */
struct fuzz_fds fuzz_confirmed_make(struct fuzz_input *input);
/* Sends without waiting; whether the other side took it. */
bool fuzz_send(int socket, const void *bytes, size_t size, const struct fuzz_fds *fds);
/* Connected to it. */
int fuzz_dial(const struct sockaddr_un *address);
/* Waits for something to read; the fuzzer's own alarm may come in between. */
bool fuzz_readable(int fd, int limit_ms);
/* The address of the exporter with that instance in the folder. */
struct sockaddr_un fuzz_address(const char *dir, const unsigned char *instance);

/* The next message, as gs_wire_receive says; of the descriptors that came the first one, or -1. */
int fuzz_receive(int fd, union gs_wire_message *ret_message, int *ret_fd);

#endif
