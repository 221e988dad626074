/* Reading lines by the table of commands, help, and what shells complete (command.h). */

#include <dirent.h>
#include <getopt.h>
#include <stdarg.h>

#include "config/internal.h"
#include "core/base/printable.h"
#include "shim/command/ask.h"

#define WIDTH 80 /* of help */

static bool is_last(const struct command *command, size_t n)
{
    return n == OPTIONS_MOST || !command->options[n].name;
}

/* ---- What is wrong --------------------------------------------------------------------------- */

int call_wrong(const struct call *call, const char *format, ...)
{
    char text[4096];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    command_complain("%s (gpushim help %s)", text, call->command->name);
    return COMMAND_USAGE;
}

/* The nearest of names that are given one after the other. */
struct nearest {
    struct gs_text to;
    char name[GS_OPTION_NAME_SIZE];
    size_t distance;
};

static void try_name(struct nearest *nearest, const char *name)
{
    const size_t distance = gs_text_distance(nearest->to, name);

    if (nearest->distance && distance >= nearest->distance)
        return;
    nearest->distance = distance;
    snprintf(nearest->name, sizeof nearest->name, "%s", distance == SIZE_MAX ? "" : name);
}

const struct command *command_find(const char *name)
{
    struct nearest nearest = {.to = gs_text_of(name)};

    for (size_t i = 0; i < command_count; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    for (size_t i = 0; i < command_count; i++)
        try_name(&nearest, commands[i].name);
    command_complain("there is no command '%s'%s%s%s (gpushim help)", name,
                     nearest.name[0] ? "; did you mean " : "", nearest.name,
                     nearest.name[0] ? "?" : "");
    return NULL;
}

/* ---- Options --------------------------------------------------------------------------------- */

enum { OPTION_HELP = 'h', OPTION_0 = 256 };

/* getopt_long's, all with their place behind OPTION_0, but for --help. */
struct reading {
    struct option options[OPTIONS_MOST + 2];
    const struct command_option *rows[OPTIONS_MOST + 2];
    unsigned count;
    char letters[2 * OPTIONS_MOST + 8];
};

static void add_option(struct reading *reading, const struct command_option *row, const char *name)
{
    reading->options[reading->count] =
        (struct option){name, row && row->argument ? required_argument : no_argument, NULL,
                        row ? OPTION_0 + (int)reading->count : OPTION_HELP};
    reading->rows[reading->count++] = row;
}

/* Those of the row, and where it takes a program's line, nothing behind the first other word. They
 * stay until the next are listed. */
static const struct reading *list_options(const struct command *command)
{
    static struct reading reading;
    char *letter;

    reading = (struct reading){.count = 0};
    letter = stpcpy(reading.letters, command->takes[0] == TAKES_PROGRAM ? "+:h" : ":h");
    add_option(&reading, NULL, "help");
    for (size_t n = 0; !is_last(command, n); n++) {
        const struct command_option *row = &command->options[n];

        add_option(&reading, row, row->name);
        if (row->letter)
            letter += sprintf(letter, "%c%s", row->letter, row->argument ? ":" : "");
    }
    return &reading;
}

static int complain_of(const struct call *call, const struct reading *reading, const char *word)
{
    struct nearest nearest = {.to = gs_text_of(word)};
    const char *equals = strchr(word, '=');

    if (equals)
        nearest.to.size = (size_t)(equals - word);
    while (nearest.to.size && nearest.to.at[0] == '-')
        nearest.to.at++, nearest.to.size--;
    for (unsigned i = 0; i < reading->count && word[1] == '-'; i++)
        if (!reading->rows[i] || reading->rows[i]->help)
            try_name(&nearest, reading->options[i].name);
    return call_wrong(call, "%s does not know '%s'%s%s%s", call->command->name, word,
                      nearest.name[0] ? "; did you mean --" : "", nearest.name,
                      nearest.name[0] ? "?" : "");
}

/* That getopt_long means: by its place, or its letter. */
static const struct command_option *row_of(const struct command *command,
                                           const struct reading *reading, int got)
{
    for (size_t n = 0; got < OPTION_0 && !is_last(command, n); n++)
        if (command->options[n].letter == got)
            return &command->options[n];
    return got < OPTION_0 ? NULL : reading->rows[got - OPTION_0];
}

/* One that getopt_long gave. CALL_GOES_ON, or what to exit with. */
static int take(struct call *call, const struct reading *reading, int got, const char *word)
{
    const struct command_option *row = row_of(call->command, reading, got == ':' ? optopt : got);

    if (got == OPTION_HELP)
        return command_tell(call->command);
    if (got == ':')
        return call_wrong(call, "%s: %s is missing after it", word, row->argument);
    if (!row)
        return complain_of(call, reading, word);
    if (row->argument || !row->letter || !call_has(call, row->name)) /* letters are without end */
        call->given[call->count++] = (struct given){row, row->argument ? optarg : ""};
    return CALL_GOES_ON;
}

static int read_options(struct call *call, const struct reading *reading, int argc, char **argv)
{
    int status = CALL_GOES_ON, got, at = 1;

    optind = 0; /* from the beginning, and of other options than before */
    opterr = 0;
    while (status == CALL_GOES_ON &&
           (got = getopt_long(argc, argv, reading->letters, reading->options, NULL)) != -1) {
        status = take(call, reading, got, argv[optind > 1 ? optind - 1 : at]);
        at = optind;
    }
    call->argc = argc - optind;
    call->argv = argv + optind;
    return status;
}

/* The n-th word of what usage says. */
static const char *argument_name(const struct command *command, int n, char ret[64])
{
    const char *at = command->arguments;

    if (strncmp(at, "[--] ", 5) == 0)
        at += 5;
    for (; n > 0 && strchr(at, ' '); n--)
        at = strchr(at, ' ') + 1;
    snprintf(ret, 64, "%.*s", (int)strcspn(at, " "), at);
    return ret;
}

long call_pid(const struct call *call, int n)
{
    char *end;
    const long pid = n < call->argc ? strtol(call->argv[n], &end, 10) : 0;

    return pid > 0 && pid <= INT32_MAX && !*end ? pid : 0;
}

/* Whether there are as many as there may be, and numbers of processes where these are to be. */
static int check_arguments(const struct call *call)
{
    const struct command *command = call->command;
    char name[64];

    if ((unsigned)call->argc > command->most)
        return call_wrong(call, "%s does not know '%s'", command->name, call->argv[command->most]);
    if ((unsigned)call->argc < command->least && !call_has(call, "print"))
        return call_wrong(call, "%s: %s is missing", command->name,
                          argument_name(command, call->argc, name));
    for (int n = 0; n < call->argc; n++) {
        const enum command_takes takes = command->takes[n > 0];
        const char *word = call->argv[n];
        const bool is_to_be = takes == TAKES_PID ||
                              (takes == TAKES_PID_OR_ALL && strcmp(word, "all") != 0) ||
                              (takes == TAKES_PID_OR_GROUP && word[0] != '/');

        if (is_to_be && !call_pid(call, n))
            return call_wrong(call, "'%s' is no process id", word);
    }
    return CALL_GOES_ON;
}

int call_read(const struct command *command, int argc, char **argv, struct call *ret)
{
    /* One for each word, and one for each letter of a word with several. */
    struct given *given = command_need(calloc((size_t)argc + OPTIONS_MOST, sizeof *given));
    int status;

    *ret = (struct call){.command = command, .given = given};
    status = read_options(ret, list_options(command), argc, argv);
    return status == CALL_GOES_ON ? check_arguments(ret) : status;
}

void call_end(struct call *call)
{
    free(call->given);
}

const char *call_value(const struct call *call, const char *option)
{
    const char *value = NULL;

    for (unsigned i = 0; i < call->count; i++)
        if (strcmp(call->given[i].option->name, option) == 0)
            value = call->given[i].value;
    return value;
}

bool call_has(const struct call *call, const char *option)
{
    return call_value(call, option) != NULL;
}

struct json *call_json(const struct call *call, bool rows)
{
    static struct json json;

    if (!call_has(call, "json"))
        return NULL;
    json = (struct json){.file = stdout};
    json_begin(&json, rows);
    return &json;
}

bool call_seconds(const struct call *call, const char *option, double least, uint64_t *ret_ns)
{
    const char *text = call_value(call, option);
    char *end;
    double seconds;

    if (!text)
        return true;
    seconds = strtod(text, &end);
    if (end == text || !(seconds >= least && seconds <= 86400) ||
        (end[strspn(end, " ")] && strcmp(end + strspn(end, " "), "s") != 0))
        return call_wrong(call, "--%s takes seconds from %g to 86400, and not '%s'", option, least,
                          text),
               false;
    *ret_ns = (uint64_t)(seconds * 1e9);
    return true;
}

/* ---- Help ------------------------------------------------------------------------------------ */

static void print_option(const char *name, const char *help)
{
    const bool fits = strlen(name) < 26;
    char first[32];

    if (!fits)
        printf("  %s\n", name);
    snprintf(first, sizeof first, "  %-26s", fits ? name : "");
    show_wrapped(first, help, WIDTH, true);
}

static void print_options(const struct command *command)
{
    char name[96];

    printf("\nOptions:\n");
    for (size_t n = 0; !is_last(command, n); n++) {
        const struct command_option *option = &command->options[n];
        const char letter[] = {'-', option->letter, ',', ' ', 0};

        if (!option->help)
            continue;
        snprintf(name, sizeof name, "%s--%s%s%s", option->letter ? letter : "", option->name,
                 option->argument ? " " : "", option->argument ? option->argument : "");
        print_option(name, option->help);
    }
    print_option("-h, --help", "says this");
}

int command_tell(const struct command *command)
{
    printf("usage: gpushim %s [OPTION]...%s%s\n", command->name, command->arguments[0] ? " " : "",
           command->arguments);
    show_wrapped("", command->text, WIDTH, true);
    print_options(command);
    if (command->run == command_set) {
        printf("\nWhat can change:\n");
        set_list();
    }
    printf("\nExamples:\n");
    for (size_t i = 0; i < EXAMPLES_MOST && command->examples[i].line; i++)
        printf("  %s\n      %s\n", command->examples[i].line, command->examples[i].why);
    return COMMAND_WELL;
}

int command_help(const struct call *call)
{
    const struct command *command = call->argc ? command_find(call->argv[0]) : NULL;

    if (call->argc)
        return command ? command_tell(command) : COMMAND_USAGE;
    printf("usage: gpushim COMMAND [OPTION]... [ARGUMENT]...\n\n");
    for (size_t i = 0; i < command_count; i++)
        printf("  %-9s %s\n", commands[i].name, commands[i].line);
    printf("\n'gpushim help COMMAND' says what one does, and gpushim(1) all of it.\n"
           "Exit status: 0 it is well, 1 something is wrong, 2 it was called wrongly.\n");
    return COMMAND_WELL;
}

/* ---- What shells complete -------------------------------------------------------------------- */

/* A candidate: `before` is what the word has that is not part of it. */
static void offer(const char *word, const char *before, const char *candidate, const char *help)
{
    const size_t length = strlen(before), typed = strlen(word);
    char text[1024], about[1024];

    if (strncmp(word, before, typed < length ? typed : length) != 0 ||
        (typed > length && strncmp(word + length, candidate, typed - length) != 0))
        return;
    gs_printable(candidate, strlen(candidate), text, sizeof text);
    gs_printable(help, strlen(help), about, sizeof about);
    printf("%s%s\t%s\n", before, text, about);
}

static void offer_pids(const char *word)
{
    DIR *processes = opendir("/proc");
    const struct dirent *entry;
    char name[32];

    while (processes && (entry = readdir(processes))) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' ||
            !who_has_library(strtol(entry->d_name, NULL, 10)))
            continue;
        command_read_of(strtol(entry->d_name, NULL, 10), "comm", name, sizeof name);
        offer(word, "", entry->d_name, name);
    }
    if (processes)
        closedir(processes);
}

