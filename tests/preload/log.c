/*
 * Log lines: levels, time and thread, cap on repeats, cut of long lines, target, errno, and that
 * the program notices nothing of them: no signal, no wait, no line in a file of its own.
 *
 * usage: log FILE
 */
#include "../../shim/log.h"
#include "check.h"
#include "tests/system.h"

#include <regex.h>

static const char *path;

/* What the file holds, whole. */
static const char *contents(void)
{
    static char text[100000];
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

/* Whether the log has a line of this process that ends so, with the time of now; `thread` is what
 * stands behind the process's id; "": the main one. */
static bool has_line(const char *thread, const char *text)
{
    char pattern[500], year[8], main_thread[32];
    time_t now = time(NULL);
    struct tm parts;
    regex_t regex;

    gmtime_r(&now, &parts);
    snprintf(main_thread, sizeof main_thread, "/%d", (int)getpid());
    strftime(year, sizeof year, "%Y", &parts);
    snprintf(pattern, sizeof pattern,
             "^%s-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]\\.[0-9]{3}Z "
             "gpushim\\[%d%s\\]: %s$",
             year, (int)getpid(), *thread ? thread : main_thread, text);
    CHECK(regcomp(&regex, pattern, REG_EXTENDED | REG_NEWLINE | REG_NOSUB) == 0, "%s", pattern);
    bool found = regexec(&regex, contents(), 0, NULL, 0) == 0;
    regfree(&regex);
    return found;
}

static void levels(void)
{
    gs_log(GS_LOG_ERROR, "an error %d", 1);
    gs_log(GS_LOG_WARNING, "a warning");
    gs_log(GS_LOG_INFO, "an info");
    CHECK(!gs_log_configure(GS_LOG_DEBUG, path), "configure");
    gs_log(GS_LOG_DEBUG, "a debug line");
    CHECK(has_line("", "error: an error 1") && has_line("", "warning: a warning") &&
              has_line("", "debug: a debug line") && count(contents(), "\n") == 3,
          "the log is\n%s", contents());
}

static time_t fixed; /* what CLOCK_REALTIME says; 0: the time */

int __real_clock_gettime(clockid_t clock, struct timespec *ret_time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time)
{
    if (!fixed || clock != CLOCK_REALTIME)
        return __real_clock_gettime(clock, ret_time);
    *ret_time = (struct timespec){fixed, 7000000};
    return 0;
}

/* The last second and the first of each month, and of the last days of February, in years of all
 * kinds. */
static void dates(void)
{
    const time_t day = 86400, first = 946684800; /* 2000-01-01 */
    char expected[40], text[40];
    struct tm parts;

    for (int i = 0; i < 101 * 366; i++) {
        fixed = first + i * day;
        gmtime_r(&fixed, &parts);
        if ((parts.tm_year > 112 && parts.tm_year < 198) ||
            (parts.tm_mday != 1 && !(parts.tm_mon == 1 && parts.tm_mday > 27)))
            continue;
        for (int before = 0; before < 2; before++, fixed--) {
            CHECK(truncate(path, 0) == 0, "%s", strerror(errno));
            snprintf(text, sizeof text, "date %d %d", i, before);
            gs_log_text(GS_LOG_INFO, NULL, text);
            strftime(expected, sizeof expected, "%Y-%m-%dT%H:%M:%S.007Z ",
                     gmtime_r(&fixed, &parts));
            CHECK(strncmp(contents(), expected, strlen(expected)) == 0, "not %s, but %.40s",
                  expected, contents());
        }
    }
    fixed = 0;
}

static void *another_thread(void *arg)
{
    char thread[32];

    gs_log(GS_LOG_INFO, "from a thread");
    snprintf(thread, sizeof thread, "/%d", (int)syscall(SYS_gettid));
    CHECK(has_line(thread, "info: from a thread"), "%s\n%s", thread, contents());
    return NULL;
}

static void threads(void)
{
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, another_thread, NULL) == 0, "pthread_create");
    pthread_join(thread, NULL);
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

