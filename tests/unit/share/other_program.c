/* The other process of a test (other.h): DIR, then words, also several in one argument: uid=N,
 * trust=N, timeout=MS, idle=MS, trustgid=N, keep=MS (with a broker), readonly=1,
 * strict=1, blocks=N, reach=1 (its memory may leave the machine). */
#include "core/share/exporter.h"
#include "other.h"
#include "side.h"
#include "tests/children.h"
#include "tests/system.h"

static struct side side;
static struct side_chunk chunk;
static struct gs_export *last_export;
static pid_t test; /* that started this */
static char **words;

static void say_ipc_handle(const unsigned char *ipc_handle)
{
    char hex[2 * GS_IPC_HANDLE_SIZE + 1];

    ipc_handle_to_hex(ipc_handle, hex);
    printf("ok %s\n", hex);
}

static void do_export(size_t offset, size_t size, int byte)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    gs_status status;

    if (!chunk.base)
        chunk = side_chunk_new(&side, 2 * MIB);
    memset((void *)(chunk.base + offset), byte, size);
    status = side_export(&side, &chunk, offset, size, &last_export);
    if (status != GS_OK) {
        printf("status %d\n", status);
        return;
    }
    gs_export_handle(last_export, ipc_handle);
    say_ipc_handle(ipc_handle);
}

/* A block that lies across pieces, all of them but for 512 bytes at either end. */
static void do_across(unsigned pieces, int byte)
{
    struct gs_share_strip *strip = calloc(1, sizeof *strip + pieces * sizeof *strip->sizes);
    struct gs_share_source source = {.chunk_id = GS_STRIP_IDS | ++side.next_id,
                                     .chunk_size = pieces * 2 * MIB,
                                     .block_id = side.next_id,
                                     .offset = 512,
                                     .size = pieces * 2 * MIB - 1024,
                                     .strip = strip};
    const CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base;
    gs_status status;

    side.driver.mem_address_reserve(&base, source.chunk_size, 0, 0, 0);
    strip->references = 1;
    strip->is_block = true;
    for (; strip->pieces < pieces; strip->pieces++) {
        CUdeviceptr address = base + strip->pieces * 2 * MIB;

        strip->sizes[strip->pieces] = 2 * MIB;
        side.driver.mem_create(&handle, 2 * MIB, NULL, 0);
        side.driver.mem_map(address, 2 * MIB, 0, handle, 0);
        side.driver.mem_set_access(address, 2 * MIB, &access, 1);
        memset((void *)address, byte + (int)strip->pieces, 2 * MIB);
    }
    source.address = base + source.offset;
    memcpy(source.uuid, side_gpu, sizeof source.uuid);
    status = gs_share_export(side.share, &source, &last_export);
    gs_share_strip_unref(strip);
    if (status != GS_OK) {
        printf("status %d\n", status);
        return;
    }
    gs_share_given_out(side.share, last_export);
    gs_export_handle(last_export, ipc_handle);
    say_ipc_handle(ipc_handle);
}

static void do_open(const char *hex)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;
    gs_status status;

    ipc_handle_from_hex(hex, ipc_handle);
    status = gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address);
    if (status == GS_OK)
        printf("ok %lx\n", (unsigned long)address);
    else
        printf("status %d\n", status);
}

static void do_fork(bool told)
{
    pid_t child;

    if (told)
        gs_share_forking(side.share);
    child = fork();
    if (child == 0) {
        gs_share_at_exit(side.share); /* must not touch the parent's file */
        close(0);
        close(1);
        stay_until_end_of(test);
    }
    printf("ok %d\n", (int)child);
}

static void do_nofile(unsigned long limit)
{
    struct rlimit now;

    getrlimit(RLIMIT_NOFILE, &now);
    now.rlim_cur = limit;
    setrlimit(RLIMIT_NOFILE, &now);
    printf("ok\n");
}

