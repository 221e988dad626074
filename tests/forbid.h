/* A call of the kernel that the system forbids, as containers do. */
#ifndef GPUSHIM_TESTS_FORBID_H
#define GPUSHIM_TESTS_FORBID_H

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>

static inline bool forbid_filtered(struct sock_fprog program)
{
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* From now on, in this thread and what it starts, the call has this end: SECCOMP_RET_ERRNO | EPERM,
 * say. */
static inline bool forbid_call(unsigned call, unsigned end)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, end),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };

    return forbid_filtered((struct sock_fprog){sizeof code / sizeof *code, code});
}

/* Only where one of these bits is in that argument. */
static inline bool forbid_bits(unsigned call, unsigned argument, unsigned bits, unsigned end)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[argument])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, end),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };

    return forbid_filtered((struct sock_fprog){sizeof code / sizeof *code, code});
}

#endif
