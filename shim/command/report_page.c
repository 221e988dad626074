/* gpushim report --html: the page report_page.html with its script, report_page.js, and the data
 * that this draws, all in one file. */
#include "shim/command/report.h"

#include "shim/command/command.h"
#include "report_page_html.h"
#include "report_page_js.h"

/* A page with more of either becomes too much for a browser. Totals have all. */
#define MOST_BLOCKS  300000
#define MOST_FIGURES 100000

struct page {
    const struct report *report;
    struct json json;
    uint32_t *moments; /* of each event: its place among those that begin or end what is drawn */
    uint32_t *stacks;  /* of each block: its place among different call stacks, and one; 0: none */
    const struct trace_block **order; /* blocks by stack */
    uint64_t smallest;                /* that is drawn */
};

static int by_size(const void *a, const void *b)
{
    const struct trace_block *x = *(const struct trace_block *const *)a,
                             *y = *(const struct trace_block *const *)b;

    return COMMAND_ORDER(y->size, x->size);
}

/* So that not many more than the most are drawn; those of one size all or not at all. */
static void choose_blocks(struct page *page)
{
    const struct trace_memory *memory = &page->report->memory;

    if (memory->block_count <= MOST_BLOCKS)
        return;
    qsort(page->order, memory->block_count, sizeof *page->order, by_size);
    page->smallest = page->order[MOST_BLOCKS]->size + 1;
}

static void mark(struct page *page, const struct trace_block *all, size_t count, uint64_t smallest)
{
    for (size_t i = 0; i < count; i++) {
        if (all[i].size < smallest)
            continue;
        page->moments[all[i].from] = 1;
        if (all[i].to != TRACE_NEVER)
            page->moments[all[i].to] = 1;
    }
}

static void write_moments(struct page *page)
{
    const struct report *report = page->report;
    uint32_t count = 0;

    mark(page, report->memory.blocks, report->memory.block_count, page->smallest);
    mark(page, report->memory.pieces, report->memory.piece_count, 0);
    json_open(&page->json, "moments", '[');
    for (size_t i = 0; i < report->trace.count; i++)
        if (page->moments[i]) {
            page->moments[i] = count++;
            json_number(&page->json, NULL, report->trace.events[i].at_ns);
        }
    json_close(&page->json, ']');
}

static int by_stack(const void *a, const void *b)
{
    const struct trace_block *x = *(const struct trace_block *const *)a,
                             *y = *(const struct trace_block *const *)b;

    return COMMAND_ORDER(x->stack, y->stack);
}

static void write_stacks(struct page *page)
{
    const struct trace_memory *memory = &page->report->memory;
    uint32_t count = 0;
    uint64_t last = 0;

    qsort(page->order, memory->block_count, sizeof *page->order, by_stack);
    json_open(&page->json, "stacks", '[');
    for (size_t i = 0; i < memory->block_count; i++) {
        const struct trace_block *block = page->order[i];

        if (!block->stack || block->size < page->smallest)
            continue;
        if (block->stack != last) {
            report_write_stack(&page->json, NULL, page->report,
                               &page->report->trace.events[block->from]);
            count++;
        }
        last = block->stack;
        page->stacks[block - memory->blocks] = count;
    }
    json_close(&page->json, ']');
}

static void write_place(struct page *page, const struct trace_block *block)
{
    json_number(&page->json, NULL, block->device);
    json_number(&page->json, NULL, block->address);
    json_number(&page->json, NULL, block->size);
    json_number(&page->json, NULL, page->moments[block->from]);
    json_index(&page->json, block->to != TRACE_NEVER,
               block->to != TRACE_NEVER ? page->moments[block->to] : 0);
}

static void write_blocks(struct page *page)
{
    const struct trace_memory *memory = &page->report->memory;
    struct json *json = &page->json;
    size_t left_out = 0;

    json_open(json, "blocks", '[');
    for (size_t i = 0; i < memory->block_count; i++) {
        const struct trace_block *block = &memory->blocks[i];
        const struct trace_event *event = &page->report->trace.events[block->from];

        if (block->size < page->smallest) {
            left_out++;
            continue;
        }
        json_open(json, NULL, '[');
        write_place(page, block);
        json_number(json, NULL, event->stream);
        json_text(json, NULL, trace_outcome_name(event));
        json_index(json, page->stacks[i] > 0, page->stacks[i] - 1);
        json_close(json, ']');
    }
    json_close(json, ']');
    json_number(json, "left_out", left_out);
    json_open(json, "pieces", '[');
    for (size_t i = 0; i < memory->piece_count; i++) {
        json_open(json, NULL, '[');
        write_place(page, &memory->pieces[i]);
        json_close(json, ']');
    }
    json_close(json, ']');
}

static void write_figure(struct json *json, const struct trace_event *event)
{
    const uint64_t numbers[] = {event->at_ns,           event->device,
                                event->figures.live,    event->figures.cached,
                                event->figures.retired, event->figures.limbo};

    json_open(json, NULL, '[');
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_number(json, NULL, numbers[i]);
    json_close(json, ']');
}

/* Where there are too many, one of so many of each device. */
static void write_figures(struct page *page)
{
    const struct trace *trace = &page->report->trace;
    size_t count = 0, seen[TRACE_DEVICES] = {0}, every;

    for (size_t i = 0; i < trace->count; i++)
        count += trace->events[i].op == GS_TRACE_FIGURES;
    every = count / MOST_FIGURES + 1;
    json_open(&page->json, "figures", '[');
    for (size_t i = 0; i < trace->count; i++) {
        const struct trace_event *event = &trace->events[i];

        if (event->op == GS_TRACE_FIGURES && seen[event->device]++ % every == 0)
            write_figure(&page->json, event);
    }
    json_close(&page->json, ']');
}

static void write_data(struct page *page)
{
    json_open(&page->json, NULL, '{');
    json_open(&page->json, "report", '{');
    report_tell(&page->json, page->report);
    json_close(&page->json, '}');
    write_moments(page);
    write_stacks(page);
    write_blocks(page);
    write_figures(page);
    json_close(&page->json, '}');
}

/* The page up to a mark; what is behind it. */
static const char *put_up_to(FILE *file, const char *page, const char *mark_text)
{
    const char *at = strstr(page, mark_text);

    fwrite(page, 1, (size_t)(at - page), file);
    return at + strlen(mark_text);
}

bool report_page(FILE *file, const void *arg)
{
    struct page page = {.report = arg, .json = {.file = file}};
    const struct trace_memory *memory = &page.report->memory;
    const char *rest;

    page.moments = command_need(calloc(page.report->trace.count + 1, sizeof *page.moments));
    page.stacks = command_need(calloc(memory->block_count + 1, sizeof *page.stacks));
    page.order = command_need(calloc(memory->block_count + 1, sizeof *page.order));
    for (size_t i = 0; i < memory->block_count; i++)
        page.order[i] = &memory->blocks[i];
    choose_blocks(&page);
    rest = put_up_to(file, report_page_html, "@DATA@");
    write_data(&page);
    rest = put_up_to(file, rest, "@SCRIPT@");
    fputs(report_page_js, file);
    fputs(rest, file);
    free(page.moments);
    free(page.stacks);
    free(page.order);
    return !ferror(file);
}
