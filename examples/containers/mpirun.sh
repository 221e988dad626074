#!/bin/sh
# Open MPI: every rank on every node has the library: sh mpirun.sh -np 8 PROGRAM [ARGUMENT...]
# The library is to be at the same path on all nodes. MPICH has -genv NAME VALUE for -x NAME=VALUE.
# By whatever launcher, this does as well: mpirun -np 8 /opt/gpushim/bin/gpushim run -- PROGRAM
set -eu
library=$("${PREFIX:-/opt/gpushim}/bin/gpushim" run --print | sed -n 's/^LD_PRELOAD=//p')
exec mpirun -x "LD_PRELOAD=$library" "$@"
