/*
 * The cache of registrations by itself, over a device of counters: what is found again, what is
 * given up when, and in which order. Threads against each other are in race_registrations.c, but
 * for those that have to come in one order.
 */
#include <criterion/criterion.h>

#include "core/regcache/regcache.h"
#include "tests/system.h"

#define KIB       ((uint64_t)1 << 10)
#define MIB       ((uint64_t)1 << 20)
#define AT        (UINT64_C(0x7f0000000000))
#define PINS_MOST 64

static struct gs_regcache *cache;
static unsigned pins, unpins, announced, warnings;
static unsigned room = PINS_MOST; /* how many the device holds */
static int full_error = ENOMEM, pin_error, unpin_error;

/* What is pinned: by number, from 1. */
static struct pinned {
    uint64_t base, end;
    bool live;
} pinned[PINS_MOST + 1];

static int pin(const struct gs_reg_key *key, uint64_t base, size_t size, void *arg,
               void **ret_handle)
{
    if (pin_error)
        return pin_error;
    if (pins - unpins >= room)
        return full_error;
    cr_assert_lt(pins, PINS_MOST);
    if (key->backend->refuses)
        for (unsigned i = 1; i <= pins; i++)
            if (pinned[i].live && pinned[i].base < base + size && base < pinned[i].end)
                return EEXIST;
    pins++;
    pinned[pins] = (struct pinned){base, base + size, true};
    *ret_handle = &pinned[pins];
    return 0;
}

/* What a device's library does as it ends a registration: gives memory back itself, say. */
static void (*as_one_ends)(void);

static int unpin(const struct gs_reg_key *key, void *handle)
{
    struct pinned *which = handle;

    if (unpin_error)
        return unpin_error;
    if (as_one_ends)
        as_one_ends();
    cr_assert(which->live);
    which->live = false;
    unpins++;
    return 0;
}

static const struct gs_reg_backend lent = {.name = "lent",
                                           .lends = true,
                                           .pin = pin,
                                           .unpin = unpin};
static const struct gs_reg_backend shared = {.name = "shared", .pin = pin, .unpin = unpin};
static const struct gs_reg_backend strict = {.name = "strict",
                                             .refuses = true,
                                             .pin = pin,
                                             .unpin = unpin};

static void released(void *arg, uint64_t base, size_t size)
{
    announced++;
}

static void line(enum gs_log_level level, const void *place, const char *text)
{
    warnings += level == GS_LOG_WARNING;
}

static void start(uint64_t count, uint64_t bytes)
{
    const struct gs_regcache_options options = {.count = count, .bytes = bytes};
    const struct gs_regcache_events events = {.released = released};
    const struct gs_log log = {.line = line};

    cr_assert_eq(gs_regcache_create(&options, &events, &log, &cache), GS_OK);
}

static void setup(void)
{
    start(1024, UINT64_MAX);
}

static void teardown(void)
{
    gs_regcache_destroy(cache);
}

static void start_anew(uint64_t count, uint64_t bytes)
{
    teardown();
    start(count, bytes);
}

TestSuite(cache, .init = setup, .fini = teardown, .timeout = 60);

static struct gs_reg_request request(const struct gs_reg_backend *backend, uint64_t base,
                                     size_t size)
{
    return (struct gs_reg_request){.key = {.backend = backend, .domain = 1},
                                   .base = base,
                                   .size = size,
                                   .keep = true,
                                   .cover = base,
                                   .cover_size = size};
}

/* In use; NULL with errno where the device refuses. */
static struct gs_reg *take(const struct gs_reg_request *wanted)
{
    struct gs_reg *reg;
    bool hit;

    cr_assert_eq(gs_regcache_begin(cache, wanted, &reg, &hit), GS_OK);
    errno = hit ? 0 : gs_regcache_complete(cache, reg, NULL);
    return errno ? NULL : reg;
}

static struct gs_reg *take_range(const struct gs_reg_backend *backend, uint64_t base, size_t size)
{
    const struct gs_reg_request wanted = request(backend, base, size);

    return take(&wanted);
}

