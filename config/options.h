/* THE table of options. One row is one option:
 *
 *     OPTION(section, key, TYPE(limits), default, help)
 *
 * From the row alone follow the field of struct gs_config (config.h), the variable
 * GPUSHIM_<SECTION>_<KEY> (section `general`: GPUSHIM_<KEY>), the line `key = value` under
 * `[section]` of the file, the checks and complaints, gpushim.conf.sample and README.md's list.
 * After a change here: `meson compile -C build update-docs`.
 *
 * Default and limits are written as a person would write them in the file and are read by the same
 * code. Types:
 *
 *     BOOL()            on/off, yes/no, true/false, 1/0                          bool
 *     ENUM(name)        one word of a list below                                 enum
 *     BYTES(low, high)  "64M", "64 MiB"; high may be "unlimited"                 bytes
 *     AMOUNT(low, high) those; "80 %" of something; "off" unless low is 0        gs_config_amount
 *     TIME(low, high)   "200 ms"; ns, us, ms, s, min                             nanoseconds
 *     NUMBER(low, high) a whole number                                           uint64_t
 *     PATH(word)        an absolute path, or `word` in its place                 char array
 *     IDS(low, high)    numbers with commas or spaces between them, or nothing   gs_config_ids
 *
 * LIVE(TYPE(limits)): it can be changed while a program runs (gpushim set); core/process/settings.c
 * does it. Anything that is one number: no path and no ids.
 */
#ifndef GS_CONFIG_OPTIONS_H
#define GS_CONFIG_OPTIONS_H

/* Words of the ENUM options, in the order of their constants: WORD(constant, word). */
#define GS_CONFIG_LOG_WORDS(WORD)          \
    WORD(GS_CONFIG_LOG_OFF, "off")         \
    WORD(GS_CONFIG_LOG_ERROR, "error")     \
    WORD(GS_CONFIG_LOG_WARNING, "warning") \
    WORD(GS_CONFIG_LOG_INFO, "info")       \
    WORD(GS_CONFIG_LOG_DEBUG, "debug")

#define GS_CONFIG_POOL_FREE_WORDS(WORD)            \
    WORD(GS_CONFIG_POOL_FREE_DEFERRED, "deferred") \
    WORD(GS_CONFIG_POOL_FREE_NATIVE, "native")

#define GS_CONFIG_REGISTRATIONS_KEEP_WORDS(WORD)      \
    WORD(GS_CONFIG_REGISTRATIONS_KEEP_NONE, "none")   \
    WORD(GS_CONFIG_REGISTRATIONS_KEEP_LOCAL, "local") \
    WORD(GS_CONFIG_REGISTRATIONS_KEEP_ALL, "all")

#define GS_CONFIG_SHARE_STRATEGY_WORDS(WORD)            \
    WORD(GS_CONFIG_SHARE_STRATEGY_EMBEDDED, "embedded") \
    WORD(GS_CONFIG_SHARE_STRATEGY_BROKER, "broker")

#define GS_CONFIG_SHARE_REACH_WORDS(WORD)          \
    WORD(GS_CONFIG_SHARE_REACH_MACHINE, "machine") \
    WORD(GS_CONFIG_SHARE_REACH_CLUSTER, "cluster")

#define GS_CONFIG_SHARE_ACCESS_WORDS(WORD)                \
    WORD(GS_CONFIG_SHARE_ACCESS_READ_WRITE, "read-write") \
    WORD(GS_CONFIG_SHARE_ACCESS_READ_ONLY, "read-only")

#define GS_CONFIG_SHARE_ISOLATE_WORDS(WORD)        \
    WORD(GS_CONFIG_SHARE_ISOLATE_OFF, "off")       \
    WORD(GS_CONFIG_SHARE_ISOLATE_REFUSE, "refuse") \
    WORD(GS_CONFIG_SHARE_ISOLATE_ALONE, "alone")

#define GS_CONFIG_SLEEP_WAKE_WORDS(WORD)      \
    WORD(GS_CONFIG_SLEEP_WAKE_ORDER, "order") \
    WORD(GS_CONFIG_SLEEP_WAKE_USE, "use")

/* ENUMERATION(name, words): gives `enum gs_config_<name>` and is what ENUM(name) refers to. */
#define GS_CONFIG_ENUMERATIONS(ENUMERATION)                             \
    ENUMERATION(log, GS_CONFIG_LOG_WORDS)                               \
    ENUMERATION(pool_free, GS_CONFIG_POOL_FREE_WORDS)                   \
    ENUMERATION(registrations_keep, GS_CONFIG_REGISTRATIONS_KEEP_WORDS) \
    ENUMERATION(share_strategy, GS_CONFIG_SHARE_STRATEGY_WORDS)         \
    ENUMERATION(share_reach, GS_CONFIG_SHARE_REACH_WORDS)               \
    ENUMERATION(share_access, GS_CONFIG_SHARE_ACCESS_WORDS)             \
    ENUMERATION(share_isolate, GS_CONFIG_SHARE_ISOLATE_WORDS)           \
    ENUMERATION(sleep_wake, GS_CONFIG_SLEEP_WAKE_WORDS)

