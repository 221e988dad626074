/*
 * Memory that a program makes and maps by itself, published under a name (gpushim_publish).
 *
 *   named lifetime   found, opened and read by another process until a piece of it is unmapped, mapped anew, or
 *                    out of reach, the name taken back or published anew; who has it open keeps what he has
 *   named pieces     an address in the middle of several, and what is mapped beside it later
 *   named refused    what cannot be shared, and why; what is not mapped
 *   named full       one name more than a process may have: what that says, and that the others stay
 *   named off        debug.user_vmm = off: the library does not follow it
 *   named churn      a thread unmaps, maps anew and publishes: who finds it opens what was published, or nothing
 *   named broker B   with a broker (the program B) the name is its process's alone, and takes one over that is kept
 *   named ends       the process that published it is killed
 *   named others     another user's, who does not name this one: whose it is
 *
 * The library is preloaded.
 */
#include "mapped.h"
#include "importer.h"
#include "shim/gpushim.h"
#include "tests/system.h"

#define NAMES  1024 /* of a process: gpushim.h says so */
#define NOBODY 65534

static __typeof__(&gpushim_publish) publish_it;
static __typeof__(&gpushim_lookup) look_it_up;
static __typeof__(&gpushim_unpublish) unpublish;

static void find_functions(void)
{
    publish_it = (__typeof__(publish_it))dlsym(RTLD_DEFAULT, "gpushim_publish");
    look_it_up = (__typeof__(look_it_up))dlsym(RTLD_DEFAULT, "gpushim_lookup");
    unpublish = (__typeof__(unpublish))dlsym(RTLD_DEFAULT, "gpushim_unpublish");
    expect("the library has no names", publish_it && look_it_up && unpublish);
}

static int publish(const char *name, CUdeviceptr address)
{
    struct gpushim_publication publication = {.size = sizeof publication, .address = address};

    return publish_it(name, &publication);
}

static void must_publish(const char *name, CUdeviceptr address)
{
    int error = publish(name, address);

    if (error != 0)
        fail("gpushim_publish", error);
}

static struct gpushim_named look_up(const char *name)
{
    struct gpushim_named named = {.size = sizeof named};

    expect("this process does not find it", look_it_up(name, &named) == 0);
    return named;
}

static bool is_gone(const char *name)
{
    struct gpushim_named named = {.size = sizeof named};

    return look_it_up(name, &named) == ENOENT;
}

/* ---- The reader ------------------------------------------------------------------------------ */

struct order {
    char
        name[16]; /* looked up, and what is found opened; none: what lies at the address is read, */
    uint64_t address;
    bool closes; /* and closed */
};

struct answer {
    int error;
    CUresult result;
    uint64_t
        address; /* of what was published; its offset from what was opened, and the bytes of that */
    uint64_t offset, bytes;
    uint32_t word, kept;
};

static struct answer obey(const struct order *order)
{
    struct gpushim_named named = {.size = sizeof named};
    struct answer answer = {.address = order->address};
    CUipcMemHandle handle;
    CUdeviceptr opened = 0;

    if (order->name[0]) {
        answer.error = look_it_up(order->name, &named);
        if (answer.error != 0)
            return answer;
        memcpy(&handle, named.handle, sizeof handle);
        answer.result = cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        if (answer.result != CUDA_SUCCESS)
            return answer;
        answer.offset = named.offset;
        answer.bytes = named.bytes;
        answer.kept = named.kept;
        answer.address = opened + named.offset;
    }
    answer.word = word_at(answer.address);
    if (order->closes)
        must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(order->name[0] ? opened : order->address));
    return answer;
}

static int reader(void)
{
    struct order order;
    struct answer answer;

    start_driver();
    find_functions();
    while (hear_or_end(PARTY_SOCKET, &order, sizeof order)) {
        answer = obey(&order);
        say(PARTY_SOCKET, &answer, sizeof answer);
    }
    return 0;
}

static struct answer tell(const struct party *reader, const char *name, uint64_t address,
                          bool closes)
{
    struct order order = {.address = address, .closes = closes};
    struct answer answer;

    strncpy(order.name, name, sizeof order.name - 1);
    say(reader->socket, &order, sizeof order);
    hear(reader->socket, &answer, sizeof answer);
    return answer;
}

/* It finds and opens the name, and reads that word there. */
static struct answer finds(const struct party *reader, const char *name, uint32_t word)
{
    struct answer answer = tell(reader, name, 0, false);

    if (answer.error != 0)
        fail("the reader does not find it", answer.error);
    must("cuIpcOpenMemHandle there", answer.result);
    if (answer.word != word)
        fail("it finds another's memory", (int)answer.word);
    return answer;
}

