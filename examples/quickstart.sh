#!/bin/sh
# What libgpushim is for, shown in a minute: installs what is missing (root only for that), builds,
# and plays three stories of two CUDA programs without the shim and with it, on the GPU where there
# is one and on a software CUDA driver otherwise. See examples/share/producer.c.
#
# The last line is "quickstart: ok", or "quickstart: failed: " and what failed.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tests/lib.sh
. "$root/tests/lib.sh"

last_line_said=no
trap '[ $last_line_said = yes ] || say "quickstart: failed: see above"' EXIT

on_die()
{
    last_line_said=yes
    say "quickstart: failed: $*"
}

quiet()
{
    "$@" >"$log" 2>&1 || {
        tail -n 40 "$log"
        die "$* (log: $log)"
    }
}

# play MODE PROGRAM STORY TEXT: one story, whose line must have TEXT in it.
play()
{
    case $1 in
        native) label='without the shim' ;;
        shim) label='with the shim   ' ;;
    esac
    line=$(sh "$root/examples/share/expect.sh" "$4" \
        sh "$root/tests/with.sh" "$1" "$2" "$3" </dev/null) ||
        die "story $3 of $(basename "$2") $label"
    say "  $label  ${line#story ?: }"
}

# stories PROGRAM
stories()
{
    say "a. The producer frees a 64 KiB block that the consumer still reads, allocates again, writes."
    play native "$1" a 'consumer saw foreign bytes'
    play shim "$1" a 'consumer saw its own bytes'
    say "b. The producer shares stream-ordered memory."
    play native "$1" b 'memory cannot be shared'
    play shim "$1" b 'consumer read the bytes'
    say "c. The consumer is killed while it holds 60 % of the free memory; the producer frees it."
    play native "$1" c 'the memory came back'
    play shim "$1" c 'the memory came back'
}

cd "$root"
build=$(build_folder)
log=$build/quickstart.log
GPUSHIM_BUILD=$build
export GPUSHIM_BUILD

check_folders "$root" "$build"
missing=$(missing_for_build "$build")
# shellcheck disable=SC2086 # a list of names
install_packages "$(missing_for_both "$build")" $missing
check_meson
fetch_cuda_headers "$build"
mkdir -p "$build"
say "building in $build"
quiet configure "$build"
quiet meson compile -C "$build"

if have_gpu; then
    say "On this machine's GPU, through the driver API:"
else
    say "No GPU here: on the project's software CUDA driver, through the driver API:"
fi
stories "$build/examples/share/share_driver"
if have_gpu && [ -x "$build/examples/share/share_runtime" ]; then
    say "Through the runtime API:"
    stories "$build/examples/share/share_runtime"
fi
last_line_said=yes
say 'quickstart: ok'
