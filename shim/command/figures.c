/* Asking every process for what it has of each GPU's memory (figures.h). */
#include "shim/command/figures.h"

#include <dirent.h>

#include "core/base/fd.h"

#define TOGETHER   SOCKETS_OF_USER /* are asked at once, of those there are */
#define DETAILS_NS ANSWER_NS       /* for what else those of one user are asked, all together */

#define OF_GPU(member)     true, offsetof(struct row, figures.member)
#define OF_PROCESS(member) false, offsetof(struct row, report.member)

const struct figure figures_told[] = {
    {OF_GPU(live), "live_bytes", "gpushim_memory_bytes", "state=\"live\"",
     "GPU memory of the process by state: live is the program's, cached is free for it, ordered is free for one of its "
     "streams, retired is freed and waits for the GPU, limbo is freed and still used by other processes."},
    {OF_GPU(cached), "cached_bytes", "gpushim_memory_bytes", "state=\"cached\"", NULL},
    {OF_GPU(ordered), "ordered_bytes", "gpushim_memory_bytes", "state=\"ordered\"", NULL},
    {OF_GPU(retired), "retired_bytes", "gpushim_memory_bytes", "state=\"retired\"", NULL},
    {OF_GPU(limbo), "limbo_bytes", "gpushim_memory_bytes", "state=\"limbo\"", NULL},
    {OF_GPU(reserved), "reserved_bytes", "gpushim_reserved_bytes", NULL,
     "GPU memory that the process has from the driver."},
    {OF_GPU(reserved_peak), "reserved_peak_bytes", "gpushim_reserved_peak_bytes", NULL,
     "The most GPU memory that the process has had from the driver."},
    {OF_GPU(live_peak), "live_peak_bytes", "gpushim_live_peak_bytes", NULL,
     "The most GPU memory that the program has had."},
    {OF_GPU(hits), "allocations_from_cache", "gpushim_allocations_total", "from=\"cache\"",
     "Allocations: from what is free for the program, or by looking further."},
    {OF_GPU(misses), "allocations_that_looked_further", "gpushim_allocations_total",
     "from=\"further\"", NULL},
    {OF_GPU(refused), "allocations_refused", "gpushim_refused_allocations_total", NULL,
     "Calls that were refused for want of GPU memory."},
    {OF_GPU(slow), "calls_over_1_ms", "gpushim_slow_calls_total", NULL,
     "Calls that took a millisecond or more."},
    {OF_GPU(waits), "waits", "gpushim_waits_total", NULL, "Waits of allocations for the GPU."},
    {OF_GPU(late), "waits_given_up", "gpushim_waits_given_up_total", NULL,
     "Waits that were given up: the GPU was not done in time."},
    {OF_GPU(wait_ns), "wait_ns", "gpushim_wait_seconds_total", NULL, "Time in waits for the GPU."},
    {OF_GPU(map_ns), "map_ns", "gpushim_map_seconds_total", NULL,
     "Time of the program's threads in making pieces and giving them back."},
    {OF_GPU(grown), "pieces_made", "gpushim_pieces_made_total", NULL,
     "Pieces of memory that came from the driver."},
    {OF_GPU(trims), "pieces_given_back", "gpushim_pieces_given_back_total", NULL,
     "Pieces of memory that went back to the driver."},
    {OF_PROCESS(exports), NULL, "gpushim_shared_blocks", NULL,
     "Blocks of GPU memory that the process shares."},
    {OF_PROCESS(bytes), NULL, "gpushim_shared_bytes", NULL, "GPU memory that the process shares."},
    {OF_PROCESS(limbo), NULL, "gpushim_freed_held_blocks", NULL,
     "Shared blocks that are freed and kept, since another process holds them or may just be opening them."},
    {OF_PROCESS(limbo_bytes), NULL, "gpushim_freed_held_bytes", NULL,
     "Shared memory that is freed and kept, since another process holds it or may just be opening it."},
    {OF_PROCESS(limbo_age_ns), NULL, "gpushim_freed_held_oldest_seconds", NULL,
     "How long ago the first of these blocks was freed; 0 where there is none."},
    {OF_PROCESS(asleep.bytes), "away_bytes", "gpushim_away_bytes", NULL,
     "Memory of the process that is off the GPU while it sleeps."},
    {OF_PROCESS(asleep.ns), "asleep_seconds", "gpushim_asleep_seconds", NULL,
     "How long the process has been asleep; 0: it is awake."},
    {OF_PROCESS(opened.bytes), "opened_bytes", "gpushim_opened_bytes", NULL,
     "GPU memory of other processes that the process has open."},
    {OF_PROCESS(opened.ended_bytes), "opened_of_ended_bytes", "gpushim_opened_of_ended_bytes", NULL,
     "What of that is of processes that have ended."},
};

