/* What holds of an arena at any time at which nobody has its lock. */
#ifndef TESTS_UNIT_PROCESS_SUMS_H
#define TESTS_UNIT_PROCESS_SUMS_H

#include "tests/unit/fixture.h"

/*
 * Goes through every arena: pieces lie side by side or apart, in order and in the map; blocks cover
 * them from end to end, each with its neighbours and found from each end of it; what may be one
 * free block is; and every sum that is kept is what it stands for. Ends the test where something is
 * not so. No allocation is under way.
 */
void must_add_up(struct fixture *f);

#endif
