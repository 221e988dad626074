/*
 *   chaos [--seconds N] [--seed N] [--strategy embedded|broker] [--processes N] [--shim PATH|none]
 *         [--broker PATH] [--no-namespaces]
 *   chaos --scribble N [--shim PATH|none]
 *
 * See chaos.h. Start it without the shim: it gives that to its processes itself, from
 * ../../shim/libgpushim.so beside this program unless --shim names one; "none" gives none, to see
 * what the driver alone does. With --strategy broker, brokers are killed as well; --broker names
 * the program, ../../shim/command/gpushim-broker beside this one is taken where it is there. The
 * same seed takes the same choices, at other instants. The last line is "chaos: ok KILLS kills
 * CHECKS checks" or what went wrong; the exit status 0, 1 for something wrong, 2 for a call that
 * cannot be met.
 */
#include "chaos.h"

#include <getopt.h>

#define HANG_NS    (UINT64_C(120000) * MS) /* a step that takes longer never ends */
#define MORE_NS    (UINT64_C(60000) * MS)  /* for a machine that was too busy to prove anything */
#define LEAVE_NS   (UINT64_C(30000) * MS)
#define GRACE_MS   600
#define RESTART_MS 50
#define LIFE_MS    3000 /* a mortal process is killed before, if it has not ended by itself */
#define SMALLEST   2
#define SETTLE_MS  200

static const char *const step_texts[] = {
#define STEP_TEXT(name, text) text,
    CHAOS_STEPS(STEP_TEXT)};

/* One process as the supervisor sees it. */
struct place {
    pid_t pid; /* 0: none */
    struct chaos_launch launch;
    uint64_t kill_ns;    /* when to kill it; 0: never */
    uint64_t restart_ns; /* when to start the next */
    bool killed;
    uint64_t random;
};

struct supervisor {
    const struct chaos_options *options;
    struct chaos_world *world;
    int world_fd;
    struct place place[CHAOS_SLOTS];
    unsigned kinds[3], kind_count; /* of namespaces that can be had */
    uint64_t kills, driver_kills, inside_kills, broker_kills;
    uint64_t broker_kill_ns; /* when to kill the broker next; 0: never */
    uint64_t random;
    char wrong[512];
};

/* ---- Small things --------------------------------------------------------------------------- */

uint64_t chaos_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

unsigned chaos_below(uint64_t *state, unsigned below)
{
    return (unsigned)(chaos_random(state) >> 33) % below;
}

void chaos_sleep_us(unsigned us)
{
    struct timespec left = {us / 1000000, (long)(us % 1000000) * 1000};

    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}

static bool is_wrong(const struct supervisor *sup)
{
    return sup->wrong[0] != 0;
}

static void say_wrong(struct supervisor *sup, const char *what)
{
    if (!is_wrong(sup))
        snprintf(sup->wrong, sizeof sup->wrong, "%s", what);
}

/* ---- Starting and killing ------------------------------------------------------------------- */

/* Calls that the shim makes while it allocates, shares, opens, closes and frees. */
static const char *const deadly_calls[] = {
    "cuMemCreate",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemAddressFree",
    "cuMemRelease",
    "cuCtxRecordEvent",
    "cuEventQuery",
    "cuEventCreate",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
};

/* One process in three dies inside one of these calls, wherever that is made, and one in three on
 * either side of a system call of the library's. */
static void choose_faults(struct place *place)
{
    const unsigned calls = sizeof deadly_calls / sizeof *deadly_calls;
    unsigned kind = chaos_below(&place->random, 3), call;

    place->launch.faults[0] = place->launch.die[0] = 0;
    if (kind == 0)
        snprintf(place->launch.faults, sizeof place->launch.faults, "%s:kill:%u",
                 deadly_calls[chaos_below(&place->random, calls)],
                 1 + chaos_below(&place->random, 60));
    if (kind != 1)
        return;
    call = chaos_below(&place->random, CHAOS_DEADLY); /* of some there are few in a life */
    snprintf(place->launch.die, sizeof place->launch.die, "%s:%s:%u", chaos_deadly_names[call],
             chaos_below(&place->random, 2) ? "before" : "after",
             1 + chaos_below(&place->random, call == DEADLY_SENDMSG || call == DEADLY_RECVMSG ? 60
                                             : call == DEADLY_EPOLL                           ? 20
                                                                                              : 3));
}

