/*
 * A program that does to shared GPU memory what a bad day does, for a given time and seed.
 *
 *   chaos.c      options, and the supervisor: starts processes, kills them, counts, judges
 *   process.c    how one process is started: its namespaces, its environment, its preload
 *   actor.c      one unmodified CUDA process: allocates, stamps, shares, opens, verifies, ends
 *   deadly.c     the library's own system calls, in which an actor may be killed
 *   ending.c     how an actor accounts for what it holds at the end
 *   gpu.c        the CUDA calls that all of them need
 *   scribble.c   an exporter and consumers that are killed while their kernels write
 *
 * Every block is filled with one 32-bit stamp that no other block has, before anybody else can see
 * it, and is never written with anything else while it lives. So whoever holds a block, by owning
 * it or by having it open, must find that stamp in every word of it, at any time; another value is
 * memory that was given to two.
 *
 * The supervisor makes no CUDA call. It and the actors share one page of numbers, the world: what
 * an actor does at the moment and since when (a hang is seen there), what it has counted (a killed
 * one cannot report), what it found wrong. IPC handles go through pipes, one for each actor to
 * read, and through files, where they get old.
 */
#ifndef CHAOS_H
#define CHAOS_H

#include <cuda.h>
#include <stdatomic.h>

#include "tests/clock.h"
#include "tests/system.h"

#define CHAOS_SLOTS 64
#define CHAOS_PATH  512
#define CHAOS_FILES 16 /* on the board */

#define MS UINT64_C(1000000) /* in nanoseconds */

#define CHAOS_STEPS(X)                                \
    X(START, "starting CUDA")                         \
    X(ALLOC, "allocating")                            \
    X(STAMP, "stamping")                              \
    X(SHARE, "sharing")                               \
    X(FREE, "freeing")                                \
    X(OPEN, "opening")                                \
    X(RESHARE, "sharing what it opened")              \
    X(VERIFY, "verifying")                            \
    X(WORK, "submitting late work")                   \
    X(CLOSE, "closing")                               \
    X(FORK, "forking")                                \
    X(EXEC, "going to exec")                          \
    X(EXIT, "exiting")                                \
    X(ACCOUNT, "waiting for its memory to come back") \
    X(REST, "resting")
#define CHAOS_STEP_ENUM(name, text) STEP_##name,

enum chaos_step { CHAOS_STEPS(CHAOS_STEP_ENUM) };

enum chaos_phase { PHASE_RUN, PHASE_FINISH, PHASE_LEAVE };

/* The place of one process; who comes after a killed one takes it over. Written by the process in
 * it, but for `lives`. */
struct chaos_slot {
    _Atomic unsigned lives; /* processes that were started in it: part of their seeds */
    _Atomic enum chaos_step step;
    _Atomic uint64_t step_ns; /* when it began; 0: waiting for the others, as it should */
    _Atomic uint64_t checks;  /* blocks read whole and compared */
    _Atomic uint64_t shared, opened, refused;
    _Atomic uint64_t forks, execs;
    _Atomic bool finished; /* everything was given back and accounted for */
    _Atomic bool is_wrong; /* then `wrong` says what */
    uint64_t wrong_ns;     /* and this since when */
    char wrong[400];
};

struct chaos_world {
    _Atomic enum chaos_phase phase;
    _Atomic unsigned next_life; /* the upper half of stamps */
    unsigned slots;
    uint64_t seed, grace_ns;
    int inbox_read[CHAOS_SLOTS], inbox_write[CHAOS_SLOTS]; /* pipes, not blocking */
    char board[CHAOS_PATH];                                /* the folder of files with handles */
    struct chaos_slot slot[CHAOS_SLOTS];
};

/* An exported block, as it goes through pipes and files. */
struct chaos_record {
    CUipcMemHandle ipc_handle;
    uint32_t stamp;
    uint32_t slot, life;     /* of the process that shares it */
    uint32_t owner_slot;     /* that allocated it */
    uint64_t words;          /* 32 bits each */
    uint64_t valid_until_ns; /* before this an open must succeed; 0: nothing is promised */
    uint64_t freed_ns;       /* when its owner freed it; 0: it keeps it until then */
};

