/*
 * What a slow call waited for: see latency.h.
 *
 * Each thread that calls the driver, the library's own too, writes down its last calls: which, when,
 * how long, of what. After a slow call the program looks through what was written meanwhile. What it
 * reads of another thread may just be overwritten: that takes RING calls while it looks, and costs
 * one wrong line of a report.
 *
 * Page faults and switches are those that the system counts for the thread.
 */
#include "latency.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* CALL(symbol, its parameters, the same as arguments, address, bytes): what the library asks of the
 * driver and may take long. */
#define DRIVER_CALLS(CALL)                                                                         \
    CALL(cuMemCreate,                                                                              \
         (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop,     \
          unsigned long long flags),                                                               \
         (handle, size, prop, flags), 0, size)                                                     \
    CALL(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle), 0, 0)                      \
    CALL(cuMemAddressReserve,                                                                      \
         (CUdeviceptr * ptr, size_t size, size_t alignment, CUdeviceptr near,                      \
          unsigned long long flags),                                                               \
         (ptr, size, alignment, near, flags), near, size)                                          \
    CALL(cuMemAddressFree, (CUdeviceptr ptr, size_t size), (ptr, size), ptr, size)                 \
    CALL(cuMemMap,                                                                                 \
         (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,        \
          unsigned long long flags),                                                               \
         (ptr, size, offset, handle, flags), ptr, size)                                            \
    CALL(cuMemUnmap, (CUdeviceptr ptr, size_t size), (ptr, size), ptr, size)                       \
    CALL(cuMemSetAccess,                                                                           \
         (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count),                \
         (ptr, size, desc, count), ptr, size)                                                      \
    CALL(cuMemAlloc_v2, (CUdeviceptr * ptr, size_t size), (ptr, size), 0, size)                    \
    CALL(cuMemFree_v2, (CUdeviceptr ptr), (ptr), ptr, 0)                                           \
    CALL(cuMemAllocAsync, (CUdeviceptr * ptr, size_t size, CUstream stream), (ptr, size, stream),  \
         0, size)                                                                                  \
    CALL(cuMemFreeAsync, (CUdeviceptr ptr, CUstream stream), (ptr, stream), ptr, 0)                \
    CALL(cuMemGetInfo_v2, (size_t * left, size_t *total), (left, total), 0, 0)                     \
    CALL(cuMemsetD8Async,                                                                          \
         (CUdeviceptr ptr, unsigned char value, size_t count, CUstream stream),                    \
         (ptr, value, count, stream), ptr, count)                                                  \
    CALL(cuMemExportToShareableHandle,                                                             \
         (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,    \
          unsigned long long flags),                                                               \
         (shareable, handle, type, flags), 0, 0)                                                   \
    CALL(cuEventCreate, (CUevent * event, unsigned flags), (event, flags), 0, 0)                   \
    CALL(cuEventDestroy_v2, (CUevent event), (event), 0, 0)                                        \
    CALL(cuEventRecord, (CUevent event, CUstream stream), (event, stream), 0, 0)                   \
    CALL(cuCtxRecordEvent, (CUcontext context, CUevent event), (context, event), 0, 0)             \
    CALL(cuEventQuery, (CUevent event), (event), 0, 0)                                             \
    CALL(cuEventSynchronize, (CUevent event), (event), 0, 0)                                       \
    CALL(cuStreamSynchronize, (CUstream stream), (stream), 0, 0)                                   \
    CALL(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags),                      \
         (stream, event, flags), 0, 0)                                                             \
    CALL(cuCtxSynchronize, (void), (), 0, 0)

enum driver_call {
#define ROW(name, ...) CALL_##name,
    DRIVER_CALLS(ROW)
#undef ROW
        DRIVER_CALL_COUNT
};

static const char *const names[DRIVER_CALL_COUNT] = {
#define ROW(name, ...) #name,
    DRIVER_CALLS(ROW)
#undef ROW
};

/* The driver's own; all found before the first of them is called. */
static struct {
#define ROW(name, ...) __typeof__(&name) name;
    DRIVER_CALLS(ROW)
#undef ROW
} real;

/* ---- what each thread calls ---- */

#define RING 4096

struct called {
    unsigned which;
    uint64_t began_ns, ended_ns, address, bytes;
};