static void give(struct gs_reg *reg)
{
    cr_assert_eq(gs_regcache_release(cache, reg), 0);
}

static void use_once(const struct gs_reg_backend *backend, uint64_t base, size_t size)
{
    struct gs_reg *reg = take_range(backend, base, size);

    cr_assert_not_null(reg);
    give(reg);
}

static struct gs_regcache_stats stats(void)
{
    struct gs_regcache_stats now;

    gs_regcache_stats(cache, &now);
    return now;
}

/* Whether that is kept: asked without a pin. */
static bool is_kept(const struct gs_reg_request *wanted)
{
    struct gs_reg *reg = gs_regcache_hit(cache, wanted);

    if (reg)
        give(reg);
    return reg != NULL;
}

static bool is_kept_at(uint64_t base, size_t size)
{
    const struct gs_reg_request wanted = request(&lent, base, size);

    return is_kept(&wanted);
}

/* ---- What is found again ------------------------------------------------------------------- */

Test(cache, a_range_within_what_is_kept_is_found)
{
    use_once(&lent, AT, MIB);
    use_once(&lent, AT + 64 * KIB, 64 * KIB);
    use_once(&lent, AT, MIB);
    use_once(&lent, AT + MIB - 1, 1);
    cr_assert_eq(pins, 1);
    cr_assert_eq(stats().hits, 3);
    cr_assert_eq(stats().misses, 1);
    use_once(&lent, AT + MIB - 1, 2); /* one byte beyond */
    cr_assert_eq(pins, 2);
}

Test(cache, what_lies_between_two_is_made_with_both)
{
    use_once(&lent, AT, MIB);
    use_once(&lent, AT + 3 * MIB / 2, MIB);
    use_once(&lent, AT + MIB / 2, 3 * MIB / 2);
    cr_assert_eq(pins - unpins, 1);
    cr_assert(is_kept_at(AT, 5 * MIB / 2));
}

static unsigned refusals;

static void drain_all(void)
{
    refusals += !gs_regcache_drain(cache, AT, 4 * MIB);
}

Test(cache, what_the_thread_itself_is_ending_is_not_waited_for)
{
    use_once(&lent, AT, MIB);
    use_once(&lent, AT + 3 * MIB, MIB);
    as_one_ends = drain_all;
    cr_assert(gs_regcache_drain(cache, AT, 4 * MIB));
    as_one_ends = NULL;
    cr_assert_eq(refusals, 2);
    use_once(&lent, AT, MIB);
}

static bool tell(const struct gs_regcache_info *info, void *ret_told)
{
    static struct gs_regcache_stats now;
    *(bool *)ret_told = gs_regcache_try_stats(cache, &now);
    return false;
}

Test(cache, who_does_not_wait_is_told_that_there_are_no_figures)
{
    struct gs_regcache_stats now;
    bool told = true;

    use_once(&lent, AT, MIB);
    gs_regcache_flush(cache, tell, &told);
    cr_assert_not(told);
    cr_assert(gs_regcache_try_stats(cache, &now) && now.misses == 1);
}

/* By what is registered, or it would not come to an end. */
Test(cache, all_addresses_at_once_are_looked_through)
{
    use_once(&lent, AT, MIB);
    cr_assert(gs_regcache_drain(cache, 0, SIZE_MAX / 2));
    cr_assert_eq(pins - unpins, 0);
}

Test(cache, what_differs_in_anything_is_another)
{
    struct gs_reg_request wanted = request(&lent, AT, MIB), other;

    use_once(&lent, AT, MIB);
    cr_assert(is_kept(&wanted));
    other = wanted, other.key.domain = 2;
    cr_assert_not(is_kept(&other));
    other = wanted, other.key.access = 1;
    cr_assert_not(is_kept(&other));
    other = wanted, other.key.shift = 4096;
    cr_assert_not(is_kept(&other));
    other = wanted, other.key.backend = &shared;
    cr_assert_not(is_kept(&other));
    other = wanted, other.id = 5;
    cr_assert_not(is_kept(&other));
    other = wanted, other.exact = true;
    cr_assert(is_kept(&other));
    other.size -= 512;
    cr_assert_not(is_kept(&other));
    other = request(&lent, AT + 512, MIB - 512), other.exact = true;
    cr_assert_not(is_kept(&other));
}