/* Whatever a process calls itself: one line each, and nothing in it that a terminal takes for more
 * than text. */
static void words_of_others(void)
{
    char text[600];
    int lines = count(contents(), "\n");

    memset(text, 0, sizeof text);
    for (int byte = 1; byte < 256; byte++) {
        text[byte - 1] = (char)byte;
        gs_log(GS_LOG_INFO, "hostile %c", byte);
    }
    gs_log_text(GS_LOG_INFO, NULL, text);
    gs_log_text(GS_LOG_INFO, NULL, "hostile \xc2\x9b\xe2\x80\xae\xe2\x80\xa8 end");
    memset(text, '\x1b', sizeof text - 1);
    gs_log_text(GS_LOG_INFO, NULL, text);
    CHECK(count(contents(), "\n") == lines + 258, "%d lines", count(contents(), "\n") - lines);
    for (const char *c = contents(); *c; c++)
        CHECK((*c >= ' ' && *c <= '~') || *c == '\n', "byte %02x is in the log", (unsigned char)*c);
    CHECK(has_line("", "info: hostile \\\\x1b") &&
              has_line("", "info: hostile \\\\u009b\\\\u202e\\\\u2028 end"),
          "%s", contents());
    CHECK(has_line("", "info: (\\\\x1b)+\\.\\.\\."), "%s", contents());
}

/* What is no target to write to, and why; the log stays where it was. */
static void refused(void)
{
    char link[500], fifo[500];
    const struct {
        const char *path, *why;
    } cases[] = {{"/nonexistent/file", "No such file or directory"},
                 {"/", "Is a directory"},
                 {"/dev/zero", "it is neither a file nor a terminal nor a pipe"},
                 {link, "it is a symbolic link"},
                 {fifo, "nobody reads this pipe"}};

    snprintf(link, sizeof link, "%s.link", path);
    snprintf(fifo, sizeof fifo, "%s.fifo", path);
    unlink(link);
    unlink(fifo);
    CHECK(symlink(path, link) == 0 && mkfifo(fifo, 0600) == 0, "%s", strerror(errno));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int next = dup(1), after;
        const char *why;

        close(next);
        why = gs_log_configure(GS_LOG_DEBUG, cases[i].path);
        after = dup(1);
        close(after);
        CHECK(after == next, "%s: it is left open", cases[i].path);
        CHECK(why && strcmp(why, cases[i].why) == 0, "%s: %s", cases[i].path, why ? why : "taken");
    }
    gs_log(GS_LOG_INFO, "still there");
    CHECK(count(contents(), "still there\n") == 1, "the old target was given up");
    unlink(link);
    unlink(fifo);
}

/* A descriptor of the file at `path` from that number on, or -1. */
static int open_from(const char *name, int fd)
{
    struct stat status, open_file;

    CHECK(stat(name, &status) == 0, "%s: %s", name, strerror(errno));
    for (; fd < 100; fd++)
        if (fstat(fd, &open_file) == 0 && open_file.st_ino == status.st_ino)
            return fd;
    return -1;
}

static int open_at(const char *name)
{
    return open_from(name, 3);
}

static void targets(void)
{
    struct stat status;
    int fd;

    CHECK(stat(path, &status) == 0 && (status.st_mode & 0777) == 0600, "mode %o", status.st_mode);
    fd = open_at(path);
    CHECK(fd >= 0, "the target is not open");
    for (; fd >= 0; fd = open_from(path, fd + 1))
        CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC, "descriptor %d stays open over exec", fd);
    CHECK(!gs_log_configure(GS_LOG_DEBUG, "/dev/null"), "/dev/null");
    gs_log(GS_LOG_INFO, "nowhere");
    CHECK(!gs_log_configure(GS_LOG_DEBUG, path), "%s", path);
    CHECK(count(contents(), "nowhere") == 0, "%s", contents());
}

