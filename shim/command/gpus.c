/* The GPUs of processes with the library (gpus.h). */
#include "shim/command/figures.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct gpu *gpu_of(const struct row *row, struct gpu *gpus, unsigned *count)
{
    for (unsigned i = 0; i < *count; i++)
        if (memcmp(gpus[i].uuid, row->figures.uuid, sizeof gpus[i].uuid) == 0)
            return &gpus[i];
    if (*count == GPUS_MOST)
        return NULL;
    gpus[*count] = (struct gpu){.device = row->device, .is_numbered = true};
    memcpy(gpus[*count].uuid, row->figures.uuid, sizeof gpus->uuid);
    return &gpus[(*count)++];
}

/* Those of others answer root alone. */
static bool is_own(const struct who *who)
{
    static char own[sizeof who->user];
    struct who self;

    if (!own[0]) {
        who_fill(&self, getpid(), 0, "");
        memcpy(own, self.user, sizeof own);
    }
    return geteuid() != 0 || strcmp(who->user, own) == 0;
}

static void ask_nvml(struct gpu *gpu)
{
    static struct doctor_nvml nvml;
    void *handle;
    bool is_mig;

    if (!nvml.init) /* an exporter may run before the driver is there */
        doctor_find_nvml(&nvml);
    handle = doctor_in_nvml(&nvml, gpu->uuid, &is_mig);
    gpu->is_known = handle && nvml.memory && nvml.memory(handle, &gpu->memory) == 0 && gpu->memory.total > 0;
}

static int by_device(const void *left, const void *right)
{
    const struct gpu *a = left, *b = right;

    return a->device != b->device ? (a->device > b->device) - (a->device < b->device)
                                  : memcmp(a->uuid, b->uuid, sizeof a->uuid);
}

unsigned gpus_find(const struct table *table, struct gpu ret_gpus[GPUS_MOST])
{
    unsigned count = 0;

    for (size_t i = 0; i < table->count; i++) {
        const struct row *row = &table->rows[i];
        struct gpu *gpu = row->has_figures && !row->ended ? gpu_of(row, ret_gpus, &count) : NULL;

        if (!gpu)
            continue;
        gpu->is_numbered &= gpu->device == row->device;
        *(is_own(&row->who) ? &gpu->own : &gpu->others) += row->figures.reserved;
    }
    for (unsigned i = 0; i < count; i++)
        ask_nvml(&ret_gpus[i]);
    qsort(ret_gpus, count, sizeof *ret_gpus, by_device);
    return count;
}
