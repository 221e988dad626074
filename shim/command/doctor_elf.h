/* Why the dynamic linker would not load a file, or not start a program with what is preloaded. */
#ifndef GS_SHIM_COMMAND_DOCTOR_ELF_H
#define GS_SHIM_COMMAND_DOCTOR_ELF_H

#include <limits.h>
#include <stdbool.h>

struct doctor_elf {
    const char *wrong; /* in words, after the file's name: "is no ELF file"; NULL: nothing is */
    char loader[256];  /* the program's dynamic linker; "": it has none */
};

void doctor_look_at_elf(const char *path, struct doctor_elf *ret_elf);

#endif
