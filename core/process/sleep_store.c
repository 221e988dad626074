/* Where the contents of GPU memory are while it is away (core/process/sleep_store.h). */
#include "core/process/sleep_store.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/base/background.h"
#include "core/base/clock.h"
#include "core/base/regular.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21 /* Linux 5.4 */
#endif

#define FILLERS_MOST 8
#define REST_NS      UINT64_C(50000) /* between looks at a part */
#define MIB          (1024 * 1024)
#define WINDOW       ((size_t)32 * MIB)
#define TEXT         8192 /* of a file of the kernel's; what is looked for there is before that */

/* ---- How much there is ----------------------------------------------------------------------- */

/* A file of the kernel's, to be freed; "" or NULL: there is none. */
static char *read_text(const char *folder, const char *name)
{
    struct stat info;
    char path[512], *text = calloc(1, TEXT);
    int fd;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    fd = text ? gs_regular_open(AT_FDCWD, path, 0, &info) : -1;

    if (fd >= 0) {
        gs_regular_read(fd, text, TEXT - 1, 0);
        close(fd);
    }
    return text;
}

/* The next line, which is taken off the text; NULL: there is none. */
static char *next_line(char **text)
{
    char *line = *text, *end = strchr(line, '\n');

    *text = end ? end + 1 : line + strlen(line);
    if (end)
        *end = 0;
    return line[0] || end ? line : NULL;
}

/* The number behind a word in a file, or its first one (word ""); false: there is none. */
static bool read_number(const char *folder, const char *name, const char *word, size_t *ret)
{
    const size_t length = strlen(word);
    char *all = read_text(folder, name), *text = all, *line, *end;
    bool found = false;

    while (!found && text && (line = next_line(&text))) {
        unsigned long long number;

        if (strncmp(line, word, length) != 0)
            continue;
        number = strtoull(line + length, &end, 10);
        found = end != line + length;
        if (found)
            *ret = (size_t)number;
    }
    free(all);
    return found;
}

static size_t less(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* What one group leaves; page cache of it goes where memory is wanted. SIZE_MAX: it bounds
 * nothing. */
static size_t left_in(const char *folder, const char *limit_name, const char *used_name,
                      const char *cache_word)
{
    size_t limit, used, cache = 0;

    if (!read_number(folder, limit_name, "", &limit) || !read_number(folder, used_name, "", &used))
        return SIZE_MAX;
    read_number(folder, "memory.stat", cache_word, &cache);
    used -= less(cache, used);
    return limit > used ? limit - used : 0;
}

/* Of the second kind, which has two limits: beyond the lower one the kernel lets its processes all
 * but stand still. */
static size_t left_in_second(const char *folder)
{
    return less(left_in(folder, "memory.max", "memory.current", "inactive_file "),
                left_in(folder, "memory.high", "memory.current", "inactive_file "));
}

/* A group and all above it. */
static size_t left_in_groups(const char *root, char *group, bool second)
{
    size_t left = SIZE_MAX;

    for (;;) {
        char folder[384];
        char *slash;

        snprintf(folder, sizeof folder, "%s%s", root, group);
        left = less(left, second ? left_in_second(folder)
                                 : left_in(folder, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                           "total_inactive_file "));
        slash = strrchr(group, '/');
        if (!slash || !*group)
            return left;
        *slash = 0;
    }
}

static size_t left_by_groups(void)
{
    char *all = read_text("/proc/self", "cgroup"), *text = all, *line;
    size_t left = SIZE_MAX;

    while (text && (line = next_line(&text))) {
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;

        if (!group)
            continue;
        *group++ = 0;
        if (strcmp(group, "/") == 0)
            *group = 0;
        if (strcmp(names, ":") == 0)
            left = less(left, left_in_groups("/sys/fs/cgroup", group, true));
        else if (strstr(names, "memory"))
            left = less(left, left_in_groups("/sys/fs/cgroup/memory", group, false));
    }
    free(all);
    return left;
}

static size_t host_memory_left(void)
{
    size_t kib = SIZE_MAX / 1024;

    read_number("/proc", "meminfo", "MemAvailable:", &kib);
    return less(kib * 1024, left_by_groups());
}

/* ---- Making it ------------------------------------------------------------------------------- */

struct gs_sleep_filling {
    char *base;
    size_t size, parts;
    size_t next; /* the part that is begun next; */
    int error;   /* and what ended that early; atomic, both */
    unsigned started;
    struct gs_background fillers[FILLERS_MOST];
    bool there[]; /* by part; atomic */
};

/* All its pages are there afterwards; an errno. */
static int touch(char *base, size_t size)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (madvise(base, size, MADV_POPULATE_WRITE) == 0)
        return 0;
    if (errno != EINVAL)
        return errno;
    for (size_t at = 0; at < size; at += page)
        *(volatile char *)(base + at) = 0;
    return 0;
}

