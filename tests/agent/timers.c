/* How long the agent puts off what it does again: no later than this, by what it notes or is given
 * to a wait. No time passes. */
#include "shim/agent/agent.h"

#include <criterion/criterion.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "core/share/directory.h"
#include "tests/folder.h"
#include "tests/system.h"

/* The agent's loop, which waits as this test has it. */
static int note_wait(int epoll, const struct epoll_event *events, int count, int timeout_ms);

#define epoll_wait note_wait
#define main       agent_main
#define GS_VERSION ""
int agent_main(int argc, char **argv);
#include "shim/agent/main.c"

#define MS GS_NS_PER_MS
#define S  GS_NS_PER_S

TestSuite(agent_timers, .timeout = 60);

static struct gs_share_options share;
static struct agent agent = {.broker.fd = -1, .share = &share, .log.to.level = &(int){-1}};

static void start_jobs(const char *at)
{
    static struct directory_options directory = {.prefix = "p/", .owner = "me", .lease_s = 60};
    char reason[DIRECTORY_REASON];

    directory.place = at;
    agent.jobs = jobs_start(&directory, eventfd(0, EFD_CLOEXEC), reason);
    cr_assert_not_null(agent.jobs, "%s", reason);
}

static void start_good_jobs(void)
{
    static char place[300];

    snprintf(place, sizeof place, "folder:%s", folder_new("directory"));
    start_jobs(place);
    while (!jobs_is_good(agent.jobs))
        gs_rest_ns(MS);
}

static void set_up(void)
{
    char reason[LEASES_REASON];
    int folder = open(folder_new("timers"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    cr_assert(folder >= 0 && leases_open(&agent.leases, folder, agent.boot, reason), "%s", reason);
    agent.epoll = epoll_create1(EPOLL_CLOEXEC);
}

/* It was noted since `began_ns`. */
static void must_be_due(uint64_t due_ns, uint64_t began_ns, uint64_t least_ns, uint64_t most_ns)
{
    cr_assert_geq(due_ns, began_ns + least_ns);
    cr_assert_leq(due_ns, gs_now_ns() + most_ns, "%llu ms later",
                  (unsigned long long)((due_ns - began_ns) / MS));
}

/* ---- The broker ------------------------------------------------------------------------------ */

static int broker = -ECONNREFUSED;
static uint64_t waits_ns;

int __wrap_gs_directory_connect(int directory, const struct gs_share_options *options,
                                const char *name, uint64_t limit_ns);
int __wrap_gs_directory_connect(int directory, const struct gs_share_options *options,
                                const char *name, uint64_t limit_ns)
{
    waits_ns = limit_ns;
    return broker;
}

Test(agent_timers, a_broker_is_looked_for_four_times_a_second)
{
    uint64_t began = gs_now_ns();

    snprintf(share.dir, sizeof share.dir, "%s", folder_new("brokers"));
    broker_look(&agent, began);
    cr_assert(waits_ns > 0 && waits_ns <= 100 * MS, "while all others wait");
    cr_assert_leq(agent.broker_retry_ns, began + 250 * MS);
}

static unsigned lines;
static char last[600];

static void on_line(enum gs_log_level level, const void *place, const char *text)
{
    lines++;
    snprintf(last, sizeof last, "%s", text);
}

/* It has no place for an agent, and says so; or is hung up on. Joined is who is told what there
 * is. */
Test(agent_timers, a_broker_that_turns_the_agent_away_is_said_why_and_in_few_lines)
{
    const struct gs_ipc_handle handle = {.block_id = 1, .size = 4096, .instance = {1}};
    struct gs_wire_share shared = {.chunk_size = GS_PAGE_SIZE};
    union gs_wire_message message;
    int ends[2];

    set_up();
    start_good_jobs();
    gs_ipc_handle_write(&handle, shared.ipc_handle);
    exporter_share(&agent, &shared);
    exporter_broker_gone(&agent);
    snprintf(share.dir, sizeof share.dir, "%s", folder_new("brokers"));
    agent.log.to.line = on_line;
    agent.log.to.level = &(int){GS_LOG_INFO};
    for (unsigned i = 0; i < 200; i++) {
        cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends),
                     0);
        broker = ends[0];
        broker_look(&agent, agent.broker_retry_ns);
        cr_assert_eq(agent.broker.fd, ends[0]);
        gs_wire_start(&message, i < 199 ? GS_WIRE_REFUSE : GS_WIRE_HELLO, 0);
        if (i < 199)
            message.refuse.reason = GS_REFUSED_BUSY;
        else
            message.hello.agent = 1;
        cr_assert_eq(gs_wire_send(ends[1], &message, -1), 0);
        agent.log.here.due_ns = i < 199 ? agent.log.here.due_ns : 0; /* later */
        agent.broker.ready(&agent.broker, EPOLLIN);
        cr_assert_eq(agent.broker.fd < 0, i < 199);
        cr_assert(i > 0 || strstr(last, "max_clients"), "%s", last);
        cr_assert(lines == 1 || i > 0, "%u", lines);
        close(ends[1]);
    }
    cr_assert(strstr(last, "joined the broker"), "%s", last);
    cr_assert(lines >= 20 && lines < 40, "%u", lines);
    cr_assert(agent.exports, "what the one before shared is not forgotten");
    jobs_end(agent.jobs);
}

