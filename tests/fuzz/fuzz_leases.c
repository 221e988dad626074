/* The agent's file of leases (shim/agent/leases.h): any bytes. What is read of it is written anew,
 * and read again as it was. */
#include "fuzz.h"

/* What it has in its tables is its own matter, and goes here. */
#include "shim/agent/leases.c"

static const unsigned char boot[GS_BOOT_BYTES] = "boot of the fuzz";
static char path[64] =
    "/dev/shm/gpushim-fuzz-XXXXXX"; /* memory is faster than a disk, where it is there */
static int folder = -1;

static void clean_up(void)
{
    unlinkat(folder, "agent.leases", 0);
    unlinkat(folder, "agent.leases.lock", 0);
    rmdir(path);
}

static void start(void)
{
    if (!mkdtemp(path))
        CHECK(mkdtemp(strcpy(path, "/tmp/gpushim-fuzz-XXXXXX")));
    folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(folder >= 0);
    atexit(clean_up);
}

static void open_all(struct leases *leases)
{
    char reason[LEASES_REASON];

    CHECK(leases_open(leases, folder, boot, reason));
}

/* As the end of the process would: the lock goes with its descriptor. */
static void close_all(struct leases *leases, int first_fd)
{
    struct lease *lease, *next;
    struct leases_note *note, *next_note;

    HASH_ITER(hh, leases->all, lease, next) {
        leases_end(leases, lease);
    }
    HASH_ITER(hh, leases->notes, note, next_note) {
        HASH_DEL(leases->notes, note);
        free(note);
    }
    CHECK(!leases->groups);
    CHECK(syscall(SYS_close_range, (unsigned)first_fd, ~0u, 0u) == 0);
}

/* Else it is as none. */
static bool is_whole(const uint8_t *data, size_t size)
{
    struct record record;

    for (; size >= sizeof record; data += sizeof record, size -= sizeof record) {
        memcpy(&record, data, sizeof record);
        if (record.magic != MAGIC)
            return false;
    }
    return size == 0;
}

/* What the records say, by a count of its own. */
static void is_right(const struct leases *leases, const uint8_t *data, size_t size)
{
    static struct {
        struct lease_key key;
        struct lease_block block;
    } rows[64];
    unsigned count = 0, at;
    struct record record;

    if (!is_whole(data, size))
        size = 0;
    for (; size >= sizeof record; data += sizeof record, size -= sizeof record) {
        memcpy(&record, data, sizeof record);
        if (memcmp(record.boot, boot, sizeof boot) != 0)
            continue;
        for (at = 0; at < count && memcmp(&rows[at].key, &record.key, sizeof record.key) != 0;)
            at++;
        if (at == sizeof rows / sizeof *rows)
            return; /* that many were not worth a table */
        if ((record.kind == ADDED || record.kind == ENDED) && at < count)
            rows[at] = rows[--count];
        if (record.kind == ADDED) {
            rows[count].key = record.key;
            rows[count++].block = record.block;
        }
    }
    CHECK(HASH_COUNT(leases->all) == count);
    for (at = 0; at < count; at++) {
        const struct lease *lease = leases_find(leases, rows[at].key.machine, rows[at].key.lease);

        CHECK(lease && memcmp(&lease->block, &rows[at].block, sizeof lease->block) == 0);
    }
}

static void is_same(const struct leases *leases, const struct leases *again)
{
    struct lease *lease, *next;
    struct leases_note *note, *next_note;

    CHECK(HASH_COUNT(leases->all) == HASH_COUNT(again->all));
    CHECK(HASH_COUNT(leases->notes) == HASH_COUNT(again->notes));
    CHECK(leases->records == again->records);
    CHECK(memcmp(leases->id, again->id, sizeof leases->id) == 0);
    HASH_ITER(hh, leases->all, lease, next) {
        const struct lease *other = leases_find(again, lease->key.machine, lease->key.lease);

        CHECK(other && memcmp(&other->block, &lease->block, sizeof lease->block) == 0);
        CHECK(memcmp(other->exporter, lease->exporter, sizeof lease->exporter) == 0);
        CHECK(leases_of_block(again, &lease->block));
    }
    HASH_ITER(hh, leases->notes, note, next_note) {
        unsigned char value[sizeof note->value];

        CHECK(leases_noted(again, (enum leases_mark)note->key.mark, note->key.machine, value));
        CHECK(memcmp(value, note->value, sizeof value) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct leases leases, again;
    int fd, first_fd, second_fd;

    if (folder < 0)
        start();
    fd = openat(folder, "agent.leases", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
    first_fd = fd; /* all that is opened from here on */
    open_all(&leases);
    is_right(&leases, data, size);
    CHECK(unlinkat(folder, "agent.leases.lock", 0) == 0);
    second_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    open_all(&again);
    is_same(&leases, &again);
    close_all(&again, second_fd);
    close_all(&leases, first_fd);
    return 0;
}
