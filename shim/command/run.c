/* gpushim run: sets LD_PRELOAD and options, says what would keep the library out, and becomes the
 * program. gpushim record stays beside it, passes signals and the exit status on, and has the last
 * line. */
#include <fcntl.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "config/internal.h"
#include "shim/command/command.h"
#include "shim/command/run.h"

/* As shells and env(1) say it. */
enum { CANNOT_START = 126, NOT_FOUND = 127 };

/* ---- The library ---------------------------------------------------------------------------- */

#if defined __x86_64__
#define MULTIARCH "x86_64-linux-gnu"
#elif defined __aarch64__
#define MULTIARCH "aarch64-linux-gnu"
#endif

/* From this program's folder, or the one above it. */
static const char *const places[] = {"../" LIBRARY, "../lib/" MULTIARCH "/" LIBRARY,
                                     "../lib64/" LIBRARY, "../lib/" LIBRARY, "/" LIBRARY};

static void cut_last_part(char *path)
{
    char *slash = strrchr(path, '/');

    if (slash)
        *slash = 0;
}

/* Without /proc this program lies by the name that it was called by. False: there are no more. */
static bool library_place(unsigned n, char ret_path[PATH_MAX])
{
    const char *rest = n < sizeof places / sizeof *places ? places[n] : NULL;
    size_t length = (size_t)readlink("/proc/self/exe", ret_path, PATH_MAX - 1);

    if (!rest)
        return false;
    if (length < PATH_MAX)
        ret_path[length] = 0;
    else if (!realpath((const char *)getauxval(AT_EXECFN), ret_path))
        snprintf(ret_path, PATH_MAX, "%s", (const char *)getauxval(AT_EXECFN));
    cut_last_part(ret_path);
    if (rest[0] == '.')
        cut_last_part(ret_path), rest += 2;
    length = strlen(ret_path);
    snprintf(ret_path + length, PATH_MAX - length, "%s", rest);
    return true;
}

void library_find(char ret_path[PATH_MAX])
{
    char path[PATH_MAX];
    struct run_file file;

    for (unsigned n = 0; library_place(n, path); n++) {
        run_file_read(path, &file);
        if (file.kind == RUN_ELF && realpath(path, ret_path))
            return;
    }
    ret_path[0] = 0;
}

void library_complain(void)
{
    char path[PATH_MAX];

    command_complain("there is no " LIBRARY
                     " that belongs to this program; install it in one of the "
                     "places where it was looked for:");
    for (unsigned n = 0; library_place(n, path); n++)
        command_complain("  %s: %s", path, strerror(access(path, R_OK) == 0 ? ENOEXEC : errno));
}

static bool find_library(char ret_path[PATH_MAX])
{
    library_find(ret_path);
    if (ret_path[0] && !strpbrk(ret_path, " :"))
        return true;
    if (!ret_path[0])
        library_complain();
    else
        command_complain(
            "the library's path is '%s', and LD_PRELOAD cannot name one with a space or a colon in it; install "
            "this program and the library in a folder without",
            ret_path);
    return false;
}

/* Whether an entry of LD_PRELOAD stays behind the library: not itself, nor another copy of it, as
 * two in one process would both serve the program's calls. */
static bool stays(const char *entry, const char *library)
{
    if (!*entry || command_is_same_file(entry, library))
        return false;
    if (strcmp(basename(entry), LIBRARY) != 0)
        return true;
    command_complain("warning: LD_PRELOAD names '%s'; this program's own '%s' goes there instead",
                     entry, library);
    return false;
}

static void preload(const char *library)
{
    const char *others = getenv("LD_PRELOAD");
    char *list = command_need(strdup(others ? others : "")), *rest = list, *entry;
    char *all = command_need(malloc(strlen(library) + strlen(list) + 2)),
         *end = stpcpy(all, library);

    while ((entry = strsep(&rest, " :")))
        if (stays(entry, library))
            end = stpcpy(stpcpy(end, ":"), entry);
    command_need(setenv("LD_PRELOAD", all, 1) == 0 ? all : NULL);
    free(list);
    free(all);
}

/* ---- The program ---------------------------------------------------------------------------- */

/* 0, or the exit status, and said why. */
static int find_program(const char *name, char ret_path[PATH_MAX])
{
    int error = run_file_find(name, ret_path);

    if (error == -ENOENT)
        command_complain("'%s' is not found%s; give its path, or install it", name,
                         strchr(name, '/') ? "" : " in PATH");
    else if (error)
        command_complain(
            "'%s' may not be executed, or is a folder; look at its mode (chmod +x), its folders', and whether its "
            "file system is mounted noexec",
            ret_path);
    return !error ? 0 : error == -ENOENT ? NOT_FOUND : CANNOT_START;
}

