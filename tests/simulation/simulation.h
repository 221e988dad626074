/*
 * Simulated processes: any number of them in this one, each with the real protocol of core/share,
 * over a simulated kernel and driver. README.md says what that shows and what it cannot.
 *
 *   main.c      options, seeds                  decide.c    what happens next: by seed, or replayed
 *   world.c     one world from its begin to     shrink.c    shortest list of decisions that fails
 *               its end                         rules.c     what must always hold
 *   program.c, operations.c, strips.c,
 *   external.c, events.c                        what the programs do with the library
 *   ------------------------------- core/share, as it is -------------------------------
 *   fibre.c     threads                         base.c      core/base: clock, locks, descriptors
 *   file.c      files and descriptors           conn.c      sockets and messages
 *   process.c   processes, how they end         folder.c    the runtime directory; system.c: rest
 *   loop.c      the share thread                driver.c    the driver and its GPU
 *   heap.c      host memory                     machines.c  two machines, and their agents
 *
 * One fibre runs at a time, and others come only where it waits, or at a point (sim_point) where
 * the decision that let it run says so.
 */
#ifndef GS_TESTS_SIMULATION_H
#define GS_TESTS_SIMULATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/base/clock.h"
#include "core/base/fd.h"
#include "core/base/lock.h"
#include "core/share/share.h"

#define NEVER         UINT64_MAX
#define PROCESSES_MAX 12
#define THREADS       4 /* of a process: its share thread, two of the program's, */
#define ENDS_THREAD   3 /* and one for the ends of external memory */
#define FDS_MAX       96
#define CHUNKS_MAX    4                   /* of one process */
#define SLOTS         4                   /* blocks of one chunk */
#define STRIP_MAX     3                   /* pieces of one strip */
#define OPENS_MAX     8                   /* blocks that one process has open */
#define HANDLES_MAX   24                  /* IPC handles that go round */
#define LINGER_NS     (60 * GS_NS_PER_MS) /* GPU work goes on so long when its process ends */
#define SLOW          100                 /* times that in slow worlds, sometimes */

struct process;
struct file;

/* ---- fibre.c: threads ----------------------------------------------------------------------- */

enum fibre_state {
    FIBRE_NONE,
    FIBRE_READY,
    FIBRE_WAITING,
    FIBRE_IDLE /* for its program's next */
};

struct fibre {
    struct fibre_body *body; /* its stack, and where it stands */
    struct process *process;
    enum fibre_state state;
    bool midway;          /* it could run on: another was let run at a point */
    bool woken;           /* by whom it waited for */
    uint64_t until_ns;    /* it waits so long at most */
    const void *waits_on; /* a lock or a condition */
    struct gs_lock *held[8];
    unsigned held_count;
    int error; /* errno */
    void *(*run)(void *arg);
    void *arg;
};

void fibre_start(struct fibre *fibre, struct process *process, void *(*run)(void *), void *arg);
/* The scheduler lets it run until it waits, ends or has passed so many points. */
void fibre_resume(struct fibre *fibre, unsigned points);
void fibre_kill(struct fibre *fibre);
/* Of the running fibre. Waits to be woken; false: the time has come. */
bool fibre_wait(const void *on, uint64_t until_ns);
void fibre_idle(void);
void fibre_wake(struct fibre *fibre);
void fibre_wake_all(const struct process *process, const void *on);
/* Its share thread, from wherever. */
void thread_wake(struct process *process);
/* Others may run here. */
void sim_point(void);

/* ---- file.c: files and descriptors ---------------------------------------------------------- */

enum file_kind {
    FILE_SOCKET,
    FILE_LISTENER,
    FILE_DIRECTORY,
    FILE_PIDFD,
    FILE_MEMORY,
    FILE_WORDS,
    FILE_EVENTS,
    FILE_OTHER
};

struct message {
    struct message *next;
    size_t size;    /* of `bytes` */
    size_t counts;  /* against the sender's limit */
    unsigned files; /* that came along, GS_PIECES_MAX at most */
    struct file **file;
    unsigned char bytes[];
};

