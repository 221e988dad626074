/* Where the library lies that belongs to this program, and which version of it that is. */
#ifndef GS_SHIM_COMMAND_LIBRARY_H
#define GS_SHIM_COMMAND_LIBRARY_H

#include <limits.h>
#include <stdbool.h>

#define LIBRARY "libgpushim.so"

/* The folder of this program, without a slash at its end; without /proc, of the name that it was
 * called by. */
void library_own_folder(char ret_folder[PATH_MAX]);

/* The real path of the first place where one lies (as built, as installed, as unpacked); "": there is none. */
void library_find(char ret_path[PATH_MAX]);

/* Says on standard error that there is none, and where it was looked for. */
void library_complain(void);

/* What the file says that it is, "0.1.0"; "" where it cannot be told. */
#define LIBRARY_VERSION 32
void library_version_of(const char *path, char ret_version[LIBRARY_VERSION]);
/* The protocol that it speaks with others (GS_WIRE_VERSION of its build); 0: that cannot be told. */
unsigned library_protocol_of(const char *path);

#endif
