/*
 * gpushim-agent: its options, and its loop. agent.h says what it is for, README.md how it is run.
 */
#include "shim/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <curl/curl.h>

#include "core/base/printable.h"
#include "core/share/directory.h"
#include "shim/share_options.h"
#include "shim/standard_files.h"

#define LOOK_MS 100
#define SOON_MS 10 /* while an open waits */
#define EVENTS  256
#define LEASES_EACH \
    4 /* for each block that a broker keeps: so many does it take (core/share/cluster_export.c) */

static volatile sig_atomic_t told_to_end;
static int log_level = GS_LOG_INFO;

static void on_signal(int number)
{
    told_to_end = number;
}

static void log_line(enum gs_log_level level, const void *place, const char *text)
{
    char line[2048];

    gs_printable(text, strlen(text), line, sizeof line);
    fprintf(stderr, "gpushim-agent: %s\n", line);
}

/* ---- What comes ----------------------------------------------------------------------------- */

static void on_wake(struct source *source, uint32_t events)
{
    struct agent *agent = (struct agent *)((char *)source - offsetof(struct agent, wake));
    struct jobs_event *event;
    uint64_t count;

    if (read(source->fd, &count, sizeof count) < 0)
        return;
    while ((event = jobs_take(agent->jobs))) {
        if (event->key.kind == DIRECTORY_AGENTS)
            peers_got(agent, event);
        else
            importer_found(agent, event);
        free(event);
    }
}

static void look_at_directory(struct agent *agent)
{
    const unsigned news = jobs_news(agent->jobs, agent->trouble);

    if (news & JOBS_WANT_ALL) {
        peers_write_own(agent);
        exporter_write_all(agent);
    }
    if (news & JOBS_STATE && agent->trouble[0])
        AGENT_LOG(agent, GS_LOG_ERROR,
                  "nothing is opened from other machines or handed out to them, or what is shared "
                  "here is not found, until the directory is well; what is open stays. %s",
                  agent->trouble);
    else if (news & JOBS_STATE)
        AGENT_LOG(agent, GS_LOG_INFO, "the directory answers");
}

/* Again in a second where it cannot be written: as much is written each time. */
static void look_at_file(struct agent *agent, uint64_t now)
{
    const bool lacked = agent->file_ns > 0;

    if (now < agent->file_ns)
        return;
    agent->file_ns = leases_look(&agent->leases) ? 0 : now + GS_NS_PER_S;
    if (agent->file_ns && errno == EWOULDBLOCK) {
        AGENT_LOG(agent, GS_LOG_ERROR,
                  "another agent serves this folder since its agent.leases.lock was removed: this "
                  "one ends");
        told_to_end = SIGTERM;
    } else if (agent->file_ns && !lacked)
        say_line(agent, &agent->log.file, GS_LOG_WARNING,
                 "agent.leases cannot be written (%s): make room in its folder; if this agent ends "
                 "before, nobody knows who has what, and all of it stays",
                 strerror(errno));
}

static void run(struct agent *agent)
{
    bool soon = false;

    while (!told_to_end) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(agent->epoll, events, EVENTS, soon ? SOON_MS : LOOK_MS);
        uint64_t now;

        for (int i = 0; i < count; i++) {
            struct source *source = events[i].data.ptr;

            if (source->fd >= 0)
                source->ready(source, events[i].events);
        }
        look_at_directory(agent);
        now = gs_now_ns(); /* behind all that has just come */
        links_look(&agent->links, now);
        broker_look(agent, now);
        peers_look(agent, now);
        soon = importer_look(agent, now);
        holders_look(agent, now);
        look_at_file(agent, now);
    }
}

/* ---- Options -------------------------------------------------------------------------------- */

static const char usage[] =
    "usage: gpushim-agent --directory PLACE --listen ADDRESS[:PORT] [OPTION...]\n"
    "Joins this machine's broker with those of other machines of an NVLink domain, so "
    "that GPU memory\n"
    "is shared across them.\n"
    "  --directory PLACE       URLs of etcd (https://HOST:2379,https://...), or folder:/PATH\n"
    "  --listen ADDRESS[:PORT] where other machines' agents connect; no port: any\n"
    "  --address ADDRESS       what they connect to, where that is another\n"
    "  --name NAME             of this machine, for people (its host name)\n"
    "  --prefix PREFIX         before all keys (gpushim/)\n"
    "  --lease SECONDS         how long the directory keeps what an agent wrote that is gone (15)\n"
    "  --etcd-ca FILE, --etcd-cert FILE, --etcd-key FILE\n"
    "                          for TLS to etcd\n"
    "  --etcd-user NAME, --etcd-password-file FILE\n"
    "  --machine-id HEX, --boot-id HEX\n"
    "                          in place of this machine's (for tests)\n"
    "  --quiet, --debug        warnings alone; everything\n"
    "The folder of the sockets is GPUSHIM_SHARE_DIR, as the broker's is.\n";

