#!/bin/sh
# Runs programs on a real GPU natively and under the shim, and compares what they say. Needs the
# bundle that tests/gpu/bundle.sh makes; run it in the repository's root on the GPU machine:
#
#   sh tests/gpu/run.sh [PART…]
#
# Parts: conformance cudart examples register torch_share cupy torch_steps; all of them by default. Every
# program has its time limit and a failure stops nothing. Ends with a table: name, native result,
# result under the shim, equal or what differs. Logs are in $OUT, /tmp/gpu-out by default; $BUDGET
# is how many seconds everything may take, 520 by default.
#
# Exit status: 0 when every program under the shim ended well and said what it says natively, but
# for what the shim is meant to change (a program's ASYNC lines); 1 otherwise.
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
bundle=$root/.bundle
out=${OUT:-/tmp/gpu-out}
budget=${BUDGET:-520}
started=$(date +%s)
table=$out/table
verdict=0

[ -e "$bundle/libgpushim.so" ] || {
    echo "run: no $bundle: run 'sh tests/gpu/bundle.sh' where the project is built" >&2
    exit 1
}
mkdir -p "$out"
: >"$table"

# Where the loader does not find the driver by itself: the usual places of containers.
if ! ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    for folder in /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/wsl/lib; do
        if [ -e "$folder/libcuda.so.1" ]; then
            LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
            export LD_LIBRARY_PATH
            break
        fi
    done
fi

seconds_left()
{
    echo $((budget - ($(date +%s) - started)))
}

# run MODE LOG SECONDS COMMAND…: stdout in LOG, stderr in LOG.err, the exit status in LOG.status.
run()
{
    run_mode=$1 run_log=$2 limit=$3
    shift 3
    left=$(seconds_left)
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -lt 5 ]; then
        : >"$run_log"
        echo 'out of time' | tee "$run_log.err" >"$run_log.status"
        return
    fi
    preload=
    [ "$run_mode" = native ] || preload=$bundle/libgpushim.so${LD_PRELOAD:+:$LD_PRELOAD}
    run_status=0
    timeout -k 5 "$limit" env ${preload:+LD_PRELOAD="$preload"} "$@" \
        >"$run_log" 2>"$run_log.err" </dev/null || run_status=$?
    echo "$run_status" >"$run_log.status"
}

# summary LOG: how the run ended, how many results it gave, and its times.
summary()
{
    status=$(cat "$1.status")
    case $status in
        0) end=ok ;;
        124 | 137) end='TIMED OUT' ;;
        out*) end=$status ;;
        *) end="exit $status" ;;
    esac
    results=$(grep -c '^RESULT ' "$1")
    time=$(sed -n 's/^TIME median step \([^,]*\).*/, \1/p' "$1")
    echo "$end, $results results$time"
}

# row NAME NATIVE SHIM DIFFERENCE
row()
{
    printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$table"
}

# compare NAME: a row from the two logs; the lines that differ go to stdout.
compare()
{
    native=$out/$1.native shim=$out/$1.shim
    grep '^RESULT ' "$native" >"$native.results"
    grep '^RESULT ' "$shim" >"$shim.results"
    differing=$(diff "$native.results" "$shim.results" | grep -c '^[<>]')
    unexpected=$(diff "$native.results" "$shim.results" | grep '^[<>]' | grep -vc -i 'async')
    difference=equal
    if [ "$differing" != 0 ]; then
        echo "-- $1: native <, shim >"
        diff "$native.results" "$shim.results" | grep '^[<>]' | head -n 20 | cut -c 1-160
        difference="$differing lines differ"
        [ "$unexpected" != 0 ] || difference="only what is asynchronous differs ($differing lines)"
    fi
    [ "$(cat "$shim.status")" = 0 ] && [ "$unexpected" = 0 ] || verdict=1
    if [ "$(cat "$shim.status")" != 0 ]; then
        echo "-- $1 under the shim: $(summary "$shim")"
        tail -n 8 "$shim.err" | cut -c 1-200
    fi
    if [ "$(cat "$native.status")" != 0 ]; then
        echo "-- $1 native: $(summary "$native")"
        tail -n 4 "$native.err" | cut -c 1-200
    fi
    row "$1" "$(summary "$native")" "$(summary "$shim")" "$difference"
}

