"""What several of the PyTorch programs are made of, and how they train."""

import random

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Of x to itself, or to other; `mask` is added to the scores."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.both = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x, other=None, mask=None, causal=False):
        key, value = self.both(x if other is None else other).chunk(2, dim=-1)
        a = F.scaled_dot_product_attention(self.split(self.query(x)), self.split(key),
                                           self.split(value), attn_mask=mask, is_causal=causal)
        return self.out(a.transpose(1, 2).reshape(x.shape))


class Mlp(nn.Sequential):
    def __init__(self, width, inner=None):
        inner = inner or 4 * width
        super().__init__(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


class Block(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads), Mlp(width)

    def forward(self, x, mask=None, causal=False):
        x = x + self.attention(self.norm1(x), mask=mask, causal=causal)
        return x + self.mlp(self.norm2(x))


def conv_norm(inner, outer, stride=1, size=3):
    return nn.Sequential(nn.Conv2d(inner, outer, size, stride, size // 2, bias=False),
                         nn.BatchNorm2d(outer), nn.ReLU(inplace=True))


def low(device):
    """Matrix products and convolutions in bfloat16."""
    return torch.autocast(device, torch.bfloat16)


def learn(loss, optimizer):
    """What a training step does after forward; gives the loss."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def between(low_end, high_end, of=1):
    """A multiple of `of`, seeded by the step's number."""
    return random.randint(low_end // of, high_end // of) * of


def padding(lengths, longest, device):
    """True where a batch of sequences of these lengths has something."""
    return torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
