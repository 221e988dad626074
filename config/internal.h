/* What the parts of config/ share. A load goes from the strongest source to the weakest; a source
 * decides the options that no stronger one named (struct gs_loader). */
#ifndef GS_CONFIG_INTERNAL_H
#define GS_CONFIG_INTERNAL_H

#include "config/config.h"
#include "config/explain.h"

/* Bytes that need not end in NUL. */
struct gs_text {
    const char *at;
    size_t size;
};

enum gs_option_type {
    GS_OPTION_BOOL,
    GS_OPTION_ENUM,
    GS_OPTION_BYTES,
    GS_OPTION_AMOUNT,
    GS_OPTION_TIME,
    GS_OPTION_NUMBER,
    GS_OPTION_PATH,
    GS_OPTION_IDS,
};

/* A row of options.h. */
struct gs_option {
    const char *section;
    const char *key;
    enum gs_option_type type;
    const char *low, *high;   /* BYTES, AMOUNT, TIME, NUMBER, IDS */
    const char *const *words; /* ENUM: in the order of the constants, ends with NULL */
    const char *word;         /* PATH: what may stand in place of a path */
    const char *standard;     /* the default */
    const char *help;
    bool live;     /* can be changed while a program runs */
    size_t offset; /* of the field in struct gs_config */
};

/* What an option was called before. */
struct gs_old_name {
    const char *section, *key;
    const char *now;  /* the option's name, as gs_option_name has it */
    const char *unit; /* what has to stand behind an old value; "" */
};

struct gs_section {
    const char *name;
    const char *help;
};

extern const struct gs_option gs_options[];
extern const size_t gs_option_count;
extern const struct gs_section gs_sections[];
extern const size_t gs_section_count;
extern const struct gs_old_name gs_old_names[];
extern const size_t gs_old_name_count;
extern const char *const gs_reserved_names[]; /* ends with NULL */

/* Longest result of gs_quote, its NUL included. */
#define GS_QUOTE_SIZE 72

struct gs_text gs_text_of(const char *string);
bool gs_text_equal(struct gs_text text, const char *string);
/* Letters of ASCII compare without their case, whatever the locale. */
bool gs_text_equal_caseless(struct gs_text text, const char *string);
struct gs_text gs_text_trim(struct gs_text text);

/* Forms of its name: "debug.small_limit", "log" */
typedef void gs_option_form_fn(const struct gs_option *option, char ret[GS_OPTION_NAME_SIZE]);
gs_option_form_fn gs_option_name;
/* "general.log" */
gs_option_form_fn gs_option_whole_name;
/* "GPUSHIM_DEBUG_SMALL_LIMIT", "GPUSHIM_LOG" */
gs_option_form_fn gs_option_variable;
/* "a size from 0 to 2 MiB" */
void gs_option_allowed(const struct gs_option *option, char ret[GS_OPTION_ALLOWED_SIZE]);

/* The option whose name in this form that is, or was: then *ret_old is its old name, else NULL.
 * NULL: there is none. */
const struct gs_option *gs_option_find(struct gs_text name, gs_option_form_fn *form,
                                       const struct gs_old_name **ret_old);
/* The option that is meant by a name that none has, in whatever form: by a slip of the pen, without
 * its section, or under another; `section` is where it stands, NULL: in none. NULL: nothing is
 * close. */
const struct gs_option *gs_option_meant(struct gs_text name, const char *section);
/* The value of an option that was given under an old name, as it takes it. */
struct gs_text gs_old_value(const struct gs_old_name *old, struct gs_text value,
                            char ret[GS_QUOTE_SIZE]);

/* Reads a value (blanks around it are dropped) into the option's field. NULL on success; otherwise
 * what is wrong, to be read after the value ("is too large"), and the field is as before. */
const char *gs_value_parse(struct gs_config *config, const struct gs_option *option,
                           struct gs_text text);

/* The last has no name. Those of one factor: the one that is written first. */
struct gs_unit {
    const char *name;
    uint64_t factor;
};
const struct gs_unit *gs_units_of(enum gs_option_type type);

/* The field as text that gives the same when it is read. Whether it is the default, which is told
 * in the row's own words. */
bool gs_value_format(const struct gs_config *config, const struct gs_option *option,
                     char ret[GS_VALUE_SIZE]);

/* Where a value or a mistake stands. */
struct gs_place {
    const char *file; /* NULL: the environment */
    unsigned line;    /* 0: the file as a whole */
};

struct gs_loader {
    struct gs_config *config;
    uint64_t decided;                    /* options that a stronger source has named, by index */
    uint64_t seen;                       /* options that this source has named so far */
    unsigned left_out;                   /* complaints that found no room in lines */
    size_t used;                         /* bytes of lines */
    char lines[8 * GS_CONFIG_LINE_SIZE]; /* complaints, each ending in NUL */
    struct gs_config_origins *origins;   /* NULL: nobody asks */
    gs_config_complain_fn *at_once;      /* gets complaints instead of lines; NULL: lines */
    void *arg;                           /* of at_once */
};

/* Begins a load: every field has its default. */
void gs_loader_init(struct gs_loader *ret, struct gs_config *config);
/* A value for an option as a source has it. `name` is how that source calls the option. */
void gs_loader_set(struct gs_loader *loader, const struct gs_option *option, struct gs_place place,
                   const char *name, struct gs_text value);
/* All sources, from the strongest to the weakest. */
void gs_loader_load(struct gs_loader *loader, const struct gs_config_sources *sources);

/* Adds one line. What comes from outside has to go through gs_quote or gs_printable; %m is
 * errno. */
void gs_complain(struct gs_loader *loader, struct gs_place place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The text made printable (core/base/printable.h), in quotes. */
const char *gs_quote(struct gs_text text, char ret[GS_QUOTE_SIZE]);

/* How many letters to add, drop, change or swap to get from one text to the other, without their
 * case, and with . _ and - alike; SIZE_MAX where they are too different to be a slip of the pen. */
size_t gs_text_distance(struct gs_text a, const char *b);

/* Reads the lines of a file's text. */
void gs_file_parse(struct gs_loader *loader, const char *name, struct gs_text text);
/* Reads a file. `way_out` ends the complaint about one that cannot be opened; NULL: it may be
 * absent, and then there is none. */
void gs_file_load(struct gs_loader *loader, const char *path, const char *way_out);

#endif
