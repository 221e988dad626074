/* A folder of a test's own, in which its processes share. */
#ifndef GPUSHIM_TESTS_FOLDER_H
#define GPUSHIM_TESTS_FOLDER_H

/* When this process has ended, killed or not, the folder goes, and so do the processes that still
 * run with it as their GPUSHIM_SHARE_DIR: a broker that the library has started is nobody's child.
 * Where the kernel has no pidfds they stay. */
void folder_watch(const char *folder);
/* A new one, /tmp/gpushim-NAME-XXXXXX: watched, and GPUSHIM_SHARE_DIR from now on. One a
 * process. */
const char *folder_new(const char *name);
/* With all that is in it. */
void folder_remove(const char *folder);

#endif
