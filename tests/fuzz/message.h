/* Messages as a hostile neighbour sends them: any bytes, any number of any descriptors. */
#ifndef GS_TESTS_FUZZ_MESSAGE_H
#define GS_TESTS_FUZZ_MESSAGE_H

#include "fuzz.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#define FUZZ_FDS 3

struct fuzz_fds {
    int fds[FUZZ_FDS];
    unsigned count;
};

/* Up to three descriptors, as the input says; fuzz_fds_close closes them. */
struct fuzz_fds fuzz_fds_make(struct fuzz_input *input);
void fuzz_fds_close(const struct fuzz_fds *fds);
/* Sends without waiting; whether the other side took it. */
bool fuzz_send(int socket, const void *bytes, size_t size, const struct fuzz_fds *fds);
/* The address of the exporter with that instance in the folder. */
struct sockaddr_un fuzz_address(const char *dir, const unsigned char *instance);

#endif
