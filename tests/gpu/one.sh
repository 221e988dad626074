#!/bin/sh
# Conformance tests under the library, and where they stand after a while:
#
#   sh tests/gpu/one.sh FILTER [SECONDS]
#
# On the GPU machine, with the bundle. What still runs after SECONDS (12) has its stacks printed, and is ended.
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
bundle=$root/.bundle
work=$(mktemp -d)
python3 "$root/tests/gpu/limited.py" "${2:-12}" "$work/stacks" env "LD_PRELOAD=$bundle/libgpushim.so" \
    GPUSHIM_LOG=info GPUSHIM_DEBUG_GRACE=1s "GPUSHIM_LOG_TARGET=$work/log" \
    "LD_LIBRARY_PATH=$bundle/lib:${LD_LIBRARY_PATH:-}" \
    "$bundle/conformance" --jobs 1 --color=never --filter "$1"
echo "one: exit $?"
cat "$work/log" "$work/stacks" 2>/dev/null
