/* Finding the libraries that register memory (pinning.h). */
#include "pinning.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "shim/lookup/elf_symbols.h"
#include "shim/hooks/hook.h"
#include "shim/log.h"
#include "shim/lookup/names.h"
#include "shim/start.h"
#include "shim/state.h"

enum { VERBS, GDR, CUFILE, NVML };
static const char *const sonames[] = {
    [VERBS] = "libibverbs.so.1",
    [GDR] = "libgdrapi.so.2",
    [CUFILE] = "libcufile.so.0",
    [NVML] = "libnvidia-ml.so.1",
};

/* Of the rows after the driver's: the library, and its function. */
static const unsigned char library_of[GS_ROWS - GS_DRIVER_ROWS] = {
#define GS_ENTRY(symbol, library, ...) library,
    GS_LIBRARY_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
};
static _Atomic(void *) reals[GS_ROWS - GS_DRIVER_ROWS];

__thread unsigned gs_pin_inside __attribute__((tls_model("initial-exec")));

bool gs_pin_any;

void gs_pin_end_over(uint64_t address)
{
    GS_KEEP_CALLER;
    gs_core_foreign_going(gs_core, address, 0);
}

bool gs_pin_active(void)
{
    return gs_pin_inside == 0 && gs_state_is_on();
}

/* Takes the functions of a library that is loaded. Threads that come together find the same. */
static void find_library(unsigned library)
{
    struct link_map *map = gs_elf_open(sonames[library], RTLD_LAZY | RTLD_NOLOAD);

    for (unsigned i = 0; map && i < GS_ROWS - GS_DRIVER_ROWS; i++)
        if (library_of[i] == library)
            atomic_store_explicit(&reals[i],
                                  gs_elf_symbol(map->l_addr, map->l_ld,
                                                gs_row_names[GS_DRIVER_ROWS + i]),
                                  memory_order_release);
}

void *gs_pin_find(int row)
{
    const int i = row - GS_DRIVER_ROWS;
    void *real = atomic_load_explicit(&reals[i], memory_order_acquire);

    if (__builtin_expect(!real, 0)) {
        int saved = errno;

        find_library(library_of[i]);
        errno = saved;
        real = atomic_load_explicit(&reals[i], memory_order_acquire);
    }
    return real;
}

void gs_pin_say_across(const char *library, uint64_t base, size_t size)
{
    gs_log(GS_LOG_WARNING,
           "%s refuses %zu bytes at %#llx, which lie in several of the driver's allocations; "
           "GPUSHIM_DEBUG_POOL_CROSS=off keeps each block inside one",
           library, size, (unsigned long long)base);
}

/* ---- What dma-bufs stand for ----------------------------------------------------------------- */

/*
 * Which range each descriptor was made of, by the inode that all copies of it share. When the last
 * one is closed we are not told, so the oldest are forgotten at some number; one that is unknown is
 * only passed on, and what is registered through it is not kept.
 *
 * The driver's tags of its mappings tell whether the address is still that memory: a descriptor
 * holds its memory, and the address may have become something else.
 */
#define DMABUFS_MOST 65536

struct dmabuf_key {
    dev_t device;
    ino_t inode;
};

struct dmabuf {
    struct dmabuf_key key;
    uint64_t address;
    size_t size;
    unsigned long long id;
    UT_hash_handle hh; /* in the order in which they were made */
};

static struct {
    pthread_mutex_t mutex;
    struct dmabuf *table;
} dmabufs = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool dmabuf_key(int fd, struct dmabuf_key *ret_key)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return false;
    memset(ret_key, 0, sizeof *ret_key);
    ret_key->device = status.st_dev;
    ret_key->inode = status.st_ino;
    return true;
}

/* Not by the hook, which gives a block's own: this is the mapping's, the newest of several, as the
 * driver counts them up. 0: it is not memory. */
static unsigned long long mapping_id(uint64_t address, size_t size)
{
    CUpointer_attribute what[] = {CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                  CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                                  CU_POINTER_ATTRIBUTE_MAPPING_SIZE};
    unsigned long long id, newest = 0;
    uint64_t end = address + size;
    CUdeviceptr base;
    size_t bytes;

    do {
        if (gs_real.cuPointerGetAttributes(3, what, (void *[]){&id, &base, &bytes}, address) !=
                CUDA_SUCCESS ||
            id == 0)
            return 0;
        newest = id > newest ? id : newest;
        address = base + bytes;
    } while (bytes > 0 && address < end);
    return newest;
}

/* Called with the mutex held. */
static struct dmabuf *dmabuf_add(const struct dmabuf_key *key)
{
    struct dmabuf *made =
        HASH_COUNT(dmabufs.table) < DMABUFS_MOST ? calloc(1, sizeof *made) : dmabufs.table;

    if (!made)
        return NULL;
    if (made == dmabufs.table)
        HASH_DEL(dmabufs.table, made);
    made->key = *key;
    HASH_ADD(hh, dmabufs.table, key, sizeof made->key, made);
    if (made->hh.tbl)
        return made;
    free(made);
    return NULL;
}

void gs_pin_dmabuf_note(int fd, uint64_t address, size_t size)
{
    unsigned long long id = mapping_id(address, size);
    struct dmabuf_key key;
    struct dmabuf *found;

    if (!id || !dmabuf_key(fd, &key))
        return;
    pthread_mutex_lock(&dmabufs.mutex);
    HASH_FIND(hh, dmabufs.table, &key, sizeof key, found);
    if (!found) /* else an inode's number has come again */
        found = dmabuf_add(&key);
    if (found) {
        found->address = address;
        found->size = size;
        found->id = id;
    }
    pthread_mutex_unlock(&dmabufs.mutex);
}

bool gs_pin_dmabuf_find(int fd, uint64_t *ret_address, size_t *ret_size)
{
    unsigned long long id = 0;
    struct dmabuf_key key;
    struct dmabuf *found;

    if (!dmabuf_key(fd, &key))
        return false;
    pthread_mutex_lock(&dmabufs.mutex);
    HASH_FIND(hh, dmabufs.table, &key, sizeof key, found);
    if (found) {
        *ret_address = found->address;
        *ret_size = found->size;
        id = found->id;
    }
    pthread_mutex_unlock(&dmabufs.mutex);
    return id && mapping_id(*ret_address, *ret_size) == id;
}
