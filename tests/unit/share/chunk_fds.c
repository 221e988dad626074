/* Descriptors of chunks: made once, kept, bounded, and gone before the chunk is. */
#include <criterion/criterion.h>

#include "core/share/exporter.h"
#include "scene.h"
#include "tests/system.h"

/* How often this thread has taken a lock. */
static _Thread_local unsigned locks;

void __real_gs_lock_take(struct gs_lock *lock);
void __wrap_gs_lock_take(struct gs_lock *lock);

void __wrap_gs_lock_take(struct gs_lock *lock)
{
    locks++;
    __real_gs_lock_take(lock);
}

/* This thread's descriptors cannot be told from others: a filter forbids to look. */
static _Thread_local bool blind;

struct gs_fd __real_gs_fd_keep(int fd);
struct gs_fd __wrap_gs_fd_keep(int fd);

struct gs_fd __wrap_gs_fd_keep(int fd)
{
    return blind ? (struct gs_fd){0} : __real_gs_fd_keep(fd);
}

static void setup(void)
{
    scene_new();
    scene_chunk();
    other_start(&other, dir, NULL);
}

static void teardown(void)
{
    scene_end();
}

TestSuite(share_chunk_fds, .init = setup, .fini = teardown, .timeout = 120);

/* From now on descriptors are made before anybody asks for them. */
static void export_ahead(void)
{
    side_stop(&side);
    options.export_ahead = true;
    scene_side();
}

Test(share_chunk_fds, ahead_of_the_first_open)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    unsigned long address;

    export_ahead();
    export = scene_export(0, 512, ipc_handle);
    cr_assert(SIDE_WAIT(memdriver_exports() == 1));
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    cr_assert_eq(memdriver_exports(), 1);
    other_ask(&other, "close %lx", address);
    cr_assert(side_gets_back(&side, export));
}

#define CHUNKS 64
#define BLOCKS 64 /* of each */

/* The small driver's handles are descriptors themselves, one for each chunk on either side. */
Test(share_chunk_fds, four_thousand_blocks_work_with_256_descriptors)
{
    static struct gs_export *exports[CHUNKS][BLOCKS];
    struct side_chunk chunks[CHUNKS];
    struct rlimit limit = {.rlim_cur = 256, .rlim_max = 256};
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    unsigned long address;
    int most = 0;

    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    other_ask(&other, "nofile 256");
    for (int c = 0; c < CHUNKS; c++) {
        chunks[c] = side_chunk_new(&side, 2 * MIB);
        for (int b = 0; b < BLOCKS; b++) {
            cr_assert_eq(side_export(&side, &chunks[c], (size_t)b * 512, 512, &exports[c][b]),
                         GS_OK);
            gs_export_handle(exports[c][b], ipc_handle);
            *(char *)(chunks[c].base + (size_t)b * 512) = (char)(c + b);
            cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK, "block %d of %d", b, c);
            cr_assert_eq(atoi(other_ask(&other, "read %lx", address) + 3), (c + b) & 0xff);
        }
        if (side_open_fds() > most)
            most = side_open_fds();
    }
    cr_assert_lt(most, CHUNKS + 256 / 8 + 40, "%d descriptors", most);
    cr_assert_eq(memdriver_exports(), CHUNKS);
    cr_assert_eq(other_stop(&other), 0);
    for (int c = 0; c < CHUNKS; c++) {
        for (int b = 0; b < BLOCKS; b++)
            cr_assert(side_gets_back(&side, exports[c][b]));
        side_chunk_free(&side, &chunks[c]);
    }
}

/* Chunks go in other threads meanwhile, and with them what is kept of them. */
Test(share_chunk_fds, what_is_kept_is_looked_up_under_the_lock)
{
    struct gs_export *export;
    struct gs_fd fd, again;
    bool fresh;

    cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), GS_OK);
    cr_assert_eq(gs_piece_fd(side.share, export, 0, &fd, &fresh), CUDA_SUCCESS);
    cr_assert(fresh);
    gs_piece_fd_keep(side.share, export, 0, &fd);
    locks = 0;
    cr_assert_eq(gs_piece_fd(side.share, export, 0, &again, &fresh), CUDA_SUCCESS);
    cr_assert_not(fresh);
    cr_assert_eq(again.fd, fd.fd);
    cr_assert_gt(locks, 0);
    cr_assert(side_gets_back(&side, export));
}

