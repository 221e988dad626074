/*
 * Modules: the PTX text that the real driver would compile. Here each kernel in it is looked up by
 * name among those of kernels.c, so one test source runs on both. A library is text of no context:
 * a context that asks for something of it has a module of it from then on.
 */
#include "internal.h"

struct function {
    struct sd_object object;
    struct function *next;
    const struct sd_kernel *kernel;
};

/* A variable that was asked for. */
struct global {
    struct global *next;
    char *name;
    struct sd_block *block;
};

struct library {
    struct sd_object object;
    char *ptx;
};

struct sd_module {
    struct sd_object object;
    struct sd_module *next;
    struct sd_context *context;
    const struct library *library; /* NULL: one that the program loaded by itself */
    struct function *functions;    /* those asked for so far */
    struct global *globals;        /* likewise */
    char *ptx;
};

static bool is_text(const char *image)
{
    return strstr(image, ".version") && strstr(image, ".target");
}

static CUresult module_new(struct sd_context *context, const char *ptx, struct sd_module **ret)
{
    struct sd_module *module = sd_object_new(SD_MODULE, sizeof *module);

    if (!module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    module->ptx = strdup(ptx);
    if (!module->ptx) {
        sd_object_free(module);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    module->context = context;
    module->next = context->modules;
    context->modules = module;
    *ret = module;
    return CUDA_SUCCESS;
}

CUresult sd_module_load_data(CUmodule *handle, const void *image)
{
    struct sd_context *context;
    struct sd_module *module;
    CUresult result = sd_current_owner(&context);

    if (!result)
        result = sd_capture_forbids();
    if (result)
        return result;
    if (!handle || !image)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_text(image))
        return CUDA_ERROR_INVALID_IMAGE;
    result = module_new(context, image, &module);
    if (!result)
        *handle = (CUmodule)module;
    return result;
}

static void module_free(struct sd_module *module)
{
    struct sd_module **at = &module->context->modules;

    while (*at != module)
        at = &(*at)->next;
    *at = module->next;
    for (struct function *function = module->functions, *next; function; function = next) {
        next = function->next;
        sd_object_free(function);
    }
    for (struct global *global = module->globals, *next; global; global = next) {
        next = global->next;
        sd_block_release(global->block, NULL, NULL);
        free(global->name);
        free(global);
    }
    free(module->ptx);
    sd_object_free(module);
}

CUresult sd_module_unload(CUmodule handle)
{
    struct sd_module *module = sd_object_check(handle, SD_MODULE);

    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    module_free(module);
    return CUDA_SUCCESS;
}

void sd_context_drop_modules(struct sd_context *context)
{
    while (context->modules)
        module_free(context->modules);
}

/* The text declares `.entry NAME`, whatever space is between. */
static bool has_entry(const char *ptx, const char *name)
{
    const char *at = ptx;
    size_t n = strlen(name);

    while ((at = strstr(at, ".entry"))) {
        at += strlen(".entry");
        at += strspn(at, " \t\r\n");
        if (!strncmp(at, name, n) && strchr(" \t\r\n(", at[n]))
            return true;
    }
    return false;
}

/* Bytes of a variable that the text declares as `.b8 NAME[BYTES]`, 0 where it does not. */
static size_t global_bytes(const char *ptx, const char *name)
{
    const char *at = ptx;
    size_t n = strlen(name);

    while ((at = strstr(at, ".b8"))) {
        at += strlen(".b8");
        at += strspn(at, " \t\r\n");
        if (!strncmp(at, name, n) && at[n] == '[')
            return strtoul(at + n + 1, NULL, 10);
    }
    return 0;
}

static CUresult global_new(struct sd_module *module, const char *name, struct global **ret)
{
    const int device = module->context->device;
    size_t bytes = global_bytes(module->ptx, name);
    struct sd_segment *segment;
    struct global *global;
    CUresult result;

    if (!bytes)
        return CUDA_ERROR_NOT_FOUND;
    result = sd_segment_new_pressed(device, sd_round_up(bytes, SD_GRANULE), false, &segment);
    if (result)
        return result;
    segment->life = module->context->life;
    global = calloc(1, sizeof *global);
    if (global)
        global->name = strdup(name);
    if (global && global->name)
        global->block = sd_block_new(SD_BLOCK_MODULE, segment->base, bytes, segment, NULL, device);
    if (!global || !global->block) {
        sd_segment_delete(segment);
        if (global)
            free(global->name);
        free(global);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    global->next = module->globals;
    module->globals = global;
    *ret = global;
    return CUDA_SUCCESS;
}

static CUresult global_get(struct sd_module *module, const char *name, CUdeviceptr *ptr,
                           size_t *bytes)
{
    struct global *global = module->globals;
    CUresult result = CUDA_SUCCESS;

    while (global && strcmp(global->name, name))
        global = global->next;
    if (!global)
        result = global_new(module, name, &global);
    if (result)
        return result;
    if (ptr)
        *ptr = global->block->base;
    if (bytes)
        *bytes = global->block->size;
    return CUDA_SUCCESS;
}

CUresult sd_module_get_global(CUdeviceptr *ptr, size_t *bytes, CUmodule handle, const char *name)
{
    struct sd_module *module = sd_object_check(handle, SD_MODULE);

    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    return name && *name ? global_get(module, name, ptr, bytes) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sd_library_load_data(CUlibrary *handle, const void *code)
{
    struct library *library;

    if (!handle || !code)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_text(code))
        return CUDA_ERROR_INVALID_IMAGE;
    library = sd_object_new(SD_LIBRARY, sizeof *library);
    if (!library)
        return CUDA_ERROR_OUT_OF_MEMORY;
    library->ptx = strdup(code);
    if (!library->ptx) {
        sd_object_free(library);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (CUlibrary)library;
    return CUDA_SUCCESS;
}

static void drop_library(struct sd_context *context, void *library)
{
    for (struct sd_module *module = context->modules, *next; module; module = next) {
        next = module->next;
        if (module->library == library)
            module_free(module);
    }
}

CUresult sd_library_unload(CUlibrary handle)
{
    struct library *library = sd_object_check(handle, SD_LIBRARY);

    if (!library)
        return CUDA_ERROR_INVALID_HANDLE;
    sd_contexts_each(drop_library, library);
    free(library->ptx);
    sd_object_free(library);
    return CUDA_SUCCESS;
}

CUresult sd_library_get_global(CUdeviceptr *ptr, size_t *bytes, CUlibrary handle, const char *name)
{
    const struct library *library = sd_object_check(handle, SD_LIBRARY);
    struct sd_context *context;
    struct sd_module *module;
    CUresult result = sd_current_owner(&context);

    if (result)
        return result;
    if (!library)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    for (module = context->modules; module && module->library != library;)
        module = module->next;
    if (!module) {
        result = module_new(context, library->ptx, &module);
        if (result)
            return result;
        module->library = library;
    }
    return global_get(module, name, ptr, bytes);
}

/* A kernel that the text has and kernels.c has not is NOT_SUPPORTED: the test is at fault. */
/* Each is loaded with its module. */
CUresult sd_func_load(CUfunction handle)
{
    return sd_object_check(handle, SD_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sd_module_get_function(CUfunction *handle, CUmodule module_handle, const char *name)
{
    struct sd_module *module = sd_object_check(module_handle, SD_MODULE);
    const struct sd_kernel *kernel;
    struct function *function;

    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!handle || !name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!has_entry(module->ptx, name))
        return CUDA_ERROR_NOT_FOUND;
    kernel = sd_kernel_find(name);
    if (!kernel)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (function = module->functions; function; function = function->next) {
        if (function->kernel == kernel) {
            *handle = (CUfunction)function;
            return CUDA_SUCCESS;
        }
    }
    function = sd_object_new(SD_FUNCTION, sizeof *function);
    if (!function)
        return CUDA_ERROR_OUT_OF_MEMORY;
    function->kernel = kernel;
    function->next = module->functions;
    module->functions = function;
    *handle = (CUfunction)function;
    return CUDA_SUCCESS;
}

/* Arguments packed one behind the other, each at its alignment. */
static CUresult args_from_buffer(const struct sd_kernel *kernel, void **extra, uint64_t *args)
{
    const char *buffer = NULL;
    size_t size = 0, at = 0;

    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = *(const size_t *)extra[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < SD_KERNEL_ARGS && kernel->arg_bytes[i]; i++) {
        at = sd_round_up(at, kernel->arg_bytes[i]);
        if (!buffer || at + kernel->arg_bytes[i] > size)
            return CUDA_ERROR_INVALID_VALUE;
        memcpy(&args[i], buffer + at, kernel->arg_bytes[i]);
        at += kernel->arg_bytes[i];
    }
    return CUDA_SUCCESS;
}

static CUresult args_read(const struct sd_kernel *kernel, void **params, void **extra,
                          uint64_t *args)
{
    if (!params)
        return extra ? args_from_buffer(kernel, extra, args) : CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < SD_KERNEL_ARGS && kernel->arg_bytes[i]; i++) {
        if (!params[i])
            return CUDA_ERROR_INVALID_VALUE;
        memcpy(&args[i], params[i], kernel->arg_bytes[i]);
    }
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction handle, const unsigned grid[3], const unsigned block[3],
                       CUstream stream, void **params, void **extra, bool early)
{
    struct function *function = sd_object_check(handle, SD_FUNCTION);
    struct sd_work work = {.kind = SD_KERNEL};
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (result)
        return result;
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2] ||
        (uint64_t)block[0] * block[1] * block[2] > 1024 || grid[1] > 65535 || grid[2] > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    work.kernel.kernel = function->kernel;
    work.kernel.early = early;
    result = args_read(function->kernel, params, extra, work.kernel.args);
    return result ? result : sd_queue_do(queue, &work, NULL);
}

CUresult sd_launch_kernel(CUfunction handle, const unsigned grid[3], const unsigned block[3],
                          CUstream stream, void **params, void **extra)
{
    return launch(handle, grid, block, stream, params, extra, false);
}

CUresult sd_launch_kernel_ex(const CUlaunchConfig *config, CUfunction function, CUstream stream,
                             void **params, void **extra)
{
    bool early = false;

    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs; i++)
        early |= config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
                 config->attrs[i].value.programmaticStreamSerializationAllowed;
    return launch(function,
                  (const unsigned[]){config->gridDimX, config->gridDimY, config->gridDimZ},
                  (const unsigned[]){config->blockDimX, config->blockDimY, config->blockDimZ},
                  stream, params, extra, early);
}
