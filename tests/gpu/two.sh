#!/bin/sh
# Everything of tests/gpu/run.sh that fits ten minutes, on a machine with two GPUs: the first and the
# second GPU work at once, each at what needs a GPU for itself, and then both together.
#
#   sh tests/gpu/two.sh [LIST…]     in the repository's root on the GPU machine, with the bundle
#
# A LIST is "GPUS: NAME=VALUE… PART…", as `0: conformance` or `1: OLD_DRIVER=1 stress single`, or
# `0,1: nccl`. Lists of the same GPUs run one after the other, those of different ones at once; those of both
# when all others have ended. $BUDGET is how many seconds all of it may take, 530 by default: a list that takes
# ten more is ended. Each list's log is in $OUT/N.log, its rows in $OUT/N.tsv, and $OUT/logs.tgz has the rest.
# Exit status 1 where a list ended with one.
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
out=${OUT:-/tmp/gpu-out}
work=$(mktemp -d)
ends=$(($(date +%s) + ${BUDGET:-530}))
mkdir -p "$out"
[ $# -gt 0 ] || set -- '1: conformance' '1: stress single' '0: sanitizer cupy jax command weights named pieces checkpoint own_vmm
    torch_share torch_kill torch_steps torch_graph torch_compile torch_fork' '0: cudart examples register torch_stats' \
    '0: numba' '0: chaos' '0,1: two_gpu nccl peer'

# one NUMBER GPUS WORDS…: that list, by itself.
one()
{
    number=$1 gpus=$2
    shift 2
    settings=
    while [ "${1#*=}" != "$1" ]; do
        settings="$settings $1"
        shift
    done
    mkdir -p "$work/$number"
    began=$(date +%s)
    left=$((ends - began > 0 ? ends - began : 0))
    # What it leaves when it is ended is in $work/$number as well.
    # shellcheck disable=SC2086 # a list of settings
    timeout -k 5 $((left + 10)) env "CUDA_VISIBLE_DEVICES=$gpus" "OUT=$work/$number" "TMPDIR=$work/$number" "BUDGET=$left" \
        $settings sh "$root/tests/gpu/run.sh" "$@" >"$work/$number.log" 2>&1 || echo "$number" >>"$work/wrong"
    echo "== $gpus: $settings $*: $(($(date +%s) - began)) s" >>"$work/$number.log"
}

# of GPUS LIST…: those lists of them, in turn.
of()
{
    wanted=$1 nth=0
    shift
    for list; do
        nth=$((nth + 1))
        # shellcheck disable=SC2086 # words
        [ "${list%%:*}" != "$wanted" ] || one "$nth" "$wanted" ${list#*:}
    done
}

for gpu in 0 1; do
    of "$gpu" "$@" &
done
wait
of 0,1 "$@"

nth=0
for list; do
    nth=$((nth + 1))
    [ -e "$work/$nth.log" ] || continue
    tail -n 40 "$work/$nth.log" | cut -c 1-240
done
cp "$work"/*.log "$out/"
tar -C "$work" -czf "$out/logs.tgz" . 2>/dev/null
[ ! -e "$work/wrong" ]