struct file {
    enum file_kind kind;
    unsigned refs; /* descriptors, of forked children too, and messages under way */
    uint64_t id;
    struct process *holder; /* who is told when something happens to it */
    struct life *life;      /* FILE_PIDFD; of a socket: who is at the other end */
    struct phys *phys;      /* FILE_MEMORY */
    uint64_t *words;        /* FILE_WORDS, and how many bytes */
    size_t size;
    struct file *next_mapped; /* of its process */
    /* Sockets. */
    struct file *peer; /* NULL: it has hung up */
    struct message *first, **last;
    size_t unread, limit; /* what lies here, and how much of what is sent from here may lie there */
    bool shut;            /* the other side has gone */
    bool greeted;         /* it was said over it from here who that is */
    bool forsaken; /* the program at the other end has closed that, and a child may have it */
    /* Listeners: sockets that nobody has accepted yet, `first_caller` by `next_caller`. */
    struct file *first_caller, *next_caller;
    unsigned callers;
};

struct descriptor {
    struct file *file;
    bool is_kept;     /* for long: the program may close it meanwhile */
    bool is_programs; /* the program's own: not the library's to close */
    bool is_piece;    /* made of what is mapped at an address */
};

struct file *file_new(enum file_kind kind);
void file_ref(struct file *file);
void file_unref(struct file *file);
void message_free(struct message *message);
/* Whoever waits for something to happen to it looks again. */
void file_changed(struct file *file);
size_t conn_limit(
    size_t limit); /* bytes that a socket takes in this world, where it is asked for so many */
/* Takes the file; -1 with errno: there is no number left, and the file has gone. */
int fd_new(struct process *process, struct file *file);
/* NULL: it is none, or of another kind. */
struct file *fd_file(int fd, enum file_kind kind);
void fd_close(int fd, const char *who);
/* What a program does that closes what it does not know; whether there was something to close. */
bool fd_close_unknown(struct process *process, unsigned which);
void fd_close_all(struct process *process);

/* ---- process.c ------------------------------------------------------------------------------ */

/* What the process table has of one process, for as long as the world is. */
struct life {
    pid_t pid;
    unsigned space; /* its PID namespace: 0 sees all, others their own */
    bool exited, dying;
    uint64_t exited_ns;
    bool stopped;
};

/* A program that a process runs; an exec begins another. */
struct image {
    struct life *life;
    unsigned machine;
    bool over;                  /* its memory has gone */
    bool clean;                 /* nothing was done to it that a process can notice */
    bool fork_told;             /* it had said that it has forked to all, when it ended */
    uint64_t gpu_gone_ns;       /* when its GPU work ends with it; NEVER: not yet */
    uint64_t waits_ns[THREADS]; /* since when each thread waits for what others closed; 0: not */
};

struct child {
    struct image *image;
    uint64_t number; /* it has what was there before; 0: nobody can know */
    struct file *files[FDS_MAX];
    const struct image
        *cut_off[PROCESSES_MAX]; /* programs that closed the connection that it has to them, */
    unsigned cuts; /* and how many; what fails for want of a place it is not cut off from */
    struct child *next;
};

enum process_state { PROCESS_NONE, PROCESS_RUNS, PROCESS_DYING };

struct handle { /* of the driver's; 0: none */
    uint64_t number;
    struct phys *phys;
    bool retained; /* had of what is mapped at an address */
};

struct mapping {
    uint64_t base;
    size_t size;                   /* 0: none */
    struct phys *pages[STRIP_MAX]; /* NULL: addresses alone */
    bool accessible;
    bool registered; /* memory of the host: in the context that there is */
};

struct event {
    uint64_t number, done_ns;
};

enum operation_kind {
    OP_EXPORT,
    OP_OPEN,
    OP_USE,
    OP_CLOSE,
    OP_FREE,
    OP_PASS_ON,
    OP_TRIM,
    OP_SHORT,
    OP_ASK,
    OP_CONTEXT,
    OP_EXIT,
    OP_END,
    OP_PUBLISH,
    OP_LOOK_UP,
    OP_UNPUBLISH,
    OP_SLEEP,
    OP_KINDS,
    /* When all comes to its end: */
    OP_CLOSE_ALL = OP_KINDS,
    OP_FREE_ALL,
    OP_TRIM_ALL,
    OP_OPEN_ALL,
    OP_ALL
};

