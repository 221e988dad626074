/* What a device keeps by a descriptor: closed once, and in a child that is forked. */
#include <criterion/criterion.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/gpu/device.h"
#include "tests/unit/base/files.h"

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
    const struct gs_driver driver = {
        .device_get_attribute = can, .mem_create = make, .mem_release = release};
    const struct gs_log log = {.line = hear};
    struct gs_device device = {.mode = GS_MODE_FD};

    refusal = CUDA_ERROR_NOT_PERMITTED;
    gs_device_reach(&driver, &log, &device);
    cr_assert_not(device.properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC);
    cr_assert_eq(lines, 1, "why not is said");
    refusal = CUDA_SUCCESS;
    gs_device_reach(&driver, &log, &device);
    cr_assert(device.properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC);
    cr_assert_eq(handles, 0);
    cr_assert_eq(lines, 1);
}