struct chaos_options {
    unsigned seconds, processes;
    uint64_t seed;
    bool broker;
    bool without_namespaces;
    unsigned scribble;               /* rounds */
    char shim[CHAOS_PATH];           /* empty: none, to see what the native driver does */
    char broker_program[CHAOS_PATH]; /* empty: the library's own idea of it */
    char program[CHAOS_PATH];
    char dir[CHAOS_PATH]; /* everything of this run */
};

/* What an actor is to be. */
enum chaos_role_flag {
    ACTOR_SURVIVES = 1, /* never killed, execs and exits only at the end */
    ACTOR_LAST = 2,     /* shares one block and ends: clears up what killed ones left */
    ACTOR_EXECED = 4    /* came by exec, out of another life */
};

struct chaos_launch {
    unsigned slot;
    unsigned flags;      /* enum chaos_role_flag */
    unsigned namespaces; /* 0: the supervisor's own; 1: pid, ipc, net, mount; 2: and user */
    char faults[96];     /* SOFTCUDA_FAULTS, or empty */
    char die[48];        /* CHAOS_DIE, or empty */
    const char *idle;    /* GPUSHIM_DEBUG_IDLE, or NULL */
};

/* ---- deadly.c ---- */

enum chaos_deadly {
    DEADLY_SENDMSG,
    DEADLY_RECVMSG,
    DEADLY_ACCEPT,
    DEADLY_CONNECT,
    DEADLY_BIND,
    DEADLY_LISTEN,
    DEADLY_RENAME,
    DEADLY_UNLINK,
    DEADLY_EPOLL,
    DEADLY_SHUTDOWN,
    CHAOS_DEADLY
};

extern const char *const chaos_deadly_names[CHAOS_DEADLY];

/* ---- random numbers, times (chaos.c) ---- */

uint64_t chaos_random(uint64_t *state);
/* From 0 to below - 1. */
unsigned chaos_below(uint64_t *state, unsigned below);
void chaos_sleep_us(unsigned us);

/* ---- process.c ---- */

/* Starts an actor in its namespaces; the process that is to be killed and waited for. Its exit
 * status is the actor's, 128 more than the number where a signal ended that. -1: not possible. */
pid_t chaos_launch(const struct chaos_options *options, const struct chaos_launch *launch,
                   int world_fd);
/* Starts this program in another role with the shim preloaded; argv[0] is the role. */
pid_t chaos_start(const struct chaos_options *options, char *const argv[]);
/* Kills a broker of this run, if there is one; whether it did. */
bool chaos_kill_broker(const struct chaos_options *options);
/* Whether namespaces of that kind can be had here. */
bool chaos_namespaces_work(unsigned kind);

/* ---- actor.c ---- */

int chaos_actor(int argc, char **argv);

/* ---- scribble.c ---- */

int chaos_scribble(const struct chaos_options *options);
int chaos_scribble_exporter(int argc, char **argv);
int chaos_scribble_consumer(int argc, char **argv);

/* ---- gpu.c ---- */

struct gpu {
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUfunction spin_fill, scribble, count_other;
    bool software; /* the tests' driver, where a dead process's work is dead */
};

/* Prints what failed and returns the result. */
CUresult gpu_start(struct gpu *ret_gpu);
/* Fills and waits. */
CUresult gpu_stamp(const struct gpu *gpu, CUdeviceptr ptr, uint32_t stamp, uint64_t words);
/* Fills after `ns`, waits for nothing. */
CUresult gpu_stamp_late(const struct gpu *gpu, CUdeviceptr ptr, uint32_t stamp, uint64_t words,
                        uint64_t ns);
/* Writes 0xdeadbeef again and again for `ns`, waits for nothing. */
CUresult gpu_scribble(const struct gpu *gpu, CUdeviceptr ptr, uint64_t words, uint64_t ns);
/* How many words are not `stamp`, counted on the device; `counter` is a word of device memory. */
CUresult gpu_count_other(const struct gpu *gpu, CUdeviceptr ptr, uint32_t stamp, uint64_t words,
                         CUdeviceptr counter, uint32_t *ret_count);
size_t gpu_free_bytes(void);
const char *gpu_error(CUresult result);

#endif
