/*
 * Threads of one importer while its exporters are killed under it: for three seconds threads open
 * and close what exporters in other processes export, contexts go, and every exporter is killed and
 * replaced again and again. Nothing may hang, leak, or show another block's bytes.
 */
#include "other.h"
#include "side.h"
#include "tests/system.h"

#define EXPORTERS 2
#define BLOCKS    4
#define THREADS   3
#define RUN_NS    3000000000ull

static struct side side;
static struct gs_lock lock; /* protects the handles */
static unsigned char ipc_handles[EXPORTERS][BLOCKS][GS_IPC_HANDLE_SIZE];
static uint64_t end;
static unsigned opened, refused, killed, failures; /* atomic */

static void fail(const char *what, int value)
{
    if (__atomic_fetch_add(&failures, 1, __ATOMIC_SEQ_CST) < 10)
        fprintf(stderr, "%s: %d\n", what, value);
}

static int stamp_of(int exporter, int block)
{
    return 10 + exporter * BLOCKS + block;
}

static void *run_importer(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    CUcontext context = (CUcontext)(uintptr_t)(0x1000 * (1 + seed % 2));

    while (side_now() < end) {
        int exporter = rand_r(&seed) % EXPORTERS, block = rand_r(&seed) % BLOCKS;
        unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
        struct gs_import_info info;
        CUdeviceptr address;
        gs_status status;

        gs_lock_take(&lock);
        memcpy(ipc_handle, ipc_handles[exporter][block], sizeof ipc_handle);
        gs_lock_release(&lock);
        status = gs_share_open(side.share, ipc_handle, context, (CUdevice)(seed % 2), &address);
        if (status == GS_UNREACHABLE || status == GS_STALE) {
            __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
            continue;
        }
        if (status != GS_OK) {
            fail("open", status);
            continue;
        }
        __atomic_add_fetch(&opened, 1, __ATOMIC_RELAXED);
        if (*(volatile unsigned char *)(address + 100) != stamp_of(exporter, block))
            fail("foreign bytes", *(volatile unsigned char *)(address + 100));
        if (gs_share_find(side.share, address + 511, &info) != GS_OK || info.base != address)
            fail("find", 0);
        usleep((unsigned)rand_r(&seed) % 500);
        if (gs_share_close(side.share, address) != GS_OK)
            fail("close", 0);
    }
    return NULL;
}

static void export_all(struct other *other, int exporter, const char *dir)
{
    unsigned char fresh[BLOCKS][GS_IPC_HANDLE_SIZE];

    other_start(other, dir, NULL);
    for (int i = 0; i < BLOCKS; i++)
        other_export(other, (size_t)i * 512, 512, stamp_of(exporter, i), fresh[i]);
    gs_lock_take(&lock);
    memcpy(ipc_handles[exporter], fresh, sizeof fresh);
    gs_lock_release(&lock);
}

int main(void)
{
    struct other others[EXPORTERS];
    pthread_t threads[THREADS];
    struct gs_share_options options;
    char dir[64];

    alarm(60);
    gs_lock_init(&lock, GS_RANK_IMPORTER);
    side_dir_new(dir, sizeof dir);
    side_options(&options, dir);
    side_start(&side, &options);
    for (int i = 0; i < EXPORTERS; i++)
        export_all(&others[i], i, dir);
    end = side_now() + RUN_NS;
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run_importer, (void *)(i + 1));
    while (side_now() < end) {
        int victim = (int)(killed++ % EXPORTERS);

        usleep(30000);
        other_kill(&others[victim]);
        export_all(&others[victim], victim, dir);
        if (killed % 7 == 0) /* of nobody here: the table is searched all the same */
            gs_share_context_gone(side.share, (CUcontext)0x9000);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < EXPORTERS; i++)
        if (other_stop(&others[i]) != 0)
            fail("an exporter ended badly", i);
    side_stop(&side);
    printf("opened %u, refused %u, killed %u, alive %d, left %d, failures %u\n", opened, refused,
           killed, memdriver_alive(), side_dir_count(dir), failures);
    if (!opened || !killed || memdriver_alive() != 0 || side_dir_count(dir) > 1)
        failures++;
    side_dir_remove(dir);
    return failures ? 1 : 0;
}
