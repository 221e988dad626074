/* Leases across machines, and the file that has them (leases.h): records of one size, the later one
 * counts; written anew when most of it is past. */
#include "shim/agent/leases.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utlist.h>

#include "core/base/clock.h"
#include "core/base/fd.h"
#include "core/base/regular.h"
#include "core/share/alive.h"
#include "core/share/instance.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#define NAME      "agent.leases"
#define MAGIC     UINT32_C(0x67736167)
#define PAST_MOST 4096 /* records that say nothing any more, beside as many that do */

const unsigned char agent_nobody[GS_MACHINE_SIZE];
const unsigned char agent_unknown[GS_MACHINE_SIZE] = {[0 ... GS_MACHINE_SIZE - 1] = 0xff};

enum kind { ADDED = 16, ENDED, UNNOTED /* of the mark that is its lease */ };

struct record {
    uint32_t magic, kind; /* enum kind, or enum leases_mark */
    struct lease_key key;
    struct lease_block block;
    unsigned char exporter[GS_MACHINE_SIZE];
    struct process process;
    unsigned char boot[GS_BOOT_BYTES]; /* under which it was written */
};

/* ---- The tables ----------------------------------------------------------------------------- */

struct lease *leases_find(const struct leases *leases, const unsigned char machine[GS_MACHINE_SIZE],
                          uint64_t lease)
{
    struct lease_key key = {.lease = lease};
    struct lease *found;

    memcpy(key.machine, machine, sizeof key.machine);
    HASH_FIND(hh, leases->all, &key, sizeof key, found);
    return found;
}

struct lease_block lease_block_of(const unsigned char instance[GS_INSTANCE_SIZE], uint64_t block_id)
{
    struct lease_block block = {.block_id = block_id};

    memcpy(block.instance, instance, sizeof block.instance);
    return block;
}

static struct lease_group *group_of(const struct leases *leases, const struct lease_block *block)
{
    struct lease_group *group;

    HASH_FIND(hh, leases->groups, block, sizeof *block, group);
    return group;
}

struct lease *leases_of_block(const struct leases *leases, const struct lease_block *block)
{
    const struct lease_group *group = group_of(leases, block);

    return group ? group->leases : NULL;
}

/* ---- Sides ---------------------------------------------------------------------------------- */

bool lease_is_ours(const struct lease *lease)
{
    return memcmp(lease->key.machine, agent_nobody, GS_MACHINE_SIZE) == 0;
}

struct lease_side *leases_side(const struct leases *leases,
                               const unsigned char machine[GS_MACHINE_SIZE])
{
    struct lease_side *side;

    HASH_FIND(hh, leases->sides, machine, GS_MACHINE_SIZE, side);
    return side;
}

static struct lease_side *side_for(struct leases *leases,
                                   const unsigned char machine[GS_MACHINE_SIZE])
{
    struct lease_side *side = leases_side(leases, machine);

    if (!side && (side = calloc(1, sizeof *side))) {
        memcpy(side->machine, machine, GS_MACHINE_SIZE);
        HASH_ADD(hh, leases->sides, machine, GS_MACHINE_SIZE, side);
    }
    return side;
}

bool leases_has_room(const struct leases *leases, const unsigned char machine[GS_MACHINE_SIZE])
{
    const struct lease_side *side = leases_side(leases, machine);

    return leases->owed < leases->most && (side ? side->owed : 0) < leases->most - leases->owed;
}

/* ---- The file ------------------------------------------------------------------------------- */

static bool write_record(struct leases *leases, int file, struct record record)
{
    record.magic = MAGIC;
    memcpy(record.boot, leases->boot, sizeof record.boot);
    leases->records++;
    errno = ENOSPC; /* where only a part of it is written */
    return write(file, &record, sizeof record) == (ssize_t)sizeof record;
}

static struct record record_of(const struct lease *lease, enum kind kind)
{
    struct record record = {.kind = kind,
                            .key = lease->key,
                            .block = lease->block,
                            .process = lease->broker};

    memcpy(record.exporter, lease->exporter, sizeof record.exporter);
    return record;
}

static struct record record_of_note(const struct leases_note *note)
{
    struct record record = {.kind = (uint32_t)note->key.mark};

    memcpy(record.key.machine, note->key.machine, GS_MACHINE_SIZE);
    memcpy(record.exporter, note->value, sizeof note->value);
    return record;
}

