/* A party (party.h) that opens, reads, writes and closes as it is told, and says what it holds. */
#ifndef GS_TESTS_IMPORTER_H
#define GS_TESTS_IMPORTER_H

#include "party.h"

/* What a process holds of the software driver, and its descriptors but for those above the soft
 * limit, where that driver keeps its memory's. On a real driver only descriptors more than when it
 * was asked first. */
struct held {
    uint32_t handles, mappings, reservations, host_blocks, exported, descriptors;
};
struct held held_here(void);

/* What the party does until it is hung up on. */
int importer(void);

struct opened {
    CUresult result;
    uint64_t address, base, size;
};
struct opened try_open_there(const struct party *party, CUipcMemHandle handle);
uint32_t read_there(const struct party *party, uint64_t address);
/* Once it is there. */
CUresult try_write_there(const struct party *party, uint64_t address, uint32_t word);
CUresult try_close_there(const struct party *party, uint64_t address);
void close_there(const struct party *party, uint64_t address);
struct held held_there(const struct party *party);

/* Of this process, too. */
uint32_t word_at(CUdeviceptr address);
CUipcMemHandle handle_of(CUdeviceptr address);

/* Or the program ends, saying what does not hold. */
void expect(const char *what, bool holds);

#endif