/* A program that closes descriptors which are not its own, and then opens a file. */
static void reused_descriptor(void)
{
    char other[500], text[10];
    int fd = open("/dev/null", O_WRONLY), own;

    close(fd);
    CHECK(!gs_log_configure(GS_LOG_DEBUG, path), "configure");
    snprintf(other, sizeof other, "%s.other", path);
    own = open(other, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(own >= 0 && dup2(own, fd) == fd, "%s: %s", other, strerror(errno));
    gs_log(GS_LOG_INFO, "not into the program's file");
    CHECK(pread(fd, text, sizeof text, 0) == 0, "the program's file has the line");
    CHECK(count(contents(), "not into the program's file\n") == 1, "the line is lost");
    close(fd);
    close(own);
    unlink(other);
}

static pthread_barrier_t at_once;

static void *one_of_many(void *arg)
{
    pthread_barrier_wait(&at_once);
    gs_log(GS_LOG_INFO, "at once");
    return NULL;
}

/* Threads that find it closed at the same time open it once. */
static void opened_once(void)
{
    pthread_t writers[8];
    char name[500];

    snprintf(name, sizeof name, "%s.once", path);
    CHECK(!gs_log_configure(GS_LOG_INFO, name), "configure");
    pthread_barrier_init(&at_once, NULL, 8);
    for (int round = 0; round < 2000; round++) {
        close(open_at(name));
        CHECK(open_at(name) < 0, "round %d: it was open more than once", round);
        for (int i = 0; i < 8; i++)
            CHECK(pthread_create(&writers[i], NULL, one_of_many, NULL) == 0, "a thread");
        for (int i = 0; i < 8; i++)
            pthread_join(writers[i], NULL);
    }
    unlink(name);
}

static void errno_is_kept(void)
{
    CHECK(!gs_log_configure(GS_LOG_DEBUG, path), "configure");
    errno = 77;
    gs_log(GS_LOG_INFO, "errno");
    CHECK(errno == 77, "errno is %d", errno);
}

/* ---- What the program notices: each in a process of its own, which ends with 0 if nothing. --- */

static int signals;

static void on_signal(int number)
{
    signals++;
}

/* To stderr, which is as `prepare` makes it. handled: the program has a handler, which must not
 * run; else it would be ended. */
static void unnoticed(const char *what, void (*prepare)(void), bool handled)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        const int numbers[] = {SIGPIPE, SIGXFSZ};
        struct sigaction old;
        sigset_t pending, mask;

        for (int i = 0; i < 2; i++)
            signal(numbers[i], handled ? on_signal : SIG_DFL);
        prepare();
        CHECK(!gs_log_configure(GS_LOG_DEBUG, NULL), "configure");
        for (int i = 0; i < 3; i++)
            gs_log(GS_LOG_INFO, "nobody reads this");
        sigpending(&pending);
        sigprocmask(SIG_BLOCK, NULL, &mask);
        for (int i = 0; i < 2; i++) {
            sigaction(numbers[i], NULL, &old);
            if (signals || sigismember(&pending, numbers[i]) || sigismember(&mask, numbers[i]) ||
                old.sa_handler != (handled ? on_signal : SIG_DFL))
                _exit(1);
        }
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "%s", strerror(errno));
    CHECK(status == 0, "%s, %s: %s %d", what, handled ? "handled" : "as in every program",
          WIFSIGNALED(status) ? "signal" : "exit",
          WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static void to_pipe_nobody_reads(void)
{
    int ends[2];
    if (pipe(ends) != 0 || dup2(ends[1], 2) != 2)
        _exit(2);
    close(ends[0]);
    close(ends[1]);
}

static void to_socket_nobody_reads(void)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || dup2(ends[1], 2) != 2)
        _exit(2);
    close(ends[0]);
    close(ends[1]);
}

static void to_full_file(void)
{
    const struct rlimit none = {0, 0};
    char name[500];
    snprintf(name, sizeof name, "%s.full", path);
    int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || dup2(fd, 2) != 2 || setrlimit(RLIMIT_FSIZE, &none) != 0)
        _exit(2);
    unlink(name);
}

