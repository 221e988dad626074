/*
 * What the library's file does when somebody runs it; see run_x86_64.S.
 */
    .text
    .globl gs_run
    .hidden gs_run
    .type gs_run, %function
gs_run:
    mov x8, #64 /* write */
    mov x0, #1
    adrp x1, .Ltext
    add x1, x1, :lo12:.Ltext
    ldr x2, .Lsize
    svc #0
    cmp x0, #0
    cset x0, le
    mov x8, #94 /* exit_group */
    svc #0
    .align 3
.Lsize:
    .quad .Lend - .Ltext
    .size gs_run, . - gs_run

    .section .rodata
.Ltext:
    .ascii "libgpushim ", GS_VERSION, "\n"
    .ascii "Owns the lifetime of GPU memory under CUDA programs that nobody changes. To use it:\n"
    .ascii "    LD_PRELOAD=/path/of/libgpushim.so program\n"
.Lend:
    .section .note.GNU-stack, "", %progbits
