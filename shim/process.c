/* What this process has (process.h). */
#include "process.h"
#include "state.h"

_Atomic int gs_state; /* GS_STATE_UNBORN */
int gs_state_open = GS_STATE_READY;
struct gs_core *gs_core;
const struct gs_map *gs_map;
struct gs_single *gs_single;
bool gs_bounded;
enum gs_pin_keep gs_pin_keep = GS_PIN_KEEP_LOCAL;
