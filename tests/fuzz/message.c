/* Sending for the fuzz targets (message.h). */
#include "message.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/share/token.h"

static int some_fd(uint8_t kind)
{
    int fd;

    switch (kind % 4) {
    case 0: /* what an honest exporter sends */
        fd = memfd_create("chunk", MFD_CLOEXEC);
        MUST(fd >= 0 && ftruncate(fd, 2 << 20) == 0);
        return fd;
    case 1:
        return memfd_create("empty", MFD_CLOEXEC);
    case 2:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    default:
        return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    }
}

struct fuzz_fds fuzz_fds_make(struct fuzz_input *input)
{
    struct fuzz_fds made = {.count = fuzz_byte(input) % (FUZZ_FDS + 1)};

    for (unsigned i = 0; i < made.count; i++) {
        made.fds[i] = some_fd(fuzz_byte(input));
        MUST(made.fds[i] >= 0);
    }
    return made;
}

void fuzz_fds_close(const struct fuzz_fds *fds)
{
    for (unsigned i = 0; i < fds->count; i++)
        close(fds->fds[i]);
}

bool fuzz_send(int socket, const void *bytes, size_t size, const struct fuzz_fds *fds)
{
    char control[CMSG_SPACE(FUZZ_FDS * sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};

    if (fds->count) {
        struct cmsghdr *attached;

        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(fds->count * sizeof(int));
        attached = CMSG_FIRSTHDR(&header);
        attached->cmsg_level = SOL_SOCKET;
        attached->cmsg_type = SCM_RIGHTS;
        attached->cmsg_len = CMSG_LEN(fds->count * sizeof(int));
        memcpy(CMSG_DATA(attached), fds->fds, fds->count * sizeof(int));
    }
    return sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size;
}

struct sockaddr_un fuzz_address(const char *dir, const unsigned char *instance)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(address.sun_path, sizeof address.sun_path, "%.60s/", dir);

    for (unsigned i = 0; i < GS_INSTANCE_SIZE; i++)
        n += sprintf(address.sun_path + n, "%02x", instance[i]);
    return address;
}
