/* Steps that share memory with another process, and that process. It does one thing at a time, and
 * all its work is done when it answers. */
#include "world.h"
#include "tests/system.h"

enum order_kind { ALLOCATE, FREE_IT, SHARE, OPEN_IT, CLOSE_IT, FILL, LOOK };

struct request {
    enum order_kind kind;
    unsigned slot, value;
    size_t size;
    CUipcMemHandle handle;
};

struct answer {
    CUresult result;
    uint64_t hash;
    CUipcMemHandle handle;
};

/* What this process knows of the other one's blocks. */
static struct {
    bool live;
    bool opened;   /* it is a block of ours, `block`, that it has open */
    unsigned here; /* how often we have it open */
    size_t size;
    int block;
    unsigned life; /* of that block */
} theirs[THEIRS];

static int fd = -1;
static pid_t pid;

/* ---- The other process ---- */

static struct {
    CUdeviceptr ptr;
    size_t size;
} held[THEIRS];

static CUresult look(unsigned slot, uint64_t *ret_hash)
{
    static unsigned char bytes[4096];
    size_t size = held[slot].size < sizeof bytes ? held[slot].size : sizeof bytes;
    CUresult result = cuMemcpyDtoH(bytes, held[slot].ptr, size);

    *ret_hash = 14695981039346656037u;
    for (size_t i = 0; i < size; i++)
        *ret_hash = (*ret_hash ^ bytes[i]) * 1099511628211u;
    return result;
}

/* What the steps look at of a block, which is both its ends. */
static CUresult fill(unsigned slot, unsigned char value)
{
    size_t size = held[slot].size;
    CUresult result = cuMemsetD8(held[slot].ptr, value, size < 2 * WRITTEN ? size : WRITTEN);

    if (!result && size >= 2 * WRITTEN)
        result = cuMemsetD8(held[slot].ptr + size - WRITTEN, value, WRITTEN);
    return result;
}

static CUresult obey(const struct request *request, struct answer *answer)
{
    unsigned slot = request->slot;
    CUdeviceptr *ptr = &held[slot].ptr;

    switch (request->kind) {
    case ALLOCATE:
        held[slot].size = request->size;
        return cuMemAlloc(ptr, request->size);
    case FREE_IT:
        return cuMemFree(*ptr);
    case SHARE:
        return cuIpcGetMemHandle(&answer->handle, *ptr);
    case OPEN_IT:
        held[slot].size = request->size;
        return cuIpcOpenMemHandle(ptr, request->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    case CLOSE_IT:
        return cuIpcCloseMemHandle(*ptr);
    case FILL:
        return fill(slot, (unsigned char)request->value);
    case LOOK:
        return look(slot, &answer->hash);
    }
    return CUDA_ERROR_INVALID_VALUE;
}

int other_main(int socket)
{
    struct request request;
    CUcontext context;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 2;
    while (read(socket, &request, sizeof request) == sizeof request) {
        struct answer answer;
        memset(&answer, 0, sizeof answer);
        answer.result = obey(&request, &answer);
        if (!answer.result)
            answer.result = cuCtxSynchronize();
        if (write(socket, &answer, sizeof answer) != sizeof answer)
            break;
    }
    return 0;
}

/* ---- Orders to it ---- */

static bool start(void)
{
    char number[16];
    int ends[2];

    if (fd >= 0)
        return true;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends))
        return false;
    snprintf(number, sizeof number, "%d", ends[1]);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        close(ends[0]);
        execl("/proc/self/exe", "differential", "--other", number, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    fd = ends[0];
    return pid > 0;
}

/* What a call gave there; 999: it is not there any more. */
static CUresult tell(const struct request *request, struct answer *ret_answer)
{
    static const char *const names[] = {"alloc", "free", "share", "open", "close", "fill", "look"};
    bool done;

    say(" their %s t%u", names[request->kind], request->slot);
    fflush(stdout);
    done = start() && write(fd, request, sizeof *request) == sizeof *request &&
           read(fd, ret_answer, sizeof *ret_answer) == sizeof *ret_answer;
    if (!done)
        ret_answer->result = CUDA_ERROR_UNKNOWN;
    return answered(ret_answer->result);
}

static CUresult order(enum order_kind kind, unsigned slot)
{
    struct request request = {.kind = kind, .slot = slot, .value = pick(256)};
    struct answer answer;
    CUresult result = tell(&request, &answer);

    if (!result && kind == LOOK)
        say(" #%016llx", (unsigned long long)answer.hash);
    return result;
}

/* Work with our part of what both have is done, theirs always is. */
static bool settle_shared(unsigned slot)
{
    if (theirs[slot].opened)
        return world.block[theirs[slot].block].life != theirs[slot].life ||
               world_settle(theirs[slot].block);
    for (int i = 0; i < BLOCKS; i++)
        if (world.block[i].live && world.block[i].kind == OPENED &&
            world.block[i].theirs == (int)slot && !world_settle(i))
            return false;
    return true;
}

static void allocate(unsigned slot)
{
    struct request request = {.kind = ALLOCATE, .slot = slot, .size = pick_size(8 * MIB)};
    struct answer answer;

    say(" %zu", request.size);
    if (tell(&request, &answer))
        return;
    theirs[slot].live = true;
    theirs[slot].opened = false;
    theirs[slot].here = 0;
    theirs[slot].size = request.size;
    order(FILL, slot);
}

