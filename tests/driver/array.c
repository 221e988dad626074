/*
 * Arrays: device memory that has no address for the program, in rows one after the other. A level
 * of a mipmapped array is an array that goes with it.
 */
#include "internal.h"

struct mipmapped {
    struct sd_object object;
    struct sd_context *context;
    struct mipmapped *next;
    unsigned count;
    struct sd_array *levels[16];
};

static struct sd_array *arrays; /* protected by sd_lock, as is the next */
static struct mipmapped *mipmaps;

size_t sd_element_bytes(CUarray_format format, unsigned channels)
{
    size_t bytes;

    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        bytes = 1;
        break;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        bytes = 2;
        break;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        bytes = 4;
        break;
    default:
        return 0;
    }
    return channels == 1 || channels == 2 || channels == 4 ? bytes * channels : 0;
}

static size_t element_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    return sd_element_bytes(shape->Format, shape->NumChannels);
}

static size_t at_least_one(size_t n)
{
    return n ? n : 1;
}

static CUresult array_new(const CUDA_ARRAY3D_DESCRIPTOR *shape, struct sd_array **ret)
{
    struct sd_context *context;
    struct sd_array *array;
    size_t bytes;
    CUresult result = sd_current_owner(&context);

    if (result)
        return result;
    if (!shape || !shape->Width || !element_bytes(shape))
        return CUDA_ERROR_INVALID_VALUE;
    result = sd_capture_forbids();
    if (result)
        return result;
    if (__builtin_mul_overflow(shape->Width * element_bytes(shape), at_least_one(shape->Height),
                               &bytes) ||
        __builtin_mul_overflow(bytes, at_least_one(shape->Depth), &bytes) ||
        bytes > sd_devices[context->device].memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    array = sd_object_new(SD_ARRAY, sizeof *array);
    if (!array)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = sd_segment_new_pressed(context->device, sd_round_up(bytes, SD_GRANULE), false,
                                    &array->segment);
    if (result) {
        sd_object_free(array);
        return result;
    }
    array->context = context;
    array->segment->life = context->life;
    array->shape = *shape;
    array->pitch = shape->Width * element_bytes(shape);
    array->rows = at_least_one(shape->Height) * at_least_one(shape->Depth);
    array->next = arrays;
    arrays = array;
    *ret = array;
    return CUDA_SUCCESS;
}

static void array_free(struct sd_array *array)
{
    struct sd_array **at = &arrays;

    while (*at != array)
        at = &(*at)->next;
    *at = array->next;
    sd_segment_delete(array->segment);
    sd_object_free(array);
}

CUresult sd_array_create_3d(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    struct sd_array *array;
    CUresult result = handle ? array_new(shape, &array) : CUDA_ERROR_INVALID_VALUE;

    if (!result)
        *handle = (CUarray)array;
    return result;
}

CUresult sd_array_create_3d_v1(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape)
{
    if (!shape)
        return CUDA_ERROR_INVALID_VALUE;
    return sd_array_create_3d(handle, &(CUDA_ARRAY3D_DESCRIPTOR){.Width = shape->Width,
                                                                 .Height = shape->Height,
                                                                 .Depth = shape->Depth,
                                                                 .Format = shape->Format,
                                                                 .NumChannels = shape->NumChannels,
                                                                 .Flags = shape->Flags});
}

CUresult sd_array_create(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *flat)
{
    if (!flat)
        return CUDA_ERROR_INVALID_VALUE;
    return sd_array_create_3d(handle, &(CUDA_ARRAY3D_DESCRIPTOR){.Width = flat->Width,
                                                                 .Height = flat->Height,
                                                                 .Format = flat->Format,
                                                                 .NumChannels = flat->NumChannels});
}

CUresult sd_array_get_descriptor(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray handle)
{
    const struct sd_array *array = sd_object_check(handle, SD_ARRAY);

    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!shape)
        return CUDA_ERROR_INVALID_VALUE;
    *shape = array->shape;
    return CUDA_SUCCESS;
}

/* Waits for the work, as cuMemFree does. */
CUresult sd_array_destroy(CUarray handle)
{
    struct sd_array *array = sd_object_check(handle, SD_ARRAY);
    CUresult result;

    if (!array || array->level)
        return CUDA_ERROR_INVALID_HANDLE;
    result = sd_context_drain(array->context);
    array_free(array);
    return result;
}

static void mipmapped_free(struct mipmapped *mipmapped)
{
    struct mipmapped **at = &mipmaps;

    while (*at != mipmapped)
        at = &(*at)->next;
    *at = mipmapped->next;
    for (unsigned i = 0; i < mipmapped->count; i++)
        array_free(mipmapped->levels[i]);
    sd_object_free(mipmapped);
}

CUresult sd_mipmapped_create(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                             unsigned levels)
{
    CUDA_ARRAY3D_DESCRIPTOR level;
    struct mipmapped *mipmapped;
    struct sd_context *context;
    CUresult result = sd_current_owner(&context);

    if (result)
        return result;
    if (!handle || !shape || !levels || levels > 16)
        return CUDA_ERROR_INVALID_VALUE;
    mipmapped = sd_object_new(SD_MIPMAPPED, sizeof *mipmapped);
    if (!mipmapped)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mipmapped->context = context;
    mipmapped->next = mipmaps;
    mipmaps = mipmapped;
    level = *shape;
    while (!result && mipmapped->count < levels) {
        result = array_new(&level, &mipmapped->levels[mipmapped->count]);
        if (!result)
            mipmapped->levels[mipmapped->count++]->level = true;
        level.Width = at_least_one(level.Width / 2);
        level.Height = level.Height ? at_least_one(level.Height / 2) : 0;
        level.Depth = level.Depth ? at_least_one(level.Depth / 2) : 0;
    }
    if (result)
        mipmapped_free(mipmapped);
    else
        *handle = (CUmipmappedArray)mipmapped;
    return result;
}

CUresult sd_mipmapped_get_level(CUarray *array, CUmipmappedArray handle, unsigned level)
{
    struct mipmapped *mipmapped = sd_object_check(handle, SD_MIPMAPPED);

    if (!mipmapped)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!array || level >= mipmapped->count)
        return CUDA_ERROR_INVALID_VALUE;
    *array = (CUarray)mipmapped->levels[level];
    return CUDA_SUCCESS;
}

CUresult sd_mipmapped_destroy(CUmipmappedArray handle)
{
    struct mipmapped *mipmapped = sd_object_check(handle, SD_MIPMAPPED);
    CUresult result;

    if (!mipmapped)
        return CUDA_ERROR_INVALID_HANDLE;
    result = sd_context_drain(mipmapped->context);
    mipmapped_free(mipmapped);
    return result;
}

void sd_context_drop_arrays(struct sd_context *context)
{
    for (struct mipmapped *mipmapped = mipmaps, *next; mipmapped; mipmapped = next) {
        next = mipmapped->next;
        if (mipmapped->context == context)
            mipmapped_free(mipmapped);
    }
    for (struct sd_array *array = arrays, *next; array; array = next) {
        next = array->next;
        if (array->context == context)
            array_free(array);
    }
}