/* What is text as it is goes where its number says. */
enum { LISTEN = 256, LEASE, QUIET, DEBUGGING, HELP, VERSION, TEXT = 1024 };
#define TEXT_OF(name, member) \
    {name, required_argument, NULL, TEXT + offsetof(struct agent_options, member)}

static const struct option long_options[] = {
    {"listen", required_argument, NULL, LISTEN},
    {"lease", required_argument, NULL, LEASE},
    {"quiet", no_argument, NULL, QUIET},
    {"debug", no_argument, NULL, DEBUGGING},
    {"help", no_argument, NULL, HELP},
    {"version", no_argument, NULL, VERSION},
    TEXT_OF("directory", directory.place),
    TEXT_OF("prefix", directory.prefix),
    TEXT_OF("etcd-ca", directory.ca),
    TEXT_OF("etcd-cert", directory.cert),
    TEXT_OF("etcd-key", directory.key),
    TEXT_OF("etcd-user", directory.user),
    TEXT_OF("etcd-password-file", directory.password_file),
    TEXT_OF("address", address),
    TEXT_OF("name", name),
    TEXT_OF("machine-id", machine_id),
    TEXT_OF("boot-id", boot_id),
    {0},
};

static const char *complain(const char *what)
{
    log_line(GS_LOG_ERROR, NULL, what);
    return NULL;
}

/* ADDRESS, ADDRESS:PORT, [ADDRESS]:PORT. */
static bool read_listen(struct agent_options *options, const char *text)
{
    static char address[LINK_ADDRESS];
    const char *colon = strrchr(text, ':');
    const bool bracketed = text[0] == '[',
               has_port = colon && (bracketed ? colon[-1] == ']' : strchr(text, ':') == colon);
    size_t length = has_port ? (size_t)(colon - text) : strlen(text);
    char *end = NULL;
    unsigned long port = has_port ? strtoul(colon + 1, &end, 10) : 0;

    if (bracketed) {
        if (text[length - 1] != ']')
            return false;
        text++;
        length -= 2;
    }
    if (length == 0 || length >= sizeof address || port > 65535 ||
        (has_port && (*end || end == colon + 1)))
        return false;
    memcpy(address, text, length);
    address[length] = 0;
    options->listen = address;
    options->port = (unsigned)port;
    return true;
}

/* -1: go on; else the exit status. */
static int read_options(int argc, char **argv, struct agent_options *options)
{
    struct directory_options *directory = &options->directory;
    unsigned long lease_s;
    char *end;
    int option;

    while ((option = getopt_long(argc, argv, "", long_options, NULL)) >= 0) {
        switch (option) {
        case LISTEN:
            if (!read_listen(options, optarg))
                return complain("--listen wants ADDRESS or ADDRESS:PORT, in numbers"), 2;
            break;
        case LEASE:
            lease_s = strtoul(optarg, &end, 10);
            directory->lease_s = *end || lease_s > DIRECTORY_LEASE_MAX_S ? 0 : (unsigned)lease_s;
            break;
        case QUIET:
            log_level = GS_LOG_WARNING;
            break;
        case DEBUGGING:
            log_level = GS_LOG_DEBUG;
            break;
        case HELP:
            return fputs(usage, stdout) < 0;
        case VERSION:
            return printf("gpushim-agent %s\n", GS_VERSION) < 0;
        default:
            if (option < TEXT)
                return fputs(usage, stderr), 2;
            *(const char **)((char *)options + option - TEXT) = optarg;
        }
    }
    if (optind != argc || !directory->place || !options->listen)
        return fputs(usage, stderr), 2;
    if (directory->lease_s < 3)
        return complain("--lease wants a number of seconds from 3 to 3600"), 2;
    if (strlen(directory->prefix) > 60 || strlen(directory->prefix) == 0)
        return complain("--prefix wants 1 to 60 characters"), 2;
    if (strlen(options->name) >= GS_MACHINE_NAME_SIZE)
        return complain("--name wants up to 31 characters"), 2;
    if (!options->address)
        options->address = options->listen;
    if (strcmp(options->address, "0.0.0.0") == 0 || strcmp(options->address, "::") == 0)
        return complain("give --address: others cannot connect to all addresses"), 2;
    return -1;
}

/* ---- Starting ------------------------------------------------------------------------------- */

static bool read_share(struct gs_share_options *ret_options)
{
    static struct gs_config config;
    const struct gs_config_sources sources = {.environment = environ,
                                              .system_files = gs_config_system_files};

    gs_config_load(&config, &sources, NULL, NULL);
    *ret_options = (struct gs_share_options){.enable = true};
    return share_options_fill(ret_options, &config) ||
           complain("share.dir is too long for a socket; choose a shorter path");
}

