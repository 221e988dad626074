/*
 * Options that can be changed while the process runs: those that config/options.h calls LIVE.
 */
#ifndef GS_CORE_PROCESS_SETTINGS_H
#define GS_CORE_PROCESS_SETTINGS_H

#include "core/share/share.h"

struct gs_core;

/* Gives the option its value, and says what it was and is. One thread at a time, with no lock held;
 * waits for nothing but locks. */
void gs_settings_set(struct gs_core *core, struct gs_setting *setting);

#endif
