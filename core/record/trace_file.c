/* The file of a recording (core/record/trace_file.h). */
#include "core/record/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/cancel.h"
#include "core/base/clock.h"
#include "core/base/fd.h"
#include "core/base/path.h"
#include "core/base/quiet.h"

#define ANOTHERS (-1) /* the file is of the process that this one was forked of */

static struct {
    struct gs_latch lock; /* rank TRACE_FILE; protects all that follows. Its holder waits for the
                             file, and nobody waits for it but who writes there, too. */
    pid_t writer;         /* atomic: the thread that has the lock */
    pid_t process;
    struct gs_fd fd;
    uint64_t offset; /* of the next block */
    bool over;       /* nothing can be written any more */
    bool ended;      /* the last block says that nothing is missing; it is at the offset */
    struct gs_trace_block end;
    const struct gs_log *log;
    char path[4096];
} file = {.lock = {0, GS_RANK_TRACE_FILE}};

static pid_t this_thread(void)
{
    return (pid_t)syscall(SYS_gettid);
}

bool gs_trace_take(struct gs_latch *lock, const pid_t *owner)
{
    while (!gs_latch_try(lock)) {
        pid_t has = __atomic_load_n(owner, __ATOMIC_RELAXED);

        if (has == this_thread() || (has && syscall(SYS_tgkill, getpid(), has, 0) != 0))
            return false;
        gs_rest_ns(GS_NS_PER_MS);
    }
    return true;
}

/* 0, or an errno. */
static int write_at(int fd, const void *bytes, size_t size, uint64_t offset)
{
    for (size_t done = 0; done < size;) {
        ssize_t written =
            pwrite(fd, (const char *)bytes + done, size - done, (off_t)(offset + done));

        if (written < 0 && errno != EINTR)
            return errno;
        if (written == 0)
            return EIO;
        done += written > 0 ? (size_t)written : 0;
    }
    return 0;
}

/* ---- Opening -------------------------------------------------------------------------------- */

/* Only what nobody misses is written over. NULL, or why it is not. */
static const char *look_at(int fd)
{
    char magic[sizeof GS_TRACE_MAGIC] = "";
    struct stat status;

    if (fstat(fd, &status) != 0)
        return strerror(errno);
    if (!S_ISREG(status.st_mode))
        return "it is no regular file";
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return "another process records there; with %p in the name each has a file of its own";
    if (status.st_size > 0 && (pread(fd, magic, sizeof magic, 0) != (ssize_t)sizeof magic ||
                               memcmp(magic, GS_TRACE_MAGIC, sizeof magic) != 0))
        return "there is a file already that is no recording; remove it, or choose another name";
    return ftruncate(fd, 0) == 0 ? NULL : strerror(errno);
}

/* Its descriptor, or -1 and why. */
static int open_new(const char *path, const char **ret_wrong)
{
    /* NOFOLLOW: where others may put names, a link leads elsewhere. NONBLOCK: a pipe is no file to
     * wait for. */
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK, 0600);

    *ret_wrong = fd >= 0 ? look_at(fd) : errno == ELOOP ? "it is a symbolic link" : strerror(errno);
    if (!*ret_wrong)
        return fd;
    gs_fd_drop(fd);
    return -1;
}

static const char *write_header(int fd, bool has_stacks, uint64_t *ret_began_ns)
{
    struct gs_trace_header header = {.magic = GS_TRACE_MAGIC,
                                     .version = GS_TRACE_VERSION,
                                     .header_size = sizeof header,
                                     .pid = (int32_t)getpid(),
                                     .has_stacks = has_stacks};
    struct gs_quiet quiet;
    struct timespec now;
    int error = EINTR;

    clock_gettime(CLOCK_REALTIME, &now);
    header.monotonic_ns = *ret_began_ns = gs_now_ns();
    header.realtime_ns = (uint64_t)now.tv_sec * GS_NS_PER_S + (uint64_t)now.tv_nsec;
    snprintf(header.program, sizeof header.program, "%s", program_invocation_short_name);
    if (gs_quiet_begin(&quiet)) {
        error = write_at(fd, &header, sizeof header, 0);
        gs_quiet_end(&quiet, error);
    }
    return error ? strerror(error) : NULL;
}

