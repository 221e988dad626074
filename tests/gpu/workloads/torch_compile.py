"""Compiles one model with torch.compile and trains it for some steps, as the default mode compiles
it and with CUDA graphs ("reduce-overhead"). Nothing compiled before is used: the caches are new.
"""

import os
import shutil
import sys
import tempfile

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
CACHE = tempfile.mkdtemp(prefix="torch-compile-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = CACHE
os.environ["TRITON_CACHE_DIR"] = os.path.join(CACHE, "triton")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, width=256, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2)
                   for t in self.qkv(self.norm(x)).chunk(3, dim=-1))
        weights = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


def train(mode, steps=8):
    torch.manual_seed(11)
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    compiled = torch.compile(model, mode=mode)
    for i in range(steps):
        x = torch.randn(8, 64, 256, device="cuda")
        loss = (compiled(x) - x.roll(1, 1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"RESULT {mode}_{i} {loss.item().hex()}", flush=True)


def main():
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        for mode in ("default", "reduce-overhead"):
            train(mode)
    finally:
        shutil.rmtree(CACHE, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
