/*
 * What cudaEGL.h, cudaGL.h and cudaVDPAU.h declare and the library hooks, without the headers of
 * EGL, OpenGL and VDPAU that they want. tests/preload/check_table.py compares it with theirs.
 */
#ifndef GPUSHIM_SHIM_CUDA_INTEROP_H
#define GPUSHIM_SHIM_CUDA_INTEROP_H

#define GS_EGL_PLANES           3
#define GS_EGL_FRAME_TYPE_PITCH 1

struct gs_egl_frame {           /* CUeglFrame */
    void *plane[GS_EGL_PLANES]; /* arrays, or addresses of device memory */
    unsigned int width, height, depth, pitch, plane_count, channels;
    int frame_type, color_format;
    CUarray_format format;
};
typedef struct CUeglStreamConnection_st *gs_egl_connection;

CUresult CUDAAPI cuEGLStreamProducerPresentFrame(gs_egl_connection *, struct gs_egl_frame,
                                                 CUstream *);
CUresult CUDAAPI cuGLCtxCreate(CUcontext *, unsigned int, CUdevice);
CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *, unsigned int, CUdevice);
/* A VdpDevice is a number of 32 bits, and the last one a pointer to a function. */
CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext *, unsigned int, CUdevice, unsigned int, void *);
CUresult CUDAAPI cuVDPAUCtxCreate_v2(CUcontext *, unsigned int, CUdevice, unsigned int, void *);

#endif
