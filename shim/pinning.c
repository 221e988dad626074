/* Finding the libraries that register memory, and answering look-ups of their calls (pinning.h). */
#include "pinning.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#include "elf_symbols.h"
#include "lookup.h"
#include "resolve.h"
#include "state.h"

static const char *const sonames[GS_PIN_LIBRARIES] = {
    [GS_PIN_VERBS] = "libibverbs.so.1",
    [GS_PIN_GDR] = "libgdrapi.so.2",
    [GS_PIN_CUFILE] = "libcufile.so.0",
};

static const struct {
    enum gs_pin_library library;
    const char *name;
    void *hook;
} rows[GS_PIN_ROWS] = {
#define PIN(library, symbol) {GS_PIN_##library, #symbol, (void *)&symbol},
    GS_PIN_ENTRIES(PIN)
#undef PIN
};

static _Atomic(void *) reals[GS_PIN_ROWS];

__thread unsigned gs_pin_inside __attribute__((tls_model("initial-exec")));
enum gs_pin_keep gs_pin_keep = GS_PIN_KEEP_LOCAL;

bool gs_pin_active(void)
{
    return gs_pin_inside == 0 &&
           atomic_load_explicit(&gs_state, memory_order_acquire) == GS_STATE_READY;
}

/* Takes the functions of a library that is loaded. Threads that come together find the same. */
static void find_library(enum gs_pin_library library)
{
    void *(*next_dlopen)(const char *, int) = gs_elf_next("dlopen");
    int (*next_dlinfo)(void *, int, void *) = gs_elf_next("dlinfo");
    struct link_map *map = NULL;
    void *handle;

    if (!next_dlopen || !next_dlinfo)
        return;
    handle = next_dlopen(sonames[library], RTLD_LAZY | RTLD_NOLOAD);
    if (!handle || next_dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0)
        return;
    for (unsigned i = 0; i < GS_PIN_ROWS; i++)
        if (rows[i].library == library)
            atomic_store_explicit(&reals[i], gs_elf_symbol(map->l_addr, map->l_ld, rows[i].name),
                                  memory_order_release);
}

void *gs_pin_find(enum gs_pin_row row)
{
    void *real = atomic_load_explicit(&reals[row], memory_order_acquire);

    if (__builtin_expect(!real, 0)) {
        int saved = errno;

        find_library(rows[row].library);
        errno = saved;
        real = atomic_load_explicit(&reals[row], memory_order_acquire);
    }
    return real;
}

static int row_of(const char *name)
{
    for (int i = 0; i < GS_PIN_ROWS; i++)
        if (strcmp(rows[i].name, name) == 0)
            return i;
    return -1;
}

static void *ask(const struct gs_lookup *lookup, void *handle)
{
    return lookup->version ? gs_next_dlvsym()(handle, lookup->name, lookup->version)
                           : gs_next_dlsym()(handle, lookup->name);
}

bool gs_pin_answer(const struct gs_lookup *lookup, void **ret_answer)
{
    int row = row_of(lookup->name);
    void *found;

    if (row < 0 || lookup->handle == RTLD_NEXT)
        return false;
    found = ask(lookup, lookup->handle);
    if (found == rows[row].hook) /* our export stands before what the program would find */
        found = ask(lookup, RTLD_NEXT);
    *ret_answer = found && found == gs_pin_find((enum gs_pin_row)row) ? rows[row].hook : found;
    return true;
}

/* ---- What dma-bufs stand for --------------------------------------------------------------------- */

/* The last descriptors made. One that was pushed out is unknown, and its registration is only
 * passed on; programs register a descriptor right after they made it. */
#define DMABUFS 256

static struct {
    pthread_mutex_t mutex;
    unsigned next;
    struct {
        dev_t device;
        ino_t inode;
        uint64_t address;
        size_t size;
    } made[DMABUFS];
} dmabufs = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void gs_pin_dmabuf_note(int fd, uint64_t address, size_t size)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return;
    pthread_mutex_lock(&dmabufs.mutex);
    dmabufs.made[dmabufs.next].device = status.st_dev;
    dmabufs.made[dmabufs.next].inode = status.st_ino;
    dmabufs.made[dmabufs.next].address = address;
    dmabufs.made[dmabufs.next].size = size;
    dmabufs.next = (dmabufs.next + 1) % DMABUFS;
    pthread_mutex_unlock(&dmabufs.mutex);
}

bool gs_pin_dmabuf_find(int fd, uint64_t *ret_address, size_t *ret_size)
{
    struct stat status;
    bool found = false;

    if (fstat(fd, &status) != 0)
        return false;
    pthread_mutex_lock(&dmabufs.mutex);
    /* The latest first: an inode number comes back when its dma-buf is gone. */
    for (unsigned i = 1; i <= DMABUFS && !found; i++) {
        unsigned at = (dmabufs.next + DMABUFS - i) % DMABUFS;

        found = dmabufs.made[at].size && dmabufs.made[at].device == status.st_dev &&
                dmabufs.made[at].inode == status.st_ino;
        if (found) {
            *ret_address = dmabufs.made[at].address;
            *ret_size = dmabufs.made[at].size;
        }
    }
    pthread_mutex_unlock(&dmabufs.mutex);
    return found;
}
