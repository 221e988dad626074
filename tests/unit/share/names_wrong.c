/* Names, and those who do it wrongly: what no name is, too many, other users, who lies, who is
 * silent. */
#include <criterion/criterion.h>

#include "broker_scene.h"
#include "names_scene.h"
#include "core/share/instance.h"
#include "tests/children.h"
#include "tests/system.h"

#define NOBODY 65533

static void setup(void)
{
    scene_new();
}

TestSuite(share_names_wrong, .init = setup, .fini = scene_end, .timeout = 120);

Test(share_names_wrong, only_words_are_names)
{
    static const char *const good[] = {"a", "Z9._-+:@/x", "weights/llama-3.1:70b@rank0"};
    static const char *const bad[] = {"",         " ",  "a b",  "a\n", "\x1b[2J",
                                      "\xc3\xa4", "a*", "a\\b", "%s"};
    struct gs_naming naming;

    for (unsigned i = 0; i < sizeof good / sizeof *good; i++) {
        naming = naming_of(good[i], 1);
        cr_assert(gs_naming_is_good(&naming), "%s", good[i]);
    }
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        naming = naming_of(bad[i], 1);
        cr_assert_not(gs_naming_is_good(&naming), "%s", bad[i]);
    }
    naming = naming_of("a", 1);
    memset(naming.name, 'a', sizeof naming.name); /* does not end */
    cr_assert_not(gs_naming_is_good(&naming));
    naming = naming_of("a", 1);
    naming.name[40] = 'b'; /* goes on behind its end: it would be another key */
    cr_assert_not(gs_naming_is_good(&naming));
    naming = naming_of("a", 1);
    naming.label[1] = '\n';
    cr_assert_not(gs_naming_is_good(&naming));
    naming = naming_of("a", 1);
    memset(naming.label, 'l', sizeof naming.label);
    cr_assert_not(gs_naming_is_good(&naming));
    for (uint32_t size = 0; size < 300; size++) {
        naming = naming_of("a", 0);
        naming.note_size = size;
        cr_assert_eq(gs_naming_is_good(&naming), size <= GS_NOTE_SIZE);
    }
    naming = naming_of("a", 1);
    naming.note[1] = 1; /* what nobody was to see */
    cr_assert_not(gs_naming_is_good(&naming));
}

/* ---- Other users ----------------------------------------------------------------------------- */

/* A folder of that user's, whom this process names. */
static void with_folder_of(uid_t owner, bool names_them)
{
    if (geteuid() != 0)
        cr_skip_test("only root can be two users");
    cr_assert_eq(mkdir(dir, 0755), 0);
    cr_assert_eq(chown(dir, owner, owner), 0);
    cr_assert_eq(chmod(dir, 0755), 0);
    options.uid_count = names_them;
    options.uids[0] = NOBODY;
    scene_chunk();
}

Test(share_names_wrong, each_user_has_the_name_for_themselves)
{
    unsigned char handle[GS_IPC_HANDLE_SIZE];
    struct gs_found found;

    with_folder_of(NOBODY, true);
    other_start2(&other, dir, "uid=65533", "trust=0");
    other_export(&other, 0, 512, 9, handle);
    cr_assert_eq(publish(export_at(0, 7), "w", 1), GS_OK);
    cr_assert_eq(others_note(&other, "w"), -1, "it is another user's");
    cr_assert_str_eq(other_ask(&other, "unname w"), "none 1");
    cr_assert_str_eq(other_ask(&other, "name w 0 2"), "status 0");
    cr_assert_eq(note_of("w"), 1, "the other's is newer, and does not hide this one");
    cr_assert_eq(others_note(&other, "w"), 2);
    cr_assert_eq(gs_share_unname(side.share, "w"), GS_LOOK_FOUND);
    cr_assert_eq(gs_share_look_up(side.share, "w", &found), GS_LOOK_NONE);
    cr_assert_eq(gs_share_unname(side.share, "w"), GS_LOOK_NONE);
    cr_assert_eq(others_note(&other, "w"), 2);
}

