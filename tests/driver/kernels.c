/*
 * The kernels that exist here, by the names that the tests' PTX text gives them; what one does is
 * defined for the whole launch, so the grid does not matter. Time passes asleep: the machine is
 * not the GPU's to heat.
 */
#include "internal.h"

#define PIECE_WORDS ((uint64_t)16 << 10)

static void sleep_until(uint64_t when)
{
    struct timespec until = {when / 1000000000u, when % 1000000000u};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

/* Calls `each` for pieces of an array of words that may be accessed so; false at a fault. */
static bool words_each(const struct sd_context *context, uint64_t ptr, uint64_t count,
                       enum sd_access access, void (*each)(uint32_t *, uint64_t, void *), void *arg)
{
    if (ptr % 4)
        return false;
    while (count) {
        uint64_t room, piece = count < PIECE_WORDS ? count : PIECE_WORDS;
        sd_touch_begin();
        room = sd_touch(context, ptr, access) / 4;
        piece = room < piece ? room : piece;
        each((uint32_t *)ptr, piece, arg);
        sd_touch_end();
        if (!piece)
            return false;
        ptr += piece * 4;
        count -= piece;
    }
    return true;
}

static void fill_piece(uint32_t *words, uint64_t count, void *arg)
{
    const uint32_t value = *(const uint32_t *)arg;

    for (uint64_t i = 0; i < count; i++)
        __atomic_store_n(&words[i], value, __ATOMIC_RELAXED);
}

struct counting {
    uint32_t value;
    uint32_t others;
};

static void count_piece(uint32_t *words, uint64_t count, void *arg)
{
    struct counting *counting = arg;

    for (uint64_t i = 0; i < count; i++)
        counting->others += __atomic_load_n(&words[i], __ATOMIC_RELAXED) != counting->value;
}

static void add_piece(uint32_t *words, uint64_t count, void *arg)
{
    if (count)
        __atomic_fetch_add(words, *(const uint32_t *)arg, __ATOMIC_RELAXED);
}

/* At most 10 s, as the kernels for real devices have it. */
static void spin_for(uint64_t ns)
{
    sleep_until(sd_now() + (ns < 10000000000u ? ns : 10000000000u));
}

/* spin(ns) */
static bool spin(const struct sd_context *context, const uint64_t *args)
{
    spin_for(args[0]);
    return true;
}

/* fill(ptr, value, count) */
static bool fill(const struct sd_context *context, const uint64_t *args)
{
    uint32_t value = args[1];

    return words_each(context, args[0], args[2], SD_ACCESS_WRITE, fill_piece, &value);
}

/* spin_fill(ptr, value, count, ns) */
static bool spin_fill(const struct sd_context *context, const uint64_t *args)
{
    spin_for(args[3]);
    return fill(context, args);
}

/* scribble(ptr, count, ns): at least once, and still at the end */
static bool scribble(const struct sd_context *context, const uint64_t *args)
{
    uint64_t end = sd_now() + args[2], now;
    uint32_t value = 0xDEADBEEFu;

    do {
        if (!words_each(context, args[0], args[1], SD_ACCESS_WRITE, fill_piece, &value))
            return false;
        now = sd_now();
        sleep_until(now + 100000 < end ? now + 100000 : end);
    } while (now < end);
    return true;
}

/* count_other(ptr, value, count, out) */
static bool count_other(const struct sd_context *context, const uint64_t *args)
{
    struct counting counting = {.value = args[1]};

    return words_each(context, args[0], args[2], SD_ACCESS_READ, count_piece, &counting) &&
           words_each(context, args[3], 1, SD_ACCESS_WRITE, add_piece, &counting.others);
}

/* copy_words(dst, src, count) */
static bool copy_words(const struct sd_context *context, const uint64_t *args)
{
    return sd_move(context, args[0], false, args[1], false, args[2] * 4);
}

static const struct sd_kernel kernels[] = {
    {"spin", {8}, spin},
    {"fill", {8, 4, 8}, fill},
    {"spin_fill", {8, 4, 8, 8}, spin_fill},
    {"scribble", {8, 8, 8}, scribble},
    {"count_other", {8, 4, 8, 8}, count_other},
    {"copy_words", {8, 8, 8}, copy_words},
};

const struct sd_kernel *sd_kernel_find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(kernels[i].name, name))
            return &kernels[i];
    return NULL;
}

CUresult sd_kernel_run(struct sd_context *context, const struct sd_work *work)
{
    return work->kernel.kernel->run(context, work->kernel.args) ? CUDA_SUCCESS
                                                                : CUDA_ERROR_ILLEGAL_ADDRESS;
}
