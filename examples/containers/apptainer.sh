#!/bin/sh
# Starts a program in an Apptainer container with the library: sh apptainer.sh IMAGE PROGRAM [ARGUMENT...]
# The container's user is the caller, so that a folder of their own will do; it is mounted under the same name.
set -eu
prefix=${PREFIX:-/opt/gpushim} # where the library is installed on the host
share=${SHARE:-/tmp/gpushim-$(id -u)}
mkdir -p -m 700 "$share"
exec apptainer exec --nv \
    --bind "$prefix:/opt/gpushim:ro" --env LD_PRELOAD=/opt/gpushim/lib/libgpushim.so \
    --bind "$share" --env "GPUSHIM_SHARE_DIR=$share" "$@"
