/*
 * libcuda's own functions. They are always taken from its symbol table, never through dlsym: a hook
 * then reaches the driver whatever other interposers are in the process, and none of them can end
 * in a loop with us.
 */
#include "driver.h"
#include "elf_symbols.h"
#include "names.h"
#include "shim/hooks/hook.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>

static CUresult not_loaded(void)
{
    return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult not_in_driver(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* The arguments of these two are the caller's to clean up on the ABIs there are, so that one
 * function stands in for any entry point. A program gets to not_loaded only if it calls the driver
 * without libcuda in the process: no cuInit was ever called, and the driver says this then. */
union gs_real gs_real = {.row = {[0 ... GS_DRIVER_ROWS - 1] = (void *)not_loaded}};

/* libcuda, kept loaded once found. */
static _Atomic(struct link_map *) driver_map;

/* Rows by the driver's address, open addressing: row + 1, 0 for an empty slot. Written before hooks
 * are handed out. Where the driver has one function under two names the first row has it: their
 * prototypes are the same. */
#define SLOTS 1024
_Static_assert(GS_DRIVER_ROWS <= SLOTS / 2, "the address map is too full: double SLOTS");
static uint16_t slots[SLOTS];

static unsigned slot_of(const void *address)
{
    return (unsigned)(((uintptr_t)address >> 4) * 0x9e3779b1u >> 16) % SLOTS;
}

bool gs_driver_has(int row)
{
    return gs_real.row[row] != (void *)not_in_driver && gs_real.row[row] != (void *)not_loaded;
}

bool gs_driver_find(bool may_load, void **row)
{
    struct link_map *map = gs_elf_open("libcuda.so.1", RTLD_LAZY | (may_load ? 0 : RTLD_NOLOAD));
    if (!map)
        return false;
    for (int i = 0; i < GS_DRIVER_ROWS; i++)
        row[i] = gs_elf_symbol(map->l_addr, map->l_ld, gs_row_names[i]);
    atomic_store_explicit(&driver_map, map, memory_order_release);
    return true;
}

void *gs_driver_symbol(const char *name)
{
    struct link_map *map = atomic_load_explicit(&driver_map, memory_order_acquire);
    return map ? gs_elf_symbol(map->l_addr, map->l_ld, name) : NULL;
}

void gs_driver_adopt(void *const *row)
{
    for (int i = 0; i < GS_DRIVER_ROWS; i++) {
        gs_real.row[i] = row[i] ? row[i] : (void *)not_in_driver;
        if (!row[i])
            continue;
        unsigned slot = slot_of(row[i]);
        while (slots[slot] && row[slots[slot] - 1] != row[i])
            slot = (slot + 1) % SLOTS;
        if (!slots[slot])
            slots[slot] = (uint16_t)(i + 1);
    }
}

int gs_driver_row(const void *address)
{
    for (unsigned slot = slot_of(address); slots[slot]; slot = (slot + 1) % SLOTS)
        if (gs_real.row[slots[slot] - 1] == address)
            return slots[slot] - 1;
    return -1;
}
