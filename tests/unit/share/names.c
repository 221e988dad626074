/* Names of exports (core/share/names.c, look_up.c): found by other processes, until the block is
 * freed, the name taken back or published anew; and with a broker beyond the process. */
#include <criterion/criterion.h>

#include "broker_scene.h"
#include "names_scene.h"
#include "tests/children.h"
#include "tests/system.h"

static void setup(void)
{
    scene_new();
    scene_chunk();
}

TestSuite(share_names, .init = setup, .fini = scene_end, .timeout = 120);

struct gs_naming naming_of(const char *name, int note)
{
    struct gs_naming naming = {.label = "a label", .note_size = 1, .note = {(unsigned char)note}};

    strncpy(naming.name, name, sizeof naming.name - 1);
    return naming;
}

gs_status publish(struct gs_export *export, const char *name, int note)
{
    struct gs_naming naming = naming_of(name, note);
    uint64_t since_ns;
    gs_status status = gs_share_name(side.share, export, &naming, 100, &since_ns);

    if (status == GS_OK)
        gs_share_named(side.share, name, since_ns);
    return status;
}

int note_of(const char *name)
{
    struct gs_found found;

    return gs_share_look_up(side.share, name, &found) == GS_LOOK_FOUND ? found.naming.note[0] : -1;
}

int others_note(struct other *asked, const char *name)
{
    int note = -1;

    sscanf(other_ask(asked, "lookup %s", name), "note %d", &note);
    return note;
}

bool others_handle(struct other *asked, const char *name, unsigned char *ret_ipc_handle)
{
    char hex[2 * GS_IPC_HANDLE_SIZE + 1] = "";

    sscanf(other_ask(asked, "lookup %s", name), "note %*d uid %*u kept %*u %128s", hex);
    ipc_handle_from_hex(hex, ret_ipc_handle);
    return hex[0];
}

struct gs_export *export_at(size_t offset, int byte)
{
    struct gs_export *export;

    memset((void *)(chunk.base + offset), byte, 512);
    cr_assert_eq(side_export(&side, &chunk, offset, 512, &export), GS_OK);
    return export;
}

void end(struct gs_export *export)
{
    cr_assert(side_withdraws(&side, export));
}

Test(share_names, a_name_ends_with_its_blocks_free_though_others_hold_it)
{
    struct gs_export *export = export_at(0, 7);
    unsigned char handle[GS_IPC_HANDLE_SIZE];
    unsigned long address;

    cr_assert_eq(publish(export, "w", 1), GS_OK);
    cr_assert_eq(publish(export, "also", 2), GS_OK);
    other_start(&other, dir, NULL);
    cr_assert(others_handle(&other, "w", handle));
    cr_assert_eq(other_open(&other, handle, &address), GS_OK);
    gs_share_freed(side.share, export, side_now());
    cr_assert_eq(note_of("w"), -1);
    cr_assert_eq(others_note(&other, "also"), -1);
    cr_assert_eq(publish(export, "w", 1), GS_INVALID, "what is freed gets no name");
    cr_assert_str_eq(other_ask(&other, "read %lx", address), "ok 7");
    other_ask(&other, "close %lx", address);
    cr_assert(side_gets_back(&side, export));
    export = export_at(512, 8);
    cr_assert_eq(publish(export, "w", 5), GS_OK);
    end(export); /* without a free before */
    cr_assert_eq(note_of("w"), -1);
}

/* ---- With a broker --------------------------------------------------------------------------- */

/* Another process that leaves it with the broker under that name. */
static void keeper_start(struct other *keeper, const char *name, int note)
{
    unsigned char handle[GS_IPC_HANDLE_SIZE];

    other_start(keeper, dir, "keep=60000");
    other_export(keeper, 0, 512, 40 + note, handle);
    cr_assert_str_eq(other_ask(keeper, "name %s 0 %d", name, note), "status 0");
}

Test(share_names, a_broker_has_it_when_the_publisher_is_killed_at_once)
{
    struct gs_found found;

    for (int note = 1; note < 6; note++) { /* publishing waits until it has been told */
        keeper_start(&other, "w", note);
        other_kill(&other);
        cr_assert_eq(gs_share_look_up(side.share, "w", &found), GS_LOOK_FOUND);
        cr_assert_eq(found.naming.note[0], note);
        cr_assert_eq(found.kept, 1);
        cr_assert_eq(found.uid, geteuid());
        cr_assert_str_eq(found.naming.label, "other's");
    }
    cr_assert(SIDE_WAIT(gs_share_look_up(side.share, "w", &found) == GS_LOOK_FOUND &&
                        side_broker_published(dir) == 5));
    cr_assert_eq(*(char *)scene_open(found.ipc_handle), 45);
}