Test(share_names_wrong, a_broker_tells_each_user_of_their_own)
{
    struct other sharer;
    pid_t broker;

    with_folder_of(0, true);
    broker = broker_by_hand("GPUSHIM_SHARE_UIDS", "65533");
    other_start2(&sharer, dir, "keep=60000", "trust=65533");
    other_export(&sharer, 0, 512, 7, (unsigned char[GS_IPC_HANDLE_SIZE]){0});
    cr_assert_str_eq(other_ask(&sharer, "name secret 0 1"), "status 0");
    other_start2(&other, dir, "uid=65533", "trust=0");
    other_kill(&sharer);
    cr_assert_str_eq(other_ask(&other, "lookup secret"), "none 1 uid 0");
    cr_assert_str_eq(other_ask(&other, "unname secret"), "none 1");
    cr_assert_eq(note_of("secret"), 1);
    end_broker(broker);
}

/* ---- To a broker, by hand -------------------------------------------------------------------- */

static int named_by_hand(int fd, const char *name, uint64_t block, uint64_t offset,
                         uint64_t since_ns)
{
    union gs_wire_message message =
        MESSAGE(NAME, 0, .name = {.block_id = block, .offset = offset, .since_ns = since_ns});
    int error;

    message.name.naming = naming_of(name, (int)block);
    while ((error = say(fd, message)) == -EAGAIN) /* until it has read */
        usleep(500);
    return error;
}

/* Whether it takes what was said, and goes on. */
static bool is_served(int fd)
{
    union gs_wire_message message;

    if (say(fd, MESSAGE(QUERY, 9)) != 0)
        return false;
    while (recv(fd, &message, sizeof message, 0) > 0)
        if (message.head.type != GS_WIRE_PULL) /* the answers to what was said before */
            return message.head.type == GS_WIRE_REPORT;
    return false;
}

Test(share_names_wrong, a_broker_takes_names_of_what_was_left_over_the_same_connection_alone)
{
    unsigned char handle[GS_IPC_HANDLE_SIZE], instance[GS_INSTANCE_SIZE] = {9};
    int memory = open("/dev/null", O_RDONLY | O_CLOEXEC), fd, second;
    struct gs_found found;
    pid_t broker;

    scene_side();
    broker = broker_by_hand("GPUSHIM_SHARE_KEEP", "1 min");
    memset(instance, 9, sizeof instance);
    fd = dial_broker(instance, -1);
    ipc_handle_by_hand(9, 5, 512, handle);
    share_by_hand(fd, handle, memory);
    cr_assert_eq(named_by_hand(fd, "beyond", 5, 512, 1), 0);
    cr_assert_eq(named_by_hand(fd, "unknown", 6, 0, 1), 0);
    cr_assert_eq(named_by_hand(fd, "w", 5, 0, UINT64_MAX), 0); /* nothing would be newer */
    cr_assert(is_served(fd));
    cr_assert_eq(gs_share_look_up(side.share, "beyond", &found), GS_LOOK_NONE,
                 "it is not even told");
    cr_assert_eq(gs_share_look_up(side.share, "unknown", &found), GS_LOOK_NONE);
    cr_assert_eq(note_of("w"), 5);
    memset(instance, 8, sizeof instance);
    second = dial_broker(instance, -1);
    cr_assert_eq(named_by_hand(second, "theirs", 5, 0, 1), 0);
    cr_assert(is_served(second));
    cr_assert_eq(note_of("theirs"), -1);
    ipc_handle_by_hand(8, 7, 512, handle);
    share_by_hand(second, handle, memory);
    cr_assert_eq(named_by_hand(second, "w", 7, 0, side_now()), 0);
    cr_assert(is_served(second));
    cr_assert_eq(note_of("w"), 7, "a lie about the time is worth no more than now");
    cr_assert_eq(named_by_hand(fd, "w", 0, 0, 1), 0); /* an end that comes late */
    cr_assert(is_served(fd));
    cr_assert_eq(note_of("w"), 7);
    close(fd);
    close(second);
    close(memory);
    end_process(broker);
}

