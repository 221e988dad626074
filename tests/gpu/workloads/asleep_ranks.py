"""Two ranks with NCCL, a GPU each, train, are put to sleep by one command and woken by one, and train on.

    asleep_ranks.py [COMMAND]

COMMAND is gpushim. Without it nobody sleeps: the sums have to be the same. The ranks never rest: a sleep finds one of
them in an all-reduce that waits for the other. "PROBE" lines say how long each command took, and what both GPUs have in
use, in MiB.
"""
import os
import subprocess
import sys
import tempfile
import time

import pynvml
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from results import result

COMMAND = (sys.argv[1:] or [None])[0]
STEPS, SLEEPS = 3000, 5


def used():
    return sum(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(gpu),
                                              version=pynvml.nvmlMemory_v2).used >> 20
               for gpu in (0, 1))


def ordered(what, pids):
    own = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    began = time.monotonic()
    done = subprocess.run([COMMAND, what, *map(str, pids)], env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    print(f"PROBE {what} {time.monotonic() - began:.2f} s, used {used()}: {done.stdout.strip()[-300:]!r}", flush=True)
    return done.returncode


def worker(rank, meeting, said):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=2)
    kept = [torch.full((1 << 28,), number + rank, dtype=torch.int32, device="cuda") for number in range(3)]
    x = torch.zeros(4 << 20, dtype=torch.int64, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    said.put((rank, "ready"))
    for step in range(STEPS):
        part = torch.full_like(x, step % 97 + rank)
        dist.all_reduce(part)
        x += part
        if step % 20 == 0:
            x.sum().item()
    right = all(bool((block == number + rank).all()) for number, block in enumerate(kept))
    said.put((rank, f"{int(x.sum().item())} {right}"))
    dist.barrier()
    dist.destroy_process_group()


def main():
    pynvml.nvmlInit()
    context = mp.get_context("spawn")
    said = context.Queue()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        ranks = [context.Process(target=worker, args=(rank, os.path.join(folder, "meeting"), said), daemon=True)
                 for rank in (0, 1)]
        for one in ranks:
            one.start()
        for _ in ranks:
            said.get(timeout=60)
        pids = [one.pid for one in ranks]
        refused = 0
        for _ in range(SLEEPS if COMMAND else 0):
            refused += ordered("sleep", pids)
            refused += ordered("wake", pids)
        result("refused", refused)
        for rank, sums in sorted(said.get(timeout=120) for _ in ranks):
            result(f"rank_{rank}", sums)
        for one in ranks:
            one.join(30)
            result("exit", one.exitcode)


if __name__ == "__main__":
    main()
