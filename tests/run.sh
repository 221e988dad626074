#!/bin/sh
# Everything that can be proved on a machine without a GPU, on a fresh Debian or Ubuntu:
#
#   sh tests/run.sh [quick | all | rest] [-DOPTION=VALUE…]
#
# Installs what is missing (root only for that), fetches cuda.h where there is none, then:
#   1. the build with -Werror and all its tests;
#   2. an ASan + UBSan build over all but the suites race, conformance, driver and bench;
#   3. a TSan build over the suite race;
#   4. a clang build with -Werror against the newest cuda.h that there is, and whether each of its
#      functions is known (2 to 4 are built while the tests of 1 run);
#   5. the libFuzzer targets, FUZZ_SECONDS together (60), where clang has what they need;
#   6. beside that ten of the planted bugs, which the tests are to notice (tests/mutants.sh runs all).
# quick stops after the first. all first installs what single tests are skipped without (podman,
# Prometheus, Chromium, Open MPI, packagers, qemu: whatever can be had), and last runs the suite packages, and both of
# README's commands in systems where nothing is installed (tests/fresh/run.py; root, and a good hour). rest
# does of all what is left out without it: it builds, and runs the suites packages, command and
# containers. -D options go to each build's meson setup. A build folder that is there is used and
# configured anew. The last line is "N passed, N failed, N skipped"; each line before it that starts
# with "failed:" names one cause. What was skipped, those too that skip inside a program, is named with
# its reason where its build is tested.
# shellcheck disable=SC2317 # functions are run by timed
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tests/lib.sh
. "$root/tests/lib.sh"

passed=0
failed=0
skipped=0
failures=
last_words=
what=ordinary
case ${1:-} in
    quick | all | rest) what=$1 && shift ;;
esac
for option in "$@"; do
    case $option in
        -D*) ;;
        *) die 'usage: sh tests/run.sh [quick | all | rest] [-DOPTION=VALUE…]' ;;
    esac
done

# fail CAUSE: one failure that is not a test's.
fail()
{
    failed=$((failed + 1))
    failures="${failures}failed: $*
"
}

last_line_said=no
trap '[ $last_line_said = yes ] || { fail "this script, see above"; finish; }' EXIT

finish()
{
    last_line_said=yes
    printf '%s' "$last_words$failures"
    say "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ] || exit 1
    exit 0
}

on_die()
{
    fail "$*"
    finish
}

# timed NAME COMMAND…: runs it and says how long it took.
timed()
{
    stage=$1
    shift
    began=$(date +%s)
    say "== $stage"
    "$@"
    say "== $stage: $(($(date +%s) - began)) s"
}

# build_in FOLDER: all of it, or where $suites chooses tests what these need.
build_in()
{
    if [ -z "$suites" ]; then
        $gently meson compile -C "$1"
    else
        # shellcheck disable=SC2046,SC2086 # lists
        $gently ninja -C "$1" build.ninja $(python3 "$root/tests/targets.py" "$1" $suites)
    fi
}

# compile NAME FOLDER MESON-OPTION…: quiet unless it goes wrong.
compile()
{
    name=$1
    folder=$2
    shift 2
    mkdir -p "$folder"
    if configure "$folder" "$@" >"$folder/run.log" 2>&1 &&
        build_in "$folder" >>"$folder/run.log" 2>&1 </dev/null; then
        return 0
    fi
    sed -n '/^FAILED:/,$p' "$folder/run.log" | head -n 60
    grep 'ERROR:' "$folder/run.log" || true
    fail "the $name (log: $folder/run.log)"
    return 1
}

# run_tests NAME FOLDER [MESON-TEST-OPTION…]: all tests, or those that the options choose; counted
# from meson's log.
run_tests()
{
    name=$1
    folder=$2
    shift 2
    if ! meson test -C "$folder" --no-rebuild --list "$@" 2>/dev/null | grep -qv '^No '; then
        say "$name: no tests yet${*:+ with $*}"
        return 0
    fi
    log=$folder/meson-logs/testlog.json
    rm -f "$log"
    status=0
    # shellcheck disable=SC2086 # $runner is a command, or nothing
    $runner meson test -C "$folder" --no-rebuild --print-errorlogs -t 3 "$@" \
        </dev/null || status=$?
    if [ ! -e "$log" ]; then
        fail "$name: meson test wrote no log (status $status)"
        return 0
    fi
    if ! python3 "$root/tests/count.py" "$log" >"$folder/counted"; then
        fail "$name: $log cannot be counted"
        return 0
    fi
    read -r good bad left_out <"$folder/counted"
    passed=$((passed + good))
    failed=$((failed + bad))
    skipped=$((skipped + left_out))
    sed -n 's/^skipped: /  skipped: /p' "$folder/counted"
    if [ "$bad" != 0 ]; then
        failures="${failures}failed: $name: $(sed -n 's/^failed: //p' "$folder/counted" |
            paste -s -d ';' -)