Test(cache, what_is_lent_has_one_user_and_what_is_shared_many)
{
    struct gs_reg *first = take_range(&lent, AT, MIB), *second = take_range(&lent, AT, MIB);

    cr_assert_neq(first, second);
    cr_assert_eq(pins, 2);
    give(first);
    give(second);
    first = take_range(&shared, AT, MIB);
    second = take_range(&shared, AT, MIB);
    cr_assert_eq(first, second);
    cr_assert_eq(pins, 3);
    cr_assert(gs_regcache_in_use(cache, AT, 1));
    give(first);
    cr_assert(gs_regcache_in_use(cache, AT, 1));
    give(second);
    cr_assert_not(gs_regcache_in_use(cache, AT, 1));
    cr_assert_eq(unpins, 0);
}

Test(cache, a_registration_in_use_is_found_by_its_handle)
{
    struct gs_reg *reg = take_range(&lent, AT, MIB);
    void *handle = gs_reg_handle(reg);

    cr_assert_eq(gs_regcache_find(cache, &lent, handle), reg);
    cr_assert_null(gs_regcache_find(cache, &shared, handle));
    cr_assert_null(gs_regcache_find(cache, &lent, &pins));
    give(reg);
    cr_assert_null(gs_regcache_find(cache, &lent, handle));
    cr_assert(gs_regcache_knows(cache, &lent, handle));
    cr_assert(gs_regcache_drain(cache, AT, MIB));
    cr_assert_not(gs_regcache_knows(cache, &lent, handle));
}

Test(cache, many_of_all_sizes_are_found_and_go)
{
    for (unsigned i = 0; i < 40; i++)
        use_once(&lent, AT + i * 64 * MIB, (64 * KIB) << i % 10);
    for (unsigned i = 0; i < 40; i++) {
        cr_assert(is_kept_at(AT + i * 64 * MIB, (64 * KIB) << i % 10));
        cr_assert(is_kept_at(AT + i * 64 * MIB + ((64 * KIB) << i % 10) - 512, 512));
        cr_assert_not(is_kept_at(AT + i * 64 * MIB, ((64 * KIB) << i % 10) + 1));
    }
    cr_assert_eq(pins, 40);
    for (unsigned i = 0; i < 40; i++) {
        cr_assert(gs_regcache_drain(cache, AT + i * 64 * MIB, 64 * MIB));
        cr_assert_eq(unpins, i + 1);
    }
    cr_assert_eq(stats().bytes, 0);
    cr_assert(gs_regcache_empty(cache));
}

/* ---- What is pinned ------------------------------------------------------------------------ */

Test(cache, what_overlaps_is_pinned_as_one_while_that_is_no_more_than_twice)
{
    use_once(&lent, AT, MIB);
    use_once(&lent, AT + 512 * KIB, MIB);
    cr_assert_eq(pins, 2);
    cr_assert(is_kept_at(AT, MIB + 512 * KIB));
    cr_assert_eq(unpins, 1, "the first is of no use any more");
    cr_assert_eq(stats().merges, 1);
    use_once(&lent, AT + MIB + 256 * KIB, 512 * KIB); /* with the other: more than twice as large */
    cr_assert_eq(pins, 3);
    cr_assert_not(is_kept_at(AT, MIB + 768 * KIB));
    cr_assert_eq(unpins, 1);
}

Test(cache, what_is_exact_or_of_other_access_is_not_pinned_with_another)
{
    struct gs_reg_request exact = request(&lent, AT, MIB), other = request(&lent, AT, MIB);

    exact.exact = true;
    give(take(&exact));
    other.key.access = 1;
    give(take(&other));
    use_once(&lent, AT + 512 * KIB, MIB);
    cr_assert_eq(pins, 3);
    cr_assert_eq(unpins, 0);
    cr_assert_not(is_kept_at(AT, MIB + 512 * KIB));
    cr_assert(is_kept(&exact));
    cr_assert(is_kept(&other));
}

