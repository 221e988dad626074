/*
 * cuGetErrorName and cuGetErrorString for the errors that this driver gives or is told to give.
 */
#include "internal.h"

static const struct {
    CUresult error;
    const char *name;
    const char *text;
} errors[] = {
#define ERROR(error, text) {error, #error, text}
    ERROR(CUDA_SUCCESS, "no error"),
    ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR(CUDA_ERROR_NOT_INITIALIZED, "driver not initialised"),
    ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    ERROR(CUDA_ERROR_STUB_LIBRARY, "a stub library was loaded in the driver's place"),
    ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "device busy or unavailable"),
    ERROR(CUDA_ERROR_NO_DEVICE, "no device"),
    ERROR(CUDA_ERROR_INVALID_DEVICE, "no such device"),
    ERROR(CUDA_ERROR_INVALID_IMAGE, "not a module"),
    ERROR(CUDA_ERROR_INVALID_CONTEXT, "no context, or not a context"),
    ERROR(CUDA_ERROR_MAP_FAILED, "mapping failed"),
    ERROR(CUDA_ERROR_UNMAP_FAILED, "unmapping failed"),
    ERROR(CUDA_ERROR_ALREADY_MAPPED, "already mapped"),
    ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no code for this device"),
    ERROR(CUDA_ERROR_NOT_MAPPED, "not mapped"),
    ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable memory error"),
    ERROR(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit not supported"),
    ERROR(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "context used by another thread"),
    ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "no peer access between these devices"),
    ERROR(CUDA_ERROR_INVALID_PTX, "PTX does not compile"),
    ERROR(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error"),
    ERROR(CUDA_ERROR_INVALID_SOURCE, "invalid source"),
    ERROR(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    ERROR(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "symbol not found in a shared object"),
    ERROR(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "a shared object did not initialise"),
    ERROR(CUDA_ERROR_OPERATING_SYSTEM, "a call to the operating system failed"),
    ERROR(CUDA_ERROR_INVALID_HANDLE, "not a handle"),
    ERROR(CUDA_ERROR_ILLEGAL_STATE, "not possible in this state"),
    ERROR(CUDA_ERROR_NOT_FOUND, "not found"),
    ERROR(CUDA_ERROR_NOT_READY, "not ready"),
    ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "illegal memory access"),
    ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "launch needs more than there is"),
    ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "launch ran too long"),
    ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access already enabled"),
    ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access not enabled"),
    ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "primary context already active"),
    ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context destroyed"),
    ERROR(CUDA_ERROR_ASSERT, "assertion on the device"),
    ERROR(CUDA_ERROR_TOO_MANY_PEERS, "too many peers"),
    ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "host memory already registered"),
    ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "host memory not registered"),
    ERROR(CUDA_ERROR_LAUNCH_FAILED, "launch failed"),
    ERROR(CUDA_ERROR_NOT_PERMITTED, "not permitted"),
    ERROR(CUDA_ERROR_NOT_SUPPORTED, "not supported"),
    ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not ready"),
    ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "driver parts do not match"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not permitted while a stream captures"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "capture broken by an earlier error"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE, "two captures cannot become one"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture did not begin in this stream"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capture ended with work not joined"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "capture would depend on work outside of it"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "legacy stream used while a stream captures"),
    ERROR(CUDA_ERROR_CAPTURED_EVENT, "event recorded in a capture"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "capture began in another thread"),
    ERROR(CUDA_ERROR_TIMEOUT, "timed out"),
    ERROR(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "graph cannot be updated so"),
    ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
#undef ERROR
};

static size_t find(CUresult error)
{
    size_t i = 0;

    while (i < sizeof errors / sizeof *errors && errors[i].error != error)
        i++;
    return i;
}

CUresult sd_get_error_name(CUresult error, const char **name)
{
    size_t i = find(error);

    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    *name = i < sizeof errors / sizeof *errors ? errors[i].name : NULL;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sd_get_error_string(CUresult error, const char **text)
{
    size_t i = find(error);

    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = i < sizeof errors / sizeof *errors ? errors[i].text : NULL;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
