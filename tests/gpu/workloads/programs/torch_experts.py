"""A language model of mixtures of experts: each word goes to two of eight, each expert gets as many
as come, so its sizes are known on the GPU alone until the host asks. Trained.
"""

import torch
from torch import nn
from torch.nn import functional as F

from layers import Attention, Mlp, between, learn, low

STEPS = 20
FULL = {"width": 1024, "heads": 16, "layers": 4, "experts": 8, "words": 32000, "batch": 8,
        "lengths": (128, 768)}
TINY = {"width": 32, "heads": 2, "layers": 1, "experts": 4, "words": 60, "batch": 2,
        "lengths": (8, 24)}
CHOSEN = 2


class Experts(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(Mlp(width, 2 * width) for _ in range(count))

    def forward(self, x):
        words = x.flatten(0, 1)
        weights, chosen = self.router(words).float().softmax(dim=-1).topk(CHOSEN, dim=-1)
        out = torch.zeros_like(words)
        for i, expert in enumerate(self.experts):
            rows, which = (chosen == i).nonzero(as_tuple=True)
            said = expert(words[rows]) * weights[rows, which, None]
            out = out.index_add(0, rows, said.to(out.dtype))
        # So that no expert gets all.
        even = weights.mean() + F.one_hot(chosen[:, 0], len(self.experts)).float().mean(0).square().sum()
        return out.view_as(x), even


class Layer(nn.Module):
    def __init__(self, width, heads, experts):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.experts = Attention(width, heads), Experts(width, experts)

    def forward(self, x):
        x = x + self.attention(self.norm1(x), causal=True)
        said, even = self.experts(self.norm2(x))
        return x + said, even


def build(device, width, heads, layers, experts, words, batch, lengths):
    names, head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
    stack = nn.ModuleList(Layer(width, heads, experts) for _ in range(layers))
    model = nn.ModuleList([names, head, stack]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step(number):
        text = torch.randint(0, words, (batch, between(*lengths)), device=device)
        with low(device):
            x, evens = names(text), []
            for layer in stack:
                x, even = layer(x)
                evens.append(even)
            loss = F.cross_entropy(head(x)[:, :-1].flatten(0, 1), text[:, 1:].flatten())
        return learn(loss + 0.01 * torch.stack(evens).mean(), optimizer)

    return step