void step_their_memory(void)
{
    unsigned slot = pick(THEIRS);

    if (!theirs[slot].live) {
        allocate(slot);
        return;
    }
    if (!settle_shared(slot))
        return;
    if (one_in(3)) {
        order(FILL, slot);
    } else if (one_in(4) && !theirs[slot].opened &&
               (theirs[slot].size >= 2 * MIB || !theirs[slot].here)) {
        /* Natively the memory of a small one goes to the next owner. */
        if (!order(FREE_IT, slot))
            theirs[slot].live = false;
        for (int i = 0; i < BLOCKS; i++)
            if (world.block[i].kind == OPENED && world.block[i].theirs == (int)slot)
                world.block[i].theirs = -1;
        return;
    }
    order(LOOK, slot);
}

static int opened_from(unsigned slot)
{
    for (int i = 0; i < BLOCKS; i++)
        if (world.block[i].live && world.block[i].kind == OPENED &&
            world.block[i].theirs == (int)slot)
            return i;
    return -1;
}

/* One of theirs, here; a second time it is where it is, and counted. */
void step_import(void)
{
    unsigned slot = pick(THEIRS);
    struct request request = {.kind = SHARE, .slot = slot};
    int at = free_block(), before = opened_from(slot);
    struct answer answer;
    struct block *block;
    CUcontext was;

    if (at < 0 || !theirs[slot].live || theirs[slot].opened || tell(&request, &answer))
        return;
    block = &world.block[at];
    say(" b%d", at);
    CALL(cuCtxPushCurrent, context_handle(0));
    if (CALL(cuIpcOpenMemHandle, &block->ptr, answer.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
        CUDA_SUCCESS) {
        if (before >= 0) {
            say(" same %d", block->ptr == world.block[before].ptr);
            CALL(cuIpcCloseMemHandle, block->ptr);
        } else {
            block->live = true;
            block->kind = OPENED;
            block->size = theirs[slot].size;
            block->theirs = (int)slot;
            theirs[slot].here++;
        }
    }
    CALL(cuCtxPopCurrent, &was);
}

/* One of ours, there. Stream-ordered memory is shared by the library alone. */
void step_export(void)
{
    int slot = any_block(1u << PLAIN | 1u << PITCH | 1u << ASYNC);
    struct block *block = &world.block[slot < 0 ? 0 : slot];
    struct request request = {.kind = OPEN_IT, .slot = pick(THEIRS), .size = block->size};
    struct answer answer;

    if (slot < 0 || block->device || current_context() < 0 || !world_settle(slot))
        return;
    say(" b%d", slot);
    if (block->kind == ASYNC) {
        LIMIT(LIMIT_IPC_OF_ALL, cuIpcGetMemHandle, &request.handle, block->ptr);
        return;
    }
    if (CALL(cuIpcGetMemHandle, &request.handle, block->ptr + (block->size > 8 ? 5 : 0)) ||
        theirs[request.slot].live || block->shared || tell(&request, &answer))
        return;
    block->shared = true;
    theirs[request.slot].live = theirs[request.slot].opened = true;
    theirs[request.slot].size = block->size;
    theirs[request.slot].block = slot;
    theirs[request.slot].life = block->life;
    order(LOOK, request.slot);
}

void step_close(void)
{
    int slot = any_block(1u << OPENED);
    unsigned there = pick(THEIRS);
    CUcontext before;

    if (slot >= 0 && one_in(2) && world_settle(slot)) {
        say(" b%d", slot);
        CALL(cuCtxPushCurrent, context_handle(0));
        if (world.block[slot].theirs >= 0)
            theirs[world.block[slot].theirs].here--;
        block_free(slot, -1);
        CALL(cuCtxPopCurrent, &before);
    } else if (theirs[there].live && theirs[there].opened && settle_shared(there)) {
        if (!order(CLOSE_IT, there))
            theirs[there].live = false;
        if (world.block[theirs[there].block].life == theirs[there].life)
            world.block[theirs[there].block].shared = false;
    }
}

void step_bad_ipc(void)
{
    int slot = any_block(1u << PLAIN | 1u << PITCH);
    struct block *block = &world.block[slot < 0 ? 0 : slot];
    CUdeviceptr ptr = 77, nowhere = 0x1234000;
    CUipcMemHandle handle;

    memset(&handle, 0, sizeof handle);
    if (slot < 0)
        return;
    say(" b%d", slot);
    switch (pick(6)) {
    case 0:
        if (CALL(cuIpcGetMemHandle, &handle, block->ptr) == CUDA_SUCCESS)
            CALL(cuIpcOpenMemHandle, &ptr, handle, 1);
        break;
    case 1:
        if (CALL(cuIpcGetMemHandle, &handle, block->ptr) == CUDA_SUCCESS)
            CALL(cuIpcOpenMemHandle, &ptr, handle, one_in(2) ? 0 : 2);
        break;
    case 2:
        CALL(cuIpcCloseMemHandle, one_in(2) ? block->ptr : 0);
        break;
    case 3:
        CALL(cuIpcGetMemHandle, &handle, nowhere);
        break;
    case 4:
        CALL(cuIpcGetMemHandle, NULL, block->ptr);
        break;
    default:
        CALL(cuIpcOpenMemHandle, &ptr, handle, 1);
    }
}

/* The other process ends in the midst of what it has; what is open here stays. */
void step_kill(void)
{
    if (fd < 0)
        return;
    for (unsigned i = 0; i < THEIRS; i++)
        settle_shared(i);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(fd);
    fd = -1;
    for (int i = 0; i < BLOCKS; i++) {
        world.block[i].shared = false;
        if (world.block[i].kind == OPENED)
            world.block[i].theirs = -1;
    }
    memset(theirs, 0, sizeof theirs);
}

void other_end(void)
{
    int status = 0;

    if (fd < 0)
        return;
    close(fd);
    waitpid(pid, &status, 0);
    say(" other ended %d", status);
}
