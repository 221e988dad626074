"""A small GPT trained on two GPUs by DistributedDataParallel: each has the whole model, and gradients
are added up by NCCL while others are still being worked out. Batches of changing length.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from layers import Block, between, learn, low
from ranks import together

STEPS = 20
FULL = {"width": 768, "heads": 12, "layers": 12, "batch": 16, "length": 1024, "words": 8192}
TINY = {"width": 16, "heads": 2, "layers": 1, "batch": 2, "length": 64, "words": 50}


class Gpt(nn.Module):
    def __init__(self, width, heads, layers, length, words):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, text):
        x = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x, causal=True)
        return self.head(x)


def trained(model, device, batch, length, words):
    """step(number) of a model that stands."""
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)

    def step(number):
        text = torch.randint(words, (batch, between(length // 4, length - 1) + 1), device=device)
        with low(device.partition(":")[0]):
            said = model(text[:, :-1])
            loss = F.cross_entropy(said.float().flatten(0, 1), text[:, 1:].flatten())
        return learn(loss, optimizer)

    return step


def train(device, width, heads, layers, batch, length, words):
    model = DistributedDataParallel(Gpt(width, heads, layers, length, words).to(device))
    return trained(model, device, batch, length, words)


def build(device, **sizes):
    return together("torch_ddp", device, sizes)
