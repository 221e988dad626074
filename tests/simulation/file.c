/* Files, and the descriptors that processes have of them (core/base/fd.h). */
#include "simulation.h"

#include <errno.h>
#include <stdlib.h>

#include "core/base/fd.h"

#define FIRST_FD 3

struct file *file_new(enum file_kind kind)
{
    struct file *file = sim_alloc(sizeof *file);

    file->kind = kind;
    file->id = ++world.next_file;
    file->last = &file->first;
    world.file_count++;
    return file;
}

void file_ref(struct file *file)
{
    file->refs++;
}

void file_changed(struct file *file)
{
    struct process *process = file->holder;

    if (!process)
        return;
    for (unsigned i = 0; i < THREADS; i++)
        if (process->threads[i].waits_on == file || process->threads[i].waits_on == process)
            fibre_wake(&process->threads[i]);
}

void message_free(struct message *message)
{
    for (unsigned i = 0; i < message->files; i++)
        file_unref(message->file[i]);
    if (message->file)
        sim_free(message->file);
    sim_free(message);
}

static void hang_up(struct file *file)
{
    struct file *peer = file->peer;

    while (file->first) {
        struct message *message = file->first;

        file->first = message->next;
        message_free(message);
    }
    if (!peer)
        return;
    peer->peer = NULL;
    if (peer->holder)
        peer->holder->lost_ns = world.now_ns;
    file_changed(peer);
}

static void file_free(struct file *file)
{
    while (file->first_caller) {
        struct file *caller = file->first_caller;

        file->first_caller = caller->next_caller;
        file_unref(caller);
    }
    if (file->kind == FILE_SOCKET)
        hang_up(file);
    if (file->kind == FILE_LISTENER)
        folder_listener_gone(file);
    if (file->phys)
        phys_unref(file->phys);
    sim_free(file->words);
    sim_free(file);
    world.file_count--;
}

void file_unref(struct file *file)
{
    if (--file->refs == 0)
        file_free(file);
}

int fd_new(struct process *process, struct file *file)
{
    unsigned fd = FIRST_FD;

    while (fd < process->fd_limit && process->fds[fd].file)
        fd++;
    if (fd >= process->fd_limit) {
        file_ref(file);
        file_unref(file);
        errno = EMFILE;
        return -1;
    }
    file_ref(file);
    if (file->kind != FILE_PIDFD)
        file->holder = process;
    process->fds[fd] = (struct descriptor){.file = file};
    process->fd_count++;
    return (int)fd;
}

static struct descriptor *descriptor_of(struct process *process, int fd)
{
    return fd >= FIRST_FD && fd < FDS_MAX && process->fds[fd].file ? &process->fds[fd] : NULL;
}

struct file *fd_file(int fd, enum file_kind kind)
{
    struct descriptor *descriptor = descriptor_of(process_here(), fd);

    return descriptor && descriptor->file->kind == kind ? descriptor->file : NULL;
}

static void drop(struct process *process, unsigned fd)
{
    struct file *file = process->fds[fd].file;

    process->fds[fd] = (struct descriptor){0};
    process->fd_count--;
    file_unref(file);
}

void fd_close(int fd, const char *who)
{
    struct process *process = process_here();
    struct descriptor *descriptor = descriptor_of(process, fd);

    if (!descriptor)
        sim_fail("descriptors: process %u closes %d, which is none (%s)", process->index, fd, who);
    else if (descriptor->is_programs)
        sim_fail("descriptors: process %u closes %d, which is its program's (%s)", process->index,
                 fd, who);
    else
        drop(process, (unsigned)fd);
}

/* What the library keeps for a while, but for what the share thread itself lives by: a program that
 * closes that has ended sharing. */
static bool may_be_closed(const struct descriptor *descriptor)
{
    return descriptor->file && descriptor->is_kept && descriptor->file->kind != FILE_OTHER;
}

/* Half of the programs open a file of their own then. */
bool fd_close_unknown(struct process *process, unsigned which)
{
    unsigned count = 0, fd;

    for (fd = FIRST_FD; fd < FDS_MAX; fd++)
        count += may_be_closed(&process->fds[fd]);
    if (count == 0)
        return false;
    which %= 2 * count;
    for (fd = FIRST_FD; fd < FDS_MAX; fd++)
        if (may_be_closed(&process->fds[fd]) && which / 2 == --count)
            break;
    rule_program_closes(process, process->fds[fd].file);
    drop(process, fd);
    if (which % 2) {
        int own = fd_new(process, file_new(FILE_OTHER));

        if (own >= 0)
            process->fds[own].is_programs = true;
    }
    return true;
}

void fd_close_all(struct process *process)
{
    for (unsigned fd = FIRST_FD; fd < FDS_MAX; fd++)
        if (process->fds[fd].file)
            drop(process, fd);
}

/* ---- core/base/fd.h ------------------------------------------------------------------------- */

struct gs_fd gs_fd_keep(int fd)
{
    struct descriptor *descriptor = descriptor_of(process_here(), fd);

    if (descriptor)
        descriptor->is_kept = true;
    return descriptor ? (struct gs_fd){.any = true, .fd = fd, .inode = descriptor->file->id}
                      : (struct gs_fd){0};
}

bool gs_fd_is_there(const struct gs_fd *kept)
{
    struct descriptor *descriptor = descriptor_of(process_here(), kept->fd);

    return kept->any && descriptor && descriptor->file->id == kept->inode;
}

void gs_fd_close(const struct gs_fd *kept)
{
    if (gs_fd_is_there(kept))
        fd_close(kept->fd, "gs_fd_close");
}

int gs_fd_copy(int fd)
{
    struct descriptor *descriptor = descriptor_of(process_here(), fd);

    if (!descriptor) {
        errno = EBADF;
        return -1;
    }
    return fd_new(process_here(), descriptor->file);
}

void gs_fd_drop(int fd)
{
    if (fd >= 0)
        fd_close(fd, "gs_fd_drop");
}

uint64_t gs_fd_limit(void)
{
    return FDS_MAX;
}