/* ---- Other machines -------------------------------------------------------------------------- */

Test(agent_timers, who_is_not_reached_is_tried_again_within_four_seconds)
{
    const unsigned char one[GS_MACHINE_SIZE] = {1};
    uint64_t began = gs_now_ns(), most = 100 * MS;
    struct open open = {.state = OPEN_CONNECTS};
    struct peer *peer;

    set_up();
    start_good_jobs();
    agent.forget_ns = GS_NS_PER_S;
    peer = peers_find(&agent, one, true);
    peer->asked = true; /* and nobody knows where it is */
    for (unsigned i = 0; i < 10; i++, most = most < 2 * S ? 2 * most : 4 * S) {
        peers_look(&agent, gs_now_ns() + 3600 * S);
        must_be_due(peer->retry_ns, began, 0, most);
    }
    cr_assert_leq(agent.forget_ns, gs_now_ns() + 3660 * S, "who has gone is forgotten");
    open.peer = peer;
    HASH_ADD(hh, agent.opens, lease, sizeof open.lease, &open);
    for (unsigned i = 0; i < 3; i++) { /* from the second on as soon as for an open */
        began = gs_now_ns();
        peers_look(&agent, began + 3600 * S);
        must_be_due(peer->retry_ns, began, 0, i == 0 ? 4 * S : 200 * MS);
    }
    HASH_DEL(agent.opens, &open);
    jobs_end(agent.jobs);
}

static void see_option(int fd, int level, int name, int most)
{
    int value = 0;
    socklen_t size = sizeof value;

    cr_assert_eq(getsockopt(fd, level, name, &value, &size), 0);
    cr_assert(value > 0 && value <= most, "%d", value);
}

