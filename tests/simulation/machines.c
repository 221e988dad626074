/*
 * Two machines, each with its folder, its broker and an agent, and what lies between the agents: letters,
 * which are lost while the link is cut, and with an agent or a broker that one of them has lost. An agent
 * is a process of the world: it stops, is killed, becomes another; what it must not forget is in a file.
 *
 *   OPEN_AFAR ─► noted: asked ─► letter TAKE ─► TAKE_AFAR ─► the broker's answer ─► letter ANSWER ─► noted: granted
 *
 * After every such loss each says anew what it has (LIST); what was only asked by then is refused. What a
 * broker had when it ended is kept until all has come to rest: nobody knows who of its openers has it still.
 */
#include "simulation.h"

#include <errno.h>
#include <string.h>

#include "core/share/afar.h"
#include "core/share/directory.h"
#include "core/share/exporter.h"

#define NOTES_MAX   256
#define LETTERS_MAX 64
#define LOOK_NS     (2 * GS_NS_PER_MS)
#define AGAIN_NS    (10 * GS_NS_PER_MS) /* a broker is looked for again after this */
#define ROOM_NS     (100 * GS_NS_PER_MS)
#define LIST_NS     (400 * GS_NS_PER_MS) /* an agent whose watch is lost lists the directory after this */
#define OFF_NS      (200 * GS_NS_PER_MS) /* longer than any GPU work goes on */
#define ORPHANS_NS  (2 * GS_NS_PER_S + SLOW * LINGER_NS) /* from when all is closed: nobody has anything of them by then */

/* What a machine's openers have of the other one. */
struct note {
    enum { NOTE_NONE = 0, NOTE_ASKED, NOTE_GRANTED } state;
    uint64_t lease, block_id;
    unsigned char instance[GS_INSTANCE_SIZE];
    uint32_t request; /* of the OPEN_AFAR */
    pid_t broker;     /* that has it */
    bool listed;      /* it has said so */
};

struct letter {
    enum { LETTER_TAKE, LETTER_ANSWER, LETTER_ENDED, LETTER_RECALL, LETTER_LIST } kind;
    uint64_t epoch, lease;
    union gs_wire_message message;
};

static struct machine {
    struct note notes[NOTES_MAX];
    struct letter letters[LETTERS_MAX];
    unsigned first, count;
    int fd;         /* its agent's connection to the broker; -1: none */
    bool is_up;     /* which has told what it has */
    pid_t broker;
    uint64_t epoch; /* of what it has done last */
    uint64_t off_until_ns; /* no agent before that: what was killed there has the GPU for a while */
    uint64_t lists_ns; /* its watch of the directory is lost: it hears of another epoch then; 0: it sees that at once */
    unsigned boot;
    bool forgets, is_forgetting; /* the other one, as an operator is to say; FORGET_AFAR is under way */
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
    machine->count = 0;
    machine->fd = -1;
    machine->is_up = false;
    machine->boot++;
    machine->off_until_ns = world.now_ns + OFF_NS;
    machines[1 - number].forgets = forgotten;
    epoch++;
}

