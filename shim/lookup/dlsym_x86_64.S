/*
 * dlsym, dlvsym and dlopen for x86-64. Each asks gs_resolve_* (resolve.c) about the name. What is ours is
 * answered; everything else leaves by a jump with the caller's own arguments and return address, so
 * that the real function sees its real caller: RTLD_NEXT depends on it, and the RUNPATH by which a
 * library is found.
 *
 * gs_resolve_* return { rax: address, rdx: non-zero if the address is the answer }.
 */
    .text

    .macro  look_up name, resolve, caller
    .globl  \name
    .type   \name, @function
    .p2align 4
\name:
    .cfi_startproc
    pushq   %rdi
    .cfi_adjust_cfa_offset 8
    pushq   %rsi
    .cfi_adjust_cfa_offset 8
    pushq   %rdx                    /* and the stack is 16-byte aligned again */
    .cfi_adjust_cfa_offset 8
    movq    24(%rsp), \caller        /* where we were called from */
    call    \resolve
    movq    %rdx, %rcx
    popq    %rdx
    .cfi_adjust_cfa_offset -8
    popq    %rsi
    .cfi_adjust_cfa_offset -8
    popq    %rdi
    .cfi_adjust_cfa_offset -8
    testq   %rcx, %rcx
    jnz     1f
    jmp     *%rax
1:  ret
    .cfi_endproc
    .size   \name, . - \name
    .endm

    look_up dlsym, gs_resolve_dlsym, %rdx
    look_up dlvsym, gs_resolve_dlvsym, %rcx

    .globl  dlopen
    .type   dlopen, @function
    .p2align 4
dlopen:                             /* the real one, with the flags that gs_resolve_dlopen says */
    .cfi_startproc
    pushq   %rdi
    .cfi_adjust_cfa_offset 8
    movl    %esi, %edi
    call    gs_resolve_dlopen
    popq    %rdi
    .cfi_adjust_cfa_offset -8
    movl    %edx, %esi
    testq   %rax, %rax
    jz      1f                      /* no dlopen in this process: NULL */
    jmp     *%rax
1:  ret
    .cfi_endproc
    .size   dlopen, . - dlopen

    .hidden gs_resolve_dlopen
    .hidden gs_resolve_dlsym
    .hidden gs_resolve_dlvsym
    .section .note.GNU-stack, "", @progbits
