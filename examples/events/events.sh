#!/bin/sh
# One program fills GPU memory, another reads it behind a CUDA IPC event, each in namespaces of its own, as
# containers are: of mounts with a /dev/shm of its own, of IPC, processes and the network. What both see is one
# folder:
#
#   sh examples/events/events.sh [native] [--software]
#
# Needs root, as unshare does. `native` is without the library: then the event does not open.
# The last line is "events: ok" or what went wrong. Exit status 77 where no such namespaces are to be had.
set -eu

mode=shim
case ${1:-} in native) mode=native && shift ;; esac
software=${1:-}
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${GPUSHIM_BUILD:-$root/build}
place=$(mktemp -d)
fill=
finish()
{
    [ -z "$fill" ] || kill -9 "$fill" 2>/dev/null || true
    rm -rf "$place"
}
trap finish EXIT
trap 'exit 1' INT TERM

export GPUSHIM_BUILD="$build" GPUSHIM_CONFIG= GPUSHIM_SHARE_DIR="$place/run"

# contained COMMAND…: in namespaces of its own; ends with this script.
contained()
{
    exec unshare --mount --ipc --pid --net --uts --fork --kill-child --mount-proc \
        sh -c 'mount -t tmpfs -o size=64m shm /dev/shm && exec "$@"' sh "$@"
}

# events fill|read
events()
{
    # shellcheck disable=SC2086 # nothing, or one word
    contained sh "$root/tests/with.sh" "$mode" $software "$build/examples/events/events" "$1" "$place"
}

if ! (contained true) 2>/dev/null; then
    echo 'skipped: no namespaces are to be had here: it takes root, and unshare'
    exit 77
fi
(events fill) >"$place/fill.log" 2>&1 &
fill=$!
status=0
(events read) || status=$?
if [ "$status" = 0 ]; then
    wait "$fill" || status=$?
    fill=
fi
if [ "$status" != 0 ]; then
    cat "$place/fill.log" >&2
    echo "events: the reader, or who fills, failed ($mode)"
    exit 1
fi
echo 'events: ok'
