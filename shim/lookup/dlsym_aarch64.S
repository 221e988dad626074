/*
 * dlsym and dlvsym for aarch64; dlsym_x86_64.S says what they do.
 *
 * gs_resolve_* return { x0: address, x1: non-zero if the address is the answer }. The jump goes
 * through x16, from where branch protection lets a function be entered.
 */
    .text

    .macro  look_up name, resolve, caller
    .globl  \name
    .type   \name, %function
    .p2align 4
\name:
    .cfi_startproc
    hint    #34                     /* bti c */
    stp     x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset 29, -48
    .cfi_offset 30, -40
    mov     x29, sp
    stp     x0, x1, [sp, #16]
    str     x2, [sp, #32]
    mov     \caller, x30            /* where we were called from */
    bl      \resolve
    mov     x16, x0
    mov     x17, x1
    ldp     x0, x1, [sp, #16]
    ldr     x2, [sp, #32]
    ldp     x29, x30, [sp], #48
    .cfi_restore 30
    .cfi_restore 29
    .cfi_def_cfa_offset 0
    cbnz    x17, 1f
    br      x16
1:  mov     x0, x16
    ret
    .cfi_endproc
    .size   \name, . - \name
    .endm

    look_up dlsym, gs_resolve_dlsym, x2
    look_up dlvsym, gs_resolve_dlvsym, x3

    .globl  dlopen
    .type   dlopen, %function
    .p2align 4
dlopen:
    .cfi_startproc
    hint    #34
    stp     x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset 29, -32
    .cfi_offset 30, -24
    mov     x29, sp
    str     x0, [sp, #16]
    mov     w0, w1
    bl      gs_resolve_dlopen
    mov     x16, x0
    ldr     x0, [sp, #16]
    ldp     x29, x30, [sp], #32
    .cfi_restore 30
    .cfi_restore 29
    .cfi_def_cfa_offset 0
    cbz     x16, 1f
    br      x16
1:  mov     x0, #0
    ret
    .cfi_endproc
    .size   dlopen, . - dlopen

    .hidden gs_resolve_dlopen
    .hidden gs_resolve_dlsym
    .hidden gs_resolve_dlvsym
    .section .note.GNU-stack, "", %progbits
