#!/bin/sh
# A process loads weights and shares them; it is killed and started again, and its readers never
# stop:
#
#   sh examples/restart/restart.sh [embedded|broker] [--software]
#
# With the broker (the default) a reader that comes while no loader runs finds the weights, and the
# next loader takes them over instead of loading them again. Embedded, what is open stays readable,
# and the weights are loaded anew. The last line is "restart: ok" or what went wrong.
# shellcheck disable=SC2154,SC2086 # pid_NAME is from lib.sh; nothing, or one word
set -eu

strategy=broker
case ${1:-} in embedded | broker) strategy=$1 && shift ;; esac
case ${1:-} in '' | --software) ;; *) echo 'usage: restart.sh [embedded|broker] [--software]' >&2 && exit 2 ;; esac
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=examples/lib.sh
. "$root/examples/lib.sh"
weights=$build/examples/restart/weights
software=${1:-}
export GPUSHIM_SHARE_STRATEGY="$strategy" GPUSHIM_SHARE_KEEP="${GPUSHIM_SHARE_KEEP:-5 s}" \
    GPUSHIM_SHARE_BROKER="${GPUSHIM_SHARE_BROKER:-$build/shim/command/gpushim-broker}"

# begin NAME load|read DESCRIPTOR
begin()
{
    start "$1" "$3" sh "$root/tests/with.sh" shim ${software:-} "$weights" "$2" "$place/handle"
}

# is_left: whether the broker has the weights.
is_left()
{
    "$build/shim/command/gpushim-broker" ps | grep -q '1 blocks left here'
}

begin loader load 3
says loader 'loaded the weights' || fail 'the first loader did not load'
begin early read 4
says early reading || fail 'the first reader cannot read'
[ "$strategy" = embedded ] || await is_left || fail 'the weights are not left with the broker'
kill -9 "$pid_loader"
wait "$pid_loader" 2>/dev/null || true
echo 'the loader was killed'
if [ "$strategy" = broker ]; then
    begin late read 5
    says late reading || fail 'a reader that came later cannot read'
fi
begin second load 6
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