Test(cache, what_is_in_use_is_not_given_up_for_a_larger_one)
{
    struct gs_reg *reg = take_range(&lent, AT, MIB);

    use_once(&lent, AT, 2 * MIB);
    cr_assert_eq(unpins, 0);
    give(reg);
    cr_assert_eq(stats().entries, 2);
}

Test(cache, a_full_device_gets_room_from_what_is_kept)
{
    const int errors[] = {ENOMEM, ENOSPC};

    for (unsigned i = 0; i < 2; i++) {
        start_anew(1024, UINT64_MAX);
        pins = unpins = 0;
        room = 2;
        full_error = errors[i];
        use_once(&lent, AT, MIB);
        use_once(&lent, AT + 2 * MIB, MIB);
        use_once(&lent, AT + 4 * MIB, MIB);
        cr_assert_eq(unpins, 2, "error %d", errors[i]);
        cr_assert_eq(stats().evictions, 2);
    }
}

Test(cache, another_error_is_the_callers_and_nothing_is_given_up)
{
    use_once(&lent, AT, MIB);
    pin_error = EPERM;
    cr_assert_null(take_range(&lent, AT + 2 * MIB, MIB));
    cr_assert_eq(errno, EPERM);
    cr_assert_eq(unpins, 0);
    cr_assert_eq(stats().failures, 1);
    cr_assert_eq(stats().entries, 1);
    pin_error = 0;
    use_once(&lent, AT + 2 * MIB, MIB);
}

Test(cache, a_device_that_refuses_overlaps_gets_what_is_idle_out_of_the_way)
{
    struct gs_reg *reg;

    use_once(&strict, AT, MIB);
    use_once(&strict, AT + 3 * MIB, MIB);
    reg = take_range(&strict, AT + 512 * KIB, 8 * MIB);
    cr_assert_not_null(reg);
    cr_assert_eq(unpins, 2);
    cr_assert_null(take_range(&strict, AT + 8 * MIB, MIB));
    cr_assert_eq(errno, EEXIST, "what is in use stays");
    give(reg);
}

/* ---- What is given up ---------------------------------------------------------------------- */

Test(cache, no_more_are_kept_than_the_limit)
{
    start_anew(3, UINT64_MAX);
    for (unsigned i = 0; i < 8; i++) {
        use_once(&lent, AT + i * 4 * MIB, MIB);
        cr_assert_leq(pins - unpins, 3);
    }
    cr_assert_eq(unpins, 5);
    cr_assert_eq(stats().entries, 3);
    cr_assert_eq(stats().evictions, 5);
}

Test(cache, no_more_bytes_are_kept_than_the_limit)
{
    start_anew(1024, 4 * MIB);
    for (unsigned i = 0; i < 8; i++)
        use_once(&lent, AT + i * 4 * MIB, 2 * MIB);
    cr_assert_eq(unpins, 6);
    cr_assert_eq(stats().bytes, 4 * MIB);
    gs_regcache_limit_bytes(cache, 8 * MIB); /* lower only */
    use_once(&lent, AT + 64 * MIB, 2 * MIB);
    cr_assert_eq(stats().bytes, 4 * MIB);
    gs_regcache_limit_bytes(cache, 2 * MIB);
    use_once(&lent, AT + 128 * MIB, 2 * MIB);
    cr_assert_eq(stats().bytes, 2 * MIB);
}

Test(cache, a_limit_of_none_keeps_none)
{
    start_anew(0, UINT64_MAX);
    use_once(&lent, AT, MIB);
    cr_assert_eq(unpins, 1);
    cr_assert(gs_regcache_empty(cache));
}

Test(cache, the_least_recently_used_goes_first)
{
    start_anew(3, UINT64_MAX);
    for (uint64_t i = 0; i < 3; i++)
        use_once(&lent, AT + i * 4 * MIB, MIB);
    cr_assert(is_kept_at(AT, MIB)); /* which uses it */
    use_once(&lent, AT + 16 * MIB, MIB);
    cr_assert(pinned[1].live, "it was used after the others");
    cr_assert_not(pinned[2].live);
    use_once(&lent, AT + 20 * MIB, MIB);
    cr_assert_not(pinned[3].live);
    cr_assert(pinned[1].live);
    use_once(&lent, AT + 24 * MIB, MIB); /* of those two the stamps are the same */
    cr_assert_neq(pinned[1].live, pinned[4].live);
    cr_assert(pinned[5].live);
}

