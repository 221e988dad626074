/*
 * The producer, and the three stories that it plays with a consumer, a process of its own:
 *
 *   share_driver a   frees a small block that the consumer still reads, and allocates again
 *   share_driver b   shares stream-ordered memory
 *   share_driver c   frees a large block whose consumer was killed, and wants its memory back
 *
 * What came of it is on stdout in a line that starts with "story". The exit status is 0 when the
 * story was played to its end, whichever end it took.
 */
#include "talk.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    small_block = 64 << 10,
    neighbours = 4,
    new_blocks = 256,
    looked_at = 64 << 10,
    deadline_s = 80,
    comes_back_within_ms = 20000,
};

enum { own_byte = 0x11, foreign_byte = 0x22 };

struct consumer {
    pid_t pid;
    int socket;
};

static _Noreturn void fail(const char *what, const char *error)
{
    fprintf(stderr, "%s: %s\n", what, error);
    exit(1);
}

/* For the calls that have no reason to fail. */
static void must(const char *what, const char *error)
{
    if (error)
        fail(what, error);
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* Before the first CUDA call of this process: what CUDA has set up does not survive a fork. */
static struct consumer consumer_start(void)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        fail("socketpair", strerror(errno));
    pid_t pid = fork();
    if (pid < 0)
        fail("fork", strerror(errno));
    if (pid == 0) {
        /* A program of its own from here on. Its end of the connection is its stdin. */
        if (dup2(ends[1], STDIN_FILENO) < 0)
            _exit(1);
        execl("/proc/self/exe", "consumer", "consumer", (char *)NULL);
        _exit(1);
    }
    close(ends[1]);
    return (struct consumer){.pid = pid, .socket = ends[0]};
}

static struct report consumer_report(const struct consumer *consumer)
{
    struct report report;
    if (!talk_receive(consumer->socket, &report, sizeof(report)))
        fail("the consumer", "ended without an answer");
    report.failed[sizeof(report.failed) - 1] = '\0';
    if (report.failed[0])
        fail("the consumer", report.failed);
    return report;
}

/* Returns when the consumer has opened the block and read it once. */
static void consumer_offer(const struct consumer *consumer, const struct gpu_handle *handle)
{
    struct offer offer = {.handle = *handle, .bytes = looked_at, .byte = own_byte};
    if (!talk_send(consumer->socket, &offer, sizeof(offer)))
        fail("the consumer", "ended before the offer");
    if (consumer_report(consumer).foreign)
        fail("the consumer", "read other bytes than the block's at once");
}

static struct report consumer_stop(const struct consumer *consumer)
{
    int status;
    if (!talk_send(consumer->socket, "s", 1))
        fail("the consumer", "ended early");
    struct report report = consumer_report(consumer);
    if (waitpid(consumer->pid, &status, 0) != consumer->pid || status != 0)
        fail("the consumer", "did not end well");
    return report;
}

static void free_all(gpu_address *blocks, int count)
{
    for (int i = 0; i < count; i++)
        must("freeing a block", gpu_free(blocks[i]));
}

static void story_a(const struct consumer *consumer)
{
    gpu_address others[neighbours];
    gpu_address again[new_blocks];
    gpu_address block;
    struct gpu_handle handle;

    /* The driver carves small blocks out of larger pieces. The neighbours are the rest of a
       program: they keep the piece alive when the block in its middle is freed. */
    for (int i = 0; i < neighbours / 2; i++)
        must("allocating", gpu_alloc(small_block, &others[i]));
    must("allocating", gpu_alloc(small_block, &block));
    for (int i = neighbours / 2; i < neighbours; i++)
        must("allocating", gpu_alloc(small_block, &others[i]));

    must("writing", gpu_fill(block, own_byte, small_block));
    must("sharing a small block", gpu_share(block, &handle));
    consumer_offer(consumer, &handle);

    must("freeing the shared block", gpu_free(block));
    for (int i = 0; i < new_blocks; i++) {
        must("allocating again", gpu_alloc(small_block, &again[i]));
        must("writing again", gpu_fill(again[i], foreign_byte, small_block));
    }

    struct report report = consumer_stop(consumer);
    if (report.foreign)
        printf("story a: consumer saw foreign bytes (read %u: 0x%02x where 0x%02x was written)\n",
               report.reads, report.byte, own_byte);
    else
        printf("story a: consumer saw its own bytes (0x%02x in each of %u reads)\n", own_byte,
               report.reads);
    free_all(again, new_blocks);
    free_all(others, neighbours);
}

