#!/bin/sh
# Where the time of sharing goes, on a GPU machine: the driver's own costs, then the first opens of
# handles step by step.
#
#   sh tests/gpu/sharing.sh bundle [BUILD_FOLDER]   where it is built: gathers .bundle/bench
#   sh tests/gpu/sharing.sh                         on the GPU machine, in the repository's root
#   sh tests/gpu/sharing.sh first [RUNS]            the first opens alone
#
# Prints "FACT name = answer" of the driver, then one JSON line per run of tests/bench/ipc, and the
# steps that the library's debug log tells of.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
bundle=$root/.bundle/bench

if [ "${1:-}" = bundle ]; then
    shift
    sh "$root/tests/gpu/bench.sh" bundle "$@"
    for costs in share_costs export_costs big_costs; do
        "${CC:-cc}" -O1 -I"${CUDA_HOME:-/usr/local/cuda}/include" -o "$bundle/$costs" \
            "$root/tests/gpu/$costs.c" -ldl -lpthread
    done
    exit 0
fi

[ -x "$bundle/share_costs" ] || {
    echo "sharing: no $bundle: run 'sh tests/gpu/sharing.sh bundle' where it is built" >&2
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

# What the debug logs of both sides tell of one run.
steps()
{
    GPUSHIM_LOG=debug timeout 60 sh "$with" shim "$bundle/tests/bench/ipc" "$@" 2>&1 |
        grep -E 'share thread runs|opened in|granted to|exported ahead' || :
}

if [ "${1:-}" = first ]; then
    first "${2:-8}"
    for run in 1 2 3; do
        echo "steps of a first open, $run"
        steps --warm --rounds 3 --blocks 2
    done
    exit 0
fi
for costs in share_costs export_costs big_costs; do
    timeout 60 sh "$with" native "$bundle/$costs"
done
first 5
for flags in '' '--warm' '--pause 300' '--warm --pause 300' '--warm --pause 300 --size 64M --blocks 100'; do
    for mode in native shim; do
        echo "ipc $mode $flags"
        # shellcheck disable=SC2086 # the flags are several words
        timeout 60 sh "$with" "$mode" "$bundle/tests/bench/ipc" $flags || echo "ended with $?"
    done
done
for flags in '' '--cachers 4' '--pieces 40 --takes 80'; do
    echo "neighbour native $flags"
    # shellcheck disable=SC2086
    timeout 60 sh "$with" native "$bundle/tests/bench/neighbour" $flags || echo "ended with $?"
    for enable in on off; do
        echo "neighbour shim, $enable $flags"
        # shellcheck disable=SC2086
        GPUSHIM_LOG=info GPUSHIM_DEBUG_RECLAIM_FROM_PEERS=$enable timeout 60 sh "$with" shim \
            "$bundle/tests/bench/neighbour" $flags || echo "ended with $?"
    done
done
for flags in '--blocks 16' '--blocks 16 --warm --pause 300'; do
    echo "steps $flags"
    # shellcheck disable=SC2086
    steps $flags
done