Test(cache, what_is_in_use_is_not_given_up)
{
    struct gs_reg *reg[3];

    start_anew(2, UINT64_MAX);
    for (uint64_t i = 0; i < 3; i++)
        reg[i] = take_range(&lent, AT + i * 4 * MIB, MIB);
    cr_assert_eq(unpins, 0);
    give(reg[2]);
    cr_assert_eq(unpins, 1, "the limit holds as soon as it can");
    give(reg[0]);
    give(reg[1]);
    cr_assert_eq(unpins, 1);
}

Test(cache, what_is_not_to_be_kept_ends_with_its_last_use)
{
    struct gs_reg_request once = request(&shared, AT, MIB);
    struct gs_reg *first, *second;

    once.keep = false;
    first = take(&once);
    second = take(&once);
    cr_assert_eq(first, second);
    give(first);
    cr_assert_eq(unpins, 0);
    give(second);
    cr_assert_eq(unpins, 1);
    cr_assert(gs_regcache_empty(cache));
    first = take_range(&lent, AT, MIB);
    gs_reg_drop(first); /* told during the use */
    give(first);
    cr_assert_eq(unpins, 2);
}

Test(cache, one_that_cannot_be_undone_is_in_use_still_and_says_why)
{
    struct gs_reg_request once = request(&lent, AT, MIB);
    struct gs_reg *reg;

    once.keep = false;
    reg = take(&once);
    unpin_error = EBUSY;
    cr_assert_eq(gs_regcache_release(cache, reg), EBUSY);
    cr_assert(gs_regcache_in_use(cache, AT, MIB));
    unpin_error = 0;
    give(reg);
    cr_assert_eq(unpins, 1);
}

Test(cache, one_that_cannot_be_undone_when_its_memory_goes_keeps_it)
{
    use_once(&lent, AT, MIB);
    unpin_error = EIO;
    cr_assert_not(gs_regcache_drain(cache, AT, MIB));
    cr_assert_eq(warnings, 1);
    unpin_error = 0;
    cr_assert(gs_regcache_in_use(cache, AT, MIB), "for ever");
    cr_assert_not(gs_regcache_drain(cache, AT, MIB));
    cr_assert_eq(warnings, 1);
    gs_regcache_forget(cache, gs_regcache_find(cache, &lent, &pinned[1]));
}

/* ---- The memory goes ----------------------------------------------------------------------- */

Test(cache, of_what_is_lent_only_the_part_that_is_used_is_in_use)
{
    struct gs_reg_request part = request(&lent, AT + 128 * KIB, 64 * KIB);
    struct gs_reg *reg;

    part.cover = AT;
    part.cover_size = MIB;
    reg = take(&part);
    cr_assert_eq(pinned[1].end - pinned[1].base, MIB);
    cr_assert_eq(gs_reg_view(reg), AT + 128 * KIB);
    cr_assert_not(gs_regcache_in_use(cache, AT, 128 * KIB));
    cr_assert_not(gs_regcache_in_use(cache, AT + 192 * KIB, MIB - 192 * KIB));
    give(reg);
    cr_assert_eq(announced, 0, "nobody was told that it is in use");
    reg = take(&part);
    cr_assert(gs_regcache_in_use(cache, AT + 192 * KIB - 1, 1));
    cr_assert(gs_regcache_in_use(cache, AT + 128 * KIB, 1));
    give(reg);
    cr_assert_eq(announced, 1);
    cr_assert_not(gs_regcache_in_use(cache, AT, MIB));
}

static sem_t held, on;
static bool asked_in_use;

/* Called with the cache's lock held. */
static bool hold_up(const struct gs_regcache_info *info, void *arg)
{
    sem_post(&held);
    sem_wait(&on);
    return false;
}