"
        last_words="$last_words$(sed -e 1d -e '/^failed: /d' -e '/^skipped: /d' "$folder/counted")
"
    elif [ "$status" != 0 ]; then
        fail "$name: meson test ended with status $status"
    fi
    say "$name: $good passed, $bad failed, $left_out skipped"
}

prepare()
{
    missing=$(missing_for_build "$build" "$@"; missing_for_tests)
    # shellcheck disable=SC2086 # a list of names
    install_packages "$(missing_for_both "$build" "$@")" $missing
    # shellcheck disable=SC2046 # again
    install_what_can_be_had $(useful_for_tests)
    if [ "$what" = all ] || [ "$what" = rest ]; then
        # shellcheck disable=SC2046 # again
        install_what_can_be_had $(useful_for_rest)
    fi
    check_meson
    fetch_cuda_headers "$build" "$@"
    if [ "$what" = ordinary ] || [ "$what" = all ]; then
        fetch_wheel_headers "$build/cuda-newest" "$newest_cuda_wheel" &&
            newest=-Dcuda=$build/cuda-newest || true
        fetch_clang_format "$build"
    fi
}

main_build()
{
    if compile 'build' "$build" "$@"; then
        [ "$what" = quick ] || { builds_ahead ${fetched:+"$fetched"} "$@" >/dev/null 2>&1 & }
        run_tests 'tests' "$build"
        wait # for builds that end by themselves
    fi
}

# The other builds, while tests run that wait more than they work, and on what these leave of the processors.
# What goes wrong here goes wrong again where the build's turn is, and is said there.
builds_ahead()
{
    gently='nice -n 19'
    asan_compile "$@" || true
    tsan_compile "$@" || true
    clang_compile "$@"
}

# What takes more than a machine has by itself, where only that is asked for.
rest_build()
{
    if compile 'build' "$build" "$@"; then
        run_tests 'the rest' "$build" --suite packages --suite command --suite containers
    fi
}

packages()
{
    run_tests 'packages' "$build" --suite packages
}

# Both commands in systems where nothing is installed.
fresh()
{
    status=0
    python3 "$root/tests/fresh/run.py" "$root" "$root/.cache/fresh" >"$build/fresh.log" 2>&1 || status=$?
    cat "$build/fresh.log"
    passed=$((passed + $(grep -c ': ok$' "$build/fresh.log" || true)))
    skipped=$((skipped + $(grep -c '^skipped: ' "$build/fresh.log" || true)))
    case $status in
        0 | 77) ;;
        *) fail "fresh systems: $(grep ': failed, ' "$build/fresh.log" || echo "log: $build/fresh.log")" ;;
    esac
}

# At -O1, with lines for stack traces and no more, and without what its tests do not need it is built in
# half of the time.
asan_compile()
{
    suites='--no-suite race --no-suite conformance --no-suite driver --no-suite bench'
    compile 'ASan build' "$build-asan" -Db_sanitize=address,undefined \
        -Db_lundef=false -Doptimization=1 -Dc_args=-g1 "$@"
}

asan_build()
{
    asan_compile "$@" || { suites= && return 0; }
    # The shim is preloaded, so ASan's library cannot come first; both are in the program anyway.
    ASAN_OPTIONS=verify_asan_link_order=0:abort_on_error=1:detect_stack_use_after_return=1
    UBSAN_OPTIONS=halt_on_error=1:abort_on_error=1:print_stacktrace=1
    LSAN_OPTIONS=suppressions=$root/tests/lsan.supp:print_suppressions=0
    export ASAN_OPTIONS UBSAN_OPTIONS LSAN_OPTIONS
    # shellcheck disable=SC2086 # words
    run_tests 'ASan tests' "$build-asan" $suites
    suites=
    unset ASAN_OPTIONS UBSAN_OPTIONS LSAN_OPTIONS
}

