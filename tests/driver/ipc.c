/*
 * Legacy IPC. A handle names a descriptor of the exporting process, which an importer opens through
 * /proc and checks to be the memory meant; after that the memory is its own to keep, whatever
 * happens to the exporter. As measured: a handle of a small block opens the 2 MiB around it and
 * gives that block's address; opened in the exporting process it is INVALID_CONTEXT, junk is
 * INVALID_VALUE; VMM and pool memory have no handle.
 */
#include "internal.h"

#include <sys/random.h>

#define MAGIC 0x314350494344530Aull

/* What the 64 bytes hold. */
struct token {
    uint64_t magic;
    uint64_t process; /* random, of the exporting process */
    uint64_t inode;
    uint64_t size; /* of the whole segment */
    uint32_t offset;
    int32_t pid;
    int32_t fd;
    uint8_t uuid[16];
    uint32_t check;
};
_Static_assert(sizeof(struct token) <= sizeof(CUipcMemHandle), "a token is a handle");

/* One segment opened in one context, as often as the program did. */
struct opened {
    struct opened *next;
    struct sd_context *context;
    struct sd_block *block;
    uint64_t process, inode;
    struct place {
        uint64_t ptr;
        unsigned count;
    } *places;
    size_t place_count;
};

static struct opened *opened_first;
static uint64_t this_process;

uint64_t sd_process_token(void)
{
    while (!this_process)
        if (getrandom(&this_process, sizeof this_process, 0) != sizeof this_process)
            this_process = sd_now() ^ (uint64_t)getpid() << 40;
    return this_process;
}

static uint32_t token_check(const struct token *token)
{
    const unsigned char *p = (const void *)token;
    uint32_t sum = 2166136261u;

    for (size_t i = 0; i < offsetof(struct token, check); i++)
        sum = (sum ^ p[i]) * 16777619u;
    return sum;
}

CUresult sd_ipc_get_mem_handle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
    const struct sd_block *block = sd_block_find(ptr);
    struct sd_context *context;
    struct token token;
    CUresult result = sd_current_owner(&context);

    if (result)
        return result;
    if (!handle || !block || block->kind != SD_BLOCK_ALLOC)
        return CUDA_ERROR_INVALID_VALUE;
    memset(&token, 0, sizeof token);
    token.magic = MAGIC;
    token.process = sd_process_token();
    token.inode = block->segment->phys->inode;
    token.size = block->segment->size;
    token.offset = block->base - block->segment->base;
    token.pid = getpid();
    token.fd = block->segment->phys->fd;
    memcpy(token.uuid, sd_devices[block->device].uuid.bytes, sizeof token.uuid);
    token.check = token_check(&token);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &token, sizeof token);
    return CUDA_SUCCESS;
}

static CUresult place_add(struct opened *opened, uint64_t ptr)
{
    struct place *places;

    for (size_t i = 0; i < opened->place_count; i++) {
        if (opened->places[i].ptr == ptr) {
            opened->places[i].count++;
            return CUDA_SUCCESS;
        }
    }
    places = realloc(opened->places, (opened->place_count + 1) * sizeof *places);
    if (!places)
        return CUDA_ERROR_OUT_OF_MEMORY;
    opened->places = places;
    places[opened->place_count++] = (struct place){ptr, 1};
    return CUDA_SUCCESS;
}

static CUresult open_theirs(int pid, int their_fd, uint64_t inode, uint64_t size, int *ret_fd)
{
    char path[64];
    struct stat st;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, their_fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) /* freed; or its process has ended */
        return kill(pid, 0) == 0 ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_VALUE;
    if (fstat(fd, &st) < 0 || st.st_ino != inode || (uint64_t)st.st_size != size) {
        close(fd);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    *ret_fd = fd;
    return CUDA_SUCCESS;
}

CUresult sd_open_memory(int pid, int their_fd, uint64_t inode, uint64_t size, struct sd_phys **ret)
{
    int fd;
    CUresult result = open_theirs(pid, their_fd, inode, size, &fd);

    if (result)
        return result;
    result = sd_phys_import(fd, ret);
    close(fd);
    return result;
}

