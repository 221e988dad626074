/* Recording: what threads put down is in the file, whole and in order, whatever becomes of the
 * file. */
#include <criterion/criterion.h>

#include "core/base/clock.h"
#include "core/record/trace.h"
#include "tests/system.h"

#define EVENT      sizeof(struct gs_trace_event)
#define IN_A_BLOCK ((GS_TRACE_BUFFER - sizeof(struct gs_trace_block)) / EVENT)

static unsigned warnings; /* atomic */

static void count_line(enum gs_log_level level, const void *place, const char *text)
{
    if (level <= GS_LOG_WARNING)
        __atomic_add_fetch(&warnings, 1, __ATOMIC_RELAXED);
}

static const struct gs_log log_lines = {.line = count_line};

/* A new file of the test's, removed when the process ends by itself. */
static char path[64], moved[80];

static void remove_file(void)
{
    unlink(path);
}

static void start_with(bool frames)
{
    strcpy(path, "/tmp/gpushim-trace-XXXXXX");
    int fd = mkstemp(path);

    cr_assert_geq(fd, 0);
    close(fd);
    atexit(remove_file);
    cr_assert_null(gs_trace_start(path, frames, &log_lines));
}

static void start(void)
{
    start_with(false);
}

static void put_at(const struct gs_trace_mark *mark, uint64_t number)
{
    struct gs_trace_event event = {.op = GS_TRACE_ALLOC, .call = {.address = number}};

    gs_trace_put(mark, &event, NULL);
}

static void put(uint64_t number)
{
    struct gs_trace_mark mark = gs_trace_begin();

    put_at(&mark, number);
}

/* ---- Reading --------------------------------------------------------------------------------- */

struct read {
    unsigned char *bytes;
    size_t size, at;
};

static struct read open_file(const char *name)
{
    struct stat status;
    struct read read;
    FILE *file = fopen(name, "rb");

    cr_assert_not_null(file);
    cr_assert_eq(fstat(fileno(file), &status), 0);
    read = (struct read){malloc((size_t)status.st_size + 1), (size_t)status.st_size,
                         sizeof(struct gs_trace_header)};
    cr_assert_eq(fread(read.bytes, 1, read.size, file), read.size);
    fclose(file);
    cr_assert_geq(read.size, sizeof(struct gs_trace_header));
    cr_assert_str_eq((char *)read.bytes, GS_TRACE_MAGIC);
    return read;
}

/* The next block, until the one after it is asked for; NULL: those were all, and nothing is behind
 * them. A block of text may have any size, so the next one is moved to where its words are
 * aligned. */
static const struct gs_trace_block *next_block(struct read *read)
{
    const struct gs_trace_block *block = (const void *)read->bytes;
    const size_t left = read->size - read->at;

    if (left == 0)
        return NULL;
    cr_assert_geq(left, sizeof *block);
    memmove(read->bytes, read->bytes + read->at, sizeof *block);
    cr_assert_eq(block->magic, GS_TRACE_BLOCK_MAGIC);
    cr_assert_geq(left, block->size, "a block is not whole");
    memmove(read->bytes, read->bytes + read->at, block->size);
    read->at += block->size;
    return block;
}

static unsigned count_of(const struct gs_trace_block *block)
{
    return block->kind == GS_TRACE_EVENTS ? (unsigned)((block->size - sizeof *block) / EVENT) : 0;
}

static const struct gs_trace_event *events_of(const struct gs_trace_block *block)
{
    return (const void *)(block + 1);
}

/* How many events there are; in each block in the order of their begins. */
static unsigned count_all(const char *name, bool *ret_ended)
{
    struct read read = open_file(name);
    const struct gs_trace_block *block;
    unsigned all = 0;

    *ret_ended = false;
    while ((block = next_block(&read))) {
        cr_assert_not(*ret_ended, "something is behind the end");
        *ret_ended = block->kind == GS_TRACE_END;
        for (unsigned i = 1; i < count_of(block); i++)
            cr_assert_leq(events_of(block)[i - 1].time_ns, events_of(block)[i].time_ns);
        all += count_of(block);
    }
    free(read.bytes);
    return all;
}

/* ---- Threads --------------------------------------------------------------------------------- */

enum { THREADS = 8, ROUNDS = 3, EACH = 5000 };

static void *put_many(void *first)
{
    for (uint64_t i = 0; i < EACH; i++)
        put((uint64_t)(uintptr_t)first + i);
    return NULL;
}

