/*
 * A library that watches a program's device memory as UCX and libfabric do for their caches: it
 * finds the driver's functions behind itself, redirects them to its own, and calls the originals.
 * Linked against libcuda, as such libraries are.
 */
#include "../../../shim/cuda_exact.h"
#include "patcher.h"
#include "tests/system.h"

#include <elf.h>
#include <link.h>
#include <stdatomic.h>

#define EXPORT   __attribute__((visibility("default")))
#define JUMP_MAX 13

struct target {
    const char *name;
    void *hook;
    void *original; /* what to call */
    unsigned char *at;
    unsigned char bytes[JUMP_MAX], jump[JUMP_MAX];
    size_t length;
};

static CUresult on_alloc(CUdeviceptr *dptr, size_t bytesize);
static CUresult on_free(CUdeviceptr dptr);
static CUresult on_alloc_async(CUdeviceptr *dptr, size_t bytesize, CUstream hStream);
static CUresult on_free_async(CUdeviceptr dptr, CUstream hStream);

enum { ALLOC, FREE, ALLOC_ASYNC, FREE_ASYNC, TARGETS };
static struct target targets[TARGETS] = {
    [ALLOC] = {.name = "cuMemAlloc_v2", .hook = (void *)on_alloc},
    [FREE] = {.name = "cuMemFree_v2", .hook = (void *)on_free},
    [ALLOC_ASYNC] = {.name = "cuMemAllocAsync", .hook = (void *)on_alloc_async},
    [FREE_ASYNC] = {.name = "cuMemFreeAsync", .hook = (void *)on_free_async},
};
static bool restores;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects what was seen */
static struct patcher_seen seen;

/* ---- The functions in between ---- */

static void write_code(unsigned char *at, const unsigned char *bytes, size_t length)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)at & ~(page - 1);
    size_t size = ((uintptr_t)at + length - from + page - 1) & ~(page - 1);

    mprotect((void *)from, size, PROT_READ | PROT_WRITE | PROT_EXEC);
    memcpy(at, bytes, length);
    mprotect((void *)from, size, PROT_READ | PROT_EXEC);
}

static void before(const struct target *target)
{
    if (restores)
        write_code(target->at, target->bytes, target->length);
}

static CUresult after(const struct target *target, CUresult result, int *count)
{
    if (restores)
        write_code(target->at, target->jump, target->length);
    pthread_mutex_lock(&lock);
    ++*count;
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult on_alloc(CUdeviceptr *dptr, size_t bytesize)
{
    struct target *target = &targets[ALLOC];

    before(target);
    return after(target, ((__typeof__(&cuMemAlloc_v2))target->original)(dptr, bytesize),
                 &seen.allocs);
}

static CUresult on_alloc_async(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    struct target *target = &targets[ALLOC_ASYNC];

    before(target);
    return after(target, ((__typeof__(&cuMemAllocAsync))target->original)(dptr, bytesize, hStream),
                 &seen.async_allocs);
}

/* A cache that is told of a free asks how far the block goes. */
static void look(CUdeviceptr dptr)
{
    CUdeviceptr base = 0;
    size_t size = 0;

    if (cuMemGetAddressRange_v2(&base, &size, dptr) != CUDA_SUCCESS)
        size = 0;
    pthread_mutex_lock(&lock);
    seen.address = base;
    seen.size = size;
    pthread_mutex_unlock(&lock);
}

static CUresult on_free(CUdeviceptr dptr)
{
    struct target *target = &targets[FREE];

    look(dptr);
    before(target);
    return after(target, ((__typeof__(&cuMemFree_v2))target->original)(dptr), &seen.frees);
}

static CUresult on_free_async(CUdeviceptr dptr, CUstream hStream)
{
    struct target *target = &targets[FREE_ASYNC];

    look(dptr);
    before(target);
    return after(target, ((__typeof__(&cuMemFreeAsync))target->original)(dptr, hStream),
                 &seen.async_frees);
}

EXPORT struct patcher_seen patcher_seen(void)
{
    struct patcher_seen copy;

    pthread_mutex_lock(&lock);
    copy = seen;
    pthread_mutex_unlock(&lock);
    return copy;
}

/* ---- Jumps over the first bytes ---- */

/* The length of an instruction that may be run elsewhere, as far as such libraries know one; 0 for
 * all others. */
static size_t movable(const unsigned char *at)
{
    size_t rex = at[0] >= 0x40 && at[0] <= 0x4f ? 1 : 0;
    unsigned char opcode = at[rex];

    if (opcode >= 0x50 && opcode <= 0x57 && (!rex || at[0] == 0x41)) /* push */
        return rex + 1;
    if (!rex && opcode >= 0xb8 && opcode <= 0xbf) /* mov $imm32, %reg */
        return 5;
    if (at[0] == 0x48 && at[1] == 0x81 && at[2] == 0xec) /* sub $imm32, %rsp */
        return 7;
    if (at[0] == 0x48 && at[1] == 0x89 && at[2] == 0xe5) /* mov %rsp, %rbp */
        return 3;
    return 0;
}

/* The instructions that a jump of `length` covers, and a jump to what follows them. */
static void *move_start(const unsigned char *at, size_t length)
{
    static const unsigned char jump[] = {0xff, 0x25, 0, 0, 0, 0}; /* to the address after it */
    size_t whole = 0;
    const unsigned char *next;
    unsigned char *code;

    while (whole < length) {
        size_t one = movable(at + whole);

        if (!one)
            return NULL;
        whole += one;
    }
    code = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED)
        return NULL;
    next = at + whole;
    memcpy(code, at, whole);
    memcpy(code + whole, jump, sizeof jump);
    memcpy(code + whole + sizeof jump, &next, sizeof next);
    return mprotect(code, 64, PROT_READ | PROT_EXEC) == 0 ? code : NULL;
}

