/*
 * Names of exports: a block is found again by a word that its program chose.
 *
 *   gs_share_name ──► this table ── NAME, NAME 0 ──► the broker's table     until the block is freed,
 *     QUERY ────────────┘              QUERY ───────────┘                   (a strip gone), or the name
 *                                                                           taken back
 *
 * A name is one user's, and nobody else finds it: each may have the same. It stands in the table of
 * the process that published it, which ends with that process and leaves nothing behind, and in its
 * broker's, which serves the block then. There is no third place: whoever looks one up asks the
 * processes (look_up.c) and takes the newest. What was published anew, or taken back, the broker is
 * told when it asks for what is next, behind all that it was told before: so it never has an older
 * one again.
 *
 * A broker is told in its own order and trusts nobody: a name is of the user at the connection's
 * other end, of a block that this very connection left here, and one user's are bounded.
 */
#include "core/base/list.h"
#include "core/share/exporter.h"

#include <stdlib.h>
#include <string.h>

struct gs_name_key {
    uint32_t uid;
    char name[GS_NAME_SIZE];
};

struct gs_name {
    struct gs_name_key key;
    struct gs_naming naming;
    struct gs_export *export; /* NULL: it has ended, and the broker does not know that yet */
    struct gs_name *next;     /* of the same export */
    struct gs_user *user;     /* in a broker: whose, */
    pid_t pid;                /* and which process's it was */
    char process[16];
    uint64_t since_ns, offset;
    bool told;  /* the broker was told of it as it is, */
    bool known; /* or of something else of that name, */
    bool kept;  /* and has it */
    UT_hash_handle hh;
};

/* Now by the clock that the kernel began with, which is the same for all. */
uint64_t gs_names_now(struct gs_share *share)
{
    if (!__atomic_load_n(&share->exporter.clock_known, __ATOMIC_ACQUIRE)) {
        __atomic_store_n(&share->exporter.clock_ahead_ns, gs_clock_ahead_ns(), __ATOMIC_RELAXED);
        __atomic_store_n(&share->exporter.clock_known, true, __ATOMIC_RELEASE);
    }
    return gs_now_ns() -
           (uint64_t)__atomic_load_n(&share->exporter.clock_ahead_ns, __ATOMIC_RELAXED);
}

/* ---- What a name is -------------------------------------------------------------------------- */

/* Ends, and is zero from there on. */
static bool is_closed(const char *text, size_t size)
{
    size_t length = strnlen(text, size);

    for (size_t i = length; i < size; i++)
        if (text[i])
            return false;
    return length < size;
}

