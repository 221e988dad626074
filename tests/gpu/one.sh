#!/bin/sh
# Conformance tests under the library, and where they stand after a while:
#
#   sh tests/gpu/one.sh FILTER [SECONDS]
#
# On the GPU machine, with the bundle. What still runs after SECONDS (12) has its stacks printed, by cuda-gdb,
# and is ended. Criterion's workers are in process groups of their own, where limited.py does not look.
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
bundle=$root/.bundle
work=$(mktemp -d)
LD_PRELOAD=$bundle/libgpushim.so GPUSHIM_LOG=info GPUSHIM_LOG_TARGET=$work/log \
    LD_LIBRARY_PATH=$bundle/lib:${LD_LIBRARY_PATH:-} \
    "$bundle/conformance" --jobs 1 --color=never --filter "$1" >"$work/said" 2>&1 &
suite=$!
for _ in $(seq "${2:-12}"); do
    sleep 1
    kill -0 $suite 2>/dev/null || break
done
if kill -0 $suite 2>/dev/null; then
    for worker in $(pgrep -P $suite); do
        echo "-- process $worker: $(tr '\0' ' ' <"/proc/$worker/cmdline")"
        for task in "/proc/$worker/task"/*; do
            echo "$(cat "$task/comm"): $(cat "$task/wchan" 2>/dev/null) $(cat "$task/syscall" 2>/dev/null)"
        done
        timeout -k 5 40 cuda-gdb -batch -p "$worker" -ex 'thread apply all backtrace 24' 2>/dev/null |
            grep -E '^(Thread|#)'
        kill -9 "$worker"
    done
    kill $suite
fi
wait $suite
echo "one: exit $?"
cat "$work/said" "$work/log"
