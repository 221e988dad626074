/*
 * The conformance suite's main: Criterion's, unless this process is a peer (peer.h). It is exported
 * because Criterion, where it executes this binary again to run one test, looks up the program's
 * main in the symbols that the loader sees and puts the test in its place.
 */
#include "peer.h"

#include <criterion/criterion.h>

__attribute__((visibility("default"))) int main(int argc, char **argv)
{
    struct criterion_test_set *tests;
    int failed;

    if (argc == 2 && strcmp(argv[1], "--peer") == 0)
        return peer_main();
    tests = criterion_initialize();
    failed = criterion_handle_args(argc, argv, true) ? !criterion_run_all_tests(tests) : 0;
    criterion_finalize(tests);
    return failed;
}
