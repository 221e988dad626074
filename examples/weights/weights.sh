#!/bin/sh
# An engine loads a model's weights and publishes them under a name; a second one maps them; the first
# is killed, and the next one starts on the broker's copy:
#
#   sh examples/weights/weights.sh [--software] [--mib N] [FILE.safetensors]
#
# Without a file it makes one, of 64 MiB or N. The last line is "weights: ok" or what went wrong.
# shellcheck disable=SC2154,SC2086 # pid_NAME is from lib.sh; nothing, or one word
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=examples/lib.sh
. "$root/examples/lib.sh"
python=${PYTHON:-python3}
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

export GPUSHIM_SHARE_STRATEGY=broker GPUSHIM_DEBUG_ACCESS=read-only \
    GPUSHIM_SHARE_BROKER="${GPUSHIM_SHARE_BROKER:-$build/shim/command/gpushim-broker}"

weights()
{
    sh "$root/tests/with.sh" shim $software "$python" "$root/examples/weights/weights.py" "$@"
}

# run NAME DESCRIPTOR: an engine. Not by weights(): the number is to be the engine's, not that of a shell around it.
run()
{
    start "$1" "$2" sh "$root/tests/with.sh" shim $software \
        "$python" "$root/examples/weights/weights.py" run llama "$file"
}

if [ -z "$file" ]; then
    file=$place/model.safetensors
    "$python" "$root/examples/weights/weights.py" make "$file" "$mib"
fi
run first 3
says first '^loaded' || fail 'the first engine did not load the weights'
run second 4
says second '^mapped' || fail 'the second engine did not map them'
gpushim ls
kill -9 "$pid_first"
wait "$pid_first" 2>/dev/null || true
gpushim ls | grep -q "pid $pid_first" && fail 'the first engine still has the name'
echo 'the first was killed'
run third 5
says third '^mapped' || fail 'the third engine did not start on what the broker has'
echo "check: $(weights check llama "$file" | tail -n 1)"
exec 4>&-
wait "$pid_second" || fail 'the second engine saw something else than weights'
says second 'the same until the end' || fail 'the second engine did not read on'
weights unpublish llama || fail 'the name does not end'
gpushim ls llama >/dev/null 2>&1 && fail 'there is a name left'
exec 5>&-
wait "$pid_third" || fail 'the third engine lost its weights with their name'
echo 'weights: ok'