/* Returns only where it cannot. What does not say who runs it is the shell's, as execvp has it. */
static int start(const char *path, char **argv)
{
    char quoted[GS_QUOTE_SIZE];
    struct run_file file;
    int error;

    execv(path, argv);
    error = errno;
    run_file_read(path, &file);
    if (error == ENOEXEC && file.kind == RUN_OTHER) {
        execvp(path, argv);
        error = errno;
    }
    if (error == ENOENT && file.interpreter[0])
        command_complain("'%s' cannot be started: it is to be started by %s, which is not there or "
                         "lacks what it needs itself; install that",
                         path, gs_quote(gs_text_of(file.interpreter), quoted));
    else
        command_complain("'%s' cannot be started: %s%s", path, strerror(error),
                         error == ENOEXEC ? "; it is no program for this machine" : "");
    return CANNOT_START;
}

/* ---- Options --------------------------------------------------------------------------------- */

static uint64_t were_set; /* by index in gs_options */

static void complain_of_name(const char *before, struct gs_text text)
{
    const struct gs_option *meant = gs_option_meant(text, NULL);
    char quoted[GS_QUOTE_SIZE], name[GS_OPTION_NAME_SIZE] = "";

    if (meant)
        gs_option_name(meant, name);
    command_complain("%sno option has the name %s; %s%s%s", before, gs_quote(text, quoted),
                     meant ? "did you mean " : "'gpushim config' lists them", name,
                     meant ? "?" : "");
}

static bool check(const char *before, const struct gs_option *option, const char *value,
                  struct gs_config *ret)
{
    const struct gs_text text = gs_text_of(value);
    const char *wrong = gs_value_parse(ret, option, text);
    char name[GS_OPTION_NAME_SIZE], allowed[GS_OPTION_ALLOWED_SIZE], quoted[GS_QUOTE_SIZE];

    if (!wrong)
        return true;
    gs_option_name(option, name);
    gs_option_allowed(option, allowed);
    command_complain("%s%s = %s %s; allowed: %s", before, name, gs_quote(text, quoted), wrong,
                     allowed);
    return false;
}

/* The option of that name ("pool.decay", "log", or "general.log", as files know it), or one that
 * had it before, which is said; what it was called then is in *ret_old. */
static const struct gs_option *find(const char *before, struct gs_text name,
                                    const struct gs_old_name **ret_old)
{
    const struct gs_option *option = gs_option_find(name, gs_option_name, ret_old);

    if (!option)
        option = gs_option_find(name, gs_option_whole_name, ret_old);
    if (!option)
        complain_of_name(before, name);
    else if (*ret_old)
        command_complain("%s%.*s is called %s now, and is taken for that", before, (int)name.size,
                         name.at, (*ret_old)->now);
    return option;
}

const struct gs_option *run_option_read(const char *before, const char *text, struct gs_config *ret,
                                        const char **ret_value)
{
    static char changed[GS_QUOTE_SIZE];
    const char *equals = strchr(text, '=');
    const struct gs_text name =
        gs_text_trim((struct gs_text){text, equals ? (size_t)(equals - text) : strlen(text)});
    const struct gs_old_name *old;
    const struct gs_option *option = find(before, name, &old);
    char quoted[GS_QUOTE_SIZE];

    if (option && !equals)
        command_complain("%s%s has no value; write %s=VALUE", before, gs_quote(name, quoted), text);
    if (!option || !equals)
        return NULL;
    *ret_value = equals + 1;
    if (old && *old->unit) /* else it stays as it is, with an end */
        *ret_value = gs_old_value(old, gs_text_of(equals + 1), changed).at;
    return check(before, option, *ret_value, ret) ? option : NULL;
}

static bool set(const char *text)
{
    static struct gs_config config;
    char variable[GS_OPTION_NAME_SIZE];
    const char *value;
    const struct gs_option *option = run_option_read("-o: ", text, &config, &value);

    if (!option)
        return false;
    gs_option_variable(option, variable);
    if (setenv(variable, value, 1) != 0)
        return command_complain("%s: %m", variable), false;
    were_set |= UINT64_C(1) << (option - gs_options);
    return true;
}

/* FILE of --record, as the library takes it: wherever the program runs. */
static bool record_to(const char *file)
{
    char folder[PATH_MAX] = "", option[2 * PATH_MAX + 16];

    if (!*file || (file[0] != '/' && !getcwd(folder, sizeof folder)))
        return command_complain("--record: the file's name is missing"), false;
    if (!folder[1]) /* it is / */
        folder[0] = 0;
    snprintf(option, sizeof option, "record=%s/%s", folder, file + (file[0] == '/'));
    return set(option);
}

