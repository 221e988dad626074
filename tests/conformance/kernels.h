/*
 * The GPU work that the conformance suite submits, as PTX that a real driver compiles when it
 * loads the module. The software driver has no compiler: it knows these kernels by name, so a name,
 * its parameters and their order, and what the kernel does are a contract with tests/driver.
 *
 *   spin(u64 ns)
 *       busy for ns nanoseconds of %globaltimer, 10 s at most. Meant for one thread.
 *   fill(u64 ptr, u32 value, u64 count)
 *       sets count 32-bit words from ptr on.
 *   spin_fill(u64 ptr, u32 value, u64 count, u64 ns)
 *       first spins (every thread), then fills: the write comes late.
 *   scribble(u64 ptr, u64 count, u64 ns)
 *       writes 0xdeadbeef to all words again and again for ns: at least once, and still at the end.
 *   count_other(u64 ptr, u32 value, u64 count, u64 out)
 *       atomically adds to the 32-bit word at out how many of the words are not value.
 *   copy_words(u64 dst, u64 src, u64 count)
 *       copies count words, not overlapping.
 *
 * All but spin stride over the whole grid: the result does not depend on the launch's dimensions.
 * Pointers are 4-byte aligned.
 */
#ifndef CONFORMANCE_KERNELS_H
#define CONFORMANCE_KERNELS_H

/* r0..r3 scratch; rd10 this thread's word, rd11 the grid's stride. */
#define KERNEL_GRID_STRIDE                   \
    "    mov.u32 %r0, %ctaid.x;\n"           \
    "    mov.u32 %r1, %ntid.x;\n"            \
    "    mov.u32 %r2, %tid.x;\n"             \
    "    mad.wide.u32 %rd10, %r0, %r1, 0;\n" \
    "    cvt.u64.u32 %rd12, %r2;\n"          \
    "    add.u64 %rd10, %rd10, %rd12;\n"     \
    "    mov.u32 %r3, %nctaid.x;\n"          \
    "    mul.wide.u32 %rd11, %r3, %r1;\n"

/* rd20 nanoseconds to spin; rd21 becomes the time it ends. */
#define KERNEL_SPIN_END                        \
    "    min.u64 %rd20, %rd20, 10000000000;\n" \
    "    mov.u64 %rd21, %globaltimer;\n"       \
    "    add.u64 %rd21, %rd21, %rd20;\n"

#define KERNEL_SPIN                        \
    KERNEL_SPIN_END                        \
    "SPIN:\n"                              \
    "    mov.u64 %rd22, %globaltimer;\n"   \
    "    setp.lt.u64 %p0, %rd22, %rd21;\n" \
    "    @%p0 bra SPIN;\n"

#define KERNEL_REGISTERS      \
    "    .reg .pred %p<4>;\n" \
    "    .reg .b32 %r<16>;\n" \
    "    .reg .b64 %rd<32>;\n"

/* Stores %r8 to all rd2 words from rd1 on. */
#define KERNEL_STORE_WORDS                       \
    "STORE:\n"                                   \
    "    setp.ge.u64 %p1, %rd10, %rd2;\n"        \
    "    @%p1 bra STORED;\n"                     \
    "    shl.b64 %rd13, %rd10, 2;\n"             \
    "    add.u64 %rd13, %rd1, %rd13;\n"          \
    "    st.volatile.global.u32 [%rd13], %r8;\n" \
    "    add.u64 %rd10, %rd10, %rd11;\n"         \
    "    bra STORE;\n"                           \
    "STORED:\n"

