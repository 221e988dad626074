/*
 * Files of events of several processes (core/share/event.h), in worlds whose seed has a 6 before
 * its last digit: programs make one each, pass handles of it round, and have others' given to them.
 * The driver, which maps what is given and keeps the events themselves, is not here.
 */
#include <string.h>

#include "core/share/event.h"
#include "simulation.h"

#define PASSED_MAX 16
#define LATE_NS    (100 * GS_NS_PER_MS)
#define NO_PID     0x7f000000u /* as core/share/event.c has it */

/* Handles that go round, each of another file; and by which pid programs know that. */
static struct passed {
    struct image *image;
    uint64_t file;
    struct gs_event_handle handle;
    struct known {
        const struct image *by;
        uint64_t pid;
    } known[PROCESSES_MAX];
} passed[PASSED_MAX];
static unsigned count;

void events_begin(void)
{
    count = 0;
}

static bool has_events(void)
{
    return world.seed / 10 % 10 == 6;
}

static struct passed *passed_of(uint64_t file)
{
    for (unsigned i = 0; i < count && i < PASSED_MAX; i++)
        if (passed[i].file == file)
            return &passed[i];
    return NULL;
}

/* Its program's file; another where it has closed that, which may have the same number. */
static bool file_of(struct process *process, struct gs_fd *ret_file)
{
    int fd;

    if (process->event_image != process->image || !gs_fd_is_there(&process->event_file)) {
        fd = fd_new(process, file_new(FILE_EVENTS));
        if (fd < 0)
            return false;
        process->event_file = gs_fd_keep(fd);
        process->event_image = process->image;
    }
    *ret_file = process->event_file;
    return true;
}

/* `closes`: a program that closes what it does not know has had the one before. */
static void share_file(struct process *process, bool closes)
{
    struct gs_event_handle handle = {.pid = (uint64_t)process->life->pid};
    struct image *const image = process->image;
    struct passed *before;
    struct gs_fd file;

    if (closes && process->event_image == image && program_may_close(process))
        gs_fd_close(&process->event_file);
    if (!file_of(process, &file))
        return;
    handle.number = file.inode % 2;
    if (gs_event_export(process->share, &file, &handle) != GS_OK)
        return;
    before = passed_of(file.inode);
    if (before && memcmp(&before->handle, &handle, sizeof handle) != 0)
        sim_fail("events: process %u gets another handle of its file than before", process->index);
    if (!before)
        passed[count++ % PASSED_MAX] = (struct passed){image, file.inode, handle, {{0}}};
}

/* The driver knows a file by its number and pid: each has one, and always the same. */
static void look_at_pid(const struct process *process, uint64_t file, uint64_t number, uint64_t pid)
{
    for (unsigned i = 0; i < count && i < PASSED_MAX; i++) {
        struct known *known = &passed[i].known[process->index];

        if (passed[i].file == file && known->by != process->image)
            *known = (struct known){process->image, pid};
        if (known->by == process->image && passed[i].handle.number == number &&
            (known->pid == pid) != (passed[i].file == file))
            sim_fail("events: process %u takes two files for one, or one for two", process->index);
    }
}

/* `must`: nothing stands in its way. */
static void open_file(struct process *process, const struct passed *of, bool must)
{
    const uint64_t begun = gs_now_ns(), starved = process->starved_ns;
    const struct passed whose = *of; /* another may get its place meanwhile */
    struct gs_event_handle handle = whose.handle;
    const char *reason;
    gs_status status;
    int fd = -1;

    status = gs_event_open(process->share, must, &handle, &fd, &reason);
    if (world.now_ns - begun > process->starved_ns - starved + world.options.timeout_ns + LATE_NS)
        sim_fail("events: an open of process %u ends beyond debug.timeout", process->index);
    if (whose.image == process->image ? status != GS_NOT_OURS : must && status != GS_OK)
        sim_fail("events: process %u opens a file of process %u: status %d (%s)", process->index,
                 (unsigned)whose.image->life->pid, status, reason ? reason : "");
    if (status == GS_OK && (handle.pid <= NO_PID || handle.number != whose.handle.number))
        sim_fail("events: process %u is led to a process that there may be", process->index);
    if (status == GS_OK)
        look_at_pid(process, whose.file, whose.handle.number, handle.pid);
    if (status != GS_OK || fd < 0)
        return;
    if (!fd_file(fd, FILE_EVENTS) || fd_file(fd, FILE_EVENTS)->id != whose.file)
        sim_fail("events: process %u is given another file than the handle's", process->index);
    gs_fd_drop(fd);
    gs_event_opened(process->share, &whose.handle);
}

void events_do(struct process *process, unsigned arg)
{
    if (!has_events())
        return;
    if (arg % 3 == 0)
        share_file(process, arg % 8 == 0);
    else if (count > 0)
        open_file(process, &passed[arg % (count < PASSED_MAX ? count : PASSED_MAX)], false);
}

/* Whether its process has it still, and is on this machine. */
static bool is_there(const struct process *process, const struct passed *of)
{
    for (unsigned i = 0; i < PROCESSES_MAX; i++) {
        const struct process *other = &world.processes[i];

        for (unsigned fd = 0; fd < FDS_MAX && other->image == of->image; fd++)
            if (other->state == PROCESS_RUNS && other->share && other->ends == ENDS_NOT &&
                other->machine == process->machine && other->fds[fd].file &&
                other->fds[fd].file->id == of->file)
                return true;
    }
    return false;
}

void events_open_all(struct process *process)
{
    for (unsigned i = 0; has_events() && i < count && i < PASSED_MAX; i++)
        if (is_there(process, &passed[i]))
            open_file(process, &passed[i],
                      passed[i].image != process->image &&
                          world.options.max_clients > PROCESSES_MAX);
}

void events_end(struct process *process)
{
    if (process->event_image == process->image)
        gs_fd_close(&process->event_file);
    process->event_image = NULL;
}