tsan_compile()
{
    suites='--suite race'
    compile 'TSan build' "$build-tsan" -Db_sanitize=thread -Db_lundef=false \
        -Dc_args=-g1 "$@"
}

tsan_build()
{
    tsan_compile "$@" || { suites= && return 0; }
    TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
    export TSAN_OPTIONS
    # Older TSan stops at once where the kernel randomises addresses by more than 28 bits.
    if setarch "$(uname -m)" -R true 2>/dev/null; then
        runner="setarch $(uname -m) -R"
    fi
    # shellcheck disable=SC2086 # words
    run_tests 'TSan tests' "$build-tsan" $suites
    runner=
    suites=
    unset TSAN_OPTIONS
}

# For clang's warnings, which it gives without optimising too, and for the newest headers; where they
# cannot be had, those of the other builds.
clang_compile()
{
    suites=
    CC=clang
    export CC
    compiled=0
    compile 'clang build' "$build-clang" -Doptimization=0 -Ddebug=false "$@" \
        ${newest:+"$newest"} || compiled=1
    unset CC
    return $compiled
}

clang_build()
{
    clang_compile "$@" || return 0
    if [ -n "$newest" ]; then
        run_tests 'tests of the newest headers' "$build-clang" 'table of entry points'
    else
        skipped=$((skipped + 1))
        say "  skipped: the newest headers: $cause"
    fi
}

# One processor fuzzes, and what is left builds and notices planted bugs.
fuzz_and_mutants()
{
    GPUSHIM_BUILD=$build sh "$root/tests/fuzz/run.sh" "${FUZZ_SECONDS:-60}" "$@" >"$build/fuzz.log" 2>&1 </dev/null &
    fuzzing=$!
    mutants "$@"
    status=0
    wait $fuzzing || status=$?
    cat "$build/fuzz.log"
    case $status in
        0) passed=$((passed + $(grep -c ': ok,' "$build/fuzz.log"))) ;;
        77)
            skipped=$((skipped + 1))
            say "  skipped: fuzzing: $(tail -n 1 "$build/fuzz.log")"
            ;;
        *) fail "fuzzing: $(grep ': failed,' "$build/fuzz.log" || echo "log: $build/fuzz.log")" ;;
    esac
}

# Planted bugs: which ten, the commit's hash says.
mutants()
{
    status=0
    GPUSHIM_BUILD=$build sh "$root/tests/mutants.sh" --sample 10 "$@" >"$build/mutants.log" 2>&1 ||
        status=$?
    cat "$build/mutants.log"
    passed=$((passed + $(grep -c '^caught ' "$build/mutants.log" || true)))
    [ "$status" = 0 ] || fail "$(tail -n 1 "$build/mutants.log") (log: $build/mutants.log)"
}

cd "$root"
build=$(build_folder)
check_folders "$root" "$build"
# The tests find their build by themselves, and the shim would take the variable for a setting.
unset GPUSHIM_BUILD
# Criterion then names the tests that are skipped, with their reasons (tests/count.py).
CRITERION_VERBOSITY_LEVEL=1
export CRITERION_VERBOSITY_LEVEL
runner=
suites=
gently=
newest= # the option for headers that are fetched in any case
cause=
fetched= # the option for the other builds, where cuda.h is none of the machine's
# Many tests wait more than they work.
MESON_TESTTHREADS=${MESON_TESTTHREADS:-$(($(nproc) * 3))}
export MESON_TESTTHREADS
began_all=$(date +%s)

timed 'what is missing' prepare "$@"
if [ -e "$build/cuda-headers/include/cuda.h" ]; then
    fetched=-Dcuda=$build/cuda-headers
fi
if [ "$what" = rest ]; then
    timed 'build and the rest' rest_build "$@"
else
    timed 'build and tests' main_build "$@"
fi
if [ "$what" = ordinary ] || [ "$what" = all ]; then
    set -- ${fetched:+"$fetched"} "$@"
    timed 'ASan and UBSan' asan_build "$@"
    timed 'TSan' tsan_build "$@"
    timed 'clang' clang_build "$@"
    timed 'fuzzing and planted bugs' fuzz_and_mutants "$@"
fi
if [ "$what" = all ]; then
    timed 'packages' packages
    timed 'fresh systems' fresh
fi
say "== all: $(($(date +%s) - began_all)) s"
finish
