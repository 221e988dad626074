/*
 * Two machines, each with its folder, its broker and an agent, and what lies between the agents:
 * letters, which are lost while the link is cut, and with an agent or a broker that one of them has
 * lost. An agent is a process of the world: it stops, is killed, becomes another; what it must not
 * forget is in a file.
 *
 *   OPEN ─► noted: asked ─► letter TAKE ─► lent: asked, OPEN ─► GRANT ─► letter ANSWER
 *        ─► noted: granted, GRANT
 *
 * After every such loss each says anew what it has (LIST); what was only asked by then is refused.
 * What a broker had when it ended is kept until all has come to rest: nobody knows who of its
 * importers has it still.
 */
#include "simulation.h"

#include <errno.h>
#include <string.h>

#include "core/share/cluster.h"
#include "core/share/directory.h"
#include "core/share/exporter.h"

#define NOTES_MAX   256
#define LETTERS_MAX 64
#define LOOK_NS     (2 * GS_NS_PER_MS)
#define AGAIN_NS    (10 * GS_NS_PER_MS) /* a broker is looked for again after this */
#define ROOM_NS     (100 * GS_NS_PER_MS)
#define LATE_NS     (400 * GS_NS_PER_MS) /* an agent that hears late asks the directory after it */
#define OFF_NS      (200 * GS_NS_PER_MS) /* longer than any GPU work goes on */
#define ORPHANS_NS     \
    (2 * GS_NS_PER_S + \
     SLOW * LINGER_NS) /* from when all is closed: nobody has anything of them by then */

/* What a machine's importers have of the other one; or what that one has here. */
struct note {
    enum { NOTE_NONE = 0, NOTE_ASKED, NOTE_GRANTED } state;
    uint64_t lease, block_id;
    unsigned char instance[GS_INSTANCE_SIZE];
    uint32_t request; /* of the OPEN, of either broker's */
    pid_t broker;     /* that has it */
    bool listed;      /* it, or the other machine, has said so */
    bool recalled;    /* of what is lent */
    bool over;        /* likewise: it ends as the broker answers */
};

struct letter {
    enum { LETTER_TAKE, LETTER_ANSWER, LETTER_ENDED, LETTER_RECALL, LETTER_LIST } kind;
    uint64_t epoch, lease;
    union gs_wire_message message;
};

static struct machine {
    struct note notes[NOTES_MAX], lent[NOTES_MAX];
    struct letter letters[LETTERS_MAX];
    unsigned first, count;
    int fd;     /* its agent's connection to the broker; -1: none */
    bool is_up; /* which has told what it has */
    pid_t broker;
    uint64_t epoch;        /* of what it has done last */
    uint64_t off_until_ns; /* no agent before that: what was killed there has the GPU for a while */
    uint64_t late_ns;      /* it hears of another epoch then; 0: at once */
    unsigned boot;
    bool forgets; /* the other one, as an operator is to say */
    uint32_t requests;
} machines[2];

static uint64_t epoch;
static bool cut;

void machines_begin(void)
{
    memset(machines, 0, sizeof machines);
    machines[0].fd = machines[1].fd = -1;
    epoch = 1;
    cut = false;
}

void machines_cut(bool is_cut)
{
    epoch += is_cut != cut;
    cut = is_cut;
}

static struct process *agent_of(unsigned machine)
{
    for (unsigned i = 0; i < PROCESSES_MAX; i++)
        if (world.processes[i].state == PROCESS_RUNS && world.processes[i].is_agent &&
            world.processes[i].machine == machine)
            return &world.processes[i];
    return NULL;
}

bool machine_has_agent(unsigned machine)
{
    return agent_of(machine) != NULL || world.now_ns < machines[machine].off_until_ns;
}

static bool has_processes(unsigned machine)
{
    for (unsigned i = 0; i < PROCESSES_MAX; i++)
        if (world.processes[i].state == PROCESS_RUNS && world.processes[i].machine == machine)
            return true;
    return false;
}

void machine_boots(unsigned number, bool forgotten)
{
    struct machine *machine = &machines[number];
    struct child *child, *next;

    processes_lose_power(number);
    for (child = world.children; child; child = next) {
        next = child->next;
        if (child->image->machine == number)
            process_child_ends(child, 0);
    }
    memset(machine->notes, 0, sizeof machine->notes);
    memset(machine->lent, 0, sizeof machine->lent);
    machine->count = 0;
    machine->fd = -1;
    machine->is_up = false;
    machine->boot++;
    machine->off_until_ns = world.now_ns + OFF_NS;
    machines[1 - number].forgets = forgotten;
    epoch++;
}

void machine_hears_late(unsigned number)
{
    machines[number].late_ns = world.now_ns + LATE_NS;
}

