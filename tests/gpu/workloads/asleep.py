"""A program of a framework works, is put to sleep, woken, and works on: what it says is the same as without the sleep.

    asleep.py torch|graph|transformers|compile|cupy|jax [COMMAND]

COMMAND is gpushim: it puts this process to sleep and wakes it, as a user would, three times. Without it nobody sleeps.
All sums are of whole numbers or of deterministic kernels, so "RESULT" lines are exact. "PROBE" lines say what the
process has of the GPU while it sleeps, in MiB, and after which work: the machine has to be its own.
"""
import hashlib
import os
import subprocess
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import pynvml
from results import all_run, result

KIND, COMMAND = sys.argv[1], (sys.argv[2:] or [None])[0]
TURNS = 3


def used():
    """Of the GPU, by all, without what the driver keeps for itself."""
    return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0), version=pynvml.nvmlMemory_v2).used >> 20


def ordered(what, *more):
    own = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run([COMMAND, what, str(os.getpid()), *more], env=own, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"gpushim {what}: {done.stdout.strip()[-200:]}")


def away(after):
    """To sleep and awake again."""
    if not COMMAND:
        return
    had = used()
    ordered("sleep")
    print(f"PROBE after_{after} used {had - BEFORE} asleep {used() - BEFORE}", flush=True)
    ordered("wake")


def digest(arrays):
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(array.tobytes())
    return whole.hexdigest()[:16]


# ---- PyTorch -----------------------------------------------------------------------------------------------------


def small():
    """What a process keeps, by what it has used."""
    import torch

    ones = torch.ones(32 << 20, device="cuda")  # so much that it can be asked
    away("one_kernel")
    streams = [torch.cuda.Stream() for _ in range(32)]
    for stream in streams:
        with torch.cuda.stream(stream):
            ones.add_(1)
    torch.cuda.synchronize()
    away("32_streams")
    result("streams", int(ones.sum().item()))
    a = torch.ones(1024, 1024, device="cuda")
    product = a @ a
    away("cublas")
    result("product", int(product.sum().item()))
    half = a.bfloat16() @ a.bfloat16()
    away("cublas_bfloat16")
    result("half", int(half.float().sum().item()))
    images = torch.nn.functional.conv2d(torch.ones(8, 16, 64, 64, device="cuda"),
                                        torch.ones(16, 16, 3, 3, device="cuda"))
    away("cudnn")
    result("images", int(images.sum().item()))


def training():
    import torch
    from torch import nn

    torch.manual_seed(5)
    torch.use_deterministic_algorithms(True, warn_only=True)
    ballast = [torch.full((256 << 18,), number, dtype=torch.int32, device="cuda") for number in range(16)]
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.LayerNorm(2048), nn.Linear(2048, 2048), nn.GELU(),
                          nn.Linear(2048, 512)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for turn in range(TURNS):
        for _ in range(5):
            x = torch.randn(64, 512, device="cuda")
            loss = (model(x) - x.roll(1, 1)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        away(f"training_{turn}")
        result(f"loss_{turn}", loss.item().hex())
        result(f"weights_{turn}", digest(p.detach().cpu().numpy() for p in model.parameters()))
    result("ballast",
           [int(block.min()) == int(block.max()) == number for number, block in enumerate(ballast)].count(True))


def graph():
    """Captured before, replayed after; one with memory of its own."""
    import torch

    a, out = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    weights = torch.ones(1024, 1024, device="cuda")

    def work():
        product = weights @ a.view(1024, 1024)
        out.copy_(product.flatten() + torch.arange(1 << 20, device="cuda") % 7)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        work()
    for turn in range(TURNS):
        a.fill_(turn + 1)
        captured.replay()
        torch.cuda.synchronize()
        result(f"replay_{turn}", int(out.double().sum().item()))
        away(f"replay_{turn}")
        out.zero_()
        captured.replay()
        torch.cuda.synchronize()
        result(f"replay_after_{turn}", int(out.double().sum().item()))


def transformers():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=4,
                                         num_attention_heads=16,
                                         vocab_size=32000)).to("cuda", torch.bfloat16).eval()
    for turn in range(TURNS):
        prompt = torch.randint(0, 32000, (4, 64), device="cuda")
        with torch.no_grad():
            said = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False,
                                  pad_token_id=0)
        result(f"said_{turn}", digest([said.cpu().numpy()]))
        away(f"said_{turn}")


def compiled():
    import tempfile

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="asleep-compile-")
    import torch
    from torch import nn

    torch.manual_seed(9)
    for mode in "default", "reduce-overhead":
        model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256)).cuda()
        quick = torch.compile(model, mode=mode)
        with torch.no_grad():
            for turn in range(TURNS):
                x = torch.randn(32, 256, device="cuda")
                for _ in range(3):
                    last = quick(x).clone()
                result(f"{mode}_{turn}", digest([last.cpu().numpy()]))
                away(f"{mode}_{turn}")


# ---- Others ------------------------------------------------------------------------------------------------------


def cupy():
    import cupy as cp

    kernel = cp.RawKernel('extern "C" __global__ void more(int *a) { a[blockIdx.x * blockDim.x + threadIdx.x] += 3; }',
                          "more")
    a = cp.arange(1 << 20, dtype=cp.int32)
    waves = cp.sin(cp.arange(1 << 20, dtype=cp.float64))
    for turn in range(TURNS):
        kernel((1 << 12,), (1 << 8,), (a,))
        waves = cp.fft.ifft(cp.fft.fft(waves)).real
        result(f"sum_{turn}", int(a.sum(dtype=cp.int64)))
        away(f"cupy_{turn}")
        result(f"bytes_{turn}", digest([cp.asnumpy(a), cp.asnumpy(waves), cp.asnumpy(cp.sort(-a)[:1000])]))


def jax():
    os.environ["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ".08"
    import jax as j
    import jax.numpy as jnp
    import numpy

    keys = j.random.split(j.random.PRNGKey(3), 2)
    weights = [j.random.normal(keys[0], (256, 1024)) * 0.05, j.random.normal(keys[1], (1024, 256)) * 0.05]

    @j.jit
    def step(weights, x):
        slopes = j.grad(lambda w: jnp.mean((j.nn.relu(x @ w[0]) @ w[1] - x) ** 2))(weights)
        return [w - 0.1 * s for w, s in zip(weights, slopes)]

    for turn in range(TURNS):
        for number in range(5):
            weights = step(weights, j.random.normal(j.random.PRNGKey(turn * 10 + number), (64, 256)))
        j.block_until_ready(weights)
        away(f"jax_{turn}")
        result(f"weights_{turn}", digest(numpy.asarray(w) for w in weights))


WORK = {"torch": [small, training], "graph": [graph], "transformers": [transformers], "compile": [compiled],
        "cupy": [cupy],
        "jax": [jax]}

pynvml.nvmlInit()
BEFORE = used()
sys.exit(0 if all_run(WORK[KIND]) else 1)
