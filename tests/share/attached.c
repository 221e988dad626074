/*
 * Memory of the program's own that is attached (gpushim_attach) when that does not go smoothly.
 *
 *   attached again     the same address is attached while its end is under way
 *   attached at once   by two threads
 *   attached exits     a deleter ends its thread
 *   attached pages     a memfd of larger pages than addresses are taken for is refused
 *
 * The library is preloaded.
 */
#include "importer.h"
#include "shim/gpushim.h"
#include "softcuda.h"
#include "tests/system.h"

#define SIZE    ((size_t)4 << 20)
#define LONG    UINT64_C(60000000000) /* what has to come is waited for for so long */
#define SLOW_US 300000                /* each call of the driver that a check is about */

static __typeof__(&gpushim_attach) attach;
static __typeof__(&gpushim_detach) detach;
static CUcontext context;
static void *memory;
static unsigned deleted; /* atomic */

static void count_deleted(void *arg)
{
    __atomic_add_fetch(&deleted, 1, __ATOMIC_SEQ_CST);
}

static unsigned deleted_now(void)
{
    return __atomic_load_n(&deleted, __ATOMIC_SEQ_CST);
}

static struct gpushim_external external_new(void)
{
    return (struct gpushim_external){.size = sizeof(struct gpushim_external),
                                     .kind = GPUSHIM_ADDRESS,
                                     .access = GPUSHIM_MUTABLE,
                                     .address = (uintptr_t)memory,
                                     .bytes = SIZE,
                                     .deleter = count_deleted};
}

static bool is_known(void)
{
    CUmemorytype type;

    return cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)memory) ==
           CUDA_SUCCESS;
}

static void *attach_it(void *external)
{
    uint64_t address;

    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    return (void *)(uintptr_t)attach(external, &address);
}

static bool attaches(struct gpushim_external *external)
{
    return attach_it(external) == NULL;
}

/* The driver is slow to forget it, and it is attached anew meanwhile. */
static void check_again(void)
{
    struct gpushim_external external = external_new();
    uint64_t address;
    int error;

    expect("it is not attached", attaches(&external));
    softcuda_delay("cuMemHostUnregister", SLOW_US);
    expect("it is over already", detach(external.address, 0) == EBUSY);
    expect("it does not end", AWAIT(softcuda_calls("cuMemHostUnregister") == 1));
    error = attach(&external, &address);
    expect("its deleter is not called", AWAIT(deleted_now() == 1));
    expect("it is refused for another reason", error == 0 || error == EINVAL);
    expect("it is not attached when it has ended", error == 0 || attaches(&external));
    expect("what is attached is not known to the driver", is_known());
    expect("it does not end", detach(external.address, LONG) == 0);
    expect("it is known to the driver still", !is_known());
}

/* The driver is slow to say where one thread's is, and another attaches it too. */
static void check_at_once(void)
{
    struct gpushim_external external = external_new();
    uint64_t address;
    pthread_t thread;
    void *other;
    int error;

    softcuda_delay("cuMemHostGetDevicePointer", SLOW_US);
    expect("pthread_create", pthread_create(&thread, NULL, attach_it, &external) == 0);
    expect("the driver is not asked", AWAIT(softcuda_calls("cuMemHostGetDevicePointer") == 1));
    error = attach(&external, &address);
    pthread_join(thread, &other);
    expect("not one of them has it", (error == 0) + ((uintptr_t)other == 0) == 1);
    expect("what is attached is not known to the driver", is_known());
    expect("it does not end", detach(external.address, LONG) == 0);
}

static void end_thread(void *arg)
{
    count_deleted(arg);
    pthread_exit(NULL);
}

/* Each of several: the next ones end as well, and so does the process. */
static void check_exits(void)
{
    struct gpushim_external external = external_new();

    for (unsigned i = 1; i <= 4; i++) {
        external.deleter = i % 3 ? end_thread : count_deleted;
        expect("it is not attached", attaches(&external));
        expect("it does not end", detach(external.address, LONG) == 0);
        expect("its deleter was not called once", deleted_now() == i);
    }
    expect("it is not attached", attaches(&external)); /* and ends with the process */
}

#define MFD_1GB (30u << 26)

static void check_pages(void)
{
    struct gpushim_external external = external_new();
    uint64_t address;

    external.kind = GPUSHIM_MEMFD;
    external.address = 0;
    external.fd =
        memfd_create("pages", MFD_CLOEXEC | MFD_ALLOW_SEALING | 4 /* MFD_HUGETLB */ | MFD_1GB);
    if (external.fd < 0 || ftruncate(external.fd, (off_t)1 << 30) != 0)
        skip("this kernel has no pages of 1 GiB");
    expect("it is attached", attach(&external, &address) == EINVAL);
    expect("why is not said", times_logged("are larger than 2 MiB") == 1);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";

    surroundings_new();
    start_driver();
    attach = (__typeof__(attach))dlsym(RTLD_DEFAULT, "gpushim_attach");
    detach = (__typeof__(detach))dlsym(RTLD_DEFAULT, "gpushim_detach");
    expect("the library has no external memory", attach && detach);
    must("cuCtxGetCurrent", cuCtxGetCurrent(&context));
    memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (strcmp(how, "again") == 0)
        check_again();
    else if (strcmp(how, "at once") == 0)
        check_at_once();
    else if (strcmp(how, "pages") == 0)
        check_pages();
    else
        check_exits();
}