static struct machine *own(void)
{
    return &machines[process_here()->machine];
}

/* ---- Letters -------------------------------------------------------------------------------- */

static bool goes(void)
{
    return !cut && machines[0].is_up && machines[1].is_up && agent_of(0) && agent_of(1);
}

static bool post(int kind, uint64_t lease, const union gs_wire_message *message)
{
    struct machine *to = &machines[1 - process_here()->machine];
    struct letter *letter = &to->letters[(to->first + to->count) % LETTERS_MAX];
    struct process *agent = agent_of(1 - process_here()->machine);

    if (!goes() || own()->epoch != epoch)
        return false;
    if (to->count == LETTERS_MAX) { /* as where a connection is lost */
        epoch++;
        return false;
    }
    letter->kind = kind;
    letter->epoch = epoch;
    letter->lease = lease;
    if (message)
        letter->message = *message;
    to->count++;
    fibre_wake_all(agent, agent);
    return true;
}

/* ---- The broker ------------------------------------------------------------------------------ */

static void lose_broker(void)
{
    struct machine *machine = own();

    if (machine->fd >= 0)
        fd_close(machine->fd, "agent");
    machine->fd = -1;
    machine->is_up = false;
    epoch++;
}

static void say(const union gs_wire_message *message)
{
    const uint64_t end = gs_now_ns() + ROOM_NS;
    int error;

    while (own()->fd >= 0 && (error = gs_wire_send(own()->fd, message, -1)) != 0)
        if (error != -EAGAIN || gs_conn_wait(own()->fd, -1, true, end) != GS_CONN_READY)
            lose_broker();
}

static bool dial(void)
{
    struct machine *machine = own();
    union gs_wire_message message;
    char name[GS_BROKER_NAME_SIZE];
    int fd;

    gs_broker_name(name);
    fd = gs_directory_connect(-1, NULL, name, 0);
    if (fd == -ENOENT || fd == -ECONNREFUSED)
        gs_broker_start(NULL);
    if (fd < 0)
        return false;
    machine->fd = fd;
    machine->broker = gs_conn_who(fd).pid;
    for (unsigned i = 0; i < NOTES_MAX; i++) {
        machine->notes[i].listed = false;
        if (machine->lent[i].state ==
            NOTE_ASKED) /* the broker before has not said that it is held */
            machine->lent[i].state = NOTE_NONE;
    }
    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    message.hello.agent = 1;
    say(&message);
    return machine->fd >= 0;
}

static struct note *note_of(struct note *notes, uint64_t lease)
{
    for (unsigned i = 0; i < NOTES_MAX; i++)
        if (notes[i].state && notes[i].lease == lease)
            return &notes[i];
    return NULL;
}

static struct note *note_new(struct note *notes)
{
    for (unsigned i = 0; i < NOTES_MAX; i++)
        if (!notes[i].state)
            return &notes[i];
    return NULL;
}

/* Of what is lent here, one of the block; NULL: nobody has it, or is to have it. */
static struct note *lent_of(const unsigned char *instance, uint64_t block_id)
{
    for (unsigned i = 0; i < NOTES_MAX; i++)
        if (own()->lent[i].state && own()->lent[i].block_id == block_id &&
            memcmp(own()->lent[i].instance, instance, GS_INSTANCE_SIZE) == 0)
            return &own()->lent[i];
    return NULL;
}

static void note_block(struct note *note, const unsigned char *ipc_handle)
{
    memcpy(note->instance, ipc_handle + offsetof(struct gs_ipc_handle, instance), GS_INSTANCE_SIZE);
    memcpy(&note->block_id, ipc_handle + offsetof(struct gs_ipc_handle, block_id),
           sizeof note->block_id);
}

/* The broker holds it no more, where nobody has it. */
static void let_go(const unsigned char *instance, uint64_t block_id)
{
    union gs_wire_message message;

    if (lent_of(instance, block_id))
        return;
    gs_wire_start(&message, GS_WIRE_CLOSE, 0);
    memcpy(message.close.instance, instance, GS_INSTANCE_SIZE);
    message.close.block_id = block_id;
    say(&message);
}

static void end_lent(struct note *lent)
{
    const struct note was = *lent;

    lent->over = true;
    if (lent->state == NOTE_ASKED)
        return;
    lent->state = NOTE_NONE;
    let_go(was.instance, was.block_id);
}

static void refuse(uint32_t request)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_REFUSE, request);
    message.refuse.reason = GS_REFUSED_MACHINE;
    say(&message);
}

