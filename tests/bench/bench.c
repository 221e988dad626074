/*
 * What the measuring programs share: see bench.h.
 */
#include "bench.h"
#include "shim/gpushim.h"

#include <link.h>
#include <spawn.h>

/* Address space is all it takes: memory that nobody touches costs nothing there. */
#define SOFTWARE_MEMORY "256G"

void bench_die(const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "%s: ", program_invocation_short_name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

const char *bench_error(CUresult result)
{
    const char *name = NULL;

    cuGetErrorName(result, &name);
    return name ? name : "an unknown error";
}

void bench_failed(CUresult result, const char *call)
{
    bench_die("%s: %s", call, bench_error(result));
}

bool bench_number(const char *text, uint64_t *ret_number)
{
    static const char suffixes[] = "KMG";
    char *end;
    unsigned shift = 0;

    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    if (*end) {
        const char *suffix = strchr(suffixes, *end);
        if (!suffix || end[1])
            return false;
        shift = 10 * (unsigned)(suffix - suffixes + 1);
    }
    if (errno || number << shift >> shift != number)
        return false;
    *ret_number = number << shift;
    return true;
}

__attribute__((noreturn)) static void wrong_call(const char *argument, const char *usage)
{
    fprintf(stderr, "%s: cannot use '%s'\nusage: %s\n", program_invocation_short_name, argument,
            usage);
    exit(2);
}

/* Returns whether the option took the argument after it. */
static bool take_option(const struct bench_option *option, const char *value, const char *usage)
{
    if (option->kind == BENCH_FLAG) {
        *(bool *)option->value = true;
        return false;
    }
    if (!value)
        wrong_call(option->name, usage);
    if (option->kind == BENCH_TEXT)
        *(const char **)option->value = value;
    else if (!bench_number(value, option->value))
        wrong_call(value, usage);
    return true;
}

const char *bench_options(char **argv, const struct bench_option *options, const char *usage)
{
    const char *other = NULL;

    for (char **at = argv + 1; *at; at++) {
        const struct bench_option *option = options;
        if (strncmp(*at, "--", 2) != 0) {
            if (other)
                wrong_call(*at, usage);
            other = *at;
            continue;
        }
        while (option->name && strcmp(option->name, *at + 2) != 0)
            option++;
        if (!option->name)
            wrong_call(*at, usage);
        if (take_option(option, at[1], usage))
            at++;
    }
    return other;
}

uint64_t bench_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

uint64_t bench_median(uint64_t *values, size_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

void *bench_array(size_t count, size_t size)
{
    void *array = calloc(count ? count : 1, size);

    if (!array)
        bench_die("no host memory for %zu objects of %zu bytes", count, size);
    return array;
}

/* ---- the device ---- */

bool bench_software_driver(void)
{
    return dlsym(RTLD_DEFAULT, "softcuda_version") != NULL;
}

static int is_shim(struct dl_phdr_info *info, size_t size, void *found)
{
    const char *slash = strrchr(info->dlpi_name, '/');

    *(bool *)found = strcmp(slash ? slash + 1 : info->dlpi_name, "libgpushim.so") == 0;
    return *(bool *)found;
}

bool bench_under_shim(void)
{
    const char *enable = getenv("GPUSHIM_ENABLE");
    bool found = false;

    dl_iterate_phdr(is_shim, &found);
    return found && !(enable && (strcmp(enable, "0") == 0 || strcmp(enable, "off") == 0));
}

bool bench_library_memory(struct gpushim_memory *ret_memory)
{
    __typeof__(gpushim_memory) *ask;

    *(void **)&ask = dlsym(RTLD_DEFAULT, "gpushim_memory");
    ret_memory->size = sizeof *ret_memory;
    return ask && ask(0, ret_memory) == 0;
}

CUcontext bench_start(void)
{
    CUcontext context;
    CUdevice device;

    setenv("SOFTCUDA_MEMORY", SOFTWARE_MEMORY, 0);
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    return context;
}

/* ---- other processes ---- */

char **bench_environment_without_preload(void)
{
    size_t count = 0, kept = 0;

    while (environ[count])
        count++;
    char **copy = bench_array(count + 1, sizeof *copy);
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], "LD_PRELOAD=", 11) != 0)
            copy[kept++] = environ[i];
    return copy;
}

