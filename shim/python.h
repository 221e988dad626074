/*
 * Lines of Python in the stacks of a recording.
 *
 * Whoever calls the driver from Python has let go of the interpreter first, as a rule, so that
 * nothing of it may be called that counts references or allocates. But the frames of a thread that
 * is in such a call are as it left them, and keep what they name. So they are read where they lie:
 * at the offsets of each version from 3.9 to 3.14, which stay as they are within a version. Other
 * versions, builds without the interpreter's lock, and threads that are none of Python's have no
 * lines. Two functions of the interpreter's are called, which only read: for this thread's state,
 * and for the line that an instruction is of. They are found in the process; nothing is linked.
 */
#ifndef GPUSHIM_SHIM_PYTHON_H
#define GPUSHIM_SHIM_PYTHON_H

#include <stdint.h>

/* Looks for an interpreter in the process, if there was none yet. The dynamic linker's lock is
 * taken. */
void gs_python_load(void);
/* Frames of the calling thread as names (core/record/trace.h), the innermost first; `most` of them.
 * How many. */
unsigned gs_python_frames(uint64_t *ret_frames, unsigned most);

#endif