struct sum {
    uint64_t calls, ns, max_ns, bytes;
};

struct caller {
    struct caller *next;
    bool of_program; /* only what it calls within timed calls is written down */
    bool in_call;
    unsigned doing; /* 1 + which, since doing_ns; 0: nothing */
    uint64_t doing_ns, count;
    struct called ring[RING];
    struct sum sums[DRIVER_CALL_COUNT]; /* of a program's thread, those in timed calls */
};

static struct caller *callers; /* all; only ever added to */
static bool counting;
static __thread struct caller *this_caller;

#define LOAD(field)         __atomic_load_n(&(field), __ATOMIC_ACQUIRE)
#define STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELEASE)

static struct caller *caller(void)
{
    if (this_caller)
        return this_caller;
    this_caller = bench_array(1, sizeof *this_caller);
    this_caller->next = LOAD(callers);
    while (!__atomic_compare_exchange_n(&callers, &this_caller->next, this_caller, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
    return this_caller;
}

/* What the program itself asks, between its timed calls, is no concern of theirs. 0: not written down. */
static uint64_t enter(enum driver_call which)
{
    struct caller *me = caller();
    uint64_t now;

    if (me->of_program && !me->in_call)
        return 0;
    now = bench_now();
    STORE(me->doing_ns, now);
    STORE(me->doing, which + 1);
    return now;
}

static void leave(enum driver_call which, uint64_t began, uint64_t address, uint64_t bytes)
{
    struct caller *me = this_caller;
    uint64_t count = LOAD(me->count), now;
    struct called *called = &me->ring[count % RING];
    struct sum *sum = &me->sums[which];

    if (!began)
        return;
    now = bench_now();
    STORE(called->which, which);
    STORE(called->began_ns, began);
    STORE(called->ended_ns, now);
    STORE(called->address, address);
    STORE(called->bytes, bytes);
    STORE(me->count, count + 1);
    STORE(me->doing, 0);
    if (!LOAD(counting))
        return;
    STORE(sum->calls, sum->calls + 1);
    STORE(sum->ns, sum->ns + (now - began));
    STORE(sum->bytes, sum->bytes + bytes);
    if (now - began > sum->max_ns)
        STORE(sum->max_ns, now - began);
}

#define ROW(name, parameters, arguments, address, bytes)                                           \
    static CUresult timed_##name parameters                                                        \
    {                                                                                              \
        uint64_t began = enter(CALL_##name);                                                       \
        CUresult result = real.name arguments;                                                     \
        leave(CALL_##name, began, (address), (bytes));                                             \
        return result;                                                                             \
    }
DRIVER_CALLS(ROW)
#undef ROW

/* ---- in the driver's place ---- */

struct symbols {
    ElfW(Addr) base;
    ElfW(Sym) *table;
    const char *strings;
    const uint32_t *hash;  /* GNU's; NULL: there is */
    const ElfW(Word) *old; /* the old one alone */
    int protection;       /* of the part of the library that the table lies in */
};

/* Some loaders leave offsets in the dynamic table. */
static void *at(ElfW(Addr) base, ElfW(Addr) value)
{
    return (void *)(value < base ? base + value : value);
}

static int find_protection(struct dl_phdr_info *info, size_t size, void *data)
{
    struct symbols *symbols = data;

    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD &&
            (ElfW(Addr))symbols->table - (info->dlpi_addr + part->p_vaddr) < part->p_memsz)
            symbols->protection = (part->p_flags & PF_R ? PROT_READ : 0) |
                                  (part->p_flags & PF_W ? PROT_WRITE : 0) |
                                  (part->p_flags & PF_X ? PROT_EXEC : 0);
    }
    return symbols->protection != PROT_NONE;
}

static struct symbols driver_symbols(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    struct link_map *map = NULL;
    struct symbols symbols = {0};

    if (!driver || dlinfo(driver, RTLD_DI_LINKMAP, &map) != 0)
        bench_die("there is no libcuda.so.1: %s", dlerror());
    symbols.base = map->l_addr;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        void *value = at(map->l_addr, entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB)
            symbols.table = value;
        else if (entry->d_tag == DT_STRTAB)
            symbols.strings = value;
        else if (entry->d_tag == DT_GNU_HASH)
            symbols.hash = value;
        else if (entry->d_tag == DT_HASH)
            symbols.old = value;
    }
    if (symbols.table && symbols.strings && (symbols.hash || symbols.old))
        dl_iterate_phdr(find_protection, &symbols);
    if (symbols.protection == PROT_NONE)
        bench_die("the symbols of %s cannot be read", map->l_name);
    return symbols;
}

static bool is_symbol(const struct symbols *symbols, uint32_t index, const char *name)
{
    const ElfW(Sym) *symbol = &symbols->table[index];

    return symbol->st_shndx != SHN_UNDEF && strcmp(symbols->strings + symbol->st_name, name) == 0;
}

static ElfW(Sym) *symbol_find_old(const struct symbols *symbols, const char *name)
{
    for (uint32_t index = 1; index < symbols->old[1]; index++)
        if (is_symbol(symbols, index, name))
            return &symbols->table[index];
    return NULL;
}

/* The symbol that a look-up of that name comes to first: all of a name are in one bucket. */
static ElfW(Sym) *symbol_find(const struct symbols *symbols, const char *name)
{
    uint32_t buckets = symbols->hash[0], first = symbols->hash[1], words = symbols->hash[2];
    const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)&symbols->hash[4] + words);
    const uint32_t *chain = bucket + buckets;
    uint32_t hash = 5381, index;

    for (const char *c = name; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    index = buckets ? bucket[hash % buckets] : 0;
    for (; index >= first && index > 0; index++) {
        if (is_symbol(symbols, index, name))
            return &symbols->table[index];
        if (chain[index - first] & 1)
            break;
    }
    return NULL;
}

