"""What programs do beside training, with PyTorch's own cache natively and with gpushim.torch under the library: CUDA
graphs (trained by replay, with shared memory, ended), tensors sent to another process, tensors used in a second stream,
a GPU that is full, a MemPool.

    python3 torch_pool.py graphs|processes|streams|full|pool
"""

import ctypes
import hashlib
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

MIB = 1 << 20
LIBRARY = hasattr(ctypes.CDLL(None), "gpushim_version")


def digest(*tensors):
    torch.cuda.synchronize()
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


def net():
    torch.manual_seed(1)
    layers = [torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 4096), torch.nn.GELU(),
              torch.nn.Linear(4096, 1024)]
    return torch.nn.Sequential(*layers).cuda()


def trained_by(pool=None):
    """A captured training step, and what it reads and writes."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    given = torch.zeros(256, 1024, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (model(given) - given).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph, pool=pool):
        loss = step()
    return graph, given, loss, model, optimizer  # whose state, made before the capture, the graph works at


def graphs(_):
    one = trained_by()
    two = trained_by(one[0].pool())  # in the memory of the first
    for number in range(40):
        torch.manual_seed(number)
        for graph, given, loss, *_ in (one, two):
            given.copy_(torch.randn(256, 1024, device="cuda"))
            graph.replay()
            other = torch.randn(1 << 20, device="cuda") * 3  # what is freed elsewhere is nothing of the graph's
            del other
        if number % 10 == 0:
            print("RESULT graphs", number, one[2].item().hex(), two[2].item().hex())
    print("RESULT graphs", digest(*one[3].parameters(), *two[3].parameters()))
    begun = time.perf_counter()
    for _ in range(200):
        one[0].replay()
    torch.cuda.synchronize()
    print(f"TIME replay {(time.perf_counter() - begun) / 200 * 1e3:.4f} ms")
    del one, two, graph, given, loss
    torch.cuda.synchronize()
    third = trained_by()
    third[0].replay()
    print("RESULT graphs, a third", third[2].item().hex())


def receive(tensors, answers):
    if LIBRARY:
        import gpushim_package

        gpushim_package.torch()  # which is where what arrives is made again
    weights, parameter = tensors.get()
    answers.put((float(weights.double().sum()), float(parameter.double().sum()), bool(parameter.requires_grad),
                 tuple(weights.stride())))
    weights.fill_(2)
    torch.cuda.synchronize()
    answers.put("written")
    tensors.get()


def processes(_):
    import torch.multiprocessing as several

    context = several.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    torch.manual_seed(2)
    weights = torch.randn(512, 1024, device="cuda").t()
    parameter = torch.nn.Parameter(torch.randn(4096, device="cuda"))
    torch.cuda.synchronize()
    child = context.Process(target=receive, args=(tensors, answers))
    child.start()
    tensors.put((weights, parameter))
    print("RESULT processes", *answers.get(timeout=120))
    print("RESULT processes", answers.get(timeout=120), digest(weights))
    begun = time.perf_counter()
    tensors.put(None)
    child.join(60)
    print("RESULT processes", child.exitcode)
    print(f"TIME end {(time.perf_counter() - begun) * 1e3:.1f} ms")


def streams(_):
    """Two streams over and over, with record_stream: a free that is early gives a sum that is wrong."""
    side = torch.cuda.Stream()
    sums = torch.zeros(400, device="cuda", dtype=torch.float64)
    begun = time.perf_counter()
    for number in range(400):
        made = torch.full((1 << 20,), float(number), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            made.record_stream(side)
            for _ in range(4):
                made.mul_(1.0)
            sums[number] = made.double().sum()
        del made
        torch.full((1 << 20,), -1.0, device="cuda")
    torch.cuda.synchronize()
    print(f"TIME tensor {(time.perf_counter() - begun) / 400 * 1e3:.4f} ms")
    print("RESULT streams", [int(total) // (1 << 20) for total in sums.tolist()] == list(range(400)))


def full(_):
    free = torch.cuda.mem_get_info()[0]
    kept = torch.empty(free // 2, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        try:
            torch.empty(2 * free, dtype=torch.uint8, device="cuda")
            print("RESULT full: had")
        except RuntimeError as error:
            print("RESULT full:", "CUDA out of memory. Tried to allocate" in str(error))
    del kept
    print("RESULT full:", torch.empty(free // 2 + free // 4, dtype=torch.uint8, device="cuda").numel() > 0)
    print("RESULT full:", torch.cuda.max_memory_allocated() >= free // 2, torch.cuda.memory_allocated() < free // 4)


def pool(gpushim_torch):
    made = gpushim_torch.pool() if gpushim_torch else torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(made):
        inner = torch.arange(1 << 20, device="cuda")
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    outer = inner * 2
    print("RESULT pool", digest(inner, outer))
    del inner, made
    print("RESULT pool", digest(outer))


PARTS = {"graphs": graphs, "processes": processes, "streams": streams, "full": full, "pool": pool}


def with_the_library(part):
    """gpushim.torch, which PyTorch allocates from but where the part does so by itself."""
    import gpushim_package

    gpushim_torch = gpushim_package.torch()
    if part != "pool":
        gpushim_torch.use()
    return gpushim_torch


def main():
    part = sys.argv[1]
    gpushim_torch = with_the_library(part) if LIBRARY else None
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    PARTS[part](gpushim_torch)


if __name__ == "__main__":
    main()
