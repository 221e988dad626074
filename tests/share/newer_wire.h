/* Before a file of core/share: the protocol of a build to come, which is otherwise this one. */
#include "core/share/wire.h"

#undef GS_WIRE_VERSION
#define GS_WIRE_VERSION 1000
