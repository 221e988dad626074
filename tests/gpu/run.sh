#!/bin/sh
# Runs programs on a real GPU natively and under the shim, and compares what they say. Needs the
# bundle that tests/gpu/bundle.sh makes; run it in the repository's root on the GPU machine:
#
#   sh tests/gpu/run.sh [PART…]
#
# Parts, all of them by default; those in the first three lines need the machine for themselves,
# the others run side by side, natively and under the shim at once:
#
#   conformance two_gpu cudart examples register torch_stats torch_graph_full torch_pool torch_memory programs
#   torch_ordered two_programs stress single chaos differential numba asleep asleep_ranks
#   sleep sleeps sleep_beside
#   sanitizer cupy jax nccl peer command weights named pieces own_vmm torch_share torch_kill
#   torch_steps torch_graph torch_compile torch_fork events
#
# Every program has its time limit and a failure stops nothing. Ends with a table: name, native
# result, result under the shim, equal or what differs. $OUT, /tmp/gpu-out by default, gets the
# table's rows (rows.tsv, for tests/gpu/table.py) and all logs (logs.tar.gz). $BUDGET is how many
# seconds everything may take, 520 by default: where that is too little for all parts, run some at a
# time. $JOBS is how many parts run side by side, a quarter of the cores by default, and
# $CONFORMANCE_JOBS how many tests of the conformance suite, natively and as many under the library.
# With $OLD_DRIVER set the library is as it is on a driver without cuCtxRecordEvent (before CUDA 12.5).
#
# Exit status: 0 when every program under the shim ended well and said what it says natively, but
# for what the shim is meant to make possible; 1 otherwise.
# shellcheck disable=SC2317 # the parts are called by name
set -u

alone='conformance two_gpu cudart examples register torch_stats torch_graph_full torch_pool torch_memory programs'
alone="$alone torch_ordered two_programs stress single chaos differential numba asleep asleep_ranks"
alone="$alone sleep sleeps sleep_beside"
beside='sanitizer cupy jax nccl peer command weights named pieces own_vmm torch_share torch_kill'
beside="$beside torch_steps torch_graph torch_compile torch_fork events"

root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/lib.sh
. "$root/tests/lib.sh"
bundle=$root/.bundle
shim=$bundle/libgpushim${OLD_DRIVER:+-old-driver}.so
workloads=$root/tests/gpu/workloads
out=${OUT:-/tmp/gpu-out}
budget=${BUDGET:-520}
cores=$(nproc)

# ---- Running one program ----

seconds_left()
{
    echo $((budget - ($(date +%s) - GPU_RUN_STARTED)))
}

# run MODE LOG SECONDS COMMAND…: stdout in LOG, stderr in LOG.err, the exit status in LOG.status,
# what the shim logged in LOG.gpushim, where it hung in LOG.stacks.
run()
{
    run_mode=$1 run_log=$2 limit=$3
    shift 3
    left=$(seconds_left) why=hung
    if [ "$limit" -gt "$left" ]; then
        limit=$left why='was ended when the time for all parts was over'
    fi
    rm -f "$run_log.gpushim"
    if [ "$limit" -lt 5 ]; then
        : >"$run_log"
        echo 'out of time' | tee "$run_log.err" >"$run_log.status"
        return
    fi
    if [ "$run_mode" = shim ]; then
        set -- "LD_PRELOAD=$shim${LD_PRELOAD:+:$LD_PRELOAD}" GPUSHIM_LOG=info \
            "GPUSHIM_LOG_TARGET=$run_log.gpushim" "$@"
    fi
    run_status=0
    python3 "$root/tests/gpu/limited.py" "$limit" "$run_log.stacks" env "$@" \
        >"$run_log" 2>"$run_log.err" </dev/null || run_status=$?
    # The library begins its log with a line that it is there.
    if [ "$run_mode" = shim ] && [ "$run_status" = 0 ] && [ ! -s "$run_log.gpushim" ]; then
        run_status='the library was not there'
    fi
    echo "$run_status" >"$run_log.status"
    if [ -e "$run_log.stacks" ]; then
        echo "-- ${run_log##*/} $why; the stacks are in its log, the first lines:"
        grep -E '^(==|Thread|#[0-6] )' "$run_log.stacks" | head -n 60 | cut -c 1-160
    fi
}

# wrong: what this part found is not as it should be.
wrong()
{
    : >"$logs/$part.wrong"
}

# row NAME NATIVE SHIM COMPARED
row()
{
    printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$logs/$part.rows"
}

# cannot NAME WHY: a row of something that is not run here.
cannot()
{
    row "$1" '-' '-' "not run: $2"
}

# compare NAME: a row from the two logs; what differs goes to stdout.
compare()
{
    python3 "$root/tests/gpu/compare.py" "$1" "$logs/$1.native" "$logs/$1.shim" \
        "$logs/$part.rows" || wrong
}

