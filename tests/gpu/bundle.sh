#!/bin/sh
# Gathers in .bundle/ what tests/gpu/run.sh needs on a GPU machine that has no build of this
# project: the shim, the test programs, and the libraries they need beyond libc.
#
#   sh tests/gpu/bundle.sh [BUILD_FOLDER]
#
# Builds nothing with meson itself: compile first. The runtime programs are compiled here with nvcc
# where there is one (NVCC, or /usr/local/cuda/bin/nvcc).
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build}
bundle=$root/.bundle
nvcc=${NVCC:-/usr/local/cuda/bin/nvcc}

die()
{
    printf 'bundle: %s\n' "$*" >&2
    exit 1
}

conformance=tests/conformance/conformance
programs="shim/libgpushim.so shim/command/gpushim shim/command/gpushim-broker $conformance ${conformance}_peer
    examples/share/share_driver tests/chaos/chaos tests/stress/stress tests/stress/single
    tests/stress/libgpushim-no-epochs.so tests/stress/libgpushim-no-order.so
    tests/stress/libgpushim-old-driver.so tests/chaos/libmutant_hang-up.so
    tests/fuzz/differential/differential tests/share/puppet tests/asleep/asleep"
for program in $programs; do
    [ -e "$build/$program" ] || die "no $build/$program: run 'meson compile -C $build' first"
done

rm -rf "$bundle"
mkdir -p "$bundle/lib" "$bundle/runtime"
for program in $programs; do
    cp "$build/$program" "$bundle/"
done
# What is measured with it says so; there may be no git there.
git -C "$root" rev-parse HEAD >"$bundle/commit" 2>/dev/null || rm -f "$bundle/commit"
# To compare the real driver with.
mkdir "$bundle/softcuda"
cp "$build/tests/driver/libcuda.so.1" "$bundle/softcuda/"
if [ -x "$build/examples/share/share_runtime" ]; then
    cp "$build/examples/share/share_runtime" "$bundle/"
else
    printf 'bundle: left out share_runtime: not built, it needs libcudart_static\n'
fi

# Criterion and what it needs. libc and its parts are the GPU machine's own, libcuda above all.
LD_LIBRARY_PATH=$build/tests/driver ldd "$build/$conformance" | awk '$3 ~ /^\// { print $3 }' |
    while read -r library; do
        case ${library##*/} in
            libcuda.so* | libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | \
                libresolv.so* | ld-linux*) ;;
            *) cp -L "$library" "$bundle/lib/" ;;
        esac
    done

# What says where a program hangs (limited.py), where there is no debugger.
if command -v eu-stack >/dev/null; then
    mkdir "$bundle/eu-stack"
    cp -L "$(command -v eu-stack)" "$bundle/eu-stack/"
    for library in $(ldd "$(command -v eu-stack)" | awk '$3 ~ /^\// && !/lib(c|m)\.so/ { print $3 }'); do
        cp -L "$library" "$bundle/eu-stack/"
    done
fi

if [ -x "$nvcc" ]; then
    for kind in static shared; do
        # PTX as well, for GPUs that are newer than this nvcc.
        "$nvcc" -O2 -cudart "$kind" -Xcompiler -static-libstdc++ -Xcompiler -static-libgcc \
            -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90,code=sm_90 \
            -o "$bundle/runtime_$kind" "$root/tests/gpu/runtime_smoke.cu"
    done
    cudart=$(find -L "$(dirname "$nvcc")/../lib64/" "$(dirname "$nvcc")/../lib/" -maxdepth 1 \
        -name 'libcudart.so.*' 2>/dev/null | sort | head -n 1)
    [ -n "$cudart" ] || die "no libcudart.so beside $nvcc"
    # By the name that the program asks for.
    needed=$(readelf -d "$bundle/runtime_shared" |
        sed -n 's/.*\[\(libcudart\.so\.[0-9]*\)\].*/\1/p')
    cp -L "$cudart" "$bundle/runtime/$needed"
else
    printf 'bundle: left out the runtime programs: no %s\n' "$nvcc"
fi

# UCX over memory that a program maps itself, where UCX is a folder with the unpacked wheel libucx-cu13;
# torch_memory_saver's is another (SAVER).
if [ -n "${UCX:-}" ]; then
    mkdir -p "$bundle/ucx/libucx/lib/ucx"
    gcc -std=c11 -D_GNU_SOURCE -O2 -I "$UCX/libucx/include" -I "${nvcc%/bin/nvcc}/include" -o "$bundle/ucx_vmm" \
        "$root/tests/gpu/ucx_vmm.c" -L "$UCX/libucx/lib" -lucp -lucs -L "$build/tests/driver" -l:libcuda.so.1 \
        -Wl,--allow-shlib-undefined -Wl,-rpath-link,"$UCX/libucx/lib"
    cp -L "$UCX"/libucx/lib/*.so.0 "$bundle/ucx/libucx/lib/"
    cp -L "$UCX"/libucx/lib/ucx/libuc[mt]_cuda.so.0 "$UCX"/libucx/lib/ucx/libuct_cma.so.0 "$bundle/ucx/libucx/lib/ucx/"
    cp -rL "$UCX"/libucx_cu13.libs "$bundle/ucx/"
fi
if [ -n "${SAVER:-}" ]; then
    mkdir "$bundle/python"
    cp -r "$SAVER"/torch_memory_saver* "$bundle/python/"
    rm -f "$bundle"/python/*_cu12.* "$bundle"/python/*_preload*
fi

# What is debugged here need not travel.
find "$bundle" -type f | while read -r file; do
    strip -g "$file" 2>/dev/null || true
done
size=$(du -sm "$bundle" | cut -f 1)
[ "$size" -lt 60 ] || die ".bundle is $size MiB, more than the 60 that travel"
printf 'bundle: %s MiB in %s\n' "$size" "$bundle"
