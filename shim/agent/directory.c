/* Which implementation of the directory a place is of (directory.h). */
#include "shim/agent/directory.h"

#include <stdio.h>
#include <string.h>

#include "core/base/text.h"

struct directory *directory_open(const struct directory_options *options, char *ret_reason)
{
    static const struct {
        const char *begins;
        const struct directory_ops *ops;
    } all[] = {{"folder:/", &directory_folder},
               {"http://", &directory_etcd},
               {"https://", &directory_etcd}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strncmp(options->place, all[i].begins, strlen(all[i].begins)) == 0)
            return all[i].ops->open(options, ret_reason);
    }
    snprintf(ret_reason, DIRECTORY_REASON,
             "\"%s\" is no directory: give folder:/PATH, or URLs of etcd (https://HOST:2379,...)",
             options->place);
    return NULL;
}

void directory_name(const struct directory_key *key, const char *prefix, char between,
                    char ret_name[DIRECTORY_NAME])
{
    char id[2 * sizeof key->id + 1];

    gs_text_hex(key->id, sizeof key->id, id);
    snprintf(ret_name, DIRECTORY_NAME, "%s%s%c%s", prefix,
             key->kind == DIRECTORY_AGENTS ? "agents" : "exports", between, id);
}