static const char *redirect(struct target *target, enum patcher_way way)
{
    unsigned char near[5] = {0xe9}, far[JUMP_MAX] = {0x49, 0xbb, [10] = 0x41, 0xff, 0xe3};
    ptrdiff_t distance = (char *)target->hook - ((char *)target->at + sizeof near);
    int32_t short_distance = (int32_t)distance;

    memcpy(near + 1, &short_distance, sizeof short_distance);
    memcpy(far + 2, &target->hook, sizeof target->hook);
    target->length = way == PATCHER_NEAR ? sizeof near : sizeof far;
    if (way == PATCHER_NEAR && distance != short_distance)
        return "the function is too far away";
    memcpy(target->jump, way == PATCHER_NEAR ? near : far, target->length);
    memcpy(target->bytes, target->at, target->length);
    target->original = target->at;
    if (way != PATCHER_RESTORE)
        target->original = move_start(target->at, target->length);
    if (!target->original)
        return "its first instructions cannot be moved";
    write_code(target->at, target->jump, target->length);
    return NULL;
}

/* ---- Slots of loaded objects ---- */

struct object {
    const ElfW(Sym) * symbols;
    const char *strings;
    uintptr_t base;
};

static void redirect_slots(const struct object *object, const ElfW(Rela) * rows, size_t bytes)
{
    for (size_t i = 0; rows && i < bytes / sizeof *rows; i++) {
        unsigned type = (unsigned)ELF64_R_TYPE(rows[i].r_info);
        const char *name = object->strings + object->symbols[ELF64_R_SYM(rows[i].r_info)].st_name;

        if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT)
            continue;
        for (int k = 0; k < TARGETS; k++)
            if (strcmp(name, targets[k].name) == 0) {
                void **slot = (void **)(object->base + rows[i].r_offset);
                uintptr_t page = (uintptr_t)slot & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);

                mprotect((void *)page, 2 * (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE);
                *slot = targets[k].hook;
            }
    }
}

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
    struct object object = {.base = info->dlpi_addr};
    const ElfW(Rela) *rela = NULL, *plt = NULL;
    const ElfW(Dyn) *dynamic = NULL;
    size_t rela_bytes = 0, plt_bytes = 0;

    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    if (!dynamic || (*info->dlpi_name && strstr(info->dlpi_name, "vdso")))
        return 0;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        const void *pointer = (const void *)dynamic->d_un.d_ptr;

        if (dynamic->d_tag == DT_SYMTAB)
            object.symbols = pointer;
        else if (dynamic->d_tag == DT_STRTAB)
            object.strings = pointer;
        else if (dynamic->d_tag == DT_RELA)
            rela = pointer;
        else if (dynamic->d_tag == DT_RELASZ)
            rela_bytes = dynamic->d_un.d_val;
        else if (dynamic->d_tag == DT_JMPREL)
            plt = pointer;
        else if (dynamic->d_tag == DT_PLTRELSZ)
            plt_bytes = dynamic->d_un.d_val;
    }
    if ((uintptr_t)object.symbols < 4096 || (uintptr_t)object.strings < object.base)
        return 0; /* not adjusted: the kernel's */
    redirect_slots(&object, rela, rela_bytes);
    redirect_slots(&object, plt, plt_bytes);
    return 0;
}

EXPORT const char *patcher_install(enum patcher_way way)
{
    restores = way == PATCHER_RESTORE;
    for (int i = 0; i < TARGETS; i++) {
        const char *fault = NULL;

        targets[i].at = dlsym(RTLD_NEXT, targets[i].name);
        if (!targets[i].at)
            targets[i].at = dlsym(RTLD_DEFAULT, targets[i].name);
        if (!targets[i].at)
            return "a function was not found";
        targets[i].original = targets[i].at;
        if (way != PATCHER_RELOC)
            fault = redirect(&targets[i], way);
        if (fault)
            return fault;
    }
    if (way == PATCHER_RELOC)
        dl_iterate_phdr(visit, NULL);
    return NULL;
}
