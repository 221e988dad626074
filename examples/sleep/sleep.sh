#!/bin/sh
# Two servers whose models fit on the GPU one at a time answer in turns:
#
#   sh examples/sleep/sleep.sh [--software] [MIB]
#
# MIB is the size of each model, 600 where nothing else is said; --software takes the software driver, with
# a GPU that has room for one. The last line is "sleep: ok" or what went wrong.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
build=${GPUSHIM_BUILD:-$root/build}
software=
[ "${1:-}" != --software ] || software=$1
[ -z "$software" ] || shift
mib=${1:-600}
place=$(mktemp -d)
pids=
finish()
{
    for pid in $pids; do kill -9 "$pid" 2>/dev/null || true; done
    rm -rf "$place"
}
trap finish EXIT
trap 'exit 1' INT TERM

fail()
{
    echo "sleep: $*"
    cat "$place"/*.err >&2 2>/dev/null || true
    exit 1
}

export GPUSHIM_BUILD="$build" GPUSHIM_CONFIG= GPUSHIM_SHARE_DIR="$place/run" GPUSHIM_DEBUG_RECLAIM_FROM_PEERS=on
[ -z "$software" ] || export SOFTCUDA_MACHINE="$place/machine" SOFTCUDA_MEMORY="$((mib * 5 / 3))M"
gpushim()
{
    env -u GPUSHIM_BUILD -u GPUSHIM_DEBUG_RECLAIM_FROM_PEERS "$build/shim/command/gpushim" "$@"
}

# await LOG LINES: until it has so many.
await()
{
    tries=0
    until [ "$(wc -l <"$1")" -ge "$2" ]; do
        [ $tries -lt 2000 ] || fail "$1 says no more: $(cat "$1")"
        sleep 0.05
        tries=$((tries + 1))
    done
}

# serve NAME: its input is $place/NAME.in.
serve()
{
    mkfifo "$place/$1.in"
    : >"$place/$1.log"
    sh "$root/tests/with.sh" shim ${software:-} python3 "$root/examples/sleep/server.py" "$1" "$mib" \
        <"$place/$1.in" >"$place/$1.log" 2>"$place/$1.err" 3>&- 4>&- &
    eval "pid_$1=$!"
    pids="$pids $!"
    eval "exec $2>\"$place/$1.in\""
    await "$place/$1.log" 1
    cat "$place/$1.log"
}

# ask NAME DESCRIPTOR LINES
ask()
{
    echo 17 >&"$2"
    await "$place/$1.log" "$3"
    tail -n 1 "$place/$1.log"
    ! grep -q WRONG "$place/$1.log" || fail "$1 has lost its model"
}

serve apple 3
ask apple 3 2
# shellcheck disable=SC2154
gpushim sleep "$pid_apple" || fail 'apple does not sleep'
serve pear 4
ask pear 4 2
# shellcheck disable=SC2154
for turn in 3 4 5; do
    gpushim swap "$pid_pear" "$pid_apple" || fail 'pear and apple do not swap'
    ask apple 3 $turn
    gpushim swap "$pid_apple" "$pid_pear" || fail 'apple and pear do not swap'
    ask pear 4 $turn
done
echo 'sleep: ok'
