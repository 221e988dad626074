/*
 * Where the contents of GPU memory are while it is away: memory of the process, or a file without a
 * name. It goes as a whole. Of memory the pages come part by part, by several threads, while what
 * is there is copied to already: the first touch is what takes longest.
 *
 * The file is mapped, so that no descriptor is kept that the program may close. Nobody but the
 * kernel touches the mapping: a page that cannot be read, or has no room after all, would end the
 * process.
 */
#ifndef GS_CORE_PROCESS_SLEEP_STORE_H
#define GS_CORE_PROCESS_SLEEP_STORE_H

#include <stdbool.h>
#include <stddef.h>

#define GS_SLEEP_PART ((size_t)64 << 20)

struct gs_sleep_filling;

struct gs_sleep_store {
    char *base; /* NULL: none */
    size_t size;
    bool in_file;
    char *window; /* what the driver copies to and from: all of it; of a file, a part at a time */
    size_t window_size;
    struct gs_sleep_filling *filling; /* NULL: all is there */
};

/* `directory` NULL: in memory. 0; or an errno, and in words how much there is: ENOMEM, ENOSPC, or
 * what the kernel says of the directory. A forked child has none of it, nor has a core file. */
int gs_sleep_store_make(struct gs_sleep_store *store, size_t size, const char *directory,
                        char *ret_text, size_t text_size);
/* Until a part of the window is there, which are awaited one by one from the first on. 0, or an
 * errno: it will not be. */
int gs_sleep_store_await(struct gs_sleep_store *store, size_t part);
/* Of a file: what is in the window goes to its place, or comes from there. 0, or an errno. */
int gs_sleep_store_move(const struct gs_sleep_store *store, size_t offset, size_t size, bool out);
/* What is in a file is written, and needs no memory from now on. 0, or an errno: it may not be
 * whole. */
int gs_sleep_store_rest(struct gs_sleep_store *store);
void gs_sleep_store_free(struct gs_sleep_store *store);

#endif
