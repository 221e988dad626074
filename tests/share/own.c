/*
 * Memory that a program makes and maps by itself (cuMemCreate, cuMemMap), shared by CUDA IPC.
 *
 *   own pieces N     one handle of N pieces, in processes that may have 256 descriptors: the importer
 *                    has one range, both see what the other writes, and nothing is left afterwards
 *   own lifetime     the program unmaps, releases and maps anew while others have it open: at once,
 *                    and they keep what they have; a handle of what has gone is refused
 *   own strips       what one handle is of: neither what has no access, nor another reservation
 *   own idle         what an importer keeps for its next open is given back when the memory goes
 *   own full         the same where the GPU is full: the program gets its memory again at once
 *   own ends         the exporter is killed, and the importer is
 *   own churn        a thread unmaps and maps anew at random, while others open: what one gets is what
 *                    was mapped when its handle was given out, or nothing
 *   own broker B     with a broker (the program B) it is its process's alone all the same
 *   own off          debug.user_vmm = off: as natively
 *   own alone        share.isolate = alone: a handle is of one piece
 *   own importer       opens, reads, writes and closes as it is told
 *
 * The library is preloaded. What is mapped, referenced and exported is asked of the software
 * driver.
 */
#include "mapped.h"
#include "importer.h"
#include "tests/system.h"
#include "tests/unit/share/side.h"

#define PIECES_MAX 2000
#define LIMIT      256
#define OWN        24 /* descriptors of a process for itself: its streams, socket, directory, ... */

/* ---- What is held ---------------------------------------------------------------------------- */

