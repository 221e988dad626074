/* Lists (uthash's utlist.h), without its assertions: a library does not end its program. */
#ifndef GS_CORE_BASE_LIST_H
#define GS_CORE_BASE_LIST_H

#ifndef NDEBUG
#define NDEBUG
#endif
#include <utlist.h>

#endif
