/*
 * How long a handle is compared tells nothing about its secret: as many instructions are run
 * wherever the first wrong byte is. The program runs itself, single-stepped.
 *
 * With BROKEN it is linked so that handles are compared by memcmp, and must find that out.
 */
#include "core/share/exporter.h"
#include "core/share/ipc_handle.h"
#include "side.h"
#include "tests/children.h"
#include "tests/steps.h"
#include "tests/system.h"

#define ROUNDS 3 /* the fewest count: another thread may have a lock just then */
#define LIMIT  100000

/* IPC handles that another process made up, whose secret is right in so many words of two bytes. */
#define GUESSES (GS_SECRET_SIZE / (int)sizeof(uint16_t) - 1)
/* Bytes that are all the same, or of which one is not. */
static const int wrong[] = {-1, 0, GS_IPC_HANDLE_SIZE / 2, GS_IPC_HANDLE_SIZE - 1};
#define PAIRS (int)(sizeof wrong / sizeof *wrong)

/* The one that the library gets here, in place of libc's, whose steps are many bytes long. */
int memcmp(const void *a, const void *b, size_t size)
{
    const volatile unsigned char *left = a, *right = b;
    int difference = 0;

    for (size_t i = 0; i < size && difference == 0; i++)
        difference = left[i] - right[i];
    return difference;
}

#ifdef BROKEN
bool __wrap_gs_bytes_equal(const void *a, const void *b, size_t size);
bool __wrap_gs_bytes_equal(const void *a, const void *b, size_t size)
{
    return memcmp(a, b, size) == 0;
}
#endif

/* ---- in the second process ---- */

/* So that no word of the secret is near its ends. */
bool __wrap_gs_random(void *bytes, size_t size);
bool __wrap_gs_random(void *bytes, size_t size)
{
    memset(bytes, 0x55, size);
    return true;
}

/* The check stands before the secret and has to be the right one: it is a sum of words, each with
 * its own weight (ipc_handle.c), so what one word adds the next can take away. */
static void guess(struct side *side, const unsigned char *bytes, unsigned right)
{
    const unsigned first = offsetof(struct gs_ipc_handle, secret) / sizeof(uint16_t) + right;
    uint16_t words[GS_IPC_HANDLE_SIZE / sizeof(uint16_t)];
    unsigned char guessed[GS_IPC_HANDLE_SIZE];
    struct gs_export *found;
    struct gs_ipc_handle ipc_handle;

    memcpy(words, bytes, sizeof words);
    words[first] = (uint16_t)(words[first] + first + 2);
    words[first + 1] = (uint16_t)(words[first + 1] - (first + 1));
    memcpy(guessed, words, sizeof guessed);
    CHECK(gs_ipc_handle_read(guessed, &ipc_handle) == GS_OK);
    raise(SIGUSR1);
    found = gs_export_pin(side->share, guessed);
    raise(SIGUSR2);
    CHECK(!found);
}

/* By itself, so that nothing in it is made for one of the pairs. */
__attribute__((noinline)) static bool compare(const unsigned char *one, const unsigned char *other)
{
    bool equal;

    raise(SIGUSR1);
    equal = gs_bytes_equal(one, other, GS_IPC_HANDLE_SIZE);
    raise(SIGUSR2);
    return equal;
}

static void compare_pair(const unsigned char *bytes, int byte)
{
    unsigned char other[GS_IPC_HANDLE_SIZE];

    memcpy(other, bytes, sizeof other);
    if (byte >= 0)
        other[byte] ^= 0x55;
    CHECK(compare(bytes, other) == (byte < 0));
}

static int measured(void)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_share_options options;
    struct gs_export *export;
    struct side_chunk chunk;
    struct side side;
    char dir[64];

    side_dir_new(dir, sizeof dir);
    side_options(&options, dir);
    side_start(&side, &options);
    chunk = side_chunk_new(&side, 2 * MIB);
    CHECK(side_export(&side, &chunk, 0, 512, &export) == GS_OK);
    gs_export_handle(export, ipc_handle);
    CHECK(gs_export_pin(side.share, ipc_handle) == export);
    gs_export_unpin(side.share, export, false);
    for (int round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < GUESSES; i++)
            guess(&side, ipc_handle, i);
        for (int i = 0; i < PAIRS; i++)
            compare_pair(ipc_handle, wrong[i]);
    }
    CHECK(side_gets_back(&side, export));
    side_stop(&side);
    side_chunk_free(&side, &chunk);
    side_dir_remove(dir);
    return 0;
}

/* ---- in the first ---- */

static pid_t start(char *program)
{
    char *const arguments[] = {program, (char *)"--measured", NULL};
    pid_t pid = fork_child();

    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(STEPS_NOT_PERMITTED);
        execv(program, arguments);
        _exit(1);
    }
    CHECK(pid > 0);
    return pid;
}

/* Whether all took as many instructions. */
static bool same(const char *what, const long *steps, int count)
{
    bool all = true;

    printf("%s:", what);
    for (int i = 0; i < count; i++) {
        printf(" %ld", steps[i]);
        all &= steps[i] == steps[0];
    }
    printf(" instructions%s\n", all ? "" : ": not the same for all");
    return all;
}

int main(int argc, char **argv)
{
    long fewest[GUESSES + PAIRS];
    int status;
    pid_t pid;

    if (argc > 1)
        return measured();
    pid = start(argv[0]);
    CHECK(waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == STEPS_NOT_PERMITTED) {
        puts("skipped: this system does not let a process be traced");
        return STEPS_NOT_PERMITTED;
    }
    for (int i = 0; i < ROUNDS * (GUESSES + PAIRS); i++) {
        long *least = &fewest[i % (GUESSES + PAIRS)];
        long steps = WIFSTOPPED(status) ? steps_run(pid, &status, false, LIMIT) : -1;

        CHECK(steps > GS_IPC_HANDLE_SIZE && steps < LIMIT);
        if (i < GUESSES + PAIRS || steps < *least)
            *least = steps;
    }
    CHECK(steps_run(pid, &status, false, LIMIT) == 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    bool guesses = same("a guess, by how much of it is right", fewest, GUESSES);
    bool pairs =
        same("no wrong byte, the first, one in the midst, the last", fewest + GUESSES, PAIRS);
    return guesses && pairs ? 0 : 1;
}
