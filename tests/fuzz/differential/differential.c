/*
 * Does what a seed says, on whatever driver is there, and prints what can be seen of it:
 *
 *   differential SEED [--steps N] [--devices N] [--only LIST]
 *
 * LIST names the steps that are made, such as 0-5,9 (all by default). run.py compares two such
 * prints. See world.h for what a program is. What calls are refused for whatever came before is
 * asked by the conformance suite, and what several processes share by tests/chaos.
 */
#include "world.h"

#define SECONDS 60 /* of one program: what takes longer hangs */

struct world world;

const char *const kind_names[KINDS] = {"plain", "pitched", "async", "pooled",
                                       "vmm",   "managed", "host",  "registered"};

const char *const limit_texts[LIMITS] = {
    [LIMIT_IPC_OF_ALL] = "Stream-ordered memory has IPC handles",
    [LIMIT_IPC_OF_OWN] = "Memory that a program makes and maps itself",
    [LIMIT_FAR] = "Stream-ordered memory is reached from another GPU",
    [LIMIT_USED] = "does not count stream-ordered memory that `cudaFree` freed",
    [LIMIT_STAYS] = "once any context enabled it or a pool let it in, and stays",
    [LIMIT_RDMA] = "is said to be capable of GPUDirect RDMA",
};

/* ---- Random numbers: splitmix64, begun anew by each step ---- */

static uint64_t random_state;

uint64_t random_next(void)
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

unsigned pick(unsigned n)
{
    return random_next() % n;
}

size_t pick_size(size_t most)
{
    static const size_t sizes[] = {1,          3,       100,         512,          1000,
                                   4096,       65536,   100000,      MIB - 512,    MIB,
                                   MIB + 1000, 2 * MIB, 2 * MIB + 4, 3 * MIB + 40, 8 * MIB,
                                   40 * MIB};
    size_t size = sizes[pick(one_in(8) ? 16 : 15)];

    return size < most ? size : most;
}

/* ---- What is printed ---- */

void say(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vprintf(format, args);
    va_end(args);
}

/* Out before the call is made: where that does not return, it is the last word. */
void about(const char *call)
{
    printf(" %s", call);
    fflush(stdout);
}

CUresult answered(CUresult result)
{
    printf("=%d", (int)result);
    return result;
}

CUresult not_compared(CUresult result, unsigned limit)
{
    printf("=~%u", limit);
    return result;
}

void say_bytes(const void *bytes, size_t size)
{
    const unsigned char *p = bytes;
    uint64_t hash = 14695981039346656037u;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ p[i]) * 1099511628211u;
    printf(" #%016llx", (unsigned long long)hash);
}

/* ---- The steps, and how often each is made ---- */

static const struct {
    const char *name;
    step_fn *step;
    unsigned weight;
} steps[] = {
    {"alloc", step_alloc, 30},
    {"stream", step_stream, 6},
    {"free", step_free, 20},
    {"range", step_range, 4},
    {"attributes", step_attributes, 6},
    {"attribute_set", step_attribute_set, 2},
    {"host", step_host, 4},
    {"fill", step_fill, 15},
    {"copy", step_copy, 15},
    {"host_copy", step_host_copy, 10},
    {"launch", step_launch, 12},
    {"read", step_read, 15},
    {"past_end", step_past_end, 6},
    {"context", step_context, 2},
    {"current", step_current, 4},
    {"primary", step_primary, 1},
    {"event", step_event, 6},
    {"wait", step_wait, 3},
    {"sync", step_sync, 4},
    {"pool", step_pool, 3},
    {"pool_figures", step_pool_figures, 2},
    {"peer", step_peer, 2},
    {"capture", step_capture, 6},
    {"graph_launch", step_graph_launch, 6},
    {"graph_by_hand", step_graph_by_hand, 4},
    {"vmm", step_vmm, 4},
};
#define STEPS (sizeof steps / sizeof *steps)
enum { ALLOC_STEP = 0, STREAM_STEP = 1 };

static unsigned choose(void)
{
    unsigned all = 0, at, i = 0;

    for (unsigned k = 0; k < STEPS; k++)
        all += steps[k].weight;
    for (at = pick(all); at >= steps[i].weight; i++)
        at -= steps[i].weight;
    return i;
}

/* ---- A second thread, which makes some of the steps while the first waits ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    step_fn *step; /* to be made; NULL: done */
} second = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL};

