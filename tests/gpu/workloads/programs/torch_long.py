"""A transformer on long sequences, whose layers are computed a second time in backward instead of being
kept (checkpoints). Lengths change. Trained in bfloat16.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from layers import Block, between, learn, low

STEPS = 16
FULL = {"width": 1024, "heads": 16, "layers": 8, "words": 16000, "lengths": (2048, 12288)}
TINY = {"width": 16, "heads": 2, "layers": 2, "words": 50, "lengths": (32, 64)}


def build(device, width, heads, layers, words, lengths):
    names, head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
    places = nn.Embedding(lengths[1], width)
    stack = nn.ModuleList(Block(width, heads) for _ in range(layers))
    model = nn.ModuleList([names, places, stack, head]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step(number):
        text = torch.randint(0, words, (1, between(*lengths, 16) + 1), device=device)
        with low(device):
            x = names(text[:, :-1]) + places.weight[: text.shape[1] - 1]
            for block in stack:
                x = checkpoint(block, x, None, True, use_reentrant=False)
            loss = F.cross_entropy(head(x)[0], text[0, 1:])
        return learn(loss, optimizer)

    return step
