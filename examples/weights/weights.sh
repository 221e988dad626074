#!/bin/sh
# An engine loads a model's weights and publishes them under a name; a second one maps them; the first
# is killed, and the next one starts on the broker's copy:
#
#   sh examples/weights/weights.sh [--software] [--mib N] [FILE.safetensors]
#
# Without a file it makes one, of 64 MiB or N. The last line is "weights: ok" or what went wrong.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
build=${GPUSHIM_BUILD:-$root/build}
place=$(mktemp -d)
python=${PYTHON:-python3}
pids=
software=
mib=64
file=
while [ $# -gt 0 ]; do
    case $1 in
        --software) software=--software ;;
        --mib) mib=$2 && shift ;;
        -*) echo 'usage: weights.sh [--software] [--mib N] [FILE.safetensors]' >&2 && exit 2 ;;
        *) file=$1 ;;
    esac
    shift
done

gpushim()
{
    env -u GPUSHIM_BUILD "$build/shim/command/gpushim" "$@"
}

finish()
{
    for pid in $pids; do kill -9 "$pid" 2>/dev/null || true; done
    # The broker ends by itself when what it keeps is no longer wanted.
    rm -rf "$place"
}
trap finish EXIT
trap 'exit 1' INT TERM

fail()
{
    echo "weights: $*"
    cat "$place"/*.log >&2 2>/dev/null || true
    exit 1
}

export GPUSHIM_BUILD="$build" GPUSHIM_CONFIG= GPUSHIM_SHARE_DIR="$place/run" GPUSHIM_SHARE_STRATEGY=broker \
    GPUSHIM_DEBUG_ACCESS=read-only \
    GPUSHIM_SHARE_BROKER="${GPUSHIM_SHARE_BROKER:-$build/shim/command/gpushim-broker}"

weights()
{
    # shellcheck disable=SC2086
    sh "$root/tests/with.sh" shim $software "$python" "$root/examples/weights/weights.py" "$@"
}

# start NAME DESCRIPTOR: an engine, its input held open by a fifo; waits for its first line.
start()
{
    mkfifo "$place/$1.in"
    # Not by weights(): the number is to be the engine's, not that of a shell around it.
    # shellcheck disable=SC2086
    sh "$root/tests/with.sh" shim $software "$python" "$root/examples/weights/weights.py" run llama "$file" \
        <"$place/$1.in" >"$place/$1.log" 2>"$place/$1.err.log" 3>&- 4>&- 5>&- &
    pids="$pids $!"
    eval "pid_$1=$!"
    eval "exec $2>\"$place/$1.in\""
    tries=0
    until [ -s "$place/$1.log" ] || [ $tries -ge 1000 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    echo "$1: $(head -n 1 "$place/$1.log")"
}

says()
{
    grep -q "$2" "$place/$1.log" || fail "$3"
}

if [ -z "$file" ]; then
    file=$place/model.safetensors
    "$python" "$root/examples/weights/weights.py" make "$file" "$mib"
fi
start first 3
says first '^loaded' 'the first engine did not load the weights'
start second 4
says second '^mapped' 'the second engine did not map them'
gpushim ls
kill -9 "$pid_first"
wait "$pid_first" 2>/dev/null || true
gpushim ls | grep -q "pid $pid_first" && fail 'the first engine still has the name'
echo 'the first was killed'
start third 5
says third '^mapped' 'the third engine did not start on what the broker has'
echo "check: $(weights check llama "$file" | tail -n 1)"
exec 4>&-
wait "$pid_second" || fail 'the second engine saw something else than weights'
says second 'the same until the end' 'the second engine did not read on'
weights unpublish llama || fail 'the name does not end'
[ -z "$(gpushim ls)" ] || fail 'there is a name left'
exec 5>&-
wait "$pid_third" || fail 'the third engine lost its weights with their name'
echo 'weights: ok'