#define GS_CONFIG_GENERAL_OPTIONS(OPTION)                                                        \
    OPTION(general, enable, BOOL(), "on",                                                        \
           "Whether the library does anything; off leaves every call to the driver as if the "   \
           "library were not loaded.")                                                           \
    OPTION(general, log, LIVE(ENUM(log)), "warning",                                             \
           "How much is logged: each level includes the ones before it.")                        \
    OPTION(general, log_target, PATH("stderr"), "stderr",                                        \
           "Where the log goes: standard error or a file that is appended to, with %p in its "   \
           "name replaced by the process id.")                                                   \
    OPTION(general, record, PATH("none"), "none",                                                \
           "A file in which the process records what becomes of its GPU memory (gpushim report " \
           "reads it), with %p in its name replaced by the process id; none records nothing.")   \
    OPTION(general, record_stacks, NUMBER("0", "64"), "0",                                       \
           "How many return addresses, and lines of Python, are recorded of each call; 0 "       \
           "records none.")

#define GS_CONFIG_POOL_OPTIONS(OPTION)                                                            \
    OPTION(pool, free, ENUM(pool_free), "deferred",                                               \
           "What cuMemFree does while the GPU still works: deferred returns at once and reuses "  \
           "the memory when that work is done, native waits for the work as the driver does.")    \
    OPTION(                                                                                       \
        pool, decay, LIVE(TIME("0", "60 min")), "2 s",                                            \
        "How long free memory lies idle before it goes back to the driver, but for 48 MiB that "  \
        "stay; 0 keeps it.")                                                                      \
    OPTION(                                                                                       \
        pool, cache_limit, LIVE(AMOUNT("0", "unlimited")), "unlimited",                           \
        "How much free memory a process keeps on each GPU for its next allocations, in bytes or " \
        "in percent of the GPU's, or where several threads allocate at once, so much for each "   \
        "group of them; what is beyond goes back to the driver.")                                 \
    OPTION(pool, limit, AMOUNT("2 MiB", "1024 TiB"), "off",                                       \
           "How much memory of each GPU the library takes for a process at most, in bytes or in " \
           "percent of the GPU's: an allocation beyond is refused as on a full GPU, and the "     \
           "calls that tell how much memory there is tell of no more.")                           \
    OPTION(pool, oom_report, PATH(""), "",                                                        \
           "A file to which each report of an allocation that was refused for want of memory is " \
           "appended as a line of JSON, with %p in its name replaced by the process id; when "    \
           "empty, the log alone has it.")

#define GS_CONFIG_SHARE_OPTIONS(OPTION)                                                           \
    OPTION(share, enable, BOOL(), "on",                                                           \
           "Whether the CUDA IPC calls share the library's memory with other processes.")         \
    OPTION(share, dir, PATH(""), "",                                                              \
           "Folder of the sockets by which processes and containers find each other, the same "   \
           "for all of them; when empty, the first that can be had of /run/user/UID/gpushim "     \
           "and /tmp/gpushim-UID.")                                                               \
    OPTION(share, uids, IDS("0", "4294967294"), "",                                               \
           "User ids that may open this process's IPC handles besides its own user.")             \
    OPTION(share, gids, IDS("0", "4294967294"), "",                                               \
           "Group ids whose processes (by primary group) may open this process's IPC handles "    \
           "besides its own user.")                                                               \
    OPTION(share, strategy, ENUM(share_strategy), "embedded",                                     \
           "Who serves shared memory: embedded, the process that shares it, as long as it runs; " \
           "broker, a daemon as well, from which it can still be opened when that process has "   \
           "ended.")                                                                              \
    OPTION(share, reach, ENUM(share_reach), "machine",                                            \
           "How far memory is shared: machine, with processes of this one; cluster, also with "   \
           "those of other machines of its NVLink domain, by fabric handles, where there is a "   \
           "broker (share.strategy) and gpushim-agent runs beside it.")                           \
    OPTION(share, broker, PATH("installed"), "installed",                                         \
           "The broker's program, started by the first process that needs it and finds none "     \
           "running.")                                                                            \
    OPTION(share, keep, TIME("0", "1440 min"), "60 s",                                            \
           "How long a broker keeps memory after its process has ended; anew from when somebody " \
           "who has opened it since then closes it.")                                             \
    OPTION(share, isolate, ENUM(share_isolate), "off",                                            \
           "Whether an IPC handle may give access to neighbours: off, as the driver's does; "     \
           "refuse, small blocks get no handle; alone, every block of this process has whole "    \
           "2 MiB pages of its own.")

