/*
 * Memory that lies behind a descriptor: that in which a process confirms what a broker may serve
 * (core/share/confirm.c), and what a grant came with. No process can make another wait by it.
 */
#ifndef GS_CORE_SHARE_MEMORY_H
#define GS_CORE_SHARE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* New memory of so many bytes, all zero, which stays as large as it is. A forked child does not
 * have it: its stores would be this process's. A descriptor for it, the caller's, or a negative
 * errno. */
int gs_memory_new(size_t size, uint64_t **ret_words);
void gs_memory_free(uint64_t *words, size_t size);
/* Whether nobody can make it smaller, nor answer a read of it as slowly as they like. */
bool gs_memory_is_sound(int fd);
/* Reads so many words from that one on; what is not there is 0. */
void gs_memory_read(int fd, size_t first, uint64_t *ret_words, size_t count);
/* Whether a driver may have made it: a device, something without a type, or memory of its own (a
 * memfd). Another file is not even shown to the driver, whose looks at it and closes could be held
 * up by its file system. */
bool gs_memory_may_be_drivers(int fd);
/* Whether it is a file of memory in ordinary pages, as those of /dev/shm are, and at least so
 * large: what is mapped of it is there, unless somebody makes it smaller. */
bool gs_memory_is_in_shm(int fd, uint64_t size);

/* That of a program's memfd, up to byte `end`: it gets the seal without which whoever makes it
 * smaller ends everybody that has it mapped. -EINVAL: no memfd, or a smaller one; -EPERM: it takes
 * no seals; -ERANGE: its pages are larger than 2 MiB. */
int gs_memory_seal(int fd, uint64_t end);
/* Maps what is sound from the byte on, at a multiple of 2 MiB; addresses are taken for all of
 * `whole`, which is one too and at least `size`. 0, or a negative errno. */
int gs_memory_map(int fd, uint64_t offset, size_t size, size_t whole, bool read_only,
                  void **ret_memory);
void gs_memory_unmap(void *memory, size_t whole);
/* Whether an address and a size are multiples of the kernel's pages. */
bool gs_memory_is_pages(uint64_t address, uint64_t size);

#endif
