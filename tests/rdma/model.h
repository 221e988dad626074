/*
 * A device that registers memory, and the memory, as a model beside the cache: it knows at every
 * step what is mapped, what is registered, and whether the one covers the other.
 */
#ifndef TESTS_RDMA_MODEL_H
#define TESTS_RDMA_MODEL_H

#include "tests/system.h"

#define MODEL_CHUNK   ((size_t)2 << 20)
#define MODEL_CHUNKS  8
#define MODEL_FOREIGN 4 /* the last so many chunks are not the arena's */

struct model_registration;

/* The address of a chunk; all stay the same for good. */
uint64_t model_address(unsigned chunk);
/* The tag that a driver would give for what is mapped there now. */
uint64_t model_id(unsigned chunk);

/* The device's own functions. `fail` makes about one in so many pins fail (0: none). 0 or errno. */
void model_fail_pins(unsigned fail);
/* How many registrations the device can hold; beyond that: ENOMEM. */
void model_room(unsigned registrations);
int model_pin(uint64_t base, size_t size, struct model_registration **ret_registration);
int model_unpin(struct model_registration *registration);

/* A transfer through a registration: it must be alive and of what is mapped there now. */
void model_use(const struct model_registration *registration, uint64_t base, size_t size);

/* The chunk is unmapped and something else is mapped there. Memory of the arena: nothing may be
 * registered over it. Foreign memory: what is registered over it is dead from now on. */
void model_remap(unsigned chunk);

struct model_counts {
    unsigned long pins, unpins, refused, live, wrong;
    unsigned long bytes; /* of what is live */
};
/* `wrong`: how often something was not as it must be; each is said once on stderr. */
struct model_counts model_counts(void);

#endif
