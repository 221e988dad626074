/* Configuration files: `key = value` lines under `[section]`, comments from a # that begins a line
 * or follows a blank. Keys before the first section are those of `general`. Nothing in a file is
 * trusted: it may be of any kind, size and content, and a mistake costs its line alone. */
#include "config/internal.h"

#include "core/base/printable.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Longest line, which leaves room for a path and what stands around it. */
#define LINE_SIZE (2 * GS_CONFIG_PATH_SIZE)

/* The line being read, and what the lines before it mean for it. */
struct reader {
    struct gs_loader *loader;
    struct gs_place place;
    const char *section; /* NULL: an unknown one, complained about; its keys are passed over */
};

static const char *section_find(struct gs_text name)
{
    for (size_t i = 0; i < gs_section_count; i++) {
        if (gs_text_equal(name, gs_sections[i].name))
            return gs_sections[i].name;
    }
    return NULL;
}

static const char *section_nearest(struct gs_text name)
{
    for (size_t i = 0; i < gs_section_count; i++) {
        if (gs_text_distance(name, gs_sections[i].name) != SIZE_MAX)
            return gs_sections[i].name;
    }
    return NULL;
}

static void section_read(struct reader *reader, struct gs_text line)
{
    char quoted[GS_QUOTE_SIZE];
    reader->section = NULL;
    if (line.at[line.size - 1] != ']') {
        gs_complain(reader->loader, reader->place,
                    "the section %s does not end in ]; it is ignored with its keys",
                    gs_quote(line, quoted));
        return;
    }
    struct gs_text name = gs_text_trim((struct gs_text){line.at + 1, line.size - 2});
    reader->section = section_find(name);
    if (!reader->section) {
        const char *nearest = section_nearest(name);
        gs_complain(reader->loader, reader->place,
                    "the section %s is unknown and ignored with its keys%s%s%s",
                    gs_quote(name, quoted), nearest ? "; did you mean [" : "",
                    nearest ? nearest : "", nearest ? "]?" : "");
    }
}

static void key_complain(struct reader *reader, struct gs_text key, struct gs_text value)
{
    char quoted_key[GS_QUOTE_SIZE], quoted[GS_QUOTE_SIZE];
    const struct gs_option *nearest = gs_option_meant(key, reader->section);
    gs_quote(key, quoted_key);
    gs_quote(value, quoted);
    if (nearest)
        gs_complain(reader->loader, reader->place,
                    "%s = %s is ignored: [%s] has no such key; did you mean %s under [%s]?",
                    quoted_key, quoted, reader->section, nearest->key, nearest->section);
    else
        gs_complain(reader->loader, reader->place, "%s = %s is ignored: [%s] has no such key",
                    quoted_key, quoted, reader->section);
}

static void key_read(struct reader *reader, struct gs_text line)
{
    char name[GS_OPTION_NAME_SIZE], changed[GS_QUOTE_SIZE], quoted[GS_QUOTE_SIZE];
    const char *equals = memchr(line.at, '=', line.size);
    if (!equals) {
        gs_complain(reader->loader, reader->place,
                    "%s is ignored: neither key = value nor [section]", gs_quote(line, quoted));
        return;
    }
    struct gs_text key = gs_text_trim((struct gs_text){line.at, (size_t)(equals - line.at)});
    struct gs_text value =
        gs_text_trim((struct gs_text){equals + 1, line.size - (size_t)(equals + 1 - line.at)});
    snprintf(name, sizeof name, "%s.%.*s", reader->section, (int)key.size, key.at);
    const struct gs_old_name *old;
    const struct gs_option *option = gs_option_find(gs_text_of(name), gs_option_whole_name, &old);
    if (!option) {
        key_complain(reader, key, value);
        return;
    }
    if (old)
        gs_complain(reader->loader, reader->place,
                    "%s is called %s under [%s] now, and is taken for that", old->key, option->key,
                    option->section);
    gs_option_name(option, name);
    gs_loader_set(reader->loader, option, reader->place, name,
                  old ? gs_old_value(old, value, changed) : value);
}

/* The line up to its comment. */
static struct gs_text comment_drop(struct gs_text line)
{
    for (size_t i = 0; i < line.size; i++) {
        bool begins = i == 0 || line.at[i - 1] == ' ' || line.at[i - 1] == '\t';
        if (line.at[i] == '#' && begins)
            return (struct gs_text){line.at, i};
    }
    return line;
}

static void line_read(struct reader *reader, struct gs_text line)
{
    if (line.size > LINE_SIZE) {
        gs_complain(reader->loader, reader->place,
                    "the line is ignored: it is longer than %d bytes", LINE_SIZE);
        return;
    }
    if (memchr(line.at, '\0', line.size)) {
        gs_complain(reader->loader, reader->place, "the line is ignored: it has NUL bytes in it");
        return;
    }
    line = gs_text_trim(comment_drop(line));
    if (line.size == 0)
        return;
    if (line.at[0] == '[')
        section_read(reader, line);
    else if (reader->section)
        key_read(reader, line);
}

