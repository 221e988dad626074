/*
 * A trace as the snapshot that torch.cuda.memory._snapshot() gives, pickled: what
 * pytorch.org/memory_viz reads. Pieces are its segments. Memory that is in no piece (the driver's
 * own) is a segment for as long as it is there: whoever draws blocks looks for the segment of each.
 *
 * The pickle is of protocol 2, of few instructions, since the page has a reader of its own: no list
 * is filled by one instruction, and the keys are put aside once.
 */
#include "shim/command/report.h"

#include "shim/command/command.h"

#define WORDS_MOST 64 /* a byte tells which; here are some thirty */

struct pickle {
    FILE *file;
    const struct report *report;
    const char *words[WORDS_MOST]; /* that were put aside */
    unsigned word_count;
};

/* ---- Values --------------------------------------------------------------------------------- */

static void put_little_endian(FILE *file, uint64_t number, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        fputc((int)(number >> 8 * i & 0xff), file);
}

static void put_text(struct pickle *pickle, const char *text)
{
    fputc('X', pickle->file); /* BINUNICODE */
    put_little_endian(pickle->file, strlen(text), 4);
    fputs(text, pickle->file);
}

/* One of the keys, or of few texts: the same pointer each time. */
static void put_word(struct pickle *pickle, const char *word)
{
    unsigned at = 0;

    while (at < pickle->word_count && pickle->words[at] != word)
        at++;
    if (at == pickle->word_count) {
        put_text(pickle, word);
        pickle->words[pickle->word_count++] = word;
        fputc('q', pickle->file); /* BINPUT */
    } else {
        fputc('h', pickle->file); /* BINGET */
    }
    fputc((int)at, pickle->file);
}

static void put_number(struct pickle *pickle, uint64_t number)
{
    if (number <= INT32_MAX) {
        fputc('J', pickle->file); /* BININT */
        put_little_endian(pickle->file, number, 4);
        return;
    }
    fputc(0x8a, pickle->file); /* LONG1: signed, so that the largest need one byte more */
    fputc(number >> 63 ? 9 : 8, pickle->file);
    put_little_endian(pickle->file, number, 8);
    if (number >> 63)
        fputc(0, pickle->file);
}

static void put_code(struct pickle *pickle, const char *code)
{
    fputs(code, pickle->file);
}

#define DICT "}(" /* EMPTY_DICT MARK */
#define END  "u"  /* SETITEMS */
#define LIST "]"  /* EMPTY_LIST; each after it is followed by: */
#define NEXT "a"  /* APPEND */

static void put_pair(struct pickle *pickle, const char *key, uint64_t number)
{
    put_word(pickle, key);
    put_number(pickle, number);
}

static void put_words(struct pickle *pickle, const char *key, const char *word)
{
    put_word(pickle, key);
    put_word(pickle, word);
}

static void put_frames(struct pickle *pickle, const struct trace_event *event)
{
    struct trace_place place;

    put_word(pickle, "frames");
    put_code(pickle, LIST);
    for (unsigned i = 0; event && i < event->frame_count; i++) {
        char offset[32];

        trace_place(pickle->report->modules, trace_frame(event, i), &place);
        snprintf(offset, sizeof offset, "+0x%llx", (unsigned long long)place.offset);
        put_code(pickle, DICT);
        put_word(pickle, "filename");
        put_text(pickle, json_takes(place.file) ? place.is_label ? "label" : place.file : "?");
        put_pair(pickle, "line", place.line);
        put_word(pickle, "name");
        put_text(pickle, place.function[0] && json_takes(place.function) ? place.function : offset);
        put_code(pickle, END NEXT);
    }
}

/* ---- Device traces -------------------------------------------------------------------------- */

static void put_entry(struct pickle *pickle, const char *action, const struct trace_event *event,
                      uint64_t address, uint64_t size)
{
    const struct trace *trace = &pickle->report->trace;

    put_code(pickle, DICT);
    put_words(pickle, "action", action);
    put_pair(pickle, "addr", address);
    put_pair(pickle, "size", size);
    put_pair(pickle, "stream", event->stream);
    put_pair(pickle, "time_us", (trace->header.realtime_ns + event->at_ns) / 1000);
    if (strcmp(action, "oom") == 0)
        put_pair(pickle, "device_free", 0); /* not recorded */
    put_frames(pickle, event);
    put_code(pickle, END NEXT);
}

static void put_event(struct pickle *pickle, unsigned device, size_t at)
{
    const struct trace_memory *memory = &pickle->report->memory;
    const struct trace_event *event = &pickle->report->trace.events[at];
    bool is_piece = event->op == GS_TRACE_PIECE_MADE || event->op == GS_TRACE_PIECE_GONE;
    const struct trace_block *all = is_piece ? memory->pieces : memory->blocks;
    const struct trace_block *ended = memory->ends[at] ? &all[memory->ends[at] - 1] : NULL;
    const struct trace_block *begun = memory->begins[at] ? &all[memory->begins[at] - 1] : NULL;

    if (ended && ended->device == device) {
        if (!is_piece) {
            put_entry(pickle, "free_requested", event, ended->address, ended->size);
            put_entry(pickle, "free_completed", event, ended->address, ended->size);
        }
        if (is_piece || !ended->is_in_pieces)
            put_entry(pickle, is_piece ? "segment_unmap" : "segment_free", event, ended->address,
                      ended->size);
    }
    if (begun && begun->device == device) {
        if (is_piece || !begun->is_in_pieces)
            put_entry(pickle, is_piece ? "segment_map" : "segment_alloc", event, begun->address,
                      begun->size);
        if (!is_piece)
            put_entry(pickle, "alloc", event, begun->address, begun->size);
    }
    if (trace_is_alloc(event) && !begun && event->device == device)
        put_entry(pickle, "oom", event, 0, event->size);
}

