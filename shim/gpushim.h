/*
 * For communication libraries that know of libgpushim and want its cache of registrations, or to
 * hear what becomes of GPU memory, and for whoever wants to see what the library holds. No program
 * needs this: caches of their own (UCX, libfabric, Open MPI) stay right as they are.
 *
 * Nothing links with the library, which is in the process where somebody preloaded it. The
 * functions here look theirs up in it, each once, and may be called in any case: where it is not
 * there, or is older than the function, they do nothing and return GPUSHIM_NOT_LOADED, those that
 * count 0. glibc before 2.34 has dlsym in -ldl.
 *
 * Every function may be called from any thread. Results are 0 or an errno value.
 */
#ifndef GPUSHIM_H
#define GPUSHIM_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef GPUSHIM_LIBRARY /* its own sources */
#define GPUSHIM_API
#else
#include <dlfcn.h>
#include <string.h>
#define GPUSHIM_API static inline
#endif

#ifdef __cplusplus
extern "C" {
#ifdef __GNUC__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored \
    "-Wshadow" /* a function has the name of the struct that it fills in */
#endif
#endif

/* Of no function in the library. */
#define GPUSHIM_NOT_LOADED ENOPKG

/* ---- Versions -------------------------------------------------------------------------------- */

/* Of this header; later ones only add to it. */
#define GPUSHIM_VERSION_MAJOR 1
#define GPUSHIM_VERSION_MINOR 0
#define GPUSHIM_VERSION_PATCH 0
#define GPUSHIM_VERSION       "1.0.0"

/* Of the library that is in the process, in the same form. Never NULL, and "" where it is not
 * there; it stays as it is. Starts nothing, and may be called at any time. */
GPUSHIM_API const char *gpushim_version(void);

/* ---- Registering through the cache ----------------------------------------------------------- */

/*
 * How a library registers memory with its device. Both functions are called with no lock of
 * libgpushim's held, on whatever thread needs it: one that calls gpushim_pin or gpushim_unpin, one
 * that frees or allocates GPU memory, or one of libgpushim's own. They may not allocate, free or
 * unmap GPU memory.
 *
 *   pin    registers the range, which lies within one allocation of the program's, and perhaps
 *          across several of the driver's (a kernel may take one of those alone by its address; a
 *          dma-buf may be of several); 0 and *ret_handle, or an errno value. ENOMEM says that the
 *          device is full: unused registrations are ended, and it is called again.
 *   unpin  ends a registration that nobody uses. 0, or an errno value: its memory is then kept for
 *          as long as the process lives.
 *
 * What is pinned is at least what was asked for, and may be more of the same allocation, or of
 * the 64 KiB around it.
 */
struct gpushim_pinner {
    size_t size; /* of this struct */
    const char *name;
    int (*pin)(void *arg, uintptr_t domain, uint64_t access, uint64_t address, size_t size,
               void **ret_handle);
    int (*unpin)(void *arg, void *handle);
    void *arg;
};

/* Makes a pinner known, which with what it points at has to stay for the life of the process.
 * EINVAL; ENOSPC: there are 16 already. */
GPUSHIM_API int gpushim_pinner_add(const struct gpushim_pinner *pinner);

/*
 * A registration of the range for its domain and access: a kept one, or a new one. It stays valid,
 * and its memory is neither reused nor unmapped even when the program frees it, until
 * gpushim_unpin. *ret_handle is what pin gave, *ret_registration is for gpushim_unpin.
 *
 * ENODEV: no GPU memory, or libgpushim does nothing in this process: register it yourself. EFAULT:
 * memory that was freed, or more than one allocation. ENOMEM. Anything else is of your own pin.
 */
GPUSHIM_API int gpushim_pin(const struct gpushim_pinner *pinner, uintptr_t domain, uint64_t access,
                            uint64_t address, size_t size, void **ret_handle,
                            void **ret_registration);
GPUSHIM_API void gpushim_unpin(void *registration);

/* Ends the registrations of a domain that nobody uses, before it is closed. */
GPUSHIM_API void gpushim_flush(const struct gpushim_pinner *pinner, uintptr_t domain);

/* ---- Listening ------------------------------------------------------------------------------- */

/*
 * What becomes of memory that libgpushim allocates. Each may be NULL. They must be quick, and may
 * call neither CUDA nor anything that waits for another thread that allocates or frees GPU memory.
 *
 *   allocated  the program is about to get this block; on the thread that asked for it, before the
 *              call returns.
 *   freed      the program gave it back, all of it; on the thread that freed it, before the call
 *              returns and before anybody else gets the memory. The GPU may still be working on it
 *              (also in stream order), and it stays mapped.
 *   unmapping  these addresses, whole blocks freed before, are about to mean nothing any more; on
 *              any thread. It has not happened before this returns, and does right after.
 *
 * Of one address the calls come in this order. Memory that the driver allocates is not reported.
 */
struct gpushim_listener {
    size_t size; /* of this struct */
    void (*allocated)(void *arg, uint64_t address, size_t size);
    void (*freed)(void *arg, uint64_t address, size_t size);
    void (*unmapping)(void *arg, uint64_t address, size_t size);
    void *arg;
};

/* From now on, until the process ends; the struct has to stay as long. EINVAL, ENODEV (libgpushim
 * has not started: call CUDA first), ENOSPC: there are 16 already. */
GPUSHIM_API int gpushim_listen(const struct gpushim_listener *listener);

/* ---- Asking: who pins what ------------------------------------------------------------------- */

struct gpushim_registration {
    const char *by; /* libibverbs, libgdrapi, libcufile, or a pinner's name */
    uintptr_t domain;
    uint64_t access, address;
    size_t size;   /* bytes */
    unsigned uses; /* 0: only kept */
};

/* Fills in up to `room` registrations and returns how many there are. */
GPUSHIM_API size_t gpushim_registrations(struct gpushim_registration *registration, size_t room);

struct gpushim_registration_counts {
    size_t size;                               /* of this struct, set by the caller */
    uint64_t hits, misses;                     /* found kept, and not */
    uint64_t pins, unpins, pin_ns, unpin_ns;   /* that were made and undone, and the time it took */
    uint64_t failures;                         /* that could not be made or undone */
    uint64_t merges, evictions, invalidations; /* undone: within a larger one, for others, and
                                                  because memory or domain went */
    uint64_t kept, in_use;                     /* now */
    uint64_t bytes;                            /* pinned by both */
};

/* Since the start of the process. EINVAL; ENODEV: libgpushim does nothing in this process. */
GPUSHIM_API int gpushim_registration_counts(struct gpushim_registration_counts *counts);

/* ---- Asking: what a GPU's memory is used for ------------------------------------------------- */

#define GPUSHIM_TOOK 24

struct gpushim_memory {
    size_t
        size; /* of this struct, set by the caller: what a library does not have stays as it is */
    /* Bytes now: had from the driver, of which are the program's, free for it, freed and waiting
     * for the GPU, free for one stream each, and freed but in use by other processes or devices. */
    uint64_t reserved, live, cached, retired, ordered, limbo;
    uint64_t reserved_peak, live_peak;
    /* Since the start of the process. */
    uint64_t hits,
        misses; /* allocations from memory that was there, and that had to look further */
    uint64_t pieces_made, pieces_given_back; /* pieces of memory had from the driver */
    uint64_t in_background;                  /* of those given back */
    uint64_t at_once; /* frees of memory that was free at once: all work in one stream */
    uint64_t events;  /* that were recorded on the GPU for others */
    uint64_t waits, waits_given_up, wait_ns; /* allocations that waited for the GPU */
    uint64_t map_ns; /* that the program's threads took to make and give back pieces */
    /* Calls that had to do more, by how long they took: below 1 us, 2, 4, ..., the last for all
     * above 4 s. */
    uint64_t took[GPUSHIM_TOOK];
    /* Since the second version of this struct: callers of the first, which ended here, are
     * served. */
    uint64_t slow;          /* calls that took about a millisecond or more */
    unsigned char uuid[16]; /* of the GPU, as cuDeviceGetUuid has it; zero: it was not used yet */
};

/* Of a device by its number in CUDA; all 0 where this process has allocated nothing there. It is
 * what `gpushim stats` tells of this process. The figures are each of some moment of the call.
 * EINVAL; ENODEV: libgpushim does nothing in this process, or not yet. */
GPUSHIM_API int gpushim_memory(int gpu, struct gpushim_memory *memory);

/* ---- Names ----------------------------------------------------------------------------------- */

/*
 * GPU memory under a name, by which this user's other processes find it, in other containers too
 * (GPUSHIM_SHARE_DIR). With GPUSHIM_SHARE_STRATEGY=broker it is found and opened after the end of
 * the process that published it, for GPUSHIM_SHARE_KEEP from then, or from when the last of those
 * closes it who have opened it since then; otherwise the name ends with that process.
 *
 * A name is of 1 to 63 letters, figures and the characters . _ - + : @ /. It belongs to the user,
 * and no other finds it.
 */
struct gpushim_publication {
    size_t size; /* of this struct */
    /* In memory that cuMemAlloc or one of its kin gave this process, or that it maps itself. */
    uint64_t address;
    const char
        *label; /* for people, in gpushim ls: up to 63 bytes without control characters, or NULL */
    const void *note; /* for programs: up to 256 bytes, as they are; or NULL */
    size_t note_size;
};

/*
 * Shares the allocation around the address, as cuIpcGetMemHandle does, and publishes it, until it
 * is freed, the name taken back, or published anew. Who has found an earlier one keeps that: a
 * look-up finds the one or the other, and after this has returned this one.
 *
 * With a broker it returns when that has been told of it, after 5 s at most; where there is none,
 * or it does not read, a line of log says that the name ends with this process, which is no error.
 *
 * Memory that the program maps itself (cuMemCreate, cuMemMap) is published as its handle is: the
 * mapping around the address, with those side by side with it as they are then. The name ends when
 * any of them is unmapped, or loses access. What is mapped there, or beside it, later is found when
 * it is published anew. It is served by this process alone, also where there is a broker: the name
 * ends with this process, and no line of log says so.
 *
 * EINVAL: a name, label, note or size as no name has. ENODEV: neither libgpushim's memory nor a
 * mapping of the program's that it follows (debug.user_vmm), or it does nothing in this process.
 * EFAULT: not allocated, or freed; memory of another process is that one's to publish. ENOTSUP: it
 * cannot be shared, and the log says why. ENOSPC: 1024 names in this process. ENOMEM.
 */
GPUSHIM_API int gpushim_publish(const char *name, const struct gpushim_publication *publication);

struct gpushim_named {
    size_t size;              /* of this struct, set by the caller */
    unsigned char handle[64]; /* for cuIpcOpenMemHandle, cudaIpcOpenMemHandle */
    uint64_t offset;          /* of what was published from what that gives */
    uint64_t
        bytes; /* of the allocation; of mappings, from what that gives to the end of the last one */
    uint64_t
        address; /* where this process itself has published it, in place of opening it; else 0 */
    uint64_t age_ns;        /* since it was published */
    uint64_t pid;           /* which process that did, as whoever answers sees it: for people */
    uint32_t uid;           /* whose the name is */
    uint32_t kept;          /* 1: a broker has it, beyond the end of its process */
    unsigned char uuid[16]; /* of the GPU */
    char process[16];
    char label[64];
    size_t note_size;
    unsigned char note[256];
};

/*
 * The newest that this user's processes have under the name. Asks them all at once: a millisecond,
 * and up to a second where some do not answer.
 *
 * EINVAL; ENODEV: libgpushim does nothing in this process. ENOENT: nobody has it. ETIMEDOUT: nobody
 * who has answered has it, but some have not. Nothing is changed then.
 */
GPUSHIM_API int gpushim_lookup(const char *name, struct gpushim_named *named);

/*
 * Ends this user's name, whichever of their processes published it. Who has it open keeps it.
 * EINVAL, ENODEV, ENOENT, ETIMEDOUT, as above.
 */
GPUSHIM_API int gpushim_unpublish(const char *name);

/* ---- Tags ------------------------------------------------------------------------------------ */

/*
 * What the calling thread allocates from now on bears the tag, on whatever GPU: it has it first in
 * its stacks in a recording (gpushim record), and is apart from all other memory, so that
 * gpushim_sleep may discard it. The first 16 tags of a process are so; others are in recordings
 * alone. Up to 63 bytes without control characters; NULL: none any more. EINVAL.
 */
GPUSHIM_API int gpushim_tag(const char *label);

/* ---- External memory ------------------------------------------------------------------------- */

/*
 * Memory that somebody else made becomes memory of libgpushim's, until it is detached, or the
 * process ends:
 *
 *   kind              what it is                          address      pinned   IPC handle, name
 *   GPUSHIM_EXPORTED  a descriptor that CUDA exported     a new one    yes      yes
 *                     (cuMemExportToShareableHandle)
 *   GPUSHIM_MEMFD     a memfd, from `offset` on: memory   a new one    yes      yes
 *                     of the host, registered with CUDA
 *   GPUSHIM_ADDRESS   memory of the host or of a device   its own      as the   what the driver's
 *                     that is this process's already               driver lets  IPC can; no name
 *
 * At a new address, it is mapped by the library and answers as memory of cuMemAlloc does (of the
 * host, where it is: CU_POINTER_ATTRIBUTE_MEMORY_TYPE). Whoever opens a handle of it, in another
 * process with the library, maps the same memory by a descriptor, and keeps it whatever becomes of
 * this process. It is served by this process alone, also where there is a broker. A memfd gets
 * F_SEAL_SHRINK, if it has not. At its own address it stays the driver's matter, as before; memory
 * of the host that CUDA does not know is registered with it until the end.
 */
enum gpushim_kind { GPUSHIM_EXPORTED = 1, GPUSHIM_MEMFD, GPUSHIM_ADDRESS };
enum gpushim_access {
    GPUSHIM_READ_ONLY =
        1, /* at a new address, neither this process nor who opens it may write to it */
    GPUSHIM_MUTABLE
};

struct gpushim_external {
    size_t size; /* of this struct */
    enum gpushim_kind kind;
    enum gpushim_access access;
    int device;      /* by its number in CUDA */
    int fd;          /* which stays yours, and may be closed afterwards */
    uint64_t offset; /* in a memfd: whole pages, as `bytes` */
    uint64_t address;
    uint64_t bytes;    /* of what CUDA exported all of it, a multiple of 2 MiB */
    const char *label; /* for people: up to 63 bytes without control characters, or NULL */
    /*
     * Called once, when nothing uses the memory any more: no process has it open, nothing has it
     * registered through this library, the GPU work that was submitted before is over, and it is
     * unmapped where it was mapped. On a thread of the library's with a context of the device, the
     * one that it was attached in or else the primary one, in which it may call CUDA, and this
     * library; or on the one that ends the process. May be NULL but for GPUSHIM_ADDRESS, where
     * nothing else says when you may free it.
     */
    void (*deleter)(void *arg);
    void *arg;
};

/*
 * On the device, whose context is the current one, or else its primary one if that is active.
 * *ret_address is for CUDA, and for gpushim_detach.
 *
 * The end comes by gpushim_detach, or with the context in which it was attached. When the process
 * ends in order all of it is detached, GPU work and other processes are waited for
 * GPUSHIM_DEBUG_SETTLE at most, and then the deleters are called whoever has it: before libcuda's
 * own end.
 *
 * EINVAL: a field as none is, a size or an offset that does not fit, a descriptor of another kind,
 * memory of libgpushim's own or that is attached already, or no deleter where one is needed.
 * ENODEV: no such device, no context of it, or libgpushim does nothing in this process. ENOTSUP:
 * the driver does not take it. EAGAIN: no thread can be had. ENOMEM. Nothing is changed then, and
 * the log says why.
 */
GPUSHIM_API int gpushim_attach(const struct gpushim_external *external, uint64_t *ret_address);

/*
 * Detaches it, and waits until its deleter was called, as long as that at most (0: not at all;
 * UINT64_MAX: without end). From the beginning no handle of it can be opened any more, and who has
 * it open is asked for it.
 *
 * EBUSY: something uses it still, and the log says who: its end comes when that has ended, and may
 * be waited for by another call. So it is from within a deleter, which is not waited for. ENOENT:
 * nothing is attached there, or not any more. ENODEV, ENOMEM: nothing is changed then.
 */
GPUSHIM_API int gpushim_detach(uint64_t address, uint64_t timeout_ns);

struct gpushim_attached {
    enum gpushim_kind kind;
    enum gpushim_access access;
    int device;
    int detached; /* 1: its end has begun */
    uint64_t address, bytes;
    char label[64];
};

/* Fills in up to `room` of those that are attached and returns how many there are. */
GPUSHIM_API size_t gpushim_externals(struct gpushim_attached *attached, size_t room);

/* ---- Memory in a stream's order -------------------------------------------------------------- */

/*
 * For allocators that take functions, in whose forms these are (gpushim.torch in Python). Memory of
 * the device by its number in CUDA, whatever context is current; `stream` is a CUstream, NULL the
 * default one. Where libgpushim is switched off it is that of cuMemAllocAsync.
 *
 * gpushim_allocate returns NULL where there is none, for no bytes too. gpushim_free names the
 * stream that has the last work on it: it is free for that at once, for others when the GPU has got
 * there. gpushim_used tells of another stream that has work on it, before the free, which then is
 * behind all streams.
 *
 * While the stream captures, memory is as that of cuMemAlloc. If gpushim_graphs_begin has told
 * whose captures begin on the device, what is freed of it is for these graphs' next captures, in
 * the same stream, and goes back when gpushim_graphs_gone was called as often as begin. Of several
 * that are open on a device at once nobody can say whose it is: what is allocated meanwhile stays
 * theirs until the process ends.
 */
GPUSHIM_API void *gpushim_allocate(size_t size, int gpu, void *stream);
GPUSHIM_API void gpushim_free(void *address, size_t size, int gpu, void *stream);
GPUSHIM_API void gpushim_used(void *address, void *stream);

/* Any number that the caller gives to graphs that are never launched at once. */
struct gpushim_graphs {
    uint64_t id[2];
};

GPUSHIM_API void gpushim_graphs_begin(int gpu, struct gpushim_graphs graphs, const void *unused);
GPUSHIM_API void gpushim_graphs_end(int gpu, struct gpushim_graphs graphs);
GPUSHIM_API void gpushim_graphs_gone(int gpu, struct gpushim_graphs graphs);

/* Called in place of returning NULL, with what to say; it may leave by an exception of C++. NULL:
 * none. */
typedef void gpushim_failure_fn(const char *function, const char *file, uint32_t line,
                                const char *text);
GPUSHIM_API int gpushim_on_failure(gpushim_failure_fn *failure);

/* ---- Sleep ----------------------------------------------------------------------------------- */

/*
 * A process that sleeps has its memory off the GPU, and gets it back at the same addresses when it
 * wakes. Meanwhile calls of CUDA that need the GPU wait, on whatever thread they are made; those
 * that only ask are answered, but about an address whose memory is away. Moved is what the library
 * allocates: cuMemAlloc, cudaMalloc, cudaMallocAsync and all that is built on them; and what the
 * program makes and maps itself (cuMemCreate), whose handles stay good.
 */
struct gpushim_asleep {
    size_t size;         /* of this struct */
    uint64_t since_ns;   /* of CLOCK_MONOTONIC; 0: awake */
    uint64_t away;       /* bytes that the GPU has back, but for what was free, */
    uint64_t copied;     /* and what of these is kept on the host */
    uint64_t shared;     /* bytes that stay: another process may have a block of them open; */
    uint64_t registered; /* a network card or storage uses them; */
    uint64_t ending;     /* their context has ended, but not all of its memory; */
    uint64_t refused;    /* the driver did not unmap them; */
    uint64_t own;        /* the program made them in a way that is not moved: for multicast, say */
    char text[320];      /* why the call failed; or "" */
};

struct gpushim_sleep_how {
    size_t size;         /* of this struct */
    uint64_t timeout_ns; /* for calls under way, and for the GPU's work */
    /* The contents go to a file there, of mode 0600 and without a name; NULL: to memory. */
    const char *directory;
    /* A tag: what bears it is at the same addresses after the wake, its contents are anything;
     * NULL: all is kept. */
    const char *discard;
};

/*
 * Puts this process to sleep. The calling thread returns when it sleeps, and may call no CUDA that
 * needs the GPU before another thread wakes it. `asleep` may be NULL.
 *
 * EALREADY: it sleeps. ENOENT: nothing ever bore the tag, or there is no such directory. EBUSY: a
 * thread is in a call, a context has work, or a stream captures, beyond the timeout. ENOMEM,
 * ENOSPC: no room on the host. ENOTSUP: not in this process. EDEADLK: called from within such a
 * call. ESHUTDOWN: the program's exit handlers run. EIO: the driver refused. In each case nothing
 * has changed.
 */
GPUSHIM_API int gpushim_sleep(const struct gpushim_sleep_how *how, struct gpushim_asleep *asleep);
/* Wakes it; what the host kept goes behind that. ENOMEM: the GPU did not have enough memory within
 * the timeout; EIO: the driver refused. It sleeps on then. EALREADY: it is awake. */
GPUSHIM_API int gpushim_wake(uint64_t timeout_ns, struct gpushim_asleep *asleep);
/* Never waits. */
GPUSHIM_API int gpushim_asleep(struct gpushim_asleep *asleep);

#ifndef GPUSHIM_LIBRARY
/* ---- How they are found ---------------------------------------------------------------------- */

/* Whether the library has the function; then *ret_call is it. `kept` is what was found before. */
static inline int gpushim_has_(const char *name, void **kept, void *ret_call)
{
    static char nowhere;
    void *found = __atomic_load_n(kept, __ATOMIC_ACQUIRE);

    if (!found) {
        found = dlsym(NULL, name); /* RTLD_DEFAULT, which C has with _GNU_SOURCE alone */
        found = found ? found : (void *)&nowhere;
        __atomic_store_n(kept, found, __ATOMIC_RELEASE);
    }
    memcpy(ret_call, &found, sizeof found);
    return found != (void *)&nowhere;
}

#define GPUSHIM_CALL_OF_(name) \
    static void *kept;         \
    __typeof__(&name) call

GPUSHIM_API const char *gpushim_version(void)
{
    GPUSHIM_CALL_OF_(gpushim_version);

    return gpushim_has_("gpushim_version", &kept, &call) ? call() : "";
}

GPUSHIM_API int gpushim_pinner_add(const struct gpushim_pinner *pinner)
{
    GPUSHIM_CALL_OF_(gpushim_pinner_add);

    return gpushim_has_("gpushim_pinner_add", &kept, &call) ? call(pinner) : GPUSHIM_NOT_LOADED;
}

GPUSHIM_API int gpushim_pin(const struct gpushim_pinner *pinner, uintptr_t domain, uint64_t access,
                            uint64_t address, size_t size, void **ret_handle,
                            void **ret_registration)
{
    GPUSHIM_CALL_OF_(gpushim_pin);

    return gpushim_has_("gpushim_pin", &kept, &call)
               ? call(pinner, domain, access, address, size, ret_handle, ret_registration)
               : GPUSHIM_NOT_LOADED;
}

GPUSHIM_API void gpushim_unpin(void *registration)
{
    GPUSHIM_CALL_OF_(gpushim_unpin);

    if (gpushim_has_("gpushim_unpin", &kept, &call))
        call(registration);
}

GPUSHIM_API void gpushim_flush(const struct gpushim_pinner *pinner, uintptr_t domain)
{
    GPUSHIM_CALL_OF_(gpushim_flush);

    if (gpushim_has_("gpushim_flush", &kept, &call))
        call(pinner, domain);
}

GPUSHIM_API int gpushim_listen(const struct gpushim_listener *listener)
{
    GPUSHIM_CALL_OF_(gpushim_listen);

    return gpushim_has_("gpushim_listen", &kept, &call) ? call(listener) : GPUSHIM_NOT_LOADED;
}

GPUSHIM_API size_t gpushim_registrations(struct gpushim_registration *registration, size_t room)
{
    GPUSHIM_CALL_OF_(gpushim_registrations);

    return gpushim_has_("gpushim_registrations", &kept, &call) ? call(registration, room) : 0;
}

GPUSHIM_API int gpushim_registration_counts(struct gpushim_registration_counts *counts)
{
    GPUSHIM_CALL_OF_(gpushim_registration_counts);

    return gpushim_has_("gpushim_registration_counts", &kept, &call) ? call(counts)
                                                                     : GPUSHIM_NOT_LOADED;
}

GPUSHIM_API int gpushim_memory(int gpu, struct gpushim_memory *memory)
{
    GPUSHIM_CALL_OF_(gpushim_memory);

    return gpushim_has_("gpushim_memory", &kept, &call) ? call(gpu, memory) : GPUSHIM_NOT_LOADED;
}

GPUSHIM_API int gpushim_publish(const char *name, const struct gpushim_publication *publication)
{
    GPUSHIM_CALL_OF_(gpushim_publish);

    return gpushim_has_("gpushim_publish", &kept, &call) ? call(name, publication)
                                                         : GPUSHIM_NOT_LOADED;
}

GPUSHIM_API int gpushim_lookup(const char *name, struct gpushim_named *named)
{
    GPUSHIM_CALL_OF_(gpushim_lookup);

    return gpushim_has_("gpushim_lookup", &kept, &call) ? call(name, named) : GPUSHIM_NOT_LOADED;
}

GPUSHIM_API int gpushim_unpublish(const char *name)
{
    GPUSHIM_CALL_OF_(gpushim_unpublish);

    return gpushim_has_("gpushim_unpublish", &kept, &call) ? call(name) : GPUSHIM_NOT_LOADED;
}

GPUSHIM_API int gpushim_tag(const char *label)
{
    GPUSHIM_CALL_OF_(gpushim_tag);

    return gpushim_has_("gpushim_tag", &kept, &call) ? call(label) : GPUSHIM_NOT_LOADED;
}

GPUSHIM_API int gpushim_attach(const struct gpushim_external *external, uint64_t *ret_address)
{
    GPUSHIM_CALL_OF_(gpushim_attach);

    return gpushim_has_("gpushim_attach", &kept, &call) ? call(external, ret_address)
                                                        : GPUSHIM_NOT_LOADED;
}

GPUSHIM_API int gpushim_detach(uint64_t address, uint64_t timeout_ns)
{
    GPUSHIM_CALL_OF_(gpushim_detach);

    return gpushim_has_("gpushim_detach", &kept, &call) ? call(address, timeout_ns)
                                                        : GPUSHIM_NOT_LOADED;
}

GPUSHIM_API size_t gpushim_externals(struct gpushim_attached *attached, size_t room)
{
    GPUSHIM_CALL_OF_(gpushim_externals);

    return gpushim_has_("gpushim_externals", &kept, &call) ? call(attached, room) : 0;
}

GPUSHIM_API void *gpushim_allocate(size_t size, int gpu, void *stream)
{
    GPUSHIM_CALL_OF_(gpushim_allocate);

    return gpushim_has_("gpushim_allocate", &kept, &call) ? call(size, gpu, stream) : NULL;
}

GPUSHIM_API void gpushim_free(void *address, size_t size, int gpu, void *stream)
{
    GPUSHIM_CALL_OF_(gpushim_free);

    if (gpushim_has_("gpushim_free", &kept, &call))
        call(address, size, gpu, stream);
}

GPUSHIM_API void gpushim_used(void *address, void *stream)
{
    GPUSHIM_CALL_OF_(gpushim_used);

    if (gpushim_has_("gpushim_used", &kept, &call))
        call(address, stream);
}

GPUSHIM_API void gpushim_graphs_begin(int gpu, struct gpushim_graphs graphs, const void *unused)
{
    GPUSHIM_CALL_OF_(gpushim_graphs_begin);

    if (gpushim_has_("gpushim_graphs_begin", &kept, &call))
        call(gpu, graphs, unused);
}

GPUSHIM_API void gpushim_graphs_end(int gpu, struct gpushim_graphs graphs)
{
    GPUSHIM_CALL_OF_(gpushim_graphs_end);

    if (gpushim_has_("gpushim_graphs_end", &kept, &call))
        call(gpu, graphs);
}

GPUSHIM_API void gpushim_graphs_gone(int gpu, struct gpushim_graphs graphs)
{
    GPUSHIM_CALL_OF_(gpushim_graphs_gone);

    if (gpushim_has_("gpushim_graphs_gone", &kept, &call))
        call(gpu, graphs);
}

GPUSHIM_API int gpushim_on_failure(gpushim_failure_fn *failure)
{
    GPUSHIM_CALL_OF_(gpushim_on_failure);

    return gpushim_has_("gpushim_on_failure", &kept, &call) ? call(failure) : GPUSHIM_NOT_LOADED;
}

GPUSHIM_API int gpushim_sleep(const struct gpushim_sleep_how *how, struct gpushim_asleep *asleep)
{
    GPUSHIM_CALL_OF_(gpushim_sleep);

    return gpushim_has_("gpushim_sleep", &kept, &call) ? call(how, asleep) : GPUSHIM_NOT_LOADED;
}

GPUSHIM_API int gpushim_wake(uint64_t timeout_ns, struct gpushim_asleep *asleep)
{
    GPUSHIM_CALL_OF_(gpushim_wake);

    return gpushim_has_("gpushim_wake", &kept, &call) ? call(timeout_ns, asleep)
                                                      : GPUSHIM_NOT_LOADED;
}

GPUSHIM_API int gpushim_asleep(struct gpushim_asleep *asleep)
{
    GPUSHIM_CALL_OF_(gpushim_asleep);

    return gpushim_has_("gpushim_asleep", &kept, &call) ? call(asleep) : GPUSHIM_NOT_LOADED;
}
#endif

#ifdef __cplusplus
#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif
}
#endif

#endif