const char *gs_trace_file_open(const char *path, bool has_stacks, const struct gs_log *log,
                               uint64_t *ret_began_ns)
{
    const char *wrong;
    int fd;

    if (!gs_path_of_process(path, file.path, sizeof file.path))
        return "its name is too long";
    fd = open_new(file.path, &wrong);
    if (fd < 0)
        return wrong;
    wrong = write_header(fd, has_stacks, ret_began_ns);
    file.fd = gs_fd_keep(fd);
    if (!wrong && !file.fd.any)
        wrong = "what it is cannot be told (statx)";
    if (wrong)
        close(fd);
    file.offset = sizeof(struct gs_trace_header);
    file.process = getpid();
    file.over = wrong != NULL;
    file.ended = false;
    file.log = log;
    return wrong;
}

/* ---- Writing -------------------------------------------------------------------------------- */

/* The descriptor, opened again where the program has closed it; -1 where that cannot be. */
static int current_fd_locked(void)
{
    struct gs_fd again;
    int fd;

    gs_latch_assert_held(&file.lock);
    if (gs_fd_is_there(&file.fd))
        return file.fd.fd;
    fd = open(file.path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK);
    again = gs_fd_keep(fd);
    if (!again.any || again.inode != file.fd.inode || again.device != file.fd.device ||
        (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)) {
        gs_fd_drop(fd);
        return -1;
    }
    file.fd = again;
    return fd;
}

/* What was recorded last stays whole. */
static int append_locked(const struct gs_trace_block *block)
{
    int fd, error = 0;

    gs_latch_assert_held(&file.lock);
    if (file.process != getpid())
        return ANOTHERS;
    fd = current_fd_locked();
    if (fd < 0)
        return EBADF;
    if (block->kind == GS_TRACE_END) {
        file.end = *block;
        file.ended = true;
    } else {
        error = write_at(fd, block, block->size, file.offset);
        file.offset += error ? 0 : block->size;
    }
    if (!error && file.ended)
        error = write_at(fd, &file.end, sizeof file.end, file.offset);
    if (error && ftruncate(fd, (off_t)file.offset) != 0)
        file.over = true; /* it is, and ends within a block */
    return error;
}

static void warn(int error)
{
    if (error == EBADF)
        gs_log_line(
            file.log, GS_LOG_WARNING,
            "the recording ends: the program has closed its descriptor, and %s is not there "
            "any more",
            file.path);
    else if (error != ANOTHERS)
        gs_log_line(file.log, GS_LOG_WARNING,
                    "the recording ends: %s cannot be written (%s); make room, and record again",
                    file.path, strerror(error));
}

bool gs_trace_file_put(const struct gs_trace_block *block, bool exiting)
{
    struct gs_quiet quiet;
    int error = 0;
    bool well;

    GS_UNCANCELLED;
    if (!gs_quiet_begin(&quiet))
        return false;
    if (!exiting)
        gs_latch_take(&file.lock);
    else if (!gs_trace_take(&file.lock, &file.writer))
        return gs_quiet_end(&quiet, 0), false;
    __atomic_store_n(&file.writer, this_thread(), __ATOMIC_RELAXED);
    if (!file.over)
        error = append_locked(block);
    file.over |= error != 0;
    well = !file.over;
    __atomic_store_n(&file.writer, 0, __ATOMIC_RELAXED);
    gs_latch_release(&file.lock);
    gs_quiet_end(&quiet, error > 0 ? error : 0);
    if (error)
        warn(error);
    return well;
}

void gs_trace_file_forked(void)
{
    gs_fd_close(&file.fd);
    file.lock.state = 0;
    file.writer = 0;
    file.over = true;
}
