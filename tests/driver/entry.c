/*
 * The exported symbols: each row of entry_points.h becomes one function, with the type that cuda.h
 * declares for it, and one row of the table that cuGetProcAddress and the faults work with.
 */
#include "internal.h"

enum {
#define ROW(name, symbol, since, mode, parameters, body) ROW_##symbol,
#define ALIAS(name, symbol, since, mode)                 ROW_ALIAS_##name,
#include "entry_points.h"
    ROWS
};

_Atomic unsigned long sd_call_counts[ROWS];

/* Bodies of calls see each other's effects whole: one lock around each. */
static inline CUresult locked(CUresult result)
{
    pthread_mutex_unlock(&sd_lock);
    return result;
}

#define OWN(stream) (is_per_thread ? sd_per_thread(stream) : (stream))
#define ROW(name, symbol, since, mode, parameters, body)                   \
    CUresult CUDAAPI symbol parameters                                     \
    {                                                                      \
        enum { is_per_thread = ((mode) & SD_PER_THREAD) / SD_PER_THREAD }; \
        CUresult refused = sd_enter(ROW_##symbol);                         \
        if (SD_UNLIKELY(refused))                                          \
            return refused;                                                \
        if ((mode) & SD_UNLOCKED)                                          \
            return body;                                                   \
        pthread_mutex_lock(&sd_lock);                                      \
        return locked(body);                                               \
    }
#define ALIAS(name, symbol, since, mode)
#include "entry_points.h"

const struct sd_row sd_rows[] = {
#define ROW(name, symbol, since, mode, parameters, body) \
    {#name, #symbol, since, mode, (void *)symbol},
#define ALIAS(name, symbol, since, mode) {#name, #symbol, since, mode, (void *)symbol},
#include "entry_points.h"
};

const unsigned sd_row_count = ROWS;
