#!/bin/sh
# Instructions of one warm allocation and its free on the software driver, by callgrind:
#
#   sh tests/bench/instructions.sh [shim|native]
#
# shim by default. Each kind of pair runs at two lengths and the difference is printed: what the
# start costs drops out, and the figure is the same each time. First the thread that calls, and
# where its instructions are; then all threads together, which varies a little. Under the library
# each kind has its budget, what is measured with gcc 12 at -O2 and a twentieth more; a pair that
# takes more fails. A compiler that guards stacks unasked, as Ubuntu's does, may take a sixth more.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/lib.sh
. "$root/tests/lib.sh"

build=$(build_folder)
mode=${1:-shim}
short=1600
long=6400

case $mode in
    shim | native) ;;
    *) die 'usage: sh tests/bench/instructions.sh [shim|native]' ;;
esac
if ! have valgrind; then
    say 'skipped: valgrind is not installed'
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# count NAME PAIRS ARGS…: callgrind's files are NAME-01 for the calling thread, NAME-02…
count()
{
    name=$1 pairs=$2
    shift 2
    sh "$root/tests/with.sh" "$mode" --software valgrind -q --tool=callgrind \
        --separate-threads=yes --callgrind-out-file="$work/$name" \
        "$build/tests/bench/pair" --warmup 500 --pairs "$pairs" "$@" >"$work/log" 2>&1 || {
        if grep -q 'Possibly corrupted debuginfo' "$work/log"; then
            say 'skipped: this valgrind cannot read the debug information of this compiler'
            exit 77
        fi
        cat "$work/log" >&2
        die "pair $* failed under callgrind"
    }
    [ -s "$work/$name-01" ] || die "callgrind counted nothing for pair $*"
}

# where FILE: "instructions where" for each place of the profile.
where()
{
    awk '
        # "(id) name" where an object appears first, "(id)" later.
        function object(text,    id) {
            id = text
            sub(/\).*/, "", id)
            if (text ~ /\) ./) {
                sub(/^[^)]*\) /, "", text)
                names[id] = text
            }
            return id
        }
        /^ob=/ { current = object(substr($0, 4)); next }
        /^cob=/ { object(substr($0, 5)); next }
        # The next line is the cost of what was called, counted where it is spent.
        /^calls=/ { getline; next }
        /^[-+*0-9]/ { spent[current] += $2 }
        END {
            for (id in spent) {
                place = "libc and loader"
                if (names[id] ~ /libgpushim/) place = "shim"
                else if (names[id] ~ /libcuda/) place = "driver"
                else if (names[id] ~ /\/pair$/) place = "program"
                sum[place] += spent[id]
            }
            for (place in sum) print sum[place], place
        }' "$1"
}

totals()
{
    awk '/^totals:/ { sum += $2 } END { printf "%d\n", sum }' "$@"
}

# pair NAME BUDGET ARGS…
pair()
{
    title=$1 budget=$2
    shift 2
    [ $guarded = no ] || budget=$((budget * 7 / 6))
    [ "$mode" = shim ] || budget=0
    count short "$short" "$@"
    count long "$long" "$@"
    where "$work/short-01" | sed 's/^/short /' >"$work/places"
    where "$work/long-01" | sed 's/^/long /' >>"$work/places"
    all=$(($(totals "$work"/long-*) - $(totals "$work"/short-*)))
    awk -v title="$title" -v pairs=$((long - short)) -v all="$all" -v budget="$budget" '
        { count = $2; way = $1; $1 = $2 = ""; sub(/^ +/, "")
          more[$0] += way == "long" ? count : -count
          total += way == "long" ? count : -count }
        END {
            printf "%s: %.1f instructions a pair (", title, total / pairs
            split("shim|driver|program|libc and loader", order, "|")
            for (i = 1; i <= 4; i++)
                printf("%s%s %.1f", (i > 1 ? ", " : ""), order[i], more[order[i]] / pairs)
            printf "), all threads %.1f", all / pairs
            printf(budget ? ", budget %d\n" : "\n", budget)
            if (total <= 0) exit 1
            if (budget && total / pairs > budget) exit 2
        }' "$work/places" || case $? in
        2) over="$over, $title" ;;
        *) die "$title: the longer run took no more instructions" ;;
    esac
    rm -f "$work"/short* "$work"/long*
}

over=
guarded=no
if cc -dM -E -x c /dev/null | grep -q '__SSP_'; then
    guarded=yes
fi
say "one warm pair, $mode, on the software driver:"
pair '64 KiB' 640 --size 64K
pair '64 KiB, stream-ordered' 770 --size 64K --async
pair '256 MiB' 645 --size 256M
# Which has others in its chunk.
pair '1 MiB' 645 --size 1M --live 301
# As in a program of several streams, where freed memory waits for the GPU.
GPUSHIM_DEBUG_SINGLE_STREAM=off
export GPUSHIM_DEBUG_SINGLE_STREAM
pair '64 KiB, several streams' 685 --size 64K
pair '256 MiB, several streams' 1595 --size 256M
[ -z "$over" ] || die "over budget: ${over#, }; make it cheaper, or say why the budget is to grow"
