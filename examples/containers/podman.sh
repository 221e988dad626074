#!/bin/sh
# Starts a program in a container with the library: sh podman.sh cdi|run|plain IMAGE PROGRAM [ARGUMENT...]
#
#   cdi     by what `gpushim cdi generate` wrote to /etc/cdi
#   run     the same, for an image with an LD_PRELOAD of its own
#   plain   by mounts and variables, without CDI
#
# Containers that are started so share GPU memory through $SHARE, whatever else they do not share.
set -eu
prefix=${PREFIX:-/opt/gpushim} # where the library is installed on the host
share=${SHARE:-/run/gpushim}   # as --share-dir was when the specification was written
way=$1 image=$2
shift 2
case $way in
cdi)
    exec podman run --rm --device nvidia.com/gpu=all --device libgpushim.dev/shim=all "$image" "$@" ;;
run)
    exec podman run --rm --device nvidia.com/gpu=all --device libgpushim.dev/shim=all-run \
        --entrypoint /opt/gpushim/bin/gpushim "$image" run -- "$@" ;;
plain)
    exec podman run --rm --device nvidia.com/gpu=all \
        -v "$prefix:/opt/gpushim:ro" -e LD_PRELOAD=/opt/gpushim/lib/libgpushim.so \
        -v "$share:/run/gpushim" -e GPUSHIM_SHARE_DIR=/run/gpushim "$image" "$@" ;;
esac
echo "$0: cdi, run or plain, not '$way'" >&2
exit 2