# both NAME SECONDS COMMAND…: natively and under the shim; at the same time where times do not
# matter.
both()
{
    name=$1 seconds=$2
    shift 2
    if [ "$side_by_side" = yes ]; then
        run native "$logs/$name.native" "$seconds" "$@" &
        run shim "$logs/$name.shim" "$seconds" "$@"
        wait $!
    else
        run native "$logs/$name.native" "$seconds" "$@"
        run shim "$logs/$name.shim" "$seconds" "$@"
    fi
    compare "$name"
}

# needs NAME MODULE…: whether Python has these; a row that says what is missing where it has not.
needs()
{
    needs_name=$1
    shift
    for module; do
        if ! python3 -c "
import importlib.util, sys
sys.exit(importlib.util.find_spec('$module') is None)" 2>/dev/null; then
            cannot "$needs_name" "no Python module $module here"
            return 1
        fi
    done
}

# How many GPUs programs see here.
gpus()
{
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
        echo "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | grep -c .
    else
        nvidia-smi -L 2>/dev/null | grep -c '^GPU'
    fi
}

needs_two_gpus()
{
    [ "$(gpus)" -lt 2 ] || return 0
    cannot "$1" 'it needs two GPUs'
    return 1
}

# ---- The conformance suite ----

# The tests that look at the device's free memory, or take most of it, have it to themselves, one at a
# time; all others run side by side.
quiet='room/*|info/@(free_memory|freed_memory|memory_comes)*|lifetime/memory_comes*'
quiet="$quiet|waits/@(an_allocation|physical|memory_freed|one_block)*|pools/a_trim*"
quiet="$quiet|contexts/@(destroying_a_context_takes|each_device|free_memory|to_ask)*"

# conformance_once MODE JOBS FILTER: one log with a line "RESULT suite::test outcome" for each test and
# the probes, added to what is there. The tap has how long each took, and lists those that the filter
# leaves out as skipped for no reason.
conformance_once()
{
    mode=$1 jobs=$2
    log=$logs/$part.$mode
    run "$mode" "$log.$jobs" 300 "LD_LIBRARY_PATH=$bundle/lib:${LD_LIBRARY_PATH:-}" GPUSHIM_DEBUG_GRACE=1s \
        "$bundle/conformance" --jobs "$jobs" --color=never --filter "$3" "--tap=$log.$jobs.tap"
    [ "$(cat "$log.$jobs.status")" = 0 ] || cp "$log.$jobs.status" "$log.status"
    cat "$log.$jobs.err" >>"$log.err"
    [ -e "$log.$jobs.tap" ] || return 0
    grep '^PROBE ' "$log.$jobs" >>"$log"
    # "ok - suite::test  (0.01s)", "ok - suite::test  # SKIP why", "not ok - suite::test why"
    grep -E '^(not )?ok - ' "$log.$jobs.tap" | grep -v '# SKIP test was skipped$' | sed -E \
        -e 's/^ok - ([^ ]+) +# SKIP *(.*)/RESULT \1 skipped \2/' \
        -e 's/^ok - ([^ ]+).*/RESULT \1 passed/' \
        -e 's/^not ok - ([^ ]+).*/RESULT \1 FAILED/' | sort >>"$log"
    awk '/^not ok - / { sub(/^not ok - /, ""); print; told = 1; next }
         /^(ok |#)/ { told = 0 }
         told && (/^      / || /^  - /) { sub(/ \|\+$/, ""); print }' "$log.$jobs.tap" \
        >>"$log.failures"
}

# Natively and under the library at once, where nobody looks at what is free.
conformance_beside()
{
    conformance_once native "$@" &
    conformance_once shim "$@"
    wait $!
}

conformance_summary()
{
    printf '%s passed, %s failed, %s skipped' "$(grep -c '^RESULT [^ ]* passed$' "$1")" \
        "$(grep -c '^RESULT [^ ]* FAILED$' "$1")" "$(grep -c '^RESULT [^ ]* skipped' "$1")"
    case $(cat "$1.status") in
        0 | 1) ;;
        *) printf ', exit %s' "$(cat "$1.status")" ;;
    esac
}

# Of each name the values that only one of both has; they come in any order. A name that only one has is
# left to the table of tests: a test failed, or is not for both.
compare_probes()
{
    awk '/^PROBE / {
             name = $2
             sub(/^PROBE [^ ]* = /, "")
             has[name, FILENAME] = 1
             if (!((name, $0) in balance)) { names[++n] = name; values[n] = $0 }
             balance[name, $0] += FILENAME == ARGV[1] ? 1 : -1
         }
         END {
             for (i = 1; i <= n; i++) {
                 more = balance[names[i], values[i]]
                 if (more && has[names[i], ARGV[1]] && has[names[i], ARGV[2]])
                     print "  " names[i] (more > 0 ? ": native " : ": shim   ") values[i] \
                           (more * more > 1 ? ", " (more > 0 ? more : -more) " more" : "")
             }
         }' "$1" "$2" | sort
}

conformance_begin()
{
    native=$logs/$part.native shimmed=$logs/$part.shim
    for log in "$native" "$shimmed"; do
        : >"$log"
        : >"$log.failures"
        : >"$log.err"
        echo 0 >"$log.status"
    done
}