struct operation {
    enum operation_kind kind;
    unsigned arg;
};

/* What the program has opened, as it knows it. */
struct opened {
    struct block *block; /* NULL: none */
    uint64_t address;
    unsigned count;
    bool busy; /* one of its threads is at it */
};

struct chunk {
    uint64_t id; /* 0: none */
    uint64_t handle;
    struct phys *phys;
    uint64_t address;
};

struct watch;

struct process {
    unsigned index;
    enum process_state state;
    bool is_broker, is_agent;
    unsigned machine; /* 0, or in a cluster 1 */
    struct life *life;
    struct image *image;
    uint64_t exit_ns;
    uint64_t exec_ns;    /* when the GPU work of the program before ends */
    uint64_t begins_ns;  /* when the program of an exec begins; 0: it has */
    uint64_t starved_ns; /* how long it could have run and did not, */
    uint64_t still_ns;   /* and since it last did */
    uint64_t lost_ns;    /* when it last lost a connection; 0: never */
    struct gs_share *share;
    struct fibre threads[THREADS];
    struct descriptor fds[FDS_MAX];
    unsigned fd_count, fd_limit;
    struct heap_block *heap;
    unsigned heap_count;
    unsigned allocations_left; /* 0: no limit; else one more fails when it comes to 1 */
    bool no_flight;            /* no descriptor goes from here */
    unsigned sends_left; /* as allocations_left: of what it says to its broker, or that to it */
    struct child *forked;
    struct file *mapped_words;
    /* loop.c */
    struct watch *watches;
    bool woken;
    /* driver.c */
    struct gs_fences *fences;
    struct handle handles[64];
    struct mapping mappings[96];
    struct event events[64];
    uint64_t gpu_busy_ns; /* when what was submitted so far is done */
    unsigned driver_left; /* as allocations_left */
    /* program.c */
    struct chunk chunks[CHUNKS_MAX];
    struct opened opened[OPENS_MAX];
    struct operation operations[THREADS];
    struct gs_lock arena; /* protects the blocks, as in core */
    unsigned contexts;    /* that it has had; it has one at a time, */
    bool context_gone;    /* but for the while in which the library hears that it has none */
    size_t left;          /* as it was told last */
    unsigned graceless;   /* threads for which the GPU is full: graces end */
    bool alone;           /* one of its threads wants no other beside it */
    bool lets_go;         /* what others share is unmapped, open or not (sleep.c) */
    /* In order; having waited for its share thread, which stood still; and has given all back. */
    enum { ENDS_NOT, ENDS_BY_EXIT, ENDS_LATE, ENDS_EMPTY } ends;
    struct gs_fd event_file;   /* the file of events that it made (events.c), */
    struct image *event_image; /* and which of its programs did; NULL: none */
};

struct process *process_here(void); /* whose fibre runs; NULL: the scheduler */
struct process *process_start(bool is_broker, bool is_agent, unsigned machine);
void process_kill(struct process *process, uint64_t linger_ns, uint64_t exit_ns);
void process_stop(struct process *process, bool stopped);
/* The next program begins when the GPU work of the one before is over, or about to be. */
void process_exec(struct process *process, uint64_t linger_ns);
/* All of a machine that is switched off, and what was going down there. */
void processes_lose_power(unsigned machine);
void process_fork(struct process *process);
void process_children_end(const struct image *image, uint64_t linger_ns);
void process_child_ends(struct child *child, uint64_t linger_ns);
/* What is due now. */
void processes_tick(void);
uint64_t processes_due(void);
struct life *life_of(pid_t pid);
/* Whether the process here finds that one in its process table. */
bool life_is_seen(const struct life *life);

/* ---- machines.c: a cluster of two ------------------------------------------------------------ */

void machines_begin(void);
/* The link between their agents. */
void machines_cut(bool is_cut);
/* It has one, or is not to have one yet. */
bool machine_has_agent(unsigned machine);
/* All of it ends at once, and it comes back as another boot. `forgotten`: an operator says of it,
 * while nothing runs there, that it is gone for good. */
void machine_boots(unsigned machine, bool forgotten);
/* Its agent hears only from its next list of the directory on what becomes of the other one. */
void machine_hears_late(unsigned machine);
void *agent_run(void *process);

