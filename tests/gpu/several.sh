#!/bin/sh
# Much of tests/gpu/run.sh, and what else needs a GPU, in ten minutes on a machine with several GPUs: each works
# at what needs one for itself, with its part of the cores, and then all that are needed at what needs several.
#
#   sh tests/gpu/several.sh [LIST…]     in the repository's root on the GPU machine, with the bundle
#
# A LIST is "GPUS: NAME=VALUE… PART…", as `0: conformance` or `1: OLD_DRIVER=1 stress single`, or
# `2,3: nccl`, or "GPUS: NAME=VALUE… -c COMMAND". Lists of the same GPUs run one after the other, those of different
# ones at once; one of several GPUs when all lists of each of them have ended (no two of these share one). $BUDGET is
# how many seconds all of it may take, 530 by default: a list that takes ten more is ended.
#
# The driver starts processes and makes memory for one at a time, whatever the GPU. So suites of many processes gain
# nothing by it (conformance, chaos, differential and all programs on four GPUs took ten times as long as one after the
# other, and ended by their limits), and where times are compared a piece takes up to ten times as long beside others.
#
# What each list says is in $OUT/said.txt; $OUT/logs.tgz has the rest, with its rows in N/rows.tsv. Exit status 1 where
# a list ended with one.
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
out=${OUT:-/tmp/gpu-out}
work=$(mktemp -d)
ends=$(($(date +%s) + ${BUDGET:-530}))
mkdir -p "$out"
[ $# -gt 0 ] || set -- '1: conformance' '1: stress single' '0: sanitizer cupy jax command weights named pieces own_vmm
    torch_share torch_kill torch_steps torch_graph torch_compile torch_fork' \
    '0: cudart examples register torch_stats torch_graph_full' \
    '0: numba' '0: chaos' '0,1: two_gpu nccl peer'

# Each GPU that a list names, once.
gpus=$(for list; do echo "${list%%:*}"; done | tr ',' '\n' | sort -nu)
each=$(($(nproc) / $(echo "$gpus" | wc -l)))
[ "$each" -gt 0 ] || each=1

# cores_of GPUS: theirs, as taskset takes them.
cores_of()
{
    for one in $(echo "$1" | tr ',' ' '); do
        nth=$(($(echo "$gpus" | grep -nx "$one" | cut -d : -f 1) - 1))
        echo "$((nth * each % $(nproc)))-$(((nth * each + each - 1) % $(nproc)))"
    done | paste -s -d ,
}

# one NUMBER GPUS WORDS…: that list, by itself.
one()
{
    number=$1 on=$2
    shift 2
    settings=
    while [ "${1#*=}" != "$1" ]; do
        settings="$settings $1"
        shift
    done
    if [ "$1" = -c ]; then
        shift
        set -- sh -c "$*"
    else
        set -- sh "$root/tests/gpu/run.sh" "$@"
    fi
    mkdir -p "$work/$number"
    began=$(date +%s)
    left=$((ends - began > 0 ? ends - began : 0))
    # What it leaves when it is ended is in $work/$number as well.
    # shellcheck disable=SC2086 # a list of settings
    timeout -k 5 $((left + 10)) taskset -c "$(cores_of "$on")" env "CUDA_VISIBLE_DEVICES=$on" "OUT=$work/$number" \
        "TMPDIR=$work/$number" "BUDGET=$left" $settings "$@" >"$work/$number.log" 2>&1 || echo "$number" >>"$work/wrong"
    echo "== $on: $settings $*: $(($(date +%s) - began)) s" >>"$work/$number.log"
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
    : >"$work/ended.$wanted"
}

for gpu in $gpus; do
    of "$gpu" "$@" &
done
# Those of several, when each of these is free: what it waits for ends when the time for all is over.
for several in $(for list; do echo "${list%%:*}"; done | grep , | sort -u); do
    {
        for gpu in $(echo "$several" | tr ',' ' '); do
            until [ -e "$work/ended.$gpu" ]; do sleep 1; done
        done
        of "$several" "$@"
    } &
done
wait

nth=0
for list; do
    nth=$((nth + 1))
    [ -e "$work/$nth.log" ] || continue
    tail -n 40 "$work/$nth.log" | cut -c 1-240
done
cat "$work"/*.log >"$out/said.txt"
tar -C "$work" -czf "$out/logs.tgz" . 2>/dev/null
status=0
[ ! -e "$work/wrong" ] || status=1
rm -rf "$work"
exit "$status"