conformance_end()
{
    for log in "$native" "$shimmed"; do
        if [ -s "$log.failures" ]; then
            echo "-- $part, ${log##*.}: what failed"
            head -n 40 "$log.failures" | cut -c 1-160
        fi
    done
    compare_probes "$native" "$shimmed" >"$logs/$part.probes"
    echo "-- $part: $(grep -c '^PROBE ' "$native") probes, those that differ:"
    head -n 60 "$logs/$part.probes" | cut -c 1-160
    # Of share.reach = cluster, where GPUSHIM_SHARE_REACH asks for it.
    cat "$shimmed".*.gpushim 2>/dev/null | grep -o 'memory of device .* stays on this machine.*' | sort | uniq -c
    python3 "$root/tests/gpu/differences.py" "$native" "$shimmed" >"$logs/$part.differing" || wrong
    difference=$(head -n 1 "$logs/$part.differing")
    sed 1d "$logs/$part.differing" | cut -c 1-200
    if [ "$(cat "$shimmed.status")" != 0 ]; then
        difference="$difference; the suite ended with $(cat "$shimmed.status") under the library"
        wrong
    fi
    row "$part" "$(conformance_summary "$native")" "$(conformance_summary "$shimmed")" \
        "$difference"
}

part_conformance()
{
    conformance_begin
    conformance_beside "${CONFORMANCE_JOBS:-$((cores > 7 ? cores * 3 / 8 : 2))}" "!($quiet)"
    for mode in native shim; do
        conformance_once "$mode" 1 "@($quiet)"
    done
    conformance_end
}

part_two_gpu()
{
    needs_two_gpus two_gpu || return 0
    conformance_begin
    for mode in native shim; do
        conformance_once "$mode" 1 '@(reach|nodes|borders|pools|info|contexts|vmm|between|own|external)/*'
    done
    conformance_end
}

# ---- Programs of this project ----

part_cudart()
{
    for kind in static shared; do
        if [ -x "$bundle/runtime_$kind" ]; then
            both "cudart_$kind" 60 \
                "LD_LIBRARY_PATH=$bundle/runtime${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
                "$bundle/runtime_$kind"
        else
            cannot "cudart_$kind" 'not in the bundle'
        fi
    done
}

# story_end MODE STORY: what a story has to come to (examples/share/producer.c).
story_end()
{
    case $1.$2 in
        native.a) echo 'consumer saw foreign bytes' ;;
        native.b) echo 'memory cannot be shared' ;;
        shim.a) echo 'consumer saw its own bytes' ;;
        shim.b) echo 'consumer read the bytes' ;;
        *.c) echo 'the memory came back' ;;
    esac
}

# The stories are told differently with the shim: that is what they are for.
part_examples()
{
    for example in share_driver share_runtime; do
        [ -x "$bundle/$example" ] || continue
        for story in a b c; do
            for mode in native shim; do
                run "$mode" "$logs/$example.$story.$mode" 40 "$bundle/$example" "$story"
            done
            native=$(sed -n 's/^story .: //p' "$logs/$example.$story.native" | tail -n 1)
            shimmed=$(sed -n 's/^story .: //p' "$logs/$example.$story.shim" | tail -n 1)
            difference='as intended'
            case $native in
                *"$(story_end native "$story")"*) ;;
                *) difference='not what it natively comes to' ;;
            esac
            case $shimmed in
                *"$(story_end shim "$story")"*) ;;
                *) difference='not what it should come to' ;;
            esac
            [ "$difference" = 'as intended' ] || wrong
            if [ "$(cat "$logs/$example.$story.shim.status")" != 0 ]; then
                wrong
                difference=failed
                tail -n 4 "$logs/$example.$story.shim.err"
            fi
            row "$example $story" "${native:-ended with nothing said}" \
                "${shimmed:-ended with nothing said}" "$difference"
        done
    done
}

# What a machine has to register GPU memory with; tests/bench/register.sh measures what the cache costs.
# Libraries that the loader does not know are looked for where packages put them.
part_register()
{
    cufile=$(find /usr /opt -name libcufile.so.0 2>/dev/null | head -n 1)
    ucp=$(find /usr /opt -name libucp.so.0 2>/dev/null | head -n 1)
    both registration 100 ${cufile:+CUFILE_LIBRARY="$cufile"} ${ucp:+UCX_LIBRARY="$ucp"} \
        python3 "$root/tests/gpu/registration.py"
    grep -E '^(RESULT|PROBE|SKIP) ' "$logs/registration.shim" | cut -c 1-160
    echo '-- probes and skips, native'
    grep -E '^(PROBE|SKIP) ' "$logs/registration.native" | cut -c 1-160
}

# judge GOOD LOG…: the outcome is GOOD where all of these ended well; else the part is wrong, and what they
# said last is shown.
judge()
{
    outcome=$1
    shift
    for log; do
        ended=$(cat "$logs/$log.status")
        [ "$ended" != 0 ] || continue
        wrong
        outcome='failed: see the log'
        echo "-- $log: exit $ended"
        tail -n 12 "$logs/$log" "$logs/$log.err" | cut -c 1-300
    done
}