static void closed(void)
{
    close(2);
}

/* Nobody reads, but somebody could: the pipe's buffer is full, and stays so. */
static int full_ends[2];

static void to_full_pipe(void)
{
    char byte = 0;
    if (pipe(full_ends) != 0 || dup2(full_ends[1], 2) != 2)
        _exit(2);
    fcntl(2, F_SETFL, O_NONBLOCK);
    while (write(2, &byte, 1) == 1)
        ;
    fcntl(2, F_SETFL, 0);
}

/* A SIGXFSZ that the program holds back, and has not taken yet, is its own. (Into a pipe that
 * nobody reads nothing is written.) */
static void pending_signal_stays(void)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        sigset_t set, pending;
        sigemptyset(&set);
        sigaddset(&set, SIGXFSZ);
        sigprocmask(SIG_BLOCK, &set, NULL);
        raise(SIGXFSZ);
        to_full_file();
        gs_log_configure(GS_LOG_DEBUG, NULL);
        gs_log(GS_LOG_INFO, "nobody reads this");
        sigpending(&pending);
        _exit(sigismember(&pending, SIGXFSZ) ? 0 : 1);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "status %x", status);
}

static void nothing_is_noticed(void)
{
    for (int handled = 0; handled < 2; handled++) {
        unnoticed("a pipe that nobody reads", to_pipe_nobody_reads, handled);
        unnoticed("a socket that nobody reads", to_socket_nobody_reads, handled);
        unnoticed("a file at its limit", to_full_file, handled);
        unnoticed("a closed stderr", closed, handled);
        unnoticed("a full pipe", to_full_pipe, handled);
    }
    pending_signal_stays();
}

/* ---- Standard error that is closed, and another file under its number ------------------------ */

enum moment { BEFORE, LATER };

/* What a process has in the file that is opened as `flags` when standard error was closed, or which
 * takes its place; 0: nothing. Each in a process of its own, in which standard error was a pipe. */
static off_t written(enum moment closed_when, int flags, bool takes_its_place)
{
    char name[500];
    struct stat status;
    pid_t child;
    int exit_status;

    snprintf(name, sizeof name, "%s.data", path);
    unlink(name);
    child = fork();
    if (child == 0) {
        int ends[2], fd;

        if (pipe(ends) != 0 || dup2(ends[1], 2) != 2)
            _exit(2);
        if (closed_when == BEFORE)
            close(2);
        gs_log_configure(GS_LOG_DEBUG, NULL);
        gs_log(GS_LOG_INFO, "before");
        if (!takes_its_place)
            close(2);
        fd = open(name, flags | O_CREAT, 0600);
        if (takes_its_place ? dup2(fd, 2) != 2 : fd != 2)
            _exit(3);
        gs_log(GS_LOG_INFO, "after");
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &exit_status, 0) == child && exit_status == 0, "status %x",
          exit_status);
    CHECK(stat(name, &status) == 0, "%s", strerror(errno));
    unlink(name);
    return status.st_size;
}

static void not_into_what_got_its_number(void)
{
    CHECK(written(BEFORE, O_WRONLY, false) == 0, "there was none at the beginning");
    CHECK(written(BEFORE, O_RDWR, false) == 0, "there was none at the beginning");
    CHECK(written(LATER, O_WRONLY | O_CLOEXEC, false) == 0, "a file that no child gets");
    CHECK(written(LATER, O_WRONLY, true) > 0, "a program that sends it elsewhere has no log");
    CHECK(written(LATER, O_RDWR | O_CLOEXEC, true) > 0,
          "a program that sends it elsewhere has no log");
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
    dup2(saved, 2); /* from here on a failed check is seen */
    dates();
    threads();
    repeats();
    long_line();
    words_of_others();
    refused();
    targets();
    reused_descriptor();
    opened_once();
    errno_is_kept();
    nothing_is_noticed();
    not_into_what_got_its_number();
    return 0;
}
