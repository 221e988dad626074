/* Where the contents of GPU memory are while it is away (core/process/sleep_store.h). */
#include "core/process/sleep_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/base/background.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define FILLERS_MOST 8
#define FILLER_LEAST ((size_t)256 << 20) /* bytes, for one thread */
#define MIB (1024 * 1024)
#define WINDOW ((size_t)32 * MIB)

/* ---- How much there is -------------------------------------------------------------------------- */

/* The number behind a word in a file, or its first one (word ""); false: there is none. */
static bool read_number(const char *path, const char *word, size_t *ret)
{
    char line[256];
    FILE *file = fopen(path, "re");
    bool found = false;

    if (!file)
        return false;
    while (!found && fgets(line, sizeof line, file)) {
        char *end;
        unsigned long long number;

        if (strncmp(line, word, strlen(word)) != 0)
            continue;
        number = strtoull(line + strlen(word), &end, 10);
        found = end != line + strlen(word);
        if (found)
            *ret = (size_t)number;
    }
    fclose(file);
    return found;
}

static size_t less(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* What one group leaves; page cache of it goes where memory is wanted. SIZE_MAX: it bounds nothing. */
static size_t left_in(const char *folder, const char *limit_name, const char *used_name,
                      const char *cache_word)
{
    char path[512];
    size_t limit, used, cache = 0;

    snprintf(path, sizeof path, "%s/%s", folder, limit_name);
    if (!read_number(path, "", &limit))
        return SIZE_MAX;
    snprintf(path, sizeof path, "%s/%s", folder, used_name);
    if (!read_number(path, "", &used))
        return SIZE_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    read_number(path, cache_word, &cache);
    used -= less(cache, used);
    return limit > used ? limit - used : 0;
}

/* A group and all above it. */
static size_t left_in_groups(const char *root, char *group, bool second)
{
    size_t left = SIZE_MAX;

    for (;;) {
        char folder[384];
        char *slash;

        snprintf(folder, sizeof folder, "%s%s", root, group);
        left = less(left, second ? left_in(folder, "memory.max", "memory.current", "inactive_file ")
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
    FILE *file = fopen("/proc/self/cgroup", "re");
    size_t left = SIZE_MAX;
    char line[320];

    while (file && fgets(line, sizeof line, file)) {
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;

        if (!group)
            continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        if (strcmp(group, "/") == 0)
            *group = 0;
        if (strcmp(names, ":") == 0)
            left = less(left, left_in_groups("/sys/fs/cgroup", group, true));
        else if (strstr(names, "memory"))
            left = less(left, left_in_groups("/sys/fs/cgroup/memory", group, false));
    }
    if (file)
        fclose(file);
    return left;
}

static size_t host_memory_left(void)
{
    size_t kib = SIZE_MAX / 1024;

    read_number("/proc/meminfo", "MemAvailable:", &kib);
    return less(kib * 1024, left_by_groups());
}

/* ---- Making it ---------------------------------------------------------------------------------- */

struct filler {
    struct gs_background background;
    char *base;
    size_t size;
    int error;
};

/* All pages are there afterwards; an errno. */
static void *fill(void *arg)
{
    struct filler *filler = arg;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (madvise(filler->base, filler->size, MADV_POPULATE_WRITE) == 0)
        return NULL;
    if (errno != EINVAL) {
        filler->error = errno;
        return NULL;
    }
    for (size_t at = 0; at < filler->size; at += page)
        *(volatile char *)(filler->base + at) = 0;
    return NULL;
}

/* By several threads: the first touch is what takes longest. */
static int fill_all(struct gs_sleep_store *store)
{
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    size_t parts = less(less(FILLERS_MOST, cpus > 1 ? (size_t)cpus : 1), store->size / FILLER_LEAST + 1);
    const size_t part = (store->size / parts + (2 * MIB - 1)) & ~(size_t)(2 * MIB - 1);
    struct filler fillers[FILLERS_MOST] = {{.size = 0}};
    bool started[FILLERS_MOST] = {false};
    int error = 0;

    for (size_t i = 0; i < parts; i++) {
        const size_t at = less(i * part, store->size);

        fillers[i].base = store->base + at;
        fillers[i].size = less(part, store->size - at);
        if (fillers[i].size > 0 && i + 1 < parts)
            started[i] = gs_background_start(&fillers[i].background, fill, &fillers[i]) == 0;
    }
    for (size_t i = 0; i < parts; i++) {
        if (started[i])
            gs_background_join(&fillers[i].background);
        else if (fillers[i].size > 0)
            fill(&fillers[i]);
        if (fillers[i].error)
            error = fillers[i].error;
    }
    return error;
}

static int refuse(int error, char *text, size_t size, const char *what, size_t wanted, size_t left)
{
    snprintf(text, size, "%zu MiB are to be kept, and %s has room for %zu", wanted / MIB, what, left / MIB);
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
    error = fill_all(store);
    return error ? refuse(ENOMEM, text, text_size, "the host's memory", store->size, 0) : 0;
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
        unlink(path);
    return fd;
}

/* Beyond the process's limit the kernel sends a signal that ends it. */
static int allocate(int fd, size_t size)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && size > limit.rlim_cur)
        return EFBIG;
    return posix_fallocate(fd, 0, (off_t)size);
}

static int make_in_file(struct gs_sleep_store *store, const char *directory, char *text, size_t text_size)
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
        store->window = store->base ? map(store->window_size, MAP_PRIVATE | MAP_ANONYMOUS, -1) : NULL;
        error = store->window ? 0 : errno;
    }
    close(fd);
    if (error)
        snprintf(text, text_size, "%zu MiB are to be kept, and %s has no room for them: %s",
                 store->size / MIB, directory, strerror(error));
    return error;
}

int gs_sleep_store_make(struct gs_sleep_store *store, size_t size, const char *directory, char *ret_text,
                  size_t text_size)
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
    for (size_t done = 0; done < size;) {
        struct iovec window = {store->window + done, size - done}, file = {store->base + offset + done, size - done};
        const ssize_t moved = out ? process_vm_writev(getpid(), &window, 1, &file, 1, 0)
                                  : process_vm_readv(getpid(), &window, 1, &file, 1, 0);

        if (moved <= 0)
            return moved < 0 && errno != EFAULT ? errno : EIO;
        done += (size_t)moved;
    }
    return 0;
}

int gs_sleep_store_rest(struct gs_sleep_store *store)
{
    if (!store->in_file || !store->base)
        return 0;
    if (msync(store->base, store->size, MS_SYNC) != 0)
        return errno;
    madvise(store->base, store->size, MADV_DONTNEED);
    return 0;
}

void gs_sleep_store_free(struct gs_sleep_store *store)
{
    if (store->window && store->window != store->base)
        munmap(store->window, store->window_size);
    if (store->base)
        munmap(store->base, store->size);
    *store = (struct gs_sleep_store){.size = 0};
}
