/*
 * The driver, and NVIDIA's library of management, as gpushim doctor asks them: found while it runs,
 * past whatever is preloaded here. What is missing is NULL.
 */
#ifndef GS_SHIM_COMMAND_DOCTOR_CUDA_H
#define GS_SHIM_COMMAND_DOCTOR_CUDA_H

#include "core/gpu/driver.h"
#include "shim/command/doctor.h"

struct link_map;

struct doctor_nvml_memory { /* nvmlMemory_t */
    unsigned long long total, left, used;
};

/* OP(field, symbol, its type) */
#define DOCTOR_NVML(OP)                                                                            \
    OP(init, nvmlInit_v2, int (*)(void))                                                           \
    OP(by_uuid, nvmlDeviceGetHandleByUUID, int (*)(const char *, void **))                         \
    OP(memory, nvmlDeviceGetMemoryInfo, int (*)(void *, struct doctor_nvml_memory *))

struct doctor_nvml {
#define DOCTOR_NVML_FIELD(field, symbol, type) __typeof__((type)0) field;
    DOCTOR_NVML(DOCTOR_NVML_FIELD)
#undef DOCTOR_NVML_FIELD
};

struct doctor_cuda {
    struct gs_driver core; /* what core uses of it */
    CUresult (*init)(unsigned);
    CUresult (*version)(int *);
    CUresult (*device_get)(CUdevice *, int);
    CUresult (*device_name)(char *, int, CUdevice);
    CUresult (*error_name)(CUresult, const char **);
    struct doctor_nvml nvml;
};

/* Loads a library; NULL with the reason in words. */
struct link_map *doctor_load(const char *name, const char **ret_reason);
void *doctor_symbol(const struct link_map *library, const char *name);

/* NVML, started; all NULL where there is none. */
void doctor_find_nvml(struct doctor_nvml *ret);
/* The device's handle; NULL: there is none. *ret_mig: it is a part of a GPU, by MIG. */
void *doctor_in_nvml(const struct doctor_nvml *nvml, const unsigned char uuid[16], bool *ret_mig);

/* The rows of every GPU; the driver is initialised. */
void doctor_gpus(struct doctor *doctor, const struct doctor_cuda *cuda);

#endif
