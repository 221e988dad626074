/* The table of operations, held to the same by both of its implementations: a folder, and a real
 * etcd that the test starts, where there is one. */
#include "shim/agent/directory.h"

#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <jansson.h>

#include "core/base/clock.h"
#include "shim/agent/seal.h"
#include "tests/children.h"
#include "tests/folder.h"
#include "tests/system.h"

#define LEASE_S   60 /* more than a test takes, on a busy machine too */
#define PATIENT_S 60

TestSuite(agent_directory, .timeout = 120);

static char place[256];

/* Nobody else's as long as the socket is open. */
static int free_port(int *ret_fd)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;

    *ret_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(*ret_fd >= 0 && bind(*ret_fd, (struct sockaddr *)&at, size) == 0 &&
              getsockname(*ret_fd, (struct sockaddr *)&at, &size) == 0);
    return ntohs(at.sin_port);
}

static int port_where_nobody_is(void)
{
    int fd, port = free_port(&fd);

    close(fd);
    return port;
}

static bool answers(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connected;

    cr_assert(fd >= 0);
    at.sin_port = htons(port);
    connected = connect(fd, (struct sockaddr *)&at, sizeof at) == 0;
    close(fd);
    return connected;
}

/* False: it ended, for who else took one of its ports between our choice and its start. */
static bool begin_etcd(const char *folder)
{
    const uint64_t end = gs_now_ns() + PATIENT_S * GS_NS_PER_S;
    char client[64], peer[64], data[128], cluster[80], log[128];
    int client_fd, peer_fd, port = free_port(&client_fd);
    pid_t child;

    snprintf(client, sizeof client, "http://127.0.0.1:%d", port);
    snprintf(peer, sizeof peer, "http://127.0.0.1:%d", free_port(&peer_fd));
    snprintf(data, sizeof data, "%s/etcd%d", folder, port);
    snprintf(log, sizeof log, "%s/log%d", folder, port);
    snprintf(cluster, sizeof cluster, "e=%s", peer);
    close(client_fd);
    close(peer_fd);
    child = fork_child();
    cr_assert(child >= 0);
    if (child == 0) {
        if (!freopen(log, "w", stderr) || !freopen(log, "w", stdout))
            _exit(1);
        execlp("etcd", "etcd", "--name", "e", "--data-dir", data, "--listen-client-urls", client,
               "--advertise-client-urls", client, "--listen-peer-urls", peer,
               "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster, NULL);
        _exit(1);
    }
    snprintf(place, sizeof place, "%s", client);
    while (!answers(port)) {
        if (waitpid(child, NULL, WNOHANG) == child)
            return false;
        cr_assert(gs_now_ns() < end, "etcd does not answer; its log is %s", log);
        gs_rest_ns(GS_NS_PER_MS * 20);
    }
    return waitpid(child, NULL, WNOHANG) == 0; /* or who took its port has answered */
}

static void start_etcd(const char *folder)
{
    if (system("command -v etcd >/dev/null 2>&1") != 0)
        cr_skip_test("there is no etcd (Debian: etcd-server)");
    for (int i = 0; !begin_etcd(folder); i++)
        cr_assert(i < 4, "etcd ends by itself; what it said is in %s/log*", folder);
}

/* `kind` is "folder" or "etcd". */
static void set_up(const char *kind)
{
    const char *folder = folder_new("directory");

    cr_assert(seal_start());
    if (strcmp(kind, "etcd") == 0)
        start_etcd(folder);
    else
        snprintf(place, sizeof place, "folder:%s", folder);
}

static struct directory_options options_of(const char *owner)
{
    return (struct directory_options){.place = place,
                                      .prefix = "test/",
                                      .owner = owner,
                                      .lease_s = LEASE_S};
}

static struct directory *open_one(const struct directory_options *options)
{
    static struct directory *all[16]; /* what nobody closes is not lost */
    static unsigned count;
    char reason[DIRECTORY_REASON] = "";
    struct directory *directory = directory_open(options, reason);

    cr_assert(directory, "%s", reason);
    return all[count++] = directory;
}

#define DO(directory, operation, ...) \
    directory_head(directory)->ops->operation(directory, __VA_ARGS__)

static bool keep(struct directory *directory)
{
    const uint64_t end = gs_now_ns() + PATIENT_S * GS_NS_PER_S;
    bool anew = false;

    while (!DO(directory, keep, &anew)) {
        cr_assert(gs_now_ns() < end, "%s", directory_head(directory)->reason);
        gs_rest_ns(GS_NS_PER_MS * 20);
    }
    return anew;
}

/* "exports/x", "agents/one": the last letter is its id. */
static struct directory_key key_of(const char *text)
{
    return (struct directory_key){.kind = text[0] == 'a' ? DIRECTORY_AGENTS : DIRECTORY_EXPORTS,
                                  .id = {(unsigned char)text[strlen(text) - 1]}};
}

static void write_one(struct directory *directory, const char *key, const char *value)
{
    const struct directory_change change = {.key = key_of(key),
                                            .value = value,
                                            .size = value ? strlen(value) : 0};

    cr_assert(DO(directory, write, &change, 1), "%s", directory_head(directory)->reason);
}

static enum directory_found get(struct directory *directory, const char *key,
                                char ret[DIRECTORY_VALUE + 1])
{
    const struct directory_key wanted = key_of(key);
    size_t size = 0;
    enum directory_found found = DO(directory, get, &wanted, ret, &size);

    ret[size] = 0;
    return found;
}

static void writes_are_found_until_they_are_taken_back(const char *kind)
{
    struct directory_options one = options_of("one"), two = options_of("two");
    struct directory *a, *b;
    char value[DIRECTORY_VALUE + 1];

    set_up(kind);
    a = open_one(&one);
    b = open_one(&two);
    cr_assert(keep(a), "the first lease is new");
    cr_assert_not(keep(a), "and lives on");
    cr_assert_eq(get(b, "exports/x", value), DIRECTORY_NONE);
    write_one(a, "exports/x", "of one");
    write_one(a, "agents/one", "here");
    cr_assert_eq(get(b, "exports/x", value), DIRECTORY_FOUND);
    cr_assert_str_eq(value, "of one");
    cr_assert_eq(get(b, "agents/one", value), DIRECTORY_FOUND);
    write_one(a, "exports/x", NULL);
    cr_assert_eq(get(b, "exports/x", value), DIRECTORY_NONE);
    directory_head(a)->ops->give_up(a);
    cr_assert_eq(get(b, "agents/one", value), DIRECTORY_NONE, "with the lease goes all of it");
}

Test(agent_directory, folder_writes_are_found_until_they_are_taken_back)
{
    writes_are_found_until_they_are_taken_back("folder");
}

Test(agent_directory, etcd_writes_are_found_until_they_are_taken_back)
{
    writes_are_found_until_they_are_taken_back("etcd");
}

Test(agent_directory, etcd_what_nobody_keeps_goes_and_is_told)
{
    struct directory_options one = options_of("one"), two = options_of("two");
    const uint64_t end = gs_now_ns() + PATIENT_S * GS_NS_PER_S;
    struct directory *a, *b;
    char value[DIRECTORY_VALUE + 1];

    set_up("etcd");
    one.lease_s = 3;
    a = open_one(&one);
    b = open_one(&two);
    keep(a);
    write_one(a, "exports/x", "of one");
    while (get(b, "exports/x", value) == DIRECTORY_FOUND && gs_now_ns() < end)
        gs_rest_ns(GS_NS_PER_MS * 50);
    cr_assert_eq(get(b, "exports/x", value), DIRECTORY_NONE, "its lease is over");
    cr_assert(keep(a), "a member that comes back is told that it has nothing there");
    cr_assert_eq(get(b, "exports/x", value), DIRECTORY_NONE);
    write_one(a, "exports/x", "again");
    cr_assert_eq(get(b, "exports/x", value), DIRECTORY_FOUND);
}

static unsigned fails_jansson; /* the n-th allocation from now on */

static void *failing_malloc(size_t size)
{
    return fails_jansson > 0 && --fails_jansson == 0 ? NULL : malloc(size);
}

/* Whichever allocation of its JSON fails: what is not there was not written. */
Test(agent_directory, etcd_what_no_memory_is_left_for_is_not_told_as_written)
{
    struct directory_options one = options_of("one");
    struct directory_change changes[3] = {{.size = 0}};
    struct directory *a;
    char value[DIRECTORY_VALUE + 1];
    bool good = false, is_over = false;
    unsigned failed = 0, there;

    set_up("etcd");
    a = open_one(&one);
    keep(a);
    json_set_alloc_funcs(failing_malloc, free);
    for (unsigned n = 1; !is_over; n++) {
        for (unsigned i = 0; i < 3; i++) /* one goes */
            changes[i] = (struct directory_change){.key = {.kind = DIRECTORY_EXPORTS,
                                                           .id = {i, (unsigned char)n, n >> 8}},
                                                   .value = i ? "value" : NULL,
                                                   .size = i ? 5 : 0};
        fails_jansson = n;
        good = DO(a, write, changes, 3);
        is_over = fails_jansson > 0; /* it has made fewer */
        fails_jansson = 0;
        there = 0;
        for (unsigned i = 1; i < 3; i++) {
            size_t size;

            there += DO(a, get, &changes[i].key, value, &size) == DIRECTORY_FOUND;
        }
        cr_assert(!good || there == 2, "allocation %u: %u of 2", n, there);
        failed += !good;
    }
    cr_assert(good && failed > 0);
}

/* Of a key, or of another file. */
static void path_of(const char *name, char ret[sizeof place + DIRECTORY_NAME + 16])
{
    const struct directory_key key = key_of(name);
    char file[DIRECTORY_NAME];

    if (strchr(name, '/')) {
        directory_name(&key, "", '.', file);
        name = file;
    }
    snprintf(ret, sizeof place + DIRECTORY_NAME + 16, "%s/gpushim/%s", place + strlen("folder:"),
             name);
}

/* Who ended without a word finds nothing of what it wrote when it is back, nor where people cleared
 * the folder. */
Test(agent_directory, folder_who_comes_back_has_nothing_there)
{
    struct directory_options one = options_of("one"), two = options_of("two");
    struct directory *a, *b;
    char value[DIRECTORY_VALUE + 1], path[sizeof place + DIRECTORY_NAME + 16];

    set_up("folder");
    b = open_one(&two);
    keep(b);
    write_one(b, "exports/y", "of two");
    for (int i = 0; i < 2; i++) {
        a = open_one(&one);
        cr_assert(keep(a));
        cr_assert_eq(get(b, "exports/x", value), DIRECTORY_NONE);
        write_one(a, "exports/x", "of one");
        cr_assert_not(keep(a));
    }
    path_of("leases.two", path);
    cr_assert_eq(unlink(path), 0);
    cr_assert(keep(b) && !keep(b));
    cr_assert_eq(get(b, "exports/y", value), DIRECTORY_NONE);
    cr_assert_eq(get(b, "exports/x", value), DIRECTORY_FOUND, "another's stays");
}

/* What is no file of ours is nothing, and nobody waits for who opens its other end. */
Test(agent_directory, folder_what_is_no_file_is_passed_over)
{
    struct directory_options one = options_of("one"), two = options_of("two");
    static const char *const files[] = {"agents/f", "exports/f", "leases.f"};
    struct directory *a, *b;
    char value[DIRECTORY_VALUE + 1], path[sizeof place + DIRECTORY_NAME + 16];

    set_up("folder");
    a = open_one(&one);
    b = open_one(&two);
    keep(a);
    for (int i = 0; i < 3; i++) {
        path_of(files[i], path);
        cr_assert_eq(mkfifo(path, 0600), 0);
    }
    path_of("agents/d", path);
    cr_assert_eq(mkdir(path, 0700), 0);
    write_one(a, "agents/one", "here");
    for (int i = 0; i < 2; i++)
        cr_assert_neq(get(b, files[i], value), DIRECTORY_FOUND, "%s", files[i]);
    cr_assert_neq(get(b, "agents/d", value), DIRECTORY_FOUND);
    cr_assert_not(keep(a), "its lease lives on");
    directory_head(a)->ops->give_up(a);
}

/* So many bytes, by no writer of ours. */
static void write_much(const char *kind, size_t size)
{
    const struct directory_key key = key_of("exports/x");
    char path[sizeof place + DIRECTORY_NAME + 16], name[DIRECTORY_NAME],
        command[sizeof place + 400];

    path_of("exports/x", path);
    directory_name(&key, "test/", '/', name);
    if (strcmp(kind, "folder") == 0)
        snprintf(command, sizeof command, "printf 'one\\n%%0*d' %zu 0 >%s", size, path);
    else
        snprintf(command, sizeof command,
                 "printf %%0*d %zu 0 | "
                 "ETCDCTL_API=3 etcdctl --endpoints=%s put %s >/dev/null",
                 size, place, name);
    cr_assert_eq(system(command), 0, "%s", command);
}

/* What is longer than a value is none, however long, and hides no other. */
static void what_is_longer_than_a_value_is_none(const char *kind)
{
    struct directory_options one = options_of("one"), two = options_of("two");
    static const size_t sizes[] = {DIRECTORY_VALUE, DIRECTORY_VALUE + 1, 1 << 20};
    struct directory *a, *b;
    char value[DIRECTORY_VALUE + 1];

    set_up(kind);
    a = open_one(&one);
    b = open_one(&two);
    keep(a);
    write_one(a, "agents/one", "here");
    for (int i = 0; i < 3; i++) {
        write_much(kind, sizes[i]);
        cr_assert_eq(get(b, "exports/x", value) == DIRECTORY_FOUND, i == 0, "%zu bytes", sizes[i]);
        cr_assert(i > 0 || strlen(value) == DIRECTORY_VALUE);
        cr_assert_eq(get(b, "agents/one", value), DIRECTORY_FOUND);
    }
    directory_head(a)->ops->give_up(a);
}

Test(agent_directory, folder_what_is_longer_than_a_value_is_none)
{
    what_is_longer_than_a_value_is_none("folder");
}

Test(agent_directory, etcd_what_is_longer_than_a_value_is_none)
{
    if (system("command -v etcdctl >/dev/null 2>&1") != 0)
        cr_skip_test("there is no etcdctl (Debian: etcd-client)");
    what_is_longer_than_a_value_is_none("etcd");
}

/* A link in the place of the file that it writes first does not lead it to another. */
Test(agent_directory, folder_no_link_leads_it_elsewhere)
{
    struct directory_options one = options_of("one");
    struct directory *a;
    char path[sizeof place + DIRECTORY_NAME + 16], victim[sizeof place + DIRECTORY_NAME + 16],
        text[16] = "";
    FILE *file;

    set_up("folder");
    a = open_one(&one);
    path_of("victim", victim);
    file = fopen(victim, "w");
    cr_assert(file && fputs("precious", file) > 0 && fclose(file) == 0);
    path_of(".one", path);
    cr_assert_eq(symlink(victim, path), 0);
    keep(a);
    write_one(a, "agents/one", "here");
    file = fopen(victim, "r");
    cr_assert(file && fgets(text, sizeof text, file));
    cr_assert_str_eq(text, "precious");
}

/* Who else may write there, or has made it, could have our files changed. */
Test(agent_directory, folder_those_of_others_are_not_taken)
{
    struct directory_options one = options_of("one");
    char path[sizeof place + DIRECTORY_NAME + 16], reason[DIRECTORY_REASON] = "";

    set_up("folder");
    snprintf(path, sizeof path, "%s/gpushim", place + strlen("folder:"));
    cr_assert(mkdir(path, 0700) == 0 && chmod(path, 0770) == 0);
    cr_assert_null(directory_open(&one, reason));
    cr_assert(strstr(reason, "gpushim is user") && strstr(reason, "0770"), "%s", reason);
    cr_assert(rmdir(path) == 0 && symlink("/tmp", path) == 0);
    cr_assert_null(directory_open(&one, reason), "nor where a link leads");
    cr_assert_eq(unlink(path), 0);
    if (geteuid() != 0) {
        puts("skipped: folders of another user, which only root can make");
        return;
    }
    cr_assert(mkdir(path, 0700) == 0 && chown(path, 12345, 12345) == 0);
    cr_assert_null(directory_open(&one, reason));
    cr_assert(strstr(reason, "user 12345's"), "%s", reason);
}

/* An answer that takes twice as long as it may be silent. */
static void answer_slowly(int listener)
{
    static const char answer[] = "{\"header\":{\"revision\":\"7\"}}";
    char request[4096];
    int fd = accept(listener, NULL, NULL);

    if (fd < 0 || read(fd, request, sizeof request) <= 0)
        _exit(1);
    dprintf(fd, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", 20 + strlen(answer));
    for (int i = 0; i < 20; i++) {
        gs_rest_ns(2 * DIRECTORY_WAIT_S * GS_NS_PER_S / 20);
        dprintf(fd, " ");
    }
    dprintf(fd, "%s", answer);
    _exit(read(fd, request, sizeof request) < 0);
}

Test(agent_directory, etcd_that_is_slow_is_listened_to)
{
    struct directory_options options = options_of("one");
    char value[DIRECTORY_VALUE + 1];
    struct directory *directory;
    int fd;

    cr_assert(seal_start());
    snprintf(place, sizeof place, "http://127.0.0.1:%d", free_port(&fd));
    cr_assert_eq(listen(fd, 4), 0);
    if (fork_child() == 0)
        answer_slowly(fd);
    directory = open_one(&options);
    cr_assert_eq(get(directory, "agents/one", value), DIRECTORY_NONE, "%s",
                 directory_head(directory)->reason);
}

Test(agent_directory, a_place_that_is_none_says_what_one_is)
{
    static const char *const none[] = {"localhost:2379",        "",
                                       "folder:leases",         "folder:",
                                       "etcd://localhost:2379", "https:localhost"};

    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        struct directory_options options = {.place = none[i]};
        char reason[DIRECTORY_REASON] = "";

        cr_assert_null(directory_open(&options, reason), "%s", none[i]);
        cr_assert(strstr(reason, "folder:/PATH"), "%s: %s", none[i], reason);
    }
}

/* Whoever is there is asked later. */
Test(agent_directory, etcd_is_reached_by_tls_too)
{
    struct directory_options options = options_of("one");

    snprintf(place, sizeof place, "https://127.0.0.1:%d", port_where_nobody_is());
    open_one(&options);
}

/* The rest of several endpoints is asked where one does not answer; where none does, that is
 * said. */
Test(agent_directory, endpoints_that_do_not_answer_are_passed_over)
{
    struct directory_options options = options_of("one");
    struct directory *directory;
    char good[sizeof place];
    bool anew;

    set_up("etcd");
    memcpy(good, place, sizeof good);
    snprintf(place, sizeof place, "http://127.0.0.1:%d,%.100s", port_where_nobody_is(), good);
    directory = open_one(&options);
    cr_assert(keep(directory));
    snprintf(place, sizeof place, "http://127.0.0.1:%d", port_where_nobody_is());
    directory = open_one(&options);
    cr_assert_not(DO(directory, keep, &anew));
    cr_assert(strstr(directory_head(directory)->reason, "does not answer"), "%s",
              directory_head(directory)->reason);
}

static bool etcdctl(const char *words)
{
    char line[512];

    snprintf(line, sizeof line, "ETCDCTL_API=3 etcdctl --endpoints %s %s >/dev/null 2>&1", place,
             words);
    return system(line) == 0;
}

/* A role may write under its prefix and nowhere else; who has no password may do nothing, and is
 * told. */
Test(agent_directory, etcd_knows_its_users)
{
    struct directory_options options = options_of("one");
    struct directory *directory;
    struct directory_change change = {.key = key_of("exports/x"), .value = "v", .size = 1};
    char path[300], reason[DIRECTORY_REASON];
    FILE *file;
    bool anew;

    if (system("command -v etcdctl >/dev/null 2>&1") != 0)
        cr_skip_test("there is no etcdctl (Debian: etcd-client)");
    set_up("etcd");
    directory = open_one(&options);
    keep(directory);
    cr_assert(etcdctl("user add root:rootword") && etcdctl("role add gpushim") &&
              etcdctl("role grant-permission gpushim readwrite --prefix=true test/") &&
              etcdctl("user add agent:secret") && etcdctl("user grant-role agent gpushim") &&
              etcdctl("user grant-role root root") && etcdctl("auth enable"));
    snprintf(path, sizeof path, "%s/password", getenv("GPUSHIM_SHARE_DIR"));
    file = fopen(path, "we");
    cr_assert(file && fputs("secret\n", file) > 0 && fclose(file) == 0);
    directory = open_one(&options);
    if (DO(directory, keep, &anew)) /* a lease may be had by all; a key not */
        cr_assert_not(DO(directory, write, &change, 1));
    cr_assert(strstr(directory_head(directory)->reason, "lets this agent not"), "%s",
              directory_head(directory)->reason);
    options.user = "agent";
    options.password_file = path;
    directory = open_one(&options);
    keep(directory);
    write_one(directory, "exports/x", "v");
    options.prefix = "others/";
    directory = open_one(&options);
    keep(directory);
    cr_assert_not(DO(directory, write, &change, 1), "beyond its prefix");
    options.password_file = "/nowhere";
    cr_assert_null(directory_open(&options, reason));
    cr_assert(strstr(reason, "password"), "%s", reason);
}