/* Threads that end leave their buffers to those that come. */
Test(trace, of_many_threads_nothing_is_lost_and_each_is_in_order)
{
    static uint64_t next[THREADS * ROUNDS];
    const struct gs_trace_block *block;
    struct read read;

    start();
    for (uintptr_t round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];

        for (uintptr_t i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, put_many,
                           (void *)((round * THREADS + i) << 32)); /* NOLINT */
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
    }
    read = open_file(path);
    while ((block = next_block(&read)))
        for (unsigned i = 0; i < count_of(block); i++) {
            uint64_t number = events_of(block)[i].call.address;

            cr_assert_lt(number >> 32, THREADS * ROUNDS);
            cr_assert_eq(number & UINT32_MAX, next[number >> 32]++);
        }
    for (int i = 0; i < THREADS * ROUNDS; i++)
        cr_assert_eq(next[i], EACH, "thread %d has %lu", i, (unsigned long)next[i]);
    free(read.bytes);
}

/* Also where the outer call's other events have filled a block of their own. */
Test(trace, a_call_comes_before_what_it_did)
{
    struct gs_trace_mark outer, inner;
    bool ended;

    start();
    for (unsigned others = 0; others < 4 * IN_A_BLOCK; others = 3 * others + 1) {
        put(0);
        outer = gs_trace_begin();
        for (unsigned i = 0; i < others; i++) {
            inner = gs_trace_begin();
            put(1);
            put_at(&inner, 2);
        }
        put_at(&outer, 3);
    }
    gs_trace_at_exit();
    cr_assert_gt(count_all(path, &ended), 4 * IN_A_BLOCK);
    cr_assert(ended);
}

Test(trace, what_comes_after_the_end_is_written_at_once_and_the_end_is_last)
{
    bool ended;

    start();
    put(1);
    gs_trace_at_exit();
    cr_assert_eq(count_all(path, &ended), 1);
    cr_assert(ended);
    for (unsigned i = 2; i < 10; i++) {
        put(i);
        cr_assert_eq(count_all(path, &ended), i);
        cr_assert(ended);
    }
    gs_trace_at_exit();
    cr_assert_eq(count_all(path, &ended), 9);
    cr_assert(ended);
}

Test(trace, what_is_old_is_written_with_the_next_event)
{
    struct gs_trace_mark mark = gs_trace_begin();
    bool ended;

    start();
    mark.began_ns -= GS_NS_PER_S;
    put_at(&mark, 1);
    cr_assert_eq(count_all(path, &ended), 1);
    put(2);
    cr_assert_eq(count_all(path, &ended), 1);
}

/* Whatever its events have with them, a block has its bounds. */
Test(trace, no_block_is_larger_than_a_buffer)
{
    static const uint64_t frames[GS_TRACE_FRAMES_MAX];
    const struct gs_trace_block *block;
    unsigned blocks = 0, put = 0, got = 0;
    struct read read;

    start();
    for (unsigned count = 0; count <= GS_TRACE_FRAMES_MAX; count++)
        for (size_t used = 0; used < 2 * GS_TRACE_BUFFER; put++) {
            struct gs_trace_mark mark = gs_trace_begin();
            struct gs_trace_event event = {.op = GS_TRACE_ALLOC, .frames = (uint8_t)count};

            gs_trace_put(&mark, &event, frames);
            used += EVENT + count * sizeof *frames;
        }
    gs_trace_at_exit();
    for (read = open_file(path); (block = next_block(&read)); blocks++) {
        const unsigned char *at = (const unsigned char *)(block + 1);

        cr_assert_leq(block->size, GS_TRACE_BUFFER);
        for (; block->kind == GS_TRACE_EVENTS && at < (const unsigned char *)block + block->size;
             got++)
            at +=
                EVENT + ((const struct gs_trace_event *)(const void *)at)->frames * sizeof *frames;
        if (block->kind == GS_TRACE_EVENTS)
            cr_assert_eq(at, (const unsigned char *)block + block->size);
    }
    cr_assert_eq(got, put);
    cr_assert_gt(blocks, 2 * GS_TRACE_FRAMES_MAX);
    free(read.bytes);
}

static unsigned count_kind(enum gs_trace_kind kind)
{
    const struct gs_trace_block *block;
    struct read read = open_file(path);
    unsigned count = 0;

    while ((block = next_block(&read)))
        count += block->kind == kind;
    free(read.bytes);
    return count;
}

/* A library that this process does not have yet. */
static void load_another(void)
{
    static const char *const names[] = {"libBrokenLocale.so.1", "libthread_db.so.1", "libanl.so.1",
                                        "libnss_compat.so.2"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD) && dlopen(names[i], RTLD_LAZY))
            return;
    cr_assert_fail("nothing can be loaded");
}

Test(trace, modules_are_written_again_when_there_are_more)
{
    start_with(true);
    for (unsigned i = 0; i < 3 * IN_A_BLOCK; i++)
        put(i);
    cr_assert_eq(count_kind(GS_TRACE_MODULES), 1);
    load_another();
    for (unsigned i = 0; i < 3 * IN_A_BLOCK; i++)
        put(i);
    cr_assert_eq(count_kind(GS_TRACE_MODULES), 2);
}

