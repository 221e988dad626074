"""Captures CUDA graphs with torch.cuda.CUDAGraph and replays them: what comes out must be what the
same work gives without a graph, bit by bit, and the same in every run.

The first graph allocates nothing and so works with every allocator. The others allocate while they
are captured, which PyTorch's caching allocators allow and plain cudaMalloc does not; without a
cache they are left out.
"""

import hashlib
import os
import sys
import threading

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn

from results import all_run, result

CACHED = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") != "1"


def digest(*tensors):
    torch.cuda.synchronize()
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


def warm_up(work):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def in_place():
    """A graph over tensors that are there already."""
    a, b = torch.rand(1 << 20, device="cuda"), torch.rand(1 << 20, device="cuda")
    out = torch.empty_like(a)

    def work():
        torch.mul(a, b, out=out)
        out.sin_().add_(a)

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for i in range(4):
        a.fill_(i + 0.5)
        graph.replay()
        replayed = digest(out)
        out.zero_()
        work()
        result(f"in_place_{i}", f"{replayed} {'ok' if digest(out) == replayed else 'WRONG'}")


def inference(mode):
    """Intermediate tensors live in the graph's own pool; memory is allocated and freed between
    replays, and must not be theirs."""
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda().eval()
    static = torch.rand(64, 512, device="cuda")
    inputs = [torch.rand(64, 512, device="cuda") for _ in range(5)]
    with torch.no_grad():
        warm_up(lambda: model(static))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            out = model(static)
        for i, batch in enumerate(inputs):
            noise = [torch.full((1 << 18,), float("nan"), device="cuda") for _ in range(8)]
            static.copy_(batch)
            graph.replay()
            replayed = digest(out)
            del noise
            eager = digest(model(batch))
            result(f"inference_{mode}_{i}", f"{replayed} {'ok' if eager == replayed else 'WRONG'}")


def train(captured):
    """The losses of some steps, from one captured step or from plain ones."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    data = torch.rand(12, 32, 256, device="cuda")
    labels = torch.randint(0, 10, (12, 32), device="cuda")
    x, y = data[0].clone(), labels[0].clone()

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    warm_up(step)
    losses = []
    if captured:
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            loss = step()
    for i in range(2, 12):
        x.copy_(data[i])
        y.copy_(labels[i])
        if captured:
            graph.replay()
        else:
            loss = step()
        losses.append(loss.item())
    return losses


def training():
    plain, captured = train(False), train(True)
    result("training", f"{plain[-1].hex()} {'ok' if plain == captured else 'WRONG'}")


def shared_pool():
    """Two graphs of one pool, replayed in the order of their capture; then both are dropped."""
    x = torch.rand(1 << 18, device="cuda")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        a = x * 2 + 1
    with torch.cuda.graph(second, pool=first.pool()):
        b = a * a
    for i in range(3):
        x.fill_(i)
        first.replay()
        second.replay()
        result(f"shared_pool_{i}", digest(a, b))
    del a, b, first, second
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    again = torch.full((1 << 20,), 3.0, device="cuda")
    result("after_the_graphs", digest(again))


def beside_a_thread():
    """Another thread works on the GPU, and waits for it, while this one captures."""
    stop, seen = threading.Event(), []

    def other():
        with torch.cuda.stream(torch.cuda.Stream()):
            while not stop.is_set():
                part = torch.full((1 << 16,), 5.0, device="cuda")
                seen.append(bool((part == 5.0).all().item()))
                del part

    x = torch.rand(1 << 18, device="cuda")
    thread = threading.Thread(target=other)
    thread.start()
    good = True
    try:
        for _ in range(20):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                y = (x + 1) * 3
            graph.replay()
            torch.cuda.synchronize()
            good = good and torch.equal(y, (x + 1) * 3)
    finally:
        stop.set()
        thread.join()
    result("beside_a_thread", "ok" if good and all(seen) else "WRONG")


def main():
    torch.manual_seed(3)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    checks = [in_place]
    if CACHED:
        checks += [lambda: inference("global"), lambda: inference("thread_local"),
                   lambda: inference("relaxed"), training, shared_pool, beside_a_thread]
    passed = all_run(checks)
    return not passed


if __name__ == "__main__":
    sys.exit(main())
