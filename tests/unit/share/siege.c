/*
 * Nobody stalls, starves or ends anybody else. A table of attackers (siege_clients.c,
 * siege_posers.c), each a process of its own that goes on until it is killed: meanwhile an honest
 * importer is served, and how long that took is printed; host memory of who is attacked stays
 * bounded, and descriptors that went to attackers come back when they end. Another test looks that
 * each message, each resource, each position and each target occurs in the table, so that none
 * comes without its attacker; that each says what the table tells is seen when it plays.
 *
 * Where root runs this, who shares and the broker are no root's processes, to whom the kernel's
 * limits would not apply, and the attackers may be other users: of this test alone, since the
 * kernel counts what is under way for each user.
 */
#include <criterion/criterion.h>
#include <sys/sendfile.h>

#include "other.h"
#include "side.h"
#include "siege.h"
#include "tests/children.h"
#include "tests/system.h"

#define MS            UINT64_C(1000000)
#define NOFILE        256  /* of exporters that are attacked; who attacks has more */
#define BROKER_NOFILE 1024 /* of brokers, which take as many as there may be */
#define PATIENT       "timeout=20000"
#define MORE_KIB      8192 /* of host memory */
#define MORE_FDS      8

struct siege *siege;
static bool is_root;
static uid_t owner, friend, stranger; /* the same one where nobody is root */

/* ---- An attacker ---------------------------------------------------------------------------- */

void siege_holds(void)
{
    __atomic_store_n(&siege->holds, true, __ATOMIC_SEQ_CST);
}

void siege_stays(void)
{
    siege_holds();
    for (;;)
        pause();
}

int siege_dial(void)
{
    return siege->target == BROKER ? side_broker_dial(siege->dir)
                                   : side_dial(siege->dir, siege->ipc_handle);
}

int siege_listen_as(enum siege_position position, char ret_path[108])
{
    char hex[2 * GS_IPC_HANDLE_SIZE + 1];
    int fd;

    ipc_handle_to_hex(siege->ipc_handle, hex);
    hex[16 + 2 * GS_INSTANCE_SIZE] = 0;
    snprintf(ret_path, 108, "%.63s/%.43s", siege->dir,
             position == FAKE_BROKER ? side_broker_name() : hex + 16);
    fd = side_listen(ret_path);
    __atomic_store_n(&siege->listens, true, __ATOMIC_SEQ_CST);
    return fd;
}

static void note(enum gs_wire_type type)
{
    __atomic_or_fetch(&siege->said, UINT64_C(1) << type, __ATOMIC_SEQ_CST);
}

void siege_tried(enum gs_wire_type type)
{
    __atomic_or_fetch(&siege->tried, UINT64_C(1) << type, __ATOMIC_SEQ_CST);
}

int siege_say(int fd, union gs_wire_message message, int attached)
{
    int error = gs_wire_send(fd, &message, attached);

    if (error == -ETOOMANYREFS) /* none is taken */
        error = say(fd, message);
    if (error == 0)
        note(message.head.type);
    return error;
}

int siege_say_type(int fd, enum gs_wire_type type)
{
    union gs_wire_message message;
    struct gs_ipc_handle ipc_handle;

    gs_ipc_handle_read(siege->ipc_handle, &ipc_handle);
    /* Nobody has asked for that; but a CLOSE is of what siege_ask was granted. */
    gs_wire_start(&message, type, type == GS_WIRE_CLOSE ? 1 : 7);
    if (type == GS_WIRE_OPEN)
        memcpy(message.open.ipc_handle, siege->ipc_handle, GS_IPC_HANDLE_SIZE);
    else if (type == GS_WIRE_CLOSE || type == GS_WIRE_RECALL)
        message.close.block_id = ipc_handle.block_id;
    else if (type == GS_WIRE_FLUSH || type == GS_WIRE_FLUSHED)
        message.flush.number = 1;
    else if (type == GS_WIRE_ORDER)
        message.order.value = UINT64_MAX;
    if (message.head.size == 0) /* the number of a message that there was */
        return 0;
    return siege_say(fd, message, -1);
}

