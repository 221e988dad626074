#!/bin/sh
# Runs a program under the library and another tool's preload, in either order; skipped where that
# tool is not installed.
#
# usage: beside.sh jemalloc|heaptrack before|after LIBGPUSHIM PROGRAM ARGS...
set -eu

tool=$1 order=$2 shim=$3
shift 3
case $tool in
jemalloc) file=libjemalloc.so.2 package=libjemalloc2 ;;
heaptrack) file=libheaptrack_preload.so package=libheaptrack ;;
esac
path=$({ PATH=$PATH:/sbin:/usr/sbin ldconfig -p | sed -n "s/.*$file .*=> //p"
         ls "/usr/lib/heaptrack/$file" /usr/lib/*/"heaptrack/$file"; } 2>/dev/null | head -n 1)
if [ -z "$path" ]; then
    echo "skipped: no $file here; apt-get install $package"
    exit 77
fi
DUMP_HEAPTRACK_OUTPUT=/dev/null # heaptrack's preload writes there
export DUMP_HEAPTRACK_OUTPUT
case $order in
before) LD_PRELOAD=$path:$shim ;;
after) LD_PRELOAD=$shim:$path ;;
esac
export LD_PRELOAD
exec "$@"
