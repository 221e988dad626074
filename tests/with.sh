#!/bin/sh
# Runs any program with the shim or without it:
#
#   sh tests/with.sh shim|native [--software] [--old-driver] PROGRAM ARGS…
#
# On the GPU where there is one, on the software driver (tests/driver) otherwise; --software
# takes the software driver in any case, --old-driver the library as it is on a driver without
# cuCtxRecordEvent (tests/stress/old_driver.c). The build folder is build, or what GPUSHIM_BUILD says.
# The program replaces this script: signals and exit status are its own.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tests/lib.sh
. "$root/tests/lib.sh"

usage='usage: sh tests/with.sh shim|native [--software] [--old-driver] PROGRAM ARGS…'
mode=${1:-}
case $mode in
    shim | native) shift ;;
    *) die "$usage" ;;
esac
software=no
if [ "${1:-}" = --software ]; then
    software=yes
    shift
elif ! have_gpu; then
    software=yes
fi
library=shim/libgpushim.so
if [ "${1:-}" = --old-driver ]; then
    library=tests/stress/libgpushim-old-driver.so
    shift
fi
[ $# -gt 0 ] || die "$usage"

build=$(build_folder)

if [ "$software" = yes ]; then
    driver=$build/tests/driver
    [ -e "$driver/libcuda.so.1" ] ||
        die "no GPU here and no software driver in $build: run 'meson compile -C $build'"
    # Before the caller's own folders: this driver was asked for, or there is no other.
    LD_LIBRARY_PATH=$driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
else
    # The project's own programs carry a run path to the software driver. A folder with the real
    # driver alone comes before it and hides nothing else.
    driver=$build/real-driver
    real=$(system_libcuda)
    if [ "$(readlink "$driver/libcuda.so.1")" != "$real" ]; then
        mkdir -p "$driver"
        # Renamed into place: others may be starting right now.
        ln -s "$real" "$driver/new.$$"
        mv -f "$driver/new.$$" "$driver/libcuda.so.1"
    fi
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$driver
    # Where the loader would not look, it would not find the driver's other libraries either.
    [ -n "$(configured_libcuda)" ] || LD_LIBRARY_PATH=$LD_LIBRARY_PATH:${real%/*}
fi
export LD_LIBRARY_PATH

if [ "$mode" = shim ]; then
    shim=$build/$library
    [ -e "$shim" ] || die "no $shim: run 'meson compile -C $build'"
    LD_PRELOAD=$shim${LD_PRELOAD:+:$LD_PRELOAD}
    export LD_PRELOAD
fi
exec "$@"
