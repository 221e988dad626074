/*
 * Who may submit work by ways that nobody sees: the driver's undocumented tables of functions.
 * Those that are asked for by everybody are known to be none: the runtime API is linked into most
 * programs and libraries that use CUDA, so it is known by the tables that it asks for, not by its
 * name. Any other table, and any that a library of the driver's own asks for, may be such a way.
 */
#include "shim/lookup/elf_symbols.h"
#include "hook.h"
#include "shim/start.h"
#include "submit.h"

#include <link.h>
#include <stdio.h>
#include <string.h>

#define TABLE_NAME_SIZE 128

/*
 * Tables of which something is known: who has them (read from the libraries of CUDA 11.8 to 13.5).
 * The kernels, copies and fills of PyTorch, CuPy and JAX, which have the runtime API, cuBLAS and
 * cuFFT in them, come by the documented calls all the same (measured on an H200).
 */
static const unsigned char harmless[][16] = {
    /* the runtime API */
    {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d,
     0xf9},
    {0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a,
     0x66},
    {0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec,
     0xdc},
    {0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95,
     0x93},
    {0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1,
     0xf2},
    {0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa,
     0x7e},
    {0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d,
     0xd9},
    /* that of CUDA 13.5, cuBLAS and cuFFT */
    {0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8,
     0xf2},
    /* cuFFT */
    {0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99,
     0x1e},
    /* cuBLASLt of CUDA 13 and cuDNN 9, which ask which processors lie in which cluster: one
     * function that fills a list, and one that frees it */
    {0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b,
     0xca},
    /* NVRTC and nvJitLink, which compile */
    {0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3,
     0x28},
};

/* Libraries of the driver's own: ray tracing, video, pictures and what those load. */
static const char *const insiders[] = {"libnvoptix.", "libnvcuvid.", "libnvidia-"};
/* And NVML, which watches and manages devices (PyTorch loads it): none of its calls takes an
 * address, so whatever it has the GPU do touches nothing that the program frees. */
static const char nvml[] = "libnvidia-ml.";

struct asker {
    const void *caller;
    bool inside;
    bool nvml;
    char name[TABLE_NAME_SIZE];
};

static int visit(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct asker *asker = arg;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    const char *name = slash ? slash + 1 : info->dlpi_name;

    if (!gs_elf_contains(info, asker->caller))
        return 0;
    for (size_t i = 0; name && i < sizeof insiders / sizeof *insiders; i++)
        asker->inside |= strncmp(name, insiders[i], strlen(insiders[i])) == 0;
    asker->nvml = name && strncmp(name, nvml, strlen(nvml)) == 0;
    if (name && *name)
        snprintf(asker->name, sizeof asker->name, "%s", name);
    return 1;
}

static bool is_harmless(const CUuuid *table)
{
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (memcmp(table->bytes, harmless[i], sizeof harmless[i]) == 0)
            return true;
    return false;
}

static void note_asker(const void *caller, const CUuuid *table)
{
    struct asker asker = {.caller = caller, .name = "the program"};
    char why[TABLE_NAME_SIZE + 72];

    gs_elf_each(visit, &asker);
    if (asker.nvml || (!asker.inside && is_harmless(table)))
        return;
    snprintf(why, sizeof why,
             "%s may submit work that is not seen, by the driver's table %02x%02x%02x%02x",
             asker.name, table->bytes[0] & 0xff, table->bytes[1] & 0xff, table->bytes[2] & 0xff,
             table->bytes[3] & 0xff);
    gs_single_drain(gs_single, why);
}

GS_HOOK CUresult CUDAAPI cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
    const void *caller = __builtin_return_address(0);

    if (gs_state_enter() && pExportTableId && gs_single_matters()) {
        GS_KEEP_ERRNO;
        note_asker(caller, pExportTableId);
    }
    return gs_real.cuGetExportTable(ppExportTable, pExportTableId);
}