# two_owners NAME WITHOUT LIBRARY: a row of a program that was run natively, under the shim, and to be found
# out with a library that is made wrong.
two_owners()
{
    judge holds "$1.native" "$1.shim" "$1.find"
    found=$(sed -n "\$s/^$1: \([^:]*\).*/\1/p" "$logs/$1.find")
    row "$1" "$(sed -n "\$s/^$1: //p" "$logs/$1.native")" "$(sed -n "\$s/^$1: //p" "$logs/$1.shim")" \
        "$outcome; without $2: $found"
}

# Memory that two have, looked for under a busy GPU. The same program finds it in a library that
# hands memory out while the GPU still works on it. STRESS_SECONDS is how long it works under the
# shim, 30 by default, STRESS_NATIVE_SECONDS natively, 10 by default.
part_stress()
{
    if [ ! -x "$bundle/stress" ]; then
        cannot stress 'not in the bundle'
        return
    fi
    native_seconds=${STRESS_NATIVE_SECONDS:-10} shim_seconds=${STRESS_SECONDS:-30}
    run native "$logs/stress.native" $((native_seconds + 12)) "$bundle/stress" --seconds "$native_seconds" --seed 1
    run shim "$logs/stress.shim" $((shim_seconds + 12)) "$bundle/stress" --seconds "$shim_seconds" --seed 1
    run native "$logs/stress.find" 60 "LD_PRELOAD=$bundle/libgpushim-no-epochs.so" \
        "$bundle/stress" --seconds 30 --find
    two_owners stress epochs
}

# Stress of many short processes that begin with one stream; the library that is found out is one
# in which no stream waits for it. SINGLE_SECONDS is how long under the shim, 30 by default.
part_single()
{
    if [ ! -x "$bundle/single" ]; then
        cannot single 'not in the bundle'
        return
    fi
    single_seconds=${SINGLE_SECONDS:-30} single_jobs=$(($(nproc) / 4 + 1))
    run native "$logs/single.native" 75 "$bundle/single" --seconds 10 --jobs "$single_jobs"
    run shim "$logs/single.shim" $((single_seconds + 65)) "$bundle/single" --seconds "$single_seconds" \
        --jobs "$single_jobs"
    run native "$logs/single.find" 100 "LD_PRELOAD=$bundle/libgpushim-no-order.so" \
        "$bundle/single" --seconds 30 --jobs "$single_jobs" --find
    two_owners single order
}

# sanitize NAME PROGRAM ARGS…: what compute-sanitizer's memcheck finds, and what the program says.
sanitize()
{
    name=$1
    shift
    # Errors that the API returns are the programs' own tests.
    memcheck="$sanitizer --tool memcheck --target-processes all --report-api-errors no"
    # shellcheck disable=SC2086 # a command and its options
    run native "$logs/$name.native" 120 $memcheck --error-exitcode 9 "$@"
    # It preloads libraries of its own and has an option for one more.
    # shellcheck disable=SC2086 # again
    run native "$logs/$name.shim" 120 GPUSHIM_LOG=info \
        "GPUSHIM_LOG_TARGET=$logs/$name.shim.gpushim" \
        $memcheck --error-exitcode 9 --preload-library "$shim" "$@"
    for log in "$logs/$name.native" "$logs/$name.shim"; do
        # Each process has its summary; what matters is the sum.
        found=$(sed -n 's/.*ERROR SUMMARY: \([0-9]*\) error.*/\1/p' "$log" |
            awk '{ n += $1; lines++ } END { print lines ? n : "no" }')
        echo "RESULT memcheck $found errors" >>"$log"
    done
    compare "$name"
}

part_sanitizer()
{
    sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    if ! "$sanitizer" --version >/dev/null 2>&1; then
        cannot sanitizer 'no compute-sanitizer here'
        return
    fi
    sanitize sanitizer_share_driver "$bundle/share_driver" a
    [ ! -x "$bundle/runtime_static" ] || sanitize sanitizer_runtime_static "$bundle/runtime_static"
}

# chaos_once NAME SECONDS ARGS…: it puts the shim into its processes by itself.
chaos_once()
{
    name=$1 seconds=$2
    shift 2
    run native "$logs/$name" "$seconds" "$bundle/chaos" "$@" --shim "$shim" \
        --broker "$bundle/gpushim-broker"
    said=$(tail -n 1 "$logs/$name")
    judge holds "$name"
    grep '^chaos: ' "$logs/$name" | cut -c 1-200
    row "$name" '-' "${said:-nothing}" "$outcome"
}

