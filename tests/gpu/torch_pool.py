"""PyTorch that allocates from the library (gpushim.torch) against PyTorch's own cache without the library.

    python3 tests/gpu/torch_pool.py --shim LIBRARY [--seconds N] [PROGRAM...]

First what programs do beside training: CUDA graphs (trained by replay, with shared memory, ended), tensors sent to
another process, tensors used in a second stream, a GPU that is full, a MemPool. Each in a process of its own, natively
and with gpushim.torch; what they say ("RESULT") has to be the same. Then steps of the programs (tests/gpu/workloads/programs)
in turns, for the seconds that are left (workloads/turns.py, modes cached and ordered).

Prints for each the time and the peak of the GPU's memory (NVML) with gpushim.torch as parts of the native ones. Exit
status 1 where a result differs, or a process failed.
"""

import argparse
import ctypes
import hashlib
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "workloads"))
from device_memory import the_device  # noqa: E402

PROGRAMS = ("torch_resnet", "torch_gpt", "torch_lstm", "torch_unet")
MIB = 1 << 20


# ---- In a process of its own ----------------------------------------------------------------------------


def digest(torch, *tensors):
    torch.cuda.synchronize()
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


def net(torch):
    torch.manual_seed(1)
    layers = [torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 4096), torch.nn.GELU(),
              torch.nn.Linear(4096, 1024)]
    return torch.nn.Sequential(*layers).cuda()


def trained_by(torch, pool=None):
    """A captured training step, and what it reads and writes."""
    model = net(torch)
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


def graphs(torch, _):
    one = trained_by(torch)
    two = trained_by(torch, one[0].pool())  # in the memory of the first
    for number in range(40):
        torch.manual_seed(number)
        for graph, given, loss, *_ in (one, two):
            given.copy_(torch.randn(256, 1024, device="cuda"))
            graph.replay()
            other = torch.randn(1 << 20, device="cuda") * 3  # what is freed elsewhere is nothing of the graph's
            del other
        if number % 10 == 0:
            print("RESULT graphs", number, one[2].item().hex(), two[2].item().hex())
    print("RESULT graphs", digest(torch, *one[3].parameters(), *two[3].parameters()))
    begun = time.perf_counter()
    for _ in range(200):
        one[0].replay()
    torch.cuda.synchronize()
    print(f"TIME {(time.perf_counter() - begun) / 200 * 1e3:.4f}")
    del one, two, graph, given, loss
    torch.cuda.synchronize()
    third = trained_by(torch)
    third[0].replay()
    print("RESULT graphs, a third", third[2].item().hex())


def receive(tensors, answers):
    import torch

    if hasattr(ctypes.CDLL(None), "gpushim_version"):
        import gpushim_package

        gpushim_package.torch()  # which is where what arrives is made again
    weights, parameter = tensors.get()
    answers.put((float(weights.double().sum()), float(parameter.double().sum()), bool(parameter.requires_grad),
                 tuple(weights.stride())))
    weights.fill_(2)
    torch.cuda.synchronize()
    answers.put("written")
    tensors.get()


def processes(torch, _):
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
    print("RESULT processes", answers.get(timeout=120), digest(torch, weights))
    begun = time.perf_counter()
    tensors.put(None)
    child.join(60)
    print("RESULT processes", child.exitcode)
    print(f"TIME {(time.perf_counter() - begun) * 1e3:.1f}")


def streams(torch, _):
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
    print(f"TIME {(time.perf_counter() - begun) / 400 * 1e3:.4f}")
    print("RESULT streams", [int(total) // (1 << 20) for total in sums.tolist()] == list(range(400)))


def full(torch, _):
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


def pool(torch, gpushim_torch):
    made = gpushim_torch.pool() if gpushim_torch else torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(made):
        inner = torch.arange(1 << 20, device="cuda")
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    outer = inner * 2
    print("RESULT pool", digest(torch, inner, outer))
    del inner, made
    print("RESULT pool", digest(torch, outer))


PARTS = {"graphs": graphs, "processes": processes, "streams": streams, "full": full, "pool": pool}


def child(part, ordered):
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    gpushim_torch = None
    if ordered:
        import gpushim_package

        gpushim_torch = gpushim_package.torch()
        if part != "pool":
            gpushim_torch.use()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    PARTS[part](torch, gpushim_torch)


# ---- Natively, and with the library ---------------------------------------------------------------------


def run(part, shim, device, seconds):
    """(what it says, milliseconds, bytes); None: it failed."""
    path = [str(HERE / "workloads"), str(HERE.parents[1] / "examples/packages/wheel"), os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ, PYTHONPATH=":".join(filter(None, path)))
    if shim:
        environment["LD_PRELOAD"] = ":".join(filter(None, [shim, os.environ.get("LD_PRELOAD", "")]))
    device.begin()
    words = [sys.executable, str(HERE / "torch_pool.py"), "--child", part, *(["--ordered"] if shim else [])]
    try:
        ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
        wrong = f"status {ran.returncode}" if ran.returncode else None
    except subprocess.TimeoutExpired as late:
        ran, wrong = late, f"no end after {seconds} s"
    peak = device.end()
    if wrong:
        print(f"-- {part}, {'gpushim.torch' if shim else 'natively'}: {wrong}")
        for text in (ran.stdout, ran.stderr):
            text = text.decode(errors="replace") if isinstance(text, bytes) else text or ""
            print(*text.splitlines()[-25:], sep="\n   ", flush=True)
        return None
    lines = ran.stdout.splitlines()
    times = [float(line.split()[1]) for line in lines if line.startswith("TIME")]
    return [line for line in lines if line.startswith("RESULT")], statistics.median(times or [0]), peak


def compare(part, shim, device):
    native, ours = run(part, None, device, 150), run(part, shim, device, 150)
    if not native or not ours:
        return False
    equal = native[0] == ours[0] and native[0]
    ratios = [f"{name} {ours[at] / native[at]:.3f}" for at, name in ((1, "time"), (2, "memory"))
              if native[at] and ours[at] is not None]
    print(f"{part:10}  {'equal' if equal else 'DIFFERS'}, {', '.join(ratios)} of PyTorch's own cache", flush=True)
    if not equal:
        print("natively", *native[0], "with gpushim.torch", *ours[0], sep="\n   ", flush=True)
    return bool(equal)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", default=PROGRAMS)
    parser.add_argument("--shim")
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--cores", help="for turns.py")
    parser.add_argument("--child")
    parser.add_argument("--ordered", action="store_true")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.ordered)
        return 0
    begun, device = time.monotonic(), the_device()
    shim = os.path.abspath(options.shim)
    equal = [compare(part, shim, device) for part in PARTS]
    left = options.seconds - (time.monotonic() - begun)
    words = [sys.executable, str(HERE / "workloads/turns.py"), "--shim", shim, "--modes", "cached,ordered", "--seconds",
             str(left), *(["--cores", options.cores] if options.cores else []), *options.programs]
    turns = subprocess.run(words, cwd=os.environ.get("OUT", "/tmp"), check=False).returncode if left > 30 else 0
    return 0 if all(equal) and turns == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
