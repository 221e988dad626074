/* The shortest list of decisions after which a world fails: parts of it are left out as long as it
 * still does (delta debugging). What cannot be done without what was left out does nothing. */
#include "simulation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the same way. */
static bool fails(uint64_t seed, struct decisions *decisions, const char *rule)
{
    return !world_run(seed, 0, decisions, true) && world.rule == rule;
}

/* The list without `count` of them. */
static void without(const struct decisions *all, size_t at, size_t count, struct decisions *ret)
{
    memcpy(ret->list, all->list, at * sizeof *all->list);
    memcpy(ret->list + at, all->list + at + count, (all->count - at - count) * sizeof *all->list);
    ret->count = all->count - count;
}

void shrink(uint64_t seed, struct decisions *decisions)
{
    struct decisions shorter = {.list = malloc((decisions->count + 1) * sizeof *decisions->list)};
    const char *rule = world.rule;
    bool any = true;

    if (!shorter.list)
        return;
    for (size_t part = decisions->count / 2; part > 0; part = any && part == 1 ? 1 : part / 2) {
        any = false;
        for (size_t at = 0; at < decisions->count;) {
            size_t count = part < decisions->count - at ? part : decisions->count - at;

            without(decisions, at, count, &shorter);
            if (fails(seed, &shorter, rule)) {
                memcpy(decisions->list, shorter.list, shorter.count * sizeof *shorter.list);
                decisions->count = shorter.count;
                any = true;
            } else {
                at += count;
            }
        }
    }
    free(shorter.list);
}