static bool is_word(const char name[GS_NAME_SIZE])
{
    static const char takes[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+:@/";

    return is_closed(name, GS_NAME_SIZE) && name[0] && !name[strspn(name, takes)];
}

bool gs_naming_is_good(const struct gs_naming *naming)
{
    if (!is_word(naming->name) || !is_closed(naming->label, sizeof naming->label) ||
        naming->note_size > sizeof naming->note || naming->zero)
        return false;
    for (size_t i = 0; naming->label[i]; i++)
        if ((unsigned char)naming->label[i] < ' ' || naming->label[i] == 127)
            return false;
    for (size_t i = naming->note_size; i < sizeof naming->note; i++)
        if (naming->note[i])
            return false;
    return true;
}

/* ---- The table ------------------------------------------------------------------------------- */

static struct gs_name *find_locked(const struct gs_share *share, uint32_t uid, const char *name)
{
    struct gs_name_key key;
    struct gs_name *found;

    memset(&key, 0, sizeof key);
    key.uid = uid;
    strncpy(key.name, name, sizeof key.name - 1);
    HASH_FIND(hh, share->exporter.names, &key, sizeof key, found);
    return found;
}

static struct gs_name *new_locked(struct gs_share *share, uint32_t uid, const char *name)
{
    struct gs_name *made = calloc(1, sizeof *made);

    if (!made)
        return NULL;
    made->key.uid = uid;
    strncpy(made->key.name, name, sizeof made->key.name - 1);
    HASH_ADD(hh, share->exporter.names, key, sizeof made->key, made);
    if (made->hh.tbl)
        return made;
    free(made);
    return NULL;
}

/* Its export has it no more. */
static void detach_locked(struct gs_name *name)
{
    if (name->export)
        LL_DELETE(name->export->names, name);
    name->export = NULL;
}

static void drop_locked(struct gs_share *share, struct gs_name *name)
{
    detach_locked(name);
    if (share->link.named == name)
        share->link.named = NULL;
    if (name->user)
        name->user->names--;
    HASH_DEL(share->exporter.names, name);
    free(name);
}

/* Of external memory, or of a strip, which its process alone serves: the broker is told at most
 * that it has the name no more. */
static bool is_embedded(const struct gs_name *name)
{
    return name->export && (name->export->source.behind || gs_export_is_own(name->export));
}

/* Where what the handle gives begins in what is shared: with a strip its piece. */
static uint64_t begin_of(const struct gs_export *export)
{
    return gs_export_is_own(export) ? export->source.offset : 0;
}

/* What the broker is told of. NULL: the name is taken back. */
static const struct gs_export *brokered_export(const struct gs_name *name)
{
    return is_embedded(name) ? NULL : name->export;
}

static void put_locked(struct gs_name *name, struct gs_export *export,
                       const struct gs_naming *naming, uint64_t offset, uint64_t since_ns)
{
    detach_locked(name);
    name->naming = *naming;
    name->export = export;
    name->next = export->names;
    export->names = name;
    name->offset = offset;
    name->since_ns = since_ns;
    name->kept = false;
    name->told = is_embedded(name) && !name->known;
}

/* True: the broker is to be told, which gives up what was published when this was, or before: it
 * may have a newer one of another process's. */
static bool end_locked(struct gs_share *share, struct gs_name *name)
{
    if (!name->known) {
        drop_locked(share, name);
        return false;
    }
    detach_locked(name);
    name->told = false;
    return true;
}

bool gs_names_end_locked(struct gs_share *share, struct gs_export *export)
{
    bool due = false;

    while (export->names)
        due |= end_locked(share, export->names);
    return due;
}

void gs_names_free(struct gs_share *share)
{
    struct gs_name *name, *next;

    HASH_ITER(hh, share->exporter.names, name, next)
        drop_locked(share, name);
}

/* ---- This process's -------------------------------------------------------------------------- */

gs_status gs_share_name(struct gs_share *share, struct gs_export *export,
                        const struct gs_naming *naming, uint64_t offset, uint64_t *ret_since_ns)
{
    gs_status status = GS_OK;
    struct gs_name *name;

    gs_lock_take(&share->lock);
    name = find_locked(share, gs_user_own(), naming->name);
    if (export->freed_ns || offset >= export->source.size - begin_of(export))
        status = GS_INVALID;
    else if (!name && HASH_COUNT(share->exporter.names) >= GS_NAMES_MAX)
        status = GS_TOO_MANY;
    else if (!name && !(name = new_locked(share, gs_user_own(), naming->name)))
        status = GS_NO_HOST_MEMORY;
    if (status == GS_OK) {
        *ret_since_ns = gs_names_now(share);
        put_locked(name, export, naming, offset, *ret_since_ns);
        gs_broker_offer_first_locked(share, export);
    }
    gs_lock_release(&share->lock);
    if (status == GS_OK && share->options.broker)
        gs_thread_wake(share);
    return status;
}

/* Whether the broker has not answered yet to the name as it was published then. */
static bool is_untold_locked(const struct gs_share *share, const char *text, uint64_t since_ns)
{
    const struct gs_name *name = find_locked(share, gs_user_own(), text);

    if (name && is_embedded(name))
        return false;
    return name && (!name->told || share->link.named == name) && name->since_ns == since_ns;
}

/* Whether the broker has it as it was published then; or somebody else has by now published it
 * anew. */
static bool is_kept_locked(const struct gs_share *share, const char *text, uint64_t since_ns)
{
    const struct gs_name *name = find_locked(share, gs_user_own(), text);

    return !name || name->since_ns != since_ns || name->kept || is_embedded(name);
}

bool gs_names_await_kept(struct gs_share *share, const char *text, uint64_t since_ns)
{
    uint64_t until =
        gs_now_ns() +
        (share->options.timeout_ns < GS_NAME_KEPT_NS ? share->options.timeout_ns : GS_NAME_KEPT_NS);

    if (!share->options.broker)
        return true;
    GS_HOLDING(&share->lock);
    while (is_untold_locked(share, text, since_ns) && !share->link.absent &&
           gs_cond_wait_until(&share->exporter.names_told, &share->lock, until))
        continue;
    return is_kept_locked(share, text, since_ns);
}

/* ---- Telling the broker ---------------------------------------------------------------------- */

void gs_names_forget_locked(struct gs_share *share)
{
    struct gs_name *name, *next;

    HASH_ITER(hh, share->exporter.names, name, next) {
        name->known = name->kept = false;
        name->told = is_embedded(name);
        if (!name->export)
            drop_locked(share, name);
    }
    share->link.named = NULL;
    gs_cond_wake_all(&share->exporter.names_told);
}

static bool is_due(const struct gs_share *share, const struct gs_name *name)
{
    return !name->told && (!brokered_export(name) || gs_export_is_brokered(share, name->export));
}

struct gs_name *gs_names_next_locked(struct gs_share *share, union gs_wire_message *ret_message)
{
    struct gs_name *name = share->exporter.names;
    const struct gs_export *export;

    while (name && !is_due(share, name))
        name = name->hh.next;
    if (!name)
        return NULL;
    export = brokered_export(name);
    gs_wire_start(ret_message, GS_WIRE_NAME, 0);
    ret_message->name.block_id = export ? export->key.id : 0;
    ret_message->name.since_ns = name->since_ns;
    ret_message->name.offset = export ? name->offset : 0;
    memcpy(ret_message->name.naming.name, name->key.name, sizeof name->key.name);
    if (export)
        ret_message->name.naming = name->naming;
    return name;
}

void gs_names_told_locked(struct gs_share *share, struct gs_name *name)
{
    name->told = name->known = true;
    share->link.named = name;
    if (!name->export)
        drop_locked(share, name);
}

void gs_names_answered_locked(struct gs_share *share, bool kept)
{
    if (!share->link.named)
        return;
    share->link.named->kept = share->link.named->told && kept;
    share->link.named = NULL;
    gs_cond_wake_all(&share->exporter.names_told);
}

/* ---- A broker is told ------------------------------------------------------------------------ */

static bool may_have_one_more(const struct gs_share *share, const struct gs_user *user)
{
    unsigned all = HASH_COUNT(share->exporter.names);

    return all < GS_NAMES_MAX && gs_user_may(user, user->names, all, GS_NAMES_MAX);
}

/* Whether it is kept. */
static bool keep_locked(struct gs_share *share, struct gs_client *client,
                        const struct gs_wire_name *message, uint64_t since_ns, struct gs_name *name,
                        struct gs_export *export)
{
    if (!name && !may_have_one_more(share, client->user)) {
        gs_log_line(&share->log, share->store.published_said ? GS_LOG_DEBUG : GS_LOG_WARNING,
                    "a name of process %d (%.15s) is not kept: %u of at most %d are, and another "
                    "user has half of what the others leave",
                    (int)client->pid, client->said.name, HASH_COUNT(share->exporter.names),
                    GS_NAMES_MAX);
        share->store.published_said = true;
        return false;
    }
    if (!name && !(name = new_locked(share, client->uid, message->naming.name)))
        return false;
    if (!name->user) {
        name->user = client->user;
        name->user->names++;
    }
    name->pid = client->pid;
    memcpy(name->process, client->said.name, sizeof name->process);
    put_locked(name, export, &message->naming, message->offset, since_ns);
    return true;
}

bool gs_name_came(struct gs_share *share, struct gs_client *client,
                  const struct gs_wire_name *message, bool *ret_kept)
{
    uint64_t since_ns = message->since_ns, now = gs_names_now(share);
    struct gs_export *export = NULL;
    struct gs_name *name;

    if (!gs_naming_is_good(&message->naming))
        return gs_client_fault(client, "its message has fields that make no sense");
    since_ns = since_ns < now ? since_ns : now; /* or nothing would ever come after it */
    GS_HOLDING(&share->lock);
    name = find_locked(share, client->uid, message->naming.name);
    if (message->block_id)
        export = gs_export_find_locked(share, client->instance, message->block_id);
    if (export && (export->owner != client->id || message->offset >= export->source.size))
        export = NULL; /* one that found no room here; or that has no such place */
    if (name && name->since_ns > since_ns)
        export = NULL; /* somebody else was later */
    else if (export)
        *ret_kept = keep_locked(share, client, message, since_ns, name, export);
    else if (name) /* taken back, or of a block that is not kept here */
        drop_locked(share, name);
    return true;
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* Whether it leads to anything: of what was left here, what its process confirms. */
static bool leads(const struct gs_name *name)
{
    return name->export && !name->export->freed_ns &&
           (!name->export->publisher ||
            gs_publisher_confirms(name->export->publisher, name->export));
}

/* A user's own, whoever that is: no other is told of. Of that name, or the first behind it. */
static const struct gs_name *sought_locked(const struct gs_share *share, uint32_t uid,
                                           const struct gs_wire_query *find)
{
    const bool next = find->about == GS_ABOUT_NEXT_NAME;
    const struct gs_name *name, *found = NULL;

    for (name = share->exporter.names; name; name = name->hh.next) {
        int order = strcmp(name->key.name, find->name);

        if (name->key.uid == uid && (next ? order > 0 : order == 0) && leads(name) &&
            (!found || strcmp(name->key.name, found->key.name) < 0))
            found = name;
    }
    return found;
}

static void fill(struct gs_share *share, const struct gs_name *name, struct gs_found *found)
{
    const struct gs_export *export = name->export;
    bool here = !export->publisher;

    found->uid = name->key.uid;
    found->naming = name->naming;
    memcpy(found->ipc_handle, export->ipc_handle, sizeof found->ipc_handle);
    found->offset = name->offset;
    found->size = export->source.size - begin_of(export);
    found->address = here ? export->source.address + begin_of(export) + name->offset : 0;
    found->age_ns = gs_names_now(share) - name->since_ns;
    found->pid = here ? (uint64_t)gs_alive_own_pid() : (uint64_t)name->pid;
    if (here)
        strncpy(found->process, program_invocation_short_name, sizeof found->process - 1);
    else
        memcpy(found->process, name->process, sizeof found->process);
    memcpy(found->uuid, export->source.uuid, sizeof found->uuid);
    found->kept = share->options.is_broker || (name->kept && gs_export_is_brokered(share, export));
}

bool gs_look_up_came(struct gs_share *share, struct gs_client *client,
                     const struct gs_wire_query *find)
{
    union gs_wire_message message;
    struct gs_wire_named *named = &message.report.named;
    const struct gs_name *name;

    if (!is_closed(find->name, sizeof find->name))
        return gs_client_fault(client, "its message has fields that make no sense");
    gs_wire_start(&message, GS_WIRE_REPORT, find->head.request);
    gs_lock_take(&share->lock);
    name = sought_locked(share, client->uid, find);
    if (name) {
        fill(share, name, &named->found);
        named->found.address = 0; /* nobody else's to know */
        named->is_here = 1;
        named->since_ns = name->since_ns;
    }
    gs_lock_release(&share->lock);
    return gs_client_send(share, client, &message, -1) == 0;
}

bool gs_names_own(struct gs_share *share, const char *text, uint64_t *ret_since_ns,
                  struct gs_found *ret_found)
{
    const struct gs_name *name;
    GS_HOLDING(&share->lock);

    name = find_locked(share, gs_user_own(), text);
    if (!name || !leads(name))
        return false;
    fill(share, name, ret_found);
    *ret_since_ns = name->since_ns;
    return true;
}

bool gs_names_end(struct gs_share *share, uint32_t uid, const char *text, uint64_t since_ns)
{
    struct gs_name *name;
    GS_HOLDING(&share->lock);

    name = find_locked(share, uid, text);
    if (!name || !name->export || name->since_ns > since_ns)
        return false;
    if (end_locked(share, name))
        gs_thread_wake(share);
    return true;
}

bool gs_unname_came(struct gs_share *share, struct gs_client *client,
                    const struct gs_wire_order *order)
{
    union gs_wire_message answer;

    if (!is_word(order->name))
        return gs_client_fault(client, "its message has fields that make no sense");
    gs_wire_start(&answer, GS_WIRE_DONE, order->head.request);
    answer.done.ended = gs_names_end(share, client->uid, order->name, order->value);
    return gs_client_send(share, client, &answer, -1) == 0;
}
