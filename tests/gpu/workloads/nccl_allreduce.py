"""All-reduce over two GPUs, a process each, through torch.distributed and NCCL.

With NCCL_CUMEM_ENABLE=0 NCCL shares its buffers by legacy CUDA IPC. Where GPUSHIM_SHARE_DIR is set,
the first process looks there while the group stands: a process under libgpushim that shares
something has a socket in that folder, and natively there is none ("GAIN").
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from results import result

SIZES = (1, 1000, 1 << 20, 24 << 20)


def sockets():
    folder = os.environ.get("GPUSHIM_SHARE_DIR", "")
    return len(os.listdir(folder)) if os.path.isdir(folder) else 0


def reduce_all(rank, size):
    for words in SIZES:
        for kind in (torch.float32, torch.int64, torch.bfloat16):
            x = torch.arange(words, device="cuda").remainder(97).to(kind) * (rank + 1)
            dist.all_reduce(x)
            expected = (torch.arange(words, device="cuda").remainder(97) * sum(
                range(1, size + 1))).to(kind)
            good = torch.equal(x, expected)
            if rank == 0:
                result(f"all_reduce_{words}_{kind}", "ok" if good else "WRONG")
    gathered = [torch.empty(1 << 16, device="cuda") for _ in range(size)]
    dist.all_gather(gathered, torch.full((1 << 16,), float(rank), device="cuda"))
    good = all(bool((part == i).all()) for i, part in enumerate(gathered))
    x = torch.full((1 << 16,), float(rank), device="cuda")
    dist.broadcast(x, 1)
    if rank == 0:
        result("all_gather", "ok" if good else "WRONG")
        result("broadcast", "ok" if bool((x == 1).all()) else "WRONG")
    for i in range(50):  # memory comes and goes between them
        x = torch.full(((i % 7 + 1) << 18,), float(rank + i), device="cuda")
        dist.all_reduce(x)
        good = good and bool((x == 2 * i + 1).all())
    if rank == 0:
        result("fifty", "ok" if good else "WRONG")


def worker(rank, size, meeting):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=size)
    reduce_all(rank, size)
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 0 and os.environ.get("NCCL_CUMEM_ENABLE") == "0":
        print(f"GAIN legacy_ipc_is_served_by_the_library {'ok' if sockets() else 'no socket'}",
              flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    mp.set_start_method("spawn")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        meeting = os.path.join(folder, "meeting")
        other = mp.Process(target=worker, args=(1, 2, meeting), daemon=True)
        other.start()
        worker(0, 2, meeting)
        other.join(30)
        result("the_other_process", other.exitcode)
    return other.exitcode != 0


if __name__ == "__main__":
    sys.exit(main())
