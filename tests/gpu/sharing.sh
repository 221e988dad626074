#!/bin/sh
# How long first opens of handles take, on a GPU machine.
#
#   sh tests/gpu/bench.sh bundle [BUILD_FOLDER]   where it is built: gathers .bundle/bench
#   sh tests/gpu/sharing.sh first [RUNS]          on the GPU machine, in the repository's root
#
# Prints medians natively and under the library.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
bundle=$root/.bundle/bench

[ "${1:-}" = first ] || {
    echo 'usage: sh tests/gpu/sharing.sh first [RUNS]' >&2
    exit 2
}
[ -x "$bundle/tests/bench/ipc" ] || {
    echo "sharing: no $bundle: run 'sh tests/gpu/bench.sh bundle' where it is built" >&2
    exit 1
}
GPUSHIM_BUILD=$bundle
export GPUSHIM_BUILD
with=$root/tests/with.sh

# Medians of first opens, each in processes of its own: "first RUNS of each".
first()
{
    for flags in '' '--warm' '--pause 300' '--warm --pause 300'; do
        for mode in native shim; do
            for _ in $(seq "$1"); do
                # shellcheck disable=SC2086 # the flags are several words
                timeout 60 sh "$with" "$mode" "$bundle/tests/bench/ipc" $flags --rounds 3 --blocks 2
            done | FLAGS=$flags MODE=$mode python3 -c '
import json, os, statistics, sys
runs = [json.loads(line) for line in sys.stdin]
told = {name: [run[name] for run in runs] for name in ("open_first_us", "close_first_us", "open_each_us")}
print("first open", os.environ["MODE"], os.environ["FLAGS"], *(
    f"{name} {statistics.median(us):.0f} ({min(us):.0f} to {max(us):.0f})" for name, us in told.items()))'
        done
    done
}

first "${2:-8}"
