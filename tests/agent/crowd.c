/* Calls an address as fast as it can, from another one, and says nothing: crowd FROM TO PORT. So
 * many calls are kept open at a time; a line is written for each thousand. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define OPEN 800

int main(int argc, char **argv)
{
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    int calls[OPEN];

    if (argc != 4 || inet_pton(AF_INET, argv[1], &from.sin_addr) != 1 ||
        inet_pton(AF_INET, argv[2], &to.sin_addr) != 1)
        return 2;
    to.sin_port = htons((uint16_t)atoi(argv[3]));
    for (unsigned i = 0;; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

        if (i >= OPEN)
            close(calls[i % OPEN]);
        calls[i % OPEN] = fd;
        if (fd < 0 || bind(fd, (struct sockaddr *)&from, sizeof from) != 0)
            continue; /* all its ports are in use: some come back */
        if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0 && i % 1000 == 0 &&
            (printf("%u\n", i) < 0 || fflush(stdout) != 0))
            return 0;
    }
}
