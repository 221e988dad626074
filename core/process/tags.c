/* Tags (core/process/context.h): small numbers for what programs call their memory. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/process/context.h"

static struct {
    pthread_mutex_t mutex;
    char labels[GS_TAGS][GS_TAG_SIZE]; /* that of the first tag first; "": none yet */
} tags = {.mutex = PTHREAD_MUTEX_INITIALIZER};

unsigned gs_tag_find(const char *label, bool makes)
{
    unsigned found = 0;

    if (!label[0])
        return 0;
    pthread_mutex_lock(&tags.mutex);
    for (unsigned i = 0; i < GS_TAGS && !found; i++) {
        if (makes && !tags.labels[i][0])
            snprintf(tags.labels[i], GS_TAG_SIZE, "%s", label);
        if (strcmp(tags.labels[i], label) == 0)
            found = i + 1;
    }
    pthread_mutex_unlock(&tags.mutex);
    return found;
}