static void put_traces(struct pickle *pickle)
{
    const struct report *report = pickle->report;
    unsigned last = TRACE_DEVICES - 1;

    put_word(pickle, "device_traces");
    put_code(pickle, LIST);
    while (last > 0 && !report->trace.has_device[last])
        last--;
    for (unsigned device = 0; device <= last; device++) {
        put_code(pickle, LIST);
        for (size_t i = 0; i < report->trace.count; i++)
            if (report->memory.begins[i] || report->memory.ends[i] ||
                trace_is_alloc(&report->trace.events[i]))
                put_event(pickle, device, i);
        put_code(pickle, NEXT);
    }
}

/* ---- Segments, as they are at the end ------------------------------------------------------- */

static void put_block(struct pickle *pickle, const struct trace_block *block, uint64_t address,
                      uint64_t size)
{
    put_code(pickle, DICT);
    put_pair(pickle, "address", address);
    put_pair(pickle, "size", size);
    put_pair(pickle, "requested_size", size);
    put_words(pickle, "state", block ? "active_allocated" : "inactive");
    put_frames(pickle, block ? &pickle->report->trace.events[block->from] : NULL);
    put_code(pickle, END NEXT);
}

/* Its blocks in the order of their addresses, and what is free between them. */
static void put_segment(struct pickle *pickle, const struct trace_block *segment,
                        const struct trace_block *const *blocks, size_t count)
{
    const uint64_t end = segment->address + segment->size;
    uint64_t at = segment->address, live = 0;

    put_code(pickle, DICT);
    put_pair(pickle, "device", segment->device);
    put_pair(pickle, "address", segment->address);
    put_pair(pickle, "total_size", segment->size);
    put_pair(pickle, "stream", 0);
    put_words(pickle, "segment_type", "large");
    put_word(pickle, "blocks");
    put_code(pickle, LIST);
    for (size_t i = 0; i < count; i++) {
        if (blocks[i]->address < at || blocks[i]->size > end - blocks[i]->address)
            continue; /* no recorder writes such */
        if (blocks[i]->address > at)
            put_block(pickle, NULL, at, blocks[i]->address - at);
        put_block(pickle, blocks[i], blocks[i]->address, blocks[i]->size);
        at = blocks[i]->address + blocks[i]->size;
        live += blocks[i]->size;
    }
    if (at < end)
        put_block(pickle, NULL, at, end - at);
    put_pair(pickle, "allocated_size", live);
    put_pair(pickle, "active_size", live);
    put_code(pickle, END NEXT);
}

static int by_place(const void *a, const void *b)
{
    const struct trace_block *x = *(const struct trace_block *const *)a,
                             *y = *(const struct trace_block *const *)b;

    return COMMAND_ORDER(x->device, y->device) ?: COMMAND_ORDER(x->address, y->address);
}

/* What is there at the end, by device and address. The caller frees it. */
static const struct trace_block **left_of(const struct trace_block *all, size_t count,
                                          size_t *ret_count)
{
    const struct trace_block **left = command_need(malloc((count + 1) * sizeof *left));

    *ret_count = 0;
    for (size_t i = 0; i < count; i++)
        if (all[i].to == TRACE_NEVER)
            left[(*ret_count)++] = &all[i];
    qsort(left, *ret_count, sizeof *left, by_place);
    return left;
}

/* Pieces side by side are one segment, as blocks may lie in several; memory_viz merges what is
 * mapped so, too. */
static void put_segments(struct pickle *pickle)
{
    const struct trace_memory *memory = &pickle->report->memory;
    size_t block_count, piece_count, at = 0;
    const struct trace_block **blocks = left_of(memory->blocks, memory->block_count, &block_count);
    const struct trace_block **pieces = left_of(memory->pieces, memory->piece_count, &piece_count);

    put_word(pickle, "segments");
    put_code(pickle, LIST);
    for (size_t i = 0; i < block_count; i++)
        if (!blocks[i]->is_in_pieces)
            put_segment(pickle, blocks[i], &blocks[i], 1);
    for (size_t i = 0; i < piece_count;) {
        struct trace_block segment = *pieces[i];
        const struct trace_block *start = &segment;
        size_t first;

        while (++i < piece_count && pieces[i]->device == segment.device &&
               pieces[i]->address - segment.address == segment.size)
            segment.size += pieces[i]->size;
        while (at < block_count && by_place(&blocks[at], &start) < 0)
            at++;
        for (first = at; at < block_count && blocks[at]->device == segment.device &&
                         blocks[at]->address - segment.address < segment.size;)
            at++;
        put_segment(pickle, &segment, &blocks[first], at - first);
    }
    free(blocks);
    free(pieces);
}

bool report_memory_viz(FILE *file, const void *arg)
{
    struct pickle pickle = {.file = file, .report = arg};

    fputs("\x80\x02", file); /* PROTO 2 */
    put_code(&pickle, DICT);
    put_word(&pickle, "made_by");
    put_text(&pickle, "gpushim report");
    put_segments(&pickle);
    put_traces(&pickle);
    put_code(&pickle, END);
    fputc('.', file); /* STOP */
    return !ferror(file);
}