/* Whether it is sent off for it, said alone. */
static bool is_sent_off(union gs_wire_message message, bool greets)
{
    unsigned char instance[GS_INSTANCE_SIZE] = {3};
    int fd = greets ? dial_broker(instance, -1) : side_broker_dial(dir), type;

    cr_assert_eq(say(fd, message), 0);
    do /* who shares is asked, too */
        type = hear(fd, &message);
    while (type == GS_WIRE_PULL);
    close(fd);
    return type == GS_WIRE_REFUSE || type == 0;
}

Test(share_names_wrong, messages_that_make_no_sense_end_their_connection)
{
    union gs_wire_message message;
    pid_t broker;
    int fds;

    scene_side();
    broker = broker_by_hand("GPUSHIM_SHARE_KEEP", "1 min");
    fds = side_open_fds();
    for (int i = 0; i < 5; i++) {
        message = MESSAGE(NAME, 0, .name = {.naming = naming_of(i == 3 ? "" : "w", 1)});
        if (i == 0)
            memset(message.name.naming.name, 'x', GS_NAME_SIZE);
        if (i == 1)
            message.name.naming.label[0] = '\a';
        if (i == 2)
            message.name.naming.note_size = GS_NOTE_SIZE + 1;
        cr_assert(is_sent_off(message, i < 4), "%d", i); /* the last one is good, but not greeted */
    }
    cr_assert(is_sent_off(MESSAGE(QUERY, 0, .query = {.about = GS_ABOUTS}), false));
    message = MESSAGE(QUERY, 0, .query = {.about = GS_ABOUT_NAME});
    memset(message.query.name, 'x', GS_NAME_SIZE);
    cr_assert(is_sent_off(message, false));
    cr_assert(is_sent_off(MESSAGE(ORDER, 0, .order = {.kind = GS_ORDER_UNNAME}), false), "no name");
    cr_assert(SIDE_WAIT(side_open_fds() == fds));
    end_process(broker);
}

/* Another user's process leaves a block, and names it as often as it can. Its socket is in the
 * folder: else it could leave nothing. */
static void names_all(void *arg)
{
    int fd, memory = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct gs_ipc_handle made = {.block_id = 5, .chunk_id = 1, .size = 512};
    unsigned char handle[GS_IPC_HANDLE_SIZE];
    char name[33], path[128];

    side_name(1, getpid(), name);
    for (unsigned i = 0; i < GS_INSTANCE_SIZE; i++)
        sscanf(name + 2 * i, "%2hhx", &made.instance[i]);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    side_listen(path);
    gs_ipc_handle_write(&made, handle);
    fd = dial_broker(made.instance, -1);
    share_by_hand(fd, handle, memory);
    for (int i = 0; i < GS_NAMES_MAX; i++) {
        snprintf(name, sizeof name, "theirs-%d", i);
        named_by_hand(fd, name, 5, 0, 1);
        recv(fd, &(union gs_wire_message){.head = {0}}, sizeof(union gs_wire_message), 0);
    }
    is_served(fd); /* by now all was read */
}

/* ---- Who is silent, and who lies ------------------------------------------------------------- */

Test(share_names_wrong, who_is_stopped_is_not_waited_for_and_hears_of_it_later)
{
    unsigned char handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    struct gs_found found;
    uint64_t since;

    scene_chunk();
    export = export_at(0, 7);
    other_start(&other, dir, NULL);
    other_export(&other, 0, 512, 9, handle);
    cr_assert_str_eq(other_ask(&other, "name w 0 2"), "status 0");
    kill(other.pid, SIGSTOP);
    waitpid(other.pid, NULL, WUNTRACED);
    since = side_now();
    cr_assert_eq(gs_share_look_up(side.share, "w", &found), GS_LOOK_SILENT);
    cr_assert_eq(publish(export, "w", 1), GS_OK);
    cr_assert_eq(note_of("w"), 1);
    cr_assert(side_within(since, GS_NAME_ANSWER_NS));
    kill(other.pid, SIGCONT);
    cr_assert(SIDE_WAIT(others_note(&other, "w") == 1));
    end(export);
    cr_assert_eq(gs_share_look_up(side.share, "w", &found), GS_LOOK_NONE,
                 "the old one was given up when it went on");
}