# Chaos with a library that takes a socket's hang-up for the end of a process's GPU work: the
# scribbling consumers must find that out.
chaos_catches()
{
    run native "$logs/chaos_catches" 60 "TMPDIR=$logs" "$bundle/chaos" --scribble 10 \
        --shim "$bundle/libmutant_hang-up.so"
    found=$(grep -o "a killed consumer's kernel: changed [0-9]* words" "$logs/chaos_catches.err")
    if [ "$(cat "$logs/chaos_catches.status")" = 1 ] && [ -n "$found" ]; then
        row chaos_catches '-' "$found" 'a library that trusts the hang-up alone is caught'
    else
        wrong
        row chaos_catches '-' 'nothing found' \
            "not caught (exit $(cat "$logs/chaos_catches.status"))"
        tail -n 4 "$logs/chaos_catches" "$logs/chaos_catches.err" | cut -c 1-300
    fi
}

# The scribbling consumers take a second or two each.
part_chaos()
{
    chaos_once chaos_scribble 260 --scribble "${SCRIBBLE:-100}"
    chaos_catches
    chaos_seconds=${CHAOS_SECONDS:-40} apart=''
    for strategy in embedded broker; do
        chaos_once "chaos_$strategy" $((chaos_seconds + 80)) --strategy "$strategy" \
            --seconds "$chaos_seconds" --processes 16 ${apart:+--no-namespaces}
        if [ -z "$apart" ] && grep -q 'CUDA does not start' "$logs/chaos_$strategy"; then
            apart=yes
            chaos_once "chaos_$strategy" $((chaos_seconds + 80)) --strategy "$strategy" \
                --seconds "$chaos_seconds" --processes 16 ${apart:+--no-namespaces}
        fi
    done
}

# Programs made from seeds: natively and under the shim, and natively on the GPU and on the software
# driver, which is to answer as the real one does. DIFFERENTIAL_SECONDS is how long each, 60 by
# default.
part_differential()
{
    seconds=${DIFFERENTIAL_SECONDS:-60}
    if [ ! -x "$bundle/differential" ]; then
        cannot differential 'not in the bundle'
        return
    fi
    run native "$logs/differential.shim" $((seconds + 300)) python3 \
        "$root/tests/fuzz/differential/run.py" --left native:gpu --right shim:gpu \
        --seconds "$seconds" --devices "$(gpus)"
    run native "$logs/differential.software" $((seconds + 300)) python3 \
        "$root/tests/fuzz/differential/run.py" --left native:software --right native:gpu \
        --seconds "$seconds" --devices "$(gpus)"
    judge equal differential.shim differential.software
    row differential "beside the software driver: $(sed -n '$s/^differential: //p' \
        "$logs/differential.software")" "$(sed -n '$s/^differential: //p' \
        "$logs/differential.shim")" "$outcome"
}

# ---- Frameworks ----

part_numba()
{
    needs numba numba.cuda || return 0
    left=$(seconds_left)
    timeout -k 5 $((left > 10 ? left : 10)) python3 "$workloads/numba_suite.py" --shim "$shim" \
        --seconds $((left - 15)) --logs "$logs/numba" --rows "$logs/numba.rows" || wrong
}

part_cupy()
{
    needs cupy cupy || return 0
    both cupy_ipc 60 python3 "$workloads/cupy_ipc.py"
    for pool in default async managed; do
        both "cupy_$pool" 60 python3 "$workloads/cupy_pools.py" "$pool"
    done
}

part_jax()
{
    needs jax jax || return 0
    steps=$workloads/jax_steps.py
    both jax_default 90 XLA_PYTHON_CLIENT_MEM_FRACTION=.08 python3 "$steps"
    both jax_platform 90 XLA_PYTHON_CLIENT_ALLOCATOR=platform python3 "$steps"
    both jax_cuda_async 90 XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async \
        XLA_PYTHON_CLIENT_MEM_FRACTION=.08 python3 "$steps"
}

# With NCCL_CUMEM_ENABLE=0 NCCL shares by legacy CUDA IPC: then the library must have served it.
part_nccl()
{
    needs_two_gpus nccl || return 0
    needs nccl torch || return 0
    for cumem in 1 0; do
        mkdir -m 700 "$logs/nccl_$cumem.share"
        both "nccl_$cumem" 100 "NCCL_CUMEM_ENABLE=$cumem" NCCL_DEBUG=INFO \
            "NCCL_DEBUG_FILE=$logs/nccl_$cumem.debug.%p" \
            "GPUSHIM_SHARE_DIR=$logs/nccl_$cumem.share" python3 "$workloads/nccl_allreduce.py"
        cat "$logs/nccl_$cumem".debug.* 2>/dev/null | grep -o 'via P2P/[A-Za-z]*' | sort | uniq -c
    done
}

part_peer()
{
    needs_two_gpus peer || return 0
    needs peer_torch torch || return 0
    both peer_torch 90 python3 "$workloads/torch_peer.py"
    both peer_torch_uncached 90 PYTORCH_NO_CUDA_MEMORY_CACHING=1 python3 "$workloads/torch_peer.py"
}

# ---- PyTorch ----

# torch_modes NAME SECONDS COMMAND…: with each of PyTorch's ways to allocate.
torch_modes()
{
    modes_name=$1 modes_seconds=$2
    shift 2
    both "${modes_name}_cached" "$modes_seconds" "$@"
    both "${modes_name}_uncached" "$modes_seconds" PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$@"
    both "${modes_name}_async" "$modes_seconds" PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync \
        "$@"
}