/* ---- The file -------------------------------------------------------------------------------- */

/* The signal that the limit raises would end the process. */
Test(trace, a_full_disk_ends_the_recording_and_nothing_else)
{
    const struct rlimit limit = {100000, 100000};
    bool ended;

    start();
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (unsigned i = 0; i < 10 * IN_A_BLOCK; i++)
        put(i);
    gs_trace_at_exit();
    cr_assert_not(gs_tracing());
    cr_assert_eq(warnings, 1);
    cr_assert_eq(count_all(path, &ended), IN_A_BLOCK);
    cr_assert_not(ended);
}

/* The recording's descriptor, which no exec'd program gets. */
static int find_it(void)
{
    struct stat file, status;

    cr_assert_eq(stat(path, &file), 0);
    for (int fd = 3; fd < 64; fd++)
        if (fstat(fd, &status) == 0 && status.st_ino == file.st_ino &&
            status.st_dev == file.st_dev) {
            cr_assert_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
            return fd;
        }
    cr_assert_fail("it is not open");
    return -1;
}

/* As programs do that close all that is not theirs. */
static void close_it(void)
{
    close(find_it());
}

Test(trace, a_descriptor_that_was_closed_is_opened_again)
{
    bool ended;
    int other;

    start();
    put(1);
    close_it();
    other = open("/dev/null", O_WRONLY);
    for (unsigned i = 0; i < 3 * IN_A_BLOCK; i++)
        put(i);
    gs_trace_at_exit();
    cr_assert_eq(count_all(path, &ended), 3 * IN_A_BLOCK + 1);
    cr_assert(ended);
    cr_assert_eq(close(other), 0);
    find_it();
}

/* On the same file system, so that only the file itself tells it. */
Test(trace, another_file_of_that_name_is_left_alone)
{
    char text[32] = "";
    FILE *file;

    start();
    close_it();
    cr_assert_eq(rename(path, strcat(strcpy(moved, path), ".moved")), 0);
    file = fopen(path, "w");
    fputs("years of work", file);
    fclose(file);
    for (unsigned i = 0; i < 3 * IN_A_BLOCK; i++)
        put(i);
    gs_trace_at_exit();
    unlink(moved);
    cr_assert_not(gs_tracing());
    cr_assert_eq(warnings, 1);
    file = fopen(path, "r");
    cr_assert_not_null(fgets(text, sizeof text, file));
    cr_assert_eq(fgetc(file), EOF);
    fclose(file);
    cr_assert_str_eq(text, "years of work");
}

Test(trace, what_is_no_recording_is_not_written_over)
{
    FILE *file;

    strcpy(path, "/tmp/gpushim-trace-XXXXXX");
    file = fdopen(mkstemp(path), "w");
    fputs("years of work", file);
    fclose(file);
    atexit(remove_file);
    cr_assert_not_null(gs_trace_start(path, false, &log_lines));
    cr_assert_not(gs_tracing());
    cr_assert_not_null(gs_trace_start("/dev/full", false, &log_lines));
    cr_assert_not_null(gs_trace_start("/nowhere/at/all", false, &log_lines));
}

/* ---- Forks ----------------------------------------------------------------------------------- */

static pid_t in_child(void)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        gs_trace_forked();
        put(7);
        put(8);
        gs_trace_at_exit();
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    return child;
}

/* By a system call that runs no handler. */
Test(trace, so_does_one_that_nobody_told)
{
    bool ended;
    int status;
    pid_t child;

    start();
    put(1);
    child = fork();
    if (child == 0) {
        for (unsigned i = 0; i < 3 * IN_A_BLOCK; i++)
            put(i);
        _exit(gs_tracing());
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    gs_trace_at_exit();
    cr_assert_eq(count_all(path, &ended), 1);
    cr_assert(ended);
}

Test(trace, a_forked_child_has_a_file_of_its_own_where_the_name_says_so)
{
    char pattern[64], own[80], childs[80];
    bool ended;
    pid_t child;

    snprintf(pattern, sizeof pattern, "/tmp/gpushim-trace-%d-%%p", (int)getpid());
    snprintf(own, sizeof own, "/tmp/gpushim-trace-%d-%d", (int)getpid(), (int)getpid());
    cr_assert_null(gs_trace_start(pattern, false, &log_lines));
    put(1);
    child = in_child();
    put(2);
    put(3);
    gs_trace_at_exit();
    snprintf(childs, sizeof childs, "/tmp/gpushim-trace-%d-%d", (int)getpid(), (int)child);
    cr_expect_eq(count_all(own, &ended), 3);
    cr_expect(ended);
    cr_expect_eq(count_all(childs, &ended), 2);
    cr_expect(ended);
    unlink(own);
    unlink(childs);
}
