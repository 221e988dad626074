#!/bin/sh
# Records a training loop, and says what its GPU memory came to:
#
#   sh examples/report/report.sh [--software] [PAGE]
#
# PAGE is a file for a browser. The last line is "report: ok" or what went wrong.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=examples/lib.sh
. "$root/examples/lib.sh"
software=
[ "${1:-}" != --software ] || { software=--software && shift; }

# What it says to type next names a recording that goes with this script.
# shellcheck disable=SC2086 # nothing, or one word
sh "$root/tests/with.sh" native $software "$build/shim/command/gpushim" record --record-stacks 16 \
    --output "$place/trace" -- "${PYTHON:-python3}" "$root/examples/report/train.py" 2>"$place/record.log" ||
    fail 'the loop was not recorded'
gpushim report "$place/trace" ${1:+--html "$1"} >"$place/report"
cat "$place/report"
[ -n "${1:-}" ] || grep -q 'log_loss (.*train.py:' "$place/report" ||
    fail 'the line that forgets to let go is not named'
echo 'report: ok'
