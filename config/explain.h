/* A configuration in words, for programs that tell people about it (gpushim config): each option's
 * value as the file has it, where it came from, which files were looked for, and names that were
 * meant to be an option's. The library itself uses the rows alone, for its log's first line.
 */
#ifndef GS_CONFIG_EXPLAIN_H
#define GS_CONFIG_EXPLAIN_H

#include "config/config.h"

/* Most options there can be, and most files that are told apart: the last stands for any more. */
#define GS_CONFIG_OPTIONS_MAX 64
#define GS_CONFIG_FILES_MAX   8

/* Longest name of a file, of an option in any form, of what an option allows and of a value, each
 * with its NUL. */
#define GS_CONFIG_NAME_SIZE    4096
#define GS_OPTION_NAME_SIZE    64
#define GS_OPTION_ALLOWED_SIZE 128
#define GS_VALUE_SIZE          (GS_CONFIG_IDS_MAX * 22)

enum gs_config_origin_kind {
    GS_CONFIG_DEFAULT, /* nobody named the option */
    GS_CONFIG_ENVIRONMENT,
    GS_CONFIG_FILE,
};

/* The strongest source that names an option. */
struct gs_config_origin {
    enum gs_config_origin_kind kind;
    bool refused;  /* what it says is not allowed, and the value is the default */
    unsigned file; /* GS_CONFIG_FILE: index in files */
    unsigned line;
};

struct gs_config_file {
    char path[GS_CONFIG_NAME_SIZE];
    bool read;
    char why_not[GS_CONFIG_LINE_SIZE]; /* "absent", or why it was refused; "" if it was read */
};

struct gs_config_origins {
    struct gs_config_origin options[GS_CONFIG_OPTIONS_MAX]; /* as gs_config_row counts them */
    size_t file_count;
    struct gs_config_file files[GS_CONFIG_FILES_MAX]; /* the stronger first */
};

/* One option. The strings without a size are static. */
struct gs_config_row {
    const char *section, *key, *standard, *help;
    const char *type;               /* "bool", "enum", "bytes", "time", "number", "path" or "ids" */
    char name[GS_OPTION_NAME_SIZE]; /* debug.small_limit, log */
    char variable[GS_OPTION_NAME_SIZE]; /* GPUSHIM_DEBUG_SMALL_LIMIT */
    char allowed[GS_OPTION_ALLOWED_SIZE];
    char value[GS_VALUE_SIZE]; /* as a variable takes it; reading it gives the same */
    bool fits_file;            /* and so does a line of a file */
    bool is_default;           /* its value, whoever named it */
    bool live;                 /* it can be changed while a program runs */
};

/* As gs_config_load, and says where everything came from. Complaints, none of them left out, come
 * while *ret is not complete. */
void gs_config_explain(struct gs_config *ret, const struct gs_config_sources *sources,
                       struct gs_config_origins *ret_origins, gs_config_complain_fn *complain,
                       void *arg);

/* As gs_config_explain, of one file alone, with every look at it that a load has: who owns it, who
 * may write. */
void gs_config_check(struct gs_config *ret, const char *path, struct gs_config_origins *ret_origins,
                     gs_config_complain_fn *complain, void *arg);

/* The option of this index, in the order of the sample. False: there are no more. */
bool gs_config_row(const struct gs_config *config, size_t index, struct gs_config_row *ret);

/* Whether an environment's entry (NAME=value) is none of the library's to look at, but was meant to
 * be: GPU_SHIM_LOG, gpushim_log, LIBGPUSHIM_LGO. Then *ret is the variable that is nearest. Names
 * that begin with GPUSHIM_ are a load's to complain about. */
bool gs_config_misspelt(const char *entry, char ret[GS_OPTION_NAME_SIZE]);

#endif