/* The broker has said all that it has: what this one knew of it beyond that has ended meanwhile. */
static void on_listed(void)
{
    for (unsigned i = 0; i < NOTES_MAX; i++) {
        struct note *note = &own()->notes[i];

        if (note->state == NOTE_ASKED || (note->broker == own()->broker && !note->listed))
            note->state = NOTE_NONE;
    }
    own()->is_up = true;
    epoch++;
}

static void on_open(const union gs_wire_message *message)
{
    struct note *note = note_new(own()->notes);

    if (!note || !post(LETTER_TAKE, message->open.lease, message)) {
        refuse(message->head.request);
        return;
    }
    *note = (struct note){.state = NOTE_ASKED,
                          .lease = message->open.lease,
                          .request = message->head.request,
                          .broker = own()->broker};
    note_block(note, message->open.ipc_handle);
}

/* A block of the other machine, or what was asked for of one; or one of here has gone. */
static void on_close(const struct gs_wire_close *close)
{
    struct note *note = close->lease ? note_of(own()->notes, close->lease) : NULL;

    if (note)
        note->state = NOTE_NONE;
    if (close->lease)
        post(LETTER_ENDED, close->lease, NULL);
}

/* A block of here that may be lent; where it is, and to nobody, its end was not heard. */
static void on_share(const struct gs_wire_share *share)
{
    struct note block;

    note_block(&block, share->ipc_handle);
    if (share->held)
        let_go(block.instance, block.block_id);
}

/* The broker has answered an OPEN; by GRANT, or as the block is going, all of the block that were
 * before it. */
static void on_answer(const union gs_wire_message *message)
{
    const bool given = message->head.type == GS_WIRE_GRANT;
    const bool of_all = given || message->refuse.reason == GS_REFUSED_ENDING;
    struct note asked = {.state = NOTE_NONE};

    for (unsigned i = 0; i < NOTES_MAX; i++)
        if (own()->lent[i].state == NOTE_ASKED && own()->lent[i].request == message->head.request)
            asked = own()->lent[i];
    for (unsigned i = 0; asked.state && i < NOTES_MAX; i++) {
        struct note *lent = &own()->lent[i];

        if (lent->state != NOTE_ASKED || lent->block_id != asked.block_id ||
            memcmp(lent->instance, asked.instance, GS_INSTANCE_SIZE) != 0 ||
            (of_all ? lent->request > asked.request : lent->request != asked.request))
            continue;
        if (!lent->over)
            post(LETTER_ANSWER, lent->lease, message);
        lent->state = given && !lent->over ? NOTE_GRANTED : NOTE_NONE;
    }
    if (asked.state)
        let_go(asked.instance, asked.block_id);
}

static void on_recall(const union gs_wire_message *message)
{
    for (unsigned i = 0; i < NOTES_MAX; i++) {
        struct note *lent = &own()->lent[i];

        lent->recalled |= lent->block_id == message->recall.block_id &&
                          memcmp(lent->instance, message->recall.instance, GS_INSTANCE_SIZE) == 0;
    }
    post(LETTER_RECALL, 0, message);
}

/* An operator says of the other machine that it is gone for good, and nothing runs there. */
static void forget_other(void)
{
    unsigned other = 1 - process_here()->machine;

    if (world.now_ns < machines[other].off_until_ns)
        return;
    own()->forgets = false;
    if (has_processes(other))
        return;
    for (unsigned i = 0; i < NOTES_MAX; i++)
        if (own()->lent[i].state)
            end_lent(&own()->lent[i]);
}

static void on_resume(const struct gs_wire_close *resume)
{
    struct note *note = note_of(own()->notes, resume->lease);

    if (!note || note->state != NOTE_GRANTED)
        sim_fail("agents: a broker has lease %llu, of which its agent does not know",
                 (unsigned long long)resume->lease);
    note->listed = true;
}

static void from_broker(const union gs_wire_message *message)
{
    switch (message->head.type) {
    case GS_WIRE_REFUSE:
        if (!message->head.request) /* there is another agent still */
            lose_broker();
        else
            on_answer(message);
        break;
    case GS_WIRE_HELLO:
        if (message->hello.agent) /* else it is of an importer */
            on_listed();
        break;
    case GS_WIRE_RESUME:
        on_resume(&message->resume);
        break;
    case GS_WIRE_SHARE:
        on_share(&message->share);
        break;
    case GS_WIRE_OPEN:
        on_open(message);
        break;
    case GS_WIRE_GRANT:
        on_answer(message);
        break;
    case GS_WIRE_CLOSE:
        on_close(&message->close);
        break;
    case GS_WIRE_RECALL:
        on_recall(message);
        break;
    }
}

/* ---- The other agent ------------------------------------------------------------------------- */

/* All that its importers have, as it has it noted now: the list comes as a whole, and what is not
 * on it is over. It may not have heard what is wanted back. */