# both NAME SECONDS COMMAND…
both()
{
    name=$1 seconds=$2
    shift 2
    run native "$out/$name.native" "$seconds" "$@"
    run shim "$out/$name.shim" "$seconds" "$@"
    compare "$name"
}

# ---- conformance ----

# The suites that look at the device's free memory have it to themselves.
alone='info|lifetime|contexts|pools'
together='alloc|async|reuse|ipc|capture|vmm|process|reach'

# conformance_once MODE: one log with a line "RESULT suite::test outcome" per test and the probes.
conformance_once()
{
    log=$out/conformance.$1
    : >"$log"
    : >"$log.failures"
    worst=0
    for group in "$together" "$alone"; do
        jobs=4
        [ "$group" = "$together" ] || jobs=1
        rm -f "$out/tap"
        run "$1" "$log.$jobs" 120 "LD_LIBRARY_PATH=$bundle/lib:${LD_LIBRARY_PATH:-}" \
            "$bundle/conformance" --jobs "$jobs" --color=never --filter "@($group)/*" \
            "--tap=$out/tap"
        [ "$(cat "$log.$jobs.status")" = 0 ] || worst=$(cat "$log.$jobs.status")
        [ -e "$out/tap" ] || continue
        grep '^PROBE ' "$log.$jobs" >>"$log"
        # "ok - suite::test  (0.01s)", "ok - suite::test  # SKIP why", "not ok - suite::test why"
        grep -E "^(not )?ok - ($group)::" "$out/tap" | sed -E \
            -e 's/^ok - ([^ ]+) +# SKIP.*/RESULT \1 skipped/' \
            -e 's/^ok - ([^ ]+).*/RESULT \1 passed/' \
            -e 's/^not ok - ([^ ]+).*/RESULT \1 FAILED/' | sort >>"$log"
        awk '/^not ok - / { sub(/^not ok - /, ""); print; told = 1; next }
             /^(ok |#)/ { told = 0 }
             told && (/^      / || /^  - /) { sub(/ \|\+$/, ""); print }' "$out/tap" >>"$log.failures"
    done
    cat "$log.4.err" "$log.1.err" >"$log.err"
    echo "$worst" >"$log.status"
}

conformance_summary()
{
    printf '%s passed, %s failed, %s skipped' "$(grep -c ' passed$' "$1")" \
        "$(grep -c ' FAILED$' "$1")" "$(grep -c ' skipped$' "$1")"
    case $(cat "$1.status") in
        0 | 1) ;;
        *) printf ', exit %s' "$(cat "$1.status")" ;;
    esac
}

# The n-th line of a probe's name against the n-th under the shim; only those that differ. What only
# one of them has is left to the table of tests: a test failed, or is not for both.
compare_probes()
{
    awk '/^PROBE / {
             key = $2 " " ++count[FILENAME, $2]
             sub(/^PROBE [^ ]* = /, "")
             if (FILENAME == ARGV[1]) { native[key] = $0; order[++n] = key }
             else { shim[key] = $0 }
         }
         END {
             for (i = 1; i <= n; i++) {
                 key = order[i]
                 if (key in shim && native[key] != shim[key])
                     print "  " key ":\n     native " native[key] "\n     shim   " shim[key]
             }
         }' "$1" "$2"
}

part_conformance()
{
    conformance_once native
    conformance_once shim
    native=$out/conformance.native shim=$out/conformance.shim
    for log in "$native" "$shim"; do
        if [ -s "$log.failures" ]; then
            echo "-- conformance, ${log##*.}: what failed"
            head -n 40 "$log.failures" | cut -c 1-160
        fi
    done
    compare_probes "$native" "$shim" >"$out/conformance.probes"
    echo "-- conformance: $(grep -c '^PROBE ' "$native") probes, those that differ:"
    head -n 60 "$out/conformance.probes" | cut -c 1-160
    grep '^RESULT ' "$native" >"$native.results"
    grep '^RESULT ' "$shim" >"$shim.results"
    differing=$(diff "$native.results" "$shim.results" | grep -c '^>')
    # Tests about what only the shim does are skipped natively: those differ rightly.
    diff "$native.results" "$shim.results" | grep '^[<>]' >"$out/conformance.differing"
    difference=equal
    if [ "$differing" != 0 ]; then
        difference="$differing tests differ, $(grep -c '^> .* FAILED$' "$out/conformance.differing") failing under the shim"
    fi
    if grep -q ' FAILED$' "$shim" || [ "$(cat "$shim.status")" != 0 ]; then
        verdict=1
    fi
    row conformance "$(conformance_summary "$native")" "$(conformance_summary "$shim")" "$difference"
}

