"""PyTorch on two GPUs: copies both ways, kernels behind copies, events across devices, and models
whose halves are on different ones.
"""

import hashlib
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn

from results import all_run, result


def digest(tensor):
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def copies():
    for words in (3, 1000, 1 << 20, 40 << 20):
        source = torch.arange(words, dtype=torch.int32, device="cuda:0")
        there = source.to("cuda:1")
        back = (there + 1).to("cuda:0", non_blocking=True)
        result(f"copy_{words}", torch.equal(back, source + 1))
        part = torch.empty(words // 3 + 1, dtype=torch.int32, device="cuda:1")
        part.copy_(source[:part.numel()].flip(0), non_blocking=True)
        result(f"part_{words}", digest(part))


def strided():
    source = torch.arange(1 << 20, dtype=torch.float32, device="cuda:0").view(1024, 1024)
    there = torch.zeros(1024, 1024, device="cuda:1")
    there[:, ::2].copy_(source[:, 1::2])
    there.t()[::3].copy_(source[::3])
    result("strided", digest(there))


def back_and_forth():
    """Memory is freed as soon as a copy of it to the other device was asked for."""
    streams = [torch.cuda.Stream(device=i) for i in range(2)]
    total = torch.zeros((), dtype=torch.int64, device="cuda:1")
    torch.cuda.synchronize(1)
    for i in range(200):
        with torch.cuda.device(0), torch.cuda.stream(streams[0]):
            x = torch.full((1 << 18,), i, dtype=torch.int64, device="cuda:0")
            done = streams[0].record_event()
        with torch.cuda.device(1), torch.cuda.stream(streams[1]):
            streams[1].wait_event(done)
            y = x.to("cuda:1", non_blocking=True)
            total += y.sum()
        # PyTorch copies on the source's current stream, which is not where x was made.
        x.record_stream(torch.cuda.default_stream(0))
        del x, y
    torch.cuda.synchronize(1)
    result("back_and_forth", total.item() == sum(range(200)) << 18)


def halves():
    torch.manual_seed(2)
    first, second = nn.Linear(256, 512).to("cuda:0"), nn.Linear(512, 16).to("cuda:1")
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
    for i in range(5):
        x = torch.rand(64, 256, device="cuda:0")
        loss = second(first(x).relu().to("cuda:1")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        result(f"halves_{i}", loss.item().hex())


def parallel():
    torch.manual_seed(4)
    model = nn.DataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)).cuda())
    result("data_parallel", digest(model(torch.rand(128, 64, device="cuda:0"))))


def main():
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    result("peer_access", torch.cuda.can_device_access_peer(0, 1))
    passed = all_run((copies, strided, back_and_forth, halves, parallel))
    return not passed


if __name__ == "__main__":
    sys.exit(main())