int bench_spawn_self(const char *const *arguments, bool preload, pid_t *ret_pid)
{
    char *argv[16] = {program_invocation_name};
    char **env = preload ? environ : bench_environment_without_preload();
    posix_spawn_file_actions_t actions;
    int pair[2];

    for (int i = 0; arguments[i]; i++) {
        if (i + 2 == (int)(sizeof argv / sizeof *argv))
            bench_die("too many arguments for a second process");
        argv[i + 1] = (char *)(uintptr_t)arguments[i];
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        bench_die("socketpair: %s", strerror(errno));
    /* dup2 onto itself would keep close-on-exec. */
    if (pair[1] == BENCH_SOCKET && (pair[1] = dup(BENCH_SOCKET)) < 0)
        bench_die("dup: %s", strerror(errno));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair[1], BENCH_SOCKET);
    errno = posix_spawn(ret_pid, "/proc/self/exe", &actions, NULL, argv, env);
    if (errno)
        bench_die("cannot start a second process: %s", strerror(errno));
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    if (env != environ)
        free(env);
    return pair[0];
}

void bench_wait(pid_t pid, int socket)
{
    int status;

    close(socket);
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        bench_die("the second process failed");
}

void bench_send(int socket, const void *data, size_t size)
{
    const char *at = data;

    while (size > 0) {
        ssize_t sent = send(socket, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            bench_die("the other process is gone");
        at += sent;
        size -= (size_t)sent;
    }
}

void bench_receive(int socket, void *data, size_t size)
{
    char *at = data;

    while (size > 0) {
        ssize_t got = recv(socket, at, size, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            bench_die("the other process is gone");
        at += got;
        size -= (size_t)got;
    }
}

/* ---- the JSON line ---- */

/* Gathered here, so that a program that fails half-way prints none. */
static char *line;
static size_t line_size;
static FILE *line_file;

#define DEEPEST 8
static char closers[DEEPEST];
static unsigned depth;
static bool is_first; /* of its object or list */

static void value(const char *key)
{
    if (!is_first)
        fputs(", ", line_file);
    is_first = false;
    if (key)
        fprintf(line_file, "\"%s\": ", key);
}

static void open_value(const char *key, const char *brackets)
{
    value(key);
    if (depth == DEEPEST)
        bench_die("the result is too deep");
    fputc(brackets[0], line_file);
    closers[depth++] = brackets[1];
    is_first = true;
}

void json_object(const char *key)
{
    open_value(key, "{}");
}

void json_list(const char *key)
{
    open_value(key, "[]");
}

void json_close(void)
{
    fputc(closers[--depth], line_file);
    is_first = false;
}

void json_begin(const char *name)
{
    line_file = open_memstream(&line, &line_size);
    if (!line_file)
        bench_die("no host memory for the result");
    fputc('{', line_file);
    is_first = true;
    json_text("bench", name);
    json_text("driver", bench_software_driver() ? "software" : "real");
    json_bool("shim", bench_under_shim());
}

void json_count(const char *key, uint64_t number)
{
    value(key);
    fprintf(line_file, "%llu", (unsigned long long)number);
}

void json_number(const char *key, double number)
{
    value(key);
    fprintf(line_file, "%.6g", number);
}

void json_text(const char *key, const char *text)
{
    value(key);
    fputc('"', line_file);
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            fprintf(line_file, "\\%c", *text);
        else if ((unsigned char)*text < ' ')
            fprintf(line_file, "\\u%04x", (unsigned)*text);
        else
            fputc(*text, line_file);
    fputc('"', line_file);
}

void json_bool(const char *key, bool truth)
{
    value(key);
    fputs(truth ? "true" : "false", line_file);
}

void json_null(const char *key)
{
    value(key);
    fputs("null", line_file);
}

void json_end(void)
{
    fputs("}\n", line_file);
    if (fclose(line_file) != 0)
        bench_die("no host memory for the result");
    if (fputs(line, stdout) == EOF || fflush(stdout) != 0)
        bench_die("cannot write the result: %s", strerror(errno));
    free(line);
}
