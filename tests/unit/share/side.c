/* One side of a share (side.h). */
#include "side.h"

#include "core/share/directory.h"
#include "core/share/internal.h"
#include "core/share/wire.h"
#include "tests/folder.h"
#include "tests/system.h"

static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static char logged[65536];
static unsigned log_lines;

static void log_line(enum gs_log_level level, const void *place, const char *text)
{
    /* Half of the room is for what matters. */
    size_t room = level <= GS_LOG_WARNING ? sizeof logged : sizeof logged / 2;

    pthread_mutex_lock(&log_mutex);
    if (level <= GS_LOG_WARNING)
        log_lines++;
    if (strlen(logged) + strlen(text) + 2 < room)
        strcat(strcat(logged, text), "\n");
    pthread_mutex_unlock(&log_mutex);
    if (getenv("SIDE_VERBOSE"))
        fprintf(stderr, "[%d] %d: %s\n", (int)getpid(), level, text);
}

const char *side_logged(void)
{
    static char copy[sizeof logged];

    pthread_mutex_lock(&log_mutex);
    memcpy(copy, logged, sizeof copy);
    pthread_mutex_unlock(&log_mutex);
    return copy;
}

unsigned side_log_lines(void)
{
    unsigned lines;

    pthread_mutex_lock(&log_mutex);
    lines = log_lines;
    pthread_mutex_unlock(&log_mutex);
    return lines;
}

static void lease_ended(void *arg, uint64_t address)
{
    struct side *side = arg;

    __atomic_add_fetch(&side->leases_ended, 1, __ATOMIC_SEQ_CST);
}

void side_dir_new(char *ret_dir, size_t size)
{
    snprintf(ret_dir, size, "/tmp/gpushim-test-%d-%06lx", (int)getpid(),
             (unsigned long)(side_now() / 1000 & 0xffffff));
    folder_watch(ret_dir);
}

void side_dir_remove(const char *dir)
{
    folder_remove(dir);
}

static bool has_last_name(const char *name)
{
    const char *suffix = strrchr(name, '.');

    return name[0] != '.' && !(suffix && strcmp(suffix, GS_NEW_SUFFIX) == 0);
}

static bool is_entry(const char *name)
{
    return name[0] != '.';
}

static int count_names(const char *dir, bool (*counts)(const char *name))
{
    DIR *list = opendir(dir);
    struct dirent *entry;
    int count = 0;

    if (!list)
        return -1;
    while ((entry = readdir(list)))
        count += counts(entry->d_name);
    closedir(list);
    return count;
}

int side_dir_count(const char *dir)
{
    return count_names(dir, is_entry);
}

int side_dir_put_up(const char *dir)
{
    return count_names(dir, has_last_name);
}

void side_options(struct gs_share_options *ret_options, const char *dir)
{
    *ret_options = (struct gs_share_options){.enable = true,
                                             .settle_ns = 200000000,
                                             .timeout_ns = 60000000000,
                                             .max_clients = 64,
                                             .published_max = 1000,
                                             .idle_ns = 60000000000,
                                             .idle_blocks = 64};
    snprintf(ret_options->dir, sizeof ret_options->dir, "%s", dir);
    if (side_with_broker()) {
        ret_options->broker = true;
        ret_options->keep_ns = 60000000000;
        snprintf(ret_options->broker_program, sizeof ret_options->broker_program, "%s",
                 BROKER_PROGRAM);
    }
}

bool side_with_broker(void)
{
    const char *strategy = getenv("SIDE_STRATEGY");

    return strategy && strcmp(strategy, "broker") == 0;
}

int side_listen(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(at.sun_path, sizeof at.sun_path, "%s.new", path);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, 8) != 0 ||
        rename(at.sun_path, path) != 0)
        abort();
    return fd;
}

void side_path_of(const char *dir, const unsigned char *ipc_handle, struct sockaddr_un *ret_path)
{
    memset(ret_path, 0, sizeof *ret_path);
    ret_path->sun_family = AF_UNIX;
    snprintf(ret_path->sun_path, sizeof ret_path->sun_path, "%s/", dir);
    for (unsigned i = 0; i < GS_INSTANCE_SIZE; i++)
        sprintf(ret_path->sun_path + strlen(ret_path->sun_path), "%02x", ipc_handle[8 + i]);
}

void side_greet(int fd, const unsigned char *instance)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, instance, GS_INSTANCE_SIZE);
    gs_wire_send(fd, &message, -1);
}

