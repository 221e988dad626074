/*
 * Which modules the return addresses of a recording lie in: the lines of /proc/self/maps that can
 * be executed, written by the thread that writes the first block with such addresses, before it,
 * and again when modules were added (core/record/trace_file.h). Another thread's block may come
 * first: nobody waits for the other here.
 */
#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/fd.h"
#include "core/record/trace_file.h"

#define TEXT_MOST ((size_t)4 << 20) /* what is beyond is cut off */
#define LINE_MOST 4352              /* a path, and what is before it */

static uint64_t written; /* atomic: how many there had been by then */

struct text {
    char *at;
    size_t used;
};

/* The first one tells it of all. */
static int count(struct dl_phdr_info *info, size_t size, void *ret_added)
{
    if (size >= offsetof(struct dl_phdr_info, dlpi_subs))
        *(uint64_t *)ret_added = info->dlpi_adds;
    return 1;
}

/* "7f0c-7f0d r-xp ...": whether it can be executed. */
static bool is_code(const char *line, size_t length)
{
    const char *space = memchr(line, ' ', length);

    return space && length - (size_t)(space - line) > 4 && space[3] == 'x';
}

static void add_line(struct text *text, const char *line, size_t length)
{
    if (!is_code(line, length) || text->used + length > TEXT_MOST)
        return;
    memcpy(text->at + text->used, line, length);
    text->used += length;
}

/* Line by line, without a call that allocates. */
static void read_lines(struct text *text, int fd)
{
    char piece[2 * LINE_MOST];
    size_t used = 0;
    ssize_t got;

    while ((got = read(fd, piece + used, sizeof piece - used)) > 0) {
        char *line = piece, *end;

        used += (size_t)got;
        while ((end = memchr(line, '\n', used - (size_t)(line - piece)))) {
            add_line(text, line, (size_t)(end + 1 - line));
            line = end + 1;
        }
        used -= (size_t)(line - piece);
        memmove(piece, line, used);
        if (used == sizeof piece) /* no line is so long */
            return;
    }
}

void gs_trace_modules_put(bool exiting)
{
    struct gs_trace_block *block;
    struct text text;
    uint64_t added = 1;
    void *room;
    int fd;

    dl_iterate_phdr(count, &added);
    if (__atomic_exchange_n(&written, added, __ATOMIC_RELAXED) == added)
        return;
    room = mmap(NULL, sizeof *block + TEXT_MOST, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return;
    block = room;
    text = (struct text){(char *)(block + 1), 0};
    fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        read_lines(&text, fd);
    gs_fd_drop(fd);
    *block = (struct gs_trace_block){.magic = GS_TRACE_BLOCK_MAGIC,
                                     .size = (uint32_t)(sizeof *block + text.used),
                                     .kind = GS_TRACE_MODULES,
                                     .thread = (uint32_t)syscall(SYS_gettid)};
    if (text.used > 0)
        gs_trace_file_put(block, exiting);
    munmap(room, sizeof *block + TEXT_MOST);
}

void gs_trace_modules_forget(void)
{
    __atomic_store_n(&written, 0, __ATOMIC_RELAXED);
}
