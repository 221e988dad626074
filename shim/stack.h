/*
 * Where in the program a call came from, for a recording that is to have it
 * (general.record_stacks): lines of Python (python.h), and return addresses.
 *
 * They are found by the unwinder of libgcc_s, as debuggers and exceptions find them, so a program
 * needs no frame pointers. It is loaded once, beside the look for libcuda, where the program itself
 * is in the dynamic linker already: never in an allocation. Where it is not there, or cannot read a
 * caller's frame, a call has one address, that of who called the hook.
 */
#ifndef GPUSHIM_SHIM_STACK_H
#define GPUSHIM_SHIM_STACK_H

#include <stdint.h>

/* So many frames at most, 0: none are wanted. At the start. */
void gs_stack_want(unsigned frames);
/* Loads what is needed, if any are wanted and something is recorded. No lock is held, and nobody
 * waits for this thread. */
void gs_stack_load(void);

/* What the calling thread does from now on is called so in recordings; "": nothing. Up to 63
 * bytes. */
void gs_stack_tag(const char *label);

/* The label, lines of Python from the innermost on, addresses from `caller`, which the hook returns
 * to, outwards (GS_TRACE_FRAMES_MAX at most). How many. */
unsigned gs_stack(uint64_t *ret_frames, void *caller);

#endif