enum lie {
    SAYS_NOTHING,
    HANGS_UP,
    ANSWERS_NONSENSE,
    ANSWERS_ANOTHER,
    ANSWERS_AN_OLDER_ONE,
    CLAIMS_OUR_UID
};

static void answer(int fd, enum lie lie, const union gs_wire_message *asked)
{
    union gs_wire_message message = MESSAGE(REPORT, asked->head.request);
    struct gs_wire_named *named = &message.report.named;

    named->is_here = 1;
    named->found = (struct gs_found){.size = 512};
    named->found.naming = naming_of(lie == ANSWERS_ANOTHER ? "x" : asked->query.name, 66);
    /* An older one was published anew elsewhere, and did not hear of it. */
    named->since_ns = lie == ANSWERS_AN_OLDER_ONE ? 1 : UINT64_MAX;
    if (lie == ANSWERS_NONSENSE)
        named->found.offset = 512;
    say(fd, message);
}

static void lies(int listener, void *arg)
{
    const enum lie lie = *(const enum lie *)arg;

    for (;;) {
        union gs_wire_message message;
        int fd = accept(listener, NULL, NULL);

        if (fd < 0 || recv(fd, &message, sizeof message, 0) <= 0 || lie == HANGS_UP)
            close(fd);
        else if (lie != SAYS_NOTHING)
            answer(fd, lie, &message);
    }
}

static void beside_a_liar(enum lie lie)
{
    struct player liar;
    uint64_t since;

    player_start_named(&liar, dir, lie, lies, &lie);
    since = side_now();
    cr_assert_eq(note_of("w"), 1, "lie %d", lie);
    cr_assert(side_within(since, GS_NAME_ANSWER_NS));
    if (lie != ANSWERS_AN_OLDER_ONE)
        cr_assert_eq(note_of("nobody-has-it"), -1, "lie %d", lie);
    player_kill(&liar);
}

Test(share_names_wrong, nobody_keeps_a_name_from_being_found_by_what_it_says_or_does_not)
{
    int fds;

    scene_chunk();
    cr_assert_eq(publish(export_at(0, 7), "w", 1), GS_OK);
    fds = side_open_fds();
    for (enum lie kind = SAYS_NOTHING; kind <= ANSWERS_AN_OLDER_ONE; kind++)
        beside_a_liar(kind);
    cr_assert(SIDE_WAIT(side_open_fds() == fds));
}

/* In the folder, as one of this user's. */
static void lies_as_another(void *lie)
{
    char path[128];
    int listener;

    side_path_named(dir, 9, path);
    listener = side_listen(path);
    if (fork_child() == 0)
        lies(listener, lie);
}

Test(share_names_wrong, what_another_users_process_says_is_not_asked)
{
    enum lie lie = CLAIMS_OUR_UID;
    struct gs_found found;
    pid_t child;

    with_folder_of(NOBODY, true);
    cr_assert_eq(publish(export_at(0, 7), "w", 1), GS_OK);
    child = other_user_start(lies_as_another, &lie);
    cr_assert_eq(note_of("w"), 1);
    cr_assert_eq(gs_share_look_up(side.share, "v", &found), GS_LOOK_NONE);
    other_user_end(child);
}

Test(share_names_wrong, another_user_has_no_more_than_half_of_a_brokers_names)
{
    unsigned char handle[GS_IPC_HANDLE_SIZE];
    struct gs_found found;
    pid_t broker, thief;
    struct other sharer;

    with_folder_of(NOBODY, true);
    broker = broker_by_hand("GPUSHIM_SHARE_UIDS", "65533");
    thief = other_user_start(names_all, NULL);
    other_start2(&sharer, dir, "keep=60000", "trust=65533");
    other_export(&sharer, 0, 512, 7, handle);
    cr_assert_str_eq(other_ask(&sharer, "name mine 0 3"), "status 0");
    cr_assert_eq(gs_share_look_up(side.share, "mine", &found), GS_LOOK_FOUND);
    cr_assert_eq(found.kept, 1);
    cr_assert_eq(other_stop(&sharer), 0);
    other_user_end(thief);
    end_broker(broker);
}