void siege_greet(int fd, const unsigned char *to, const unsigned char *from)
{
    union gs_wire_message message = message_hello(to);

    if (from)
        memcpy(message.hello.from, from, GS_INSTANCE_SIZE);
    message.hello.holds = from ? 8 : 0;
    siege_say(fd, message, -1);
}

int siege_greeted(void)
{
    int fd = siege_dial();

    if (fd >= 0)
        siege_greet(fd, siege->ipc_handle + 8, NULL);
    return fd;
}

int siege_ask(int fd, uint32_t want_fd)
{
    return siege_say(fd, message_open(siege->ipc_handle, 1, want_fd), -1);
}

int siege_hear(int fd, union gs_wire_message *ret_message)
{
    if (recv(fd, ret_message, sizeof *ret_message, 0) <= 0)
        return 0;
    note(ret_message->head.type);
    return ret_message->head.type;
}

static _Noreturn void say_again_and_again(const struct siege_words *words)
{
    union gs_wire_message message;

    for (unsigned round = 0;; round++) {
        int fd = words->greets ? siege_greeted() : siege_dial();

        words->say(fd, round);
        if (words->reads) { /* it has been answered last */
            shutdown(fd, SHUT_WR);
            while (fd >= 0 && siege_hear(fd, &message) != 0)
                continue;
        }
        if (round >= words->rounds)
            siege_holds();
        close(fd);
    }
}

/* ---- Its beginning and end ------------------------------------------------------------------ */

static bool is_of_others(const struct siege_attack *attack)
{
    return attack->position == UNINVITED || attack->position == LISTED ||
           attack->position == LISTED_HOLDER;
}

static pid_t attack_start(const struct siege_attack *attack)
{
    uid_t user = !is_of_others(attack) ? owner : attack->position == UNINVITED ? stranger : friend;
    pid_t child;

    siege->said = siege->tried = 0;
    siege->listens = siege->holds = false;
    siege->target = attack->target;
    if (attack->position < HOLDER && attack->position != LISTED_HOLDER)
        siege->ipc_handle[GS_IPC_HANDLE_SIZE - 1] ^= 1; /* it has no handle */
    child = fork_child();
    if (child)
        return child;
    if (is_root && !become_user(user, user))
        _exit(1);
    if (attack->play)
        attack->play();
    else
        say_again_and_again(&attack->words);
    _exit(0);
}

static void assert_is_under_way(const struct siege_attack *attack, const bool *flag, pid_t attacker)
{
    cr_assert(SIDE_WAIT(__atomic_load_n(flag, __ATOMIC_SEQ_CST) ||
                        waitpid(attacker, NULL, WNOHANG) != 0) &&
                  __atomic_load_n(flag, __ATOMIC_SEQ_CST),
              "%s: no attack", attack->name);
}

/* Kills it: until then it went on, and had said all that the table has it say; where it was hung up
 * on one part of that, and the rest in vain. */
static void attack_end(const struct siege_attack *attack, pid_t attacker)
{
    uint64_t said = 0, all = 0;

    cr_assert(SIDE_WAIT((said = __atomic_load_n(&siege->said, __ATOMIC_SEQ_CST),
                         all = said | __atomic_load_n(&siege->tried, __ATOMIC_SEQ_CST),
                         (all & attack->types) == attack->types)),
              "%s: of %" PRIx64 " it said %" PRIx64 ", and tried %" PRIx64, attack->name,
              attack->types, said, all);
    cr_assert(attack->types == 0 || (said & attack->types) != 0,
              "%s: of %" PRIx64 " it said nothing", attack->name, attack->types);
    cr_assert_eq(waitpid(attacker, NULL, WNOHANG), 0, "%s: it has ended by itself", attack->name);
    kill(attacker, SIGKILL);
    waitpid(attacker, NULL, 0);
}

/* ---- Who is attacked, and an honest importer ------------------------------------------------- */

