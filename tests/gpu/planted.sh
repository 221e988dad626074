#!/bin/sh
# The planted bugs on a machine of many cores that has a compiler and Meson and none of the libraries that the
# tests are built with, as GPU machines are; it needs no GPU:
#
#   sh tests/gpu/planted.sh bundle          where the tests are built: gathers .bundle/dev
#   sh tests/gpu/planted.sh run [PATTERN]   on that machine, as root: all parts at once, on two cores each
#   sh tests/gpu/planted.sh run --draw NUMBER SEED [PATTERN]   as tests/mutants.sh says
#
# What is missing there is copied into /usr, nothing that is there is changed. $CORES is how many cores it takes, the
# first ones, all by default; $PARTS how many parts, of which several may have the same two; $PLANTED_SECONDS how long
# they may take (500); $OUT gets a log of each. Not for a machine that anybody keeps.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
dev=$root/.bundle/dev
libs=/usr/lib/$(uname -m)-linux-gnu

if [ "${1:-}" = bundle ]; then
    rm -rf "$dev"
    mkdir -p "$dev/include" "$dev/pkgconfig" "$dev/lib"
    cp -a /usr/include/criterion /usr/include/lzma /usr/include/lzma.h /usr/include/ut*.h "$dev/include/"
    # They name libraries that only a static build needs.
    for name in criterion liblzma; do
        sed '/\.private:/d' "$libs/pkgconfig/$name.pc" >"$dev/pkgconfig/$name.pc"
        cp -L "$libs/$name.so" "$dev/lib/" 2>/dev/null || cp -L "$libs/lib$name.so" "$dev/lib/"
    done
    for needed in $(ldd "$libs/libcriterion.so" | awk '$3 ~ /^\// && !/lib(c|resolv)\.so/ { print $3 }'); do
        cp -L "$needed" "$dev/lib/"
    done
    soname=$(readelf -d "$libs/libcriterion.so" | sed -n 's/.*soname: \[\(.*\)\]/\1/p')
    cp -L "$libs/libcriterion.so" "$dev/lib/$soname"
    exit 0
fi
if [ "${1:-}" != run ] || [ ! -e "$dev" ]; then
    echo "planted: 'sh tests/gpu/planted.sh bundle' where the tests are built, then 'run' there" >&2
    exit 2
fi
cp -r --update=none "$dev/include/." /usr/include/
cp -r --update=none "$dev/pkgconfig/." "$libs/pkgconfig/"
cp --update=none "$dev"/lib/* "$libs/"
ldconfig
out=${OUT:-/tmp/gpu-out}
pairs=$((${CORES:-$(nproc)} / 2))
parts=${PARTS:-$((pairs - 2))}
work=$(mktemp -d)
mkdir -p "$out"
# All groups but one, and of those the bugs that have tests here: the agent's need libcurl, libsodium, jansson and
# OpenSSL.
groups=$(cd "$root/tests/mutants" && ls ./*.txt | sed 's,^\./,,; s,\.txt$,,' | grep -v '^agent$' | paste -s -d '|')
shift
[ $# -gt 0 ] || set -- "^($groups)/"
# All is built once, with all cores. Each part then has a copy, at the same place for it alone: a build folder
# knows where it is.
export CRITERION_VERBOSITY_LEVEL=1 GPUSHIM_BUILD="$work/all" MUTANTS_WITHOUT=agent
began=$(date +%s)
draws=
[ "$1" != --draw ] || draws=--draw
sh "$root/tests/mutants.sh" --prepare $draws >"$out/prepared.log" 2>&1 || { cat "$out/prepared.log" && exit 1; }
left=$((${PLANTED_SECONDS:-500} - ($(date +%s) - began)))
echo "planted: prepared, $left s are left"
for nth in $(seq "$parts"); do
    (
        cp -a "$work/all-mutants" "$work/part-$nth"
        pair=$(((nth - 1) % pairs * 2))
        MESON_TESTTHREADS=2 timeout "$left" taskset -c "$pair,$((pair + 1))" unshare --mount sh -c '
            mount --bind "$1" "$2" && shift 2 && exec sh "$@"' sh \
            "$work/part-$nth" "$work/all-mutants" "$root/tests/mutants.sh" "$@" --part "$nth/$parts" \
            >"$work/$nth.log" 2>&1 || true
    ) &
done
wait
cat "$work"/*.log >"$out/planted.log"
grep -E '^(survived|broken)' "$out/planted.log" || true
echo "planted: $(grep -c '^caught' "$out/planted.log") caught, \
$(grep -c '^survived' "$out/planted.log") survived, $(grep -c '^broken' "$out/planted.log") broken"
