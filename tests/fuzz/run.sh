#!/bin/sh
# Builds the libFuzzer targets of this folder with clang, ASan and UBSan, and runs each of them:
#
#   sh tests/fuzz/run.sh [SECONDS [-DOPTION=VALUE…]]
#
# SECONDS is 60 by default, or what FUZZ_SECONDS says: half of it for the targets that are sent messages, which run
# side by side, and half for those that read files. What these begin with is made by seeds.py. New inputs gather in
# build-fuzz/corpus. Exit status 77 where clang has no libFuzzer. The input that a target
# fell over stays in build-fuzz/crashes and is named on the last lines.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/lib.sh
. "$root/tests/lib.sh"

seconds=${1:-${FUZZ_SECONDS:-60}}
[ $# = 0 ] || shift
case $seconds in
    '' | *[!0-9]*) die "\"$seconds\" is no number of seconds" ;;
esac
build=$(build_folder)-fuzz
unset GPUSHIM_BUILD
messages='exporter broker importer ipc_handle'
files='config recording leases http elf'

mkdir -p "$build" "$build/crashes"
if ! have clang ||
    ! printf 'int LLVMFuzzerTestOneInput(const char *d, long n) { return 0; }\n' |
        clang -x c - -fsanitize=fuzzer,address -o "$build/probe" 2>"$build/probe.log"; then
    say "fuzzing: skipped, this clang has no libFuzzer (Debian's libclang-rt-14-dev," \
        "Ubuntu's libclang-rt-18-dev has it)"
    exit 77
fi

CC=clang
export CC
configure "$build" -Dfuzz=true -Dexamples=false -Db_sanitize=address,undefined \
    -Db_lundef=false -Doptimization=1 -Dc_args='-fsanitize=fuzzer-no-link -g1' "$@" >"$build/setup.log" 2>&1 ||
    { cat "$build/setup.log"; die 'the fuzz build cannot be set up'; }
meson compile -C "$build" fuzz-targets >"$build/compile.log" 2>&1 </dev/null ||
    { tail -n 40 "$build/compile.log"; die 'the fuzz targets do not build'; }

ASAN_OPTIONS=abort_on_error=1:detect_leaks=1
UBSAN_OPTIONS=halt_on_error=1:abort_on_error=1:print_stacktrace=1
export ASAN_OPTIONS UBSAN_OPTIONS

# fuzz TARGET: its output goes to a log, its exit status to a file.
fuzz()
{
    mkdir -p "$build/corpus/$1" "$build/seeds/$1"
    seeds=$build/seeds/$1
    [ ! -d "$root/tests/fuzz/seeds/$1" ] || seeds=$root/tests/fuzz/seeds/$1
    status=0
    "$build/tests/fuzz/fuzz_$1" -max_total_time="$(((seconds + 1) / 2))" -print_final_stats=1 -timeout=30 \
        -rss_limit_mb=1024 -artifact_prefix="$build/crashes/$1-" "$build/corpus/$1" \
        "$seeds" >"$build/$1.log" 2>&1 </dev/null || status=$?
    echo "$status" >"$build/$1.status"
}

bad=0
report()
{
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$1.log")
    cover=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$build/$1.log" | tail -n 1)
    if [ "$(cat "$build/$1.status")" = 0 ]; then
        say "fuzzing $1: ok, ${runs:-no} runs, ${cover:-no} edges"
        return 0
    fi
    bad=1
    grep -e 'ERROR' -e 'not so:' -e 'runtime error' "$build/$1.log" | head -n 5
    say "fuzzing $1: failed, the input is" \
        "$(sed -n 's/.*Test unit written to //p' "$build/$1.log" | tail -n 1), the log $build/$1.log"
}

python3 "$root/tests/fuzz/seeds.py" "$build/seeds"
for targets in "$messages" "$files"; do
    for target in $targets; do
        fuzz "$target" &
    done
    wait
done
for target in $messages $files; do
    report "$target"
done
[ $bad = 0 ]