static void setup(void)
{
    is_root = geteuid() == 0;
    owner = friend = stranger = geteuid();
    if (is_root) {
        owner = 20000 + 4 * (uid_t)(getpid() % 10000);
        friend = owner + 1;
        stranger = owner + 2;
    }
    siege = mmap(NULL, sizeof *siege, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    side_dir_new(siege->dir, sizeof siege->dir);
}

static void teardown(void)
{
    side_dir_remove(siege->dir);
}

TestSuite(share_siege, .init = setup, .fini = teardown, .timeout = 200);

/* Of the owner's, who lets the friend and root open. */
static void start_owned(struct other *other, const char *more)
{
    char user[32] = "", words[128];

    if (is_root)
        snprintf(user, sizeof user, "uid=%u", (unsigned)owner);
    snprintf(words, sizeof words, "%s trust=%u trust=0 %s", user, (unsigned)friend, more);
    other_start(other, siege->dir, words);
}

/* Where ASan runs: it keeps what is freed from being used again, up to 256 MiB by itself, which is
 * no memory that an attacker took. */
static void quarantine_less(void)
{
    const char *options = getenv("ASAN_OPTIONS");
    char *less;

    cr_assert_geq(asprintf(&less, "%s:quarantine_size_mb=1:thread_local_quarantine_size_kb=64",
                           options ? options : ""),
                  0);
    setenv("ASAN_OPTIONS", less, 1);
    free(less);
}

static void folder_start(void)
{
    quarantine_less();
    cr_assert_eq(mkdir(siege->dir, 0755), 0);
    if (is_root)
        cr_assert_eq(chown(siege->dir, owner, owner), 0);
}

static void tell(const struct siege_attack *attack, const char *what, uint64_t since)
{
    static const char *const positions[] = {
        "another user", "a listed user",  "a listed user that holds", "the same user",
        "a holder",     "a false broker", "a false exporter"};
    static const char *const targets[] = {"an exporter", "a broker", "an importer",
                                          "an exporter that leaves"};

    printf("%s at %s %s: %s in %llu ms\n", positions[attack->position], targets[attack->target],
           attack->name, what, (unsigned long long)((side_now() - since) / MS));
    fflush(stdout);
}

static void say_served(const struct siege_attack *attack, uint64_t since, gs_status status)
{
    tell(attack, "an honest importer is answered", since);
    cr_assert_eq(status, GS_OK, "%s: an honest importer got %d", attack->name, status);
}

/* ... by an open of another one, which has it when this returns. */
static void assert_serves(const struct siege_attack *attack, struct other *importer,
                          const unsigned char *ipc_handle, int byte)
{
    uint64_t since = side_now();
    unsigned long address = 0;
    char expected[16];

    say_served(attack, since, other_open(importer, ipc_handle, &address));
    snprintf(expected, sizeof expected, "ok %d", byte);
    cr_assert_str_eq(other_ask(importer, "read %lx", address), expected);
}

struct taken {
    long kib;
    unsigned fds;
};

static struct taken taken_by(pid_t pid)
{
    struct taken taken = {0};
    char path[64], line[256];
    const struct dirent *entry;
    FILE *status;
    DIR *list;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    status = fopen(path, "re");
    while (status && fgets(line, sizeof line, status))
        if (strncmp(line, "VmRSS:", 6) == 0)
            taken.kib = strtol(line + 6, NULL, 10);
    if (status)
        fclose(status);
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    list = opendir(path);
    while (list && (entry = readdir(list)))
        taken.fds += entry->d_name[0] != '.';
    if (list)
        closedir(list);
    cr_assert(taken.kib > 0 && taken.fds > 0, "%d cannot be looked at", (int)pid);
    return taken;
}

static void assert_bounded(const struct siege_attack *attack, pid_t pid, const struct taken *before)
{
    long kib = taken_by(pid).kib - before->kib;

    cr_assert_leq(kib, MORE_KIB, "%s: who is attacked has %ld KiB more", attack->name, kib);
}

/* ... when its attacker has ended. */
static void assert_came_back(const struct siege_attack *attack, pid_t pid,
                             const struct taken *before)
{
    cr_assert(SIDE_WAIT(taken_by(pid).fds <= before->fds + MORE_FDS), "%s: %u descriptors of %u",
              attack->name, taken_by(pid).fds, before->fds);
}

/* ---- An exporter ---------------------------------------------------------------------------- */

/* What the attacker holds is freed, and the memory is waited for. */
static void run_short(const struct siege_attack *attack, struct other *exporter)
{
    uint64_t since;

    cr_assert_str_eq(other_ask(exporter, "freed"), "ok");
    cr_assert_not(other_withdraws(exporter), "%s: it holds nothing", attack->name);
    since = side_now();
    cr_assert_str_eq(other_ask(exporter, "short"), "ok");
    tell(attack, "its memory is waited for", since);
}

/* How many connections it has, with this one. */
static unsigned clients_of(const unsigned char *ipc_handle)
{
    int fd = side_dial(siege->dir, ipc_handle);
    union gs_wire_message message;
    unsigned clients = 0;

    if (fd >= 0 && say(fd, MESSAGE(QUERY, 1)) == 0 && recv(fd, &message, sizeof message, 0) > 0 &&
        message.head.type == GS_WIRE_REPORT)
        clients = message.report.clients;
    if (fd >= 0)
        close(fd);
    return clients;
}

/* What ends with the attacker was its own: of what the two others have open nothing is lost. */
static void assert_holds(const struct siege_attack *attack, struct other *exporter,
                         const unsigned char *ipc_handle)
{
    cr_assert(SIDE_WAIT(clients_of(ipc_handle) == 3), "%s: %u", attack->name,
              clients_of(ipc_handle));
    cr_assert_str_eq(other_ask(exporter, "holds"), "ok 2", "%s: %s", attack->name,
                     exporter->answer);
}

static void attack_exporter(const struct siege_attack *attack)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct other exporter, holder, importer;
    unsigned long address;
    struct taken before;
    pid_t attacker;

    folder_start();
    start_owned(&exporter, "");
    start_owned(&holder, "");
    start_owned(&importer, PATIENT);
    other_export(&holder, 0, 512, 5, ipc_handle);
    memcpy(siege->other, ipc_handle + 8, sizeof siege->other);
    cr_assert_str_eq(other_ask(&exporter, "nofile %d", NOFILE), "ok");
    other_export(&exporter, 0, 512, 6, ipc_handle);
    cr_assert_eq(other_open(&holder, ipc_handle, &address), GS_OK);
    other_export(&exporter, 512, 512, 7, siege->ipc_handle);
    siege->honest = holder.pid;
    before = taken_by(exporter.pid);
    attacker = attack_start(attack);
    assert_is_under_way(attack, &siege->holds, attacker);
    if (attack->resources & TAKES(LIMBO))
        run_short(attack, &exporter);
    if (attack->resources & TAKES(LEASES)) /* who still has the connection has the lease */
        cr_assert_str_neq(other_ask(&holder, "lose"), "ok 0");
    other_export(&exporter, 1024, 512, 8, ipc_handle);
    assert_serves(attack, &importer, ipc_handle, 8);
    assert_bounded(attack, exporter.pid, &before);
    attack_end(attack, attacker);
    assert_holds(attack, &exporter, ipc_handle);
    assert_came_back(attack, exporter.pid, &before);
    cr_assert_eq(other_stop(&holder), 0);
    cr_assert_eq(other_stop(&importer), 0);
    cr_assert(SIDE_WAIT(other_withdraws(&exporter)));
    cr_assert_eq(other_stop(&exporter), 0);
}