int side_dial(const char *dir, const unsigned char ipc_handle[GS_IPC_HANDLE_SIZE])
{
    struct sockaddr_un to;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    side_path_of(dir, ipc_handle, &to);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    close(fd);
    return -1;
}

int side_connect_by_hand(const char *dir, const unsigned char ipc_handle[GS_IPC_HANDLE_SIZE])
{
    int fd = side_dial(dir, ipc_handle);

    CHECK(fd >= 0);
    side_greet(fd, ipc_handle + 8);
    return fd;
}

int side_send(int fd, const union gs_wire_message *message, int attached)
{
    int error = 0;

    SIDE_WAIT((error = gs_wire_send(fd, message, attached)) != -ETOOMANYREFS);
    return error;
}

int side_next_message(int fd, union gs_wire_message *ret_message)
{
    do
        if (recv(fd, ret_message, sizeof *ret_message, 0) <= 0)
            return 0;
    while (ret_message->head.type == GS_WIRE_RECALL);
    return ret_message->head.type;
}

int side_open_by_hand(int fd, const struct gs_export *export)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    gs_export_handle(export, message.open.ipc_handle);
    CHECK(gs_wire_send(fd, &message, -1) == 0);
    return side_next_message(fd, &message);
}

void side_leave(int fd)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_BYE, 0);
    gs_wire_send(fd, &message, -1);
    close(fd);
}

const char *side_broker_name(void)
{
    static char name[GS_BROKER_NAME_SIZE];

    gs_broker_name(name);
    return name;
}

const char *side_broker_path(const char *dir)
{
    static char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, side_broker_name());
    return path;
}

void side_name(unsigned number, pid_t pid, char ret_name[33])
{
    unsigned char instance[GS_INSTANCE_SIZE];

    if (!gs_instance_new(pid, instance))
        abort();
    memset(instance, 0, 8);
    for (unsigned i = 0; i < 4; i++)
        instance[i] = (unsigned char)(number >> 8 * i);
    for (unsigned i = 0; i < GS_INSTANCE_SIZE; i++)
        sprintf(ret_name + 2 * i, "%02x", instance[i]);
}

void side_path_named(const char *dir, unsigned number, char ret_path[128])
{
    char name[33];

    side_name(number, getpid(), name);
    snprintf(ret_path, 128, "%.63s/%s", dir, name);
}

pid_t side_gone_pid(void)
{
    pid_t pid = 4194303; /* the largest that there is */

    while (kill(pid, 0) == 0)
        pid--;
    return pid;
}

/* A test that has failed may have left a socket that nobody listens at, or a broker that is
 * stopped. */
int side_broker_dial(const char *dir)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const struct timeval limit = {.tv_sec = 10};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    strcpy(to.sun_path, side_broker_path(dir));
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    close(fd);
    return -1;
}

pid_t side_broker_pid(const char *dir)
{
    struct ucred who = {0};
    socklen_t size = sizeof who;
    int fd = side_broker_dial(dir);

    if (fd >= 0) {
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size);
        close(fd);
    }
    return who.pid;
}

unsigned long long side_broker_published(const char *dir)
{
    union gs_wire_message message;
    unsigned long long left = 0;
    int fd = side_broker_dial(dir);

    if (fd >= 0) {
        gs_wire_start(&message, GS_WIRE_QUERY, 1);
        gs_wire_send(fd, &message, -1);
        if (recv(fd, &message, sizeof message, 0) > 0)
            left = message.report.exports;
        close(fd);
    }
    return left;
}

bool side_broker_gone(const char *dir)
{
    return SIDE_WAIT(access(side_broker_path(dir), F_OK) != 0);
}

bool side_broker_end(const char *dir)
{
    pid_t broker = side_broker_pid(dir);

    if (broker) {
        kill(broker, SIGTERM);
        kill(broker, SIGCONT); /* a test that has failed may have left it stopped */
    }
    return side_broker_gone(dir);
}

void side_start(struct side *side, const struct gs_share_options *options)
{
    if (side_try_start(side, options) != GS_OK)
        abort();
}

gs_status side_try_start(struct side *side, const struct gs_share_options *options)
{
    struct gs_share_events events = {.lease_ended = lease_ended, .arg = side};

    memset(side, 0, sizeof *side);
    memdriver_fill(&side->driver);
    gs_map_init(&side->map);
    gs_fences_init(&side->fences, &side->driver);
    side->log.line = log_line;
    side->options = *options;
    return gs_share_create(&side->driver, &side->map, &side->fences, &side->log, options, &events,
                           &side->share);
}

static sem_t is_asked;

