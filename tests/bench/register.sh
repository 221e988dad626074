#!/bin/sh
# What registrations cost and save, one JSON line a row (README.md here, "Registrations"):
#
#   [GPUSHIM_BUILD=FOLDER] sh tests/bench/register.sh [ROUNDS]
#
# Needs neither a GPU nor a network card: the software driver and the stand-in libibverbs are in the folder.
# ROUNDS (10000) is how often examples/rdma/message.c allocates, registers, sends, deregisters and frees.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
build=${GPUSHIM_BUILD:-$root/build}
rounds=${1:-10000}
GPUSHIM_BUILD=$build
export GPUSHIM_BUILD

for program in tests/bench/register examples/rdma/rdma_message; do
    [ -x "$build/$program" ] || {
        echo "register: no $build/$program: build it first (it needs libibverbs-dev)" >&2
        exit 1
    }
done

# That stand-in alone: another one beside it has a GPU with a small window.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
ln -s "$build/tests/rdma/libibverbs.so.1" "$scratch/"
LD_LIBRARY_PATH=$scratch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

sh "$root/tests/with.sh" native --software "$build/tests/bench/register"

for mode in native shim; do
    STAND_IN_REPORT=$scratch/$mode sh "$root/tests/with.sh" "$mode" --software \
        "$build/examples/rdma/rdma_message" "$rounds" >"$scratch/out" ||
        { cat "$scratch/out" >&2; exit 1; }
    # registered N deregistered N live N killed N sent N wrong N
    read -r _ registered _ _ _ live _ killed _ sent _ wrong <"$scratch/$mode"
    printf '{"bench": "register_loop", "shim": %s, "rounds": %s, "registrations": %s, ' \
        "$([ "$mode" = shim ] && echo true || echo false)" "$rounds" "$registered"
    printf '"live": %s, "killed": %s, "sent": %s, "wrong": %s}\n' \
        "$live" "$killed" "$sent" "$wrong"
done