static bool is_same(const CUipcMemHandle *a, const CUipcMemHandle *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static bool no_more(struct held before)
{
    struct held now = held_here();

    return now.handles <= before.handles && now.mappings <= before.mappings &&
           now.reservations <= before.reservations && now.exported <= before.exported &&
           now.descriptors <= before.descriptors;
}

/* ---- The importer ---------------------------------------------------------------------------- */

/* The handle of a piece: its place, with all of the strip around it. */
static uint64_t open_piece_there(const struct party *party, CUipcMemHandle handle, size_t size,
                                 unsigned piece)
{
    struct opened answer = try_open_there(party, handle);

    must("cuIpcOpenMemHandle there", answer.result);
    if (answer.base + piece * PIECE != answer.address || answer.size != size)
        fail("what it opened has another range, of MiB", (int)(answer.size >> 20));
    return answer.address;
}

static uint64_t open_there(const struct party *party, CUipcMemHandle handle, size_t size)
{
    return open_piece_there(party, handle, size, 0);
}

static void write_there(const struct party *party, uint64_t address, uint32_t word)
{
    must("cuMemsetD32 there", try_write_there(party, address, word));
}

static bool no_more_there(const struct party *party, struct held before)
{
    struct held now = held_there(party);

    return now.handles <= before.handles && now.mappings <= before.mappings &&
           now.reservations <= before.reservations && now.exported <= before.exported;
}

/* ---- What is shown --------------------------------------------------------------------------- */

static void check_pieces(unsigned pieces)
{
    struct party other = party_start("importer", NULL);
    struct held here = held_here(), there = held_there(&other), open_held;
    CUdeviceptr base = map_all(pieces), start = 0;
    CUipcMemHandle handle = handle_of(base + 12345),
                   middle = handle_of(base + pieces / 2 * PIECE + 12345);
    uint64_t address, again, piece;
    size_t size = 0;

    must("cuMemGetAddressRange", cuMemGetAddressRange(&start, &size, base + 5));
    expect("the exporter's address range is not the driver's", start == base && size == PIECE);
    address = open_there(&other, handle, pieces * PIECE);
    for (unsigned i = 0; i < pieces; i++)
        if (read_there(&other, address + i * PIECE) != i + 1)
            fail("another's memory lies in piece", (int)i);
    write_there(&other, address + (pieces - 1) * PIECE, 4711);
    expect("what the importer wrote", word_at(base + (pieces - 1) * PIECE) == 4711);
    again = open_there(&other, handle, pieces * PIECE);
    expect("opened again it lies elsewhere", again == address);
    /* A program counts from where the piece begins, as cuMemGetAddressRange tells it. */
    piece = open_piece_there(&other, middle, pieces * PIECE, pieces / 2);
    expect("a piece of it lies elsewhere", piece == address + pieces / 2 * PIECE);
    if (pieces > 2)
        expect("the piece behind it", read_there(&other, piece + PIECE) == pieces / 2 + 2);
    open_held = held_there(&other);
    expect("handles of the importer's stay", open_held.handles <= there.handles);
    expect("descriptors of the importer's stay", open_held.descriptors <= OWN);
    expect("descriptors of the exporter's stay", held_here().descriptors <= OWN);
    close_there(&other, address);
    expect("closed once it is gone", read_there(&other, address) == (pieces == 1 ? 4711 : 1));
    close_there(&other, piece);
    expect("with a piece all is gone", read_there(&other, address) == (pieces == 1 ? 4711 : 1));
    if (pieces > 1)
        expect("a piece was closed that is not open",
               try_close_there(&other, piece) == CUDA_ERROR_INVALID_VALUE);
    close_there(&other, address);
    expect("the importer keeps something", AWAIT(no_more_there(&other, there)));
    end_all(base, pieces);
    here.descriptors = OWN; /* with its socket and thread */
    expect("the exporter keeps something", AWAIT(no_more(here)));
    if (party_end(&other) != 0)
        fail("the importer failed", 0);
}

static void check_lifetime(void)
{
    struct party first = party_start("importer", NULL), late = party_start("importer", NULL);
    CUdeviceptr base = map_all(4);
    CUipcMemHandle handle = handle_of(base), anew;
    uint64_t address = open_there(&first, handle, 4 * PIECE), other;
    struct held before = held_here();

    anew = handle_of(base + PIECE - 1);
    expect("the same piece has another handle", is_same(&handle, &anew));
    if (cuMemUnmap(base + PIECE, PIECE / 2) == CUDA_SUCCESS)
        fail("half a mapping was unmapped", 0);
    anew = handle_of(base);
    expect("a call that was refused changed the handle", is_same(&handle, &anew));
    unmap(base, 1, 1);
    expect("an unmapped handle is still had",
           held_here().handles <= before.handles && held_here().mappings + 1 == before.mappings);
    expect("what is open went with it", read_there(&first, address + PIECE) == 2);
    expect("a stale handle was opened",
           try_open_there(&late, handle).result == CUDA_ERROR_NOT_PERMITTED);
    map_stamped(base, 1, 77);
    expect("remapped memory shows in an old open", read_there(&first, address + PIECE) == 2);
    expect("a stale handle was opened where something is mapped again",
           try_open_there(&late, handle).result == CUDA_ERROR_NOT_PERMITTED);
    anew = handle_of(base);
    expect("another strip has the same handle", !is_same(&handle, &anew));
    other = open_there(&late, anew, 4 * PIECE);
    expect("the new piece", read_there(&late, other + PIECE) == 77);
    expect("an old piece", read_there(&late, other + 2 * PIECE) == 3);
    end_all(base, 4);
    expect("all of it went while it is open",
           read_there(&first, address) == 1 && read_there(&late, other + 3 * PIECE) == 4);
    close_there(&first, address);
    close_there(&late, other);
    expect("an importer failed", party_end(&first) == 0 && party_end(&late) == 0);
}

static void check_strips(void)
{
    struct party other = party_start("importer", NULL), late = party_start("importer", NULL);
    CUdeviceptr base = reserve(6), beside;
    CUipcMemHandle handle, whole;
    uint64_t address;

    for (unsigned i = 0; i < 5; i++)
        map_stamped(base, i, i + 1);
    beside = base + 6 * PIECE;
    must("cuMemAddressReserve", cuMemAddressReserve(&beside, PIECE, 0, beside, 0));
    map_stamped(beside, 0, 99);
    whole = handle_of(base);
    address = open_there(&other, whole, 5 * PIECE);
    /* One without access is in no strip, and has no handle; the handle before is stale. */
    access_set(base + 2 * PIECE, PIECE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    expect("a handle of what nobody may reach",
           cuIpcGetMemHandle(&handle, base + 2 * PIECE) == CUDA_ERROR_INVALID_VALUE);
    expect("it was not said why", times_logged("no device has access to it") == 1);
    close_there(&other, address);
    expect("a strip that lost its middle was opened",
           try_open_there(&late, whole).result == CUDA_ERROR_NOT_PERMITTED);
    address = open_piece_there(&other, handle_of(base + PIECE), 2 * PIECE, 1);
    expect("the strip before", read_there(&other, address) == 2);
    close_there(&other, address);
    address = open_piece_there(&other, handle_of(base + 4 * PIECE), 2 * PIECE, 1);
    expect("the strip behind", read_there(&other, address - PIECE) == 4);
    close_there(&other, address);
    /* With one more piece it is a larger one, up to the end of the reservation; the smaller opens
     * still. */
    handle = handle_of(base + 4 * PIECE);
    map_stamped(base, 5, 6);
    address = open_piece_there(&other, handle_of(base + 4 * PIECE), 3 * PIECE, 1);
    expect("the larger strip", read_there(&other, address + PIECE) == 6);
    close_there(&other, address);
    address = open_piece_there(&other, handle, 2 * PIECE, 1);
    close_there(&other, address);
    /* What may be read only is shared so. */
    access_set(base, 2 * PIECE, CU_MEM_ACCESS_FLAGS_PROT_READ);
    address = open_there(&other, handle_of(base), 2 * PIECE);
    expect("what may be read only was written",
           try_write_there(&other, address, 5) != CUDA_SUCCESS);
    close_there(&other, address);
    must("cuMemUnmap", cuMemUnmap(beside, PIECE));
    must("cuMemAddressFree", cuMemAddressFree(beside, PIECE));
    end_all(base, 6);
    expect("an importer failed", party_end(&other) == 0 && party_end(&late) == 0);
}

static void check_idle(void)
{
    struct party other = party_start("importer", NULL);
    struct held there = held_there(&other);
    CUdeviceptr base = map_all(3);
    uint64_t address = open_there(&other, handle_of(base), 3 * PIECE);

    close_there(&other, address);
    expect("nothing was kept for the next open", held_there(&other).mappings >= there.mappings + 3);
    end_all(base, 3);
    expect("the importer keeps memory that has gone", AWAIT(no_more_there(&other, there)));
    expect("the importer failed", party_end(&other) == 0);
}

/* In a process of its own: shares, and waits to be killed. */
static int exporter(bool a_block_too)
{
    CUipcMemHandle handle;

    start_driver();
    handle = handle_of(map_all(40));
    say(PARTY_SOCKET, &handle, sizeof handle);
    if (a_block_too) {
        handle = handle_of(block_new());
        say(PARTY_SOCKET, &handle, sizeof handle);
    }
    hear_or_end(PARTY_SOCKET, &handle, 1);
    return 0;
}

/* The GPU has 128 MiB. */
static void check_full(void)
{
    struct party other = party_start("importer", NULL);

    for (int i = 0; i < 20; i++) {
        CUdeviceptr base = map_all(50);

        close_there(&other, open_there(&other, handle_of(base), 50 * PIECE));
        end_all(base, 50);
    }
    expect("the importer failed", party_end(&other) == 0);
}

#define CHURNED 12
#define OPENS   300

static struct {
    pthread_mutex_t lock;
    CUcontext context;
    CUdeviceptr base;
    uint32_t stamps[CHURNED];
    uint32_t last;
    bool ends; /* atomic */
} churn = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *churn_pieces(void *unused)
{
    unsigned seed = 7;

    must("cuCtxSetCurrent", cuCtxSetCurrent(churn.context));
    while (!__atomic_load_n(&churn.ends, __ATOMIC_RELAXED)) {
        unsigned piece = (unsigned)rand_r(&seed) % CHURNED;

        pthread_mutex_lock(&churn.lock);
        unmap(churn.base, piece, 1);
        churn.stamps[piece] = ++churn.last;
        map_stamped(churn.base, piece, churn.stamps[piece]);
        pthread_mutex_unlock(&churn.lock);
        usleep((unsigned)rand_r(&seed) % 2000); /* others come in between, or do not */
    }
    return NULL;
}

static void check_churn(void)
{
    struct party other = party_start("importer", NULL);
    struct held here = held_here(), there = held_there(&other);
    unsigned opened = 0, stale = 0;
    pthread_t thread;

    must("cuCtxGetCurrent", cuCtxGetCurrent(&churn.context));
    churn.base = map_all(CHURNED);
    for (unsigned i = 0; i < CHURNED; i++)
        churn.stamps[i] = i + 1;
    churn.last = CHURNED;
    if (pthread_create(&thread, NULL, churn_pieces, NULL) != 0)
        fail("pthread_create", errno);
    for (unsigned i = 0; i < OPENS || (opened == 0 && i < 100 * OPENS); i++) {
        uint32_t stamps[CHURNED];
        CUipcMemHandle handle;
        struct opened answer;

        pthread_mutex_lock(&churn.lock);
        handle = handle_of(churn.base);
        memcpy(stamps, churn.stamps, sizeof stamps);
        pthread_mutex_unlock(&churn.lock);
        answer = try_open_there(&other, handle);
        stale += answer.result == CUDA_ERROR_NOT_PERMITTED;
        if (answer.result != 0 && answer.result != CUDA_ERROR_NOT_PERMITTED)
            fail("cuIpcOpenMemHandle there", (int)answer.result);
        for (unsigned piece = 0; answer.result == 0 && piece < CHURNED; piece++)
            if (read_there(&other, answer.address + piece * PIECE) != stamps[piece])
                fail("what was opened is not what was shared, in piece", (int)piece);
        if (answer.result == 0)
            close_there(&other, answer.address);
        opened += answer.result == 0;
    }
    __atomic_store_n(&churn.ends, true, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    printf("%u opened, %u stale\n", opened, stale);
    expect("nothing could be opened", opened > 0);
    end_all(churn.base, CHURNED);
    here.descriptors = OWN;
    expect("the exporter keeps something", AWAIT(no_more(here)));
    expect("the importer keeps something", AWAIT(no_more_there(&other, there)));
    expect("the importer failed", party_end(&other) == 0);
}

/* A block of cuMemAlloc outlives its process there, what it mapped does not. */
static void check_broker(const char *program)
{
    pid_t broker = broker_start(program);
    struct party killed = party_start("exporter", "block"), other = party_start("importer", NULL);
    CUipcMemHandle own, block;
    uint64_t address;

    hear(killed.socket, &own, sizeof own);
    hear(killed.socket, &block, sizeof block);
    address = open_there(&other, own, 40 * PIECE);
    expect("the broker has not the block alone",
           AWAIT(side_broker_published(surroundings_folder) == 1));
    party_kill(&killed);
    expect("what is open has gone", read_there(&other, address + 39 * PIECE) == 40);
    close_there(&other, address);
    expect("the importer failed", party_end(&other) == 0);
    other = party_start("importer", NULL);
    expect("a block of a killed process", AWAIT(try_open_there(&other, block).result == 0));
    expect("what a killed process mapped was opened", try_open_there(&other, own).result != 0);
    expect("the importer failed", party_end(&other) == 0);
    expect("the broker failed", broker_end(broker));
}

static void check_off(void)
{
    CUdeviceptr base = map_all(2);
    CUipcMemHandle handle;

    expect("it is shared", cuIpcGetMemHandle(&handle, base) == CUDA_ERROR_INVALID_VALUE);
    end_all(base, 2);
}

static void check_alone(void)
{
    struct party other = party_start("importer", NULL);
    CUdeviceptr base = map_all(3);
    uint64_t middle = open_there(&other, handle_of(base + PIECE), PIECE);

    expect("another piece", read_there(&other, middle) == 2);
    close_there(&other, middle);
    unmap(base, 0, 1); /* not of what the handle is of */
    close_there(&other, open_there(&other, handle_of(base + PIECE), PIECE));
    unmap(base, 1, 2);
    must("cuMemAddressFree", cuMemAddressFree(base, 3 * PIECE));
    expect("the importer failed", party_end(&other) == 0);
}

static void check_ends(void)
{
    struct party killed = party_start("exporter", NULL), other = party_start("importer", NULL),
                 late = party_start("importer", NULL);
    struct held here;
    CUipcMemHandle handle;
    CUdeviceptr base;
    uint64_t address;

    hear(killed.socket, &handle, sizeof handle);
    address = open_there(&other, handle, 40 * PIECE);
    party_kill(&killed);
    for (unsigned i = 0; i < 40; i++)
        expect("memory of a killed process", read_there(&other, address + i * PIECE) == i + 1);
    expect("a handle of a killed process was opened", try_open_there(&late, handle).result != 0);
    base = map_all(40);
    here = held_here();
    address = open_there(&other, handle_of(base), 40 * PIECE);
    expect("what is open", read_there(&other, address + 39 * PIECE) == 40);
    party_kill(&other);
    here.descriptors = OWN;
    expect("something is left of a killed importer", AWAIT(no_more(here)));
    address = open_there(&late, handle_of(base), 40 * PIECE);
    expect("what is open after that", read_there(&late, address) == 1);
    end_all(base, 40);
    expect("the late importer failed", party_end(&late) == 0);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    struct rlimit limit;

    if (!strcmp(how, "importer"))
        return importer();
    if (!strcmp(how, "exporter"))
        return exporter(argc > 2);
    surroundings_new();
    setenv("GPUSHIM_SHARE_DIR", surroundings_folder, 1);
    setenv("GPUSHIM_DEBUG_IDLE", !strcmp(how, "idle") || !strcmp(how, "full") ? "60 min" : "0", 1);
    if (!strcmp(how, "strips"))
        setenv("GPUSHIM_LOG", "debug", 1);
    if (!strcmp(how, "off"))
        setenv("GPUSHIM_DEBUG_USER_VMM", "off", 1);
    if (!strcmp(how, "alone"))
        setenv("GPUSHIM_SHARE_ISOLATE", "alone", 1);
    if (!strcmp(how, "broker"))
        setenv("GPUSHIM_SHARE_STRATEGY", "broker", 1);
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < 2 * PIECES_MAX)
        skip(
            "the hard limit of descriptors (ulimit -Hn) leaves the software driver's memory no room");
    limit.rlim_cur = LIMIT;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        fail("setrlimit", errno);
    start_driver();
    if (!strcmp(how, "pieces") && argc == 3)
        check_pieces((unsigned)atoi(argv[2]));
    else if (!strcmp(how, "lifetime"))
        check_lifetime();
    else if (!strcmp(how, "strips"))
        check_strips();
    else if (!strcmp(how, "idle"))
        check_idle();
    else if (!strcmp(how, "ends"))
        check_ends();
    else if (!strcmp(how, "full"))
        check_full();
    else if (!strcmp(how, "churn"))
        check_churn();
    else if (!strcmp(how, "broker") && argc == 3)
        check_broker(argv[2]);
    else if (!strcmp(how, "off"))
        check_off();
    else if (!strcmp(how, "alone"))
        check_alone();
    else
        fail("what is to be shown", argc);
    printf("ok\n");
    return 0;
}
