#!/bin/sh
# Starts a program in a container with the library: sh docker.sh cdi|plain IMAGE PROGRAM [ARGUMENT...]
# (podman.sh has more on the ways). Docker's containers have the host's user numbers, unless userns-remap is on.
set -eu
prefix=${PREFIX:-/opt/gpushim} # where the library is installed on the host
share=${SHARE:-/run/gpushim}   # as --share-dir was when the specification was written
way=$1 image=$2
shift 2
case $way in
cdi)
    exec docker run --rm --gpus all --device libgpushim.dev/shim=all "$image" "$@" ;;
plain)
    exec docker run --rm --gpus all \
        -v "$prefix:/opt/gpushim:ro" -e LD_PRELOAD=/opt/gpushim/lib/libgpushim.so \
        -v "$share:/run/gpushim" -e GPUSHIM_SHARE_DIR=/run/gpushim "$image" "$@" ;;
esac
echo "$0: cdi or plain, not '$way'" >&2
exit 2
