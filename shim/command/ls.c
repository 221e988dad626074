/* gpushim ls: the names under which GPU memory is published (core/share/names.c). Each process is
 * asked, and each broker; what both have is one row. */
#include "core/base/text.h"
#include "shim/command/ask.h"

struct row {
    struct gs_found found;
    struct who who;
};

struct listing {
    const char *only; /* the name that is asked about; NULL: all */
    struct row *rows;
    size_t count, room;
    bool silent; /* some process did not tell what it has */
};

static bool is_same(const struct row *row, const struct gs_found *found)
{
    return row->found.uid == found->uid &&
           memcmp(row->found.naming.name, found->naming.name, GS_NAME_SIZE) == 0 &&
           memcmp(row->found.ipc_handle, found->ipc_handle, GS_IPC_HANDLE_SIZE) == 0;
}

/* What a process and its broker have is one: the process's word for who it is counts more. */
static void add(struct listing *listing, const struct row *row)
{
    for (size_t i = 0; i < listing->count; i++) {
        struct row *other = &listing->rows[i];

        if (!is_same(other, &row->found))
            continue;
        if (row->who.pid)
            other->who = row->who;
        other->found.kept |= row->found.kept;
        return;
    }
    *COMMAND_NEXT(listing->rows, listing->count, listing->room) = *row;
}

/* Whether it is what was asked for: a name behind the last one. */
static bool is_next(const struct gs_found *found, const struct gs_wire_query *last)
{
    return gs_naming_is_good(&found->naming) && strcmp(found->naming.name, last->name) > 0;
}

/* A process's names, one behind the other. 0, or why they are not all of them. */
static int ask_names(struct listing *listing, int fd, long pid, union gs_wire_message *ret_answer)
{
    struct gs_wire_query find = {.about = GS_ABOUT_NEXT_NAME};
    struct row row;
    int error;

    for (;;) {
        error = ask_about(fd, &find, ret_answer, NULL);
        if (error || !ret_answer->report.named.is_here)
            return error;
        row = (struct row){.found = ret_answer->report.named.found};
        if (!is_next(&row.found, &find))
            return -EPROTO;
        who_fill(&row.who, pid, row.found.pid, row.found.process);
        if (!listing->only || strcmp(listing->only, row.found.naming.name) == 0)
            add(listing, &row);
        memcpy(find.name, row.found.naming.name, sizeof find.name);
    }
}

static void list_one(void *arg, int fd, const char *name, struct who *who)
{
    const bool is_broker = ask_is_broker(name);
    union gs_wire_message answer = {.head = {0}};
    struct listing *listing = arg;
    char reason[128];
    const int error = ask_names(listing, fd, is_broker ? 0 : who->pid, &answer);

    if (!error || error == -ENOTCONN) /* it ends just now */
        return;
    listing->silent = true;
    ask_silence(reason, sizeof reason, error, &answer);
    command_complain("%s %ld %s: its names are not listed",
                     is_broker ? "the broker, process" : "process", who->pid, reason);
}

static int by_name(const void *left, const void *right)
{
    const struct row *a = left, *b = right;

    return strcmp(a->found.naming.name, b->found.naming.name)
               ?: COMMAND_ORDER(a->found.uid, b->found.uid)
               ?: COMMAND_ORDER(a->found.age_ns, b->found.age_ns);
}

static const struct sheet_column columns[] = {{"NAME", false, 0}, {"USER", false, 2},
                                              {"SIZE", true, 0},  {"BROKER", false, 3},
                                              {"AGE", true, 1},   {"PUBLISHED BY", false, 0},
                                              {"LABEL", false, 0}};

/* What of a note is text: all of it, without a zero. */
static const char *note_text(const struct gs_naming *naming, char ret_text[GS_NOTE_SIZE + 1])
{
    memcpy(ret_text, naming->note, naming->note_size);
    ret_text[naming->note_size] = 0;
    return strlen(ret_text) == naming->note_size && json_takes(ret_text) ? ret_text : NULL;
}

static void tell_row(struct json *json, struct sheet *sheet, const struct row *row)
{
    const struct gs_found *found = &row->found;
    const struct who *who = &row->who;
    char uuid[33], note[GS_NOTE_SIZE + 1], user[32];

    gs_text_hex(found->uuid, sizeof found->uuid, uuid);
    json_open(json, NULL, '{');
    json_text(json, "name", found->naming.name);
    json_number(json, "uid", found->uid);
    json_number(json, "bytes", found->size);
    json_number(json, "offset", found->offset);
    json_text(json, "label", found->naming.label);
    json_number(json, "note_bytes", found->naming.note_size);
    json_text(json, "note", note_text(&found->naming, note));
    json_thousandths(json, "age_seconds", found->age_ns / 1000000);
    json_bool(json, "kept", found->kept);
    json_text(json, "gpu", uuid);
    json_open(json, "publisher", '{');
    who_write(json, who);
    json_close(json, '}');
    json_close(json, '}');
    sheet_put(sheet, "%s", found->naming.name);
    sheet_put(sheet, "%s", user_text(found->uid, user));
    sheet_put(sheet, "%s", show_size(found->size).text);
    sheet_put(sheet, "%s", found->kept ? "kept" : "-");
    sheet_put(sheet, "%s", show_age(found->age_ns).text);
    sheet_put(sheet, who->pid ? "%s" : "(%s)", who->pid ? who_shown(who).text : who->name);
    sheet_put(sheet, "%s", found->naming.label);
}

static void tell(const struct listing *listing, struct json *json)
{
    struct sheet sheet = {.columns = columns, .count = sizeof columns / sizeof *columns};

    if (listing->count > 0)
        qsort(listing->rows, listing->count, sizeof *listing->rows, by_name);
    for (size_t i = 0; i < listing->count; i++)
        tell_row(json, &sheet, &listing->rows[i]);
    json ? json_end(json) : sheet_say(&sheet);
    sheet_free(&sheet);
}

void ls_names(void (*each)(void *arg, const char *name, const char *process), void *arg)
{
    struct listing listing = {0};

    ask_each(NULL, list_one, &listing);
    for (size_t i = 0; i < listing.count; i++)
        each(arg, listing.rows[i].found.naming.name, listing.rows[i].who.name);
    free(listing.rows);
}

int command_ls(const struct call *call)
{
    struct listing listing = {.only = call->argc ? call->argv[0] : NULL};
    const char *wrong = ask_each(NULL, list_one, &listing);
    const bool well = !listing.silent && !ask_left_out();

    tell(&listing, call_json(call, true));
    if (wrong)
        command_complain("%s", wrong);
    else if (listing.only && !listing.count)
        command_complain(
            "nobody whom this user may ask has the name %s: 'gpushim ls' has those there are; its program may "
            "have ended, or have another folder (GPUSHIM_SHARE_DIR)",
            listing.only);
    else if (well && !listing.count && !call_has(call, "json"))
        command_say("no name that this user may see is published");
    free(listing.rows);
    return well && !wrong && (!listing.only || listing.count) ? COMMAND_WELL : COMMAND_WRONG;
}
