/*
 * What is said where the library is loaded too late, and at an end that runs no exit handlers
 * (leave.c).
 */
#ifndef GPUSHIM_SHIM_LEAVE_H
#define GPUSHIM_SHIM_LEAVE_H

/* Ends the recording, and says the figures where the log has them and nobody has said them yet
 * (say.c). Of a process that uses CUDA; from any thread, also where a signal has interrupted it,
 * and from a child by vfork, of which it says nothing. */
void gs_shim_leaves(void);

/* The library was loaded too late to take part: says so in the log, by the options of the
 * configuration. */
void gs_shim_too_late(void);

#endif
