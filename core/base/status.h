/*
 * The one status type of core.
 *
 * Zero is success. A positive value is an error of the driver, passed on as it came: it is that
 * CUresult. A negative value is core's own finding; shim/ alone turns it into what the driver
 * would have said in that situation (shim/result.h).
 */
#ifndef GS_CORE_BASE_STATUS_H
#define GS_CORE_BASE_STATUS_H

typedef int gs_status;

enum {
    GS_OK = 0,
    GS_NOT_OURS = -1,  /* the pointer or handle is not this library's: ask the driver */
    GS_NOT_LIVE = -2,  /* our memory, but no live block starts (or lies) there */
    GS_NO_MEMORY = -3, /* the device is out of memory, after everything was tried */
    GS_NO_HOST_MEMORY = -4,
    GS_CAPTURING = -5,    /* a capture is open: no event may be recorded now */
    GS_NOT_OFFERED = -6,  /* this device or process cannot do it: the driver's way is left */
    GS_BAD_HANDLE = -7,   /* a handle of ours that is damaged, or that we may not have */
    GS_SAME_PROCESS = -8, /* a handle opened in the process that made it */
    GS_UNREACHABLE = -9,  /* the exporter is gone or does not answer */
    GS_NO_CONTEXT = -10,  /* no context is current */
    GS_INVALID = -11,     /* an argument no call of this kind takes */
    GS_STALE = -12,       /* a handle that its exporter does not take: its block was freed */
    GS_NO_RANDOM = -13,   /* the kernel gives no random bytes */
    GS_TOO_MANY = -14,    /* there are as many of them as may be */
};

#endif