/* False, and said: it cannot be. */
static bool take_option(const struct given *given)
{
    const char *option = given->option->name;
    char stacks[64];

    if (strcmp(option, "set") == 0)
        return set(given->value);
    snprintf(stacks, sizeof stacks, "record_stacks=%.40s", given->value);
    if (strcmp(option, "record-stacks") == 0)
        return set(stacks);
    return strcmp(option, "print") == 0 || record_to(given->value);
}

/* Where nobody says: beside what runs, by its name and process. */
static bool record_by_default(const char *program)
{
    char file[NAME_MAX + 1];

    snprintf(file, sizeof file, "%.200s-%%p.trace", basename(program));
    return record_to(file);
}

/* ---- Beside what is recorded ---------------------------------------------------------------- */

/* The program's file as it lies there now; all 0: it does not. */
static struct stat recording_of(pid_t program, char ret_file[PATH_MAX])
{
    const char *name = getenv("GPUSHIM_RECORD"), *percent = name ? strstr(name, "%p") : NULL;
    struct stat info;

    if (percent)
        snprintf(ret_file, PATH_MAX, "%.*s%d%s", (int)(percent - name), name, program, percent + 2);
    else
        snprintf(ret_file, PATH_MAX, "%s", name ? name : "");
    return fstatat(AT_FDCWD, ret_file, &info, 0) == 0 ? info : (struct stat){0};
}

/* What was there before it began may be another's, which stays. */
static void say_what_comes_next(pid_t program, const struct stat *before)
{
    char file[PATH_MAX];
    const struct stat now = recording_of(program, file);

    if (now.st_ino != before->st_ino || now.st_size != before->st_size ||
        memcmp(&now.st_mtim, &before->st_mtim, sizeof now.st_mtim) != 0)
        command_complain("next: gpushim report %s", file);
    else
        command_complain(
            "nothing is recorded: the program has not used CUDA, or the library said why (there is no new %s)",
            file);
}

/* Its status. What this process is sent it gets as well; what a terminal sends it has itself. */
static int await_end(pid_t program, const sigset_t *heard)
{
    siginfo_t got;
    int status;

    while (waitpid(program, &status, WNOHANG) != program)
        if (sigwaitinfo(heard, &got) > 0 && got.si_signo != SIGCHLD && got.si_code <= 0)
            kill(program, got.si_signo);
    return status;
}

/* As the program ended: by a signal, too, of which it alone leaves a core. */
static int end_as(int status)
{
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
    return 128 + WTERMSIG(status);
}

static int start_recorded(const char *path, char **argv)
{
    static const int numbers[] = {SIGCHLD, SIGHUP,  SIGINT,  SIGQUIT,
                                  SIGTERM, SIGUSR1, SIGUSR2, SIGALRM};
    char file[PATH_MAX];
    const struct stat old = recording_of(0, file);
    struct sigaction on_child;
    sigset_t heard, before;
    pid_t program;
    int status;

    sigemptyset(&heard);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(&heard, numbers[i]);
    sigprocmask(SIG_BLOCK, &heard, &before);
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, &on_child);
    program = fork();
    if (program == 0) {
        sigaction(SIGCHLD, &on_child, NULL);
        sigprocmask(SIG_SETMASK, &before, NULL);
        return start(path, argv);
    }
    if (program < 0) {
        command_complain("'%s' cannot be started: %s", path, strerror(errno));
        return CANNOT_START;
    }
    status = await_end(program, &heard);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != CANNOT_START)
        say_what_comes_next(program, &old);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return end_as(status);
}

static int run(const struct call *call, bool records)
{
    char library[PATH_MAX], path[PATH_MAX], variable[GS_OPTION_NAME_SIZE];
    int status;

    for (unsigned i = 0; i < call->count; i++)
        if (!take_option(&call->given[i]))
            return COMMAND_USAGE;
    if (!find_library(library))
        return COMMAND_WRONG;
    if (call->argc && (status = find_program(call->argv[0], path)))
        return status;
    if (records && call->argc && !call_has(call, "output") && !record_by_default(path))
        return COMMAND_USAGE;
    preload(library);
    if (call->argc)
        run_check(path);
    if (call_has(call, "print")) {
        command_say("LD_PRELOAD=%s", getenv("LD_PRELOAD"));
        for (size_t i = 0; i < gs_option_count; i++) {
            gs_option_variable(&gs_options[i], variable);
            if (were_set >> i & 1)
                command_say("%s=%s", variable, getenv(variable));
        }
        return COMMAND_WELL;
    }
    return records ? start_recorded(path, call->argv) : start(path, call->argv);
}

int command_run(const struct call *call)
{
    return run(call, false);
}

int command_record(const struct call *call)
{
    return run(call, true);
}