static void do_ask(uint64_t wanted)
{
    struct gs_share_answers answers;

    gs_share_ask(side.share, side_gpu, wanted, &answers);
    printf("ok %llu %u %d\n", (unsigned long long)answers.given, answers.silent, answers.ended);
}

static void do_name(const char *name, unsigned long offset, int note)
{
    struct gs_naming naming = {.label = "other's", .note_size = 1, .note = {(unsigned char)note}};
    uint64_t since_ns = 0;
    gs_status status;

    snprintf(naming.name, sizeof naming.name, "%.63s", name);
    status = gs_share_name(side.share, last_export, &naming, offset, &since_ns);
    if (status == GS_OK)
        gs_share_named(side.share, name, since_ns);
    printf("status %d\n", status);
}

static void do_look_up(const char *name)
{
    struct gs_found found = {.uid = 0};
    enum gs_look_up outcome = gs_share_look_up(side.share, name, &found);
    char hex[2 * GS_IPC_HANDLE_SIZE + 1];

    ipc_handle_to_hex(found.ipc_handle, hex);
    if (outcome == GS_LOOK_FOUND)
        printf("note %d uid %u kept %u %s\n", found.naming.note[0], found.uid, found.kept, hex);
    else
        printf("none %d uid %u\n", outcome, found.uid);
}

static void do_unname(const char *name)
{
    enum gs_look_up outcome = gs_share_unname(side.share, name);

    printf("%s %d\n", outcome == GS_LOOK_FOUND ? "ended" : "none", outcome);
}

static void serve(const char *line)
{
    char word[32] = "", argument[200] = "";
    unsigned long a = 0, b = 0;
    int byte = 0;

    sscanf(line, "%31s %199s", word, argument);
    a = strtoul(argument, NULL, 16);
    if (!strcmp(word, "export")) {
        sscanf(line, "export %lu %lu %d", &a, &b, &byte);
        do_export(a, b, byte);
    } else if (!strcmp(word, "across")) {
        sscanf(line, "across %lu %d", &a, &byte);
        do_across((unsigned)a, byte);
    } else if (!strcmp(word, "exports")) {
        printf("ok %u\n", memdriver_exports());
    } else if (!strcmp(word, "ends")) {
        gs_share_at_exit(side.share);
        printf("ok\n");
    } else if (!strcmp(word, "left")) { /* all of the last one, with a broker */
        gs_lock_take(&side.share->lock);
        puts(gs_export_is_brokered(side.share, last_export) ? "ok" : "no");
        gs_lock_release(&side.share->lock);
    } else if (!strcmp(word, "open")) {
        do_open(argument);
    } else if (!strcmp(word, "close")) {
        printf("status %d\n", gs_share_close(side.share, a));
    } else if (!strcmp(word, "read")) {
        printf("ok %d\n", *(volatile unsigned char *)a);
    } else if (!strcmp(word, "write")) {
        sscanf(line, "write %lx %d", &a, &byte);
        *(volatile unsigned char *)a = (unsigned char)byte;
        printf("ok\n");
    } else if (!strcmp(word, "withdraw")) {
        puts(gs_share_withdraw(side.share, last_export) ? "ok" : "held");
    } else if (!strcmp(word, "freed")) {
        gs_share_freed(side.share, last_export, side_now());
        printf("ok\n");
    } else if (!strcmp(word, "held")) {
        struct gs_share_held held;

        gs_share_held(side.share, side_gpu, 0, &held);
        printf("ok %u %zu of %s %llu\n", held.holders, held.bytes, held.most[0].name,
               (unsigned long long)held.most[0].held_ns);
    } else if (!strcmp(word, "short")) {
        gs_share_chunk_gone(side.share, chunk.id);
        gs_share_await_given_back(side.share, NULL, UINT64_C(100000000));
        printf("ok\n");
    } else if (!strcmp(word, "fds")) {
        printf("ok %d\n", side_open_fds());
    } else if (!strcmp(word, "holds")) {
        struct gs_share_stats stats;

        gs_share_stats(side.share, &stats);
        printf("ok %lu\n", (unsigned long)stats.references);
    } else if (!strcmp(word, "said")) {
        puts(strstr(side_logged(), argument) ? "ok" : "no");
    } else if (!strcmp(word, "mapped")) {
        printf("ok %u\n", memdriver_mapped());
    } else if (!strcmp(word, "census")) {
        printf("ok %d\n", memdriver_alive());
    } else if (!strcmp(word, "connections")) {
        printf("ok %d\n", side_connections(false));
    } else if (!strcmp(word, "lose")) {
        printf("ok %d\n", side_connections(true));
    } else if (!strcmp(word, "fork")) {
        do_fork(!argument[0]);
    } else if (!strcmp(word, "nofile")) {
        do_nofile(strtoul(argument, NULL, 10));
    } else if (!strcmp(word, "serve")) {
        side_serve(&side, strtoull(argument, NULL, 10));
        printf("ok\n");
    } else if (!strcmp(word, "ask")) {
        do_ask(strtoull(argument, NULL, 10));
    } else if (!strcmp(word, "name")) {
        sscanf(line, "name %*s %lu %d", &a, &byte);
        do_name(argument, a, byte);
    } else if (!strcmp(word, "lookup")) {
        do_look_up(argument);
    } else if (!strcmp(word, "unname")) {
        do_unname(argument);
    } else if (!strcmp(word, "delay")) {
        memdriver_delay_export((unsigned)strtoul(argument, NULL, 10));
        printf("ok\n");
    } else {
        printf("what?\n");
    }
}

