/*
 * What every process with the library has of each GPU's memory, and what it did there. Each is
 * asked at its socket in the folder and answers from the counters that it has anyway. A process
 * that shares nothing and holds little has no socket: it is listed by name alone.
 */
#ifndef GS_SHIM_COMMAND_FIGURES_H
#define GS_SHIM_COMMAND_FIGURES_H

#include "shim/command/ask.h"
#include "shim/command/quiet.h"

#define LIMBO_HOLDERS 4 /* are told of */

/* Who holds what a process has freed. */
struct limbo_holder {
    struct who who;
    uint64_t bytes;
};

/* What one process has of one GPU; or nothing but that it is there. */
struct row {
    struct who who;
    bool ended;       /* these are its last figures, which a broker keeps; */
    uint64_t ago_ns;  /* since then */
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
    size_t offset;      /* in a row, in bytes or ns */
    const char *json;   /* NULL: stats does not tell it; of ns that end in _seconds whole ones are told */
    const char *metric; /* _total: it only grows; _seconds: of ns. Those of one name follow each other, */
    const char *label;  /* of its own, or NULL */
    const char *help;   /* and the first has this */
};
extern const struct figure figures_told[];
extern const size_t figures_told_count;
uint64_t figures_number(const struct row *row, const struct figure *figure);

/* Whether the library lies in the process's memory, where that may be read. */
bool figures_has_library(long pid);
/* All of them, or those of the one with that pid; those that have most from the driver come first.
 * `also`: brokers, which have no memory of their own; and behind all, the last one to end first,
 * processes that have ended. False, and said: the configuration does not allow it. */
enum figures_also { FIGURES_BROKERS, FIGURES_ENDED };
bool figures_find(struct table *table, long only, enum figures_also also);

#endif