static void *hold_lock(void *arg)
{
    gs_regcache_flush(cache, hold_up, NULL);
    return NULL;
}

static void *ask(void *arg)
{
    asked_in_use = gs_regcache_in_use(cache, AT, MIB);
    return NULL;
}

static void *end_use(void *reg)
{
    give(reg);
    return NULL;
}

/* Who asks and who ends the use wait for the lock, and get it in the order in which they came. */
Test(cache, who_finds_one_in_use_that_just_ends_is_told)
{
    void *(*const bodies[])(void *) = {hold_lock, ask, end_use};
    struct gs_reg_request once = request(&lent, AT, MIB);
    struct gs_reg *reg;
    pthread_t threads[3];

    once.keep = false;
    reg = take(&once);
    cr_assert(sem_init(&held, 0, 0) == 0 && sem_init(&on, 0, 0) == 0);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, bodies[i], reg), 0);
        if (i == 0)
            sem_wait(&held);
        else
            usleep(50000); /* until it waits; else less is shown */
    }
    sem_post(&on);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(unpins, 1);
    cr_assert(announced == 1 || !asked_in_use);
}

Test(cache, what_is_invalidated_is_not_found_and_goes)
{
    struct gs_regcache_info info[2];

    use_once(&lent, AT, MIB);
    use_once(&lent, AT + 2 * MIB, MIB);
    cr_assert(gs_regcache_invalidate(cache, AT, 2 * MIB));
    cr_assert_eq(gs_regcache_list(cache, info, 2), 2);
    cr_assert_eq(info[0].uses + info[1].uses, 0, "nobody uses it");
    cr_assert_not(is_kept_at(AT, MIB));
    cr_assert(is_kept_at(AT + 2 * MIB, MIB));
    cr_assert_eq(unpins, 0, "no device is called there");
    cr_assert(gs_regcache_drain(cache, AT, 2 * MIB));
    cr_assert_eq(unpins, 1);
    cr_assert_eq(stats().invalidations, 1);
}

Test(cache, where_any_part_is_in_use_nothing_is_invalidated)
{
    struct gs_reg *reg = take_range(&lent, AT + MIB, MIB);

    use_once(&lent, AT + 4 * MIB, MIB);
    cr_assert_not(gs_regcache_invalidate(cache, AT, 8 * MIB));
    cr_assert(is_kept_at(AT + 4 * MIB, MIB));
    cr_assert_not(gs_regcache_drain(cache, AT, 2 * MIB));
    give(reg);
    cr_assert_eq(announced, 1, "its end was waited for");
    cr_assert(gs_regcache_drain(cache, AT, 8 * MIB));
    cr_assert_eq(unpins, 2);
}

static bool is_second_domain(const struct gs_regcache_info *info, void *arg)
{
    return info->key.domain == 2;
}

Test(cache, a_domain_that_goes_takes_its_own)
{
    struct gs_reg_request second = request(&lent, AT, MIB);
    struct gs_reg *reg;

    second.key.domain = 2;
    use_once(&lent, AT, MIB);
    give(take(&second));
    second.base = second.cover = AT + 4 * MIB;
    reg = take(&second);
    gs_regcache_flush(cache, is_second_domain, NULL);
    cr_assert_eq(unpins, 1);
    cr_assert_eq(stats().invalidations, 1);
    cr_assert(is_kept_at(AT, MIB));
    give(reg);
    cr_assert_eq(unpins, 2, "it is not kept any more");
}

Test(cache, one_whose_device_went_is_abandoned_without_a_call)
{
    struct gs_reg_request second = request(&lent, AT, MIB);
    struct gs_reg *other = take_range(&lent, AT + 4 * MIB, MIB);

    second.key.domain = 2;
    take(&second);
    cr_assert(gs_regcache_in_use(cache, AT, MIB));
    gs_regcache_abandon(cache, is_second_domain, NULL);
    cr_assert_eq(announced, 1);
    cr_assert_eq(unpins, 0);
    cr_assert_not(gs_regcache_in_use(cache, AT, MIB));
    cr_assert(gs_regcache_in_use(cache, AT + 4 * MIB, MIB));
    give(other);
}

