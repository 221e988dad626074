/*
 * A libcufile.so.0 that registers buffers and nothing else: counted, refused when they overlap or
 * lie across allocations of the GPU's, and looked at when they end, whether their memory went
 * before.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "pages.h"
#include "pin_counts.h"

#define EXPORT  __attribute__((visibility("default")))
#define BUFFERS 64

typedef struct {
    int err, cu_err;
} error_t_;

static struct {
    uint64_t base;
    size_t size;
    struct pages pages;
} buffer[BUFFERS];
static struct pin_counts counts;
static int fails; /* what the next end of a registration, or of all, answers */

EXPORT void cufile_stand_in_counts(struct pin_counts *ret_counts)
{
    *ret_counts = counts;
}

EXPORT void cufile_stand_in_fail(int error)
{
    fails = error;
}

static bool refuses(error_t_ *ret)
{
    *ret = (error_t_){fails, fails ? 7 : 0};
    fails = 0;
    return ret->err != 0;
}

EXPORT error_t_ cuFileBufRegister(const void *address, size_t size, int flags)
{
    uint64_t base = (uintptr_t)address;
    int room = -1;

    for (int i = 0; i < BUFFERS; i++) {
        if (!buffer[i].size)
            room = i;
        else if (buffer[i].base < base + size && buffer[i].base + buffer[i].size > base)
            return (error_t_){5023, 0}; /* CU_FILE_MEMORY_ALREADY_REGISTERED */
    }
    if (room < 0 || !size || !pages_behind(base, size, &buffer[room].pages))
        return (error_t_){5022, 0};
    if (!one_allocation(&buffer[room].pages))
        return (error_t_){5036, 0}; /* CU_FILE_GPU_MEMORY_PINNING_FAILED */
    buffer[room].base = base;
    buffer[room].size = size;
    counts.pinned++;
    counts.live++;
    return (error_t_){0, 0};
}

EXPORT error_t_ cuFileBufDeregister(const void *address)
{
    error_t_ error;

    if (refuses(&error))
        return error;
    for (int i = 0; i < BUFFERS; i++)
        if (buffer[i].size && buffer[i].base == (uintptr_t)address) {
            struct pages now;

            if (!pages_behind(buffer[i].base, buffer[i].size, &now) ||
                memcmp(&now, &buffer[i].pages, sizeof now) != 0)
                counts.wrong++;
            buffer[i].size = 0;
            counts.live--;
            return (error_t_){0, 0};
        }
    return (error_t_){5024, 0}; /* CU_FILE_MEMORY_NOT_REGISTERED */
}

EXPORT error_t_ cuFileDriverClose(void)
{
    error_t_ error;

    if (refuses(&error))
        return error;
    for (int i = 0; i < BUFFERS; i++)
        counts.left_to_close += buffer[i].size != 0;
    memset(buffer, 0, sizeof buffer);
    counts.live = 0;
    return (error_t_){0, 0};
}