#define GS_CONFIG_SLEEP_OPTIONS(OPTION)                                                            \
    OPTION(sleep, after, TIME("0", "1440 min"), "0",                                               \
           "How long the program has made no call that needs the GPU when its process goes to "    \
           "sleep for another of the user's that finds the GPU full; 0: it never does by itself.") \
    OPTION(sleep, wake, ENUM(sleep_wake), "order",                                                 \
           "What wakes a process that sleeps: order, gpushim wake and gpushim_wake alone; use, "   \
           "also the next call of its program that needs the GPU.")

#define GS_CONFIG_REGISTRATIONS_OPTIONS(OPTION)                                                  \
    OPTION(                                                                                      \
        registrations, keep, ENUM(registrations_keep), "local",                                  \
        "Which registrations of GPU memory with network cards and storage are kept after their " \
        "last use: none, those that no other machine can reach (local), or all.")

#define GS_CONFIG_DEBUG_OPTIONS(OPTION)                                                            \
    OPTION(debug, single_stream, BOOL(), "on",                                                     \
           "Whether freed memory is reused at once, in the order of the stream, as long as all "   \
           "GPU work of the process goes to one; off waits for the GPU's work in any case.")       \
    OPTION(                                                                                        \
        debug, small_limit, BYTES("0", "2 MiB"), "1 MiB",                                          \
        "Blocks below this size share pieces of 2 MiB (16 MiB where several threads allocate at "  \
        "once); larger ones lie in and across pieces of 32 MiB and more.")                         \
    OPTION(debug, epoch_bytes, BYTES("0", "1 TiB"), "64 MiB",                                      \
           "How much memory is freed at most before one GPU event is recorded to learn when all "  \
           "of it may be reused; 0 records one for every free.")                                   \
    OPTION(debug, retired_limit, NUMBER("0", "1000"), "10",                                        \
           "How much freed memory may wait for the GPU, in percent of what the program holds, "    \
           "before an allocation that needs more waits for the GPU too (never one in the order "   \
           "of a stream); 64 MiB always may; for a freed block of just its size a large "          \
           "allocation waits already when the process has half that share more than the program "  \
           "held lately; with work in several streams the wait is 0.1 ms at most until twice as "  \
           "much waits; 0 never waits.")                                                           \
    OPTION(debug, pool_cross, BOOL(), "on",                                                        \
           "Whether a block may lie across several of the driver's allocations; off, as always "   \
           "with share.reach = cluster, keeps each inside one, which takes more memory.")          \
    OPTION(debug, reclaim_from_peers, BOOL(), "on",                                                \
           "Whether a process that finds the GPU full asks the user's other processes there to "   \
           "give back what they keep and do not use, and gives such memory back itself.")          \
    OPTION(debug, grace, TIME("0", "60 min"), "60 s",                                              \
           "How long a freed block whose IPC handle was given out waits for a first open, while "  \
           "no more than an eighth of the free memory waits so, else one second at most; an "      \
           "allocation that would fail ends it.")                                                  \
    OPTION(debug, settle, TIME("0", "60 min"), "200 ms",                                           \
           "How long memory rests before its reuse when a process that had it open ended in a "    \
           "way that leaves open whether its GPU work has ended too.")                             \
    OPTION(debug, timeout, TIME("1 ms", "10 min"), "30 s",                                         \
           "How long opening an IPC handle waits for the answer of the process that gave it out.") \
    OPTION(debug, broker_blocks, NUMBER("1", "16777216"), "65536",                                 \
           "How many blocks a broker keeps at most, and half as many of one process; others are "  \
           "shared as long as their process runs.")                                                \
    OPTION(debug, idle, TIME("0", "60 min"), "10 s",                                               \
           "How long a block of another process stays mapped after cuIpcCloseMemHandle, for the "  \
           "next open; the other process can call it back at any time.")                           \
    OPTION(debug, idle_blocks, NUMBER("0", "1000000"), "4096",                                     \
           "How many closed blocks stay mapped at most.")                                          \
    OPTION(debug, access, ENUM(share_access), "read-write",                                        \
           "What others may do with this process's blocks, and it with theirs.")                   \
    OPTION(                                                                                        \
        debug, user_vmm, BOOL(), "on",                                                             \
        "Whether memory that a program makes and maps by itself (cuMemCreate, cuMemMap) is "       \
        "shared by CUDA IPC as other memory is; it gets descriptors for that which the program "   \
        "did not ask for and does not see, and off keeps it as it was asked for, should they "     \
        "stand in the way of something.")                                                          \
    OPTION(debug, limbo_warning, BYTES("0", "unlimited"), "unlimited",                             \
           "A line of log tells who holds what when this much memory is freed and still held by "  \
           "other processes.")                                                                     \
    OPTION(debug, limbo_warning_blocks, NUMBER("0", "1000000000"), "0",                            \
           "That line also when so many blocks are freed and still held; 0 sets no such bound.")   \
    OPTION(debug, limbo_warning_age, TIME("0", "1440 min"), "60 s",                                \
           "That line also when one block has been freed and held for so long; 0 sets no bound.")  \
    OPTION(                                                                                        \
        debug, limbo_limit, BYTES("0", "unlimited"), "unlimited",                                  \
        "When this much is freed and still held by other processes, no new IPC handle is given "   \
        "out, and what is freed is not opened.")                                                   \
    OPTION(debug, max_clients, NUMBER("1", "65536"), "1024",                                       \
           "How many connections from other processes a process serves at a time.")                \
    OPTION(debug, registrations_count, NUMBER("0", "1048576"), "16384",                            \
           "How many registrations are kept; beyond it the least recently used ones go.")          \
    OPTION(debug, registrations_bytes, BYTES("0", "unlimited"), "64 GiB",                          \
           "How much GPU memory the kept registrations pin.")