/* False: all are begun, or one failed. */
static bool fill_next(struct gs_sleep_filling *filling)
{
    const size_t part = __atomic_fetch_add(&filling->next, 1, __ATOMIC_RELAXED),
                 at = part * GS_SLEEP_PART;
    int error;

    if (part >= filling->parts)
        return false;
    /* Others may have taken what there was: two that fall asleep at once each found room. */
    error = host_memory_left() < filling->size - at ? ENOMEM : 0;
    if (!error)
        error = touch(filling->base + at, less(GS_SLEEP_PART, filling->size - at));
    if (error) {
        __atomic_store_n(&filling->error, error, __ATOMIC_RELAXED);
        __atomic_store_n(&filling->next, filling->parts, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&filling->there[part], true, __ATOMIC_RELEASE);
    return error == 0;
}

static void *fill(void *arg)
{
    while (fill_next(arg))
        continue;
    return NULL;
}

static void end_filling(struct gs_sleep_store *store)
{
    struct gs_sleep_filling *filling = store->filling;

    if (!filling)
        return;
    __atomic_store_n(&filling->next, filling->parts, __ATOMIC_RELAXED);
    while (filling->started > 0)
        gs_background_join(&filling->fillers[--filling->started]);
    free(filling);
    store->filling = NULL;
}

/* By threads, where there is more than one part; else by who awaits it. */
static int begin_filling(struct gs_sleep_store *store)
{
    const size_t parts = (store->size + GS_SLEEP_PART - 1) / GS_SLEEP_PART;
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    const size_t most =
        less(less(FILLERS_MOST, cpus > 1 ? (size_t)cpus : 1), parts > 1 ? parts : 0);
    struct gs_sleep_filling *filling = calloc(1, sizeof *filling + parts * sizeof *filling->there);

    store->filling = filling;
    if (!filling)
        return ENOMEM;
    filling->base = store->base;
    filling->size = store->size;
    filling->parts = parts;
    while (filling->started < most &&
           gs_background_start(&filling->fillers[filling->started], fill, filling) == 0)
        filling->started++;
    return 0;
}

int gs_sleep_store_await(struct gs_sleep_store *store, size_t part)
{
    struct gs_sleep_filling *filling = store->filling;
    int error;

    if (!filling)
        return 0;
    while (!__atomic_load_n(&filling->there[part], __ATOMIC_ACQUIRE) &&
           !__atomic_load_n(&filling->error, __ATOMIC_RELAXED)) {
        if (filling->started > 0)
            gs_rest_ns(REST_NS);
        else
            fill_next(filling);
    }
    error = __atomic_load_n(&filling->error, __ATOMIC_RELAXED);
    if (error || part + 1 == filling->parts)
        end_filling(store);
    return error;
}

static int refuse(int error, char *text, size_t size, const char *what, size_t wanted, size_t left)
{
    snprintf(text, size, "%zu MiB are to be kept, and %s has room for %zu", wanted / MIB, what,
             left / MIB);
    return error;
}

/* A forked child has none of it, nor has a core file. NULL: errno says why. */
static char *map(size_t size, int flags, int fd)
{
    char *base = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);

    if (base == MAP_FAILED)
        return NULL;
    madvise(base, size, MADV_DONTFORK);
    madvise(base, size, MADV_DONTDUMP);
    return base;
}