part_torch_share()
{
    needs torch_share torch || return 0
    both torch_share 60 python3 "$workloads/torch_share.py"
    both torch_share_expandable 60 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
        python3 "$workloads/torch_share.py"
}

# Memory that programs map themselves, opened by CuPy, numba and UCX.
part_own_vmm()
{
    if [ -x "$bundle/ucx_vmm" ]; then
        both own_ucx 60 UCX_TLS=cuda_ipc,cuda_copy,sm UCX_PROTO_INFO=y \
            "LD_LIBRARY_PATH=$bundle/ucx/libucx/lib:${LD_LIBRARY_PATH:-}" "$bundle/ucx_vmm"
    else
        cannot own_ucx 'not in the bundle: UCX was not given to tests/gpu/bundle.sh'
    fi
    needs own_torch torch cupy numba || return 0
    both own_torch 120 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python3 "$workloads/own_vmm.py" expandable
    if [ -d "$bundle/python" ]; then
        both own_saver 60 "PYTHONPATH=$bundle/python" python3 "$workloads/own_vmm.py" saver
    else
        cannot own_saver 'not in the bundle: SAVER was not given to tests/gpu/bundle.sh'
    fi
}

# The command looks at a program that it started; there is nothing to compare it with.
part_command()
{
    needs command torch || return 0
    run native "$logs/command.shim" 150 python3 "$workloads/command.py" "$bundle/gpushim"
    judge 'as it should be' command.shim
    row command - "$(grep -c '^RESULT .* ok$' "$logs/command.shim") checks ok" "$outcome"
    grep -v '^RESULT .* ok$' "$logs/command.shim" | cut -c 1-200
}

# As it is told in examples/README.md, with PyTorch. Where the bundle is there is no build folder.
part_weights()
{
    needs weights torch || return 0
    mkdir -p "$logs/weights.build/shim/command"
    ln -s "$shim" "$logs/weights.build/shim/libgpushim.so"
    ln -s "$bundle/gpushim" "$bundle/gpushim-broker" "$logs/weights.build/shim/command/"
    run native "$logs/weights" 150 "GPUSHIM_BUILD=$logs/weights.build" sh "$root/examples/weights/weights.sh" --mib 1024
    judge 'as it should be' weights
    grep -E '^(first|second|third|check): ' "$logs/weights"
    row weights - "$(tail -n 1 "$logs/weights")" "$outcome"
}

# owns_are_good ROW HOW…: tests of tests/share/own.py, whose processes are under the library.
owns_are_good()
{
    good_row=$1 good=0 programs=''
    shift
    for how in "$@"; do
        log="own_$(echo "$how" | tr ' ' _)"
        programs="$programs $log"
        # shellcheck disable=SC2086 # words
        run native "$logs/$log" 90 python3 "$root/tests/share/own.py" "$bundle/puppet" "$shim" \
            "$bundle/gpushim-broker" $how
        [ "$(cat "$logs/$log.status")" != 0 ] || good=$((good + 1))
    done
    # shellcheck disable=SC2086 # words
    judge 'as it should be' $programs
    row "$good_row" - "$good of $# ok" "$outcome"
}

# Names of memory that a program maps itself: only the library has them.
part_named()
{
    owns_are_good named named_lifetime named_pieces named_refused named_off named_ends named_churn named_broker
}

# One handle of up to 2,000 pieces, and what of tests/share/own.py asks the driver for no figures.
part_pieces()
{
    owns_are_good pieces 'pieces 1' 'pieces 2' 'pieces 256' 'pieces 2000' ends churn broker off alone
}

# CUDA IPC events, between namespaces too.
part_events()
{
    both events 120 python3 "$root/tests/share/events.py" "$bundle/puppet" "$shim" "$bundle/gpushim-broker" driver
}

# Memory that goes and comes, beside a checkpoint: 8 GiB; all sizes by hand (tests/gpu/sleep.py).
part_sleep()
{
    run native "$logs/sleep" 300 python3 "$root/tests/gpu/sleep.py" "$shim" "$bundle/asleep" --gib 8
    cut -c 1-200 "$logs/sleep"
    judge told sleep
    row sleep - "$(grep -c '^asleep .*: ok' "$logs/sleep") cases ok" "$outcome"
}

# At random moments: SLEEPS times in all, 10,000 by default, and in SLEEPS_SECONDS, 300 by default.
part_sleeps()
{
    run native "$logs/sleeps" $((${SLEEPS_SECONDS:-300} + 130)) python3 "$root/tests/gpu/sleeps.py" \
        "$shim" "$bundle/gpushim" "$bundle/stress" --times "${SLEEPS:-10000}" --seconds "${SLEEPS_SECONDS:-300}"
    judge 'no wrong byte' sleeps
    cut -c 1-150 "$logs/sleeps"
    row sleeps - "$(tail -n 1 "$logs/sleeps")" "$outcome"
}

