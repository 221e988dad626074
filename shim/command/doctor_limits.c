/* gpushim doctor: limits of processes, and what the kernel offers and forbids. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "core/share/exporter.h"
#include "shim/command/doctor.h"

#define FD_NEEDED 64 /* below it what a program and its sockets have leaves none */
#define FD_GOOD                                                                                    \
    1024 /* with fewer, a program that shares much makes descriptors again and again               \
          */
#define FD_MOST     32768 /* from here on as many are kept as ever are (core/share/chunk_fds.c) */
#define MEMLOCK_LOW ((rlim_t)64 << 20)

/* ---- Limits --------------------------------------------------------------------------------- */

void doctor_look_at_descriptors(struct doctor *doctor, uint64_t limit, const char *where)
{
    const uint64_t clients = doctor->config->debug.max_clients;

    if (limit < FD_NEEDED)
        doctor_say(doctor, DOCTOR_FAIL, "descriptors", "raise it: ulimit -n 32768",
                   "%s may have %" PRIu64 " open: too few to share with several processes", where,
                   limit);
    else if (limit < FD_GOOD)
        doctor_say(
            doctor, DOCTOR_WARN, "descriptors",
            "raise it: ulimit -n 32768 (LimitNOFILE= of systemd, --ulimit nofile= of containers)",
            "%s may have %" PRIu64 " open: an eighth is kept for shared pieces, and opening more "
            "than that again and again is slow; no %" PRIu64
            " others (debug.max_clients) can be served at a time",
            where, limit, clients);
    else
        doctor_say(doctor, DOCTOR_OK, "descriptors", "",
                   "%s may have %" PRIu64 " open; an eighth is kept for shared pieces%s", where,
                   limit, limit < FD_MOST ? ", the most (4096) from 32768 on" : ", 4096 at most");
}

bool doctor_has_rdma(void)
{
    static const char *const signs[] = {"/dev/infiniband", "/dev/gdrdrv", "/dev/nvidia-fs0"};

    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (access(signs[i], F_OK) == 0)
            return true;
    return false;
}

static void say_memlock(struct doctor *doctor)
{
    struct rlimit limit;
    char words[40] = "unlimited";

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return;
    if (limit.rlim_cur != RLIM_INFINITY)
        snprintf(words, sizeof words, "%llu KiB", (unsigned long long)limit.rlim_cur / 1024);
    if (doctor_has_rdma() && limit.rlim_cur < MEMLOCK_LOW && geteuid() != 0)
        doctor_say(
            doctor, DOCTOR_WARN, "memlock",
            "raise it: ulimit -l unlimited (LimitMEMLOCK= of systemd, --ulimit memlock=-1 of "
            "containers)",
            "%s of memory may be locked: registrations with a network card may fail, with the "
            "library or without",
            words);
    else
        doctor_say(doctor, DOCTOR_OK, "memlock", "", "%s of memory may be locked%s", words,
                   doctor_has_rdma() ? ""
                                     : "; nothing here registers memory (no RDMA, GDRCopy, GDS)");
}

void doctor_limits(struct doctor *doctor)
{
    doctor_look_at_descriptors(doctor, gs_fd_limit(), "a process here");
    say_memlock(doctor);
}

/* ---- The kernel ----------------------------------------------------------------------------- */

void doctor_kernel(struct doctor *doctor)
{
    struct utsname name = {0};
    int ends[2], error = 0, pidfd;

    uname(&name);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        doctor_say(doctor, DOCTOR_FAIL, "kernel",
                   errno == EMFILE ? "raise the limit of descriptors (ulimit -n)"
                                   : "let the filter of system calls (seccomp, AppArmor, "
                                     "RestrictAddressFamilies= of systemd) pass AF_UNIX sockets",
                   "Linux %s: no socket of kind AF_UNIX, SOCK_SEQPACKET can be made: %s", name.release, strerror(errno));
        return;
    }
    pidfd = gs_conn_pidfd(ends[0], &error);
    close(ends[0]);
    close(ends[1]);
    gs_fd_drop(pidfd);
    if (pidfd >= 0)
        doctor_say(doctor, DOCTOR_OK, "kernel", "", "Linux %s, with SO_PEERPIDFD", name.release);
    else
        doctor_say(
            doctor, DOCTOR_WARN, "kernel", "nothing, or a kernel of Linux 6.5 or later",
            "Linux %s, without SO_PEERPIDFD: a holder's end is known by the pidfd that it sends "
            "itself",
            name.release);
}
