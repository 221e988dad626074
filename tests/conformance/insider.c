/* A library that asks for an undocumented table of the driver's, under the name that it is built
 * with. */
#include <cuda.h>
#include <dlfcn.h>

__attribute__((visibility("default"))) int ask_for_table(const CUuuid *id);

int ask_for_table(const CUuuid *id)
{
    __typeof__(&cuGetExportTable) get =
        (__typeof__(get))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetExportTable");
    const void *table;

    return get ? (int)get(&table, id) : -1;
}
