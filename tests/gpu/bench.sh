#!/bin/sh
# Measures on a GPU machine that has no build of this project, natively and under the shim:
#
#   sh tests/gpu/bench.sh bundle [BUILD_FOLDER]   where it is built: gathers .bundle/bench
#   sh tests/gpu/bench.sh [ARGS OF run.py…]       on the GPU machine, in the repository's root
#   sh tests/gpu/bench.sh against [ARGS OF against.py…]   there too: other allocators in the same mixes and traces
#
# The bundle is the part of a build folder that tests/with.sh needs. tests/gpu/bundle.sh empties
# .bundle: run that one first where both are wanted. On the GPU machine bench.txt goes to $OUT,
# /tmp/gpu-out by default; $BUDGET is how many seconds it may take, 520 by default (against: 230).
#
# RMM is measured where the bundle was made with it: $RMM names the folder that
# `pip install --target FOLDER librmm-cu13` filled (25.12 or newer). It needs g++ and CUDA's headers.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/lib.sh
. "$root/tests/lib.sh"

bundle=$root/.bundle/bench

# RMM's library and the one it needs, and beside them what calls it for `latency --with`.
gather_rmm()
{
    mkdir "$bundle/other"
    cp -L "$RMM"/librmm/lib64/librmm.so "$RMM"/rapids_logger/lib64/librapids_logger.so "$bundle/other/" ||
        die "no RMM in $RMM: run 'pip install --target $RMM librmm-cu13'"
    "${CXX:-g++}" -std=c++20 -O2 -fPIC -shared -I"$RMM/librmm/include" -I"$RMM/librmm/include/rapids" \
        -I"$RMM/rapids_logger/include" -I"${CUDA_HOME:-/usr/local/cuda}/include" \
        -o "$bundle/other/libother_rmm.so" "$root/tests/bench/other_rmm.cpp" \
        -L"$bundle/other" -lrmm -L"${CUDA_HOME:-/usr/local/cuda}/lib64" -lcudart_static -ldl -lrt -lpthread \
        "-Wl,-rpath,\$ORIGIN" -Wl,--no-undefined ||
        die 'other_rmm.cpp does not build: it is for RMM 25.12 or newer, and needs cuda_runtime_api.h'
}

# gather BUILD
gather()
{
    rm -rf "$bundle"
    mkdir -p "$bundle/shim" "$bundle/tests/bench" "$bundle/lib"
    for name in shim/libgpushim.so tests/bench/pair tests/bench/overhead tests/bench/ipc tests/bench/latency; do
        [ -e "$1/$name" ] || die "no $1/$name: run 'meson compile -C $1' first"
        cp "$1/$name" "$bundle/$name"
    done
    # What latency reads .xz with; all else is the GPU machine's own.
    lzma=$(ldd "$bundle/tests/bench/latency" | awk '/liblzma/ && $3 ~ /^\// { print $3 }')
    [ -n "$lzma" ] || die 'ldd does not find the liblzma that latency was built with'
    cp -L "$lzma" "$bundle/lib/"
    git -C "$root" rev-parse HEAD >"$bundle/commit" 2>/dev/null || rm -f "$bundle/commit"
    if [ -n "${RMM:-}" ]; then gather_rmm; else say 'bundle: left out RMM: $RMM does not say where it is'; fi
    say "bundle: $(du -sk "$bundle" | cut -f 1) KiB in $bundle"
}

if [ "${1:-}" = bundle ]; then
    gather "${2:-$(build_folder)}"
    exit 0
fi

[ -e "$bundle/shim/libgpushim.so" ] ||
    die "no $bundle: run 'sh tests/gpu/bench.sh bundle' where the project is built"
[ -n "$(system_libcuda)" ] || die 'no libcuda.so.1 here: this is no GPU machine'
have_gpu || die 'no device node in /dev/nvidia[0-9]*: this machine lends no GPU now'
out=${OUT:-/tmp/gpu-out}
mkdir -p "$out"
GPUSHIM_BUILD=$bundle
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$bundle/lib
export GPUSHIM_BUILD LD_LIBRARY_PATH
if [ "${1:-}" = against ]; then
    shift
    exec python3 "$root/tests/bench/against.py" --out "$out" --budget "${BUDGET:-230}" "$@"
fi
exec python3 "$root/tests/bench/run.py" --out "$out/bench.txt" --budget "${BUDGET:-520}" "$@"
