/*
 * A process of its own with one side of a share, told what to do line by line and answering with
 * one line. It dies with the test.
 *
 *   export OFFSET SIZE BYTE  a block of its only chunk (2 MiB), filled: "ok HANDLE"
 *   open HANDLE              "ok ADDRESS" or "status N"
 *   close ADDRESS            "status N"
 *   read ADDRESS             "ok BYTE"          write ADDRESS BYTE   "ok"
 *   withdraw                 the last export, without grace: "ok" or "held"
 *   fds                      "ok COUNT"         holds     of others on its exports: "ok COUNT"
 *   held      what it has freed and others have: "ok HOLDERS BYTES of WHO-HAS-MOST NANOSECONDS"
 *   census    what lives in its driver: "ok COUNT"
 *   fork [unheard]           a child that sleeps: "ok PID"; it is told of as a fork is, or not
 *   nofile N                 its limit of descriptors
 *   connections, lose        how many it has made; and closes them
 *   short                    its memory is out: waits for what others have of it, a little
 *   delay MICROSECONDS       that each export takes
 *   serve N                  can be asked for memory, and gives N bytes each time: "ok"
 *   ask N                    asks others for N bytes: "ok GIVEN SILENT ENDED"
 *   name NAME OFFSET NOTE    publishes the last export: "status N"
 *   lookup NAME              "note NOTE uid N kept 0|1 HANDLE" or "none OUTCOME uid N"
 *   unname NAME              "ended OUTCOME uid N" or "none OUTCOME uid N"
 *   quit                     ends in order       exit      exit() with everything open
 */
#ifndef GS_TESTS_OTHER_H
#define GS_TESTS_OTHER_H

#include <stdio.h>
#include <sys/types.h>

#include "core/share/share.h"

struct other {
    pid_t pid;
    FILE *in, *out;
    char answer[256];
};

/* The program is found from now on also where something covers its folder. */
void other_keep(void);
/* `extra` are further words for its command line ("uid=N trust=N"), or NULL. */
void other_start(struct other *other, const char *dir, const char *extra);
void other_start2(struct other *other, const char *dir, const char *extra, const char *more);
/* In a PID namespace of its own: only a pidfd tells it of an exit. False where none can be made. */
bool other_start_apart(struct other *other, const char *dir, const char *extra);
/* Says one line; the answer's line without its newline, "" if the process is gone. */
const char *other_ask(struct other *other, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Asks it to open; its status, and the address it got. */
gs_status other_open(struct other *other, const unsigned char *ipc_handle,
                     unsigned long *ret_address);
/* Asks it to export. */
void other_export(struct other *other, size_t offset, size_t size, int byte,
                  unsigned char *ret_ipc_handle);
/* Asks it to withdraw what it exported last; whether it could. */
bool other_withdraws(struct other *other);
void other_kill(struct other *other);
/* As another user, in a process that stays when it has played: that it has when this returns. */
pid_t other_user_start(void (*play)(void *arg), void *arg);
void other_user_end(pid_t pid);
/* Quits it in order and waits. Its exit status. */
int other_stop(struct other *other);

void ipc_handle_to_hex(const unsigned char *ipc_handle, char ret_hex[2 * GS_IPC_HANDLE_SIZE + 1]);
void ipc_handle_from_hex(const char *hex, unsigned char *ret_ipc_handle);

#endif