/* ---- A broker ------------------------------------------------------------------------------- */

/* Its program where its owner, too, may run it: what is built may lie where only this user can
 * look. */
static int broker_copy(void)
{
    int from = open(BROKER_PROGRAM, O_RDONLY | O_CLOEXEC), to = memfd_create("broker", MFD_CLOEXEC);
    struct stat found;

    cr_assert_eq(fstat(from, &found), 0);
    for (off_t left = found.st_size; left > 0;) {
        ssize_t sent = sendfile(to, from, NULL, (size_t)left);

        cr_assert_gt(sent, 0);
        left -= sent;
    }
    close(from);
    return to;
}

static pid_t broker_start(void)
{
    const struct rlimit few = {.rlim_cur = BROKER_NOFILE, .rlim_max = BROKER_NOFILE};
    int program = broker_copy();
    pid_t child = fork_child();
    char uids[32];

    if (child) {
        close(program);
        cr_assert(SIDE_WAIT(side_broker_pid(siege->dir) == child), "no broker");
        return child;
    }
    if (is_root && !become_user(owner, owner))
        _exit(1);
    snprintf(uids, sizeof uids, "%u,0", (unsigned)friend);
    setrlimit(RLIMIT_NOFILE, &few);
    setenv("GPUSHIM_SHARE_DIR", siege->dir, 1);
    setenv("GPUSHIM_SHARE_UIDS", uids, 1);
    setenv("GPUSHIM_DEBUG_MAX_CLIENTS", "64", 1);
    setenv("GPUSHIM_DEBUG_BROKER_BLOCKS", "2000", 1);
    setenv("GPUSHIM_CONFIG", "", 1);
    fexecve(program, (char *[]){(char *)BROKER_PROGRAM, NULL}, environ);
    _exit(127);
}

