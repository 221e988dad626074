/* The GPUs that processes with the library have memory of, and what NVML says of each. */
#ifndef GS_SHIM_COMMAND_GPUS_H
#define GS_SHIM_COMMAND_GPUS_H

#include "shim/command/doctor_cuda.h"
#include "shim/command/figures.h"

#define GPUS_MOST 64

struct gpu {
    unsigned char uuid[16];
    unsigned device;      /* by its number in the first of these processes; */
    bool is_numbered;     /* and in all others */
    uint64_t own, others; /* what this user's processes with the library have, and other users' */
    bool is_known;
    struct doctor_nvml_memory memory;
};

/* From the first on by number; how many. */
unsigned gpus_find(const struct table *table, struct gpu ret_gpus[GPUS_MOST]);

#endif
