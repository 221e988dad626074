/* Stands in for libc10.so: what would throw says what it was told, and returns. */
#include <stdint.h>
#include <stdio.h>

void c10_failed(const char *function, const char *file, uint32_t line,
                const char *text) __asm__("_ZN3c106detail14torchCheckFailEPKcS2_jS2_");
const char *c10_said(void);

static char said[256];

__attribute__((visibility("default"))) void c10_failed(const char *function, const char *file,
                                                       uint32_t line, const char *text)
{
    snprintf(said, sizeof said, "%s", text);
}

__attribute__((visibility("default"))) const char *c10_said(void)
{
    return said;
}
