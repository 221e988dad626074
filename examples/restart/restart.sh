#!/bin/sh
# A process loads weights and shares them; it is killed and started again, and its readers never
# stop:
#
#   sh examples/restart/restart.sh [embedded|broker] [--software]
#
# With the broker (the default) a reader that comes while no loader runs finds the weights, and the
# next loader takes them over instead of loading them again. Embedded, what is open stays readable,
# and the weights are loaded anew. The last line is "restart: ok" or what went wrong.
set -eu

strategy=broker
case ${1:-} in embedded | broker) strategy=$1 && shift ;; esac
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${GPUSHIM_BUILD:-$root/build}
weights=$build/examples/restart/weights
place=$(mktemp -d)
pids=
finish()
{
    for pid in $pids; do kill -9 "$pid" 2>/dev/null || true; done
    # The broker ends by itself when what it keeps is no longer wanted; here, now.
    rm -rf "$place"
}
trap finish EXIT
trap 'exit 1' INT TERM

fail()
{
    echo "restart: $*"
    cat "$place"/*.log >&2 2>/dev/null || true
    exit 1
}

export GPUSHIM_BUILD="$build" GPUSHIM_CONFIG= GPUSHIM_SHARE_DIR="$place/run" \
    GPUSHIM_SHARE_STRATEGY="$strategy" GPUSHIM_SHARE_KEEP="${GPUSHIM_SHARE_KEEP:-5 s}" \
    GPUSHIM_SHARE_BROKER="${GPUSHIM_SHARE_BROKER:-$build/shim/command/gpushim-broker}"

# start NAME load|read: runs it with its input held open by a fifo, and waits for its first line.
start()
{
    mkfifo "$place/$1.in"
    sh "$root/tests/with.sh" shim ${software:-} "$weights" "$2" "$place/handle" \
        <"$place/$1.in" >"$place/$1.log" 2>"$place/$1.err.log" 3>&- 4>&- 5>&- 6>&- &
    pids="$pids $!"
    eval "pid_$1=$!"
    eval "exec $3>\"$place/$1.in\""
    tries=0
    until [ -s "$place/$1.log" ] || [ $tries -ge 1000 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    echo "$1: $(head -n 1 "$place/$1.log")"
}

# says NAME TEXT: whether its log has the text.
says()
{
    grep -q "$2" "$place/$1.log"
}

# left_with_broker: waits until the broker has the weights.
left_with_broker()
{
    tries=0
    until env -u GPUSHIM_BUILD "$build/shim/command/gpushim-broker" ps | grep -q '1 blocks left here'; do
        [ $tries -lt 1000 ] || fail 'the weights are not left with the broker'
        sleep 0.05
        tries=$((tries + 1))
    done
}

software=${1:-}
start loader load 3
says loader 'loaded the weights' || fail 'the first loader did not load'
start early read 4
says early reading || fail 'the first reader cannot read'
[ "$strategy" = embedded ] || left_with_broker
kill -9 "$pid_loader"
wait "$pid_loader" 2>/dev/null || true
echo 'the loader was killed'
if [ "$strategy" = broker ]; then
    start late read 5
    says late reading || fail 'a reader that came later cannot read'
fi
start second load 6
if [ "$strategy" = broker ]; then
    says second 'took the weights over' || fail 'the second loader loaded again'
else
    says second 'loaded the weights' || fail 'the second loader did not load'
fi
exec 4>&-
wait "$pid_early" || fail 'the first reader saw something wrong'
tail -n 1 "$place/early.log"
says early 'read on: 0 of' || fail 'the first reader did not read on'
if [ "$strategy" = broker ]; then
    exec 5>&-
    wait "$pid_late" || fail 'the later reader saw something wrong'
fi
exec 6>&-
wait "$pid_second" || fail 'the second loader failed'
echo 'restart: ok'
