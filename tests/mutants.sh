#!/bin/sh
# Planted bugs: whether the tests notice them.
#
#   sh tests/mutants.sh [PATTERN]
#   sh tests/mutants.sh --sample NUMBER [COMMIT]   so many of them, chosen by the commit's hash
#   sh tests/mutants.sh --draw NUMBER SEED [PATTERN]   so many that nobody chose, in the sources that PATTERN
#                                                  finds (tests/mutants/draw.py)
#   sh tests/mutants.sh --check                    only that each still fits the sources
#   GPUSHIM_BUILD=/tmp/m3 sh tests/mutants.sh [PATTERN] --part 3/14   every fourteenth from the third on: so
#                                                  several run at once, each with a folder of its own
#
# tests/mutants/*.txt are the bugs: mutants.py says how they are written. PATTERN is a regular
# expression; a bug is taken where it is found in FOLDER/NAME or in the name of the file that the bug
# is in: `sh tests/mutants.sh pool/`, `sh tests/mutants.sh core/api/pin.c`.
#
# Sources and build are copies (in build-mutants): nothing changes in the tree, whatever ends this.
# Each bug is built and its tests are run, only what they need and in the copy that the one before
# left. -DOPTION=VALUE… at the end go to meson setup.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tests/lib.sh
. "$root/tests/lib.sh"

build=$(build_folder)
# The tests' programs would take it for a setting of the library's.
unset GPUSHIM_BUILD
exec python3 "$root/tests/mutants/mutants.py" "$root" "$build-mutants" "$@"
