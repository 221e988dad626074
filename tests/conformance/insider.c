/* A library that asks for the driver's undocumented tables, under the name that it is built with. */
#include <cuda.h>
#include <dlfcn.h>

__attribute__((visibility("default"))) int ask_for_table(void);

int ask_for_table(void)
{
    static const CUuuid id = {{1}};
    __typeof__(&cuGetExportTable) get =
        (__typeof__(get))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetExportTable");
    const void *table;

    return get ? (int)get(&table, &id) : -1;
}
