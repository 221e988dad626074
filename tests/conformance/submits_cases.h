/*
 * One row for each call that submits work, for submits.c: what it is called, what it means by its
 * stream, what a copy or a fill touches, and its arguments, of a struct material m and a stream s.
 */
#ifndef CONFORMANCE_SUBMITS_CASES_H
#define CONFORMANCE_SUBMITS_CASES_H

/* What a call means by its stream: one that has none goes to the legacy default stream or to the
 * thread's, one that has one means either of them by 0. */
enum meaning {
    LEGACY,
    THREAD,
    STREAM,
    STREAM_THREAD,
};

/* What a copy or a fill touches of the two. */
enum touched { NOTHING, DST, SRC, BOTH };

/* The arguments are what m and s say; what LAX calls answer depends on the driver. */
#define CASES(COPY, CASE, LAX)                                                                     \
    COPY(cuMemcpy, LEGACY, BOTH, m->dst, m->src, SIZE)                                             \
    COPY(cuMemcpy_ptds, THREAD, BOTH, m->dst, m->src, SIZE)                                        \
    COPY(cuMemcpyDtoD_v2, LEGACY, BOTH, m->dst, m->src, SIZE)                                      \
    COPY(cuMemcpyDtoD_v2_ptds, THREAD, BOTH, m->dst, m->src, SIZE)                                 \
    COPY(cuMemcpyHtoD_v2, LEGACY, DST, m->dst, m->host, SIZE)                                      \
    COPY(cuMemcpyHtoD_v2_ptds, THREAD, DST, m->dst, m->host, SIZE)                                 \
    COPY(cuMemcpyDtoH_v2, LEGACY, SRC, m->host, m->src, SIZE)                                      \
    COPY(cuMemcpyDtoH_v2_ptds, THREAD, SRC, m->host, m->src, SIZE)                                 \
    COPY(cuMemcpyDtoA_v2, LEGACY, SRC, m->array, 0, m->src, SIZE)                                  \
    COPY(cuMemcpyDtoA_v2_ptds, THREAD, SRC, m->array, 0, m->src, SIZE)                             \
    COPY(cuMemcpyAtoD_v2, LEGACY, DST, m->dst, m->array, 0, SIZE)                                  \
    COPY(cuMemcpyAtoD_v2_ptds, THREAD, DST, m->dst, m->array, 0, SIZE)                             \
    COPY(cuMemcpyAsync, STREAM, BOTH, m->dst, m->src, SIZE, s)                                     \
    COPY(cuMemcpyAsync_ptsz, STREAM_THREAD, BOTH, m->dst, m->src, SIZE, s)                         \
    COPY(cuMemcpyDtoDAsync_v2, STREAM, BOTH, m->dst, m->src, SIZE, s)                              \
    COPY(cuMemcpyDtoDAsync_v2_ptsz, STREAM_THREAD, BOTH, m->dst, m->src, SIZE, s)                  \
    COPY(cuMemcpyHtoDAsync_v2, STREAM, DST, m->dst, m->host, SIZE, s)                              \
    COPY(cuMemcpyHtoDAsync_v2_ptsz, STREAM_THREAD, DST, m->dst, m->host, SIZE, s)                  \
    COPY(cuMemcpyDtoHAsync_v2, STREAM, SRC, m->host, m->src, SIZE, s)                              \
    COPY(cuMemcpyDtoHAsync_v2_ptsz, STREAM_THREAD, SRC, m->host, m->src, SIZE, s)                  \
    COPY(cuMemcpyPeer, LEGACY, BOTH, m->dst, m->context, m->src, m->context, SIZE)                 \
    COPY(cuMemcpyPeer_ptds, THREAD, BOTH, m->dst, m->context, m->src, m->context, SIZE)            \
    COPY(cuMemcpyPeerAsync, STREAM, BOTH, m->dst, m->context, m->src, m->context, SIZE, s)         \
    COPY(cuMemcpyPeerAsync_ptsz, STREAM_THREAD, BOTH, m->dst, m->context, m->src, m->context,      \
         SIZE, s)                                                                                  \
    COPY(cuMemsetD8_v2, LEGACY, DST, m->dst, 1, 8)                                                 \
    COPY(cuMemsetD8_v2_ptds, THREAD, DST, m->dst, 1, 8)                                            \
    COPY(cuMemsetD8Async, STREAM, DST, m->dst, 1, 8, s)                                            \
    COPY(cuMemsetD8Async_ptsz, STREAM_THREAD, DST, m->dst, 1, 8, s)                                \
    COPY(cuMemsetD2D8_v2, LEGACY, DST, m->dst, 64, 1, 8, 2)                                        \
    COPY(cuMemsetD2D8_v2_ptds, THREAD, DST, m->dst, 64, 1, 8, 2)                                   \
    COPY(cuMemsetD2D8Async, STREAM, DST, m->dst, 64, 1, 8, 2, s)                                   \
    COPY(cuMemsetD2D8Async_ptsz, STREAM_THREAD, DST, m->dst, 64, 1, 8, 2, s)                       \
    COPY(cuMemsetD16_v2, LEGACY, DST, m->dst, 1, 8)                                                \
    COPY(cuMemsetD16_v2_ptds, THREAD, DST, m->dst, 1, 8)                                           \
    COPY(cuMemsetD16Async, STREAM, DST, m->dst, 1, 8, s)                                           \
    COPY(cuMemsetD16Async_ptsz, STREAM_THREAD, DST, m->dst, 1, 8, s)                               \
    COPY(cuMemsetD2D16_v2, LEGACY, DST, m->dst, 64, 1, 8, 2)                                       \
    COPY(cuMemsetD2D16_v2_ptds, THREAD, DST, m->dst, 64, 1, 8, 2)                                  \
    COPY(cuMemsetD2D16Async, STREAM, DST, m->dst, 64, 1, 8, 2, s)                                  \
    COPY(cuMemsetD2D16Async_ptsz, STREAM_THREAD, DST, m->dst, 64, 1, 8, 2, s)                      \
    COPY(cuMemsetD32_v2, LEGACY, DST, m->dst, 1, 8)                                                \
    COPY(cuMemsetD32_v2_ptds, THREAD, DST, m->dst, 1, 8)                                           \
    COPY(cuMemsetD32Async, STREAM, DST, m->dst, 1, 8, s)                                           \
    COPY(cuMemsetD32Async_ptsz, STREAM_THREAD, DST, m->dst, 1, 8, s)                               \
    COPY(cuMemsetD2D32_v2, LEGACY, DST, m->dst, 64, 1, 8, 2)                                       \
    COPY(cuMemsetD2D32_v2_ptds, THREAD, DST, m->dst, 64, 1, 8, 2)                                  \
    COPY(cuMemsetD2D32Async, STREAM, DST, m->dst, 64, 1, 8, 2, s)                                  \
    COPY(cuMemsetD2D32Async_ptsz, STREAM_THREAD, DST, m->dst, 64, 1, 8, 2, s)                      \
    COPY(cuMemcpy2D_v2, LEGACY, BOTH, &m->rows)                                                    \
    COPY(cuMemcpy2D_v2_ptds, THREAD, BOTH, &m->rows)                                               \
    COPY(cuMemcpy2DUnaligned_v2, LEGACY, BOTH, &m->rows)                                           \
    COPY(cuMemcpy2DUnaligned_v2_ptds, THREAD, BOTH, &m->rows)                                      \
    COPY(cuMemcpy2DAsync_v2, STREAM, BOTH, &m->rows, s)                                            \
    COPY(cuMemcpy2DAsync_v2_ptsz, STREAM_THREAD, BOTH, &m->rows, s)                                \
    COPY(cuMemcpy3D_v2, LEGACY, BOTH, &m->box)                                                     \
    COPY(cuMemcpy3D_v2_ptds, THREAD, BOTH, &m->box)                                                \
    COPY(cuMemcpy3DAsync_v2, STREAM, BOTH, &m->box, s)                                             \
    COPY(cuMemcpy3DAsync_v2_ptsz, STREAM_THREAD, BOTH, &m->box, s)                                 \
    COPY(cuMemcpy3DPeer, LEGACY, BOTH, &m->peer)                                                   \
    COPY(cuMemcpy3DPeer_ptds, THREAD, BOTH, &m->peer)                                              \
    COPY(cuMemcpy3DPeerAsync, STREAM, BOTH, &m->peer, s)                                           \
    COPY(cuMemcpy3DPeerAsync_ptsz, STREAM_THREAD, BOTH, &m->peer, s)                               \
    COPY(cuMemcpyWithAttributesAsync, STREAM, BOTH, m->dst, m->src, SIZE, m->attributes, s)        \
    COPY(cuMemcpyWithAttributesAsync_ptsz, STREAM_THREAD, BOTH, m->dst, m->src, SIZE,              \
         m->attributes, s)                                                                         \
    COPY(cuMemcpy3DWithAttributesAsync, STREAM, BOTH, m->boxes, 0, s)                              \
    COPY(cuMemcpy3DWithAttributesAsync_ptsz, STREAM_THREAD, BOTH, m->boxes, 0, s)                  \
    CASE(cuMemcpyBatchAsync, STREAM, m->dsts, m->srcs, m->sizes, 1, m->attributes, m->start, 1,    \
         m->fail, s)                                                                               \
    CASE(cuMemcpyBatchAsync_ptsz, STREAM_THREAD, m->dsts, m->srcs, m->sizes, 1, m->attributes,     \
         m->start, 1, m->fail, s)                                                                  \
    CASE(cuMemcpyBatchAsync_v2, STREAM, m->dsts, m->srcs, m->sizes, 1, m->attributes, m->start, 1, \
         s)                                                                                        \
    CASE(cuMemcpyBatchAsync_v2_ptsz, STREAM_THREAD, m->dsts, m->srcs, m->sizes, 1, m->attributes,  \
         m->start, 1, s)                                                                           \
    CASE(cuMemcpy3DBatchAsync, STREAM, 1, m->boxes, m->fail, 0, s)                                 \
    CASE(cuMemcpy3DBatchAsync_ptsz, STREAM_THREAD, 1, m->boxes, m->fail, 0, s)                     \
    CASE(cuMemcpy3DBatchAsync_v2, STREAM, 1, m->boxes, 0, s)                                       \
    CASE(cuMemcpy3DBatchAsync_v2_ptsz, STREAM_THREAD, 1, m->boxes, 0, s)                           \
    CASE(cuLaunchKernel, STREAM, m->kernel, 1, 1, 1, 1, 1, 1, 0, s, m->arguments, NULL)            \
    CASE(cuLaunchKernel_ptsz, STREAM_THREAD, m->kernel, 1, 1, 1, 1, 1, 1, 0, s, m->arguments,      \
         NULL)                                                                                     \
    CASE(cuLaunchKernelEx, STREAM, config(m, s), m->kernel, m->arguments, NULL)                    \
    CASE(cuLaunchKernelEx_ptsz, STREAM_THREAD, config(m, s), m->kernel, m->arguments, NULL)        \
    CASE(cuLaunchCooperativeKernel, STREAM, m->kernel, 1, 1, 1, 1, 1, 1, 0, s, m->arguments)       \
    CASE(cuLaunchCooperativeKernel_ptsz, STREAM_THREAD, m->kernel, 1, 1, 1, 1, 1, 1, 0, s,         \
         m->arguments)                                                                             \
    CASE(cuGraphLaunch, STREAM, m->graph, s)                                                       \
    CASE(cuGraphLaunch_ptsz, STREAM_THREAD, m->graph, s)                                           \
    LAX(cuLaunch, LEGACY, m->kernel)                                                               \
    LAX(cuLaunchGrid, LEGACY, m->kernel, 1, 1)                                                     \
    LAX(cuLaunchGridAsync, STREAM, m->kernel, 1, 1, s)                                             \
    LAX(cuLaunchCooperativeKernelMultiDevice, STREAM, launch(m, s), 1, 0)                          \
    LAX(cuStreamWriteValue32, STREAM, s, m->dst, 0, 0)                                             \
    LAX(cuStreamWriteValue32_ptsz, STREAM_THREAD, s, m->dst, 0, 0)                                 \
    LAX(cuStreamWriteValue32_v2, STREAM, s, m->dst, 0, 0)                                          \
    LAX(cuStreamWriteValue32_v2_ptsz, STREAM_THREAD, s, m->dst, 0, 0)                              \
    LAX(cuStreamWriteValue64, STREAM, s, m->dst, 0, 0)                                             \
    LAX(cuStreamWriteValue64_ptsz, STREAM_THREAD, s, m->dst, 0, 0)                                 \
    LAX(cuStreamWriteValue64_v2, STREAM, s, m->dst, 0, 0)                                          \
    LAX(cuStreamWriteValue64_v2_ptsz, STREAM_THREAD, s, m->dst, 0, 0)                              \
    LAX(cuStreamWaitValue32, STREAM, s, m->dst, 0, 3)                                              \
    LAX(cuStreamWaitValue32_ptsz, STREAM_THREAD, s, m->dst, 0, 3)                                  \
    LAX(cuStreamWaitValue32_v2, STREAM, s, m->dst, 0, 3)                                           \
    LAX(cuStreamWaitValue32_v2_ptsz, STREAM_THREAD, s, m->dst, 0, 3)                               \
    LAX(cuStreamWaitValue64, STREAM, s, m->dst, 0, 3)                                              \
    LAX(cuStreamWaitValue64_ptsz, STREAM_THREAD, s, m->dst, 0, 3)                                  \
    LAX(cuStreamWaitValue64_v2, STREAM, s, m->dst, 0, 3)                                           \
    LAX(cuStreamWaitValue64_v2_ptsz, STREAM_THREAD, s, m->dst, 0, 3)                               \
    LAX(cuStreamBatchMemOp, STREAM, s, 1, m->write, 0)                                             \
    LAX(cuStreamBatchMemOp_ptsz, STREAM_THREAD, s, 1, m->write, 0)                                 \
    LAX(cuStreamBatchMemOp_v2, STREAM, s, 1, m->write, 0)                                          \
    LAX(cuStreamBatchMemOp_v2_ptsz, STREAM_THREAD, s, 1, m->write, 0)                              \
    LAX(cuMemBatchDecompressAsync, STREAM, NULL, 0, 0, m->fail, s)                                 \
    LAX(cuMemBatchDecompressAsync_ptsz, STREAM_THREAD, NULL, 0, 0, m->fail, s)                     \
    LAX(cuFabricCpyBatchAsync, STREAM, 0, NULL, 0, s)                                              \
    LAX(cuFabricCpyBatchAsync_ptsz, STREAM_THREAD, 0, NULL, 0, s)

#endif
