/* What the tests of names have in common: this process's side publishes and looks up. */
#ifndef GS_TESTS_NAMES_SCENE_H
#define GS_TESTS_NAMES_SCENE_H

#include "scene.h"

struct gs_naming naming_of(const char *name, int note);
gs_status publish(struct gs_export *export, const char *name, int note);
/* The note of what is found, by this process or that; -1: nothing is. */
int note_of(const char *name);
int others_note(struct other *asked, const char *name);
bool others_handle(struct other *asked, const char *name, unsigned char *ret_ipc_handle);
/* A block of the chunk, filled; and its end. */
struct gs_export *export_at(size_t offset, int byte);
void end(struct gs_export *export);

#endif
