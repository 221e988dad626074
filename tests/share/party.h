/*
 * Programs of several processes: each is this program again, with another word as its first
 * argument and a socket to the one that started it. All of them log to one file, and share in one
 * folder of the test's own. The library is preloaded.
 */
#ifndef GS_TESTS_PARTY_H
#define GS_TESTS_PARTY_H

#include "program.h"
#include "tests/clock.h"
#include "tests/system.h"

#define PARTY_SOCKET 3
#define PATIENCE_MS  60000 /* what has to come is waited for for so long */
#define BLOCK_SIZE   ((size_t)4 << 20)
#define STAMP        0x5ca1ab1eu

struct party {
    pid_t pid;
    int socket;
};

/* The folder and the log, in the process that begins; what was logged goes to stdout at its end. */
void surroundings_new(void);
extern const char *surroundings_folder;
/* Says "skipped: why" and ends as a test that did not run. */
_Noreturn void skip(const char *why);
/* How often any party has logged the words. */
unsigned times_logged(const char *words);

/* It ends with this process. */
struct party party_start(const char *role, const char *more);
/* In between fork and exec. */
struct party party_start_in(const char *role, const char *more, void (*in_child)(void));
/* What a party does that shares as it is told, until it is hung up on: each byte that it hears is
 * an order, s: share a block, f: free it, k: keep `kept` bytes idle; the answer is the block's
 * handle. */
void party_share(size_t kept);
CUipcMemHandle party_tell(const struct party *party, char order);
/* Its wait status. */
int party_end(struct party *party);
void party_kill(struct party *party);

/* In the foreground, in the folder; it listens. Its strategy's environment is the caller's. */
pid_t broker_start(const char *program);
/* Told to; false: it ended otherwise. */
bool broker_end(pid_t broker);

void say(int socket, const void *bytes, size_t size);
/* All of it, or the program ends: the other has not answered. */
void hear(int socket, void *ret_bytes, size_t size);
/* False: it has hung up. */
bool hear_or_end(int socket, void *ret_bytes, size_t size);

bool hear_within(int socket, void *ret_bytes, size_t size, int ms);

uint64_t cpu_ns(void);
uint64_t cpu_of(pid_t pid);
unsigned open_files(pid_t pid);

CUdeviceptr block_new(void);
bool block_has_stamp(CUdeviceptr block);
/* A few allocations and frees of both kinds, which go whatever the surroundings. */
void use_memory(void);
/* Opens, looks at the stamp and closes; again until it goes, if the first answer was another. */
void must_open(const CUipcMemHandle *handle);
CUresult try_open(const CUipcMemHandle *handle);

/* Looks until `condition` holds; false: it never does. */
#define AWAIT(condition)                                                 \
    ({                                                                   \
        uint64_t await_end = now_ns() + PATIENCE_MS * UINT64_C(1000000); \
        bool await_holds = (condition);                                  \
        while (!await_holds && now_ns() < await_end) {                   \
            usleep(1000);                                                \
            await_holds = (condition);                                   \
        }                                                                \
        await_holds;                                                     \
    })

#endif
