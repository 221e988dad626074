"""Programs that fork, as PyTorch's do: DataLoader workers with pinned memory, children of a process
that uses the GPU already, and processes that use it only after a fork.
"""

import multiprocessing
import os
import subprocess
import sys
import threading

import torch
from torch.utils.data import DataLoader, Dataset

from results import result

SECONDS = 60


def status_of(pid):
    """How a child ended; one that hangs is killed and said to."""
    timer = threading.Timer(SECONDS, os.kill, (pid, 9))
    timer.start()
    _, status = os.waitpid(pid, 0)
    timer.cancel()
    return f"exit {os.WEXITSTATUS(status)}" if os.WIFEXITED(status) else (
        f"signal {os.WTERMSIG(status)}")


def before_cuda():
    """Two children use the GPU, their parent has not; each exits as Python programs do."""
    for i in range(2):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            x = torch.arange(1000, device="cuda")
            sys.exit(10 + (x.sum().item() == 499500))
        result(f"child_before_cuda_{i}", status_of(pid))


class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return torch.rand(3, 32, 32, generator=generator), i


def data_loader(workers):
    """Workers are forked while the GPU is in use; batches come in pinned memory."""
    loader = DataLoader(Numbers(), batch_size=8, num_workers=workers, pin_memory=True,
                        multiprocessing_context="fork" if workers else None)
    weight = torch.full((3, 32, 32), 2.0, device="cuda")
    for epoch in range(3):
        total = torch.zeros((), dtype=torch.float64, device="cuda")
        for images, indices in loader:
            images = images.cuda(non_blocking=True)
            total += (images * weight).double().sum() + indices.cuda(non_blocking=True).sum()
            scratch = torch.empty(1 << 20, device="cuda").fill_(epoch)
            del scratch
        result(f"loader_{workers}_{epoch}", total.item().hex())


def children_of_a_gpu_process():
    """What they may do: their own things, leave in any way, execute. CUDA is refused by PyTorch."""
    x = torch.full((1 << 22,), 3, dtype=torch.int32, device="cuda")

    def tries_cuda():
        try:
            torch.zeros(1, device="cuda")
        except RuntimeError as error:
            sys.exit(20 if "forked subprocess" in str(error) else 21)
        sys.exit(22)

    def drops_what_it_inherited():
        nonlocal x
        x = None
        sys.exit(23)

    ways = {
        "exit": lambda: sys.exit(5),
        "os_exit": lambda: os._exit(6),
        "collects": drops_what_it_inherited,
        "tries_cuda": tries_cuda,
        "execs": lambda: os.execv("/bin/sh", ["sh", "-c", "exit 7"]),
        "aborts": lambda: os.kill(os.getpid(), 9),
    }
    for name, way in ways.items():
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            way()
            os._exit(99)
        y = torch.full((1 << 22,), 4, dtype=torch.int32, device="cuda")  # beside the child
        result(f"child_{name}", status_of(pid))
        result(f"parent_after_{name}", int((x + y).sum().item()) == 7 << 22)
        del y


def executes_a_gpu_program():
    """A process that uses the GPU starts another that does."""
    code = "import torch; print(int(torch.arange(100, device='cuda').sum()))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                         timeout=SECONDS, check=False)
    result("subprocess", f"{run.returncode} {run.stdout.strip()}")


def squares(n):
    return n * n


def pool():
    with multiprocessing.get_context("fork").Pool(4) as workers:
        result("pool", sum(workers.map(squares, range(1000))))


def main():
    before_cuda()
    torch.manual_seed(5)
    torch.zeros(1, device="cuda")
    for check in (lambda: data_loader(0), lambda: data_loader(3), children_of_a_gpu_process, pool,
                  executes_a_gpu_program, lambda: data_loader(2)):
        check()


if __name__ == "__main__":
    main()