Test(share_names, a_broker_does_not_have_what_was_freed_or_taken_back)
{
    unsigned char handle[GS_IPC_HANDLE_SIZE];

    keeper_start(&other, "freed", 1);
    other_ask(&other, "freed"); /* and not used again yet */
    other_export(&other, 1024, 512, 9, handle);
    cr_assert_str_eq(other_ask(&other, "name back 0 2"), "status 0");
    cr_assert_str_eq(other_ask(&other, "name kept 0 3"), "status 0");
    cr_assert_str_eq(other_ask(&other, "unname back"), "ended 0");
    cr_assert_eq(note_of("back"), -1);
    other_kill(&other);
    cr_assert_eq(note_of("back"), -1);
    cr_assert_eq(note_of("kept"), 3);
    cr_assert(SIDE_WAIT(note_of("freed") == -1)); /* the broker reads that behind its end */
}

/* The next one is told all names anew. */
Test(share_names, a_broker_that_dies_takes_no_name_of_a_living_process)
{
    pid_t broker;

    keeper_start(&other, "w", 1);
    cr_assert_str_eq(other_ask(&other, "name v 0 2"), "status 0");
    broker = side_broker_pid(dir);
    kill(broker, SIGKILL);
    cr_assert_eq(note_of("w"), 1);
    cr_assert(SIDE_WAIT(side_broker_pid(dir) && side_broker_pid(dir) != broker &&
                        strstr(other_ask(&other, "lookup v"), "kept 1")));
    cr_assert(SIDE_WAIT(strstr(other_ask(&other, "lookup w"), "kept 1")));
    other_kill(&other);
    cr_assert_eq(note_of("w"), 1);
    cr_assert_eq(note_of("v"), 2);
}

/* One that takes its time to read a name, and says that it does not keep it, or that it does.
 * Counts what it has read of each name, by its first letter. */
static void slow_broker(unsigned read[256], bool keeps)
{
    char path[128];
    int listener, fd;

    snprintf(path, sizeof path, "%s/%s", dir, side_broker_name());
    listener = side_listen(path);
    for (;;) {
        union gs_wire_message message = {.head = {0}};

        fd = accept(listener, NULL, NULL);
        while (recv(fd, &message, sizeof message, 0) > 0) {
            bool is_name = message.head.type == GS_WIRE_NAME;

            if (message.head.type == GS_WIRE_HELLO)
                continue;
            if (is_name) {
                usleep(50000);
                __atomic_add_fetch(&read[(unsigned char)message.name.naming.name[0]], 1,
                                   __ATOMIC_SEQ_CST);
            }
            gs_wire_start(&message, GS_WIRE_PULL, 0);
            message.pull.kept = is_name && keeps;
            gs_wire_send(fd, &message, -1);
        }
        close(fd);
    }
}

struct publisher {
    const char *name;
    struct gs_export *export;
    unsigned *read; /* what the broker has read */
    bool keeps;     /* the broker does */
    const char *wrong;
};

static void *publish_some(void *arg)
{
    struct publisher *publisher = arg;
    const unsigned char letter = (unsigned char)publisher->name[0];
    struct gs_found found;

    for (unsigned i = 1; i < 4 && !publisher->wrong; i++) {
        if (publish(publisher->export, publisher->name, (int)i) != GS_OK)
            publisher->wrong = "it cannot be published";
        else if (__atomic_load_n(&publisher->read[letter], __ATOMIC_SEQ_CST) < i)
            publisher->wrong = "the broker has not read what was published";
        else if (gs_share_look_up(side.share, publisher->name, &found) != GS_LOOK_FOUND)
            publisher->wrong = "it is not found";
        else if (found.kept != publisher->keeps)
            publisher->wrong = "it is said to be kept where it is not, or not where it is";
    }
    return NULL;
}

/* Two at once: what the broker says of one name is no answer for who waits for the other. */
static void publishes_to_a_slow_broker(bool keeps)
{
    unsigned *read = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct publisher publishers[2] = {{.name = "w"}, {.name = "v"}};
    pthread_t threads[2];
    char path[128];
    pid_t broker;

    snprintf(path, sizeof path, "%s/%s", dir, side_broker_name());
    end(export_at(0, 7)); /* the folder is there */
    scene_stop();
    broker = fork_child();
    if (broker == 0)
        slow_broker(read, keeps);
    cr_assert(SIDE_WAIT(access(path, F_OK) == 0));
    options.broker = true;
    scene_chunk();
    for (int i = 0; i < 2; i++) {
        publishers[i].export = export_at((size_t)i * 512, 7);
        publishers[i].read = read;
        publishers[i].keeps = keeps;
        cr_assert_eq(pthread_create(&threads[i], NULL, publish_some, &publishers[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_null(publishers[i].wrong, "%s: %s", publishers[i].name, publishers[i].wrong);
    }
    cr_assert_eq(strstr(side_logged(), "it ends with this process") == NULL, keeps);
    end_process(broker);
    unlink(path);
    munmap(read, 4096);
}

Test(share_names, publishing_returns_when_the_broker_has_it)
{
    publishes_to_a_slow_broker(true);
}

Test(share_names, publishing_says_so_when_the_broker_does_not_keep_it)
{
    publishes_to_a_slow_broker(false);
}
