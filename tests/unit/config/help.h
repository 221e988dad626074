/* What the tests of config/ share: loading from texts, and the complaints that came of it. */
#ifndef TESTS_UNIT_CONFIG_HELP_H
#define TESTS_UNIT_CONFIG_HELP_H

#include "config/internal.h"

struct complaints {
    size_t count;
    char lines[64][GS_CONFIG_LINE_SIZE];
};

/* A gs_config_complain_fn; arg is a struct complaints. Fails the test on a line that is not one
 * line of printable ASCII. */
void complaints_add(void *arg, const char *line);

/* Fails the test unless there is exactly one complaint and each of the parts (ends with NULL) is in
 * it. */
void complaints_expect_one(const struct complaints *complaints, const char *const *parts);
#define EXPECT_ONE(complaints, ...) \
    complaints_expect_one(complaints, (const char *const[]){__VA_ARGS__, NULL})

void complaints_expect_none(const struct complaints *complaints);

/* An environment of string literals, as the type of environ has it. */
#define ENVIRONMENT(...) ((char *const *)(const char *const[]){__VA_ARGS__, NULL})

/* Loads from the environment alone. */
void load_environment(char *const *environment, struct gs_config *ret,
                      struct complaints *ret_complaints);
#define LOAD(ret, ret_complaints, ...) \
    load_environment(ENVIRONMENT(__VA_ARGS__), ret, ret_complaints)

/* Parses a file's text. */
void parse_text(const char *text, size_t size, struct gs_config *ret,
                struct complaints *ret_complaints);

/* Fails the test unless every field is within what its row allows. */
void config_expect_valid(const struct gs_config *config);

/* Fails the test unless the two are the same, option by option. */
void config_expect_equal(const struct gs_config *a, const struct gs_config *b);

const struct gs_option *option_named(const char *name);

/* The field of a BYTES, TIME or NUMBER option. */
uint64_t field_number(const struct gs_config *config, const struct gs_option *option);

#endif