/* What options were called before, which is understood, and complained of: OLD(section, key, name
 * now, what its value lacks). */
#define GS_CONFIG_OLD_NAMES(OLD)                                           \
    OLD("pool", "lone_stream", "debug.single_stream", "")                  \
    OLD("pool", "small_limit", "debug.small_limit", "")                    \
    OLD("pool", "epoch_bytes", "debug.epoch_bytes", "")                    \
    OLD("pool", "retiring_limit", "debug.retired_limit", "")               \
    OLD("pool", "cache_share", "pool.cache_limit", "%")                    \
    OLD("pool", "neighbours", "debug.reclaim_from_peers", "")              \
    OLD("share", "grace", "debug.grace", "")                               \
    OLD("share", "settle", "debug.settle", "")                             \
    OLD("share", "timeout", "debug.timeout", "")                           \
    OLD("share", "broker_blocks", "debug.broker_blocks", "")               \
    OLD("share", "idle", "debug.idle", "")                                 \
    OLD("share", "idle_blocks", "debug.idle_blocks", "")                   \
    OLD("share", "access", "debug.access", "")                             \
    OLD("share", "own_vmm", "debug.user_vmm", "")                          \
    OLD("share", "limbo_warning", "debug.limbo_warning", "")               \
    OLD("share", "limbo_warning_blocks", "debug.limbo_warning_blocks", "") \
    OLD("share", "limbo_warning_age", "debug.limbo_warning_age", "")       \
    OLD("share", "limbo_limit", "debug.limbo_limit", "")                   \
    OLD("share", "max_clients", "debug.max_clients", "")                   \
    OLD("registrations", "count", "debug.registrations_count", "")         \
    OLD("registrations", "bytes", "debug.registrations_bytes", "")

/* SECTION(name, options, help), in the order of the sample and README.md. */
#define GS_CONFIG_SECTIONS(SECTION)                                                            \
    SECTION(general, GS_CONFIG_GENERAL_OPTIONS, "The library as a whole.")                     \
    SECTION(pool, GS_CONFIG_POOL_OPTIONS, "Allocating and freeing GPU memory.")                \
    SECTION(share, GS_CONFIG_SHARE_OPTIONS, "Memory shared with other processes by CUDA IPC.") \
    SECTION(sleep, GS_CONFIG_SLEEP_OPTIONS,                                                    \
            "Taking a process's memory off the GPU, and bringing it back.")                    \
    SECTION(registrations, GS_CONFIG_REGISTRATIONS_OPTIONS,                                    \
            "GPU memory registered with network cards and storage.")                           \
    SECTION(debug, GS_CONFIG_DEBUG_OPTIONS,                                                    \
            "For those who look for a fault, or measure: without a promise, any version may "  \
            "change them or do without.")

/* Variables GPUSHIM_<NAME> that are no options and draw no complaint about an unknown name. */
#define GS_CONFIG_RESERVED(NAME)                                \
    NAME("CONFIG") /* the configuration file: gs_config_load */ \
    NAME("BUILD")  /* a build's folder, for the scripts of tests and examples */

#endif
