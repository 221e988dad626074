/*
 * Where the contents of GPU memory are while it is away: memory of the process, or a file without a
 * name. It is all there before anything is copied, and goes as a whole.
 */
#ifndef GS_CORE_PROCESS_SLEEP_STORE_H
#define GS_CORE_PROCESS_SLEEP_STORE_H

#include <stdbool.h>
#include <stddef.h>

struct gs_sleep_store {
    char *base; /* NULL: none */
    size_t size;
    bool in_file;
};

/* `directory` NULL: in memory. 0; or an errno, and in words how much there is: ENOMEM, ENOSPC, or what
 * the kernel says of the directory. A forked child has none of it, nor has a core file. */
int gs_sleep_store_make(struct gs_sleep_store *store, size_t size, const char *directory, char *ret_text,
                  size_t text_size);
/* What is in a file is written, and needs no memory from now on. 0, or an errno: it may not be whole. */
int gs_sleep_store_rest(struct gs_sleep_store *store);
void gs_sleep_store_free(struct gs_sleep_store *store);

#endif