/* Names with a = behind them, or behind it the values that the option may have. */
static void offer_values(const char *word, bool live)
{
    static const char *const switches[] = {"on", "off", NULL};

    for (size_t i = 0; i < gs_option_count; i++) {
        const struct gs_option *option = &gs_options[i];
        const char *const *values = option->type == GS_OPTION_BOOL ? switches : option->words;
        char name[GS_OPTION_NAME_SIZE + 1];

        if (live && !option->live)
            continue;
        gs_option_name(option, name);
        strcat(name, "=");
        if (strncmp(word, name, strlen(name)) != 0) {
            offer(word, "", name, option->help);
            continue;
        }
        for (; values && *values; values++) {
            char all[2 * GS_OPTION_NAME_SIZE + 64];

            snprintf(all, sizeof all, "%s%s", name, *values);
            offer(word, "", all, "");
        }
    }
}

static void offer_name(void *word, const char *name, const char *process)
{
    offer(word, "", name, process);
}

static void offer_what_it_takes(enum command_takes takes, const char *word)
{
    if (takes == TAKES_FILE)
        printf(":file\n");
    if (takes == TAKES_PID_OR_ALL)
        offer(word, "", "all", "of this user; for root, of everybody");
    if (takes == TAKES_PID || takes == TAKES_PID_OR_ALL || takes == TAKES_PID_OR_GROUP)
        offer_pids(word);
    if (takes == TAKES_OPTION || takes == TAKES_SETTING)
        offer_values(word, takes == TAKES_SETTING);
    if (takes == TAKES_NAME)
        ls_names(offer_name, (void *)word);
    if (takes == TAKES_GENERATE)
        offer(word, "", "generate", "");
    if (takes == TAKES_FORGET)
        offer(word, "", "forget", "a machine that is gone for good");
    for (size_t i = 0; takes == TAKES_COMMAND && i < command_count; i++)
        offer(word, "", commands[i].name, commands[i].line);
}

