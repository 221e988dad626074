/* A party that opens as it is told (importer.h). */
#include "importer.h"

#include <dirent.h>
#include <sys/resource.h>

#include "softcuda.h"

struct order {
    enum { OPEN = 1, CLOSE, READ, WRITE, COUNT } what;
    CUipcMemHandle handle;
    uint64_t address;
    uint32_t word;
};

struct answer {
    struct opened opened; /* its result is that of all */
    uint32_t word;
    struct held held;
};

void expect(const char *what, bool holds)
{
    if (!holds)
        fail(what, 0);
}

uint32_t word_at(CUdeviceptr address)
{
    uint32_t word = 0;

    must("cuMemcpyDtoH", cuMemcpyDtoH(&word, address, sizeof word));
    return word;
}

CUipcMemHandle handle_of(CUdeviceptr address)
{
    CUipcMemHandle handle;

    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, address));
    return handle;
}

static uint32_t descriptors(void)
{
    DIR *list = opendir("/proc/self/fd");
    const struct dirent *entry;
    struct rlimit limit;
    uint32_t count = 0;

    getrlimit(RLIMIT_NOFILE, &limit);
    while ((entry = readdir(list)))
        count += entry->d_name[0] != '.' && (rlim_t)atoi(entry->d_name) < limit.rlim_cur;
    closedir(list);
    return count - 1; /* the list's own */
}

/* Not there on a real driver, which cannot be asked and has descriptors of its own. */
#pragma weak softcuda_census

struct held held_here(void)
{
    static uint32_t of_the_driver;
    struct softcuda_census now = {0};

    if (!softcuda_census) {
        of_the_driver = of_the_driver ? of_the_driver : descriptors();
        return (struct held){.descriptors = descriptors() - of_the_driver};
    }
    softcuda_census(&now);
    return (struct held){now.handles,     now.mappings,     now.reservations,
                         now.host_blocks, now.exported_fds, descriptors()};
}

static struct opened open_here(CUipcMemHandle handle)
{
    struct opened opened = {0};
    CUdeviceptr address = 0, base = 0;
    size_t size = 0;

    opened.result = cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (opened.result == CUDA_SUCCESS)
        must("cuMemGetAddressRange", cuMemGetAddressRange(&base, &size, address + 4));
    opened.address = address;
    opened.base = base;
    opened.size = size;
    return opened;
}

static struct answer obey(const struct order *order)
{
    struct answer answer = {0};

    switch (order->what) {
    case OPEN:
        answer.opened = open_here(order->handle);
        break;
    case CLOSE:
        answer.opened.result = cuIpcCloseMemHandle(order->address);
        break;
    case READ:
        answer.word = word_at(order->address);
        break;
    case WRITE:
        answer.opened.result = cuMemsetD32(order->address, order->word, 1);
        must("cuCtxSynchronize", cuCtxSynchronize());
        break;
    case COUNT:
        answer.held = held_here();
        break;
    }
    return answer;
}

int importer(void)
{
    struct order order;
    struct answer answer;

    start_driver();
    while (hear_or_end(PARTY_SOCKET, &order, sizeof order)) {
        answer = obey(&order);
        say(PARTY_SOCKET, &answer, sizeof answer);
    }
    return 0;
}

static struct answer tell(const struct party *party, const struct order *order)
{
    struct answer answer;

    say(party->socket, order, sizeof *order);
    hear(party->socket, &answer, sizeof answer);
    return answer;
}

struct opened try_open_there(const struct party *party, CUipcMemHandle handle)
{
    return tell(party, &(struct order){.what = OPEN, .handle = handle}).opened;
}

uint32_t read_there(const struct party *party, uint64_t address)
{
    return tell(party, &(struct order){.what = READ, .address = address}).word;
}

CUresult try_write_there(const struct party *party, uint64_t address, uint32_t word)
{
    return tell(party, &(struct order){.what = WRITE, .address = address, .word = word})
        .opened.result;
}

CUresult try_close_there(const struct party *party, uint64_t address)
{
    return tell(party, &(struct order){.what = CLOSE, .address = address}).opened.result;
}

void close_there(const struct party *party, uint64_t address)
{
    must("cuIpcCloseMemHandle there", try_close_there(party, address));
}

struct held held_there(const struct party *party)
{
    return tell(party, &(struct order){.what = COUNT}).held;
}
