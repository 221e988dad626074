/*
 * The functions of an ELF file, by the place of their code in it. The file is whatever lies there:
 * nothing that it says of itself is believed, and it may be cut or written over meanwhile.
 */
#ifndef GS_SHIM_COMMAND_FUNCTIONS_H
#define GS_SHIM_COMMAND_FUNCTIONS_H

#include <stdint.h>

struct functions;

/* NULL: the file cannot be read, or is no ELF file. */
struct functions *functions_make(const char *path);
void functions_free(struct functions *functions); /* or NULL */
/* The symbol of the function whose code is at this place, which stays the functions'; NULL: none is known to be. */
const char *functions_find(const struct functions *functions, uint64_t place);

#endif
