/* What a device keeps by a descriptor: closed once, and in a child that is forked. */
#include <criterion/criterion.h>

#include "core/gpu/device.h"
#include "tests/driver/softcuda.h"
#include "tests/unit/base/files.h"
#include "tests/unit/fixture.h"

/* A number that is another file's by then stays open there. */
Test(device, a_forked_child_closes_what_is_kept_and_nothing_else)
{
    int fd[3] = {new_file(), new_file(), new_file()}, other = new_file(), status;
    struct gs_device device[3];
    pid_t child;

    for (int i = 0; i < 3; i++)
        device[i] = (struct gs_device){.warmed_up = true, .warm_up = gs_fd_keep(fd[i])};
    cr_assert_gt(gs_device_end_warm_up(&device[0]), 0);
    cr_assert_not(is_open(fd[0]));
    cr_assert_eq(gs_device_end_warm_up(&device[0]), 0);
    dup2(other, fd[0]);
    dup2(other, fd[1]);
    child = fork();
    if (child == 0) {
        for (int i = 0; i < 3; i++)
            gs_device_forked(&device[i]);
        _exit(is_open(fd[0]) && is_open(fd[1]) && !is_open(fd[2]) ? 42 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(WEXITSTATUS(status), 42);
    cr_assert(is_open(fd[2]));
}

/* ---- Memory that is to leave the machine ---------------------------------------------------- */

static int handles; /* that were made and not released */
static CUresult refusal;

static CUresult can(int *ret, CUdevice_attribute attribute, CUdevice device)
{
    *ret = 1;
    return CUDA_SUCCESS;
}

static CUresult make(CUmemGenericAllocationHandle *ret, size_t size,
                     const CUmemAllocationProp *properties, unsigned long long flags)
{
    if (refusal)
        return refusal;
    cr_assert(properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC);
    *ret = 7;
    handles++;
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    cr_assert_eq(handle, 7);
    handles--;
    return CUDA_SUCCESS;
}

static unsigned lines;

static void hear(enum gs_log_level level, const void *caller, const char *text)
{
    lines++;
}

Test(device, what_was_made_to_try_a_fabric_handle_is_given_back)
{
    const struct gs_driver driver = {.device_get_attribute = can,
                                     .mem_create = make,
                                     .mem_release = release};
    const struct gs_log log = {.line = hear};
    struct gs_device device = {.mode = GS_MODE_FD,
                               .properties.requestedHandleTypes =
                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};

    refusal = CUDA_ERROR_NOT_PERMITTED;
    gs_device_reach(&driver, &log, &device);
    cr_assert_not(device.properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC);
    cr_assert_eq(lines, 1, "why not is said");
    refusal = CUDA_SUCCESS;
    gs_device_reach(&driver, &log, &device);
    cr_assert_eq(device.properties.requestedHandleTypes,
                 CU_MEM_HANDLE_TYPE_FABRIC | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    cr_assert_eq(handles, 0);
    cr_assert_eq(lines, 1);
}

/* ---- What it can ----------------------------------------------------------------------------- */

/* The driver does not say whether its descriptors are inherited, so here they are. */
static CUresult export_inherited(void *ret, CUmemGenericAllocationHandle handle,
                                 CUmemAllocationHandleType type, unsigned long long flags)
{
    *(int *)ret = dup(STDIN_FILENO);
    return CUDA_SUCCESS;
}

Test(device, no_program_that_is_executed_gets_an_exported_descriptor)
{
    const struct gs_driver driver = {.mem_export = export_inherited};
    int fd = -1;

    MUST(gs_device_export(&driver, 7, &fd));
    cr_assert_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd);
}

static CUresult full(CUmemGenericAllocationHandle *ret, size_t size,
                     const CUmemAllocationProp *properties, unsigned long long flags)
{
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult refuse_import(CUmemGenericAllocationHandle *ret, void *handle,
                              CUmemAllocationHandleType type)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* It is asked again when there is room. */
Test(device, one_that_is_full_is_not_taken_for_one_that_cannot)
{
    const struct gs_log log = {.line = hear};
    struct softcuda_census census;
    struct gs_driver driver;
    struct gs_device device;
    struct fixture f;

    fixture_options(&f);
    fixture_start(&f);
    driver = *fixture_driver(&f);
    driver.mem_create = full;
    gs_device_probe(&driver, &log, 0, false, false, &device);
    cr_assert_eq(device.mode, GS_MODE_UNKNOWN);
    cr_assert_eq(lines, 0);
    driver.mem_create = fixture_driver(&f)->mem_create;
    gs_device_probe(&driver, &log, 0, false, false, &device);
    cr_assert(device.mode == GS_MODE_FD_RDMA || device.mode == GS_MODE_FD);
    driver.mem_export = NULL;
    gs_device_probe(&driver, &log, 0, false, false, &device);
    cr_assert_eq(device.mode, GS_MODE_NATIVE);
    cr_assert_eq(lines, 1);
    driver.mem_export = fixture_driver(&f)->mem_export;
    driver.mem_import = refuse_import;
    gs_device_probe(&driver, &log, 0, false, false, &device);
    cr_assert_eq(device.mode, GS_MODE_NATIVE);
    softcuda_census(&census);
    cr_assert_eq(census.exported_fds, 0);
    fixture_end(&f);
}