static bool read_machine_id(unsigned char ret_id[GS_MACHINE_SIZE])
{
    FILE *file = fopen("/etc/machine-id", "re");
    char text[HEX_SIZE(GS_MACHINE_SIZE)];
    bool good =
        file && fgets(text, sizeof text, file) && gs_text_unhex(text, ret_id, GS_MACHINE_SIZE);

    if (file)
        fclose(file);
    return good;
}

/* This machine's id and its boot's, as others see them: the machine's own is nobody's to know (see
 * machine-id(5)), and each user has an agent of their own. */
static bool find_ids(struct agent *agent)
{
    const struct agent_options *options = &agent->options;
    unsigned char id[GS_MACHINE_SIZE + sizeof(uint32_t)], hash[32];
    const uint32_t uid = geteuid();
    char boot[GS_BOOT_SIZE];

    if (options->machine_id ? !gs_text_unhex(options->machine_id, id, GS_MACHINE_SIZE)
                            : !read_machine_id(id))
        return complain("this machine has no id: /etc/machine-id, 32 hex digits") != NULL;
    memcpy(id + GS_MACHINE_SIZE, &uid, sizeof uid);
    seal_hash("gpushim-agent", 13, "gpushim machine", id, sizeof id, hash);
    memcpy(agent->machine, hash, GS_MACHINE_SIZE);
    gs_boot_id(boot);
    if (!gs_text_unhex(options->boot_id ? options->boot_id : boot, agent->boot, GS_BOOT_BYTES))
        return complain("the kernel's boot has no id that can be read") != NULL;
    return true;
}

/* It is read all the same: some systems give secrets to containers so. */
static void look_at_password(struct agent *agent)
{
    const char *path = agent->options.directory.password_file;
    struct stat info;

    if (path && stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_mode & 077)
        AGENT_LOG(agent, GS_LOG_WARNING,
                  "others may %s the password in %s (mode %04o): chmod 600 it, and "
                  "change the password if they did",
                  info.st_mode & 022 ? "change" : "read", path, (unsigned)info.st_mode & 07777);
    if (path && strstr(agent->options.directory.place, "http://"))
        AGENT_LOG(agent, GS_LOG_WARNING,
                  "etcd's password goes over the network as it is, for whoever "
                  "listens: give URLs with https://, and --etcd-ca");
}

static bool start(struct agent *agent)
{
    char reason[DIRECTORY_REASON + GS_REASON_SIZE] = "out of memory";
    struct rlimit files;
    int folder;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    look_at_password(agent);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0)
        return false;
    agent->epoll = epoll_create1(EPOLL_CLOEXEC);
    agent->wake = (struct source){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = on_wake};
    folder = gs_directory_open(agent->share, reason);
    if (folder < 0 || !leases_open(&agent->leases, folder, agent->boot, reason) ||
        !links_start(&agent->links, agent->epoll, reason) ||
        (agent->listener.fd = link_listen(agent->options.listen, &agent->options.port, reason)) < 0)
        return complain(reason) != NULL;
    agent->listener.ready = peers_accept;
    if (agent->share->published_max < agent->leases.most / LEASES_EACH)
        agent->leases.most = agent->share->published_max * LEASES_EACH;
    peers_start(agent);
    holders_restore(agent);
    if (!loop_add(agent->epoll, &agent->wake, EPOLLIN) ||
        !loop_add(agent->epoll, &agent->listener, EPOLLIN))
        return complain("the kernel has no room to wait") != NULL;
    agent->jobs = jobs_start(&agent->options.directory, agent->wake.fd, reason);
    return agent->jobs || complain(reason);
}

int main(int argc, char **argv)
{
    static struct agent agent = {.broker.fd = -1,
                                 .log.to = {.line = log_line, .level = &log_level}};
    static struct gs_share_options share;
    static char owner[HEX_SIZE(GS_MACHINE_SIZE)], host[GS_MACHINE_NAME_SIZE];
    const struct sigaction act = {.sa_handler = on_signal};
    int status;

    hold_standard_files();
    signal(SIGPIPE, SIG_IGN);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGINT, &act, NULL);
    gethostname(host, sizeof host - 1);
    agent.options =
        (struct agent_options){.name = host, .directory = {.prefix = "gpushim/", .lease_s = 15}};
    status = read_options(argc, argv, &agent.options);
    if (status >= 0)
        return status;
    if (!read_share(&share))
        return 1;
    agent.share = &share;
    agent.options.directory.owner = owner;
    if (!seal_start() || !find_ids(&agent))
        return 1;
    gs_text_hex(agent.machine, GS_MACHINE_SIZE, owner);
    if (!start(&agent))
        return 1;
    AGENT_LOG(&agent, GS_LOG_INFO, "machine %s (%s), at %s port %u", agent.options.name, owner,
              agent.options.address, agent.options.port);
    run(&agent);
    jobs_end(agent.jobs);
    AGENT_LOG(&agent, GS_LOG_INFO, "ended; what is open stays, and waits for the next agent");
    _exit(0); /* a thread may still be in the directory */
}
