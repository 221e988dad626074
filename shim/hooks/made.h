/*
 * Hooks that are made from rows of the table (shim/entry_points.h). A file of this folder makes those
 * of the calls that do what it is about: before it includes this, it has
 *
 *     #define GS_MAKES_FILLS GS_HERE
 *     #define GS_MAKE_FILLS(symbol, order, async, ...)
 *         GS_MADE(symbol, __VA_ARGS__)
 *         {
 *             ...
 *             return GS_REAL(symbol, __VA_ARGS__);
 *         }
 *
 * where `order` is the stream that the work goes to (for what is done later: the context), and `async`
 * whether the call is given a stream. The parameters of the row go by their names.
 */
#include "hook.h"
#include "submit.h"

/* The head of a hook, and the driver's function called with the same. */
#define GS_MADE(symbol, ...) GS_HOOK CUresult CUDAAPI symbol(GS_EACH(GS_DECLARED, __VA_ARGS__))
#define GS_REAL(symbol, ...) gs_real.symbol(GS_EACH(GS_NAMED, __VA_ARGS__))

/* A hook that leaves by a jump where the memory is foreign. What it goes on to else, which follows, is
 * apart, so that it keeps no registers for that. */
#define GS_MADE_UNLESS(foreign, symbol, ...)                                                       \
    __attribute__((noinline)) static CUresult ours_##symbol(GS_EACH(GS_DECLARED, __VA_ARGS__));    \
    GS_MADE(symbol, __VA_ARGS__)                                                                   \
    {                                                                                              \
        if (foreign)                                                                               \
            return GS_REAL(symbol, __VA_ARGS__);                                                   \
        return ours_##symbol(GS_EACH(GS_NAMED, __VA_ARGS__));                                      \
    }                                                                                              \
    static CUresult ours_##symbol(GS_EACH(GS_DECLARED, __VA_ARGS__))

/* The body of one that is refused, or passed on where it `may` be. */
#define GS_IF(may, symbol, ...)                                                                    \
    {                                                                                              \
        if (!(may))                                                                                \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
        return GS_REAL(symbol, __VA_ARGS__);                                                       \
    }

#define GS_DECLARED(type, name) type name
#define GS_NAMED(type, name) name

/* DO(type, name), ... of up to eleven pairs. */
#define GS_EACH(DO, ...)                                                                           \
    GS_EACH_OF(__VA_ARGS__, 11, , 10, , 9, , 8, , 7, , 6, , 5, , 4, , 3, , 2, , 1, )(DO, __VA_ARGS__)
#define GS_EACH_OF(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, pairs, ...)   \
    GS_EACH_##pairs
#define GS_EACH_1(DO, t, n) DO(t, n)
#define GS_EACH_2(DO, t, n, ...) DO(t, n), GS_EACH_1(DO, __VA_ARGS__)
#define GS_EACH_3(DO, t, n, ...) DO(t, n), GS_EACH_2(DO, __VA_ARGS__)
#define GS_EACH_4(DO, t, n, ...) DO(t, n), GS_EACH_3(DO, __VA_ARGS__)
#define GS_EACH_5(DO, t, n, ...) DO(t, n), GS_EACH_4(DO, __VA_ARGS__)
#define GS_EACH_6(DO, t, n, ...) DO(t, n), GS_EACH_5(DO, __VA_ARGS__)
#define GS_EACH_7(DO, t, n, ...) DO(t, n), GS_EACH_6(DO, __VA_ARGS__)
#define GS_EACH_8(DO, t, n, ...) DO(t, n), GS_EACH_7(DO, __VA_ARGS__)
#define GS_EACH_9(DO, t, n, ...) DO(t, n), GS_EACH_8(DO, __VA_ARGS__)
#define GS_EACH_10(DO, t, n, ...) DO(t, n), GS_EACH_9(DO, __VA_ARGS__)
#define GS_EACH_11(DO, t, n, ...) DO(t, n), GS_EACH_10(DO, __VA_ARGS__)

/* How a row says it. */
#define GS_HOW_BY_HAND(what, symbol, ...)
#define GS_HOW_LEGACY(what, symbol, how, ...) GS_MAKE_##what(symbol, NULL, false, __VA_ARGS__)
#define GS_HOW_THREAD(what, symbol, how, ...)                                                      \
    GS_MAKE_##what(symbol, CU_STREAM_PER_THREAD, false, __VA_ARGS__)
#define GS_HOW_STREAM(what, symbol, how, ...) GS_MAKE_##what(symbol, stream, true, __VA_ARGS__)
#define GS_HOW_PTSZ(what, symbol, how, ...)                                                        \
    GS_MAKE_##what(symbol, gs_per_thread(stream), true, __VA_ARGS__)
#define GS_HOW_CTX(what, symbol, how, ...) GS_MAKE_##what(symbol, ctx, true, __VA_ARGS__)
#define GS_HOW_PLAIN(what, symbol, how, ...) GS_MAKE_##what(symbol, NULL, false, __VA_ARGS__)

/* Rows that this file does not make are nothing in it. */
#define GS_HERE ,
#define GS_ELSEWHERE(what, symbol, ...)
#define GS_THIRD(a, b, c, ...) c
#define GS_CHOSEN(...) GS_THIRD(__VA_ARGS__)
#define GS_ENTRY(symbol, since, what, gate, ...)                                                   \
    GS_CHOSEN(GS_MAKES_##what, GS_HOW(__VA_ARGS__, ), GS_ELSEWHERE, )(what, symbol, __VA_ARGS__)
#define GS_HOW(how, ...) GS_HOW_##how
GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