static const char kernels_ptx[] =
    ".version 6.0\n"
    ".target sm_52\n"
    ".address_size 64\n"

    ".visible .entry spin(.param .u64 ns)\n"
    "{\n" KERNEL_REGISTERS "    ld.param.u64 %rd20, [ns];\n" KERNEL_SPIN "    ret;\n"
    "}\n"

    ".visible .entry fill(.param .u64 ptr, .param .u32 value, .param .u64 count)\n"
    "{\n" KERNEL_REGISTERS "    ld.param.u64 %rd1, [ptr];\n"
    "    cvta.to.global.u64 %rd1, %rd1;\n"
    "    ld.param.u32 %r8, [value];\n"
    "    ld.param.u64 %rd2, [count];\n" KERNEL_GRID_STRIDE KERNEL_STORE_WORDS "    ret;\n"
    "}\n"

    ".visible .entry spin_fill(.param .u64 ptr, .param .u32 value, .param .u64 count,\n"
    "                          .param .u64 ns)\n"
    "{\n" KERNEL_REGISTERS "    ld.param.u64 %rd1, [ptr];\n"
    "    cvta.to.global.u64 %rd1, %rd1;\n"
    "    ld.param.u32 %r8, [value];\n"
    "    ld.param.u64 %rd2, [count];\n"
    "    ld.param.u64 %rd20, [ns];\n" KERNEL_SPIN KERNEL_GRID_STRIDE KERNEL_STORE_WORDS "    ret;\n"
    "}\n"

    ".visible .entry scribble(.param .u64 ptr, .param .u64 count, .param .u64 ns)\n"
    "{\n" KERNEL_REGISTERS "    ld.param.u64 %rd1, [ptr];\n"
    "    cvta.to.global.u64 %rd1, %rd1;\n"
    "    mov.u32 %r8, 0xdeadbeef;\n"
    "    ld.param.u64 %rd2, [count];\n"
    "    ld.param.u64 %rd20, [ns];\n" KERNEL_SPIN_END KERNEL_GRID_STRIDE
    "    mov.u64 %rd14, %rd10;\n"
    "AGAIN:\n"
    "    mov.u64 %rd10, %rd14;\n" KERNEL_STORE_WORDS "    mov.u64 %rd22, %globaltimer;\n"
    "    setp.lt.u64 %p0, %rd22, %rd21;\n"
    "    @%p0 bra AGAIN;\n"
    "    ret;\n"
    "}\n"

    ".visible .entry count_other(.param .u64 ptr, .param .u32 value, .param .u64 count,\n"
    "                            .param .u64 out)\n"
    "{\n" KERNEL_REGISTERS "    ld.param.u64 %rd1, [ptr];\n"
    "    cvta.to.global.u64 %rd1, %rd1;\n"
    "    ld.param.u32 %r8, [value];\n"
    "    ld.param.u64 %rd2, [count];\n"
    "    ld.param.u64 %rd3, [out];\n"
    "    cvta.to.global.u64 %rd3, %rd3;\n"
    "    mov.u32 %r9, 0;\n" KERNEL_GRID_STRIDE "NEXT:\n"
    "    setp.ge.u64 %p1, %rd10, %rd2;\n"
    "    @%p1 bra COUNTED;\n"
    "    shl.b64 %rd13, %rd10, 2;\n"
    "    add.u64 %rd13, %rd1, %rd13;\n"
    "    ld.volatile.global.u32 %r10, [%rd13];\n"
    "    setp.ne.u32 %p2, %r10, %r8;\n"
    "    @%p2 add.u32 %r9, %r9, 1;\n"
    "    add.u64 %rd10, %rd10, %rd11;\n"
    "    bra NEXT;\n"
    "COUNTED:\n"
    "    setp.eq.u32 %p3, %r9, 0;\n"
    "    @%p3 bra DONE;\n"
    "    atom.global.add.u32 %r11, [%rd3], %r9;\n"
    "DONE:\n"
    "    ret;\n"
    "}\n"

    ".visible .entry copy_words(.param .u64 dst, .param .u64 src, .param .u64 count)\n"
    "{\n" KERNEL_REGISTERS "    ld.param.u64 %rd1, [dst];\n"
    "    cvta.to.global.u64 %rd1, %rd1;\n"
    "    ld.param.u64 %rd3, [src];\n"
    "    cvta.to.global.u64 %rd3, %rd3;\n"
    "    ld.param.u64 %rd2, [count];\n" KERNEL_GRID_STRIDE "NEXT:\n"
    "    setp.ge.u64 %p1, %rd10, %rd2;\n"
    "    @%p1 bra DONE;\n"
    "    shl.b64 %rd13, %rd10, 2;\n"
    "    add.u64 %rd15, %rd3, %rd13;\n"
    "    ld.volatile.global.u32 %r10, [%rd15];\n"
    "    add.u64 %rd15, %rd1, %rd13;\n"
    "    st.volatile.global.u32 [%rd15], %r10;\n"
    "    add.u64 %rd10, %rd10, %rd11;\n"
    "    bra NEXT;\n"
    "DONE:\n"
    "    ret;\n"
    "}\n";

#endif
