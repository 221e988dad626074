/*
 * Blocks that are taken back while another is being left with the broker, which is not told of them
 * just then: another thread does that at each moment at which it can, one after the other. Linked so
 * that the share thread's releases of a lock and what is sent to the broker come here first.
 */
#include <criterion/criterion.h>
#include <unistd.h>

#include "core/share/exporter.h"
#include "scene.h"

#define MOMENTS 12 /* more than there are from an export until the broker has it */

static bool deaf; /* atomic: it reads no UNSHARE just now */
static unsigned to_come; /* atomic: releases of the lock until the first block is taken back; 0: done */
static struct gs_export *first;
static pthread_t test;

int __real_gs_wire_send(int fd, const union gs_wire_message *message, int attached);
int __wrap_gs_wire_send(int fd, const union gs_wire_message *message, int attached);
void __real_gs_lock_release(struct gs_lock *lock);
void __wrap_gs_lock_release(struct gs_lock *lock);

int __wrap_gs_wire_send(int fd, const union gs_wire_message *message, int attached)
{
    if (message->head.type == GS_WIRE_UNSHARE && __atomic_load_n(&deaf, __ATOMIC_SEQ_CST))
        return -EAGAIN;
    return __real_gs_wire_send(fd, message, attached);
}

void __wrap_gs_lock_release(struct gs_lock *lock)
{
    __real_gs_lock_release(lock);
    if (lock->rank != GS_RANK_SHARE || pthread_equal(pthread_self(), test) ||
        __atomic_load_n(&to_come, __ATOMIC_SEQ_CST) == 0 ||
        __atomic_sub_fetch(&to_come, 1, __ATOMIC_SEQ_CST) > 0)
        return;
    gs_share_withdraw(side.share, first);
}

static void setup(void)
{
    test = pthread_self();
    scene_new();
    options.broker = true;
    options.published_max = 2; /* the broker keeps one block of one process */
    snprintf(options.broker_program, sizeof options.broker_program, "%s", BROKER_PROGRAM);
    scene_chunk();
}

TestSuite(share_untold, .init = setup, .fini = scene_end, .timeout = 120);

/* And the share thread has done with it. */
static bool is_brokered(const struct gs_export *export)
{
    bool brokered;

    gs_lock_take(&side.share->lock);
    brokered = gs_export_is_brokered(export) && export->pins == 0;
    gs_lock_release(&side.share->lock);
    return brokered;
}

static uint32_t untold(void)
{
    uint64_t bytes;
    uint32_t count;

    gs_lock_take(&side.share->lock);
    count = gs_confirm_untold_locked(side.share, &bytes);
    gs_lock_release(&side.share->lock);
    return count;
}

static struct gs_export *leave(size_t offset)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;

    cr_assert_eq(side_export(&side, &chunk, offset, 512, &export), GS_OK);
    gs_export_handle(export, ipc_handle); /* given out: from now on it is left with the broker */
    return export;
}

/* No more than the broker keeps of this process: there is no place to note more. */
Test(share_untold, no_more_is_taken_back_untold_than_was_left)
{
    for (unsigned moment = 1; moment <= MOMENTS; moment++) {
        struct gs_export *second;

        first = leave(0);
        cr_assert(SIDE_WAIT(is_brokered(first)), "moment %u", moment);
        __atomic_store_n(&deaf, true, __ATOMIC_SEQ_CST);
        __atomic_store_n(&to_come, moment, __ATOMIC_SEQ_CST);
        second = leave(512);
        cr_assert(SIDE_WAIT(__atomic_load_n(&to_come, __ATOMIC_SEQ_CST) == 0), "moment %u", moment);
        cr_assert(SIDE_WAIT(untold() > 0), "moment %u", moment);
        cr_assert(side_gets_back(&side, second));
        cr_assert_leq(untold(), 1, "moment %u", moment);
        __atomic_store_n(&deaf, false, __ATOMIC_SEQ_CST);
        cr_assert(SIDE_WAIT(untold() == 0), "moment %u", moment);
    }
}
