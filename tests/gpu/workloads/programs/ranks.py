"""Training by two processes, a GPU each: the one that is told to step is rank 0. It starts rank 1, which
takes the same steps with random numbers of the same seeds.
"""

import importlib
import multiprocessing
import os
import random
import tempfile

import torch
import torch.distributed as dist

from turn_process import SEED

RANKS = 2


def of_rank(rank, program, device, meeting, sizes):
    """The step function of the program's `train` on that rank, once both are there."""
    if device == "cuda":
        device = f"cuda:{rank}"
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo", rank=rank,
                            init_method=f"file://{meeting}", world_size=RANKS)
    return importlib.import_module(program).train(device, **sizes)


def follow(orders, *about):
    step = None
    try:
        while (number := orders.recv()) is not None:
            random.seed(SEED + number)
            torch.manual_seed(SEED + number)
            if step is None:
                step = of_rank(1, *about)  # seeded as rank 0 is: number -1
            else:
                step(number)
    except EOFError:
        pass  # rank 0 is no more


def together(program, device, sizes):
    """step(number) of rank 0; both ranks take it."""
    context = multiprocessing.get_context("spawn")
    orders, end = context.Pipe()
    about = (program, device, os.path.join(tempfile.mkdtemp(), "meeting"), sizes)
    context.Process(target=follow, args=(end, *about), daemon=True).start()
    end.close()
    orders.send(-1)
    step = of_rank(0, *about)

    def both(number):
        orders.send(number)
        return step(number)

    return both