static void at_exit(void)
{
    gs_share_at_exit(side.share);
}

static void take_word(const char *word, struct gs_share_options *options)
{
    unsigned long value = strtoul(strchr(word, '=') + 1, NULL, 10);

    if (!strncmp(word, "uid=", 4) && !become_user((uid_t)value, (gid_t)value))
        exit(3);
    if (!strncmp(word, "trust=", 6))
        options->uids[options->uid_count++] = (uid_t)value;
    if (!strncmp(word, "timeout=", 8))
        options->timeout_ns = value * 1000000;
    if (!strncmp(word, "trustgid=", 9))
        options->gids[options->gid_count++] = (gid_t)value;
    if (!strncmp(word, "readonly=", 9))
        options->read_only = value != 0;
    if (!strncmp(word, "strict=", 7))
        options->isolate = value != 0;
    if (!strncmp(word, "keep=", 5)) {
        options->broker = true;
        options->keep_ns = value * 1000000;
        snprintf(options->broker_program, sizeof options->broker_program, "%s", BROKER_PROGRAM);
    }
    if (!strncmp(word, "reach=", 6))
        options->cluster = value != 0;
    if (!strncmp(word, "blocks=", 7))
        options->idle_blocks = (uint32_t)value;
    if (!strncmp(word, "idle=", 5))
        options->idle_ns = value * 1000000;
}

int main(int argc, char **argv)
{
    struct gs_share_options options;
    char line[512];

    signal(SIGPIPE, SIG_DFL); /* sharing must never send one */
    alarm(CHILD_S);
    test = getppid();
    words = argv;
    side_options(&options, argv[1]);
    for (int i = 2; i < argc; i++)
        for (char *word = strtok(argv[i], " "); word; word = strtok(NULL, " "))
            take_word(word, &options);
    side_start(&side, &options);
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "quit", 4)) {
            side_stop(&side);
            if (chunk.base)
                side_chunk_free(&side, &chunk);
            printf("ok\n");
            return memdriver_alive() == 0 ? 0 : 4;
        }
        if (!strncmp(line, "exit", 4)) {
            atexit(at_exit);
            exit(0);
        }
        serve(line);
    }
    return 0;
}
