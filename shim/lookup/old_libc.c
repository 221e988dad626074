/*
 * Keeps the library loadable where libc is older than the one it was built with.
 *
 * glibc moves functions between its libraries (libpthread into libc in 2.34) and gives them a new
 * symbol version then, or renames them (stat in 2.33, strtol in 2.38). A library that refers to the
 * new symbol stops every program of an older container from starting. The link therefore sends each
 * reference to such a function here (ld's --wrap, the list is in meson.build), and here the
 * function is looked up in the process when it is called, or is a system call. Nothing refers to
 * libpthread, so there is no DT_NEEDED for it either: where it still is a library of its own,
 * libcuda has it loaded before any of this is called.
 */
#include "elf_symbols.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct walk {
    const char *name;
    void *found;
};

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
    struct walk *walk = data;
    walk->found = gs_elf_symbol(info->dlpi_addr, gs_elf_dynamic(info), walk->name);
    return walk->found != NULL;
}

/* The process's function of that name, the first in load order as the dynamic linker would have it
 * (a sanitizer must see our threads); NULL if there is none. The start of the library asks for
 * some, and takes the linker's lock only where libpthread came when the program had begun
 * (state.h). */
static void *process_function(_Atomic(void *) *cache, const char *name)
{
    void *found = atomic_load_explicit(cache, memory_order_relaxed);
    if (!found) {
        struct walk walk = {name, gs_elf_first(name)};
        if (!walk.found)
            gs_elf_each(visit, &walk);
        found = walk.found;
        atomic_store_explicit(cache, found, memory_order_relaxed);
    }
    return found;
}

/* A function of libpthread that answers an error number, EAGAIN in a process without it. */
#define FORWARD(name, parameters, arguments)                     \
    int __wrap_##name parameters;                                \
    int __wrap_##name parameters                                 \
    {                                                            \
        static _Atomic(void *) cache;                            \
        int(*real) parameters = process_function(&cache, #name); \
        if (!real)                                               \
            return EAGAIN;                                       \
        return real arguments;                                   \
    }

FORWARD(pthread_create,
        (pthread_t * thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg),
        (thread, attr, start, arg))
FORWARD(pthread_join, (pthread_t thread, void **value), (thread, value))
FORWARD(pthread_detach, (pthread_t thread), (thread))
FORWARD(pthread_once, (pthread_once_t * once, void (*routine)(void)), (once, routine))
FORWARD(pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex))
FORWARD(pthread_key_create, (pthread_key_t * key, void (*destructor)(void *)), (key, destructor))
FORWARD(pthread_setspecific, (pthread_key_t key, const void *value), (key, value))
FORWARD(pthread_setname_np, (pthread_t thread, const char *name), (thread, name))

FORWARD(pthread_condattr_setclock, (pthread_condattr_t * attributes, clockid_t clock),
        (attributes, clock))
FORWARD(pthread_attr_setstacksize, (pthread_attr_t * attributes, size_t size), (attributes, size))

void *__wrap_pthread_getspecific(pthread_key_t key);
void *__wrap_pthread_getspecific(pthread_key_t key)
{
    static _Atomic(void *) cache;
    void *(*real)(pthread_key_t) = process_function(&cache, "pthread_getspecific");
    return real ? real(key) : NULL;
}

/* On Linux the mask that sigprocmask changes is the calling thread's. */
int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *old);
int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
    int saved_errno = errno;
    int result = sigprocmask(how, set, old) == 0 ? 0 : errno;
    errno = saved_errno;
    return result;
}

#define STAND_IN(name, parameters, result) \
    int __wrap_##name parameters;          \
    int __wrap_##name parameters           \
    {                                      \
        return result;                     \
    }

/* On the 64-bit ABIs there are, struct stat is the kernel's. With 64-bit file offsets the headers
 * say ...64 where such an ABI has one function. */
#define FSTATAT(name, parameters, dir, flags) \
    STAND_IN(name, parameters, (int)syscall(SYS_newfstatat, dir, path, status, flags))
FSTATAT(fstatat, (int dir, const char *path, struct stat *status, int flags), dir, flags)
FSTATAT(fstatat64, (int dir, const char *path, struct stat *status, int flags), dir, flags)
FSTATAT(stat, (const char *path, struct stat *status), AT_FDCWD, 0)
FSTATAT(lstat, (const char *path, struct stat *status), AT_FDCWD, AT_SYMLINK_NOFOLLOW)
FSTATAT(lstat64, (const char *path, struct stat *status), AT_FDCWD, AT_SYMLINK_NOFOLLOW)
STAND_IN(fstat, (int fd, struct stat *status), (int)syscall(SYS_fstat, fd, status))
STAND_IN(fstat64, (int fd, struct stat *status), (int)syscall(SYS_fstat, fd, status))
STAND_IN(statx, (int dir, const char *path, int flags, unsigned mask, struct statx *status),
         (int)syscall(SYS_statx, dir, path, flags, mask, status))

/* Other libcs have no such names, and a strong reference would keep their programs from
 * starting. */
extern int old_fcntl(int, int, ...) __asm__("fcntl");
STAND_IN(fcntl64, (int fd, int command, void *argument), old_fcntl(fd, command, argument))

/* glibc 2.38's headers turn strtol and its kin into these, which read binary constants as well. */
#define FORWARD_STRTO(name, type)                                        \
    extern type old_##name(const char *, char **, int) __asm__(#name);   \
    type __wrap___isoc23_##name(const char *text, char **end, int base); \
    type __wrap___isoc23_##name(const char *text, char **end, int base)  \
    {                                                                    \
        return old_##name(text, end, base);                              \
    }

FORWARD_STRTO(strtol, long)
FORWARD_STRTO(strtoul, unsigned long)
FORWARD_STRTO(strtoll, long long)
FORWARD_STRTO(strtoull, unsigned long long)

/* sscanf too. */
extern int old_vsscanf(const char *, const char *, va_list) __asm__("vsscanf");
int __wrap___isoc23_sscanf(const char *text, const char *format, ...);
int __wrap___isoc23_sscanf(const char *text, const char *format, ...)
{
    va_list places;
    int count;

    va_start(places, format);
    count = old_vsscanf(text, format, places);
    va_end(places);
    return count;
}
