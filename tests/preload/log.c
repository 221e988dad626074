/*
 * Log lines: levels, cap on repeats, cut of long lines, target, errno.
 *
 * usage: log FILE
 */
#include "../../shim/log.h"
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

static const char *path;

/* What the file holds, whole. */
static const char *contents(void)
{
    static char text[20000];
    FILE *file = fopen(path, "r");
    CHECK(file, "%s: %s", path, strerror(errno));
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    return text;
}

static int count(const char *text, const char *part)
{
    int times = 0;
    for (; (text = strstr(text, part)); text++)
        times++;
    return times;
}

static void levels(void)
{
    gs_log(GS_LOG_ERROR, "an error %d", 1);
    gs_log(GS_LOG_WARNING, "a warning");
    gs_log(GS_LOG_INFO, "an info");
    CHECK(gs_log_configure(GS_LOG_DEBUG, path) == 0, "configure");
    gs_log(GS_LOG_DEBUG, "a debug line");
    char expected[200];
    snprintf(expected, sizeof(expected),
             "gpushim[%d]: error: an error 1\ngpushim[%d]: warning: a warning\n"
             "gpushim[%d]: debug: a debug line\n",
             getpid(), getpid(), getpid());
    CHECK(strcmp(contents(), expected) == 0, "the log is\n%s", contents());
}

static void repeats(void)
{
    for (int i = 0; i < 50; i++) {
        gs_log(GS_LOG_WARNING, "again %d", i);
        gs_log(GS_LOG_INFO, "often %d", i);
    }
    CHECK(count(contents(), "again ") == 5, "%d warnings", count(contents(), "again "));
    CHECK(count(contents(), "again 4 (and so on; not shown again)\n") == 1, "the last one");
    CHECK(count(contents(), "often ") == 50, "%d infos", count(contents(), "often "));
}

static void long_line(void)
{
    char text[3000];
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    gs_log(GS_LOG_INFO, "%s", text);
    const char *line = strstr(contents(), "xxx");
    CHECK(line && strspn(line, "x") == 1000, "%zu characters", strspn(line, "x"));
    CHECK(line[1000] == '\n', "no newline after a cut line");
}

static void targets(void)
{
    CHECK(gs_log_configure(GS_LOG_DEBUG, "/nonexistent/file") == ENOENT, "a target that is not");
    gs_log(GS_LOG_INFO, "still there");
    CHECK(count(contents(), "still there\n") == 1, "the old target was given up");
    struct stat status;
    CHECK(stat(path, &status) == 0 && (status.st_mode & 0777) == 0600, "mode %o", status.st_mode);
    int found = 0;
    for (int fd = 3; fd < 100; fd++) {
        struct stat open_file;
        if (fstat(fd, &open_file) != 0 || open_file.st_ino != status.st_ino)
            continue;
        found++;
        CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC, "descriptor %d stays open over exec", fd);
    }
    CHECK(found > 0, "the target is not open");
}

static void errno_is_kept(void)
{
    CHECK(gs_log_configure(GS_LOG_DEBUG, "/dev/full") == 0, "configure");
    errno = 77;
    gs_log(GS_LOG_INFO, "to a full disk");
    CHECK(errno == 77, "errno is %d", errno);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: log FILE");
    path = argv[1];
    unlink(path);
    /* Stderr is the file for the lines before it is a target by name. */
    int saved = dup(2);
    fcntl(saved, F_SETFD, FD_CLOEXEC);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && dup2(fd, 2) == 2, "%s: %s", path, strerror(errno));
    gs_log(GS_LOG_DEBUG, "not shown by default");
    levels();
    repeats();
    long_line();
    targets();
    errno_is_kept();
    dup2(saved, 2);
    return 0;
}