static const char *choose_idle(struct place *place)
{
    static const char *const times[] = {NULL, "0", "30 ms"};

    return times[chaos_below(&place->random, 3)];
}

static void start_in(struct supervisor *sup, unsigned slot)
{
    struct place *place = &sup->place[slot];
    bool mortal = !(place->launch.flags & (ACTOR_SURVIVES | ACTOR_LAST));

    place->killed = false;
    place->kill_ns = 0;
    atomic_store(&sup->world->slot[slot].step_ns, now_ns());
    if (mortal) {
        choose_faults(place);
        place->launch.idle = choose_idle(place);
        place->kill_ns = now_ns() + (RESTART_MS + chaos_below(&place->random, LIFE_MS)) * MS;
    }
    place->pid = chaos_launch(sup->options, &place->launch, sup->world_fd);
    if (place->pid < 0) {
        place->pid = 0;
        say_wrong(sup, "no process can be started");
    }
}

static void kill_place(struct place *place)
{
    place->killed = true;
    kill(place->pid, SIGKILL);
}

static void judge_end(struct supervisor *sup, unsigned slot, int status)
{
    struct place *place = &sup->place[slot];
    bool by_kill = (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
                   (WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGKILL);
    bool survives = place->launch.flags & ACTOR_SURVIVES;
    char what[160];

    place->pid = 0;
    place->restart_ns = now_ns() + chaos_below(&place->random, RESTART_MS) * MS;
    if (atomic_load(&sup->world->slot[slot].is_wrong)) /* it says itself what */
        return;
    if (by_kill && (place->killed || place->launch.faults[0] || place->launch.die[0])) {
        sup->kills++;
        if (!place->killed && place->launch.faults[0])
            sup->driver_kills++;
        else if (!place->killed)
            sup->inside_kills++;
        return;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 &&
        (!survives || atomic_load(&sup->world->phase) == PHASE_LEAVE))
        return;
    snprintf(what, sizeof what, "process %u, while %s, ended by itself with %s %d", slot,
             step_texts[atomic_load(&sup->world->slot[slot].step)],
             WIFSIGNALED(status) ? "signal" : "status",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    say_wrong(sup, what);
}

static void reap(struct supervisor *sup)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (unsigned i = 0; i < sup->world->slots; i++)
            if (sup->place[i].pid == pid)
                judge_end(sup, i, status);
}

/* ---- Watching ------------------------------------------------------------------------------- */

/* The first of those that found something wrong: what it shared goes with it, and the others find
 * that wrong then. */
static const struct chaos_slot *first_wrong(const struct supervisor *sup)
{
    const struct chaos_slot *first = NULL;

    for (unsigned i = 0; i < sup->world->slots; i++) {
        const struct chaos_slot *slot = &sup->world->slot[i];

        if (atomic_load(&slot->is_wrong) && (!first || slot->wrong_ns < first->wrong_ns))
            first = slot;
    }
    return first;
}

static void watch_slots(struct supervisor *sup)
{
    if (is_wrong(sup) || !first_wrong(sup))
        return;
    chaos_sleep_us(SETTLE_MS * 1000); /* it may be because another has crashed, unseen so far */
    reap(sup);
    say_wrong(sup, first_wrong(sup)->wrong);
}

static void watch(struct supervisor *sup)
{
    uint64_t now = now_ns();
    char what[160];

    for (unsigned i = 0; i < sup->world->slots; i++) {
        const struct chaos_slot *slot = &sup->world->slot[i];
        uint64_t began = atomic_load(&slot->step_ns);

        if (sup->place[i].pid && began && now > began && now - began > HANG_NS) {
            snprintf(what, sizeof what, "process %u (pid %d) hangs: %s for %llu s", i,
                     (int)sup->place[i].pid, step_texts[atomic_load(&slot->step)],
                     (unsigned long long)((now - began) / 1000000000u));
            say_wrong(sup, what);
        }
    }
}

static void round_once(struct supervisor *sup, bool restart)
{
    reap(sup);
    watch_slots(sup);
    watch(sup);
    for (unsigned i = 0; i < sup->world->slots && !is_wrong(sup); i++) {
        struct place *place = &sup->place[i];

        if (!place->pid && restart && now_ns() > place->restart_ns)
            start_in(sup, i);
        if (place->pid && place->kill_ns && restart && now_ns() > place->kill_ns && !place->killed)
            kill_place(place);
    }
    chaos_sleep_us(2000);
}

static bool all_finished(const struct supervisor *sup)
{
    for (unsigned i = 0; i < sup->world->slots; i++)
        if (sup->place[i].pid && !atomic_load(&sup->world->slot[i].finished))
            return false;
    return true;
}

static bool all_left(const struct supervisor *sup)
{
    for (unsigned i = 0; i < sup->world->slots; i++)
        if (sup->place[i].pid)
            return false;
    return true;
}

/* Goes on until `done`, which must be within `limit_ns`. */
static void wait_for(struct supervisor *sup, bool (*done)(const struct supervisor *),
                     uint64_t limit_ns, const char *otherwise)
{
    uint64_t end = now_ns() + limit_ns;

    while (!is_wrong(sup) && !done(sup)) {
        round_once(sup, false);
        if (now_ns() > end)
            say_wrong(sup, otherwise);
    }
}

static void kill_all(struct supervisor *sup)
{
    for (unsigned i = 0; i < sup->world->slots; i++)
        if (sup->place[i].pid) {
            kill(sup->place[i].pid, SIGKILL);
            waitpid(sup->place[i].pid, NULL, 0);
            sup->place[i].pid = 0;
        }
}

/* ---- The end -------------------------------------------------------------------------------- */

/* As if an hour had passed: sooner nobody clears away what a process of another PID namespace left,
 * which may live, nor a socket whose maker was killed before it listened (a minute). */
static void let_an_hour_pass(const struct supervisor *sup)
{
    const struct timespec then = {.tv_sec = time(NULL) - 2 * 3600}, times[2] = {then, then};
    char path[CHAOS_PATH + 8];
    const struct dirent *entry;
    DIR *list;

    snprintf(path, sizeof path, "%s/share", sup->options->dir);
    list = opendir(path);
    while (list && (entry = readdir(list)))
        if (entry->d_name[0] != '.')
            utimensat(dirfd(list), entry->d_name, times, AT_SYMLINK_NOFOLLOW);
    if (list)
        closedir(list);
}

/* The first entry of the runtime directory that should not be there. */
static bool left_behind(const struct supervisor *sup, char *ret_name, size_t size)
{
    char path[CHAOS_PATH + 8];
    const struct dirent *entry;
    bool found = false;
    DIR *list;

    snprintf(path, sizeof path, "%s/share", sup->options->dir);
    list = opendir(path);
    while (list && !found && (entry = readdir(list))) {
        found = entry->d_name[0] != '.';
        if (found)
            snprintf(ret_name, size, "%s is left in the runtime directory", entry->d_name);
    }
    if (list)
        closedir(list);
    return found;
}

/* What killed processes left is for the next one that shares to clear away. */
static void check_directory(struct supervisor *sup)
{
    uint64_t end;
    char name[320];
    bool left;

    atomic_store(&sup->world->phase, PHASE_LEAVE);
    sup->place[0].launch = (struct chaos_launch){.flags = ACTOR_LAST};
    atomic_store(&sup->world->slot[0].shared, 0);
    let_an_hour_pass(sup);
    start_in(sup, 0);
    wait_for(sup, all_left, LEAVE_NS, "the last process does not end");
    end = now_ns() + LEAVE_NS; /* a broker may stay for a while */
    while ((left = left_behind(sup, name, sizeof name)) && sup->options->broker && now_ns() < end)
        chaos_sleep_us(100000);
    if (left)
        say_wrong(sup, name);
}

static uint64_t sum(const struct supervisor *sup, size_t offset)
{
    uint64_t total = 0;

    for (unsigned i = 0; i < sup->world->slots; i++)
        total += atomic_load(
            (const _Atomic uint64_t *)(const void *)((const char *)&sup->world->slot[i] + offset));
    return total;
}

#define SUM(member) ((unsigned long long)sum(sup, offsetof(struct chaos_slot, member)))

static void kill_broker(struct supervisor *sup)
{
    if (!sup->broker_kill_ns || now_ns() < sup->broker_kill_ns)
        return;
    if (!chaos_kill_broker(sup->options)) { /* on a busy machine there is none yet */
        sup->broker_kill_ns = now_ns() + 100 * MS;
        return;
    }
    sup->broker_kills++;
    sup->broker_kill_ns = now_ns() + (1000 + chaos_below(&sup->random, 4000)) * MS;
    if (chaos_below(&sup->random, 8) == 0) /* longer than a silent connection is kept */
        sup->broker_kill_ns += 40000 * MS;
}

static bool brokers_died(const struct supervisor *sup)
{
    return !sup->options->broker || sup->broker_kills > 0 || sup->options->seconds <= 9;
}

/* As much has happened as is to be expected in the time given. */
static bool much_happened(const struct supervisor *sup)
{
    return brokers_died(sup) && SUM(opened) >= 10 * sup->options->seconds;
}

static void run(struct supervisor *sup)
{
    uint64_t end = now_ns() + sup->options->seconds * UINT64_C(1000) * MS;
    unsigned long long shared, opened;

    sup->random = sup->options->seed;
    sup->broker_kill_ns = sup->options->broker ? now_ns() + 1000 * MS : 0;
    while (!is_wrong(sup) &&
           (now_ns() < end || (!much_happened(sup) && now_ns() < end + MORE_NS))) {
        round_once(sup, true);
        kill_broker(sup);
    }
    atomic_store(&sup->world->phase, PHASE_FINISH);
    wait_for(sup, all_finished, HANG_NS, "not every process comes to its end");
    shared = SUM(shared);
    opened = SUM(opened);
    if (!is_wrong(sup)) {
        atomic_store(&sup->world->phase, PHASE_LEAVE);
        wait_for(sup, all_left, LEAVE_NS, "a process does not exit");
    }
    if (!is_wrong(sup))
        check_directory(sup);
    kill_all(sup);
    printf("chaos: %llu blocks shared, %llu opened, %llu opens refused, %llu forks, %llu execs, "
           "%u processes in all\n",
           shared, opened, SUM(refused), SUM(forks), SUM(execs),
           atomic_load(&sup->world->next_life));
    printf("chaos: %llu were killed in the driver, %llu in a system call of the library, %llu "
           "anywhere; %u kinds of namespaces\n",
           (unsigned long long)sup->driver_kills, (unsigned long long)sup->inside_kills,
           (unsigned long long)(sup->kills - sup->driver_kills - sup->inside_kills),
           sup->kind_count);
    if (sup->options->broker)
        printf("chaos: brokers were killed %llu times\n", (unsigned long long)sup->broker_kills);
    if (!is_wrong(sup) && !brokers_died(sup))
        say_wrong(sup, "no broker was ever there");
    if (!is_wrong(sup) && opened < 10 * sup->options->seconds)
        say_wrong(sup, "too few blocks were opened to prove anything");
}

/* ---- Setting up ----------------------------------------------------------------------------- */

static bool make_pipes(struct chaos_world *world)
{
    for (unsigned i = 0; i < world->slots; i++) {
        int ends[2];

        if (pipe2(ends, O_NONBLOCK) != 0)
            return false;
        world->inbox_read[i] = ends[0];
        world->inbox_write[i] = ends[1];
    }
    return true;
}

static bool make_world(struct supervisor *sup)
{
    const struct chaos_options *options = sup->options;
    char share[CHAOS_PATH + 8];
    struct chaos_world *world;

    sup->world_fd = memfd_create("chaos", 0);
    if (sup->world_fd < 0 || ftruncate(sup->world_fd, sizeof *world) != 0)
        return false;
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED, sup->world_fd, 0);
    if (world == MAP_FAILED)
        return false;
    sup->world = world;
    world->slots = options->processes;
    world->seed = options->seed;
    world->grace_ns = GRACE_MS * MS;
    world->next_life = 1;
    snprintf(world->board, sizeof world->board, "%.490s/board", options->dir);
    snprintf(share, sizeof share, "%s/share", options->dir);
    setenv("GPUSHIM_DEBUG_GRACE", "600 ms", 1);
    return mkdir(world->board, 0700) == 0 && mkdir(share, 0700) == 0 && make_pipes(world);
}

