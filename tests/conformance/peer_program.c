/*
 * The second process of a conformance test (peer.h), a program of its own: Criterion executes the
 * test program again for each test and takes a main of ours for one of its workers.
 */
#include "peer.h"

int main(void)
{
    return peer_main();
}