/* ---- folder.c, loop.c, heap.c --------------------------------------------------------------- */

/* The names that are of this program's sockets. */
unsigned folder_count(const struct image *image);
void folder_clear(void);
void folder_listener_gone(const struct file *listener);
void watches_free(struct process *process);
void heap_free_all(struct process *process);
void *sim_alloc(size_t size); /* the simulation's own, zeroed */
void sim_free(void *memory);

/* ---- driver.c: the driver and its GPU -------------------------------------------------------- */

/* Memory of the GPU, of one chunk. */
struct phys {
    uint64_t id;
    unsigned refs; /* handles, mappings, descriptors */
    bool host;     /* a memfd of its maker's */
    bool released; /* its maker has given it back */
    uint64_t released_ns;
    struct image *maker;
    struct block *slots[SLOTS]; /* whose bytes these are now; NULL: nobody's */
    struct phys *next;
};

extern const struct gs_driver sim_driver;
struct phys *phys_new(uint64_t *ret_handle);
void phys_ref(struct phys *phys);
void phys_unref(struct phys *phys);
/* What the process has mapped at the address; NULL: nothing that a GPU may touch. */
struct phys *phys_at(const struct process *process, uint64_t address, uint64_t *ret_offset);
void driver_release(uint64_t handle);
/* Memory of the host; 0, or a negative errno. */
int host_map(struct phys *phys, uint64_t *ret_base);
void host_unmap(uint64_t base);
extern struct gs_map sim_map; /* of all processes, whose addresses differ */
void driver_end_context(struct process *process);
/* The process is no more. */
void driver_forget(struct process *process);
unsigned driver_count(const struct process *process);
bool driver_maps(const struct process *process, const struct phys *phys);

/* ---- rules.c --------------------------------------------------------------------------------- */

/* One program's use of a block. */
struct use {
    struct image *image;
    unsigned opens;
    uint64_t address; /* where it was opened last */
    uint64_t busy_ns; /* until when its GPU work on it runs, if it lives so long */
    unsigned opening; /* threads that are at it */
    uint64_t number;  /* of its last open: children of later numbers have its connection, */
    uint64_t gone_ns; /* and its GPU work ends with them */
    bool unseen;      /* there was one that its maker cannot know of any more */
    uint64_t closed_ns;
    struct use *next;
};

struct block {
    uint64_t id; /* of the world */
    uint64_t wire_id;
    struct process *maker;
    struct image *image;
    struct chunk *chunk;
    struct phys *phys;
    unsigned slot;
    struct phys
        *pieces[STRIP_MAX]; /* of a strip, and how many; `phys` is the one that the handle is of */
    unsigned piece_count, piece;
    /* It lies across these pieces, from its slot of the first on, and is freed as others are. */
    bool crosses;
    bool mapped;                  /* where it was made */
    bool is_external, by_address; /* which its program has mapped */
    bool forced;     /* its deleter was called at the end of the process, whoever had it */
    uint64_t handle; /* of external memory: its allocator's; 0: none any more */
    uint64_t address;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    size_t size;
    /* Freed, but its own GPU work may run: nobody was asked yet whether it may go. */
    enum { BLOCK_MADE, BLOCK_LIVE, BLOCK_FREED, BLOCK_LIMBO, BLOCK_GONE } state;
    struct image *left_with; /* a broker, when the process that made it was killed; NULL: none */
    bool granted, graceless;
    bool waits, ends;    /* the library knows that it is freed; and did when the GPU was full */
    bool too_much;       /* it is of what waited too long where little memory was left */
    uint64_t granted_ns; /* last */
    unsigned names;      /* bits: it was published under these */
    unsigned naming;     /* threads that are at publishing it */
    uint64_t freed_ns, gone_ns;
    struct use *uses;
    struct block *next;
};

struct use *use_of(struct block *block, struct image *image);
/* The program of the process is about to close that socket of the library's. */
void rule_program_closes(const struct process *process, const struct file *socket);
/* A child has ended, and its GPU's descriptors are closed by then. */
void rule_child_ended(const struct child *child, uint64_t gone_ns);
/* The oracle is told what happens, and says where that breaks a rule. */
void rule_opened(const struct process *process, struct block *block, uint64_t address);
void rule_used(const struct process *process, const struct block *block, uint64_t address);
void rule_handed_out(const struct block *block);
/* So much is left as it was told, and what waits for a first open is to be no more than a part of
 * it. */
