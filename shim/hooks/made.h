/*
 * Hooks that are made from rows of the table (shim/entry_points.h). A file of this folder makes
 * those of the calls that do what it is about: before it includes this it has, for each kind,
 *
 *     #define GS_MAKES_SUBMITS GS_ALWAYS
 *     #define GS_MAKE_SUBMITS(symbol, order, async, real)
 *         gs_submits(order);
 *         return real;
 *
 * `order` is the stream that the work goes to, `async` whether the call is given one, `real` the
 * driver's own call with the same arguments. Parameters go by their names.
 *
 * With GS_UNLESS(foreign) the hook leaves by a jump where the memory is foreign; what it does else
 * is apart, so that it keeps no registers for that. With GS_UNMARKED it is not waited for at the
 * gate (gate.h). With GS_TRACED(address) the call is recorded (record.h): the address is what it is
 * given of memory, or 0, and GS_RECORD_SUBMITS what is noted after it, of `recorded` and `result`.
 */
#include "hook.h"
#include "record.h"
#include "submit.h"

#define GS_ALWAYS          , GS_MADE
#define GS_UNLESS(foreign) foreign, GS_MADE_APART
#define GS_TRACED(address) address, GS_MADE_TRACED
#define GS_UNMARKED        , GS_MADE_UNMARKED

#define GS_GATE_STOPS(symbol)        \
    GS_AT_GATE(symbol);              \
    if (gs_gate_refuses(gs_entered)) \
        return CUDA_ERROR_OUT_OF_MEMORY;
#define GS_GATE_GOES(symbol)

#define GS_HEAD(name, ...) CUresult name(GS_EACH(GS_DECLARED, __VA_ARGS__))
#define GS_CALL(name, ...) name(GS_EACH(GS_NAMED, __VA_ARGS__))

#define GS_MADE(foreign, what, gate, symbol, order, async, ...)                        \
    GS_HOOK GS_HEAD(CUDAAPI symbol, __VA_ARGS__)                                       \
    {                                                                                  \
        GS_GATE_##gate(symbol)                                                         \
            GS_MAKE_##what(symbol, order, async, GS_CALL(gs_real.symbol, __VA_ARGS__)) \
    }

