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

Test(share_chunk_fds, a_chunk_is_exported_once_for_all_importers)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    struct other others[3];
    unsigned long address;

    cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), GS_OK);
    gs_export_handle(export, ipc_handle);
    for (int i = 0; i < 3; i++) {
        other_start(&others[i], dir, NULL);
        cr_assert_eq(other_open(&others[i], ipc_handle, &address), GS_OK);
    }
    cr_assert_eq(memdriver_exports(), 1);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(other_stop(&others[i]), 0);
    cr_assert(side_gets_back(&side, export));
}

/* Descriptors of this process's chunk: the small driver's handle is one. */
static int chunk_fds(void)
{
    char path[64], target[64];
    int count = 0;

    for (int fd = 0; fd < 1000; fd++) {
        ssize_t length;

        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        length = readlink(path, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        count += strstr(target, "memfd:chunk") != NULL;
    }
    return count;
}

Test(share_chunk_fds, the_kept_descriptor_goes_before_the_chunk)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    unsigned long address;

    cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), GS_OK);
    gs_export_handle(export, ipc_handle);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    cr_assert_eq(other_stop(&other), 0);
    cr_assert(side_gets_back(&side, export));
    cr_assert_eq(chunk_fds(), 2);
    gs_share_chunk_gone(side.share, chunk.id);
    cr_assert_eq(chunk_fds(), 1);
    gs_share_chunk_gone(side.share, chunk.id);
    cr_assert_eq(chunk_fds(), 1);
}

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
    cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), GS_OK);
    gs_export_handle(export, ipc_handle);
    cr_assert(SIDE_WAIT(memdriver_exports() == 1));
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    cr_assert_eq(memdriver_exports(), 1);
    other_ask(&other, "close %lx", address);
    cr_assert(side_gets_back(&side, export));
}

/* As many as are kept, the first exported first; none goes to make room for another. */
Test(share_chunk_fds, ahead_goes_in_order_and_stops_where_no_more_are_kept)
{
    enum { MANY = 12, KEPT = 8 };
    struct rlimit limit, before;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *exports[MANY];
    struct side_chunk chunks[MANY];
    unsigned long address;

    export_ahead();
    for (int i = 0; i < MANY; i++)
        chunks[i] = side_chunk_new(&side, 2 * MIB);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = before;
    limit.rlim_cur = KEPT * 8;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < MANY; i++)
        cr_assert_eq(side_export(&side, &chunks[i], 0, 512, &exports[i]), GS_OK);
    cr_assert(SIDE_WAIT(memdriver_exports() == KEPT));
    gs_export_handle(exports[KEPT - 1], ipc_handle);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    gs_export_handle(exports[0], ipc_handle);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    cr_assert_eq(memdriver_exports(), KEPT, "%u descriptors", memdriver_exports());
    gs_export_handle(exports[MANY - 1], ipc_handle);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    cr_assert_eq(memdriver_exports(), KEPT + 1, "%u descriptors", memdriver_exports());
    cr_assert_eq(other_stop(&other), 0);
    for (int i = 0; i < MANY; i++) {
        cr_assert(side_gets_back(&side, exports[i]));
        side_chunk_free(&side, &chunks[i]);
    }
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
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

/* How many descriptors the kernel's table of this process has room for, or -1. */
static int fd_table_size(void)
{
    FILE *status = fopen("/proc/self/status", "re");
    char line[256];
    int size = -1;

    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "FDSize: %d", &size) == 1)
            break;
    if (status)
        fclose(status);
    return size;
}

/* Each time it is enlarged whoever needs the next descriptor sleeps for milliseconds. */
Test(share_chunk_fds, the_table_of_descriptors_is_enlarged_once)
{
    enum { LIMIT = 8192, KEPT = LIMIT / 8 }; /* beside what is there */
    struct rlimit limit;
    struct gs_export *export;
    int size, kept[KEPT];

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = LIMIT;
    if (limit.rlim_max < LIMIT || fd_table_size() <= 0)
        cr_skip_test("this machine's limits, or its kernel, do not allow it");
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), GS_OK);
    cr_assert(SIDE_WAIT(fd_table_size() > KEPT), "it stays at %d", fd_table_size());
    size = fd_table_size();
    for (int i = 0; i < KEPT; i++)
        cr_assert_geq(kept[i] = fcntl(0, F_DUPFD_CLOEXEC, 0), 0);
    cr_assert_eq(fd_table_size(), size, "%d, %d before", fd_table_size(), size);
    for (int i = 0; i < KEPT; i++)
        close(kept[i]);
    cr_assert(side_gets_back(&side, export));
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
