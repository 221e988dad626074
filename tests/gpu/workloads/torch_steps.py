"""Steps of four workloads on random data with fixed seeds: trains a small GPT, a ResNet-50 or a
graph network (torch_geometric), or lets a small Llama (transformers) continue prompts.

    python3 torch_steps.py gpt|resnet|gnn|decode STEPS

Prints every step's loss as an exact hexadecimal float, or what the Llama said ("RESULT"), and the
median step time ("TIME", milliseconds). With deterministic algorithms these are the same in every
run, so a difference between two ways to get memory is a bug.
turns.py takes its steps too (programs/torch_gpt.py and so on), in turns with other processes.
Batches change their size from step to step, as real ones do: that is what makes allocators work.
"""

import os
import random
import statistics
import sys
import time

if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.nn import functional as F

SEED = 20240229
DEVICE = "cuda"


class Block(nn.Module):
    """One pre-norm transformer layer with causal attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, words=32000, width=768, layers=8, heads=12, longest=512):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Bottleneck(nn.Module):
    def __init__(self, inner, width, outer, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outer, 1, bias=False), nn.BatchNorm2d(outer))
        self.skip = nn.Identity()
        if stride != 1 or inner != outer:
            self.skip = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
              nn.MaxPool2d(3, 2, 1)]
    inner = 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for i in range(depth):
            stride = 2 if i == 0 and stage > 0 else 1
            layers.append(Bottleneck(inner, width, 4 * width, stride))
            inner = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000))


def gpt_step():
    model = Gpt().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step():
        length = random.choice([128, 192, 256, 384, 512])
        tokens = torch.randint(0, 32000, (8, length), device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(tokens)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def resnet_step():
    model = resnet50().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)

    def step():
        images = torch.randn(random.choice([16, 24, 32]), 3, 224, 224, device=DEVICE)
        labels = torch.randint(0, 1000, (images.shape[0],), device=DEVICE)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def gnn_step():
    from torch_geometric.nn import GCNConv

    first, second = GCNConv(128, 256).to(DEVICE), GCNConv(256, 64).to(DEVICE)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])

    def step():
        nodes = random.randint(2000, 60000)
        features = torch.randn(nodes, 128, device=DEVICE)
        edges = torch.randint(0, nodes, (2, 8 * nodes), device=DEVICE)
        loss = second(first(features, edges).relu(), edges).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def decode_step():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
                         num_attention_heads=16, vocab_size=32000)
    model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).eval()

    def step():
        shape = random.choice([1, 4, 8]), random.choice([17, 64, 200])
        prompt = torch.randint(0, 32000, shape, device=DEVICE)
        with torch.no_grad():
            said = model.generate(prompt, attention_mask=torch.ones_like(prompt),
                                  max_new_tokens=24, do_sample=False, pad_token_id=0)
        # Each token times its place, so that an exchange of two is seen.
        places = torch.arange(1, said.shape[1] + 1, device=DEVICE)
        return float((said * places).sum().item())

    return step


def be_deterministic():
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    # cuDNN's attention stays non-deterministic all the same; plain matrix products are not.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    # Filling each new tensor would hide what a bad allocator hands out, and cost time.
    torch.utils.deterministic.fill_uninitialized_memory = False


def timed(step):
    """What a step gave, and how many milliseconds it took."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    loss = step()
    torch.cuda.synchronize()
    return loss, (time.perf_counter() - start) * 1e3


STEPS = {"gpt": gpt_step, "resnet": resnet_step, "gnn": gnn_step, "decode": decode_step}


def main():
    workload, steps = sys.argv[1], int(sys.argv[2])
    random.seed(SEED)
    torch.manual_seed(SEED)
    be_deterministic()
    step = STEPS[workload]()
    times = []
    for i in range(steps):
        loss, took = timed(step)
        times.append(took)
        print(f"RESULT loss {i} {float(loss).hex()}", flush=True)
    # The first ones load libraries and kernels.
    print(f"TIME median step {statistics.median(times[2:]):.2f} ms", flush=True)


if __name__ == "__main__":
    main()
