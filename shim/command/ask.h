/*
 * Asking a process, or a broker, at its socket in the folder: one question, and why there was no
 * answer (core/share/report.c answers).
 */
#ifndef GS_SHIM_COMMAND_ASK_H
#define GS_SHIM_COMMAND_ASK_H

#include "core/share/internal.h"

#define ASK_NS       (2 * GS_NS_PER_S) /* for one of those that are asked */
#define ASK_WHY_SIZE 128

/* 0 with an answer: a REPORT or a REFUSE. -ETIMEDOUT: there is none; else as gs_wire_receive. What
 * the REPORT is about comes with its pidfd, the caller's, where who answers has one. */
int ask(int fd, uint32_t index, union gs_wire_message *ret_answer, int *ret_pidfd);

/* In words, after a name, what it means that `ask` gave this error, or a REFUSE and 0. */
void ask_failed(int error, const union gs_wire_message *answer, char ret_why[ASK_WHY_SIZE]);

/* Whether a name in the folder is a broker's; or a broker's or a process's. */
bool ask_is_broker(const char *name);
bool ask_is_socket(const char *name);

#endif
