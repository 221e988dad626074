/*
 * A processor that has done much else: see latency.h. Programs call an allocator each ten
 * microseconds or so, and between two calls the interpreter, the framework and the driver go over
 * more than the first caches have.
 */
#include "bench.h"
#include "latency.h"

#include <string.h>
#include <sys/mman.h>

#define LINE       64
#define DATA_BYTES ((size_t)2 << 20) /* a second-level cache of the processors beside H100s */
#define CODE_BYTES ((size_t)256 << 10)

#if defined(__x86_64__)
static const unsigned char returns[] = {0xc3};
#elif defined(__aarch64__)
static const unsigned char returns[] = {0xc0, 0x03, 0x5f, 0xd6};
#endif

static unsigned char *data, *code;

static unsigned char *mapped(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        bench_die("no memory to cool the caches with");
    return memory;
}

void latency_cool_start(void)
{
    data = mapped(DATA_BYTES);
    memset(data, 1, DATA_BYTES); /* else all of it is one page of zeros */
    code = mapped(CODE_BYTES);
    for (size_t at = 0; at < CODE_BYTES; at += LINE)
        memcpy(code + at, returns, sizeof returns);
    __builtin___clear_cache((char *)code, (char *)code + CODE_BYTES);
    if (mprotect(code, CODE_BYTES, PROT_READ | PROT_EXEC) != 0)
        bench_die(
            "this system runs no code that a program made: without --cold it measures warm calls");
}

void latency_cool(void)
{
    for (size_t at = 0; at < DATA_BYTES; at += LINE)
        (void)*(volatile unsigned char *)(data + at);
    for (size_t at = 0; at < CODE_BYTES; at += LINE)
        ((void (*)(void))(code + at))();
}