# By command, of a PyTorch program: what others see of it, beside torch_memory_saver where the bundle has it.
# SLEEP_GIB, 8 by default.
part_sleep_beside()
{
    needs sleep_beside torch pynvml || return 0
    run native "$logs/sleep_beside" 240 "PYTHONPATH=$bundle/python" python3 "$root/tests/gpu/sleep_beside.py" \
        "$shim" "$bundle/gpushim" --gib "${SLEEP_GIB:-8}"
    judge told sleep_beside
    cut -c 1-300 "$logs/sleep_beside"
    row sleep_beside - "$(grep -c '^gpushim .* right$' "$logs/sleep_beside") rounds right" "$outcome"
}

# Programs of frameworks that sleep between their steps, and say what they say without (workloads/asleep.py).
# ASLEEP is which.
part_asleep()
{
    for kind in ${ASLEEP:-torch graph transformers compile cupy jax}; do
        case $kind in
            graph | compile) module=torch ;;
            *) module=$kind ;;
        esac
        needs "asleep_$kind" pynvml "$module" || continue
        name=asleep_$kind
        run native "$logs/$name.native" 90 python3 "$workloads/asleep.py" "$kind"
        run shim "$logs/$name.shim" 120 python3 "$workloads/asleep.py" "$kind" "$bundle/gpushim"
        compare "$name"
        grep '^PROBE' "$logs/$name.shim"
    done
}

part_asleep_ranks()
{
    needs_two_gpus asleep_ranks || return 0
    needs asleep_ranks torch pynvml || return 0
    for cumem in 1 0; do
        name=asleep_ranks_$cumem
        mkdir -m 700 "$logs/$name.share"
        run native "$logs/$name.native" 90 NCCL_CUMEM_ENABLE=$cumem python3 "$workloads/asleep_ranks.py"
        run shim "$logs/$name.shim" 120 NCCL_CUMEM_ENABLE=$cumem GPUSHIM_SHARE_DIR="$logs/$name.share" \
            python3 "$workloads/asleep_ranks.py" "$bundle/gpushim"
        compare "$name"
        grep '^PROBE' "$logs/$name.shim"
    done
}

part_torch_kill()
{
    needs torch_kill torch || return 0
    both torch_kill 150 python3 "$workloads/torch_kill.py"
    mkdir -m 700 "$logs/torch_kill.share"
    both torch_kill_broker 150 GPUSHIM_SHARE_STRATEGY=broker \
        "GPUSHIM_SHARE_BROKER=$bundle/gpushim-broker" "GPUSHIM_SHARE_DIR=$logs/torch_kill.share" \
        python3 "$workloads/torch_kill.py"
}

part_torch_steps()
{
    needs torch_steps torch || return 0
    for workload in gpt resnet gnn decode; do
        steps=20
        [ "$workload" != decode ] || steps=4
        [ "$workload" != gnn ] || steps=8 # deterministic sums take a sort each
        [ "$workload" != gnn ] || needs torch_gnn torch_geometric || continue
        [ "$workload" != decode ] || needs torch_decode transformers || continue
        torch_modes "torch_$workload" 90 python3 "$workloads/torch_steps.py" "$workload" "$steps"
    done
}

part_torch_graph()
{
    needs torch_graph torch || return 0
    torch_modes torch_graph 60 python3 "$workloads/torch_graph.py"
}

# It fills the GPU.
part_torch_graph_full()
{
    needs torch_graph_full torch || return 0
    both torch_graph_full 90 python3 "$workloads/torch_graph_full.py"
}

# gpushim.torch under the library against PyTorch's own cache natively; one part fills the GPU.
part_torch_pool()
{
    needs torch_pool torch || return 0
    for what in graphs processes streams full pool; do
        both "torch_pool_$what" 150 python3 "$workloads/torch_pool.py" "$what"
    done
}

part_torch_stats()
{
    needs torch_stats torch || return 0
    torch_modes torch_stats 60 python3 "$workloads/torch_stats.py"
}

part_torch_compile()
{
    needs torch_compile torch triton || return 0
    if ! command -v "${CC:-cc}" >/dev/null && ! command -v gcc >/dev/null; then
        cannot torch_compile 'Triton needs a C compiler, there is none here'
        return
    fi
    both torch_compile 200 python3 "$workloads/torch_compile.py"
}

part_torch_fork()
{
    needs torch_fork torch || return 0
    both torch_fork 120 python3 "$workloads/torch_fork.py"
}

# turns PREFIX SECONDS ARGS…: programs step by step in turns (tests/gpu/workloads/turns.py), a row each
# whatever becomes of it. What each step took and counted goes to $out/PREFIX.jsonl at once.
turns()
{
    prefix=$1 seconds=$2 room=$(($(seconds_left) - 60))
    shift 2
    [ "$seconds" -le "$room" ] || seconds=$room
    mkdir -p "$logs/$prefix.logs"
    rm -f "$out/$prefix.jsonl"
    run native "$logs/$prefix" $((seconds + 60)) python3 "$workloads/turns.py" --shim "$shim" \
        --seconds "$seconds" --keep "$out/$prefix.jsonl" --logs "$logs/$prefix.logs" \
        --rows "$logs/$part.rows" --rows-as "$prefix" "$@"
    cut -c 1-400 "$logs/$prefix"
    if [ "$(cat "$logs/$prefix.status")" != 0 ]; then
        wrong
        echo "-- $prefix: exit $(cat "$logs/$prefix.status")"
        tail -n 8 "$logs/$prefix.err"
        [ -s "$logs/$part.rows" ] || row "$prefix" '-' '-' "failed ($(cat "$logs/$prefix.status"))"
    fi
}

