/*
 * What the library's file does when somebody runs it: it says what it is and how to use it. There is
 * no dynamic linker and no libc then, so these are two system calls on a constant text.
 */
    .text
    .globl gs_run
    .hidden gs_run
    .type gs_run, @function
gs_run:
    mov $1, %eax /* write */
    mov $1, %edi
    lea .Ltext(%rip), %rsi
    mov $(.Lend - .Ltext), %edx
    syscall
    xor %edi, %edi
    test %rax, %rax
    setle %dil
    mov $231, %eax /* exit_group */
    syscall
    .size gs_run, . - gs_run

    .section .rodata
.Ltext:
    .ascii "libgpushim ", GS_VERSION, "\n"
    .ascii "Owns the lifetime of GPU memory under CUDA programs that nobody changes. To use it:\n"
    .ascii "    LD_PRELOAD=/path/of/libgpushim.so program\n"
.Lend:
    .section .note.GNU-stack, "", @progbits