static void opened_free(struct opened *opened)
{
    struct opened **at = &opened_first;

    while (*at != opened)
        at = &(*at)->next;
    *at = opened->next;
    sd_segment_delete(opened->block->segment);
    sd_block_delete(opened->block);
    free(opened->places);
    free(opened);
}

static CUresult opened_map(struct sd_context *context, const struct token *token,
                           struct sd_phys *phys, struct opened **ret)
{
    struct opened *opened = calloc(1, sizeof *opened);
    uint64_t base = opened ? sd_address_reserve(phys->size, SD_GRANULE, 0) : 0;
    struct sd_segment *segment;
    int device = phys->device < 0 ? context->device : phys->device;

    if (!base || sd_segment_map(base, phys, false, &segment)) {
        if (base)
            sd_address_release(base, phys->size);
        free(opened);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    segment->device = context->device; /* opened for this context: it may access it */
    segment->life = context->life;
    opened->block = sd_block_new(SD_BLOCK_IPC, base, phys->size, segment, context, device);
    if (!opened->block) {
        sd_segment_delete(segment);
        free(opened);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    opened->context = context;
    opened->process = token->process;
    opened->inode = token->inode;
    opened->next = opened_first;
    opened_first = opened;
    *ret = opened;
    return CUDA_SUCCESS;
}

static CUresult token_open(struct sd_context *context, const struct token *token,
                           struct opened **ret)
{
    struct sd_phys *phys;
    CUresult result;

    for (*ret = opened_first; *ret; *ret = (*ret)->next)
        if ((*ret)->context == context && (*ret)->inode == token->inode &&
            (*ret)->process == token->process && !(*ret)->block->freeing)
            return CUDA_SUCCESS;
    result = sd_open_memory(token->pid, token->fd, token->inode, token->size, &phys);
    if (result)
        return result;
    result = opened_map(context, token, phys, ret);
    sd_phys_unref(phys);
    return result;
}

CUresult sd_ipc_open_mem_handle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned flags)
{
    struct sd_context *context;
    struct opened *opened;
    struct token token;
    CUresult result;

    if (!ptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE; /* also without a context (measured on an H200) */
    result = sd_current_owner(&context);
    if (result)
        return result;
    memcpy(&token, &handle, sizeof token);
    if (token.magic != MAGIC || token.check != token_check(&token) || token.offset >= token.size)
        return CUDA_ERROR_INVALID_VALUE;
    if (token.process == sd_process_token())
        return CUDA_ERROR_INVALID_CONTEXT;
    result = token_open(context, &token, &opened);
    if (!result)
        result = place_add(opened, opened->block->base + token.offset);
    if (!result)
        *ptr = opened->block->base + token.offset;
    return result;
}

CUresult sd_ipc_close_mem_handle(CUdeviceptr ptr)
{
    struct sd_context *context;
    struct opened *opened = opened_first;
    struct place *place = NULL;
    unsigned left = 0;
    CUresult result = sd_current_owner(&context);

    if (result)
        return result;
    for (; opened && !place; opened = place ? opened : opened->next)
        for (size_t i = 0; i < opened->place_count && !place; i++)
            if (opened->places[i].ptr == ptr && opened->places[i].count)
                place = &opened->places[i];
    if (!place)
        return CUDA_ERROR_INVALID_VALUE;
    place->count--;
    for (size_t i = 0; i < opened->place_count; i++)
        left += opened->places[i].count;
    if (left)
        return CUDA_SUCCESS;
    opened->block->freeing = true;
    result = sd_context_drain(opened->context); /* as cuMemFree does */
    opened_free(opened);
    return result;
}

void sd_context_drop_ipc(struct sd_context *context)
{
    for (struct opened *opened = opened_first, *next; opened; opened = next) {
        next = opened->next;
        if (opened->context == context && !opened->block->freeing)
            opened_free(opened);
    }
}

unsigned sd_ipc_opened_count(void)
{
    unsigned count = 0;

    for (struct opened *opened = opened_first; opened; opened = opened->next)
        for (size_t i = 0; i < opened->place_count; i++)
            count += opened->places[i].count;
    return count;
}