static void offer_options(const struct command *command, const struct reading *reading,
                          const char *word)
{
    for (unsigned i = 0; i < reading->count; i++) {
        const struct command_option *row = reading->rows[i];

        if (!row || row->help)
            offer(word, "--", reading->options[i].name, row ? row->help : "what the command does");
    }
    for (size_t n = 0; !is_last(command, n); n++) {
        const char letter[] = {command->options[n].letter, 0};

        if (letter[0])
            offer(word, "-", letter, command->options[n].help);
    }
}

static void complete(const struct command *command, const struct reading *reading, int argc,
                     char **argv)
{
    const char *word = argv[argc - 1];
    const struct command_option *row = NULL; /* whose value the word is */
    int got, others;
    bool options; /* may still come */

    optind = 0;
    opterr = 0;
    while ((got = getopt_long(argc - 2, argv + 1, reading->letters, reading->options, NULL)) != -1)
        row = got == ':' ? row_of(command, reading, optopt) : NULL;
    others = argc - 2 - optind;
    options = strcmp(argv[optind], "--") != 0;
    if (row)
        offer_what_it_takes(row->takes, word);
    else if (command->takes[0] == TAKES_PROGRAM && others > 0)
        printf(":program %d\n", optind + 1);
    else if (options && word[0] == '-')
        offer_options(command, reading, word);
    else if (command->takes[0] == TAKES_PROGRAM)
        printf(":program %d\n", argc - 1);
    else if (others < 2 && (unsigned)others < command->most)
        offer_what_it_takes(command->takes[others], word);
}

int call_complete(int argc, char **argv)
{
    const struct command *command = NULL;

    if (argc < 2)
        return COMMAND_USAGE;
    if (argc == 2) {
        offer_what_it_takes(TAKES_COMMAND, argv[1]);
        offer(argv[1], "", "--help", "which commands there are");
        offer(argv[1], "", "--version", "of this program, and where its library is");
        return COMMAND_WELL;
    }
    for (size_t i = 0; i < command_count; i++)
        if (strcmp(commands[i].name, argv[1]) == 0)
            command = &commands[i];
    if (command)
        complete(command, list_options(command), argc, argv);
    return COMMAND_WELL;
}
