/* Locks that are waited with, rests, lines of the log and texts: what all other layers build on. */
#include <criterion/criterion.h>

#include "core/base/clock.h"
#include "core/base/lock.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "tests/system.h"

/* ---- Waiting --------------------------------------------------------------------------------- */

Test(wait, a_rest_is_not_shorter_than_asked, .timeout = 60)
{
    static const uint64_t rests[] = {1, 30 * GS_NS_PER_MS, GS_NS_PER_S + 30 * GS_NS_PER_MS};

    for (size_t i = 0; i < sizeof rests / sizeof *rests; i++) {
        uint64_t began = gs_now_ns();

        gs_rest_ns(rests[i]);
        cr_assert_geq(gs_now_ns() - began, rests[i]);
    }
}

static struct gs_lock lock;
static struct gs_cond cond;
static unsigned waiting, woken; /* by the lock */
static bool go;

static void make(void)
{
    gs_lock_init(&lock, GS_RANK_ARENA);
    gs_cond_init(&cond);
}

TestSuite(wait, .init = make, .timeout = 60);

/* By the clock of gs_now_ns, whatever the time of day is. */
Test(wait, a_wait_runs_out_when_its_time_has_come_and_not_before)
{
    static const uint64_t waits[] = {0, 20 * GS_NS_PER_MS, GS_NS_PER_S + 20 * GS_NS_PER_MS};

    gs_lock_take(&lock);
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        uint64_t until = gs_now_ns() + waits[i];
        unsigned late = 0; /* woken of itself, when its time had come */

        while (gs_cond_wait_until(&cond, &lock, until))
            cr_assert_lt(late += gs_now_ns() >= until, 1000);
        cr_assert_geq(gs_now_ns(), until);
    }
    gs_lock_release(&lock);
}

static void *wait_to_go(void *arg)
{
    uint64_t until = gs_now_ns() + 40 * GS_NS_PER_S;
    bool in_time = true;

    gs_lock_take(&lock);
    waiting++;
    while (!go && in_time)
        in_time = gs_cond_wait_until(&cond, &lock, until);
    woken += in_time;
    gs_lock_release(&lock);
    return NULL;
}

Test(wait, all_that_wait_are_woken)
{
    pthread_t threads[8];
    unsigned count = 0;

    for (int i = 0; i < 8; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, wait_to_go, NULL), 0);
    while (count < 8) {
        gs_yield();
        gs_lock_take(&lock);
        count = waiting;
        gs_lock_release(&lock);
    }
    gs_lock_take(&lock);
    go = true;
    gs_cond_wake_all(&cond);
    gs_lock_release(&lock);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(woken, 8);
}

/* ---- Lines of the log ------------------------------------------------------------------------ */

static enum gs_log_level line_level;
static const void *line_place;
static char line_text[600];
static unsigned line_count;

static void keep_line(enum gs_log_level level, const void *place, const char *text)
{
    line_level = level;
    line_place = place;
    line_count++;
    snprintf(line_text, sizeof line_text, "%s", text);
    errno = 1;
}

Test(line, each_comes_with_its_level_and_place_and_leaves_errno_alone, .timeout = 60)
{
    int level = GS_LOG_INFO;
    const struct gs_log log = {.level = &level, .line = keep_line};
    const void *first;

    errno = 77;
    gs_log_line(&log, GS_LOG_INFO, "number %d", 5);
    cr_assert_str_eq(line_text, "number 5");
    cr_assert_eq(line_level, GS_LOG_INFO);
    first = line_place;
    gs_log_line(&log, GS_LOG_ERROR, "another, %s", "too");
    cr_assert_str_eq(line_text, "another, too");
    cr_assert_eq(line_level, GS_LOG_ERROR);
    cr_assert_neq(line_place, first, "what is repeated at one place is not another's");
    gs_log_line(&log, GS_LOG_DEBUG, "nobody wants it");
    cr_assert_eq(line_count, 2);
    cr_assert_eq(errno, 77);
}

/* ---- Texts ----------------------------------------------------------------------------------- */

/* One that just fits, one byte more, and more after it. */
Test(text, what_does_not_fit_is_cut_and_said_to_be, .timeout = 60)
{
    static const char *const pieces[] = {"1234567", "12345678", "123456789", "1234567890123456"};

    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        char bytes[8 + 1] = "xxxxxxxx";
        struct gs_text text = {.bytes = bytes, .size = 8};
        size_t fits = strlen(pieces[i]) < 7 ? strlen(pieces[i]) : 7;

        gs_text_add(&text, "%s", pieces[i]);
        cr_assert_eq(text.length, fits);
        cr_assert_eq(strlen(bytes), fits);
        cr_assert_eq(text.cut, i > 0, "%s", pieces[i]);
        gs_text_add(&text, "%s", "");
        cr_assert_eq(text.cut, i > 0);
        gs_text_add(&text, "%c", 'y');
        cr_assert(text.cut);
        cr_assert_str_eq(bytes, "1234567");
    }
}

Test(text, every_byte_has_its_two_digits, .timeout = 60)
{
    unsigned char bytes[256];
    char digits[513], expected[3];

    for (int i = 0; i < 256; i++)
        bytes[i] = (unsigned char)i;
    gs_text_hex(bytes, sizeof bytes, digits);
    for (int i = 0; i < 256; i++) {
        snprintf(expected, sizeof expected, "%02x", (unsigned)i);
        cr_assert_eq(memcmp(digits + (size_t)2 * (size_t)i, expected, 2), 0);
    }
    cr_assert_eq(digits[512], 0);
}
