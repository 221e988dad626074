/* The names under which GPU memory is published (ls.c), for completion. */
#ifndef GS_SHIM_COMMAND_LS_H
#define GS_SHIM_COMMAND_LS_H

/* Each that this user may ask for, and who published it. */
void ls_names(void (*each)(void *arg, const char *name, const char *process), void *arg);

#endif
