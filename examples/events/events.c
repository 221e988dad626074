/*
 * Two programs that pass GPU memory on as inference engines and their caches do (vLLM and LMCache,
 * say): one fills it, the other reads it, and no CPU waits in between. What they exchange is two
 * handles of CUDA IPC, of the memory and of an event that is recorded behind the work; here by
 * files of a folder.
 *
 *   events fill FOLDER    its GPU fills the memory when the reader has submitted all of its work
 *   events read FOLDER    its GPU waits for the event and reads the memory
 *
 * Neither knows of libgpushim. events.sh runs them in containers of their own.
 */
#include <cuda.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define WORDS    ((size_t)1 << 20)
#define FILLED   0x600dda7au
#define TIMES_MS 30000 /* the other one is waited for */

static char path[512];
static const char *folder;

static void must(const char *call, CUresult result)
{
    const char *name = "an unknown error";

    if (result == CUDA_SUCCESS)
        return;
    cuGetErrorName(result, &name);
    printf("%s: %s\n", call, name);
    exit(1);
}

static const char *in_folder(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const void *bytes, size_t size)
{
    char made[512];
    FILE *file;

    snprintf(made, sizeof made, "%s", in_folder("made"));
    file = fopen(made, "w");
    if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0 ||
        rename(made, in_folder(name)) != 0) {
        perror(path);
        exit(1);
    }
}

static void await(const char *name, void *ret_bytes, size_t size)
{
    FILE *file = NULL;

    for (int ms = 0; ms < TIMES_MS && !(file = fopen(in_folder(name), "r")); ms++)
        usleep(1000);
    if (!file || fread(ret_bytes, 1, size, file) != size) {
        perror(path);
        exit(1);
    }
    fclose(file);
}

/* In the fill's stream: what comes behind it is not begun before the reader's work is submitted. */
static void CUDA_CB await_reader(void *unused)
{
    char byte;

    (void)unused;
    await("submitted", &byte, 1);
}

static void fill(CUstream stream)
{
    CUipcMemHandle memory_handle;
    CUipcEventHandle event_handle;
    CUdeviceptr memory;
    CUevent event;
    char byte;

    must("cuMemAlloc", cuMemAlloc(&memory, WORDS * 4));
    must("cuMemsetD32", cuMemsetD32(memory, 0, WORDS));
    must("cuEventCreate", cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    must("cuLaunchHostFunc", cuLaunchHostFunc(stream, await_reader, NULL));
    must("cuMemsetD32Async", cuMemsetD32Async(memory, FILLED, WORDS, stream));
    must("cuEventRecord", cuEventRecord(event, stream));
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&memory_handle, memory));
    must("cuIpcGetEventHandle", cuIpcGetEventHandle(&event_handle, event));
    put("memory", &memory_handle, sizeof memory_handle);
    put("event", &event_handle, sizeof event_handle);
    await("read", &byte, 1); /* it stays until then */
    must("cuStreamSynchronize", cuStreamSynchronize(stream));
}

static void read_it(CUstream stream)
{
    CUipcMemHandle memory_handle;
    CUipcEventHandle event_handle;
    CUdeviceptr memory;
    CUevent event;
    uint32_t *words;
    size_t other = 0;

    await("memory", &memory_handle, sizeof memory_handle);
    await("event", &event_handle, sizeof event_handle);
    must("cuIpcOpenEventHandle", cuIpcOpenEventHandle(&event, event_handle));
    must("cuIpcOpenMemHandle",
         cuIpcOpenMemHandle(&memory, memory_handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    must("cuMemAllocHost", cuMemAllocHost((void **)&words, WORDS * 4));
    must("cuStreamWaitEvent", cuStreamWaitEvent(stream, event, 0));
    must("cuMemcpyDtoHAsync", cuMemcpyDtoHAsync(words, memory, WORDS * 4, stream));
    put("submitted", "", 1);
    must("cuStreamSynchronize", cuStreamSynchronize(stream));
    for (size_t i = 0; i < WORDS; i++)
        other += words[i] != FILLED;
    printf("read %zu words behind the event, %zu of them too early\n", WORDS, other);
    must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(memory));
    put("read", "", 1);
    exit(other > 0);
}

int main(int argc, char **argv)
{
    CUdevice device;
    CUcontext context;
    CUstream stream;

    if (argc < 3) {
        fprintf(stderr, "usage: events fill|read FOLDER\n");
        return 2;
    }
    folder = argv[2];
    must("cuInit", cuInit(0));
    must("cuDeviceGet", cuDeviceGet(&device, 0));
    must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    must("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (argv[1][0] == 'f')
        fill(stream);
    else
        read_it(stream);
    return 0;
}