/* As a program may that closes what it does not know, while the descriptor is sent. */
Test(share_chunk_fds, a_number_that_the_program_has_taken_meanwhile_is_not_kept)
{
    struct gs_export *export;
    struct gs_fd fd, again;
    int own = open("/dev/null", O_RDWR | O_CLOEXEC);
    bool fresh;

    cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), GS_OK);
    cr_assert_eq(gs_piece_fd(side.share, export, 0, &fd, &fresh), CUDA_SUCCESS);
    cr_assert(fresh);
    cr_assert_eq(dup2(own, fd.fd), fd.fd);
    gs_piece_fd_keep(side.share, export, 0, &fd);
    cr_assert_eq(gs_piece_fd(side.share, export, 0, &again, &fresh), CUDA_SUCCESS);
    cr_assert(fresh, "the program's own file would be sent");
    gs_piece_fd_keep(side.share, export, 0, &again);
    cr_assert(side_gets_back(&side, export));
    cr_assert_geq(fcntl(fd.fd, F_GETFD), 0, "the program's own file was closed");
    close(fd.fd);
    close(own);
}

Test(share_chunk_fds, one_that_cannot_be_told_from_others_is_not_sent)
{
    struct gs_export *export;
    int own = open("/dev/null", O_RDWR | O_CLOEXEC);
    struct gs_fd fd;
    bool fresh;

    cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), GS_OK);
    close(own);
    blind = true;
    cr_assert_eq(gs_piece_fd(side.share, export, 0, &fd, &fresh), CUDA_ERROR_OPERATING_SYSTEM);
    blind = false;
    cr_assert_eq(open("/dev/null", O_RDWR | O_CLOEXEC), own, "its descriptor is left");
    close(own);
    cr_assert(side_gets_back(&side, export));
}

#define CHUNKS_KEPT 16
#define EXPORTS     40000 /* of each thread */

static void *export_many(void *arg)
{
    struct gs_export *export;

    for (int i = 0; i < EXPORTS; i++)
        CHECK(side_export(&side, &chunk, 0, 512, &export) == GS_OK);
    return NULL;
}

/* Half a lock is none: threads that come at once lose no export of each other's. */
Test(share_chunk_fds, threads_that_export_at_once_lose_nothing)
{
    struct gs_share_stats stats;
    pthread_t thread[2];

    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, export_many, NULL), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    gs_share_stats(side.share, &stats);
    cr_assert_eq(stats.exports, 2 * EXPORTS);
}

/* Whether there was a descriptor of the export's chunk; there is one afterwards. */
static bool was_kept(struct gs_export *export)
{
    struct gs_fd fd;
    bool fresh;

    cr_assert_eq(gs_piece_fd(side.share, export, 0, &fd, &fresh), CUDA_SUCCESS);
    if (fresh)
        gs_piece_fd_keep(side.share, export, 0, &fd);
    return !fresh;
}

Test(share_chunk_fds, the_least_recently_used_descriptor_goes_first)
{
    struct side_chunk chunks[CHUNKS_KEPT + 1];
    struct gs_export *exports[CHUNKS_KEPT + 1];
    struct rlimit limit;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i <= CHUNKS_KEPT; i++) {
        chunks[i] = side_chunk_new(&side, 2 * MIB);
        cr_assert_eq(side_export(&side, &chunks[i], 0, 512, &exports[i]), GS_OK);
    }
    limit.rlim_cur = 8 * CHUNKS_KEPT; /* one in eight */
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < CHUNKS_KEPT; i++)
        cr_assert_not(was_kept(exports[i]));
    cr_assert(was_kept(exports[0]));
    cr_assert_not(was_kept(exports[CHUNKS_KEPT])); /* in the place of the second */
    cr_assert(was_kept(exports[0]));
    cr_assert(was_kept(exports[2]));
    cr_assert_not(was_kept(exports[1]));
    for (int i = 0; i <= CHUNKS_KEPT; i++) {
        cr_assert(side_gets_back(&side, exports[i]));
        gs_share_chunk_gone(side.share, chunks[i].id);
        side_chunk_free(&side, &chunks[i]);
    }
}
