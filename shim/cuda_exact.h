/*
 * cuda.h with every entry point under its exact symbol name (cuMemAlloc_v2, not a macro cuMemAlloc
 * that means it), and with the prototypes that the headers at hand are too old to have, or that
 * stand in headers which want those of other APIs.
 */
#ifndef GPUSHIM_SHIM_CUDA_EXACT_H
#define GPUSHIM_SHIM_CUDA_EXACT_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>

#ifdef cuMemAlloc
#error "cuda.h came before cuda_exact.h, with its renaming macros: include cuda_exact.h first"
#endif

#include "cuda_interop.h"
#include "cuda_newer.h"

#endif