# ---- the others ----

part_cudart()
{
    for kind in static shared; do
        if [ -x "$bundle/runtime_$kind" ]; then
            both "cudart_$kind" 60 \
                "LD_LIBRARY_PATH=$bundle/runtime${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
                "$bundle/runtime_$kind"
        else
            row "cudart_$kind" 'not in the bundle' 'not in the bundle' '-'
        fi
    done
}

# The stories are told differently with the shim: that is what they are for.
part_examples()
{
    for example in share_driver share_runtime; do
        [ -x "$bundle/$example" ] || continue
        for story in a b c; do
            for mode in native shim; do
                run "$mode" "$out/$example.$story.$mode" 40 "$bundle/$example" "$story"
            done
            native=$(sed -n 's/^story //p' "$out/$example.$story.native" | tail -n 1)
            shim=$(sed -n 's/^story //p' "$out/$example.$story.shim" | tail -n 1)
            [ "$(cat "$out/$example.$story.shim.status")" = 0 ] || verdict=1
            [ -n "$shim" ] || tail -n 4 "$out/$example.$story.shim.err"
            difference=differs
            [ "$native" != "$shim" ] || difference=equal
            row "$example $story" "${native:-$(summary "$out/$example.$story.native")}" \
                "${shim:-$(summary "$out/$example.$story.shim")}" "$difference"
        done
    done
}

part_torch_share()
{
    both torch_share 60 python3 "$root/tests/gpu/workloads/torch_share.py"
    both torch_share_expandable 60 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
        python3 "$root/tests/gpu/workloads/torch_share.py"
}

part_cupy()
{
    both cupy_ipc 60 python3 "$root/tests/gpu/workloads/cupy_ipc.py"
}

part_torch_steps()
{
    steps=$root/tests/gpu/workloads/torch_steps.py
    for workload in gpt resnet; do
        both "torch_${workload}_cached" 60 python3 "$steps" "$workload" 25
        both "torch_${workload}_uncached" 60 PYTORCH_NO_CUDA_MEMORY_CACHING=1 \
            python3 "$steps" "$workload" 25
        both "torch_${workload}_async" 60 PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync \
            python3 "$steps" "$workload" 25
    done
}

# What a machine has to register GPU memory with. Libraries that the loader does not know are looked
# for where packages put them.
part_register()
{
    [ -x "$bundle/registration" ] || {
        row registration 'not in the bundle' 'not in the bundle' '-'
        return
    }
    cufile=$(find /usr /opt -name libcufile.so.0 2>/dev/null | head -n 1)
    ucp=$(find /usr /opt -name libucp.so.0 2>/dev/null | head -n 1)
    both registration 200 ${cufile:+CUFILE_LIBRARY="$cufile"} ${ucp:+UCX_LIBRARY="$ucp"} \
        "$bundle/registration"
    grep -E '^(RESULT|PROBE|SKIP) ' "$out/registration.shim" | cut -c 1-160
    echo '-- probes and skips, native'
    grep -E '^(PROBE|SKIP) ' "$out/registration.native" | cut -c 1-160
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null
[ $# -gt 0 ] || set -- conformance cudart examples register torch_share cupy torch_steps
for part; do
    echo "== $part"
    case $part in
        conformance) part_conformance ;;
        cudart) part_cudart ;;
        examples) part_examples ;;
        torch_share) part_torch_share ;;
        cupy) part_cupy ;;
        torch_steps) part_torch_steps ;;
        register) part_register ;;
        *)
            echo 'no such part: conformance cudart examples register torch_share cupy torch_steps'
            verdict=1
            ;;
    esac
done

echo
printf 'name\tnative\tshim\tcompared\n' | cat - "$table" | awk -F '\t' '
    { for (i = 1; i <= 4; i++) { cell[NR, i] = $i; if (length($i) > width[i]) width[i] = length($i) } }
    END {
        for (r = 1; r <= NR; r++) {
            line = ""
            for (i = 1; i <= 4; i++) line = line sprintf("%-" width[i] + 2 "s", cell[r, i])
            sub(/ +$/, "", line)
            print line
        }
    }'
echo "took $(($(date +%s) - started)) s, logs in $out"
exit $verdict
