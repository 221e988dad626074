/*
 * Memory of an actor's that no cuMemAlloc made (actor.h): what it maps itself, in pieces, and what
 * it has the library attach. Others keep what they have open of it whatever becomes of it here.
 */
#include "actor.h"

#include "shim/gpushim.h"

#define PIECE ((size_t)2 << 20)

static CUmemAllocationProp properties(const struct actor *actor, CUmemAllocationHandleType types)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = types,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                              .id = actor->gpu.device}};
}

static size_t pieces_of(const struct actor_block *block)
{
    return (block->words * 4 + PIECE - 1) / PIECE;
}

static CUresult map(struct actor *actor, struct actor_block *block)
{
    const CUmemAllocationProp prop = properties(actor, CU_MEM_HANDLE_TYPE_NONE);
    const CUmemAccessDesc access = {.location = prop.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const size_t pieces = pieces_of(block);
    CUmemGenericAllocationHandle made;
    CUresult result = CUDA_SUCCESS;
    size_t mapped = 0;

    actor_must(actor, "cuMemAddressReserve",
               cuMemAddressReserve(&block->ptr, pieces * PIECE, 0, 0, 0));
    while (mapped < pieces && (result = cuMemCreate(&made, PIECE, &prop, 0)) == CUDA_SUCCESS) {
        actor_must(actor, "cuMemMap", cuMemMap(block->ptr + mapped * PIECE, PIECE, 0, made, 0));
        actor_must(actor, "cuMemRelease", cuMemRelease(made));
        mapped++;
    }
    if (result == CUDA_SUCCESS)
        return cuMemSetAccess(block->ptr, pieces * PIECE, &access, 1);
    if (mapped > 0)
        actor_must(actor, "cuMemUnmap", cuMemUnmap(block->ptr, mapped * PIECE));
    actor_must(actor, "cuMemAddressFree", cuMemAddressFree(block->ptr, pieces * PIECE));
    return result;
}

/* NULL: natively. */
static void *function(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

/* The descriptor is closed at once: the library has its own. */
static CUresult attach(struct actor *actor, struct actor_block *block, enum gpushim_kind kind,
                       int fd, size_t bytes)
{
    __typeof__(&gpushim_attach) call = (__typeof__(call))function("gpushim_attach");
    const struct gpushim_external external = {.size = sizeof external,
                                              .kind = kind,
                                              .access = GPUSHIM_MUTABLE,
                                              .device = actor->gpu.device,
                                              .fd = fd,
                                              .bytes = bytes};
    uint64_t address = 0;
    int error = call(&external, &address);

    close(fd);
    if (error && error != ENOMEM) /* a broken context says so */
        actor_must(actor, "cuCtxSynchronize", cuCtxSynchronize());
    if (error && error != ENOMEM)
        actor_wrong(actor, "gpushim_attach: %s", strerror(error));
    block->ptr = address;
    return error ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult attach_exported(struct actor *actor, struct actor_block *block)
{
    const CUmemAllocationProp prop = properties(actor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    const size_t bytes = pieces_of(block) * PIECE;
    CUmemGenericAllocationHandle made;
    CUresult result = cuMemCreate(&made, bytes, &prop, 0);
    int fd;

    if (result != CUDA_SUCCESS)
        return result;
    actor_must(actor, "export",
               cuMemExportToShareableHandle(&fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            0));
    result = attach(actor, block, GPUSHIM_EXPORTED, fd, bytes);
    actor_must(actor, "cuMemRelease", cuMemRelease(made));
    return result;
}

static CUresult attach_memfd(struct actor *actor, struct actor_block *block)
{
    const size_t bytes = (block->words * 4 + 4095) & ~(size_t)4095;
    int fd = memfd_create("chaos", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        actor_wrong(actor, "no memfd: %s", strerror(errno));
    return attach(actor, block, GPUSHIM_MEMFD, fd, bytes);
}

CUresult actor_make(struct actor *actor, struct actor_block *block)
{
    if (block->kind != BY_MAP && !function("gpushim_attach"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return block->kind == BY_MAP        ? map(actor, block)
           : block->kind == BY_EXPORTED ? attach_exported(actor, block)
                                        : attach_memfd(actor, block);
}

/* No call waits for those who have it open, nor for the GPU, but that the program may not unmap
 * what that is at. */
void actor_unmake(struct actor *actor, const struct actor_block *block)
{
    __typeof__(&gpushim_detach) call = (__typeof__(call))function("gpushim_detach");
    size_t bytes = pieces_of(block) * PIECE;
    int error;

    if (block->kind == BY_MAP) {
        actor_must(actor, "cuStreamSynchronize", cuStreamSynchronize(actor->gpu.stream));
        actor_must(actor, "cuMemUnmap", cuMemUnmap(block->ptr, bytes));
        actor_must(actor, "cuMemAddressFree", cuMemAddressFree(block->ptr, bytes));
        return;
    }
    error = call(block->ptr, 0);
    if (error && error != EBUSY)
        actor_wrong(actor, "gpushim_detach: %s", strerror(error));
}