#define GS_MADE_UNMARKED(foreign, what, gate, symbol, order, async, ...)           \
    GS_HOOK GS_HEAD(CUDAAPI symbol, __VA_ARGS__)                                   \
    {                                                                              \
        const bool gs_entered = gs_gate_look(GS_ROW_##symbol + 1);                 \
                                                                                   \
        GS_MAKE_##what(symbol, order, async, GS_CALL(gs_real.symbol, __VA_ARGS__)) \
    }

#define GS_MADE_APART(foreign, what, gate, symbol, order, async, ...)                             \
    __attribute__((noinline)) static GS_HEAD(ours_##symbol, __VA_ARGS__){                         \
        GS_GATE_##gate(symbol)                                                                    \
            GS_MAKE_##what(symbol, order, async,                                                  \
                           GS_CALL(gs_real.symbol, __VA_ARGS__))} GS_HOOK GS_HEAD(CUDAAPI symbol, \
                                                                                  __VA_ARGS__)    \
    {                                                                                             \
        if (foreign)                                                                              \
            return GS_CALL(gs_real.symbol, __VA_ARGS__);                                          \
        return GS_CALL(ours_##symbol, __VA_ARGS__);                                               \
    }

#define GS_MADE_TRACED(address, what, gate, symbol, order, async, ...)                            \
    GS_DOES GS_HEAD(does_##symbol, __VA_ARGS__){GS_GATE_##gate(symbol) GS_MAKE_##what(            \
        symbol, order, async,                                                                     \
        GS_CALL(gs_real.symbol, __VA_ARGS__))} GS_RECORDS GS_HEAD(recorded_##symbol, __VA_ARGS__, \
                                                                  void *, caller)                 \
    {                                                                                             \
        struct gs_recorded recorded;                                                              \
        CUresult result;                                                                          \
                                                                                                  \
        gs_record_begin(&recorded, caller, address);                                              \
        result = GS_CALL(does_##symbol, __VA_ARGS__);                                             \
        GS_RECORD_##what(order) return result;                                                    \
    }                                                                                             \
    GS_HOOK GS_HEAD(CUDAAPI symbol, __VA_ARGS__)                                                  \
    {                                                                                             \
        if (gs_tracing())                                                                         \
            return recorded_##symbol(GS_EACH(GS_NAMED, __VA_ARGS__), GS_CALLER);                  \
        return GS_CALL(does_##symbol, __VA_ARGS__);                                               \
    }

/* DO(type, name), ... of up to eleven pairs. */
#define GS_DECLARED(type, name) type name
#define GS_NAMED(type, name)    name
#define GS_EACH(DO, ...)                                                                 \
    GS_EACH_OF(__VA_ARGS__, 11, , 10, , 9, , 8, , 7, , 6, , 5, , 4, , 3, , 2, , 1, )(DO, \
                                                                                     __VA_ARGS__)
#define GS_EACH_OF(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, pairs, ...) \
    GS_EACH_##pairs
#define GS_EACH_1(DO, t, n)       DO(t, n)
#define GS_EACH_2(DO, t, n, ...)  DO(t, n), GS_EACH_1(DO, __VA_ARGS__)
#define GS_EACH_3(DO, t, n, ...)  DO(t, n), GS_EACH_2(DO, __VA_ARGS__)
#define GS_EACH_4(DO, t, n, ...)  DO(t, n), GS_EACH_3(DO, __VA_ARGS__)
#define GS_EACH_5(DO, t, n, ...)  DO(t, n), GS_EACH_4(DO, __VA_ARGS__)
#define GS_EACH_6(DO, t, n, ...)  DO(t, n), GS_EACH_5(DO, __VA_ARGS__)
#define GS_EACH_7(DO, t, n, ...)  DO(t, n), GS_EACH_6(DO, __VA_ARGS__)
#define GS_EACH_8(DO, t, n, ...)  DO(t, n), GS_EACH_7(DO, __VA_ARGS__)
#define GS_EACH_9(DO, t, n, ...)  DO(t, n), GS_EACH_8(DO, __VA_ARGS__)
#define GS_EACH_10(DO, t, n, ...) DO(t, n), GS_EACH_9(DO, __VA_ARGS__)
#define GS_EACH_11(DO, t, n, ...) DO(t, n), GS_EACH_10(DO, __VA_ARGS__)

/* How a row says it. */
#define GS_HOW_BY_HAND(MADE, foreign, what, gate, symbol, how)
#define GS_HOW_PLAIN(M, f, w, g, s, how, ...)  M(f, w, g, s, NULL, false, __VA_ARGS__)
#define GS_HOW_LEGACY(M, f, w, g, s, how, ...) M(f, w, g, s, NULL, false, __VA_ARGS__)
#define GS_HOW_THREAD(M, f, w, g, s, how, ...) \
    M(f, w, g, s, CU_STREAM_PER_THREAD, false, __VA_ARGS__)
#define GS_HOW_STREAM(M, f, w, g, s, how, ...) M(f, w, g, s, stream, true, __VA_ARGS__)

#define GS_HOW_PTSZ(M, f, w, g, s, how, ...) M(f, w, g, s, gs_per_thread(stream), true, __VA_ARGS__)

/* Rows that this file does not make are nothing in it. */
#define GS_ELSEWHERE(...)
#define GS_FIRST(a, ...)     a
#define GS_SECOND(a, b, ...) b
#define GS_PICK(WHICH, ...)  WHICH(__VA_ARGS__)
#define GS_HOW(how, ...)     GS_HOW_##how
#define GS_ENTRY(symbol, since, what, gate, ...)                     \
    GS_ENTRY_BY(GS_PICK(GS_SECOND, GS_MAKES_##what, GS_ELSEWHERE, ), \
                GS_PICK(GS_FIRST, GS_MAKES_##what, ), what, gate, symbol, __VA_ARGS__)
#define GS_ENTRY_BY(MADE, foreign, what, gate, symbol, ...) \
    GS_HOW(__VA_ARGS__, )(MADE, foreign, what, gate, symbol, __VA_ARGS__)
GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