/* All that counts, into a new file in the place of the old one. */
static bool write_anew(struct leases *leases)
{
    const int file = openat(leases->folder, NAME ".new",
                            O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct lease *lease, *next;
    struct leases_note *note, *next_note;
    bool good = file >= 0;

    leases->records = 0;
    HASH_ITER(hh, leases->notes, note, next_note)
        good = good && write_record(leases, file, record_of_note(note));
    HASH_ITER(hh, leases->all, lease, next)
        good = good && write_record(leases, file, record_of(lease, ADDED));
    if (!good || renameat(leases->folder, NAME ".new", leases->folder, NAME) != 0) {
        const int error = errno;

        gs_fd_drop(file);
        unlinkat(leases->folder, NAME ".new", 0); /* its room is what others need */
        errno = error;
        return false;
    }
    gs_fd_drop(leases->file);
    leases->file = file;
    return true;
}

/* Of a file that lacks something the next agent would believe that there is no more: there is none
 * rather, until leases_look writes one. */
static void append(struct leases *leases, struct record record)
{
    if (leases->lacks || write_record(leases, leases->file, record))
        return;
    leases->lacks = true;
    unlinkat(leases->folder, NAME, 0);
    gs_fd_drop(leases->file);
    leases->file = -1;
}

/* To the end; again where somebody took its file away. */
static bool take_lock(struct leases *leases)
{
    int error;

    gs_fd_drop(leases->lock);
    leases->lock =
        openat(leases->folder, NAME ".lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (leases->lock < 0 || flock(leases->lock, LOCK_EX | LOCK_NB) == 0)
        return leases->lock >= 0;
    error = errno;
    gs_fd_drop(leases->lock);
    leases->lock = -1;
    errno = error;
    return false;
}

bool leases_look(struct leases *leases)
{
    const uint64_t live = HASH_COUNT(leases->all) + HASH_COUNT(leases->notes);
    struct stat info;

    if ((fstat(leases->lock, &info) != 0 || info.st_nlink == 0) && !take_lock(leases))
        return false;
    leases->lacks |= fstat(leases->file, &info) != 0 || info.st_nlink == 0;
    if ((leases->lacks || leases->records > 2 * live + PAST_MOST) && write_anew(leases))
        leases->lacks = false;
    return !leases->lacks;
}

/* ---- Leases --------------------------------------------------------------------------------- */

struct lease *leases_add(struct leases *leases, const struct lease *model)
{
    const bool ours = lease_is_ours(model);
    struct lease *lease = malloc(sizeof *lease);
    struct lease_group *group = group_of(leases, &model->block);
    struct lease_side *side = ours ? NULL : side_for(leases, model->key.machine);

    if (!group && (group = calloc(1, sizeof *group))) {
        group->block = model->block;
        HASH_ADD(hh, leases->groups, block, sizeof group->block, group);
    }
    if (!lease || !group || (!ours && !side)) { /* what is empty is in nobody's way */
        free(lease);
        return NULL;
    }
    *lease = *model;
    lease->since_ns = gs_now_ns();
    HASH_ADD(hh, leases->all, key, sizeof lease->key, lease);
    DL_APPEND(group->leases, lease);
    if (!ours) {
        DL_APPEND2(side->theirs, lease, prev_there, next_there);
        side->owed++;
        leases->owed++;
    }
    append(leases, record_of(lease, ADDED));
    return lease;
}

void leases_end(struct leases *leases, struct lease *lease)
{
    struct lease_group *group = group_of(leases, &lease->block);
    struct lease_side *side = leases_side(leases, lease->key.machine); /* of ours: NULL */

    DL_DELETE(group->leases, lease);
    if (!group->leases) {
        HASH_DEL(leases->groups, group);
        free(group);
    }
    if (side) {
        DL_DELETE2(side->theirs, lease, prev_there, next_there);
        side->owed--;
        leases->owed--;
    }
    if (side && !side->theirs) {
        HASH_DEL(leases->sides, side);
        free(side);
    }
    HASH_DEL(leases->all, lease);
    append(leases, record_of(lease, ENDED));
    free(lease);
}

/* ---- Notes ---------------------------------------------------------------------------------- */

static struct leases_note *note_of(const struct leases *leases, enum leases_mark mark,
                                   const unsigned char machine[GS_MACHINE_SIZE])
{
    struct leases_note key = {.key.mark = mark}, *found;

    memcpy(key.key.machine, machine, GS_MACHINE_SIZE);
    HASH_FIND(hh, leases->notes, &key.key, sizeof key.key, found);
    return found;
}

bool leases_note(struct leases *leases, enum leases_mark mark,
                 const unsigned char machine[GS_MACHINE_SIZE], const void *value)
{
    struct leases_note *note = note_of(leases, mark, machine);

    if (note && memcmp(note->value, value, sizeof note->value) == 0)
        return true;
    if (!note && (note = calloc(1, sizeof *note))) {
        note->key.mark = mark;
        memcpy(note->key.machine, machine, GS_MACHINE_SIZE);
        HASH_ADD(hh, leases->notes, key, sizeof note->key, note);
    }
    if (!note)
        return false;
    memcpy(note->value, value, sizeof note->value);
    append(leases, record_of_note(note));
    return true;
}

void leases_unnote(struct leases *leases, enum leases_mark mark,
                   const unsigned char machine[GS_MACHINE_SIZE])
{
    struct leases_note *note = note_of(leases, mark, machine);
    struct record record = {.kind = UNNOTED, .key.lease = mark};

    if (!note)
        return;
    memcpy(record.key.machine, machine, GS_MACHINE_SIZE);
    HASH_DEL(leases->notes, note);
    free(note);
    append(leases, record);
}

bool leases_noted(const struct leases *leases, enum leases_mark mark,
                  const unsigned char machine[GS_MACHINE_SIZE], void *ret_value)
{
    const struct leases_note *note = note_of(leases, mark, machine);

    if (note && ret_value)
        memcpy(ret_value, note->value, sizeof note->value);
    return note != NULL;
}

/* ---- Reading the file ------------------------------------------------------------------------ */

/* False: no memory. */
static bool take_record(struct leases *leases, const struct record *record)
{
    const bool same = memcmp(record->boot, leases->boot, sizeof record->boot) == 0;
    struct lease lease = {.key = record->key, .block = record->block, .broker = record->process};
    struct lease *there = leases_find(leases, record->key.machine, record->key.lease);

    if (record->kind == LEASES_ASKED || (same && record->kind < ADDED))
        return leases_note(leases, record->kind, record->key.machine, record->exporter);
    if (same && record->kind == UNNOTED)
        leases_unnote(leases, (enum leases_mark)record->key.lease, record->key.machine);
    if (!same || (record->kind != ADDED && record->kind != ENDED))
        return true;
    if (there)
        leases_end(leases, there);
    memcpy(lease.exporter, record->exporter, sizeof lease.exporter);
    return record->kind == ENDED || leases_add(leases, &lease);
}

/* False: not to its end, or not as it was written. */
static bool read_all(struct leases *leases, int file)
{
    struct record record;
    ssize_t got;

    while ((got = read(file, &record, sizeof record)) == (ssize_t)sizeof record) {
        if (record.magic != MAGIC || !take_record(leases, &record))
            return false;
    }
    return got == 0;
}

bool leases_open(struct leases *leases, int folder, const unsigned char boot[GS_BOOT_BYTES],
                 char ret_reason[LEASES_REASON])
{
    struct stat info;
    int file;

    *leases = (struct leases){
        .folder = folder, .file = -1, .lock = -1, .lacks = true, .most = LEASES_MAX};
    memcpy(leases->boot, boot, sizeof leases->boot);
    if (!take_lock(leases)) {
        snprintf(ret_reason, LEASES_REASON, "%s",
                 errno == EWOULDBLOCK ? "another agent serves this folder; one is enough"
                                      : strerror(errno));
        return false;
    }
    file = gs_regular_open(folder, NAME, O_NOFOLLOW, &info);
    if (file >= 0 && !read_all(leases, file)) { /* what it does not say may be of the same blocks */
        while (leases->all)
            leases_end(leases, leases->all);
        while (leases->notes)
            leases_unnote(leases, leases->notes->key.mark, leases->notes->key.machine);
    }
    gs_fd_drop(file);
    if (!leases_noted(leases, LEASES_ID, agent_nobody, leases->id) &&
        gs_random(leases->id, sizeof leases->id))
        leases_note(leases, LEASES_ID, agent_nobody, leases->id);
    if (!leases_look(leases)) {
        snprintf(ret_reason, LEASES_REASON, "%s cannot be written: %s", NAME, strerror(errno));
        close(leases->lock);
        return false;
    }
    return true;
}

/* ---- Processes ------------------------------------------------------------------------------ */

struct process process_of(pid_t pid)
{
    const uint64_t started = pid > 0 ? gs_alive_started(pid) : 0;

    return started ? (struct process){.pid = pid, .started = started} : (struct process){0};
}

int process_open(const struct process *process)
{
    const int pidfd = (int)syscall(SYS_pidfd_open, process->pid, 0); /* of none: EINVAL */

    if (pidfd < 0)
        return -errno;
    if (process_of(process->pid).started == process->started)
        return pidfd;
    close(pidfd);
    return -ESRCH;
}