void machine_loses_watch(unsigned number)
{
    machines[number].lists_ns = world.now_ns + LIST_NS;
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

/* ---- The broker ------------------------------------------------------------------------------- */

static void lose_broker(void)
{
    struct machine *machine = own();

    if (machine->fd >= 0)
        fd_close(machine->fd, "agent");
    machine->fd = -1;
    machine->is_up = machine->is_forgetting = false;
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
    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    say(&message);
    gs_wire_start(&message, GS_WIRE_AGENT, 0);
    memset(message.agent.machine, 1 + (int)process_here()->machine, GS_MACHINE_SIZE);
    message.agent.knows = 1;
    say(&message);
    for (unsigned i = 0; i < NOTES_MAX; i++)
        machine->notes[i].listed = false;
    return machine->fd >= 0;
}

static struct note *note_of(uint64_t lease)
{
    for (unsigned i = 0; i < NOTES_MAX; i++)
        if (own()->notes[i].state && own()->notes[i].lease == lease)
            return &own()->notes[i];
    return NULL;
}

static struct note *note_new(void)
{
    for (unsigned i = 0; i < NOTES_MAX; i++)
        if (!own()->notes[i].state)
            return &own()->notes[i];
    return NULL;
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
    struct note *note = note_new();

    if (!note || !post(LETTER_TAKE, message->open_afar.lease, message)) {
        refuse(message->head.request);
        return;
    }
    *note = (struct note){.state = NOTE_ASKED,
                          .lease = message->open_afar.lease,
                          .request = message->head.request,
                          .broker = own()->broker};
    memcpy(note->instance, message->open_afar.ipc_handle + offsetof(struct gs_ipc_handle, instance),
           GS_INSTANCE_SIZE);
    memcpy(&note->block_id, message->open_afar.ipc_handle + offsetof(struct gs_ipc_handle, block_id),
           sizeof note->block_id);
}

static void on_ended(uint64_t lease)
{
    struct note *note = note_of(lease);

    if (note)
        note->state = NOTE_NONE;
    post(LETTER_ENDED, lease, NULL);
}

/* An operator says of the other machine that it is gone for good, and nothing runs there. */
static void forget_other(void)
{
    unsigned other = 1 - process_here()->machine;
    union gs_wire_message message;

    if (world.now_ns < machines[other].off_until_ns)
        return;
    own()->forgets = false;
    if (has_processes(other))
        return;
    gs_wire_start(&message, GS_WIRE_FORGET_AFAR, 1);
    for (unsigned i = 0; i < GS_MACHINE_SIZE; i++)
        memcpy(message.forget_afar.machine + 2 * i, other ? "02" : "01", 2);
    own()->is_forgetting = true;
    say(&message);
}

/* Nothing of it was taken since that was said. */
static void on_forgotten(void)
{
    unsigned other = 1 - process_here()->machine;
    const struct process *broker = NULL;
    const struct gs_lease *lease, *next;

    own()->is_forgetting = false;
    for (unsigned i = 0; i < PROCESSES_MAX && !broker; i++)
        if (world.processes[i].state == PROCESS_RUNS && world.processes[i].is_broker &&
            world.processes[i].machine == 1 - other && world.processes[i].life->pid == own()->broker)
            broker = &world.processes[i];
    if (!broker || !broker->share)
        return;
    HASH_ITER(hh, broker->share->store.afar.leases, lease, next)
    {
        if (lease->key.machine[0] == 1 + other)
            sim_fail("agents: machine %u is forgotten, and its lease %llu is not", other,
                     (unsigned long long)lease->key.lease);
    }
}

static void from_broker(const union gs_wire_message *message)
{
    struct note *note;

    switch (message->head.type) {
    case GS_WIRE_REFUSE:
        if (!message->head.request) /* there is another agent still */
            lose_broker();
        else
            post(LETTER_ANSWER, message->head.request, message);
        break;
    case GS_WIRE_KEPT_AFAR:
        note = note_of(message->kept_afar.lease);
        if (!note || note->state != NOTE_GRANTED)
            sim_fail("agents: a broker has lease %llu, of which its agent does not know",
                     (unsigned long long)message->kept_afar.lease);
        note->listed = true;
        break;
    case GS_WIRE_MACHINE_AFAR: /* or the other one is forgotten, as this one had it */
        if (message->machine_afar.state == GS_MACHINE_LISTED)
            on_listed();
        break;
    case GS_WIRE_OPEN_AFAR:
        on_open(message);
        break;
    case GS_WIRE_OPENED_AFAR:
        post(LETTER_ANSWER, (uint32_t)message->opened_afar.lease, message);
        break;
    case GS_WIRE_ENDED_AFAR:
        on_ended(message->ended_afar.lease);
        break;
    case GS_WIRE_FORGOTTEN_AFAR:
        on_forgotten();
        break;
    case GS_WIRE_RECALL_AFAR:
        post(LETTER_RECALL, 0, message);
        break;
    }
}

/* ---- The other agent ---------------------------------------------------------------------------- */

static void say_machine(enum gs_machine_state state, unsigned number)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_MACHINE_AFAR, 0);
    memset(message.machine_afar.machine, (int)number, GS_MACHINE_SIZE);
    if (number)
        memset(message.machine_afar.boot, 1 + (int)machines[number - 1].boot % 255, GS_BOOT_BYTES);
    message.machine_afar.state = state;
    say(&message);
}

/* All that its openers have, as it has it noted now: the list comes as a whole. */
static void from_list(void)
{
    unsigned other = 1 - process_here()->machine;
    const struct machine *of = &machines[other];
    struct note notes[NOTES_MAX];

    memcpy(notes, of->notes, sizeof notes);
    say_machine(GS_MACHINE_LISTING, 1 + other);
    for (unsigned i = 0; i < NOTES_MAX; i++) {
        union gs_wire_message message;

        if (notes[i].state != NOTE_GRANTED)
            continue;
        gs_wire_start(&message, GS_WIRE_KEPT_AFAR, 0);
        memcpy(message.kept_afar.instance, notes[i].instance, GS_INSTANCE_SIZE);
        message.kept_afar.block_id = notes[i].block_id;
        memset(message.kept_afar.machine, 1 + (int)other, GS_MACHINE_SIZE);
        message.kept_afar.lease = notes[i].lease;
        say(&message);
    }
    say_machine(GS_MACHINE_LISTED, 1 + other);
    say_machine(GS_MACHINE_LISTED, 0);
}

static void from_take(const struct letter *letter)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_TAKE_AFAR, (uint32_t)letter->lease);
    memcpy(message.take_afar.ipc_handle, letter->message.open_afar.ipc_handle, GS_IPC_HANDLE_SIZE);
    memset(message.take_afar.machine, 2 - (int)process_here()->machine, GS_MACHINE_SIZE);
    message.take_afar.lease = letter->lease;
    say(&message);
}

static void from_answer(struct letter *letter)
{
    struct note *note = NULL;

    for (unsigned i = 0; i < NOTES_MAX && !note; i++)
        if (own()->notes[i].state == NOTE_ASKED && (uint32_t)own()->notes[i].lease == letter->lease)
            note = &own()->notes[i];
    if (!note)
        return;
    letter->message.head.request = note->request;
    note->state = letter->message.head.type == GS_WIRE_OPENED_AFAR ? NOTE_GRANTED : NOTE_NONE;
    say(&letter->message);
}

static void from_other(struct letter *letter)
{
    union gs_wire_message message;

    switch (letter->kind) {
    case LETTER_TAKE:
        from_take(letter);
        break;
    case LETTER_ANSWER:
        from_answer(letter);
        break;
    case LETTER_ENDED:
        gs_wire_start(&message, GS_WIRE_ENDED_AFAR, 0);
        memset(message.ended_afar.machine, 2 - (int)process_here()->machine, GS_MACHINE_SIZE);
        message.ended_afar.lease = letter->lease;
        say(&message);
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

    while (machine->count > 0 && machine->fd >= 0 && machine->epoch == epoch && !machine->is_forgetting) {
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
    machine->is_up = machine->is_forgetting = false;
    epoch++;
    for (;;) {
        if (machine->fd < 0)
            gs_rest_ns(AGAIN_NS);
        if (machine->fd < 0 && !dial())
            continue;
        if (machine->is_up && machine->epoch != epoch && (world.calm || machine->lists_ns <= world.now_ns))
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