static void protect(ElfW(Sym) *symbol, int protection)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)symbol & ~(page - 1);

    if (mprotect((void *)from, (uintptr_t)(symbol + 1) - from, protection) != 0)
        bench_die("the symbols of libcuda.so.1 cannot be changed: %s", strerror(errno));
}

/* From now on whoever looks the name up finds `ours`. Returns what it was; an old driver may not
 * have it. */
static void *replace(const struct symbols *symbols, const char *name, void *ours)
{
    ElfW(Sym) *symbol =
        symbols->hash ? symbol_find(symbols, name) : symbol_find_old(symbols, name);
    void *theirs;

    if (!symbol)
        return NULL;
    theirs = (void *)(symbols->base + symbol->st_value);
    protect(symbol, symbols->protection | PROT_WRITE);
    symbol->st_value = (ElfW(Addr))ours - symbols->base;
    protect(symbol, symbols->protection);
    return theirs;
}

void latency_why_start(void)
{
    struct symbols symbols = driver_symbols();

#define ROW(name, ...)                                                                             \
    real.name = (__typeof__(&name))replace(&symbols, #name, (void *)timed_##name);
    DRIVER_CALLS(ROW)
#undef ROW
    if (!real.cuMemCreate)
        bench_die("this driver has no cuMemCreate");
}

void latency_why_thread(void)
{
    STORE(caller()->of_program, true);
}

void latency_why_count(bool counts)
{
    STORE(counting, counts);
}

/* ---- one call of the program's ---- */

#define TOLD 8

enum cause {
    CAUSE_DRIVER,                                        /* + which: in this thread */
    CAUSE_OTHERS = CAUSE_DRIVER + DRIVER_CALL_COUNT,     /* + which: in another, while this one slept */
    CAUSE_GPU = CAUSE_OTHERS + DRIVER_CALL_COUNT, /* asked again and again whether it is done */
    CAUSE_SLEPT,
    CAUSE_PREEMPTED,
    CAUSE_FAULTS,
    CAUSE_OWN,
    CAUSE_COUNT
};

struct told {
    unsigned which;
    uint64_t ns, address, bytes; /* ns: of another thread's, as far as it was meanwhile */
};

struct latency_why {
    unsigned cause;
    unsigned long faults, slept, preempted;
    unsigned own, others;               /* how many calls there were; the longest are told */
    struct told own_told[TOLD], other_told[TOLD];
};

static struct sum blamed[CAUSE_COUNT];

void latency_why_begin(struct latency_why_mark *mark)
{
    struct caller *me = caller();

    me->in_call = true;
    mark->driver_calls = me->count;
    getrusage(RUSAGE_THREAD, &mark->before);
    mark->began_ns = bench_now();
}

void latency_why_end(struct latency_why_mark *mark)
{
    getrusage(RUSAGE_THREAD, &mark->after);
    this_caller->in_call = false;
}

/* Keeps the longest, the longest first. */
static void tell(struct told *told, unsigned *count, const struct told *call)
{
    unsigned at = *count < TOLD ? *count : TOLD;

    ++*count;
    if (at == TOLD && told[--at].ns >= call->ns)
        return;
    for (; at > 0 && told[at - 1].ns < call->ns; at--)
        told[at] = told[at - 1];
    told[at] = *call;
}

/* Time by driver call. */
struct spent {
    uint64_t by[DRIVER_CALL_COUNT], all;
    unsigned most; /* the call that took the most */
    uint64_t polled; /* from the end of a cuEventQuery to that of the next, with nothing else between */
};

static void spend(struct spent *spent, unsigned which, uint64_t ns)
{
    spent->by[which] += ns;
    spent->all += ns;
    if (spent->by[which] > spent->by[spent->most])
        spent->most = which;
}

static void add_own(struct latency_why *why, const struct latency_why_mark *mark,
                    struct spent *spent)
{
    uint64_t from = mark->driver_calls, to = this_caller->count;
    const struct called *last = NULL;

    for (uint64_t i = to - from > RING ? to - RING : from; i < to; i++) {
        const struct called *called = &this_caller->ring[i % RING];
        struct told told = {called->which, called->ended_ns - called->began_ns, called->address,
                            called->bytes};
        spend(spent, told.which, told.ns);
        if (last && last->which == CALL_cuEventQuery && called->which == CALL_cuEventQuery)
            spent->polled += called->ended_ns - last->ended_ns;
        last = called;
        tell(why->own_told, &why->own, &told);
    }
}

static uint64_t overlap(uint64_t began, uint64_t ended, const struct latency_why_mark *mark,
                        uint64_t end)
{
    uint64_t from = began > mark->began_ns ? began : mark->began_ns, to = ended < end ? ended : end;

    return to > from ? to - from : 0;
}

/* What one other thread asked of the driver meanwhile; what it is still at has no end yet. */
static void add_other(struct latency_why *why, const struct latency_why_mark *mark, uint64_t end,
                      struct caller *other, struct spent *spent)
{
    unsigned doing = LOAD(other->doing);
    struct told told = {doing - 1, overlap(LOAD(other->doing_ns), end, mark, end), 0, 0};
    uint64_t count = LOAD(other->count);

    if (doing && told.ns > 0) {
        spend(spent, told.which, told.ns);
        tell(why->other_told, &why->others, &told);
    }
    for (uint64_t i = count; i > 0 && count - i < RING / 2; i--) {
        struct called *called = &other->ring[(i - 1) % RING];
        uint64_t began = LOAD(called->began_ns), ended = LOAD(called->ended_ns);

        if (ended <= mark->began_ns)
            break;
        told = (struct told){LOAD(called->which), overlap(began, ended, mark, end),
                             LOAD(called->address), LOAD(called->bytes)};
        if (told.ns == 0)
            continue;
        spend(spent, told.which, told.ns);
        tell(why->other_told, &why->others, &told);
    }
}

/* Of the thread that asked the most. */
static struct spent add_others(struct latency_why *why, const struct latency_why_mark *mark,
                               uint64_t end)
{
    struct spent most = {.all = 0};

    for (struct caller *other = LOAD(callers); other; other = other->next) {
        struct spent spent = {.all = 0};

        if (other == this_caller)
            continue;
        add_other(why, mark, end, other, &spent);
        if (spent.all > most.all)
            most = spent;
    }
    return most;
}

/* What takes at least half of the time: the driver; another thread, if this one slept; else whatever
 * is known of it. */
static unsigned cause_of(const struct latency_why *why, uint64_t ns, const struct spent *own,
                         const struct spent *other)
{
    if (own->polled > ns / 2)
        return CAUSE_GPU;
    if (own->all > ns / 2)
        return CAUSE_DRIVER + own->most;
    if (why->slept && other->all > ns / 2)
        return CAUSE_OTHERS + other->most;
    if (why->slept)
        return CAUSE_SLEPT;
    if (why->preempted)
        return CAUSE_PREEMPTED;
    return why->faults ? CAUSE_FAULTS : CAUSE_OWN;
}

struct latency_why *latency_why_tell(const struct latency_why_mark *mark, uint64_t ns)
{
    struct latency_why *why = bench_array(1, sizeof *why);
    struct spent own = {.all = 0}, other;

    why->faults = (unsigned long)(mark->after.ru_minflt - mark->before.ru_minflt +
                                  mark->after.ru_majflt - mark->before.ru_majflt);
    why->slept = (unsigned long)(mark->after.ru_nvcsw - mark->before.ru_nvcsw);
    why->preempted = (unsigned long)(mark->after.ru_nivcsw - mark->before.ru_nivcsw);
    add_own(why, mark, &own);
    other = add_others(why, mark, mark->began_ns + ns);
    why->cause = cause_of(why, ns, &own, &other);
    return why;
}

void latency_why_blame(const struct latency_why *why, uint64_t ns)
{
    struct sum *sum = &blamed[why->cause];
    uint64_t most = LOAD(sum->max_ns);

    __atomic_fetch_add(&sum->calls, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&sum->ns, ns, __ATOMIC_RELAXED);
    while (ns > most && !__atomic_compare_exchange_n(&sum->max_ns, &most, ns, false,
                                                     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
}

/* ---- printing ---- */

static void print_cause(unsigned cause)
{
    static const char *const others[] = {"waited for the GPU", "slept", "preempted",
                                         "page faults", "its own work"};
    char text[80];

    if (cause < CAUSE_OTHERS)
        snprintf(text, sizeof text, "%s", names[cause - CAUSE_DRIVER]);
    else if (cause < CAUSE_GPU)
        snprintf(text, sizeof text, "slept during another's %s", names[cause - CAUSE_OTHERS]);
    else
        snprintf(text, sizeof text, "%s", others[cause - CAUSE_GPU]);
    json_text("cause", text);
}

static void print_told(const char *key, const struct told *told, unsigned count)
{
    char address[24];

    json_list(key);
    for (unsigned i = 0; i < count && i < TOLD; i++) {
        json_object(NULL);
        json_text("call", names[told[i].which]);
        json_count("ns", told[i].ns);
        snprintf(address, sizeof address, "%llx", (unsigned long long)told[i].address);
        if (told[i].address)
            json_text("address", address);
        if (told[i].bytes)
            json_count("bytes", told[i].bytes);
        json_close();
    }
    json_close();
}

void latency_why_print(const struct latency_why *why)
{
    print_cause(why->cause);
    json_count("faults", why->faults);
    json_count("slept", why->slept);
    json_count("preempted", why->preempted);
    json_count("driver_calls", why->own);
    print_told("driver", why->own_told, why->own);
    print_told("others", why->other_told, why->others);
}

static void print_sum(const struct sum *sum)
{
    json_count("calls", sum->calls);
    json_count("ns", sum->ns);
    json_count("max_ns", sum->max_ns);
}

static void add(struct sum *to, struct sum *sum)
{
    uint64_t most = LOAD(sum->max_ns);

    to->calls += LOAD(sum->calls);
    to->ns += LOAD(sum->ns);
    to->bytes += LOAD(sum->bytes);
    if (most > to->max_ns)
        to->max_ns = most;
}

static void print_driver_calls(void)
{
    json_list("driver");
    for (unsigned i = 0; i < DRIVER_CALL_COUNT; i++) {
        struct sum ours = {0}, theirs = {0};

        for (struct caller *other = LOAD(callers); other; other = other->next)
            add(other->of_program ? &ours : &theirs, &other->sums[i]);
        if (ours.calls + theirs.calls == 0)
            continue;
        json_object(NULL);
        json_text("call", names[i]);
        print_sum(&ours);
        json_count("bytes", ours.bytes);
        json_count("others_calls", theirs.calls);
        json_count("others_ns", theirs.ns);
        json_close();
    }
    json_close();
}

void latency_why_print_sums(const char *key, uint64_t above_ns)
{
    json_object(key);
    json_count("above_ns", above_ns);
    json_list("causes");
    for (unsigned i = 0; i < CAUSE_COUNT; i++) {
        if (!blamed[i].calls)
            continue;
        json_object(NULL);
        print_cause(i);
        print_sum(&blamed[i]);
        json_close();
    }
    json_close();
    print_driver_calls();
    json_close();
}