const size_t figures_told_count = sizeof figures_told / sizeof *figures_told;

uint64_t figures_number(const struct row *row, const struct figure *figure)
{
    uint64_t number;

    memcpy(&number, (const char *)row + figure->offset, sizeof number);
    return number;
}

static struct row *add(struct table *table, const struct row *like)
{
    struct row *row = COMMAND_NEXT(table->rows, table->count, table->room);

    *row = *like;
    return row;
}

static void add_holder(struct row *process, const struct gs_wire_report *report, int pidfd)
{
    struct limbo_holder holder = {.bytes = report->limbo_reference_bytes};
    unsigned at = process->holder_count++;

    who_fill_told(&holder.who, &process->who, pidfd, report->client_seen, report->client_pid,
                  report->client_name);
    at = at < LIMBO_HOLDERS ? at : LIMBO_HOLDERS;
    for (; at > 0 && process->holders[at - 1].bytes < holder.bytes; at--)
        if (at < LIMBO_HOLDERS)
            process->holders[at] = process->holders[at - 1];
    if (at < LIMBO_HOLDERS)
        process->holders[at] = holder;
}

static void note_silence(struct row *row, int error)
{
    if (error == -ETIMEDOUT)
        snprintf(row->silent, sizeof row->silent,
                 "does not answer any more: this is not all of it");
}

/* For whom it keeps what its program has freed. */
static void find_holders(struct row *process, int fd)
{
    union gs_wire_message answer;
    int error = 0;

    for (uint32_t i = 0; !error && process->report.limbo && i < process->report.clients; i++) {
        int pidfd = -1;

        error = ask(fd, i, 0, &answer, &pidfd);
        if (!error && answer.report.limbo_references)
            add_holder(process, &answer.report, pidfd);
        gs_fd_drop(pidfd);
    }
    note_silence(process, error);
}

/* Of every device that it has had memory of; one row without figures where that is none. */
static void add_figures(struct table *table, const struct row *process, int fd)
{
    union gs_wire_message answer = {.report = process->report};
    unsigned had = 0;
    struct row *row = NULL;
    int error = 0;

    for (unsigned device = 0; !error && answer.report.has_figures && device < DEVICES_MOST;
         device++) {
        const struct gs_figures *figures = &answer.report.figures;

        if (figures->reserved_peak || figures->hits + figures->misses) {
            row = add(table, process);
            row->has_figures = true;
            row->device = device;
            row->figures = *figures;
            row->seen_ns = gs_now_ns();
            row->is_first = had++ == 0;
        }
        error = ask(fd, UINT32_MAX, device + 1, &answer, NULL);
    }
    if (row)
        note_silence(row, error);
    if (had)
        return;
    row = add(table, process);
    if (row->is_broker)
        return;
    snprintf(
        row->silent, sizeof row->silent,
        "has had no memory by cuMemAlloc and the like; what it makes by cuMemCreate is not counted");
    if (process->report.opened.bytes)
        snprintf(row->silent, sizeof row->silent,
                 "has had no memory by cuMemAlloc and the like, and has %s of others open",
                 show_size(process->report.opened.bytes).text);
}

/* One that was asked and is to be heard. */
struct asked {
    struct row row;
    uid_t uid;
    int fd, error;
};

struct search {
    struct table *table;
    bool brokers; /* they too */
    unsigned count;
    struct asked *asked; /* TOGETHER of them */
};

static const struct row nobody = {.rate = -1, .slow_rate = -1, .is_first = true};