Test(cache, one_that_changes_its_range_is_known_by_the_new_one_and_not_kept)
{
    struct gs_reg_request moved = request(&lent, AT + 8 * MIB, MIB);
    struct gs_reg *reg = take_range(&lent, AT, MIB);

    gs_regcache_change(cache, reg, &moved);
    cr_assert_not(gs_regcache_in_use(cache, AT, MIB));
    cr_assert(gs_regcache_in_use(cache, AT + 8 * MIB, MIB));
    cr_assert_not(gs_reg_kept(reg));
    give(reg);
    cr_assert_eq(unpins, 1);
    cr_assert_not(is_kept(&moved));
}

/* What is used no more still counts as used. */
Test(cache, hits_are_counted_when_their_entry_has_gone)
{
    for (unsigned i = 1; i <= 3; i++) {
        use_once(&lent, AT, MIB);
        cr_assert(is_kept_at(AT, MIB));
        cr_assert_eq(stats().hits, i);
        cr_assert(gs_regcache_drain(cache, AT, MIB));
        cr_assert_eq(stats().hits, i);
    }
}

Test(cache, a_lower_limit_holds_with_the_next_release)
{
    struct gs_reg *reg[4];

    for (uint64_t i = 0; i < 4; i++)
        use_once(&lent, AT + i * 4 * MIB, 2 * MIB);
    for (uint64_t i = 0; i < 4; i++)
        reg[i] = take_range(&lent, AT + i * 4 * MIB, 2 * MIB);
    gs_regcache_limit_bytes(cache, 4 * MIB);
    for (uint64_t i = 0; i < 4; i++)
        give(reg[i]);
    cr_assert_eq(stats().bytes, 4 * MIB);
}

/* From its begin to its end, whether it is in the device's hands or in its user's. */
Test(cache, each_in_use_is_counted_once)
{
    const struct gs_reg_request wanted = request(&shared, AT, MIB);
    struct gs_reg *reg, *again;
    bool hit;

    cr_assert_eq(gs_regcache_begin(cache, &wanted, &reg, &hit), GS_OK);
    cr_assert_eq(stats().in_use, 1);
    cr_assert_eq(gs_regcache_complete(cache, reg, NULL), 0);
    cr_assert_eq(stats().in_use, 1);
    again = take(&wanted);
    cr_assert_eq(stats().in_use, 1);
    give(again);
    cr_assert_eq(stats().in_use, 1);
    give(reg);
    cr_assert_eq(stats().in_use, 0);
}

Test(cache, a_list_has_what_there_is_room_for)
{
    struct gs_regcache_info info[4];

    for (uint64_t i = 0; i < 3; i++)
        use_once(&lent, AT + i * 4 * MIB, MIB);
    for (size_t size = 0; size <= 4; size++) {
        memset(info, 0xa5, sizeof info);
        cr_assert_eq(gs_regcache_list(cache, info, size), 3);
        for (size_t i = 0; i < 4; i++)
            cr_assert_eq(info[i].size == MIB, i < size && i < 3, "%zu of %zu", i, size);
    }
}

Test(cache, who_pins_what_is_listed)
{
    struct gs_regcache_info info[2];
    struct gs_reg *reg = take_range(&shared, AT, MIB);

    take_range(&shared, AT, MIB);
    use_once(&lent, AT + 4 * MIB, 2 * MIB);
    cr_assert(is_kept_at(AT + 4 * MIB, MIB));
    cr_assert_eq(gs_regcache_list(cache, info, 1), 2);
    cr_assert_eq(gs_regcache_list(cache, info, 2), 2);
    cr_assert_eq(info[0].base, AT);
    cr_assert_eq(info[0].uses, 2);
    cr_assert_eq(info[0].hits, 1);
    cr_assert(info[0].keep);
    cr_assert_eq(info[1].size, 2 * MIB);
    cr_assert_eq(info[1].uses, 0);
    cr_assert_eq(info[1].hits, 1);
    cr_assert_eq(stats().in_use, 1);
    cr_assert_eq(stats().bytes, 3 * MIB);
    give(reg);
    give(reg);
}