# Speed and memory as tests/bench/README.md has them: PyTorch's caching allocator natively against no
# cache of its own under the shim. TORCH_MEMORY_SECONDS is how long for all four, 120 by default.
part_torch_memory()
{
    needs memory torch || return 0
    turns memory "${TORCH_MEMORY_SECONDS:-120}" --modes cached,shim --once uncached \
        torch_gpt torch_resnet torch_gnn torch_decode
}

# Those modes for PyTorch's programs with gpushim.torch in the place of a cache. ORDERED_SECONDS is how long
# for all of them, 400 by default; ORDERED is which, and ORDERED_MODES what they are compared with (turns.py).
part_torch_ordered()
{
    needs ordered torch || return 0
    # shellcheck disable=SC2046 # names
    turns ordered "${ORDERED_SECONDS:-400}" --modes "${ORDERED_MODES:-cached,ordered}" \
        ${ORDERED:-$(cd "$workloads/programs" && basename -s .py torch_*.py | grep -v -e ddp -e fsdp)}
}

# Those modes, and cached under the shim, for programs that no tuning had seen. PROGRAMS_SECONDS is how
# long for all of them, 400 by default; PROGRAMS is which.
part_programs()
{
    programs='torch_unet torch_translate torch_experts torch_lstm torch_server torch_points cupy_tables'
    # shellcheck disable=SC2086 # names
    turns program "${PROGRAMS_SECONDS:-400}" ${PROGRAMS:-$programs}
}

# Those modes for training on two GPUs: DistributedDataParallel and FSDP. TWO_PROGRAMS_SECONDS is how long
# for both, 150 by default.
part_two_programs()
{
    needs_two_gpus two_programs || return 0
    turns program "${TWO_PROGRAMS_SECONDS:-150}" torch_ddp torch_fsdp
}

# ---- All of it ----

# One part, in a process of its own: its rows, and what is wrong, go into files.
if [ "${1:-}" = --one ]; then
    part=$2
    logs=$GPU_RUN_LOGS
    side_by_side=yes
    for name in $alone; do
        [ "$name" != "$part" ] || side_by_side=no
    done
    began=$(date +%s)
    "part_$part" >"$logs/$part.said" 2>&1
    echo "$part: $(($(date +%s) - began)) s" >>"$logs/times"
    exit 0
fi

[ -e "$shim" ] || {
    echo "run: no $bundle: run 'sh tests/gpu/bundle.sh' where the project is built" >&2
    exit 1
}
# shellcheck disable=SC2086 # lists of names
[ $# -gt 0 ] || set -- $alone $beside
# is_of NAME LIST
is_of()
{
    case " $2 " in
        *" $1 "*) return 0 ;;
    esac
    return 1
}

quietly='' together=''
for part; do
    if is_of "$part" "$alone"; then
        quietly="$quietly $part"
    elif is_of "$part" "$beside"; then
        together="$together $part"
    else
        echo "run: no part $part; there are: $alone $beside" >&2
        exit 1
    fi
done

mkdir -p "$out"
GPU_RUN_LOGS=$(mktemp -d) GPU_RUN_STARTED=$(date +%s)
logs=$GPU_RUN_LOGS
export GPU_RUN_LOGS GPU_RUN_STARTED
real=$(system_libcuda)
if [ -z "$(configured_libcuda)" ] && [ -n "$real" ]; then
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${real%/*}
    export LD_LIBRARY_PATH
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null
jobs=${JOBS:-$((cores > 7 ? cores / 4 : 1))}

# What may run side by side goes first: there is more of it.
# shellcheck disable=SC2086 # again
[ -z "$together" ] || printf '%s\n' $together | xargs -n 1 -P "$jobs" sh "$0" --one
for part in $quietly; do
    sh "$0" --one "$part"
done

verdict=0
for part in $together $quietly; do
    echo "== $part"
    cat "$logs/$part.said"
    [ ! -e "$logs/$part.wrong" ] || verdict=1
    cat "$logs/$part.rows" >>"$out/rows.new" 2>/dev/null || verdict=1
done
mv "$out/rows.new" "$out/rows.tsv"
echo
python3 "$root/tests/gpu/table.py" "$out/rows.tsv" || verdict=1
tar -C "$logs" -czf "$out/logs.tar.gz" . 2>/dev/null
echo "took $(($(date +%s) - GPU_RUN_STARTED)) s; $(paste -s -d , "$logs/times" 2>/dev/null)"
echo "rows and logs are in $out"
rm -rf "$logs"
exit $verdict
