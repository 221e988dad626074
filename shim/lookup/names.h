/*
 * Which names are rows of the table of entry points, and who is asked for all others.
 */
#ifndef GPUSHIM_SHIM_NAMES_H
#define GPUSHIM_SHIM_NAMES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "shim/entry_points.h"
#include "shim/process.h"

static inline bool gs_name_may_be_drivers(const char *name)
{
    return name && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

/* Whether a name may be the driver's, or of another library of the table: cuFile is as above. */
static inline bool gs_name_may_be_ours(const char *name)
{
    return gs_name_may_be_drivers(name) ||
           (name && ((name[0] == 'i' && name[1] == 'b' && name[2] == 'v' && name[3] == '_') ||
                     (name[0] == 'g' && name[1] == 'd' && name[2] == 'r' && name[3] == '_') ||
                     (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l')));
}

/* A function of the objects after us, found once. */
void *gs_next(_Atomic(void *) *cache, const char *name);

/* The dlsym and dlvsym that a look-up reaches next: libc's, or another interposer's that comes
 * after us. NULL only where the process has none. */
typedef void *gs_dlsym_fn(void *handle, const char *name);
typedef void *gs_dlvsym_fn(void *handle, const char *name, const char *version);
GS_INSIDE extern _Atomic(void *) gs_next_dlsym_found,
    gs_next_dlvsym_found; /* NULL: not asked yet */
gs_dlsym_fn *gs_next_dlsym(void);
gs_dlvsym_fn *gs_next_dlvsym(void);

extern const char *const gs_row_names[GS_ROWS];
/* The row of an exact name; or below 0 whether it is known to need none
 * (shim/known_names.txt). */
#define GS_NAME_KNOWN   (-1)
#define GS_NAME_UNKNOWN (-2)
int gs_name_row(const char *name);

#endif