static bool finds_none(const struct party *reader, const char *name)
{
    return tell(reader, name, 0, false).error == ENOENT;
}

static uint32_t reads(const struct party *reader, uint64_t address)
{
    return tell(reader, "", address, false).word;
}

/* ---- What is shown --------------------------------------------------------------------------- */

static void check_lifetime(const char *more)
{
    struct party other = party_start("reader", NULL);
    CUdeviceptr base = map_all(3);
    struct gpushim_named named;
    CUipcMemHandle handle;
    struct answer first, second;

    must_publish("w", base + 8);
    must("cuMemsetD32", cuMemsetD32(base + 8, 11, 1));
    must("cuCtxSynchronize", cuCtxSynchronize());
    named = look_up("w");
    handle = handle_of(base);
    expect("another handle", memcmp(&handle, named.handle, sizeof handle) == 0);
    expect("what this process has", named.address == base + 8 && named.offset == 8 &&
                                        named.bytes == 3 * PIECE && named.kept == 0 &&
                                        named.pid == (uint64_t)getpid());
    first = finds(&other, "w", 11);
    expect("what the reader is told",
           first.offset == 8 && first.bytes == 3 * PIECE && first.kept == 0);
    expect("half a mapping was unmapped", cuMemUnmap(base, PIECE / 2) != CUDA_SUCCESS);
    expect("a call that was refused ended it", look_up("w").offset == 8);
    unmap(base, 1, 1);
    expect("a piece of it has gone", finds_none(&other, "w") && is_gone("w"));
    expect("what is open went with it",
           reads(&other, first.address) == 11 && reads(&other, first.address - 8 + PIECE) == 2);
    map_stamped(base, 1, 77);
    expect("mapped anew it has the old name", finds_none(&other, "w") && is_gone("w"));
    must_publish("w", base + PIECE);
    second = finds(&other, "w", 77);
    expect("the old one changed", reads(&other, first.address - 8 + PIECE) == 2);
    must_publish("w", base + 2 * PIECE); /* another place of the same */
    second = finds(&other, "w", 3);
    expect("its place", second.offset == 0 && second.bytes == PIECE);
    expect("it cannot be taken back", unpublish("w") == 0);
    expect("taken back", finds_none(&other, "w") && unpublish("w") == ENOENT);
    expect("what was taken back is closed", reads(&other, second.address) == 3);
    must_publish("w", base);
    access_set(base + 2 * PIECE, PIECE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    expect("nobody may reach a piece of it", finds_none(&other, "w") && is_gone("w"));
    must_publish("w", base);
    must_publish("also", base + PIECE);
    end_all(base, 3);
    expect("all of it has gone", finds_none(&other, "w") && is_gone("also"));
    expect("who is killed takes it along", reads(&other, first.address) == 11);
    expect("the reader failed", party_end(&other) == 0);
}

static void check_pieces(const char *more)
{
    struct party other = party_start("reader", NULL);
    CUdeviceptr base = reserve(41);
    struct gpushim_named named;
    struct answer answer;

    for (unsigned i = 0; i < 40; i++)
        map_stamped(base, i, i + 1);
    must("cuMemsetD32", cuMemsetD32(base + 20 * PIECE + 4096, 4711, 1));
    must("cuCtxSynchronize", cuCtxSynchronize());
    must_publish("middle", base + 20 * PIECE + 4096);
    named = look_up("middle");
    expect("its own address", named.address == base + 20 * PIECE + 4096);
    answer = finds(&other, "middle", 4711);
    expect("its place", answer.offset == 4096 && answer.bytes == 20 * PIECE);
    for (unsigned i = 1; i < 20; i++)
        expect("what lies behind it", reads(&other, answer.address - 4096 + i * PIECE) == 21 + i);
    expect("what lies before it", reads(&other, answer.address - 4096 - 20 * PIECE) == 1);
    /* What is mapped beside it ends nothing, and is not of it. */
    map_stamped(base, 40, 41);
    expect("one more piece", look_up("middle").bytes == 20 * PIECE);
    must_publish("middle", base + 20 * PIECE + 4096);
    answer = finds(&other, "middle", 4711);
    expect("the larger one", answer.bytes == 21 * PIECE);
    expect("its last piece", reads(&other, answer.address - 4096 + 20 * PIECE) == 41);
    end_all(base, 41);
    expect("it has gone", finds_none(&other, "middle"));
    expect("the reader failed", party_end(&other) == 0);
}

static void check_refused(const char *more)
{
    CUmemAllocationProp prop = properties();
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base = reserve(2), block;

    map_stamped(base, 0, 1);
    prop.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
    must("cuMemCreate", cuMemCreate(&handle, PIECE, &prop, 0));
    must("cuMemMap", cuMemMap(base + PIECE, PIECE, 0, handle, 0));
    must("cuMemRelease", cuMemRelease(handle));
    access_set(base + PIECE, PIECE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    must("cuMemAlloc", cuMemAlloc(&block, 4096));
    must_publish("w", block);
    expect("what is compressible has a name", publish("w", base + PIECE) == ENOTSUP);
    expect("it was not said why",
           times_logged("gets no name: it was asked to be compressible") == 1);
    access_set(base, PIECE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    expect("what nobody may reach has a name", publish("w", base) == ENOTSUP);
    expect("it was not said", times_logged("gets no name: no device has access to it") == 1);
    expect("what was refused changed the name", look_up("w").address == block);
    must("cuMemFree", cuMemFree(block));
    end_all(base, 2);
    expect("what is not mapped has a name", publish("w", base) == ENODEV);
}

static void check_full(const char *more)
{
    CUdeviceptr block;
    char name[16];

    must("cuMemAlloc", cuMemAlloc(&block, 4096));
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "n%d", i);
        must_publish(name, block);
    }
    expect("there is one name too many", publish("more", block) == ENOSPC && is_gone("more"));
    must_publish(name, block); /* one that is there is none more */
    expect("it cannot be taken back", unpublish("n0") == 0);
    must_publish("more", block);
    expect("there is one name too many again", publish("n0", block) == ENOSPC);
    expect("what is freed has a name", publish("more", block + 4096) == EFAULT);
    must("cuMemFree", cuMemFree(block));
}

static void check_off(const char *more)
{
    CUdeviceptr base = map_all(1);

    expect("it has a name", publish("w", base) == ENODEV);
    end_all(base, 1);
}

/* Another's block that a broker keeps, and one of this process's. */
static void check_broker(const char *program)
{
    pid_t broker = broker_start(program);
    struct party other = party_start("reader", NULL);
    CUdeviceptr block, base;

    must("cuMemAlloc", cuMemAlloc(&block, BLOCK_SIZE));
    must("cuMemsetD32", cuMemsetD32(block, 5, 1));
    must("cuCtxSynchronize", cuCtxSynchronize());
    must_publish("w", block);
    expect("no broker has the block", look_up("w").kept == 1);
    base = map_all(2);
    must_publish("w", base + PIECE);
    expect("a broker was to have it", times_logged("no broker has the name") == 0);
    expect("a broker has it", finds(&other, "w", 2).kept == 0 && look_up("w").kept == 0);
    unmap(base, 1, 1);
    expect("the broker has the old one", finds_none(&other, "w") && is_gone("w"));
    must_publish("w", base);
    expect("the one piece", finds(&other, "w", 1).bytes == PIECE);
    must_publish("w", block);
    expect("the block again", finds(&other, "w", 5).kept == 1);
    unmap(base, 0, 1); /* whose name it is no more */
    expect("the block's went with what had it before", finds(&other, "w", 5).kept == 1);
    must("cuMemAddressFree", cuMemAddressFree(base, 2 * PIECE));
    must("cuMemFree", cuMemFree(block));
    expect("the reader failed", party_end(&other) == 0);
    expect("the broker failed", broker_end(broker));
}

/* In a process of its own: publishes, and waits to be killed. */
static int publisher(void)
{
    char word = 0;

    start_driver();
    find_functions();
    must_publish("killed", map_all(2) + PIECE);
    say(PARTY_SOCKET, &word, 1);
    hear_or_end(PARTY_SOCKET, &word, 1);
    return 0;
}

static void check_ends(const char *more)
{
    struct party killed = party_start("publisher", NULL), other = party_start("reader", NULL);
    struct answer answer;
    char word;

    hear(killed.socket, &word, 1);
    answer = finds(&other, "killed", 2);
    party_kill(&killed);
    expect("it is found after that", finds_none(&other, "killed"));
    expect("what is open has gone", reads(&other, answer.address) == 2);
    expect("the reader failed", party_end(&other) == 0);
}

#define FOUND 200

static struct {
    CUcontext context;
    CUdeviceptr base;
    uint32_t published; /* atomic: the newest stamp that is published, or is about to be */
    uint32_t gone;      /* atomic: the newest that is no more */
    bool ends;          /* atomic */
} churn;

static void *map_anew(void *unused)
{
    must("cuCtxSetCurrent", cuCtxSetCurrent(churn.context));
    for (uint32_t stamp = 1; !__atomic_load_n(&churn.ends, __ATOMIC_SEQ_CST); stamp++) {
        map_stamped(churn.base, 1, stamp);
        __atomic_store_n(&churn.published, stamp, __ATOMIC_SEQ_CST);
        must_publish("w", churn.base + PIECE);
        usleep(stamp * 7919 % 3000);
        unmap(churn.base, 1, 1);
        __atomic_store_n(&churn.gone, stamp, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void check_churn(const char *more)
{
    struct party other = party_start("reader", NULL);
    unsigned found = 0, none = 0, stale = 0;
    pthread_t thread;

    must("cuCtxGetCurrent", cuCtxGetCurrent(&churn.context));
    churn.base = reserve(3);
    map_stamped(churn.base, 0, 1000000);
    map_stamped(churn.base, 2, 2000000);
    if (pthread_create(&thread, NULL, map_anew, NULL) != 0)
        fail("pthread_create", errno);
    while (found < FOUND && found + none + stale < 100 * FOUND) {
        uint32_t gone = __atomic_load_n(&churn.gone, __ATOMIC_SEQ_CST);
        struct answer answer = tell(&other, "w", 0, true);

        if (answer.error != 0 && answer.error != ENOENT)
            fail("gpushim_lookup there", answer.error);
        if (answer.error == 0 && answer.result != CUDA_SUCCESS &&
            answer.result != CUDA_ERROR_NOT_PERMITTED)
            fail("cuIpcOpenMemHandle there", (int)answer.result);
        if (answer.error == 0 && answer.result == CUDA_SUCCESS &&
            (answer.word <= gone ||
             answer.word > __atomic_load_n(&churn.published, __ATOMIC_SEQ_CST)))
            fail("what was found had gone before", (int)answer.word);
        none += answer.error != 0;
        stale += answer.error == 0 && answer.result != CUDA_SUCCESS;
        found += answer.error == 0 && answer.result == CUDA_SUCCESS;
    }
    __atomic_store_n(&churn.ends, true, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    printf("%u found, %u not, %u gone before they were opened\n", found, none, stale);
    expect("nothing was found", found > 0);
    expect("it is found after that", finds_none(&other, "w"));
    unmap(churn.base, 0, 1);
    unmap(churn.base, 2, 1);
    must("cuMemAddressFree", cuMemAddressFree(churn.base, 3 * PIECE));
    expect("the reader failed", party_end(&other) == 0);
}

/* In a child that has not begun with the driver yet. */
static void look_as_nobody(void)
{
    struct gpushim_named named = {.size = sizeof named, .uid = 4711, .kept = 4711};

    setenv("GPUSHIM_SHARE_UIDS", "0", 1);
    start_driver();
    find_functions();
    expect("another user's is found", look_it_up("w", &named) == EACCES);
    expect("it is not said whose it is", named.uid == 0);
    expect("something else is said", named.kept == 4711 && named.bytes == 0);
    expect("another user's is taken back", unpublish("w") == EACCES);
}

/* Root shares in a folder of its own, and names nobody. */
static void check_others(void)
{
    char word = 0;
    int pair[2], status = -1;
    CUdeviceptr base;
    pid_t child;

    if (geteuid() != 0)
        skip("not root: there is no other user");
    if (chmod(surroundings_folder, 0755) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0 || (child = fork_child()) < 0)
        fail("chmod, socketpair, fork", errno);
    if (child == 0) {
        if (!become_user(NOBODY, NOBODY))
            fail("another user", errno);
        hear(pair[1], &word, 1);
        look_as_nobody();
        _exit(0);
    }
    start_driver();
    find_functions();
    base = map_all(1);
    must_publish("w", base);
    say(pair[0], &word, 1);
    expect("the other user failed", waitpid(child, &status, 0) == child && status == 0);
    expect("its own user does not find it", look_up("w").kept == 0);
    end_all(base, 1);
}

static const struct {
    const char *how;
    void (*check)(const char *more);
} checks[] = {{"lifetime", check_lifetime}, {"pieces", check_pieces}, {"refused", check_refused},
              {"full", check_full},         {"off", check_off},       {"broker", check_broker},
              {"ends", check_ends},         {"churn", check_churn}};

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "", *more = argc > 2 ? argv[2] : "";

    if (!strcmp(how, "reader"))
        return reader();
    if (!strcmp(how, "publisher"))
        return publisher();
    surroundings_new();
    setenv("GPUSHIM_SHARE_DIR", surroundings_folder, 1);
    if (!strcmp(how, "off"))
        setenv("GPUSHIM_DEBUG_USER_VMM", "off", 1);
    if (!strcmp(how, "broker"))
        setenv("GPUSHIM_SHARE_STRATEGY", "broker", 1);
    if (!strcmp(how, "others")) {
        check_others();
        printf("ok\n");
        return 0;
    }
    start_driver();
    find_functions();
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        if (strcmp(how, checks[i].how) != 0)
            continue;
        checks[i].check(more);
        printf("ok\n");
        return 0;
    }
    fail("what is to be shown", argc);
}
