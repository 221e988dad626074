# What the scripts of these folders share: a place that goes with the script, and processes that end with it.
# Sourced, never run; the caller has set `root` to the repository's folder. POSIX sh.
# shellcheck shell=sh disable=SC2154

build=${GPUSHIM_BUILD:-$root/build}
place=$(mktemp -d)
pids=
finish()
{
    for pid in $pids; do kill -9 "$pid" 2>/dev/null || true; done
    # A broker ends by itself when what it keeps is no longer wanted.
    rm -rf "$place"
}
trap finish EXIT
trap 'exit 1' INT TERM

export GPUSHIM_BUILD="$build" GPUSHIM_CONFIG='' GPUSHIM_SHARE_DIR="$place/run"

# fail TEXT…: the last line.
fail()
{
    echo "$(basename "$0" .sh): $*"
    cat "$place"/*.log >&2 2>/dev/null || true
    exit 1
}

gpushim()
{
    env -u GPUSHIM_DEBUG_RECLAIM_FROM_PEERS "$build/shim/command/gpushim" "$@"
}

# await COMMAND…: until it succeeds; its own failure after a while.
await()
{
    tries=0
    until "$@"; do
        [ $tries -lt 2000 ] || return 1
        sleep 0.05
        tries=$((tries + 1))
    done
}

# has_begun NAME PID: whether it has said something, or has ended.
has_begun()
{
    [ -s "$place/$1.log" ] || ! kill -0 "$2" 2>/dev/null
}

# start NAME DESCRIPTOR COMMAND…: its input is a fifo that the descriptor holds open, its output NAME.log, its
# number pid_NAME. Waits for its first line, or its end.
start()
{
    name=$1 descriptor=$2
    shift 2
    mkfifo "$place/$name.in"
    "$@" <"$place/$name.in" >"$place/$name.log" 2>"$place/$name.err.log" 3>&- 4>&- 5>&- 6>&- &
    pids="$pids $!"
    eval "pid_$name=$!"
    eval "exec $descriptor>\"$place/$name.in\""
    await has_begun "$name" $! && [ -s "$place/$name.log" ] || fail "$name says nothing"
    echo "$name: $(head -n 1 "$place/$name.log")"
}

# says NAME TEXT: whether its output has the text.
says()
{
    grep -q "$2" "$place/$1.log"
}
