/* Configuration: what the options of options.h are for this process.
 *
 * An option's value comes from the first of these that has it: the environment, the user's file,
 * the system's files, the default. The files are thus merged key by key. GPUSHIM_CONFIG names a
 * file that is read in place of all; set but empty, no file is read. A set-user-id program
 * (`secure`) takes only the system's files, because the rest is in the hands of whoever started it.
 *
 * A file is read only if it belongs to root or to the process's own user and nobody else may write
 * to it, wherever a link to it lies: what it says decides which program is started as the broker.
 *
 * A value that does not pass its checks gives the option its default, not the next source's value,
 * so that what a complaint says is what happens. Nothing here ends the process, prints, changes
 * errno or keeps memory; there is no global state.
 */
#ifndef GS_CONFIG_CONFIG_H
#define GS_CONFIG_CONFIG_H

#include "config/options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a PATH option, the terminating NUL included. */
#define GS_CONFIG_PATH_SIZE 1024

/* Most entries of an IDS option. */
#define GS_CONFIG_IDS_MAX 64

/* What a BYTES option with no upper limit holds for the word `unlimited`. */
#define GS_CONFIG_UNLIMITED UINT64_MAX

/* Longest complaint, the terminating NUL included. */
#define GS_CONFIG_LINE_SIZE 512

/* How much of the names of the files that were read is kept, the terminating NUL included. */
#define GS_CONFIG_READ_SIZE 512

/* Longest file that is read; a longer one is refused whole. */
#define GS_CONFIG_FILE_SIZE 65536

/* Bytes, or percent of what it is an amount of; the other is 0, and both are where it is off. */
struct gs_config_amount {
    uint64_t bytes;
    uint64_t percent;
};

/* An amount as one number (gpushim set): its bytes, or this and its percent. */
#define GS_CONFIG_PERCENT (UINT64_C(1) << 63)

struct gs_config_ids {
    size_t count;
    uint64_t ids[GS_CONFIG_IDS_MAX];
};

#define GS_CONFIG_CONSTANT(constant, word) constant,
#define GS_CONFIG_ENUMERATION(name, words) enum gs_config_##name{words(GS_CONFIG_CONSTANT)};
GS_CONFIG_ENUMERATIONS(GS_CONFIG_ENUMERATION)

#define GS_CONFIG_MEMBER_BOOL()            bool
#define GS_CONFIG_MEMBER_ENUM(name)        enum gs_config_##name
#define GS_CONFIG_MEMBER_BYTES(low, high)  uint64_t
#define GS_CONFIG_MEMBER_AMOUNT(low, high) struct gs_config_amount
#define GS_CONFIG_MEMBER_TIME(low, high)   uint64_t
#define GS_CONFIG_MEMBER_NUMBER(low, high) uint64_t
#define GS_CONFIG_MEMBER_IDS(low, high)    struct gs_config_ids
#define GS_CONFIG_MEMBER_PATH(word)        struct gs_config_path
#define GS_CONFIG_MEMBER_LIVE(type)        GS_CONFIG_MEMBER_##type

/* Terminated by NUL. */
struct gs_config_path {
    char text[GS_CONFIG_PATH_SIZE];
};

#define GS_CONFIG_MEMBER(section, key, type, standard, help) GS_CONFIG_MEMBER_##type key;
#define GS_CONFIG_STRUCT(name, options, help) \
    struct {                                  \
        options(GS_CONFIG_MEMBER)             \
    } name;

/* The fields: config.general.log, config.debug.small_limit, ... Bytes and nanoseconds. */
struct gs_config {
    GS_CONFIG_SECTIONS(GS_CONFIG_STRUCT)
    char read_files[GS_CONFIG_READ_SIZE]; /* with commas between them, "" if none was read */
};

/* Where to look. All is borrowed for the call. */
struct gs_config_sources {
    char *const *environment; /* like environ; NULL: none. Nobody may change it during the call */
    const char *const *system_files; /* gs_config_system_files; NULL: none */
    bool secure;                     /* getauxval(AT_SECURE): the system's files alone count */
};

/* The system's files, the stronger one first, then NULL: SYSCONFDIR/gpushim.conf as the build was
 * configured, and /etc/gpushim.conf, where people look for it wherever the library is installed. */
extern const char *const gs_config_system_files[];

/* Gets one complaint: a line as it may be shown (core/base/printable.h), without a newline, shorter
 * than GS_CONFIG_LINE_SIZE, that says where, what, what would be allowed, and what happens instead.
 * The line is borrowed for the call. Called after *ret is complete, so that it may go by its log
 * options. A mass of complaints ends with one that says how many were left out. */
typedef void gs_config_complain_fn(void *arg, const char *line);

/* Fills *ret; it cannot fail. `complain` may be NULL. With no file and no variable this costs one
 * attempt to open each. A file that exists allocates GS_CONFIG_FILE_SIZE bytes for the call. */
void gs_config_load(struct gs_config *ret, const struct gs_config_sources *sources,
                    gs_config_complain_fn *complain, void *arg);

/* Fills *ret with the defaults and what `text` (`size` bytes of anything, need not end in NUL or a
 * newline) says, as if it were the only file. `name` stands for the file in complaints. */
void gs_config_parse(struct gs_config *ret, const char *name, const char *text, size_t size,
                     gs_config_complain_fn *complain, void *arg);

#endif
