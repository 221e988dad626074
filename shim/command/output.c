/* Files that a command writes for its user (command.h). */

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>

#include "core/base/fd.h"
#include "core/base/regular.h"
#include "core/record/trace_format.h"
#include "shim/command/command.h"

static bool refuse(const char *path, int error)
{
    const char *way_out = error == ENOENT ? "; make its folder first (mkdir -p)"
                          : error == EACCES
                              ? "; do this as a user who may write there, or name another file"
                          : error == EISDIR ? "; name a file in it"
                                            : "; name a file elsewhere";

    command_complain("'%s' cannot be written: %s%s", path, strerror(error), way_out);
    return false;
}

/* What is wrong with what is there, in words; NULL: it may go. */
static const char *look_at(const struct output *output, const char *path, const struct stat *info)
{
    char head[OUTPUT_HEAD];
    struct stat opened;
    int fd;
    size_t got;

    if (!S_ISREG(info->st_mode))
        return S_ISLNK(info->st_mode) ? "it is a symbolic link; name the file that it leads to"
                                      : "it is no regular file; name another";
    fd = gs_regular_open(AT_FDCWD, path, O_NOFOLLOW, &opened);
    got = fd >= 0 ? gs_regular_read(fd, head, sizeof head, 0) : 0;
    gs_fd_drop(fd);
    if (fd >= 0 && (opened.st_size == 0 || (got >= output->head_size &&
                                            memcmp(head, output->head, output->head_size) == 0)))
        return NULL;
    if (got >= sizeof GS_TRACE_MAGIC && memcmp(head, GS_TRACE_MAGIC, sizeof GS_TRACE_MAGIC) == 0)
        return "it is a recording; name another file";
    return "a file is there that this command did not make; name another, or remove it first";
}

/* False, and said: something is there that is not to be replaced. */
static bool may_go(const struct output *output, const char *path)
{
    const char *wrong;
    struct stat info;

    if (fstatat(AT_FDCWD, path, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT || refuse(path, errno);
    if (S_ISDIR(info.st_mode))
        return refuse(path, EISDIR);
    wrong = look_at(output, path, &info);
    if (wrong)
        command_complain("'%s' cannot be written: %s", path, wrong);
    return !wrong;
}

/* 0, or an errno. */
static int fill(const struct output *output, int fd, const void *arg)
{
    FILE *file = (errno = 0, fdopen(fd, "w"));
    int error = 0;

    if (!file || !output->write(file, arg) || fflush(file) != 0 || ferror(file) ||
        fchmod(fd, output->mode) != 0 || fsync(fd) != 0)
        error = errno ? errno : EIO;
    if (file ? fclose(file) != 0 && !error : close(fd) != 0)
        error = errno;
    return error;
}

static const char *volatile unfinished; /* the path of what is being written, or NULL */

/* The program ends meanwhile: there is no memory for it. */
static void remove_unfinished(void)
{
    if (unfinished)
        unlink(unfinished);
}

/* Or it is told to end. */
static void on_signal(int number)
{
    remove_unfinished();
    raise(number); /* which ends it, by SA_RESETHAND */
}

/* Those that would end it; who has a handler of its own goes by that. */
static void remove_on_signals(void)
{
    static const int numbers[] = {SIGHUP, SIGINT, SIGTERM};
    const struct sigaction act = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    struct sigaction now;

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            sigaction(numbers[i], &act, NULL);
}

bool output_write(const struct output *output, const char *path, const void *arg)
{
    const char *slash = strrchr(path, '/');
    static bool removes;
    char made[PATH_MAX];
    int error, fd;

    if (!may_go(output, path))
        return false;
    if (snprintf(made, sizeof made, "%.*s.gpushim-XXXXXX", slash ? (int)(slash - path) + 1 : 0,
                 path) >= (int)sizeof made)
        return refuse(path, ENAMETOOLONG);
    fd = mkostemp(made, O_CLOEXEC);
    if (fd < 0)
        return refuse(path, errno);
    unfinished = made;
    remove_on_signals();
    if (!removes) /* once: the exporter writes for ever */
        removes = atexit(remove_unfinished) == 0;
    error = fill(output, fd, arg);
    if (!error && rename(made, path) != 0)
        error = errno;
    if (error)
        unlink(made);
    unfinished = NULL;
    if (!error)
        return true;
    return refuse(path, error);
}
