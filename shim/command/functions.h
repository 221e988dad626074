/*
 * The functions of an ELF file, by the place of their code in it. The file is whatever lies there:
 * nothing that it says of itself is believed, and it may be cut or written over meanwhile.
 */
#ifndef GS_SHIM_COMMAND_FUNCTIONS_H
#define GS_SHIM_COMMAND_FUNCTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FUNCTIONS_NAME 4096 /* of a longer name the begin is told */

struct functions;

/* Of an open file, which it closes at its end; NULL, and it stays the caller's: it is no ELF file. */
struct functions *functions_make(int fd, uint64_t size);
void functions_free(struct functions *functions);
/* The symbol of the function whose code is at this place; false: none is known to be. */
bool functions_find(const struct functions *functions, uint64_t place,
                    char ret_name[FUNCTIONS_NAME]);

/* What a C++ symbol stands for, or the begin of it (demangle.c). False: it stands for nothing, or that cannot be told. */
bool demangle(const char *symbol, char *ret_name, size_t size);

#endif