static bool asked(void *arg, enum gs_question question, unsigned device, union gs_told *told)
{
    return question == GS_ASKED_MEMORY && sem_post(&is_asked) == 0;
}

static void *give(void *arg)
{
    struct side *side = arg;

    for (;;) {
        unsigned char uuid[16];
        uint64_t wanted;

        if (sem_wait(&is_asked) == 0 && gs_share_purge(side->share, uuid, &wanted))
            gs_share_purged(side->share, side->given);
    }
    return NULL;
}

void side_serve(struct side *side, uint64_t given)
{
    pthread_t thread;

    side->given = given;
    side->share->events.asked = asked;
    if (sem_init(&is_asked, 0, 0) != 0 || pthread_create(&thread, NULL, give, side) != 0 ||
        gs_share_serve(side->share) != GS_OK)
        abort();
}

void side_stop(struct side *side)
{
    gs_share_destroy(side->share);
    gs_fences_destroy(&side->fences);
    gs_map_destroy(&side->map);
}

struct side_chunk side_chunk_new(struct side *side, size_t size)
{
    const struct gs_driver *driver = &side->driver;
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemAllocationProp prop = {0};
    struct side_chunk chunk = {.size = size,
                               .id = __atomic_add_fetch(&side->next_id, 1, __ATOMIC_RELAXED)};

    if (driver->mem_create(&chunk.handle, size, &prop, 0) ||
        driver->mem_address_reserve(&chunk.base, size, 0, 0, 0) ||
        driver->mem_map(chunk.base, size, 0, chunk.handle, 0) ||
        driver->mem_set_access(chunk.base, size, &access, 1))
        abort();
    return chunk;
}

void side_chunk_free(struct side *side, const struct side_chunk *chunk)
{
    side->driver.mem_unmap(chunk->base, chunk->size);
    side->driver.mem_address_free(chunk->base, chunk->size);
    side->driver.mem_release(chunk->handle);
}

const unsigned char side_gpu[16] = "softdevice00000", side_other_gpu[16] = "softdevice00001";

gs_status side_export(struct side *side, const struct side_chunk *chunk, size_t offset, size_t size,
                      struct gs_export **ret_export)
{
    struct gs_share_source source = {.handle = chunk->handle,
                                     .chunk_id = chunk->id,
                                     .chunk_size = chunk->size,
                                     .block_id =
                                         __atomic_add_fetch(&side->next_id, 1, __ATOMIC_RELAXED),
                                     .offset = offset,
                                     .size = size,
                                     .address = chunk->base + offset,
                                     .alone = true};

    gs_status status;

    memcpy(source.uuid, side_gpu, sizeof source.uuid);
    status = gs_share_export(side->share, &source, ret_export);
    if (status == GS_OK)
        gs_share_given_out(side->share, *ret_export);
    return status;
}

uint64_t side_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool side_withdraws(struct side *side, struct gs_export *export)
{
    if (side_with_broker()) /* its share thread may be at the export, to leave it there */
        return side_gets_back(side, export);
    return gs_share_withdraw(side->share, export);
}

bool side_within(uint64_t since, uint64_t ns)
{
    return side_now() - since < ns;
}

static bool gets_back(struct side *side, struct gs_export *export, unsigned ms)
{
    uint64_t start = side_now();

    for (;;) {
        uint64_t now = side_now();

        if (gs_share_withdraw(side->share, export))
            return true;
        if (now - start > ms * UINT64_C(1000000))
            return false;
        usleep(1000);
    }
}

bool side_gets_back(struct side *side, struct gs_export *export)
{
    return gets_back(side, export, SIDE_PATIENCE_MS);
}

bool side_stays_held(struct side *side, struct gs_export *export, unsigned ms)
{
    return !gets_back(side, export, ms);
}

int side_connections(bool closes)
{
    int count = 0;

    for (int fd = 3; fd < 4096; fd++) {
        struct sockaddr_un to = {0};
        socklen_t size = sizeof to, type_size = sizeof(int);
        int type = 0;

        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size) != 0 || type != SOCK_SEQPACKET ||
            getpeername(fd, (struct sockaddr *)&to, &size) != 0 ||
            !to.sun_path[0]) /* who was accepted has no name */
            continue;
        count += !strstr(to.sun_path, side_broker_name());
        if (closes)
            close(fd);
    }
    return count;
}

int side_open_fds(void)
{
    return side_dir_count("/proc/self/fd");
}

int side_threads(void)
{
    return side_dir_count("/proc/self/task");
}
