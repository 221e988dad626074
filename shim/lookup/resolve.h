/*
 * Between the assembly dlsym and dlvsym and the rest of the shim.
 */
#ifndef GPUSHIM_SHIM_RESOLVE_H
#define GPUSHIM_SHIM_RESOLVE_H

/* What the assembly does next: return address, or jump to it with the caller's arguments. */
struct gs_resolution {
    void *address;
    unsigned long is_answer;
};

struct gs_resolution gs_resolve_dlsym(void *handle, const char *name, const void *caller);
struct gs_resolution gs_resolve_dlvsym(void *handle, const char *name, const char *version,
                                       const void *caller);

/* For dlopen: the real one, to jump to (NULL: there is none), and the flags to hand it. A library
 * that is loaded with RTLD_DEEPBIND would find its libc's dlsym and its libcuda before us, so the
 * flag is taken away, unless this library is switched off. */
struct gs_dlopen_way {
    void *address;
    unsigned long flags;
};
struct gs_dlopen_way gs_resolve_dlopen(int flags);

#endif
