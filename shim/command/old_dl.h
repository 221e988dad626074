/*
 * Functions of libdl by their oldest version: glibc 2.34 gave them a new one. The older is in every
 * libc since, and before that in libdl, which the link names (meson.build).
 */
#ifndef GS_SHIM_COMMAND_OLD_DL_H
#define GS_SHIM_COMMAND_OLD_DL_H

#ifdef __x86_64__
#define OLDEST_GLIBC "GLIBC_2.2.5"
#else
#define OLDEST_GLIBC "GLIBC_2.17"
#endif
/* For a function that the file uses. */
#define OLDEST(name) __asm__(".symver " #name ", " #name "@" OLDEST_GLIBC)

#endif
