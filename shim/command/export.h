/*
 * gpushim export: the figures in the text format of Prometheus (version 0.0.4), and how they get
 * there.
 */
#ifndef GS_SHIM_COMMAND_EXPORT_H
#define GS_SHIM_COMMAND_EXPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "shim/command/call.h"

/* Asks all processes and writes what they have. False, and said unless it is the file's error: they
 * cannot be asked. */
bool export_write(FILE *file, const void *unused);

/* Serves it at ADDRESS:PORT until SIGTERM or SIGINT. The program's exit status. */
int export_serve(const struct call *call, const char *where);

/* What a request is to be answered with (HTTP's number; 200: the figures), and the host by which this server was asked,
 * without its port, "" where it does not say; 0: its head is not there as a whole. */
#define HTTP_HOST 256
int http_read(const char *text, char ret_host[HTTP_HOST]);

#endif
