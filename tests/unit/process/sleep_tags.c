/* What bears a tag is apart from all else, and may be discarded by a process that falls asleep
 * (core/process/context.h). */
#include <criterion/criterion.h>

#include "core/process/context.h"
#include "core/process/own.h"
#include "tests/unit/process/sleeping.h"

static CUdeviceptr tagged(struct fixture *f, const char *tag, size_t size)
{
    CUdeviceptr address;

    gs_core_tag(tag);
    address = must_alloc(f, size);
    gs_core_tag("");
    return address;
}

static unsigned tag_at(struct fixture *f, CUdeviceptr address)
{
    struct gs_arena *arena = fixture_lock_pool(f, address);
    const unsigned tag = arena->tag;

    gs_latch_release(&arena->lock);
    return tag;
}

static bool goes_without(struct fixture *f, const char *tag, struct gs_sleep_why *why)
{
    return gs_core_sleep(f->core, NULL, tag, UINT64_MAX, why);
}

Test(sleep_tags, what_bears_the_tag_is_not_kept, .timeout = 60)
{
    static const size_t sizes[] = {512, 70000, 3 * MIB, 40 * MIB};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    CUdeviceptr kept[SIZES], kv[SIZES], other;
    struct gs_sleep_why why;
    struct fixture f;

    sleeping_start(&f, "1G");
    for (unsigned i = 0; i < SIZES; i++) {
        kept[i] = must_alloc(&f, sizes[i]);
        kv[i] = tagged(&f, "kv", sizes[i]);
        fill(kept[i], sizes[i], i);
        fill(kv[i], sizes[i], 50 + i);
        cr_assert_eq(tag_at(&f, kept[i]), 0);
        cr_assert_eq(tag_at(&f, kv[i]), gs_tag_find("kv", false));
    }
    other = tagged(&f, "other", 5 * MIB);
    fill(other, 5 * MIB, 99);
    cr_assert_not(goes_without(&f, "kw", &why));
    cr_assert_eq(why.error, ENOENT);
    cr_assert(strstr(why.text, "'kw'"), "%s", why.text);
    cr_assert(goes_without(&f, "kv", &why), "%s", why.text);
    cr_assert_eq(device_bytes(), 0);
    cr_assert_lt(asleep(&f).copied, 50 * MIB);
    cr_assert_gt(asleep(&f).away, 90 * MIB);
    cr_assert(comes(&f, &why), "%s", why.text);
    for (unsigned i = 0; i < SIZES; i++) {
        cr_assert(is_filled(kept[i], sizes[i], i));
        cr_assert_not(is_filled(kv[i], sizes[i], 50 + i));
        fill(kv[i], sizes[i], 60 + i); /* it is there */
    }
    cr_assert(is_filled(other, 5 * MIB, 99));
    cr_assert(goes(&f, &why), "%s", why.text);
    cr_assert(comes(&f, &why), "%s", why.text);
    for (unsigned i = 0; i < SIZES; i++) {
        cr_assert(is_filled(kv[i], sizes[i], 60 + i), "another sleep keeps it");
        MUST(gs_core_free(f.core, kv[i]));
        MUST(gs_core_free(f.core, kept[i]));
    }
    MUST(gs_core_free(f.core, other));
    fixture_drain(&f);
    fixture_end(&f);
}

/* On a full GPU an allocation finds what is free in other arenas: not in those of another tag, from
 * where it might be discarded with the rest. */
Test(sleep_tags, what_is_free_of_one_tag_is_not_had_by_another, .timeout = 60)
{
    CUdeviceptr block, beside, left, small;
    struct fixture f;

    sleeping_start(&f, "256M");
    block = tagged(&f, "kv", 100 * MIB);
    beside = tagged(&f, "kv", 100 * MIB);
    MUST(gs_core_free(f.core, block));
    fixture_drain(&f);
    left = must_alloc(&f, 90 * MIB);
    cr_assert_eq(tag_at(&f, left), 0);
    MUST(gs_core_free(f.core, left));
    fixture_drain(&f);
    block = tagged(&f, "kv", 90 * MIB);
    cr_assert_eq(tag_at(&f, block), gs_tag_find("kv", false));
    small = tagged(&f, "kv", 512);
    cr_assert_eq(tag_at(&f, small), gs_tag_find("kv", false));
    MUST(gs_core_free(f.core, small));
    MUST(gs_core_free(f.core, block));
    MUST(gs_core_free(f.core, beside));
    fixture_drain(&f);
    fixture_end(&f);
}

Test(sleep_tags, the_first_labels_are_tags, .timeout = 60)
{
    char label[16];
    struct fixture f;
    CUdeviceptr block;

    sleeping_start(&f, "1G");
    for (unsigned i = 0; i < GS_TAGS; i++) {
        snprintf(label, sizeof label, "tag %u", i);
        block = tagged(&f, label, 512);
        cr_assert_eq(tag_at(&f, block), i + 1);
        MUST(gs_core_free(f.core, block));
    }
    block = tagged(&f, "one more", 512);
    cr_assert_eq(tag_at(&f, block), 0);
    cr_assert_eq(gs_tag_find("one more", false), 0);
    cr_assert_eq(gs_tag_find("tag 3", false), 4);
    MUST(gs_core_free(f.core, block));
    fixture_drain(&f);
    fixture_end(&f);
}

/* However short its name is. */
Test(sleep_tags, each_label_is_a_tag_of_its_own)
{
    unsigned tags[3];

    for (unsigned i = 0; i < 3; i++)
        tags[i] = gs_tag_find((const char *[]){"a", "b", "ab"}[i], true);
    cr_assert(tags[0] && tags[0] != tags[1] && tags[0] != tags[2] && tags[1] != tags[2]);
    cr_assert_eq(gs_tag_find("a", false), tags[0]);
    cr_assert_eq(gs_tag_find("b", false), tags[1]);
    cr_assert_eq(gs_tag_find("c", false), 0);
}
