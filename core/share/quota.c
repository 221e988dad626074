/* What each user takes (core/share/exporter.h): nobody takes all there is from the others. */
#include "core/share/exporter.h"

#include <stdlib.h>
#include <unistd.h>

struct gs_user *gs_user_of(struct gs_share *share, uid_t uid)
{
    struct gs_user *user;

    HASH_FIND(hh, share->users, &uid, sizeof uid, user);
    if (user)
        return user;
    user = calloc(1, sizeof *user);
    if (!user)
        return NULL;
    user->uid = uid;
    HASH_ADD(hh, share->users, uid, sizeof user->uid, user);
    if (user->hh.tbl)
        return user;
    free(user);
    return NULL;
}

void gs_user_reap(struct gs_share *share, struct gs_user *user)
{
    if (user->refs + user->clients + user->offers + user->chunks > 0)
        return;
    HASH_DEL(share->users, user);
    free(user);
}

bool gs_user_may(const struct gs_user *user, uint64_t has, uint64_t all, uint64_t most)
{
    uint64_t others = all > has ? all - has : 0;

    return user->uid == geteuid() || (others < most && has < (most - others + 1) / 2);
}
