/* gpushim set (set.c). */
#ifndef GS_SHIM_COMMAND_SET_H
#define GS_SHIM_COMMAND_SET_H

/* The options that can change while a program runs, a line each on standard output, with what they may be. */
void set_list(void);

#endif