static void from_list(void)
{
    struct note notes[NOTES_MAX];

    memcpy(notes, machines[1 - process_here()->machine].notes, sizeof notes);
    for (unsigned i = 0; i < NOTES_MAX; i++) {
        struct note *lent = &own()->lent[i];
        const struct note *note = lent->state ? note_of(notes, lent->lease) : NULL;
        union gs_wire_message message;

        if (!lent->state)
            continue;
        if (!note || note->state != NOTE_GRANTED) {
            end_lent(lent);
            continue;
        }
        gs_wire_start(&message, GS_WIRE_RECALL, 0);
        memcpy(message.recall.instance, lent->instance, GS_INSTANCE_SIZE);
        message.recall.block_id = lent->block_id;
        if (lent->recalled)
            post(LETTER_RECALL, 0, &message);
    }
}

static void from_take(const struct letter *letter)
{
    struct note *lent = note_new(own()->lent);
    union gs_wire_message message;

    if (!lent)
        return; /* the next list says that it has nothing of it */
    *lent =
        (struct note){.state = NOTE_ASKED, .lease = letter->lease, .request = ++own()->requests};
    note_block(lent, letter->message.open.ipc_handle);
    gs_wire_start(&message, GS_WIRE_OPEN, lent->request);
    memcpy(message.open.ipc_handle, letter->message.open.ipc_handle, GS_IPC_HANDLE_SIZE);
    say(&message);
}

static void from_answer(struct letter *letter)
{
    struct note *note = note_of(own()->notes, letter->lease);

    if (!note || note->state != NOTE_ASKED)
        return;
    letter->message.head.request = note->request;
    note->state = letter->message.head.type == GS_WIRE_GRANT ? NOTE_GRANTED : NOTE_NONE;
    say(&letter->message);
}

static void from_other(struct letter *letter)
{
    struct note *lent;

    switch (letter->kind) {
    case LETTER_TAKE:
        from_take(letter);
        break;
    case LETTER_ANSWER:
        from_answer(letter);
        break;
    case LETTER_ENDED:
        lent = note_of(own()->lent, letter->lease);
        if (lent)
            end_lent(lent);
        break;
    case LETTER_RECALL:
        say(&letter->message);
        break;
    case LETTER_LIST:
        from_list();
        break;
    }
}

static void read_letters(void)
{
    struct machine *machine = own();

    while (machine->count > 0 && machine->fd >= 0 && machine->epoch == epoch) {
        struct letter letter = machine->letters[machine->first];

        machine->first = (machine->first + 1) % LETTERS_MAX;
        machine->count--;
        if (letter.epoch == epoch)
            from_other(&letter);
    }
}

/* The link is another: what was asked over the one before is not answered any more. */
static void begin_epoch(void)
{
    struct machine *machine = own();

    machine->epoch = epoch;
    for (unsigned i = 0; i < NOTES_MAX; i++) {
        struct note *note = &machine->notes[i];

        if (note->state != NOTE_ASKED)
            continue;
        note->state = NOTE_NONE;
        refuse(note->request);
    }
    post(LETTER_LIST, 0, NULL);
}

/* All is closed, and nobody holds anything of a broker that has ended. */
static void drop_orphans(void)
{
    bool any = false;

    if (!world.calm || world.now_ns < world.calm_ns + ORPHANS_NS)
        return;
    for (unsigned i = 0; i < NOTES_MAX; i++) {
        struct note *note = &own()->notes[i];

        if (note->state != NOTE_GRANTED || note->broker == own()->broker)
            continue;
        note->state = NOTE_NONE;
        any = true;
    }
    epoch += any;
}

void *agent_run(void *arg)
{
    struct machine *machine = own();
    union gs_wire_message message;
    int error, attached;

    machine->fd = -1; /* that of the agent before this one went with it */
    machine->is_up = false;
    epoch++;
    for (;;) {
        if (machine->fd < 0)
            gs_rest_ns(AGAIN_NS);
        if (machine->fd < 0 && !dial())
            continue;
        if (machine->is_up && machine->epoch != epoch &&
            (world.calm || machine->late_ns <= world.now_ns))
            begin_epoch();
        if (machine->is_up)
            drop_orphans();
        if (machine->is_up && machine->forgets)
            forget_other();
        read_letters();
        if (machine->fd < 0)
            continue;
        error = gs_wire_receive(machine->fd, &message, &attached);
        if (!error && attached >= 0)
            fd_close(attached, "agent");
        if (!error)
            from_broker(&message);
        else if (error == -EAGAIN)
            gs_conn_wait(machine->fd, -1, false, gs_now_ns() + LOOK_NS);
        else
            lose_broker();
    }
    return NULL;
}
