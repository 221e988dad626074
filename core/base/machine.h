/* What names this machine, and the time of day: of agents, which compare both with other machines'.
 * Tests give each of theirs its own. */
#ifndef GS_CORE_BASE_MACHINE_H
#define GS_CORE_BASE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#define GS_MACHINE_ID_SIZE 16

/* Of /etc/machine-id, which stays; or of the pretence. False: there is none. */
bool gs_machine_id(unsigned char ret_id[GS_MACHINE_ID_SIZE]);
/* Nanoseconds since 1970, by this machine's clock, which may be wrong, and may jump. */
uint64_t gs_wall_ns(void);

/* From now on the machine has this id, unless it is NULL, and its clock is ahead by so much. At the
 * start, while there is one thread. */
void gs_machine_pretend(const unsigned char id[GS_MACHINE_ID_SIZE], int64_t ahead_ns);

#endif