void gs_file_parse(struct gs_loader *loader, const char *name, struct gs_text text)
{
    struct reader reader = {.loader = loader, .place = {.file = name}, .section = "general"};
    while (text.size) {
        const char *newline = memchr(text.at, '\n', text.size);
        size_t size = newline ? (size_t)(newline - text.at) : text.size;
        size_t step = newline ? size + 1 : size;
        reader.place.line++;
        line_read(&reader, (struct gs_text){text.at, size});
        text.at += step;
        text.size -= step;
    }
}

/* Reads up to `size` bytes. -1 with errno on failure. */
static ssize_t read_all(int fd, char *buffer, size_t size)
{
    size_t used = 0;
    while (used < size) {
        ssize_t n = read(fd, buffer + used, size - used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        used += (size_t)n;
    }
    return (ssize_t)used;
}

/* Notes a file that is looked for: what is noted of a file from then on is of this one. */
static void note_looked_for(struct gs_config_origins *origins, const char *path)
{
    if (!origins)
        return;
    if (origins->file_count < GS_CONFIG_FILES_MAX)
        origins->file_count++;
    struct gs_config_file *file = &origins->files[origins->file_count - 1];
    memset(file, 0, sizeof *file);
    snprintf(file->path, sizeof file->path, "%s", path);
}

static void note_unread(struct gs_config_origins *origins, const char *why)
{
    if (origins)
        snprintf(origins->files[origins->file_count - 1].why_not, GS_CONFIG_LINE_SIZE, "%s", why);
}

/* A file that counts as a whole for nothing: why, then the way out. %m is errno. */
__attribute__((format(printf, 3, 4))) static void refuse(struct gs_loader *loader, const char *path,
                                                         const char *format, ...)
{
    char why[GS_CONFIG_LINE_SIZE];
    va_list list;
    va_start(list, format);
    vsnprintf(why, sizeof why, format, list);
    va_end(list);
    note_unread(loader->origins, why);
    gs_complain(loader, (struct gs_place){.file = path}, "the configuration is ignored: %s", why);
}

/* Whether the open file may say what this process does; complains where not. statx here and below
 * because stat and fstat would bind the library to glibc 2.33 and later. */
static bool may_be_read(struct gs_loader *loader, const char *path, int fd)
{
    struct statx status;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_MODE | STATX_UID, &status) < 0 ||
        !S_ISREG(status.stx_mode)) {
        refuse(loader, path, "not a regular file");
        return false;
    }
    if (status.stx_uid != 0 && status.stx_uid != geteuid()) {
        refuse(loader, path,
               "it belongs to uid %u; root or the user who runs the program must own it",
               (unsigned)status.stx_uid);
        return false;
    }
    if (status.stx_mode & (S_IWGRP | S_IWOTH)) {
        refuse(loader, path, "others may write to it (mode %03o); chmod go-w takes that away",
               status.stx_mode & 0777u);
        return false;
    }
    return true;
}

/* Adds a file to the list of those that were read; what finds no room is left out. */
static void note_read(struct gs_loader *loader, const char *path)
{
    struct gs_config *config = loader->config;
    size_t used = strlen(config->read_files);
    const char *comma = used ? ", " : "";
    size_t room = sizeof config->read_files - used;
    char shown[GS_CONFIG_READ_SIZE];
    gs_printable(path, strlen(path), shown, sizeof shown);
    if (strlen(comma) + strlen(shown) < room)
        snprintf(config->read_files + used, room, "%s%s", comma, shown);
    if (loader->origins)
        loader->origins->files[loader->origins->file_count - 1].read = true;
}

static void contents_load(struct gs_loader *loader, const char *path, int fd)
{
    if (!may_be_read(loader, path, fd))
        return;
    /* One byte more than allowed shows that there is more, also where the file's size is of no use.
     */
    char *text = malloc(GS_CONFIG_FILE_SIZE + 1);
    ssize_t size = text ? read_all(fd, text, GS_CONFIG_FILE_SIZE + 1) : -1;
    if (size < 0)
        refuse(loader, path, "%m");
    else if (size > GS_CONFIG_FILE_SIZE)
        refuse(loader, path, "longer than %d bytes", GS_CONFIG_FILE_SIZE);
    else {
        gs_file_parse(loader, path, (struct gs_text){text, (size_t)size});
        note_read(loader, path);
    }
    free(text);
}

/* Whether a failed open means that nobody put a file there. A folder that this user may not search
 * (HOME=/root in a container run as somebody else) is none of the user's doing. */
static bool is_absent(const char *path)
{
    struct statx status;
    int error = errno;
    bool absent =
        error == ENOENT || error == ENOTDIR ||
        (error == EACCES && statx(AT_FDCWD, path, 0, STATX_TYPE, &status) < 0 && errno == EACCES);
    errno = error;
    return absent;
}

void gs_file_load(struct gs_loader *loader, const char *path, const char *way_out)
{
    note_looked_for(loader->origins, path);
    /* O_NONBLOCK: opening a FIFO must not wait for its other end. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        if (way_out || !is_absent(path))
            refuse(loader, path, "%m%s", way_out ? way_out : "");
        else
            note_unread(loader->origins,
                        errno == EACCES ? "its folder is closed to this user" : "absent");
        return;
    }
    contents_load(loader, path, fd);
    close(fd);
}
