/* What every process with the library has of each GPU's memory, and what it did there, by the
 * counters that it has anyway. One that shares nothing and holds little has no socket: it is listed
 * by name alone. */
#ifndef GS_SHIM_COMMAND_FIGURES_H
#define GS_SHIM_COMMAND_FIGURES_H

#include "shim/command/ask.h"
#include "shim/command/doctor.h"

#define LIMBO_HOLDERS 4 /* are told of */

/* Who holds what a process has freed. */
struct limbo_holder {
    struct who who;
    uint64_t bytes;
};

/* What one process has of one GPU; or nothing but that it is there. */
struct row {
    struct who who;
    bool has_figures;
    unsigned device;
    char silent[QUIET_WHY]; /* why it has none, or not all; "" */
    struct gs_figures figures;
    uint64_t seen_ns;
    double rate, slow_rate; /* a second, since it was seen before; < 0: it was not */
    bool is_first; /* of the process's rows; what follows is of the process, in each of them */
    bool is_broker;
    bool has_socket; /* else nobody could ask it */
    char socket[GS_BROKER_NAME_SIZE > GS_SOCKET_NAME_SIZE ? GS_BROKER_NAME_SIZE
                                                          : GS_SOCKET_NAME_SIZE];
    bool answers; /* then there is: */
    struct gs_wire_report report;
    struct limbo_holder holders[LIMBO_HOLDERS]; /* of memory in limbo, on any GPU: who has most */
    unsigned holder_count;                      /* so many are there in all */
};

struct table {
    struct row *rows;
    size_t count, room;
};

/* A number that is told of each GPU of a process, or of each process that answers. */
struct figure {
    bool of_gpu;
    size_t offset; /* in a row, in bytes or ns */
    const char
        *json; /* NULL: stats does not tell it; of ns that end in _seconds whole ones are told */
    const char
        *metric; /* _total: it only grows; _seconds: of ns. Those of one name follow each other, */
    const char *label; /* of its own, or NULL */
    const char *help;  /* and the first has this */
};
extern const struct figure figures_told[];
extern const size_t figures_told_count;
uint64_t figures_number(const struct row *row, const struct figure *figure);

/* All of them, or those of the one with that pid; those that have most from the driver come first.
 * `brokers`: also these, which have no memory of their own. */
void figures_find(struct table *table, long only, bool brokers);

/* What gpushim stats (stats.c) and its page, gpushim top (top.c), have in common. */

/* Its rows, and whom each keeps freed memory for; sheet_free ends it. */
void stats_sheet(const struct table *table, struct sheet *ret);

/* The page: has the terminal, shows what there is, and waits until it is time to ask again (false:
 * it is to end); and gives the terminal back. */
void top_begin(void);
void top_show(struct table *table);
bool top_wait(struct table *table, uint64_t every_ns);
void top_end(void);

/* The GPUs that processes with the library have memory of, and what NVML says of each. */

#define GPUS_MOST 64

struct gpu {
    unsigned char uuid[16];
    unsigned device;      /* by its number in the first of these processes; */
    bool is_numbered;     /* and in all others */
    uint64_t own, others; /* what this user's processes with the library have, and other users' */
    bool is_known;
    struct nvml_memory memory;
};

/* From the first on by number; how many. */
unsigned gpus_find(const struct table *table, struct gpu ret_gpus[GPUS_MOST]);

#endif
