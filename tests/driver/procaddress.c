/*
 * cuGetProcAddress: the name, the CUDA version the caller was built for and the default stream it
 * wants choose one exported symbol. The newest form not newer than the version wins; asked for the
 * per-thread default stream, the per-thread form where there is one. Names are exact: a suffix is
 * part of a symbol, never of a name.
 */
#include "internal.h"

CUresult sd_get_proc_address(const char *symbol, void **pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    const struct sd_row *plain = NULL, *per_thread = NULL, *found;
    bool known = false;

    if (!symbol || !pfn || version > SD_NEWER_VERSION ||
        flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < sd_row_count; i++) {
        const struct sd_row *row = &sd_rows[i];
        if (strcmp(row->name, symbol) || sd_row_hidden(i))
            continue;
        known = true;
        if (row->since > version)
            continue;
        if (row->mode & SD_PER_THREAD)
            per_thread = row;
        else
            plain = row;
    }
    found = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && per_thread &&
                    (!plain || per_thread->since >= plain->since)
                ? per_thread
                : plain;
    if (status)
        *status = found   ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                          : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    *pfn = found ? found->address : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