/* Half of the places are for processes that live to the end. Every kind of namespaces has some
 * of both. */
static void assign_places(struct supervisor *sup)
{
    for (unsigned kind = 0; kind < 3; kind++)
        if (kind == 0 || (!sup->options->without_namespaces && chaos_namespaces_work(kind)))
            sup->kinds[sup->kind_count++] = kind;
    if (sup->kind_count == 1)
        printf("chaos: all in the namespaces of this process%s\n",
               sup->options->without_namespaces ? "" : ", it may not make others");
    for (unsigned i = 0; i < sup->world->slots; i++) {
        struct place *place = &sup->place[i];

        place->launch.slot = i;
        place->launch.flags = i % 2 == 0 ? ACTOR_SURVIVES : 0;
        place->launch.idle = choose_idle(place);
        place->launch.namespaces = sup->kinds[i / 2 % sup->kind_count];
        place->random = sup->options->seed * 64 + i;
        chaos_random(&place->random);
    }
}

static int remove_tree(const char *path)
{
    pid_t pid = fork();
    int status = 1;

    if (pid == 0) {
        execlp("rm", "rm", "-rf", "--", path, (char *)NULL);
        _exit(127);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid ? status : 1;
}

static int supervise(const struct chaos_options *options)
{
    static struct supervisor sup;

    sup.options = options;
    if (!make_world(&sup)) {
        perror("chaos: the ground cannot be laid");
        return 2;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    assign_places(&sup);
    run(&sup);
    if (is_wrong(&sup)) {
        printf("chaos: %s (seed %llu, everything is in %s)\n", sup.wrong,
               (unsigned long long)options->seed, options->dir);
        return 1;
    }
    remove_tree(options->dir);
    printf("chaos: ok %llu kills %llu checks\n", (unsigned long long)sup.kills,
           (unsigned long long)sum(&sup, offsetof(struct chaos_slot, checks)));
    return 0;
}

/* ---- Options -------------------------------------------------------------------------------- */

/* The broker that was built with this program, where there is one. */
static void find_broker(struct chaos_options *options, const char *given)
{
    char resolved[PATH_MAX], beside[CHAOS_PATH + 48], *slash;

    snprintf(beside, sizeof beside, "%s", options->program);
    slash = strrchr(beside, '/');
    snprintf(slash + 1, sizeof beside - (size_t)(slash + 1 - beside),
             "../../shim/command/gpushim-broker");
    if (realpath(given ? given : beside, resolved) && strlen(resolved) < CHAOS_PATH)
        strcpy(options->broker_program, resolved);
}

static bool find_shim(struct chaos_options *options, const char *given)
{
    char resolved[PATH_MAX], *slash;
    const char *wanted = given;
    char beside[CHAOS_PATH + 32];
    ssize_t length = readlink("/proc/self/exe", options->program, sizeof options->program - 1);

    if (length <= 0)
        return false;
    options->program[length] = 0;
    if (given && strcmp(given, "none") == 0)
        return true;
    if (!given) {
        snprintf(beside, sizeof beside, "%s", options->program);
        slash = strrchr(beside, '/');
        snprintf(slash + 1, sizeof beside - (size_t)(slash + 1 - beside),
                 "../../shim/libgpushim.so");
        wanted = beside;
    }
    if (!realpath(wanted, resolved) || strlen(resolved) >= sizeof options->shim) {
        fprintf(stderr, "chaos: %s: %s; name the library with --shim\n", wanted, strerror(errno));
        return false;
    }
    strcpy(options->shim, resolved);
    return true;
}

static bool number(const char *text, uint64_t low, uint64_t high, uint64_t *ret)
{
    char *end;

    errno = 0;
    *ret = strtoull(text, &end, 10);
    return !errno && end != text && !*end && *ret >= low && *ret <= high;
}

static bool read_options(int argc, char **argv, struct chaos_options *ret)
{
    static const struct option known[] = {
        {"seconds", 1, NULL, 's'},   {"seed", 1, NULL, 'r'},          {"strategy", 1, NULL, 't'},
        {"processes", 1, NULL, 'p'}, {"shim", 1, NULL, 'l'},          {"scribble", 1, NULL, 'w'},
        {"broker", 1, NULL, 'b'},    {"no-namespaces", 0, NULL, 'n'}, {0}};
    const char *shim = NULL, *broker = NULL;
    uint64_t value;
    bool good = true;
    int option;

    *ret = (struct chaos_options){.seconds = 60, .processes = 24, .seed = 1};
    while (good && (option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 's' && (good = number(optarg, 1, 86400, &value)))
            ret->seconds = (unsigned)value;
        else if (option == 'r')
            good = number(optarg, 0, UINT64_MAX, &ret->seed);
        else if (option == 't')
            good = (ret->broker = strcmp(optarg, "broker") == 0) || strcmp(optarg, "embedded") == 0;
        else if (option == 'p' && (good = number(optarg, SMALLEST, CHAOS_SLOTS, &value)))
            ret->processes = (unsigned)value;
        else if (option == 'l')
            shim = optarg;
        else if (option == 'b')
            broker = optarg;
        else if (option == 'w' && (good = number(optarg, 1, 100000, &value)))
            ret->scribble = (unsigned)value;
        else if (option == 'n')
            ret->without_namespaces = true;
        else if (option == '?')
            good = false;
    }
    if (!good || optind != argc) {
        fprintf(stderr,
                "usage: chaos [--seconds N] [--seed N] [--strategy embedded|broker]\n"
                "             [--processes %d..%d] [--shim PATH|none] [--broker PATH]\n"
                "             [--no-namespaces]\n"
                "       chaos --scribble ROUNDS [--shim PATH|none]\n",
                SMALLEST, CHAOS_SLOTS);
        return false;
    }
    if (!find_shim(ret, shim))
        return false;
    find_broker(ret, broker);
    return true;
}

int main(int argc, char **argv)
{
    static struct chaos_options options;
    const char *base = getenv("TMPDIR");
    char dir[64];

    /* The other roles; argv[0] says which. */
    if (strcmp(argv[0], "actor") == 0)
        return chaos_actor(argc, argv);
    if (strcmp(argv[0], "sleeper") == 0) {
        chaos_sleep_us(100000);
        return 0;
    }
    if (strcmp(argv[0], "exporter") == 0)
        return chaos_scribble_exporter(argc, argv);
    if (strcmp(argv[0], "consumer") == 0)
        return chaos_scribble_consumer(argc, argv);

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!read_options(argc, argv, &options))
        return 2;
    if (!base || snprintf(dir, sizeof dir, "%s/chaos-XXXXXX", base) >= (int)sizeof dir)
        strcpy(dir, "/tmp/chaos-XXXXXX"); /* short enough for sockets in it */
    if (!mkdtemp(dir)) {
        perror("chaos: no folder can be made in $TMPDIR or /tmp");
        return 2;
    }
    strcpy(options.dir, dir);
    return options.scribble ? chaos_scribble(&options) : supervise(&options);
}
