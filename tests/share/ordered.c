/*
 * Memory in a stream's order, as an allocator's functions (gpushim_allocate and its kin in
 * gpushim.h).
 *
 *   ordered order     what is freed in a stream is free for that at once, for others when its work has passed
 *   ordered used      what another stream was said to use is behind that, too
 *   ordered graph     what a capture allocates and frees is that graph's until its end
 *   ordered graphs    of two captures at once nothing is had again
 *   ordered untold    captures that nobody told of; memory from before one that is freed in it
 *   ordered device    another device than the current one, and no current one at all
 *   ordered wrong     no such device, no bytes, too many, a device without a context, a full one
 *   ordered off       a library that is switched off: the driver's own memory
 *
 * The library is preloaded.
 */
#include <setjmp.h>

#include "importer.h"
#include "program.h"
#include "shim/gpushim.h"
#include "softcuda.h"
#include "tests/system.h"

#define SIZE ((size_t)1 << 20)
#define MOST 64

static CUstream new_stream(void)
{
    CUstream stream;

    must("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static void *take(CUstream stream)
{
    void *memory = gpushim_allocate(SIZE, 0, stream);

    expect("there is memory", memory != NULL);
    return memory;
}

static void give(void *memory, CUstream stream)
{
    gpushim_free(memory, SIZE, 0, stream);
}

static void fill(void *memory, unsigned char byte, CUstream stream)
{
    must("cuMemsetD8Async", cuMemsetD8Async((CUdeviceptr)(uintptr_t)memory, byte, SIZE, stream));
}

/* A capture ends single-stream mode, in which what is freed is free at once. */
static void be_of_several_streams(CUstream stream)
{
    CUgraph captured;

    must("begin", cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    must("end", cuStreamEndCapture(stream, &captured));
    must("destroy", cuGraphDestroy(captured));
}

static void await_gpu(void)
{
    must("cuCtxSynchronize", cuCtxSynchronize());
}

/* Whether the memory is had by who takes all that there is. */
static bool comes_back(const void *memory)
{
    CUstream stream = new_stream();
    void *taken[MOST];
    bool came = false;
    int count = 0;

    while (count < MOST && (taken[count] = gpushim_allocate(SIZE, 0, stream)))
        came |= taken[count++] == memory;
    expect("all of it", count < MOST);
    while (count > 0)
        give(taken[--count], stream);
    await_gpu();
    must("cuStreamDestroy", cuStreamDestroy(stream));
    return came;
}

/* ---- Streams --------------------------------------------------------------------------------- */

static void order(void)
{
    CUstream a = new_stream(), b = new_stream();
    void *memory = take(a), *other = take(b), *others;

    be_of_several_streams(a);
    fill(other, 1, b);
    softcuda_hold(1);
    fill(memory, 2, a);
    give(memory, a);
    expect("its stream has it at once", take(a) == memory);
    give(memory, a);
    others = take(b);
    expect("another stream does not have it before its work is done", others != memory);
    softcuda_hold(0);
    await_gpu();
    expect("then it has", comes_back(memory));
    give(other, b);
    give(others, b);
}

static void used(void)
{
    CUstream a = new_stream(), b = new_stream(), c = new_stream();
    void *memory = take(a), *own = take(a), *several = take(a);

    be_of_several_streams(a);
    fill(own, 1, b);
    softcuda_hold(1);
    fill(memory, 2, b);
    gpushim_used(memory, b);
    give(memory, a);
    expect("what another stream uses is not free for its own at once", take(a) != memory);
    gpushim_used(own, a);
    give(own, a);
    expect("what its own stream uses is", take(a) == own);
    gpushim_used(several, a);
    gpushim_used(several, c);
    gpushim_used(several, a);
    give(several, a);
    expect("what several streams use is not", take(a) != several);
    softcuda_hold(0);
    await_gpu();
    expect("it is when their work is done", comes_back(memory) && comes_back(several));
    gpushim_used(NULL, a);
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

static const struct gpushim_graphs first = {{1, 2}}, second = {{1, 3}};

static void begin(CUstream stream)
{
    must("begin", cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static CUgraphExec end(CUstream stream)
{
    CUgraphExec exec;
    CUgraph captured;

    must("end", cuStreamEndCapture(stream, &captured));
    must("instantiate", cuGraphInstantiate(&exec, captured, 0));
    must("destroy", cuGraphDestroy(captured));
    return exec;
}

static unsigned char launch(CUgraphExec exec, CUstream stream, const void *memory)
{
    unsigned char byte;

    must("cuGraphLaunch", cuGraphLaunch(exec, stream));
    await_gpu();
    must("copy", cuMemcpyDtoH(&byte, (CUdeviceptr)(uintptr_t)memory, 1));
    return byte;
}

/* The other stream's work is captured as well, or not any more. */
static void join(CUstream from, CUstream to)
{
    CUevent event;

    must("cuEventCreate", cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    must("cuEventRecord", cuEventRecord(event, from));
    must("cuStreamWaitEvent", cuStreamWaitEvent(to, event, 0));
    must("cuEventDestroy", cuEventDestroy(event));
}

static void graph(void)
{
    CUstream a = new_stream(), b = new_stream();
    CUgraphExec one, two;
    void *inner, *kept, *large, *out;

    gpushim_graphs_begin(0, first, NULL);
    begin(a);
    inner = take(a);
    fill(inner, 3, a);
    give(inner, a);
    expect("a capture has again what it has freed", take(a) == inner);
    kept = take(a);
    large = gpushim_allocate(8 * SIZE, 0, a);
    expect("memory of its own", large && kept != inner && kept != large);
    fill(kept, 4, a);
    give(inner, a);
    give(large, a);
    join(a, b);
    expect("not in another stream", take(b) != inner);
    join(b, a);
    expect("in its own", take(a) == inner);
    expect("not where it is much too large", take(a) != large);
    give(inner, a);
    out = gpushim_allocate(4 * SIZE, 0, a);
    expect("it has more", out != NULL);
    one = end(a);
    gpushim_graphs_end(0, first);
    give(out, a);
    expect("nor what is freed later", !comes_back(out));
    expect("nobody else has it", !comes_back(inner));
    expect("the graph writes there", launch(one, a, kept) == 4 && launch(one, b, inner) == 3);

    gpushim_graphs_begin(0, first, NULL);
    begin(a);
    expect("the next capture has it", take(a) == inner);
    fill(inner, 5, a);
    give(inner, a);
    two = end(a);
    gpushim_graphs_end(0, first);
    expect("both may be launched", launch(one, a, inner) == 3 && launch(two, a, inner) == 5);
    gpushim_graphs_gone(0, first);
    expect("one of two has gone", !comes_back(inner));
    must("destroy", cuGraphExecDestroy(one));
    must("destroy", cuGraphExecDestroy(two));
    gpushim_graphs_gone(0, first);
    gpushim_graphs_gone(0, first);
    expect("it is free with the last", comes_back(inner));
    give(take(a), a); /* without that it would wait for the GPU, which is full */
    softcuda_hold(1);
    fill(kept, 6, b);
    give(kept, a);
    expect("what was had beyond is behind all streams", take(a) != kept);
    softcuda_hold(0);
    await_gpu();
    expect("and comes back", comes_back(kept));
}

static void graphs(void)
{
    CUstream a = new_stream(), b = new_stream();
    void *of_both, *of_one;

    gpushim_graphs_begin(0, first, NULL);
    gpushim_graphs_begin(1, second, NULL); /* of another device */
    begin(a);
    of_one = take(a);
    give(of_one, a);
    expect("one", take(a) == of_one);
    give(of_one, a);
    gpushim_graphs_begin(0, second, NULL);
    begin(b);
    of_both = take(b);
    give(of_both, b);
    expect("whose it is cannot be told", of_both != of_one && take(b) != of_both);
    must("destroy", cuGraphExecDestroy(end(b)));
    gpushim_graphs_end(0, second);
    must("destroy", cuGraphExecDestroy(end(a)));
    gpushim_graphs_end(0, first);
    gpushim_graphs_gone(0, first);
    gpushim_graphs_gone(0, second);
    expect("so it stays", !comes_back(of_both));
    expect("but not that of one", comes_back(of_one));
}

static void untold(void)
{
    CUstream a = new_stream();
    void *before = take(a), *within;

    fill(before, 1, a);
    begin(a);
    within = take(a);
    fill(within, 2, a);
    give(before, a);
    give(within, a);
    must("destroy", cuGraphExecDestroy(end(a)));
    await_gpu();
    expect("both come back", comes_back(before) && comes_back(within));
    gpushim_graphs_end(0, first);
    gpushim_graphs_gone(0, first);
}

/* ---- Devices --------------------------------------------------------------------------------- */

static int device_of(const void *memory)
{
    int device;

    must("attribute", cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                            (CUdeviceptr)(uintptr_t)memory));
    return device;
}

static void *without_context(void *unused)
{
    void *memory = gpushim_allocate(SIZE, 1, NULL);
    CUcontext current;

    expect("a thread without a context", memory && device_of(memory) == 1);
    gpushim_free(memory, SIZE, 1, NULL);
    must("cuCtxGetCurrent", cuCtxGetCurrent(&current));
    expect("which has none afterwards", !current);
    return NULL;
}

static void device(void)
{
    CUcontext zero, one, current;
    pthread_t thread;
    void *memory;

    be_of_several_streams(new_stream());
    must("cuCtxGetCurrent", cuCtxGetCurrent(&zero));
    must("retain", cuDevicePrimaryCtxRetain(&one, 1));
    memory = gpushim_allocate(SIZE, 1, NULL);
    expect("of the device that is named", memory && device_of(memory) == 1);
    gpushim_free(memory, SIZE, 1, NULL);
    expect("and free there", gpushim_allocate(SIZE, 1, NULL) == memory);
    must("cuCtxGetCurrent", cuCtxGetCurrent(&current));
    expect("the current context stays", current == zero);
    expect("no thread", pthread_create(&thread, NULL, without_context, NULL) == 0);
    pthread_join(thread, NULL);
    gpushim_free(memory, SIZE, 1, NULL);
    must("release", cuDevicePrimaryCtxRelease(1));
}

static char said[256];
static jmp_buf back;

static void note(const char *function, const char *file, uint32_t line, const char *text)
{
    snprintf(said, sizeof said, "%s %s", function, text);
}

static void leave(const char *function, const char *file, uint32_t line, const char *text)
{
    longjmp(back, 1);
}

static void wrong(void)
{
    struct softcuda_census before, after;

    softcuda_census(&before);
    expect("a handler", gpushim_on_failure(note) == 0);
    expect("no bytes", !gpushim_allocate(0, 0, NULL) && !said[0]);
    expect("no such device", !gpushim_allocate(SIZE, -1, NULL) && strstr(said, "error 101:"));
    expect("nor this", !gpushim_allocate(SIZE, 64, NULL));
    expect("no context there", !gpushim_allocate(SIZE, 1, NULL) && strstr(said, "error 201:"));
    expect("too many", !gpushim_allocate(SIZE_MAX, 0, NULL) &&
                           strstr(said, "gpushim_allocate CUDA out of memory. Tried to allocate "));
    gpushim_on_failure(leave);
    if (setjmp(back) == 0) {
        gpushim_allocate((size_t)1 << 40, 0, NULL);
        expect("the handler was not called", false);
    }
    gpushim_on_failure(NULL);
    expect("it can be done without", !gpushim_allocate((size_t)1 << 40, 0, NULL));
    gpushim_free(NULL, 0, 0, NULL);
    gpushim_free(&before, 8, 0, NULL);
    softcuda_census(&after);
    expect("nothing is left of it",
           after.contexts == before.contexts && after.blocks == before.blocks);
    give(take(NULL), NULL);
}

static void off(void)
{
    CUstream a = new_stream();
    struct softcuda_census census;
    void *memory = take(a);

    softcuda_census(&census);
    expect("the driver's own", census.blocks == 1 && census.mappings == 0);
    gpushim_used(memory, a);
    give(memory, a);
    await_gpu();
    softcuda_census(&census);
    expect("and freed there", census.blocks == 0);
    gpushim_graphs_begin(0, first, NULL);
    gpushim_graphs_end(0, first);
    gpushim_graphs_gone(0, first);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*prove)(void);
    } tests[] = {{"order", order},   {"used", used},     {"graph", graph}, {"graphs", graphs},
                 {"untold", untold}, {"device", device}, {"wrong", wrong}, {"off", off}};

    start_driver();
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (argc > 1 && strcmp(argv[1], tests[i].name) == 0)
            return tests[i].prove(), 0;
    fail("no such test", argc);
}
