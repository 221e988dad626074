/*
 * One side of a share in a test: a process's sharing state with its map, fences and driver, its
 * blocks, and what it logged. The test program has one itself; others are in processes of their
 * own (other.h).
 */
#ifndef GS_TESTS_SIDE_H
#define GS_TESTS_SIDE_H

#include "core/share/share.h"
#include "core/share/wire.h"
#include "memdriver.h"
#include "tests/check.h"
#include "tests/system.h"

#define SIDE_CONTEXT ((CUcontext)0x1000)
#define MIB          ((size_t)1 << 20)

struct side_chunk {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base;
    size_t size;
    uint64_t id;
};

struct side {
    struct gs_driver driver;
    struct gs_map map;
    struct gs_fences fences;
    struct gs_log log;
    struct gs_share_options options;
    struct gs_share *share;
    unsigned leases_ended; /* atomic */
    uint64_t given;
    uint64_t next_id;
};

/* A directory of the test's own under /tmp, not made yet; side_dir_remove empties and removes. */
void side_dir_new(char *ret_dir, size_t size);
void side_dir_remove(const char *dir);
/* Entries in it, or -1; and those alone that have their last names, so of sockets those that
 * listen. */
int side_dir_count(const char *dir);
int side_dir_put_up(const char *dir);

/*
 * A machine may stand still for a second at any moment, and no test fails for that: what has to
 * come is waited for for so long, and what took a time is judged by side_within alone.
 */
#define SIDE_PATIENCE_MS 30000
/* Whether less than that has passed since then: if not, what a time ends may have ended. */
bool side_within(uint64_t since, uint64_t ns);

/* Where who serves the handle's memory listens, and what it is greeted with. */
void side_path_of(const char *dir, const unsigned char *ipc_handle, struct sockaddr_un *ret_path);
void side_greet(int fd, const unsigned char *instance);
/* A connection to who serves the handle's memory in that directory, or -1; the second one has
 * greeted it, and ends the test where that does not go. */
int side_dial(const char *dir, const unsigned char ipc_handle[GS_IPC_HANDLE_SIZE]);
int side_connect_by_hand(const char *dir, const unsigned char ipc_handle[GS_IPC_HANDLE_SIZE]);
/* The type of the next message, 0 for a hang-up. RECALLs are passed over: a withdrawal that came
 * before a CLOSE was read has asked for the block. */
int side_next_message(int fd, union gs_wire_message *ret_message);
/* Asks for the block over a connection that has greeted; the type of the answer. */
int side_open_by_hand(int fd, const struct gs_export *export);
/* Says that nothing is used over it any more, and hangs up: a hang-up alone ends no lease. */
void side_leave(int fd);

/* Sends with a descriptor, as soon as one is taken: a broker takes those of whom it has let in. */
int side_send(int fd, const union gs_wire_message *message, int attached);

/* A socket that listens there, and was not to be seen before it did: whoever shares clears away
 * what does not. */
int side_listen(const char *path);

/* Defaults: grace 0, settle 200 ms, timeout 60 s, 64 clients, up to 64 blocks idle for a minute: so
 * what is given back after a close was called back. With a broker where SIDE_STRATEGY says so. */
void side_options(struct gs_share_options *ret_options, const char *dir);
bool side_with_broker(void);
/* The name of a broker's socket under this kernel. */
const char *side_broker_name(void);
/* And the path of it. */
const char *side_broker_path(const char *dir);
/* A name as a process of that pid here has; `number` tells several apart. */
void side_name(unsigned number, pid_t pid, char ret_name[33]);
/* The path of a socket of this process's with such a name. */
void side_path_named(const char *dir, unsigned number, char ret_path[128]);
/* A pid that no process has. */
pid_t side_gone_pid(void);
/* A connection to the directory's broker, or -1. */
int side_broker_dial(const char *dir);
/* The directory's broker: its pid, or 0 where none listens; how many blocks it has been left, as it
 * says itself; whether its socket goes (to connect would be to need it). */
pid_t side_broker_pid(const char *dir);
unsigned long long side_broker_published(const char *dir);
bool side_broker_gone(const char *dir);
/* Ends it, if there is one; whether its socket has gone. */
bool side_broker_end(const char *dir);
void side_start(struct side *side, const struct gs_share_options *options);
/* As side_start, where that may not go. */
gs_status side_try_start(struct side *side, const struct gs_share_options *options);
void side_stop(struct side *side);
/* Can be asked for memory, and a thread of its own says each time that so much was given. */
void side_serve(struct side *side, uint64_t given);

/* A mapped chunk of this side; every byte of it reads as zero at first. */
struct side_chunk side_chunk_new(struct side *side, size_t size);
void side_chunk_free(struct side *side, const struct side_chunk *chunk);
/* Exports a part of the chunk. */
gs_status side_export(struct side *side, const struct side_chunk *chunk, size_t offset, size_t size,
                      struct gs_export **ret_export);

/* The GPU that holds all chunks of side_chunk_new, and another. */
extern const unsigned char side_gpu[16], side_other_gpu[16];
#define SIDE_HOUR (UINT64_C(3600) * 1000000000)

uint64_t side_now(void);
/* Withdraws without grace as soon as it goes; false: it never does. */
bool side_gets_back(struct side *side, struct gs_export *export);
/* Whether it cannot be withdrawn for so long; if it can, it is. */
bool side_stays_held(struct side *side, struct gs_export *export, unsigned ms);
/* Withdraws without grace: at once, or with a broker as soon as that has been told. */
bool side_withdraws(struct side *side, struct gs_export *export);
/* Everything that was logged so far by any side of this process. */
const char *side_logged(void);
unsigned side_log_lines(void);

int side_open_fds(void);
/* The connections that this process has made to others than brokers; all are closed, as by a
 * program that closes what it does not know, or counted alone. */
int side_connections(bool closes);
int side_threads(void);
/* Looks until `condition` holds; false: it never does. */
#define SIDE_WAIT(condition)                                                   \
    ({                                                                         \
        uint64_t side_end = side_now() + SIDE_PATIENCE_MS * UINT64_C(1000000); \
        bool side_holds = (condition);                                         \
        while (!side_holds && side_now() < side_end) {                         \
            usleep(500);                                                       \
            side_holds = (condition);                                          \
        }                                                                      \
        side_holds;                                                            \
    })

#endif