void rule_little_is_left(const struct process *process);
/* The GPU is full: no grace is left of what was freed before (`ends`). */
void rule_graces_ended(const struct process *process);
void rule_granted(const struct process *process, const struct life *to, uint64_t wire_id);
void rule_unmapped(const struct process *process, const struct phys *phys, uint64_t base);
/* Memory leaves the GPU while its process sleeps: nobody has it open and mapped, nor does any GPU
 * work on it. */
void rule_sleeps(const struct phys *phys);
void rule_sleeps_until(const struct process *process, uint64_t due_ns);
void rule_ended(const struct process *process);
/* A process is killed that may have had its GPU at anything that it has open, up to the last
 * moment. */
void rule_works_on(const struct image *image);
/* It has what it shared with brokers; and, its exit is seen by all. */
void rule_left(const struct process *process);
void rule_exited(const struct process *process);
/* Something that is shared and that no broker has; NULL: all is left with one. */
const struct block *rule_not_left(void);
/* What others had closed was waited for from then to then: whether all of it was back. `asked_ns`:
 * when the oldest of the waits began that were under way then. */
void rule_given_back(const struct process *process, uint64_t asked_ns, uint64_t begun_ns,
                     uint64_t ended_ns);

/* ---- program.c, operations.c ----------------------------------------------------------------- */

extern const char *const operation_names[];
void *program_run(void *process);
void *broker_run(void *process);
/* Whether a thread of its program waits to be told what it does; tells it. */
bool program_is_idle(const struct process *process, unsigned thread);
void program_do(struct process *process, unsigned thread, enum operation_kind kind, unsigned arg);
/* What it does not know: between a look whether a descriptor is the library's still, and its use,
 * there is no time. */
bool program_may_close(const struct process *process);
void program_perform(struct process *process, const struct operation *operation);
void program_lease_ended(void *process, uint64_t address);
CUcontext program_context(const struct process *process);

/* ---- sleep.c: programs that sleep ------------------------------------------------------------ */

bool has_sleepers(void);
/* None of its other threads does anything meanwhile. */
void program_sleeps(struct process *process, unsigned arg);
/* All that it has of one. */
void program_close(struct process *process, struct opened *opened);

/* ---- strips.c: memory that programs map themselves, and blocks across pieces ----------------- */

/* Where it begins in a process that has its handle's piece at the address. */
uint64_t strip_base(const struct block *block, uint64_t address);
/* False: this world has none, or the process has one. */
bool strip_share(struct process *process, unsigned arg);
/* Unmaps what is live; or, `refused`, would. */
void strip_unmap(struct process *process, struct block *block);
void strips_end(struct process *process);
gs_status strip_export(struct process *process, struct block *block);
/* NULL: this world has none, or no memory. */
struct block *across_new(struct process *process, unsigned arg);
/* Those that are handed out again go back to the driver; at the end all. */
void across_trim(struct process *process, bool at_the_end);
void handle_enter(struct block *block);

/* ---- external.c: external memory ------------------------------------------------------------- */

bool has_externals(void); /* this world */
/* False: this world has none, the process enough, or something else is to be shared too. */
bool external_share(struct process *process, unsigned arg);
/* False: it is not of the process's own external memory. */
bool external_pass_on(struct process *process, unsigned arg);
bool external_use(struct process *process, unsigned arg);
gs_status external_name(struct process *process, struct block *block,
                        const struct gs_naming *naming, uint64_t *ret_since_ns);
bool external_is_served(const struct block *block);
void external_detach(struct process *process, struct block *block, unsigned arg);
/* What deleters were called for goes back to the driver. */
void externals_trim(struct process *process);
void externals_context_gone(struct process *process);
void externals_end(struct process *process);
void externals_thread_ends(struct process *process);

/* ---- events.c: files of events of several processes ------------------------------------------ */