static void story_b(const struct consumer *consumer)
{
    gpu_address block;
    struct gpu_handle handle;

    must(gpu_alloc_async_name, gpu_alloc_async(small_block, &block));
    must("writing", gpu_fill(block, own_byte, small_block));
    const char *error = gpu_share(block, &handle);
    if (error) {
        printf("story b: %s memory cannot be shared (%s: %s)\n", gpu_alloc_async_name,
               gpu_share_name, error);
        shutdown(consumer->socket, SHUT_RDWR);
        waitpid(consumer->pid, NULL, 0);
    } else {
        consumer_offer(consumer, &handle);
        if (consumer_stop(consumer).foreign)
            fail("story b", "the bytes changed under the consumer");
        printf("story b: consumer read the bytes of %s memory\n", gpu_alloc_async_name);
    }
    must("freeing", gpu_free_async(block));
}

static void story_c(const struct consumer *consumer)
{
    gpu_address block;
    gpu_address again = 0;
    struct gpu_handle handle;
    size_t free_bytes;
    uint8_t byte = 0;

    /* So large that the device has no room for two: the second time it can only be the same
       memory, back from the dead consumer. */
    must("asking for the free memory", gpu_memory_free(&free_bytes));
    size_t bytes = (free_bytes / 10 * 6) & ~(((size_t)2 << 20) - 1);
    must("allocating 60 % of the free memory", gpu_alloc(bytes, &block));
    must("writing", gpu_fill(block, own_byte, looked_at));
    must("sharing it", gpu_share(block, &handle));
    consumer_offer(consumer, &handle);

    /* Nobody waits for the child here: a producer may have a consumer that is not its child. */
    double killed = now_ms();
    if (kill(consumer->pid, SIGKILL) != 0)
        fail("killing the consumer", strerror(errno));
    must("freeing the shared block", gpu_free(block));
    const char *error = gpu_alloc(bytes, &again);
    while (error && now_ms() - killed < comes_back_within_ms) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        error = gpu_alloc(bytes, &again);
    }
    double took = now_ms() - killed;
    if (error) {
        printf("story c: the memory did not come back in %.0f s (%s)\n", comes_back_within_ms / 1e3,
               error);
    } else {
        must("writing again", gpu_fill(again, foreign_byte, looked_at));
        must("reading again", gpu_read(again + looked_at - 1, &byte, 1));
        if (byte != foreign_byte)
            fail("story c", "the new memory does not hold what was written to it");
        printf("story c: the memory came back %.1f ms after the kill (%zu MiB of %zu free)\n", took,
               bytes >> 20, free_bytes >> 20);
        must("freeing", gpu_free(again));
    }
    waitpid(consumer->pid, NULL, 0);
}

int main(int argc, char **argv)
{
    char name[64];
    const char *role = argc == 2 ? argv[1] : "";

    alarm(deadline_s);
    if (strcmp(role, "consumer") == 0)
        return consumer_main(STDIN_FILENO);
    if (strlen(role) != 1 || !strchr("abc", role[0])) {
        fprintf(stderr, "usage: %s a|b|c (the story to play)\n", argv[0]);
        return 2;
    }
    struct consumer consumer = consumer_start();
    must("starting CUDA", gpu_start(name, sizeof(name)));
    printf("on %s\n", name);
    if (role[0] == 'a')
        story_a(&consumer);
    else if (role[0] == 'b')
        story_b(&consumer);
    else
        story_c(&consumer);
    close(consumer.socket);
    must("ending", gpu_stop());
    return 0;
}
