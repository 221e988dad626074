/*
 * What the process holds of the driver, asked by a test or reported at exit (SOFTCUDA_REPORT).
 */
#include "internal.h"

/* A primary context that nobody retains has an object too. */
static void count_context(struct sd_context *context, void *alive)
{
    *(unsigned *)alive += context->active;
}

static void count_blocks(struct softcuda_census *census)
{
    for (size_t i = 0; i < sd_blocks.count; i++) {
        const struct sd_block *block = sd_blocks.at[i].value;
        switch (block->kind) {
        case SD_BLOCK_VMM:
            census->mappings++;
            break;
        case SD_BLOCK_HOST:
        case SD_BLOCK_MANAGED:
            census->host_blocks++;
            break;
        case SD_BLOCK_IPC:
            break;
        default:
            census->blocks++;
        }
    }
}

static void take_census(struct softcuda_census *census)
{
    unsigned default_pools = 0;

    memset(census, 0, sizeof *census);
    for (int i = 0; i < sd_device_count; i++) {
        census->device_bytes += sd_devices[i].used;
        default_pools += sd_devices[i].default_pool != NULL;
    }
    census->contexts = 0;
    sd_contexts_each(count_context, &census->contexts);
    census->streams = sd_object_count(SD_STREAM);
    census->events = sd_object_count(SD_EVENT);
    census->modules = sd_object_count(SD_MODULE);
    census->graphs = sd_object_count(SD_GRAPH) + sd_object_count(SD_EXEC);
    census->pools = sd_object_count(SD_POOL) - default_pools;
    census->handles = sd_handle_count();
    census->reservations = sd_reservation_count();
    census->exported_fds = sd_exported_fd_count();
    census->ipc_opened = sd_ipc_opened_count();
    count_blocks(census);
}

void softcuda_census(struct softcuda_census *ret_census)
{
    memset(ret_census, 0, sizeof *ret_census);
    if (atomic_load(&sd_gate) & (SD_GATE_UNINITIALISED | SD_GATE_FORKED))
        return;
    pthread_mutex_lock(&sd_lock);
    take_census(ret_census);
    pthread_mutex_unlock(&sd_lock);
}

/* One line, one write: processes that exit together do not mix their lines. */
__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("SOFTCUDA_REPORT");
    struct timespec limit;
    struct softcuda_census c;
    FILE *file;

    if (!path || (atomic_load(&sd_gate) & (SD_GATE_UNINITIALISED | SD_GATE_FORKED)))
        return;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 1;
    if (pthread_mutex_timedlock(&sd_lock, &limit))
        return;
    take_census(&c);
    pthread_mutex_unlock(&sd_lock);
    file = fopen(path, "ae");
    if (!file)
        return;
    fprintf(file,
            "pid %ld contexts %u streams %u events %u modules %u graphs %u handles %u "
            "reservations %u mappings %u exported_fds %u blocks %u ipc_opened %u host_blocks %u "
            "pools %u device_bytes %llu\n",
            (long)getpid(), c.contexts, c.streams, c.events, c.modules, c.graphs, c.handles,
            c.reservations, c.mappings, c.exported_fds, c.blocks, c.ipc_opened, c.host_blocks,
            c.pools, c.device_bytes);
    fclose(file);
}
