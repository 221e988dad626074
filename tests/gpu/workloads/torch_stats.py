"""What PyTorch says about memory: torch.cuda.memory_stats, mem_get_info, limits and running out.

Nothing else may use the GPU meanwhile. What PyTorch counts itself is printed as it is; what the
device says is checked against what the program did, and printed to be compared within bounds.
"""

import os
import sys

import torch

from results import all_run, result

MIB = 1 << 20
BACKEND = ("uncached" if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1"
           else torch.cuda.get_allocator_backend())


def refused(what, size):
    """Asks for more than there is. Without PyTorch's cache the error is a plain RuntimeError; and
    a driver's pool was seen to give somewhat more than the device has, which is told alone."""
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
        if BACKEND == "cudaMallocAsync":
            print(f"PROBE {what} was given", flush=True)
        else:
            result(what, "WRONG it was given")
    except RuntimeError as error:
        said = "out of memory" in str(error)
        if BACKEND == "cudaMallocAsync" and said:
            print(f"PROBE {what} was refused", flush=True)
            return
        result(what, "out of memory" if said else f"WRONG {str(error).splitlines()[0]}")


def free_mib():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0] / MIB


def counted():
    """What PyTorch counts: exact with its own cache and with cudaMallocAsync."""
    torch.cuda.reset_peak_memory_stats()
    kept = [torch.empty(n * MIB, dtype=torch.uint8, device="cuda") for n in (1, 3, 10, 64, 100)]
    for n in (5, 200, 7):
        torch.empty(n * MIB, dtype=torch.uint8, device="cuda")
    stats = torch.cuda.memory_stats()
    names = ["allocated_bytes.all.current", "allocated_bytes.all.peak", "num_ooms",
             "num_alloc_retries"]
    if BACKEND == "native":
        names += ["reserved_bytes.all.current", "reserved_bytes.all.peak",
                  "active_bytes.all.current", "segment.all.current", "inactive_split.all.current"]
    for name in names:
        result(name, stats.get(name, "none"))
    result("memory_allocated", torch.cuda.memory_allocated())
    result("snapshot_segments", len(torch.cuda.memory_snapshot()) if BACKEND == "native" else "-")
    del kept


def told_by_the_device():
    """Free memory falls by what is taken and rises by what is given back."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    result("total", total)
    result("free_within_total", "ok" if 0 < free <= total else f"WRONG {free} of {total}")
    before = free_mib()
    for mib in (64, 1024, 8192):
        block = torch.zeros(mib * MIB, dtype=torch.uint8, device="cuda")
        fallen = before - free_mib()
        result(f"falls_by_{mib}", "ok" if abs(fallen - mib) <= 34 else f"WRONG {fallen:.0f}")
        del block
        torch.cuda.empty_cache()
        missing = before - free_mib()
        result(f"comes_back_{mib}", "ok" if abs(missing) <= 34 else f"WRONG {missing:.0f} missing")
    print(f"NEAR free_at_the_start {before:.0f} 128", flush=True)
    # As a program would choose the size of its cache: nine tenths of what is free.
    print(f"NEAR cache_to_choose {free_mib() * 0.9:.0f} 128", flush=True)


def running_out():
    """More than there is is refused with PyTorch's own error; the program goes on."""
    for share in (2.0, 1.1):
        refused(f"ask_for_{share}", int(torch.cuda.mem_get_info()[0] * share))
    most = int(torch.cuda.mem_get_info()[0] * 0.97) // (2 * MIB) * 2 * MIB
    block = torch.empty(most, dtype=torch.uint8, device="cuda")
    block[-1] = 7
    result("ask_for_0.97", int(block[-1].item()))
    refused("and_more", most // 4)
    del block
    torch.cuda.empty_cache()
    again = torch.ones(256 * MIB, dtype=torch.uint8, device="cuda")
    result("afterwards", int(again.sum(dtype=torch.int64).item()) == 256 * MIB)


def in_turns():
    """Nearly all of the device in ever other sizes: nothing of it may stay behind."""
    whole = torch.cuda.mem_get_info()[0]
    for share in (0.9, 0.45, 0.3, 0.9, 0.15):
        blocks = [torch.empty(int(whole * share), dtype=torch.uint8, device="cuda")
                  for _ in range(int(0.91 / share))]
        result(f"pieces_of_{share}", len(blocks))
        del blocks
        torch.cuda.empty_cache()


def bounded():
    if BACKEND != "native":
        return
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.05)
    refused("fraction", int(torch.cuda.mem_get_info()[1] * 0.06))
    torch.cuda.set_per_process_memory_fraction(1.0)


def main():
    torch.cuda.init()
    # Kernels take memory too when they are loaded.
    torch.zeros(MIB, dtype=torch.uint8, device="cuda")[-1].fill_(1).sum().item()
    passed = all_run((counted, told_by_the_device, running_out, in_turns, bounded))
    return not passed


if __name__ == "__main__":
    sys.exit(main())
