#!/bin/sh
# Slurm: every task of a job has the library. In slurm.conf: TaskProlog=/path/of/this/file (executable), or for
# one step: srun --task-prolog=/path/of/this/file. Lines that begin with "export" become the task's environment.
# What the job itself has in LD_PRELOAD stays, behind the library. Where a node has no library, its tasks run
# without. (No PATH is set here, so that all but gpushim is the shell's own.)
"${PREFIX:-/opt/gpushim}/bin/gpushim" run --print | while read -r line; do
    echo "export $line"
done
