/*
 * Answers to look-ups of names that are ours.
 */
#ifndef GPUSHIM_SHIM_LOOKUP_H
#define GPUSHIM_SHIM_LOOKUP_H

#include <stdbool.h>

struct gs_lookup {
    void *handle;        /* as given to dlsym */
    const char *name;    /* of the row */
    const char *version; /* as given to dlvsym; NULL for dlsym */
    const void *caller;  /* the return address into the code that asked */
    int row;
};

/* The answer to a look-up of one of our names. False: the real function is to answer, for its real
 * caller. dlerror afterwards is as the real function left it for that answer. Preserves errno where
 * the real function does. */
bool gs_lookup_answer(const struct gs_lookup *lookup, void **ret_answer);

/* The answer for a name that no list knows. False also where it is none of the driver's. */
bool gs_lookup_newer(const struct gs_lookup *lookup, void **ret_answer);

/* Whether a name as cuGetProcAddress takes it (without _v2 and the like) is that of a row that
 * this process's look-ups lead to. */
bool gs_lookup_is_ours(const char *symbol);

/* What to give for an address that the driver gave: the hook of the row that it is the real
 * function of, or the address itself where it is none or no hooks are handed out. */
void *gs_lookup_lead(void *address);

#endif
