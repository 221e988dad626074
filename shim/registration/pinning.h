/*
 * The libraries with which a program registers GPU memory with other devices, and their calls that
 * are hooked so that the registrations can be kept (core/api/pin.h) and end before their memory
 * does; and NVML, which is found and hooked in the same way.
 *
 * Each library is found when its first call or look-up comes, never loaded, and then kept loaded.
 * What is hooked is the default version of each symbol; a look-up of another version
 * (ibv_reg_mr@IBVERBS_1.0) gets what it would without us. A call passes on to the library,
 * untouched, whenever the shim is not at work in this process.
 *
 * The prototypes are written out here with the few fields that are used: the library is built
 * without the headers of any of them.
 */
#ifndef GPUSHIM_SHIM_PINNING_H
#define GPUSHIM_SHIM_PINNING_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/api/pin.h"
#include "shim/entry_points.h"
#include "shim/gate.h"
#include "shim/process.h"

/* ---- libibverbs ------------------------------------------------------------------------------ */

struct ibv_context;
struct ibv_pd {
    struct ibv_context *context;
};
struct ibv_mr {
    struct ibv_context *context;
    struct ibv_pd *pd;
    void *addr;
    size_t length;
};
struct ibv_mr_init_attr {
    size_t length;
    int access;
    uint64_t comp_mask; /* which of the following are given */
    uint64_t iova;
    void *addr;
    int fd;
    uint64_t fd_offset;
    void *dmah;
};

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                               int access);
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                unsigned int access);
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access);
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr);
int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
                 int access);
int ibv_dereg_mr(struct ibv_mr *mr);
int ibv_dealloc_pd(struct ibv_pd *pd);
int ibv_close_device(struct ibv_context *context);

/* ---- libgdrapi ------------------------------------------------------------------------------- */

struct gdr;
struct gs_gdr_handle { /* gdr_mh_t */
    unsigned long h;
};

struct gdr *gdr_open(void);
int gdr_pin_buffer(struct gdr *g, unsigned long addr, size_t size, uint64_t p2p_token,
                   uint32_t va_space, struct gs_gdr_handle *handle);
int gdr_pin_buffer_v2(struct gdr *g, unsigned long addr, size_t size, uint32_t flags,
                      struct gs_gdr_handle *handle);
int gdr_unpin_buffer(struct gdr *g, struct gs_gdr_handle handle);
int gdr_map(struct gdr *g, struct gs_gdr_handle handle, void **va, size_t size);
int gdr_unmap(struct gdr *g, struct gs_gdr_handle handle, void *va, size_t size);
int gdr_close(struct gdr *g);

/* ---- libcufile ------------------------------------------------------------------------------- */

struct gs_cufile_error { /* CUfileError_t */
    int err;
    int cu_err;
};

struct gs_cufile_error cuFileBufRegister(const void *base, size_t length, int flags);
struct gs_cufile_error cuFileBufDeregister(const void *base);
struct gs_cufile_error cuFileDriverClose(void);
struct gs_cufile_error cuFileDriverClose_v2(void);

/* ---- libnvidia-ml ---------------------------------------------------------------------------- */

/* It registers nothing: a program that pool.limit bounds is told of no more memory by it than by
 * the driver (shim/hooks/bound.h), and of any other program its calls are not hooked. */

struct gs_nvml_memory { /* nvmlMemory_t, bytes */
    unsigned long long total, free, used;
};
struct gs_nvml_memory_v2 { /* nvmlMemory_v2_t */
    unsigned version;
    unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo(void *device, struct gs_nvml_memory *memory);
int nvmlDeviceGetMemoryInfo_v2(void *device, struct gs_nvml_memory_v2 *memory);

/* ---- Their rows of the table (shim/entry_points.h) ------------------------------------------- */

/* The library's own function, or NULL where it is not loaded or has none. Preserves errno. */
void *gs_pin_find(int row);
#define GS_PIN_REAL(symbol) ((__typeof__(&symbol))gs_pin_find(GS_ROW_##symbol))

/* The calls that a library makes of its own exports, and those that a backend makes, pass on. */
extern __thread unsigned gs_pin_inside __attribute__((tls_model("initial-exec")));

/* Whether a call is to be looked at: the shim works in this process, and it is the program's. */
bool gs_pin_active(void);

/* The hook of a call that ends what `of` finds for its argument. The library may refuse it while
 * there is any: what only the cache knows of must not be why. Where it does not refuse, all of it
 * is gone. */
#define GS_PIN_ENDS(symbol, type, of)                                  \
    GS_HOOK int symbol(type *ended)                                    \
    {                                                                  \
        GS_AROUND_AT_GATE(symbol);                                     \
        __typeof__(&symbol) real = GS_PIN_REAL(symbol);                \
        const bool active = gs_pin_active();                           \
        int error;                                                     \
                                                                       \
        if (!real)                                                     \
            return ENOSYS;                                             \
        if (active)                                                    \
            gs_regcache_flush(gs_core_regcache(gs_core), of, ended);   \
        error = real(ended);                                           \
        if (active && !error)                                          \
            gs_regcache_abandon(gs_core_regcache(gs_core), of, ended); \
        return error;                                                  \
    }

/* Called before something is registered; the first time it asks how large BAR1 is. No lock. */
void gs_pin_bound_by_bar1(void);

/* A library is open that pins memory inside one of the driver's allocations alone. Atomic. */
extern bool gs_pin_apart;
/* Something has been registered in this process. Atomic. */
extern bool gs_pin_any;
void gs_pin_end_over(uint64_t address);

static inline bool gs_pin_is_any(void)
{
    return __builtin_expect(__atomic_load_n(&gs_pin_any, __ATOMIC_RELAXED), 0);
}

/* The driver's own memory at the address is about to be freed or closed: what is kept over it goes
 * first. */
static inline void gs_pin_foreign_going(uint64_t address)
{
    if (gs_pin_is_any())
        gs_pin_end_over(address);
}

/* Memory in several of the driver's allocations could not be registered: the log says so, and what
 * helps. */
void gs_pin_say_across(const char *library, uint64_t base, size_t size);

/* A dma-buf descriptor was made of device memory, so that what it stands for is known later. */
void gs_pin_dmabuf_note(int fd, uint64_t address, size_t size);
/* The address of a dma-buf's first byte; false: it is not known. */
bool gs_pin_dmabuf_find(int fd, uint64_t *ret_address, size_t *ret_size);

#endif
