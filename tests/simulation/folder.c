/* The runtime directory, and this process's socket in it (core/share/directory.h, socket.c). */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/share/discard.h"
#include "core/share/exporter.h"
#include "core/share/importer.h"
#include "simulation.h"

#define BACKLOG 4
#define BUFFER  (212992 / 4) /* what a socket takes, as it is set when nobody sets it */

static struct entry {
    char name[GS_BROKER_NAME_SIZE];
    struct file *listener; /* NULL: it was closed */
    struct image *image;   /* whose it is */
    struct entry *next;
} *entries;

/* Whether it is in the folder of this machine. */
static bool is_here(const struct entry *entry)
{
    return entry->image->machine == process_here()->machine;
}

static struct entry *find(const char *name)
{
    struct entry *entry = entries;

    while (entry && (strcmp(entry->name, name) != 0 || !is_here(entry)))
        entry = entry->next;
    return entry;
}

static void enter(const char *name, struct file *listener, struct image *image)
{
    struct entry *entry = find(name);

    if (!entry) {
        entry = sim_alloc(sizeof *entry);
        snprintf(entry->name, sizeof entry->name, "%s", name);
        entry->next = entries;
        entries = entry;
    }
    entry->listener = listener;
    entry->image = image;
}

static void leave(struct entry **link)
{
    struct entry *entry = *link;

    *link = entry->next;
    for (unsigned i = 0; i < PROCESSES_MAX; i++) /* whose it was is told (inotify) */
        if (world.processes[i].state == PROCESS_RUNS && world.processes[i].image == entry->image)
            thread_wake(&world.processes[i]);
    sim_free(entry);
}

void gs_socket_event(struct gs_share *share)
{
}

void folder_listener_gone(const struct file *listener)
{
    for (struct entry *entry = entries; entry; entry = entry->next)
        if (entry->listener == listener)
            entry->listener = NULL;
}

unsigned folder_count(const struct image *image)
{
    unsigned count = 0;

    for (struct entry *entry = entries; entry; entry = entry->next)
        count += entry->image == image;
    return count;
}

void folder_clear(void)
{
    while (entries)
        leave(&entries);
}

/* ---- core/share/directory.h ----------------------------------------------------------------- */

uid_t gs_user_own(void)
{
    return 0;
}

bool gs_user_is_own(uid_t uid)
{
    return uid == 0;
}

bool gs_user_is_one(uid_t uid)
{
    return true;
}

bool gs_process_is_listed(const struct gs_share_options *options, uid_t uid, gid_t gid)
{
    return uid == 0;
}

void gs_broker_name(char ret_name[GS_BROKER_NAME_SIZE])
{
    snprintf(ret_name, GS_BROKER_NAME_SIZE, GS_BROKER_NAME);
}

const char *gs_directory_words(const struct gs_share_options *options)
{
    return "the folder";
}

int gs_directory_next(const struct gs_share_options *options, unsigned *place,
                      char ret_reason[GS_REASON_SIZE])
{
    int fd;

    if (ret_reason)
        ret_reason[0] = 0;
    if ((*place)++ > 0)
        return -1;
    fd = fd_new(process_here(), file_new(FILE_DIRECTORY));
    if (fd >= 0)
        return fd;
    if (ret_reason)
        snprintf(ret_reason, GS_REASON_SIZE, "no descriptor is left");
    return -EMFILE;
}

/* A caller of the listener's, who has not been accepted. */
static int call(struct file *listener)
{
    struct file *near = file_new(FILE_SOCKET), *far = file_new(FILE_SOCKET), **last;
    int fd;

    near->life = listener->life;
    far->life = process_here()->life;
    near->limit = far->limit = conn_limit(BUFFER);
    near->peer = far;
    far->peer = near;
    far->holder = listener->holder;
    file_ref(far);
    fd = fd_new(process_here(), near);
    if (fd < 0) {
        file_unref(far);
        return -EMFILE;
    }
    for (last = &listener->first_caller; *last; last = &(*last)->next_caller)
        continue;
    *last = far;
    listener->callers++;
    file_changed(listener);
    return fd;
}

int gs_directory_connect(int directory, const struct gs_share_options *options, const char *name,
                         uint64_t limit_ns)
{
    const uint64_t end_ns = gs_now_ns() + limit_ns;

    sim_point();
    for (;;) {
        struct entry *entry = find(name);

        if (!entry || !entry->listener)
            return entry ? -ECONNREFUSED : -ENOENT;
        if (entry->listener->callers < BACKLOG)
            return call(entry->listener);
        if (gs_now_ns() >= end_ns)
            return -EAGAIN;
        gs_rest_ns(end_ns - gs_now_ns() < GS_NS_PER_MS ? end_ns - gs_now_ns() : GS_NS_PER_MS);
    }
}

