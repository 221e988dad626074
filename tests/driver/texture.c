/*
 * Textures over linear memory: what they were made of, for whoever asks; no kernel here reads
 * through one.
 */
#include "internal.h"

struct texture {
    struct sd_object object;
    struct texture *next;
    struct sd_context *context;
    CUDA_RESOURCE_DESC resource;
};

static struct texture *textures; /* protected by sd_lock */

static struct texture *texture_get(CUtexObject handle)
{
    return sd_object_check((const void *)(uintptr_t)handle, SD_TEXTURE);
}

CUresult sd_texture_create(CUtexObject *handle, const CUDA_RESOURCE_DESC *resource,
                           const CUDA_TEXTURE_DESC *reads, const CUDA_RESOURCE_VIEW_DESC *view)
{
    struct sd_context *context;
    struct texture *texture;
    int align = 0;
    CUresult result = sd_current_owner(&context);

    if (result)
        return result;
    if (!handle || !resource || !reads || resource->flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (resource->resType != CU_RESOURCE_TYPE_LINEAR)
        return CUDA_ERROR_NOT_SUPPORTED;
    sd_device_get_attribute(&align, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, context->device);
    if (view || !sd_element_bytes(resource->res.linear.format, resource->res.linear.numChannels) ||
        resource->res.linear.devPtr % align || !resource->res.linear.sizeInBytes)
        return CUDA_ERROR_INVALID_VALUE; /* but for any address (measured on an H200) */
    texture = sd_object_new(SD_TEXTURE, sizeof *texture);
    if (!texture)
        return CUDA_ERROR_OUT_OF_MEMORY;
    texture->context = context;
    texture->resource = *resource;
    texture->next = textures;
    textures = texture;
    *handle = (uintptr_t)texture;
    return CUDA_SUCCESS;
}

CUresult sd_texture_resource(CUDA_RESOURCE_DESC *resource, CUtexObject handle)
{
    const struct texture *texture = texture_get(handle);

    if (!texture || !resource)
        return CUDA_ERROR_INVALID_VALUE;
    *resource = texture->resource;
    return CUDA_SUCCESS;
}

static void texture_free(struct texture *texture)
{
    struct texture **at = &textures;

    while (*at != texture)
        at = &(*at)->next;
    *at = texture->next;
    sd_object_free(texture);
}

CUresult sd_texture_destroy(CUtexObject handle)
{
    struct texture *texture = texture_get(handle);

    if (!texture)
        return CUDA_ERROR_INVALID_VALUE;
    texture_free(texture);
    return CUDA_SUCCESS;
}

void sd_context_drop_textures(struct sd_context *context)
{
    for (struct texture *texture = textures, *next; texture; texture = next) {
        next = texture->next;
        if (texture->context == context)
            texture_free(texture);
    }
}
