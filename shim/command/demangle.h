/* Names of C++ functions as one writes them. */
#ifndef GS_SHIM_COMMAND_DEMANGLE_H
#define GS_SHIM_COMMAND_DEMANGLE_H

#include <stdbool.h>
#include <stddef.h>

/* What the symbol stands for, or the begin of it. False: it stands for nothing, or that cannot be told. */
bool demangle(const char *symbol, char *ret_name, size_t size);

#endif