/* How many blocks that process has left with it, as it says. */
static unsigned left_by(pid_t pid)
{
    union gs_wire_message message;
    unsigned left = 0, clients = 1;
    int fd = side_broker_dial(siege->dir);

    for (unsigned i = 0; fd >= 0 && i < clients; i++) {
        if (say(fd, MESSAGE(QUERY, 1, .query = {.index = i})) != 0 ||
            recv(fd, &message, sizeof message, 0) <= 0 || message.head.type != GS_WIRE_REPORT)
            break;
        clients = message.report.clients;
        if (message.report.client_pid == (uint64_t)pid)
            left = (unsigned)message.report.left;
    }
    if (fd >= 0)
        close(fd);
    return left;
}

/* A block that the broker has when this returns. */
static void leave(struct other *sharer, size_t offset, int byte, unsigned char *ret_ipc_handle)
{
    unsigned before = left_by(sharer->pid);

    other_export(sharer, offset, 512, byte, ret_ipc_handle);
    cr_assert(SIDE_WAIT(left_by(sharer->pid) > before), "it is not left");
}

/* What is left before the attack and what is left during it. */
static void attack_broker(const struct siege_attack *attack)
{
    struct other sharer, late, importer;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    pid_t broker, attacker;
    struct taken before;
    uint64_t since;

    folder_start();
    broker = broker_start();
    start_owned(&sharer, "keep=60000");
    leave(&sharer, 0, 7, siege->ipc_handle);
    other_kill(&sharer);
    start_owned(&importer, PATIENT);
    start_owned(&late, "keep=60000");
    leave(&late, 0, 7, ipc_handle);
    memcpy(siege->other, ipc_handle + 8, sizeof siege->other);
    before = taken_by(broker);
    attacker = attack_start(attack);
    assert_is_under_way(attack, &siege->holds, attacker);
    since = side_now();
    leave(&late, 512, 8, ipc_handle);
    tell(attack, "it has what is left", since);
    other_kill(&late);
    assert_serves(attack, &importer, ipc_handle, 8);
    assert_bounded(attack, broker, &before);
    attack_end(attack, attacker);
    if (!(attack->resources & TAKES(EXPORTS))) /* what was left with it is kept for a while */
        assert_came_back(attack, broker, &before);
    cr_assert_eq(other_stop(&importer), 0);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
}

/* ---- An importer ----------------------------------------------------------------------------- */

static struct side side;

static void *open_false(void *ipc_handle)
{
    CUdeviceptr address;

    gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address);
    return NULL;
}

/* One of its threads opens what the attacker poses to have, another one what there is. */
static void attack_importer(const struct siege_attack *attack)
{
    unsigned char good[GS_IPC_HANDLE_SIZE], bad[GS_IPC_HANDLE_SIZE];
    struct gs_share_options options;
    CUdeviceptr address = 0;
    struct other exporter;
    pthread_t thread;
    pid_t attacker;
    uint64_t since;

    folder_start();
    side_options(&options, siege->dir);
    options.timeout_ns = 20000 * MS;
    options.uids[options.uid_count++] = owner;
    side_start(&side, &options);
    start_owned(&exporter, "");
    other_export(&exporter, 0, 512, 9, good);
    ipc_handle_by_hand(0x77, 5, 512, bad);
    memcpy(siege->ipc_handle, bad, sizeof bad);
    attacker = attack_start(attack);
    assert_is_under_way(attack, &siege->listens, attacker);
    cr_assert_eq(pthread_create(&thread, NULL, open_false, bad), 0);
    assert_is_under_way(attack, &siege->holds, attacker);
    since = side_now();
    say_served(attack, since, gs_share_open(side.share, good, SIDE_CONTEXT, 0, &address));
    cr_assert_eq(*(char *)address, 9);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert(SIDE_WAIT(other_withdraws(&exporter))); /* its thread works on */
    attack_end(attack, attacker);
    pthread_join(thread, NULL);
    side_stop(&side);
    cr_assert_eq(other_stop(&exporter), 0);
}

