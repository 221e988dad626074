/*
 * What sharing costs: one process allocates and makes handles, a second one opens and closes them.
 */
#include "bench.h"

static const char usage[] =
    "ipc [--size BYTES] [--blocks N] [--rounds N] [--pieces N] [--pause MS] [--warm]\n"
    "  --pieces: of 2 MiB, that one handle of memory which is mapped by hand is of\n"
    "  --pause: between making handles and opening them\n"
    "  --warm: the importer allocates and frees a block before it opens any";

#define PIECE  (UINT64_C(2) << 20)
#define STRIPS 5 /* of each length */

/* What the exporter asks of the importer, followed by `handles` handles. */
struct request {
    uint64_t handles;
    uint64_t rounds; /* open and close the first one that often more, once it has been opened */
};

/* Nanoseconds; the medians and sums are over what was asked for. */
struct answer {
    CUresult result; /* of the call that failed first */
    uint64_t first_open, first_close;
    uint64_t round;                  /* an open and its close, median */
    uint64_t open_all, close_all;    /* of all handles, one after the other */
    uint64_t open_median, open_most; /* of the single ones */
};

/* ---- the importer ---- */

static CUresult open_handle(CUdeviceptr *ret_block, const CUipcMemHandle *handle)
{
    return cuIpcOpenMemHandle(ret_block, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUresult open_first(const CUipcMemHandle *handle, struct answer *answer)
{
    CUdeviceptr block;
    uint64_t began = bench_now();
    CUresult result = open_handle(&block, handle);
    uint64_t opened = bench_now();

    if (result == CUDA_SUCCESS)
        result = cuIpcCloseMemHandle(block);
    answer->first_open = opened - began;
    answer->first_close = bench_now() - opened;
    return result;
}

static CUresult open_again(const CUipcMemHandle *handle, uint64_t rounds, struct answer *answer)
{
    uint64_t *ns = bench_array(rounds, sizeof *ns);
    CUresult result = CUDA_SUCCESS;
    CUdeviceptr block;

    for (uint64_t i = 0; i < rounds && result == CUDA_SUCCESS; i++) {
        uint64_t began = bench_now();
        result = open_handle(&block, handle);
        if (result == CUDA_SUCCESS)
            result = cuIpcCloseMemHandle(block);
        ns[i] = bench_now() - began;
    }
    answer->round = bench_median(ns, rounds);
    free(ns);
    return result;
}

static CUresult open_all(const CUipcMemHandle *handles, uint64_t count, struct answer *answer)
{
    CUdeviceptr *blocks = bench_array(count, sizeof *blocks);
    uint64_t *ns = bench_array(count, sizeof *ns);
    CUresult result = CUDA_SUCCESS;
    uint64_t opened = 0, began = bench_now(), last = began;

    while (opened < count && result == CUDA_SUCCESS) {
        result = open_handle(&blocks[opened], &handles[opened]);
        ns[opened] = bench_now() - last;
        last += ns[opened];
        opened += result == CUDA_SUCCESS;
    }
    answer->open_all = last - began;
    if (opened) {
        answer->open_median = bench_median(ns, opened); /* which sorts them */
        answer->open_most = ns[opened - 1];
    }
    free(ns);
    began = bench_now();
    for (uint64_t i = 0; i < opened; i++) {
        CUresult closed = cuIpcCloseMemHandle(blocks[i]);
        if (result == CUDA_SUCCESS)
            result = closed;
    }
    answer->close_all = bench_now() - began;
    free(blocks);
    return result;
}

/* What the first allocation of a process costs is not the first open's. */
static void warm_up(void)
{
    CUdeviceptr block;

    MUST(cuMemAlloc(&block, 2 << 20));
    MUST(cuMemFree(block));
}

static int importer(bool warm)
{
    struct request request;
    const char ready = 0; /* said when it can open: its start is not the first open's */

    bench_start();
    if (warm)
        warm_up();
    bench_send(BENCH_SOCKET, &ready, sizeof ready);
    for (;;) {
        struct answer answer = {0};
        bench_receive(BENCH_SOCKET, &request, sizeof request);
        if (request.handles == 0)
            return 0;
        CUipcMemHandle *handles = bench_array(request.handles, sizeof *handles);
        bench_receive(BENCH_SOCKET, handles, request.handles * sizeof *handles);
        if (request.rounds) {
            answer.result = open_first(handles, &answer);
            if (answer.result == CUDA_SUCCESS)
                answer.result = open_again(handles, request.rounds, &answer);
        } else {
            answer.result = open_all(handles, request.handles, &answer);
        }
        free(handles);
        bench_send(BENCH_SOCKET, &answer, sizeof answer);
    }
}

/* ---- the exporter ---- */

static struct answer ask(int socket, const CUipcMemHandle *handles, uint64_t count, uint64_t rounds)
{
    struct request request = {count, rounds};
    struct answer answer;

    bench_send(socket, &request, sizeof request);
    bench_send(socket, handles, count * sizeof *handles);
    bench_receive(socket, &answer, sizeof answer);
    if (answer.result != CUDA_SUCCESS)
        bench_die("the second process cannot open or close: %s", bench_error(answer.result));
    return answer;
}

struct measured {
    uint64_t get_first, get_hundred;
    struct answer one, many;
    uint64_t share_all;
    uint64_t open_strip, open_piece; /* of all pieces, and each beyond the first; 0: neither */
};

static void pause_ms(uint64_t ms)
{
    const struct timespec time = {(time_t)(ms / 1000), (long)(ms % 1000 * 1000000)};

    nanosleep(&time, NULL);
}

static void one_block(int socket, uint64_t size, uint64_t rounds, uint64_t pause,
                      struct measured *measured)
{
    uint64_t *ns = bench_array(rounds, sizeof *ns);
    CUipcMemHandle handle;
    CUdeviceptr block;

    MUST(cuMemAlloc(&block, size));
    uint64_t began = bench_now();
    MUST(cuIpcGetMemHandle(&handle, block));
    measured->get_first = bench_now() - began;
    /* A hundred at a time: one is shorter than the clock's own time. */
    for (uint64_t i = 0; i < rounds; i++) {
        began = bench_now();
        for (int j = 0; j < 100; j++)
            MUST(cuIpcGetMemHandle(&handle, block));
        ns[i] = bench_now() - began;
    }
    measured->get_hundred = bench_median(ns, rounds);
    pause_ms(pause);
    measured->one = ask(socket, &handle, 1, rounds);
    MUST(cuMemFree(block));
    free(ns);
}

static void many_blocks(int socket, uint64_t size, uint64_t count, uint64_t pause,
                        struct measured *measured)
{
    CUipcMemHandle *handles = bench_array(count, sizeof *handles);
    CUdeviceptr *blocks = bench_array(count, sizeof *blocks);

    for (uint64_t i = 0; i < count; i++)
        MUST(cuMemAlloc(&blocks[i], size));
    uint64_t began = bench_now();
    for (uint64_t i = 0; i < count; i++)
        MUST(cuIpcGetMemHandle(&handles[i], blocks[i]));
    measured->share_all = bench_now() - began;
    pause_ms(pause);
    measured->many = ask(socket, handles, count, 0);
    for (uint64_t i = 0; i < count; i++)
        MUST(cuMemFree(blocks[i]));
    free(handles);
    free(blocks);
}

/* Memory of several pieces; only the library gives a handle of it. */
static CUdeviceptr map_strip(uint64_t pieces)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    const CUmemAccessDesc access = {.location = prop.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base;

    MUST(cuMemAddressReserve(&base, pieces * PIECE, 0, 0, 0));
    for (uint64_t i = 0; i < pieces; i++) {
        MUST(cuMemCreate(&handle, PIECE, &prop, 0));
        MUST(cuMemMap(base + i * PIECE, PIECE, 0, handle, 0));
        MUST(cuMemRelease(handle));
    }
    MUST(cuMemSetAccess(base, pieces * PIECE, &access, 1));
    return base;
}

/* Its first open, median. */
static uint64_t open_strip(int socket, uint64_t pieces)
{
    uint64_t ns[STRIPS];

    for (unsigned i = 0; i < STRIPS; i++) {
        CUdeviceptr base = map_strip(pieces);
        CUipcMemHandle handle;

        MUST(cuIpcGetMemHandle(&handle, base));
        ns[i] = ask(socket, &handle, 1, 1).first_open;
        MUST(cuMemUnmap(base, pieces * PIECE));
        MUST(cuMemAddressFree(base, pieces * PIECE));
    }
    return bench_median(ns, STRIPS);
}

static void strips(int socket, uint64_t pieces, struct measured *measured)
{
    uint64_t one;

    if (pieces < 2 || !bench_under_shim())
        return;
    one = open_strip(socket, 1);
    measured->open_strip = open_strip(socket, pieces);
    measured->open_piece =
        measured->open_strip > one ? (measured->open_strip - one) / (pieces - 1) : 0;
}

static void print(const struct measured *measured, uint64_t size, uint64_t blocks)
{
    double each = 1000 * (double)blocks;
    struct rlimit descriptors;

    json_begin("ipc");
    json_count("size", size);
    json_count("blocks", blocks);
    json_number("get_handle_first_us", (double)measured->get_first / 1000);
    json_number("get_handle_again_ns", (double)measured->get_hundred / 100);
    json_number("open_first_us", (double)measured->one.first_open / 1000);
    json_number("close_first_us", (double)measured->one.first_close / 1000);
    json_number("reopen_close_us", (double)measured->one.round / 1000);
    json_number("share_each_us", (double)measured->share_all / each);
    json_number("open_each_us", (double)measured->many.open_all / each);
    json_number("open_median_us", (double)measured->many.open_median / 1000);
    json_number("open_most_us", (double)measured->many.open_most / 1000);
    json_number("close_each_us", (double)measured->many.close_all / each);
    if (measured->open_strip) {
        json_number("open_strip_us", (double)measured->open_strip / 1000);
        json_number("open_piece_us", (double)measured->open_piece / 1000);
    }
    if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0)
        json_count("descriptors", descriptors.rlim_cur);
    json_end();
}

int main(int argc, char **argv)
{
    const char *arguments[] = {"--importer", NULL, NULL};
    uint64_t size = 2 << 20, blocks = 1000, rounds = 101, pieces = 256, pause = 0;
    bool warm = false;
    const struct bench_option options[] = {{"size", BENCH_NUMBER, &size},
                                           {"blocks", BENCH_NUMBER, &blocks},
                                           {"rounds", BENCH_NUMBER, &rounds},
                                           {"pieces", BENCH_NUMBER, &pieces},
                                           {"pause", BENCH_NUMBER, &pause},
                                           {"warm", BENCH_FLAG, &warm},
                                           {NULL}};
    struct measured measured = {0};
    struct request end = {0};
    char ready;
    pid_t pid;

    if (argc >= 2 && strcmp(argv[1], "--importer") == 0)
        return importer(argc == 3);
    if (bench_options(argv, options, usage) || blocks == 0 || rounds == 0)
        bench_die("nothing to do\nusage: %s", usage);
    bench_start();
    arguments[1] = warm ? "--warm" : NULL;
    int socket = bench_spawn_self(arguments, true, &pid);
    bench_receive(socket, &ready, sizeof ready);
    one_block(socket, size, rounds, pause, &measured);
    many_blocks(socket, size, blocks, pause, &measured);
    strips(socket, pieces, &measured);
    bench_send(socket, &end, sizeof end);
    bench_wait(pid, socket);
    print(&measured, size, blocks);
    return 0;
}