void events_begin(void);
/* Shares its own, or opens another's, where this world has any. */
void events_do(struct process *process, unsigned arg);
/* All that there are: who made them lives, so they must open. */
void events_open_all(struct process *process);
void events_end(struct process *process);

/* ---- decide.c -------------------------------------------------------------------------------- */

enum decision_kind {
    DECIDE_RUN,
    DECIDE_DO,
    DECIDE_TIME,
    DECIDE_START,
    DECIDE_KILL,
    DECIDE_STOP,
    DECIDE_GO_ON,
    DECIDE_EXEC,
    DECIDE_FORK,
    DECIDE_CHILD_ENDS,
    DECIDE_CLOSE,
    DECIDE_FDS,
    DECIDE_MEMORY,
    DECIDE_DRIVER,
    DECIDE_FLIGHT,
    DECIDE_CLEAR,
    DECIDE_AGENT,
    DECIDE_CUT,
    DECIDE_BOOT,
    DECIDE_WATCH,
    DECIDE_KINDS
};

struct decision {
    uint8_t kind, process, thread, operation;
    uint16_t arg;
};

struct decisions {
    struct decision *list;
    size_t count, room;
};

/* What happens next, by the world's random numbers. */
struct decision decide(void);
/* Does it; what cannot be done now is left out. */
void decision_apply(const struct decision *decision);
void decisions_add(struct decisions *decisions, const struct decision *decision);
bool decisions_write(const struct decisions *decisions, const char *path);
bool decisions_read(struct decisions *decisions, const char *path, uint64_t *ret_seed);
void decision_trace(const struct decision *decision);

/* ---- world.c --------------------------------------------------------------------------------- */

#define FAILURE_SIZE 512

extern struct world {
    uint64_t seed, random;
    bool broker;
    bool cluster; /* there are two machines */
    uint64_t calm_ns;
    unsigned process_count;
    bool trace;
    unsigned fault_rate; /* in a thousand steps */
    bool slow;           /* exits and execs take up to seconds, now and then */
    bool spaces;         /* processes are of several PID namespaces */
    enum { KERNEL_PEER_PIDFDS, KERNEL_OWN_PIDFDS, KERNEL_NO_PIDFDS } kernel; /* 6.5, 5.3, older */
    bool calm;            /* no fault any more, */
    bool settled;         /* and what they did is over */
    bool disturbed;       /* there was one */
    bool short_of_memory; /* host memory, descriptors or the driver failed for somebody */
    bool given_up; /* a process stood still for so long that it may be, if its socket was closed */
    uint64_t now_ns;
    uint64_t starved_ns; /* how long somebody could have run and did not, all together */
    uint64_t stalled_ns; /* somebody who could have run did not until then, for a while */
    uint64_t steps;
    unsigned turn; /* whose it was last, in calm */
    struct fibre *current;
    unsigned points, clock_looks;
    struct process processes[PROCESSES_MAX];
    struct life *lives;
    unsigned life_count;
    struct image *images[512];
    unsigned image_count;
    struct child *children;
    struct phys *memory;
    struct block *blocks;
    struct block *handles[HANDLES_MAX]; /* that go round among the programs */
    unsigned handle_count;
    uint64_t next_number, next_address, next_file;
    uint64_t closed_ns;  /* when a program last closed a descriptor of the library's; 0: never */
    unsigned file_count; /* that there are */
    struct gs_share_options options;
    bool failed;
    const char *rule; /* that was broken: its words' format */
    char failure[FAILURE_SIZE];
} world;

/* One world: by its seed, recorded in `decisions`; or as `decisions` say. True: no rule was
 * broken. */
bool world_run(uint64_t seed, unsigned steps, struct decisions *decisions, bool replay);
uint64_t sim_random(void);
unsigned sim_below(unsigned limit);
void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void sim_trace_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define sim_trace(...) (world.trace ? sim_trace_line(__VA_ARGS__) : (void)0)
/* Time goes on. */
void world_advance(uint64_t to_ns);
/* Programs that are over may have blocks of the maker's open for all that it knows. */
bool world_is_kept_open(const struct image *maker);
/* When something comes by itself; NEVER. */
uint64_t world_due(void);

/* ---- shrink.c -------------------------------------------------------------------------------- */

void shrink(uint64_t seed, struct decisions *decisions);

#endif