static void *second_thread(void *unused)
{
    pthread_mutex_lock(&second.lock);
    for (;;) {
        while (!second.step)
            pthread_cond_wait(&second.changed, &second.lock);
        CALL(cuCtxSetCurrent, context_handle(0));
        second.step();
        CALL(cuCtxSetCurrent, context_handle(0));
        second.step = NULL;
        pthread_cond_broadcast(&second.changed);
    }
    return unused;
}

static bool alone = true;

bool world_alone(void)
{
    return alone;
}

static void on_second(step_fn *step)
{
    alone = false;
    pthread_mutex_lock(&second.lock);
    second.step = step;
    pthread_cond_broadcast(&second.changed);
    while (second.step)
        pthread_cond_wait(&second.changed, &second.lock);
    pthread_mutex_unlock(&second.lock);
    alone = true;
}

/* ---- A program ---- */

/* Whether a list such as 0-5,9 names the number. */
static bool named(const char *list, unsigned n)
{
    for (const char *p = list; p && *p; p += strspn(p, ",")) {
        char *end;
        unsigned long first = strtoul(p, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        if (end == p)
            return false;
        if (n >= first && n <= last)
            return true;
        p = end;
    }
    return !list;
}

static void begin(int devices)
{
    int count = 0;

    say("begin");
    if (CALL(cuInit, 0) || CALL(cuDeviceGetCount, &count) || count < devices) {
        say(" no %d devices\n", devices);
        exit(2);
    }
    world.devices = devices;
    for (int i = 0; i < BLOCKS; i++)
        world.block[i].last.context = -1;
    for (int i = 0; i < devices; i++) {
        int slot = i ? CONTEXTS - 1 : 0;
        struct context *context = &world.context[slot];
        context->device = i;
        if (CALL(cuDevicePrimaryCtxRetain, &context->handle, i) ||
            CALL(cuCtxSetCurrent, context->handle))
            exit(2);
        context->live = true;
        kernels_load(slot);
    }
    CALL(cuCtxSetCurrent, world.context[0].handle);
    say("\n");
}

static void second_begins(void)
{
    CALL(cuCtxSynchronize);
}

#define FIRST 24 /* steps, of which many make what the others use */

static void make(uint64_t seed, unsigned i)
{
    unsigned which;

    random_state = seed * 0xD1342543DE82EF95u + i * 0x9E3779B97F4A7C15u;
    random_next();
    which = choose();
    if (i < FIRST && one_in(2))
        which = one_in(4) ? STREAM_STEP : ALLOC_STEP;
    printf("%u %s", i, steps[which].name);
    if (one_in(8)) {
        say(" second");
        on_second(steps[which].step);
    } else {
        steps[which].step();
    }
    say("\n");
    fflush(stdout);
}

/* What is in the memory that is left, and that all of it can be freed. */
static void end(void)
{
    random_state = 0;
    say("end");
    CALL(cuCtxSetCurrent, context_handle(0));
    for (int i = 0; i < BLOCKS; i++)
        if (world.block[i].live) {
            say(" b%d", i);
            world_settle(i);
            block_free(i, -1);
        }
    for (int i = 0; i < CONTEXTS; i++)
        if (world.context[i].live) {
            CALL(cuCtxSetCurrent, world.context[i].handle);
            CALL(cuCtxSynchronize);
        }
    say("\n");
}

static int usage(void)
{
    fprintf(stderr, "usage: differential SEED [--steps N] [--devices N] [--only LIST]\n");
    return 2;
}

int main(int argc, char **argv)
{
    unsigned count = 300, devices = 1;
    const char *only = NULL;
    pthread_t thread;
    uint64_t seed;

    if (argc < 2 || argc % 2)
        return usage();
    seed = strtoull(argv[1], NULL, 10);
    for (int i = 2; i < argc; i += 2) {
        if (!strcmp(argv[i], "--steps"))
            count = strtoul(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--devices"))
            devices = strtoul(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--only"))
            only = argv[i + 1];
        else
            return usage();
    }
    alarm(SECONDS);
    begin(devices);
    if (pthread_create(&thread, NULL, second_thread, NULL))
        return 2;
    say("second");
    on_second(second_begins);
    say("\n");
    for (unsigned i = 0; i < count; i++)
        if (named(only, i))
            make(seed, i);
    end();
    for (int i = 0; i < LIMITS; i++)
        printf("~%d %s\n", i, limit_texts[i]);
    fflush(stdout);
    return 0;
}
