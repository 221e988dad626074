/*
 * A handle that is on its way when its block is freed.
 *
 *   flight room      3 s later it opens, where the GPU has room
 *   flight needed    until the memory is needed
 *   flight sender    who shares, and frees
 */
#include "party.h"
#include "tests/system.h"

#define IN_FLIGHT_S 3
#define NEEDED      ((size_t)128 << 20) /* all that the GPU has */

/* A second order: it allocates as much as there is, and is refused or not. */
static int sender(void)
{
    CUdeviceptr block, needed;
    CUipcMemHandle handle;
    char order;

    start_driver();
    block = block_new();
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, block));
    must("cuMemFree", cuMemFree(block));
    say(PARTY_SOCKET, &handle, sizeof handle);
    while (hear_or_end(PARTY_SOCKET, &order, 1)) {
        cuMemAlloc(&needed, NEEDED);
        say(PARTY_SOCKET, &order, 1);
    }
    return 0;
}

int main(int argc, char **argv)
{
    CUipcMemHandle handle;
    struct party other;
    char order = 'n';

    if (argc != 2)
        fail("one word", argc);
    if (!strcmp(argv[1], "sender"))
        return sender();
    setenv("GPUSHIM_LOG", "info", 1);
    surroundings_new();
    start_driver();
    other = party_start("sender", NULL);
    hear(other.socket, &handle, sizeof handle);
    if (!strcmp(argv[1], "needed")) {
        say(other.socket, &order, 1);
        hear(other.socket, &order, 1);
        if (try_open(&handle) == CUDA_SUCCESS)
            fail("what was needed is kept", 0);
        if (times_logged(
                "memory is needed: freed blocks whose handles nobody has opened yet (1)") != 1)
            fail("it is not said", 0);
    } else {
        sleep(IN_FLIGHT_S);
        must("cuIpcOpenMemHandle", try_open(&handle));
    }
    if (party_end(&other) != 0)
        fail("the sender failed", 0);
    printf("ok\n");
    return 0;
}