Test(agent_timers, a_machine_that_is_not_there_is_noticed_in_15_seconds)
{
    static const struct link_events events;
    static struct links links;
    char reason[LINK_REASON];
    struct link *link;
    unsigned port = 0;

    cr_assert(links_start(&links, epoll_create1(EPOLL_CLOEXEC), reason), "%s", reason);
    cr_assert_geq(link_listen("127.0.0.1", &port, reason), 0);
    link = link_connect(&links, "127.0.0.1", port, &events, NULL, reason);
    cr_assert_not_null(link, "%s", reason);
    see_option(link->source.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 15000);
    see_option(link->source.fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    see_option(link->source.fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
    see_option(link->source.fd, IPPROTO_TCP, TCP_KEEPINTVL, 3);
    see_option(link->source.fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

/* ---- Opens ----------------------------------------------------------------------------------- */

static void ask_for_one(void)
{
    const struct gs_ipc_handle handle = {.block_id = 1,
                                         .chunk_id = 1,
                                         .size = 4096,
                                         .instance = {1}};
    struct gs_wire_open open = {.lease = 7};

    agent.broker.fd = 0; /* nothing is sent: it waits for the loop */
    gs_ipc_handle_write(&handle, open.ipc_handle);
    importer_ask(&agent, &open);
}

static void ask(void)
{
    set_up();
    start_good_jobs();
    ask_for_one();
    cr_assert(agent.opens && agent.opens->state == OPEN_LOOKS_UP);
}

static void find_nothing(void)
{
    struct jobs_event event = {.found = DIRECTORY_NONE};

    memcpy(event.key.id, agent.opens->id, SEAL_ID);
    importer_found(&agent, &event);
}

Test(agent_timers, what_is_not_known_yet_is_looked_up_again_for_five_seconds)
{
    uint64_t most = 10 * MS;

    ask();
    for (unsigned i = 0; i < 8; i++, most = most < 160 * MS ? 2 * most : most) {
        uint64_t began = gs_now_ns();

        find_nothing();
        must_be_due(agent.opens->again_ns, began, 0, most);
        cr_assert(importer_look(&agent, agent.opens->again_ns), "it waits");
    }
    agent.opens->since_ns -= 5 * S;
    find_nothing();
    cr_assert(!agent.opens && agent.unsent, "it is refused");
    jobs_end(agent.jobs);
}

Test(agent_timers, what_is_asked_for_without_a_directory_waits_as_long)
{
    set_up();
    start_jobs("http://127.0.0.1:1"); /* nobody listens there */
    ask_for_one();
    cr_assert(agent.opens && agent.opens->state == OPEN_WAITS);
    agent.opens->since_ns -= 5 * S;
    importer_look(&agent, agent.opens->again_ns);
    cr_assert(!agent.opens && agent.unsent, "it is refused");
    jobs_end(agent.jobs);
}

Test(agent_timers, an_open_ends_in_20_seconds)
{
    ask();
    importer_look(&agent, agent.opens->since_ns + 20 * S);
    cr_assert(!agent.opens && agent.unsent, "it is refused");
    jobs_end(agent.jobs);
}

/* ---- The directory --------------------------------------------------------------------------- */

static uint64_t longest_ns;
static unsigned waits;

int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *until)
{
    uint64_t end = (uint64_t)until->tv_sec * S + (uint64_t)until->tv_nsec, now = gs_now_ns();

    if (end > now && end - now > longest_ns)
        longest_ns = end - now;
    __atomic_add_fetch(&waits, 1, __ATOMIC_SEQ_CST);
    return __real_pthread_cond_timedwait(cond, mutex, until);
}

Test(agent_timers, a_directory_that_fails_is_tried_twice_a_second)
{
    start_jobs("http://127.0.0.1:1"); /* nobody listens there */
    while (__atomic_load_n(&waits, __ATOMIC_SEQ_CST) == 0)
        gs_rest_ns(MS);
    jobs_end(agent.jobs);
    cr_assert(longest_ns > 0 && longest_ns <= 500 * MS, "%llu ms",
              (unsigned long long)(longest_ns / MS));
}

Test(agent_timers, a_lease_is_renewed_three_times_in_its_time_and_not_trusted_beyond_it)
{
    start_good_jobs();
    cr_assert_leq(jobs_left_ns(agent.jobs), 60 * S);
    while (__atomic_load_n(&waits, __ATOMIC_SEQ_CST) == 0)
        gs_rest_ns(MS);
    jobs_end(agent.jobs);
    cr_assert(longest_ns > 0 && longest_ns <= 20 * S, "%llu ms",
              (unsigned long long)(longest_ns / MS));
}

static long given[CURLOPTTYPE_OBJECTPOINT]; /* to curl: its options that are numbers */

CURLcode __real_curl_easy_setopt(CURL *curl, CURLoption option, ...);
CURLcode __wrap_curl_easy_setopt(CURL *curl, CURLoption option, ...);
CURLcode __wrap_curl_easy_setopt(CURL *curl, CURLoption option, ...)
{
    va_list value;
    CURLcode code;

    va_start(value, option);
    if (option < CURLOPTTYPE_OBJECTPOINT) {
        given[option] = va_arg(value, long);
        code = __real_curl_easy_setopt(curl, option, given[option]);
    } else {
        code = __real_curl_easy_setopt(curl, option, va_arg(value, void *));
    }
    va_end(value);
    return code;
}

static void see_given(CURLoption option, long most)
{
    cr_assert(given[option] > 0 && given[option] <= most, "%d: %ld", option, given[option]);
}

/* Beside others that can be asked it has half of that. */
Test(agent_timers, an_etcd_that_is_silent_is_left_in_four_seconds)
{
    static const char *const places[] = {"http://127.0.0.1:1",
                                         "http://127.0.0.1:1,http://127.0.0.1:1"};
    static unsigned char value[DIRECTORY_VALUE];
    static struct directory *opened[2]; /* what nobody closes is not lost */

    for (long members = 1; members <= 2; members++) {
        const struct directory_options options = {.place = places[members - 1], .prefix = "p/"};
        char reason[DIRECTORY_REASON];
        struct directory *directory = opened[members - 1] = directory_open(&options, reason);
        const struct directory_key key = {.kind = DIRECTORY_AGENTS};
        size_t size;

        cr_assert_not_null(directory, "%s", reason);
        cr_assert_eq(directory_head(directory)->ops->get(directory, &key, value, &size),
                     DIRECTORY_FAILED);
        see_given(CURLOPT_CONNECTTIMEOUT_MS, 1500);
        see_given(CURLOPT_LOW_SPEED_LIMIT, 1);
        see_given(CURLOPT_LOW_SPEED_TIME, 4 / members);
        see_given(CURLOPT_TIMEOUT, 32 / members);
    }
}

/* ---- The loop -------------------------------------------------------------------------------- */

static int waited_ms[2];

static int note_wait(int epoll, const struct epoll_event *events, int count, int timeout_ms)
{
    static int rounds;

    waited_ms[rounds++] = timeout_ms;
    told_to_end = rounds == 2;
    return 0;
}

Test(agent_timers, all_is_looked_at_ten_times_a_second_and_a_hundred_while_an_open_waits)
{
    struct open open = {.state = OPEN_WAITS, .lease = 7, .again_ns = UINT64_MAX};

    set_up();
    start_good_jobs();
    agent.broker_retry_ns = UINT64_MAX;
    HASH_ADD(hh, agent.opens, lease, sizeof open.lease, &open);
    run(&agent);
    cr_assert(waited_ms[0] > 0 && waited_ms[0] <= 100, "%d ms", waited_ms[0]);
    cr_assert(waited_ms[1] > 0 && waited_ms[1] <= 10, "%d ms", waited_ms[1]);
    jobs_end(agent.jobs);
}
