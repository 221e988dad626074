/*
 * A program with a registration cache of its own, made as communication libraries make theirs: a
 * hook on the free finds cached regions by address and queues their deregistration for the next
 * operation, after the real free; each use checks the region's buffer id. It knows nothing of
 * libgpushim.
 *
 *   own_cache ROUNDS [patched]
 *
 * Its hook is a function that its free calls; or, patched, a jump written over the first bytes of
 * what the dynamic linker gives for cuMemFree_v2, as UCX writes it (exit status 77: not on this
 * machine).
 *
 * Without the library the deregistration of a region in the cache comes after its memory went,
 * which the stand-in counts as wrong. Under the library the memory waits for it. Either way no
 * message may carry another block's bytes.
 */
#include <cuda.h>
#include <infiniband/verbs.h>

#include "verbs_stand_in.h"
#include "tests/system.h"

#define BLOCKS  6
#define REGIONS 64
#define SIZE    ((size_t)4 << 20)

struct region {
    struct ibv_mr *mr; /* NULL: this place is free */
    CUdeviceptr base;
    unsigned long long id;
    bool invalid; /* its memory was freed: to be deregistered */
};

static struct region region[REGIONS];
static struct ibv_pd *pd;
static unsigned long registrations, hits;

static void must(int result, const char *what)
{
    if (result) {
        fprintf(stderr, "own_cache: %s gave %d\n", what, result);
        exit(1);
    }
}
#define MUST(call) must((int)(call), #call)

static unsigned long long buffer_id(CUdeviceptr address)
{
    unsigned long long id;

    MUST(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address));
    return id;
}

/* The queue of what was freed is worked off when something is registered. */
static void work_off(void)
{
    for (int i = 0; i < REGIONS; i++)
        if (region[i].mr && region[i].invalid) {
            MUST(ibv_dereg_mr(region[i].mr));
            region[i].mr = NULL;
        }
}

/* What its hook on cuMemFree does before the free. */
static void note_free(CUdeviceptr address)
{
    for (int i = 0; i < REGIONS; i++)
        if (region[i].mr && region[i].base == address)
            region[i].invalid = true;
}

/* movabs $hook, %r11; jmp *%r11 */
#define JUMP 13
static uint8_t *patched;
static uint8_t original[JUMP], jump[JUMP] = {0x49, 0xbb, [10] = 0x41, 0xff, 0xe3};
static unsigned long jumps;

static CUresult CUDAAPI patched_free(CUdeviceptr address)
{
    CUresult result;

    jumps++;
    note_free(address);
    memcpy(patched, original, JUMP); /* nobody else frees: this program has one thread */
    __builtin___clear_cache((char *)patched, (char *)patched + JUMP);
    result = cuMemFree(address);
    memcpy(patched, jump, JUMP);
    __builtin___clear_cache((char *)patched, (char *)patched + JUMP);
    return result;
}

static void patch(void)
{
#ifdef __x86_64__
    CUresult(CUDAAPI * hook)(CUdeviceptr) = patched_free;
    uintptr_t page;

    patched = dlsym(RTLD_DEFAULT, "cuMemFree_v2");
    page = (uintptr_t)patched & ~(uintptr_t)4095;
    memcpy(original, patched, JUMP);
    memcpy(jump + 2, &hook, sizeof hook);
    must(mprotect((void *)page, 2 * 4096, PROT_READ | PROT_WRITE | PROT_EXEC), "mprotect");
    memcpy(patched, jump, JUMP);
#else
    (void)patched_free;
    exit(77);
#endif
}

static void hooked_free(CUdeviceptr address)
{
    if (!patched)
        note_free(address);
    MUST(cuMemFree(address));
}

static struct ibv_mr *find(CUdeviceptr address)
{
    int room = -1;

    for (int i = 0; i < REGIONS; i++) {
        struct region *r = &region[i];

        if (!r->mr)
            room = i;
        else if (!r->invalid && r->base == address) {
            if (r->id == buffer_id(address)) {
                hits++;
                return r->mr;
            }
            r->invalid = true; /* freed behind its back */
        }
    }
    work_off();
    if (room < 0)
        must(1, "a free place");
    region[room] =
        (struct region){.mr = ibv_reg_mr(pd, (void *)address, SIZE,
                                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ),
                        .base = address,
                        .id = buffer_id(address)};
    must(!region[room].mr, "ibv_reg_mr");
    registrations++;
    return region[room].mr;
}

/* The bytes that a card would read through the region. */
static uint32_t first_word(const struct ibv_mr *mr, CUdeviceptr address)
{
    uint32_t word;

    must((CUdeviceptr)mr->addr != address, "the region's address");
    MUST(cuMemcpyDtoH(&word, (CUdeviceptr)mr->addr, sizeof word));
    return word;
}

int main(int argc, char **argv)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *card = ibv_open_device(list[0]);
    unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 200, wrong_bytes = 0, seed = 1;
    CUdeviceptr block[BLOCKS] = {0};
    uint32_t stamp[BLOCKS] = {0};
    struct stand_in_counts counts;
    CUcontext context;

    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    pd = ibv_alloc_pd(card);
    if (argc > 2 && strcmp(argv[2], "patched") == 0)
        patch();
    for (unsigned i = 0; i < rounds; i++) {
        int at = rand_r(&seed) % BLOCKS;

        if (!block[at]) {
            MUST(cuMemAlloc(&block[at], SIZE));
            stamp[at] = i + 1;
            MUST(cuMemsetD32(block[at], stamp[at], SIZE / 4));
            MUST(cuCtxSynchronize());
        }
        wrong_bytes += first_word(find(block[at]), block[at]) != stamp[at];
        if (rand_r(&seed) % 3 == 0) {
            hooked_free(block[at]);
            block[at] = 0;
        }
    }
    for (int i = 0; i < REGIONS; i++)
        region[i].invalid = true;
    work_off();
    for (int i = 0; i < BLOCKS; i++)
        if (block[i])
            MUST(cuMemFree(block[i]));
    stand_in_counts(&counts);
    printf("%lu registrations, %lu hits of its own cache, %u wrong bytes, %lu undone after their "
           "memory went\n",
           registrations, hits, wrong_bytes, counts.wrong);
    MUST(ibv_dealloc_pd(pd));
    MUST(ibv_close_device(card));
    if (wrong_bytes || counts.live || !hits || (patched && !jumps))
        return 1;
    return counts.wrong ? 3 : 0;
}
