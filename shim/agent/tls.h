/* What link.c has of tls.c. */
#ifndef GS_SHIM_AGENT_TLS_H
#define GS_SHIM_AGENT_TLS_H

#include "shim/agent/link.h"

struct x509_st;

/* On its socket, at the end that the link is. False: no memory. */
bool tls_begin(struct link *link);
bool tls_fingerprint(const struct x509_st *certificate, unsigned char ret[LINK_FINGERPRINT]);

#endif
