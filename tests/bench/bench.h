/*
 * What the measuring programs share: options, time, errors, a second copy of oneself, and the one
 * JSON line each of them prints on stdout. They are ordinary CUDA programs on the driver API and
 * run on whatever driver and allocator are underneath (tests/with.sh chooses).
 *
 * Every program exits with 0 after its line, with 1 and a line on stderr that names the cause when
 * it could not measure, with 2 when called wrongly. A time never decides the exit status.
 */
#ifndef BENCH_H
#define BENCH_H

#include <cuda.h>

#include "tests/system.h"

/* Ends the program where a driver call fails. */
#define MUST(call) bench_must((call), #call)
__attribute__((noreturn, cold)) void bench_failed(CUresult result, const char *call);
static inline void bench_must(CUresult result, const char *call)
{
    if (__builtin_expect(result != CUDA_SUCCESS, 0))
        bench_failed(result, call);
}

/* Prints "PROGRAM: …" on stderr and exits with 1. */
__attribute__((noreturn, format(printf, 1, 2))) void bench_die(const char *format, ...);

/* CUDA_ERROR_… for a message. */
const char *bench_error(CUresult result);

/*
 * Command line: --name for a flag, --name VALUE for a number (with K, M or G: 2^10, 2^20, 2^30) or
 * a text. name NULL ends the table.
 */
struct bench_option {
    const char *name;
    enum { BENCH_FLAG, BENCH_NUMBER, BENCH_TEXT } kind;
    void *value; /* bool, uint64_t or const char * */
};

/* Fills the values in; what is not given stays. Returns the one argument that is no option, or
 * NULL. Exits with 2 and the usage line on anything else. */
const char *bench_options(char **argv, const struct bench_option *options, const char *usage);

/* A number with its suffix. Returns false where text is no such number. */
bool bench_number(const char *text, uint64_t *ret_number);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t bench_now(void);

/* The middle one of count > 0 values, which get sorted. */
uint64_t bench_median(uint64_t *values, size_t count);

/* Zeroed memory of count objects; ends the program where there is none. */
void *bench_array(size_t count, size_t size);

/* ---- the device ---- */

bool bench_software_driver(void); /* no CUDA call is made for the answer */
bool bench_under_shim(void);

/* What the library holds on device 0, and what it counted; false where it is not there. */
struct gpushim_memory;
bool bench_library_memory(struct gpushim_memory *ret_memory);

/* Device 0's primary context, made current. The software driver gets memory enough for every
 * program here unless SOFTCUDA_MEMORY says how much. */
CUcontext bench_start(void);

/* ---- other processes ---- */

#define BENCH_SOCKET 3 /* a second copy's end of the stream socket to the first */

/* Starts this program again as "PROGRAM argument…" (NULL ends them). Returns the socket to it.
 * preload false: without LD_PRELOAD, so never under the shim. */
int bench_spawn_self(const char *const *arguments, bool preload, pid_t *ret_pid);

/* A copy of the environment without LD_PRELOAD; one free() ends it. */
char **bench_environment_without_preload(void);

/* Waits for its end; ends this program when it did not end with 0. */
void bench_wait(pid_t pid, int socket);

/* Exactly size bytes; ends the program when the other side is gone. */
void bench_send(int socket, const void *data, size_t size);
void bench_receive(int socket, void *data, size_t size);

/* ---- the JSON line ---- */

/* Opens it with the program's name, the driver and whether the shim is there. */
void json_begin(const char *name);

/* Within a list, key is NULL. */
void json_object(const char *key); /* what follows is in it, until json_close */
void json_list(const char *key);
void json_close(void);
void json_count(const char *key, uint64_t value);
void json_number(const char *key, double value);
void json_text(const char *key, const char *value);
void json_bool(const char *key, bool value);
void json_null(const char *key);
void json_end(void);

#endif
