/*
 * Green contexts: streams of their own in the primary context of their device, which has all the
 * rest. An event of the primary one covers them, theirs covers nobody else. They get all of the
 * device. A handle is one context's, asked for as either type. One may have no default stream, and
 * no stream of theirs waits for that (measured on an H200).
 */
#include "internal.h"

CUresult sd_device_get_resource(CUdevice dev, CUdevResource *resource, CUdevResourceType type)
{
    if (!sd_device_get_ptr(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!resource)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    memset(resource, 0, sizeof *resource);
    resource->type = type;
    resource->sm.smCount = 132;
    return CUDA_SUCCESS;
}

/* A descriptor says nothing here. */
static char description;

CUresult sd_resource_describe(CUdevResourceDesc *desc, CUdevResource *resources, unsigned count)
{
    if (!desc || !resources || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM)
            return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *desc = (CUdevResourceDesc)&description;
    return CUDA_SUCCESS;
}

CUresult sd_green_create(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice dev, unsigned flags)
{
    struct sd_context *context;
    CUcontext primary;
    CUresult result;

    if (!green || desc != (CUdevResourceDesc)&description ||
        flags & ~(unsigned)CU_GREEN_CTX_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    result = sd_primary_retain(&primary, dev);
    if (result)
        return result;
    context = sd_context_new(dev, 0, 3020);
    if (!context) {
        sd_primary_release(dev);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    context->green_of = (struct sd_context *)primary;
    context->no_default = !flags;
    *green = (CUgreenCtx)context;
    return CUDA_SUCCESS;
}

static struct sd_context *check(CUgreenCtx green)
{
    struct sd_context *context = sd_object_check(green, SD_CONTEXT);

    return context && context->green_of && context->active ? context : NULL;
}

CUresult sd_green_destroy(CUgreenCtx green)
{
    struct sd_context *context = check(green);
    int device;

    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    device = context->device;
    sd_context_end(context);
    return sd_primary_release(device);
}

CUresult sd_ctx_from_green(CUcontext *ctx, CUgreenCtx green)
{
    if (!check(green))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!ctx)
        return CUDA_ERROR_INVALID_VALUE;
    *ctx = (CUcontext)green;
    return CUDA_SUCCESS;
}

CUresult sd_stream_get_contexts(CUstream stream, CUcontext *ctx, CUgreenCtx *green)
{
    struct sd_context *context;
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (!result && (!ctx || !green))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        result = sd_capture_forbids_legacy(queue);
    if (result)
        return result;
    context = queue->context;
    *ctx = (CUcontext)(context->green_of ? context->green_of : context);
    *green = context->green_of ? (CUgreenCtx)context : NULL;
    return CUDA_SUCCESS;
}
