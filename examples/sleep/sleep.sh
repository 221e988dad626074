#!/bin/sh
# Two servers whose models fit on the GPU one at a time answer in turns:
#
#   sh examples/sleep/sleep.sh [--software] [--by-itself] [MIB]
#
# By commands; with --by-itself by two options and none. MIB is the size of each model, 600 where nothing
# else is said; --software takes the software driver, with a GPU that has room for one. The last line is
# "sleep: ok" or what went wrong.
# shellcheck disable=SC2154,SC2086 # pid_NAME is from lib.sh; nothing, or one word
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=examples/lib.sh
. "$root/examples/lib.sh"
software='' alone=''
[ "${1:-}" != --software ] || { software=$1 && shift; }
[ "${1:-}" != --by-itself ] || { alone=$1 && shift; }
mib=${1:-600}
case $mib in
    *[!0-9]*) echo 'usage: sleep.sh [--software] [--by-itself] [MIB]' >&2 && exit 2 ;;
esac
export GPUSHIM_DEBUG_RECLAIM_FROM_PEERS=on
[ -z "$alone" ] || export GPUSHIM_SLEEP_AFTER='10 ms' GPUSHIM_SLEEP_WAKE=use
[ -z "$software" ] || export SOFTCUDA_MACHINE="$place/machine" SOFTCUDA_MEMORY="$((mib * 5 / 3))M"

# serve NAME DESCRIPTOR
serve()
{
    start "$1" "$2" sh "$root/tests/with.sh" shim ${software:-} python3 "$root/examples/sleep/server.py" "$1" "$mib"
}

# has NAME LINES: whether it has said so many.
has()
{
    [ "$(wc -l <"$place/$1.log")" -ge "$2" ]
}

# ask NAME DESCRIPTOR LINES
ask()
{
    echo 17 >&"$2"
    await has "$1" "$3" || fail "$1 says no more"
    tail -n 1 "$place/$1.log"
    ! says "$1" WRONG || fail "$1 has lost its model"
}

# orders COMMAND PID...
orders()
{
    [ -n "$alone" ] || gpushim "$@" || fail "it does not $*"
}

serve apple 3
ask apple 3 2
orders sleep "$pid_apple"
serve pear 4
ask pear 4 2
for turn in 3 4 5; do
    orders swap "$pid_pear" "$pid_apple"
    ask apple 3 $turn
    orders swap "$pid_apple" "$pid_pear"
    ask pear 4 $turn
done
echo 'sleep: ok'