static int make_in_memory(struct gs_sleep_store *store, char *text, size_t text_size)
{
    const size_t left = host_memory_left();
    int error;

    if (left < store->size)
        return refuse(ENOMEM, text, text_size, "the host's memory", store->size, left);
    store->base = map(store->size, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!store->base)
        return refuse(ENOMEM, text, text_size, "this process's address space", store->size, 0);
    store->window = store->base;
    store->window_size = store->size;
    madvise(store->base, store->size, MADV_HUGEPAGE);
    error = begin_filling(store);
    return error ? refuse(error, text, text_size, "the host's memory", store->size, 0) : 0;
}

/* A file of mode 0600 that goes with its last user. */
static int open_unnamed(const char *directory)
{
    char path[4096];
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd;
    if (snprintf(path, sizeof path, "%s/.gpushim-sleep-XXXXXX", directory) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlinkat(AT_FDCWD, path, 0);
    return fd;
}

/* By this name: musl's libc, into whose programs the library comes by mistake, has no other. */
int plain_fallocate(int fd, off_t offset, off_t size) __asm__("posix_fallocate");

/* Beyond the process's limit the kernel sends a signal that ends it. Another signal ends the call,
 * and tmpfs takes back what it had. */
static int allocate(int fd, size_t size)
{
    struct rlimit limit;
    sigset_t all, mask;
    int error;

    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && size > limit.rlim_cur)
        return EFBIG;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    error = plain_fallocate(fd, 0, (off_t)size);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    return error;
}

static int make_in_file(struct gs_sleep_store *store, const char *directory, char *text,
                        size_t text_size)
{
    int fd = open_unnamed(directory), error = 0;

    if (fd < 0) {
        error = errno;
        snprintf(text, text_size, "no file can be made in %s: %s", directory, strerror(error));
        return error;
    }
    error = allocate(fd, store->size);
    if (error == 0) {
        store->window_size = less(WINDOW, store->size);
        store->base = map(store->size, MAP_SHARED, fd);
        store->window =
            store->base ? map(store->window_size, MAP_PRIVATE | MAP_ANONYMOUS, -1) : NULL;
        error = store->window ? 0 : errno;
    }
    close(fd);
    if (error)
        snprintf(text, text_size, "%zu MiB are to be kept, and %s has no room for them: %s",
                 store->size / MIB, directory, strerror(error));
    return error;
}

int gs_sleep_store_make(struct gs_sleep_store *store, size_t size, const char *directory,
                        char *ret_text, size_t text_size)
{
    int error = 0;

    *store = (struct gs_sleep_store){.size = size, .in_file = directory != NULL};
    if (size == 0)
        return 0;
    error = directory ? make_in_file(store, directory, ret_text, text_size)
                      : make_in_memory(store, ret_text, text_size);
    if (error)
        gs_sleep_store_free(store);
    return error;
}

int gs_sleep_store_move(const struct gs_sleep_store *store, size_t offset, size_t size, bool out)
{
    /* The process's own number is the main thread's, which has no memory once it has ended. */
    const pid_t self = (pid_t)syscall(SYS_gettid);
    const struct iovec window = {store->window, size}, file = {store->base + offset, size};
    const ssize_t moved = out ? process_vm_writev(self, &window, 1, &file, 1, 0)
                              : process_vm_readv(self, &window, 1, &file, 1, 0);

    /* Less than all: a page of it cannot be had. */
    return moved == (ssize_t)size ? 0 : moved < 0 && errno != EFAULT ? errno : EIO;
}

int gs_sleep_store_rest(struct gs_sleep_store *store)
{
    if (!store->in_file || !store->base)
        return 0;
    if (msync(store->base, store->size, MS_SYNC) != 0)
        return errno;
    /* Out of the kernel's cache too: it may be a group's memory that others want. */
    if (madvise(store->base, store->size, MADV_PAGEOUT) != 0)
        madvise(store->base, store->size, MADV_DONTNEED);
    return 0;
}

void gs_sleep_store_free(struct gs_sleep_store *store)
{
    end_filling(store);
    if (store->window && store->window != store->base)
        munmap(store->window, store->window_size);
    if (store->base)
        munmap(store->base, store->size);
    *store = (struct gs_sleep_store){.size = 0};
}