/* ---- Who leaves something ------------------------------------------------------------------- */

static void attack_publisher(const struct siege_attack *attack)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct other exporter, importer;
    pid_t attacker;
    uint64_t since;

    folder_start();
    attacker = attack_start(attack);
    assert_is_under_way(attack, &siege->listens, attacker);
    start_owned(&exporter, "keep=60000");
    cr_assert_str_eq(other_ask(&exporter, "nofile %d", NOFILE), "ok");
    start_owned(&importer, PATIENT);
    other_export(&exporter, 0, 512, 7, ipc_handle);
    assert_is_under_way(attack, &siege->holds, attacker);
    since = side_now();
    for (int i = 1; i < 500; i++) /* more than a socket takes */
        other_export(&exporter, 512 * i, 512, 8, ipc_handle);
    tell(attack, "499 handles are made", since);
    assert_serves(attack, &importer, ipc_handle, 8);
    cr_assert_eq(other_stop(&importer), 0);
    cr_assert(SIDE_WAIT(other_withdraws(&exporter)));
    attack_end(attack, attacker);
    cr_assert_eq(other_stop(&exporter), 0);
}

/* ---- The table ------------------------------------------------------------------------------ */

static const struct siege_attack *attack_at(size_t i)
{
    if (i < siege_client_count)
        return &siege_clients[i];
    i -= siege_client_count;
    return i < siege_poser_count ? &siege_posers[i] : NULL;
}

static void run(enum siege_target target, bool of_others)
{
    static void (*const plays[])(const struct siege_attack *) = {
        [EXPORTER] = attack_exporter,
        [BROKER] = attack_broker,
        [IMPORTER] = attack_importer,
        [PUBLISHER] = attack_publisher,
    };
    const struct siege_attack *attack;

    if (of_others && !is_root)
        cr_skip("only root can be two users");
    for (size_t i = 0; (attack = attack_at(i)); i++) {
        if (attack->target != target || is_of_others(attack) != of_others)
            continue;
        plays[target](attack);
        side_dir_remove(siege->dir);
    }
}

Test(share_siege, an_exporter_serves_beside_other_users)
{
    run(EXPORTER, true);
}

Test(share_siege, an_exporter_serves_beside_its_own_user)
{
    run(EXPORTER, false);
}

Test(share_siege, a_broker_serves_beside_other_users)
{
    run(BROKER, true);
}

Test(share_siege, a_broker_serves_beside_its_own_user)
{
    run(BROKER, false);
}

Test(share_siege, an_importer_is_served_by_others)
{
    run(IMPORTER, false);
}

Test(share_siege, who_leaves_something_serves)
{
    run(PUBLISHER, false);
}

static bool is_type(unsigned type)
{
    union gs_wire_message message;

    gs_wire_start(&message, type, 0);
    return message.head.size > 0;
}

Test(share_siege, every_message_resource_position_and_target_has_its_attacker)
{
    unsigned resources = 0, positions = 0, targets = 0;
    const struct siege_attack *attack;
    uint64_t types = 0;

    for (size_t i = 0; (attack = attack_at(i)); i++) {
        types |= attack->types;
        resources |= attack->resources;
        positions |= 1u << attack->position;
        targets |= 1u << attack->target;
    }
    for (unsigned type = 1; type < GS_WIRE_TYPES; type++)
        cr_assert(types >> type & 1 || !is_type(type), "no attacker has to do with message %u",
                  type);
    for (unsigned resource = 0; resource < SIEGE_RESOURCES; resource++)
        cr_assert(resources >> resource & 1, "no attacker takes resource %u", resource);
    for (unsigned position = 0; position < SIEGE_POSITIONS; position++)
        cr_assert(positions >> position & 1, "no attacker is in position %u", position);
    for (unsigned target = 0; target < SIEGE_TARGETS; target++)
        cr_assert(targets >> target & 1, "nobody attacks target %u", target);
}
