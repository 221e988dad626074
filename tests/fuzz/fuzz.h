/*
 * What the libFuzzer targets have in common: reading the input a piece at a time, so that every
 * input means something. Beyond its end there are only zeros.
 */
#ifndef GS_TESTS_FUZZ_H
#define GS_TESTS_FUZZ_H

#include "core/base/printable.h"
#include "tests/check.h" /* a failure ends the program, and the fuzzer keeps the input */
#include "tests/system.h"

struct fuzz_input {
    const uint8_t *at;
    size_t left;
};

static inline size_t fuzz_bytes(struct fuzz_input *input, void *ret, size_t size)
{
    size_t taken = size < input->left ? size : input->left;

    memset(ret, 0, size);
    if (taken)
        memcpy(ret, input->at, taken);
    input->at += taken;
    input->left -= taken;
    return taken;
}

static inline uint8_t fuzz_byte(struct fuzz_input *input)
{
    uint8_t byte;

    fuzz_bytes(input, &byte, 1);
    return byte;
}

/* Changes one byte of `bytes` where the input says so. */
static inline void fuzz_damage(struct fuzz_input *input, void *bytes, size_t size)
{
    size_t at = fuzz_byte(input) * (size_t)256 + fuzz_byte(input);

    ((uint8_t *)bytes)[at % size] ^= fuzz_byte(input);
}

/* Whether the text is as one may show it: made printable, it is what it was. */
static inline bool fuzz_is_printable(const char *text)
{
    char shown[16384];

    return gs_printable(text, strlen(text), shown, sizeof shown) == strlen(text) &&
           strcmp(text, shown) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