static void hear(struct asked *asked)
{
    struct row *row = &asked->row;
    union gs_wire_message answer = {.head = {0}};

    if (!asked->error)
        asked->error = ask_hear(asked->fd, ask_deadline(ANSWER_NS), GS_WIRE_REPORT, &answer, NULL);
    row->answers = !asked->error;
    if (!row->answers) {
        ask_silence(row->silent, sizeof row->silent, asked->error, &answer);
        return;
    }
    who_fill(&row->who, row->who.pid, answer.report.pid, answer.report.name);
    row->report = answer.report;
    row->is_broker = answer.report.is_broker;
}

/* All at once have the time of one to answer. What else they are asked comes one after the other,
 * those of a user behind each other: one that stops answering then takes its own user's time
 * alone. */
static void hear_all(void *arg)
{
    struct search *search = arg;

    ask_within(ANSWER_NS);
    for (unsigned i = 0; i < search->count; i++)
        hear(&search->asked[i]);
    for (unsigned i = 0; i < search->count; i++) {
        struct asked *asked = &search->asked[i];

        if (i == 0 || asked->uid != asked[-1].uid)
            ask_within(DETAILS_NS);
        if (asked->row.answers) {
            find_holders(&asked->row, asked->fd);
            add_figures(search->table, &asked->row, asked->fd);
        } else {
            add(search->table, &asked->row);
        }
        close(asked->fd);
    }
    search->count = 0;
}

/* A process that is stopped is not asked: it would only be waited for. */
static void add_listener(void *arg, int fd, const char *name, struct who *who)
{
    struct search *search = arg;
    struct asked *asked = &search->asked[search->count];
    struct row *row = &asked->row;

    asked->fd = !search->brokers && ask_is_broker(name) ? -1 : gs_fd_copy(fd);
    if (asked->fd < 0)
        return;
    asked->uid = geteuid();
    *row = nobody;
    row->who = *who;
    row->has_socket = true;
    row->is_broker = ask_is_broker(name);
    memcpy(row->socket, name, strnlen(name, sizeof row->socket - 1));
    asked->error = who->stopped ? -ETIMEDOUT
                                : ask_send(asked->fd, &(struct gs_wire_query){.index = UINT32_MAX});
    if (++search->count == TOGETHER)
        ask_aside(hear_all, search);
}

static bool is_known(const struct table *table, long pid)
{
    for (size_t i = 0; i < table->count; i++)
        if (table->rows[i].who.pid == pid)
            return true;
    return false;
}

/* Those with the library that have no socket in a folder that was looked at. */
static void add_quiet(struct table *table)
{
    DIR *processes = opendir("/proc");
    const struct dirent *entry;

    while (processes && (entry = readdir(processes))) {
        long pid = strtol(entry->d_name, NULL, 10);
        struct row *row;

        if (pid <= 0 || is_known(table, pid) || !who_has_library(pid))
            continue;
        row = add(table, &nobody);
        who_fill(&row->who, pid, (uint64_t)pid, "");
        quiet_say(pid, row->silent);
    }
    if (processes)
        closedir(processes);
}

static int compare(const void *a, const void *b)
{
    const struct row *left = a, *right = b;

    return COMMAND_ORDER(right->figures.reserved, left->figures.reserved)
               ?: COMMAND_ORDER(left->who.pid, right->who.pid);
}

void figures_find(struct table *table, long only, bool brokers)
{
    /* It is the connections that this is for: what they answer is heard of all together. */
    static const struct ask_time time = {ANSWER_NS, ANSWER_NS};
    struct search search = {.table = table, .brokers = brokers};
    size_t kept = 0;

    search.asked = command_need(calloc(TOGETHER, sizeof *search.asked));
    ask_each(&time, add_listener, &search);
    ask_aside(hear_all, &search);
    free(search.asked);
    add_quiet(table);
    for (size_t i = 0; i < table->count; i++)
        if (!only || table->rows[i].who.pid == only)
            table->rows[kept++] = table->rows[i];
    table->count = kept;
    if (kept)
        qsort(table->rows, kept, sizeof *table->rows, compare);
}
