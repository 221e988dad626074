/* A folder of a test's own (place.h). */
#include "place.h"
#include "tests/system.h"

#include <criterion/criterion.h>

char place[64];
char place_named[128], place_home[128], place_xdg[128];
char place_system[128], place_etc[128];
const char *const place_system_files[] = {place_system, place_etc, NULL};

void place_make(void)
{
    strcpy(place, "/tmp/gs-config-XXXXXX");
    cr_assert_not_null(mkdtemp(place));
    cr_assert_eq(chmod(place, 0755), 0);
    snprintf(place_named, sizeof place_named, "GPUSHIM_CONFIG=%s/named", place);
    snprintf(place_home, sizeof place_home, "HOME=%s", place);
    snprintf(place_xdg, sizeof place_xdg, "XDG_CONFIG_HOME=%s/xdg", place);
    snprintf(place_system, sizeof place_system, "%s/system", place);
    snprintf(place_etc, sizeof place_etc, "%s/etc", place);
}

void place_remove(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf %s", place);
    cr_assert_eq(system(command), 0);
}

const char *place_path(const char *name)
{
    static char path[192];

    snprintf(path, sizeof path, "%s/%s", place, name);
    return path;
}

void place_write(const char *name, const char *text, mode_t mode)
{
    FILE *file = fopen(place_path(name), "wb");

    cr_assert_not_null(file);
    fputs(text, file);
    cr_assert_eq(fchmod(fileno(file), mode), 0);
    cr_assert_eq(fclose(file), 0);
}