int gs_directory_connect_at_once(const struct gs_share_options *options, const char *name)
{
    int fd = gs_directory_connect(-1, options, name, 0);

    return fd < 0 ? -EAGAIN : fd;
}

bool gs_directory_may_connect(int directory, const char *name)
{
    return true;
}

bool gs_directory_is_of(int directory, const struct gs_share_options *options, const char *name,
                        uid_t uid, pid_t pid)
{
    const struct entry *entry = find(name);

    return entry && entry->image->life->pid == pid;
}

int gs_directory_exporters(int directory, const char *own, char (**ret_names)[GS_SOCKET_NAME_SIZE])
{
    int count = 0;

    *ret_names = NULL;
    for (struct entry *entry = entries; entry; entry = entry->next) {
        if (strlen(entry->name) != GS_SOCKET_NAME_SIZE - 1 || strcmp(entry->name, own) == 0 ||
            !is_here(entry) || entry->image->life->exited)
            continue;
        void *names = realloc(*ret_names, (size_t)(count + 1) * sizeof **ret_names);

        if (!names)
            return -ENOMEM;
        *ret_names = names;
        memcpy((*ret_names)[count++], entry->name, GS_SOCKET_NAME_SIZE);
    }
    return count;
}

int gs_directory_open_place(const struct gs_share_options *options, unsigned n, bool make,
                            char ret_reason[GS_REASON_SIZE])
{
    return n > 0 ? -ENOENT : fd_new(process_here(), file_new(FILE_DIRECTORY));
}

void gs_directory_unlink(int directory, const char *name)
{
    struct entry **link = &entries;

    while (*link && (strcmp((*link)->name, name) != 0 || !is_here(*link)))
        link = &(*link)->next;
    if (*link)
        leave(link);
}

static bool is_taken(const char *name, bool broker)
{
    const struct entry *entry = find(name);

    return broker && entry && entry->listener && !entry->listener->life->exited;
}

int gs_directory_put_up(const struct gs_share_options *options, const char *name, bool broker,
                        int *ret_directory, char ret_reason[GS_REASON_SIZE])
{
    struct process *process = process_here();
    struct file *made = file_new(FILE_LISTENER);
    int listener;

    made->life = process->life;
    listener = fd_new(process, made);
    *ret_directory = listener < 0 ? -1 : fd_new(process, file_new(FILE_DIRECTORY));
    if (*ret_directory < 0 || is_taken(name, broker)) {
        gs_fd_drop(*ret_directory);
        gs_fd_drop(listener);
        snprintf(ret_reason, GS_REASON_SIZE, "no socket can be made");
        return -1;
    }
    enter(name, made, process->image);
    gs_rest_ns(made->id % 4 * GS_NS_PER_MS); /* a folder may be slow */
    return listener;
}

void gs_directory_touch(int directory, const char *name)
{
}

/* Of those that have ended: nobody listens there. */
void gs_directory_sweep(int directory, const struct gs_share_options *options)
{
    for (struct entry **link = &entries; *link;) {
        if (is_here(*link) && !(*link)->listener && (*link)->image != process_here()->image)
            leave(link);
        else
            link = &(*link)->next;
    }
}

int gs_directory_let_all(int directory, const char *name)
{
    return 0;
}

/* ---- This process's socket ------------------------------------------------------------------ */

bool gs_socket_is_given(const struct gs_share *share)
{
    return false;
}

/* Called with the lock held. Under the number of what was there, if that still is this
 * library's. */
static void exchange_locked(int *number, struct gs_fd *kept, int fd)
{
    struct process *process = process_here();

    if (*number >= 0 && gs_fd_is_there(kept)) {
        struct file *before = process->fds[*number].file;

        process->fds[*number].file = process->fds[fd].file;
        process->fds[fd].file = before;
        gs_fd_drop(fd);
    } else {
        *number = fd;
    }
    *kept = gs_fd_keep(*number);
}

bool gs_socket_is_lost(struct gs_share *share)
{
    const struct entry *entry = find(share->name);

    return share->socket_start == GS_STARTED && (!entry || entry->image != process_here()->image ||
                                                 !gs_fd_is_there(&share->place.listener_is));
}

int gs_socket_adopt(struct gs_share *share, int directory, int listener)
{
    gs_lock_take(&share->lock);
    if (share->place.listener >= 0 && gs_fd_is_there(&share->place.listener_is))
        gs_unwatch(share, share->place.listener);
    exchange_locked(&share->place.directory, &share->place.directory_is, directory);
    exchange_locked(&share->place.listener, &share->place.listener_is, listener);
    gs_watch(share, GS_WATCH_ADD, share->place.listener, GS_WATCH_READ, GS_WATCH_LISTENER, 0);
    gs_lock_release(&share->lock);
    return 0;
}

void gs_socket_take_down(struct gs_share *share)
{
}
