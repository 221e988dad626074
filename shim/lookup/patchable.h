/*
 * First instructions that a patcher can move.
 *
 * UCX and tools like it redirect a function by a jump over its first bytes; what lay there runs
 * elsewhere, followed by a jump back, as the original. They take the function from dlsym, so under
 * the shim it is ours. Their disassemblers know a handful of instructions that the driver's
 * functions begin with and a compiler's other prologues seldom keep to, and where they meet another
 * one they give up on all functions of CUDA at once: UCX then runs without its cache of memory
 * types. So hooks of what they redirect begin with instructions which do nothing, which they know,
 * and which are as long as their longest jump: 13 bytes on x86-64, 16 on aarch64.
 */
#ifndef GPUSHIM_SHIM_PATCHABLE_H
#define GPUSHIM_SHIM_PATCHABLE_H

#if defined(__x86_64__)
/* rax holds nothing at a call: none of these functions takes a variable number of arguments. */
#define GS_PATCHABLE_NOP  "movl $0, %eax\n"
#define GS_PATCHABLE_NOPS GS_PATCHABLE_NOP GS_PATCHABLE_NOP GS_PATCHABLE_NOP
#define GS_PATCHABLE_JUMP "jmp "
#elif defined(__aarch64__)
#define GS_PATCHABLE_NOP  "mov x0, x0\n"
#define GS_PATCHABLE_NOPS GS_PATCHABLE_NOP GS_PATCHABLE_NOP GS_PATCHABLE_NOP GS_PATCHABLE_NOP
#define GS_PATCHABLE_JUMP "b "
#else
#error "no first instructions are known for this machine"
#endif

/* Before the definition of a hook, in its file: from here on the name means the hook's body, and
 * everywhere else these instructions, which go on to it. */
#define GS_PATCHABLE(symbol)                                                               \
    extern __typeof__(symbol) symbol __asm__("gs_body_" #symbol);                          \
    __asm__(".pushsection .text\n"                                                         \
            ".globl " #symbol "\n"                                                         \
            ".type " #symbol ", %function\n"                                               \
            ".p2align 4\n" #symbol ":\n"                                                   \
            ".cfi_startproc\n" GS_PATCHABLE_NOPS GS_PATCHABLE_JUMP "gs_body_" #symbol "\n" \
            ".cfi_endproc\n"                                                               \
            ".size " #symbol ", . - " #symbol "\n"                                         \
            ".popsection\n")

#endif
