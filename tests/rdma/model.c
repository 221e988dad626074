/* tests/rdma/model.h */
#include "model.h"
#include "tests/system.h"

struct model_registration {
    struct model_registration *prev, *next;
    uint64_t base;
    size_t size;
    unsigned generation; /* of the chunk it was made over */
    bool dead;           /* its memory went, as memory of others may */
};

static struct {
    pthread_mutex_t mutex;
    struct model_registration *first;
    unsigned generation[MODEL_CHUNKS];
    unsigned fail, room, seed;
    struct model_counts counts;
} model = {.mutex = PTHREAD_MUTEX_INITIALIZER, .room = 1000000, .seed = 1};

static void wrong(const char *what)
{
    if (model.counts.wrong++ < 5)
        fprintf(stderr, "model: %s\n", what);
}

uint64_t model_address(unsigned chunk)
{
    return UINT64_C(0x7f0000000000) + chunk * MODEL_CHUNK;
}

static unsigned chunk_of(uint64_t address)
{
    return (unsigned)((address - model_address(0)) / MODEL_CHUNK);
}

static bool is_foreign(unsigned chunk)
{
    return chunk >= MODEL_CHUNKS - MODEL_FOREIGN;
}

uint64_t model_id(unsigned chunk)
{
    uint64_t id;

    pthread_mutex_lock(&model.mutex);
    id = (uint64_t)chunk << 32 | (model.generation[chunk] + 1);
    pthread_mutex_unlock(&model.mutex);
    return is_foreign(chunk) ? id : 0;
}

void model_fail_pins(unsigned fail)
{
    model.fail = fail;
}

void model_room(unsigned registrations)
{
    model.room = registrations;
}

int model_pin(uint64_t base, size_t size, struct model_registration **ret_registration)
{
    struct model_registration *r = calloc(1, sizeof *r);
    unsigned chunk = chunk_of(base);
    int error = 0;

    pthread_mutex_lock(&model.mutex);
    if (!size || chunk >= MODEL_CHUNKS || chunk_of(base + size - 1) != chunk)
        wrong("a pin leaves its chunk");
    if (model.fail && rand_r(&model.seed) % model.fail == 0)
        error = rand_r(&model.seed) % 2 ? EIO : ENOMEM;
    else if (model.counts.live >= model.room)
        error = ENOMEM;
    if (error) {
        model.counts.refused++;
        free(r);
    } else {
        *r = (struct model_registration){NULL, model.first, base, size, model.generation[chunk],
                                         false};
        if (model.first)
            model.first->prev = r;
        model.first = r;
        model.counts.pins++;
        model.counts.live++;
        model.counts.bytes += size;
        *ret_registration = r;
    }
    pthread_mutex_unlock(&model.mutex);
    return error;
}

int model_unpin(struct model_registration *r)
{
    bool known = false;

    pthread_mutex_lock(&model.mutex);
    for (struct model_registration *at = model.first; at && !known; at = at->next)
        known = at == r;
    if (!known) {
        wrong("a registration is undone that does not exist");
    } else {
        if (!r->dead && r->generation != model.generation[chunk_of(r->base)])
            wrong("a registration is undone after its memory went");
        if (r->prev)
            r->prev->next = r->next;
        else
            model.first = r->next;
        if (r->next)
            r->next->prev = r->prev;
        model.counts.unpins++;
        model.counts.live--;
        model.counts.bytes -= r->size;
        free(r);
    }
    pthread_mutex_unlock(&model.mutex);
    return 0;
}

void model_use(const struct model_registration *r, uint64_t base, size_t size)
{
    bool known = false;

    pthread_mutex_lock(&model.mutex);
    for (const struct model_registration *at = model.first; at && !known; at = at->next)
        known = at == r;
    if (!known)
        wrong("a registration is used that does not exist");
    else if (base < r->base || base + size > r->base + r->size)
        wrong("a registration is used beyond its range");
    else if (r->dead || r->generation != model.generation[chunk_of(base)])
        wrong("a registration is used of memory that has gone");
    pthread_mutex_unlock(&model.mutex);
}

void model_remap(unsigned chunk)
{
    pthread_mutex_lock(&model.mutex);
    for (struct model_registration *r = model.first; r; r = r->next) {
        if (chunk_of(r->base) != chunk || r->dead)
            continue;
        if (!is_foreign(chunk))
            wrong("memory went with a registration over it");
        r->dead = true;
    }
    model.generation[chunk]++;
    pthread_mutex_unlock(&model.mutex);
}

struct model_counts model_counts(void)
{
    struct model_counts counts;

    pthread_mutex_lock(&model.mutex);
    counts = model.counts;
    pthread_mutex_unlock(&model.mutex);
    return counts;
}
