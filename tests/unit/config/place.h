/* A folder of a test's own for configuration files, and the entries and paths that name what lies
 * in it. */
#ifndef GS_TESTS_CONFIG_PLACE_H
#define GS_TESTS_CONFIG_PLACE_H

#include <sys/types.h>

extern char place[64];
extern char place_named[128], place_home[128],
    place_xdg[128]; /* GPUSHIM_CONFIG=, HOME=, XDG_CONFIG_HOME= */
extern char place_system[128], place_etc[128];
extern const char *const place_system_files[]; /* these two */

void place_make(void);
void place_remove(void);
/* Of a name in it; good until the next call. */
const char *place_path(const char *name);
void place_write(const char *name, const char *text, mode_t mode);

#endif
