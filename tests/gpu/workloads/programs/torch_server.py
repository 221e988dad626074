"""A server of a language model: requests come and end at any time, their prompts are read at once, and
each step gives each live one a word more. Caches of keys and values grow by a word at a time and go
with their request. Inference alone.
"""

import random

import torch
from torch import nn
from torch.nn import functional as F

from layers import Mlp, between

STEPS = 60
FULL = {"width": 2048, "heads": 16, "layers": 8, "words": 32000, "most": 20, "prompts": (32, 1536),
        "answers": (20, 300)}
TINY = {"width": 32, "heads": 2, "layers": 2, "words": 60, "most": 3, "prompts": (4, 16),
        "answers": (2, 8)}


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.width = heads, width
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = Mlp(width)

    def attend(self, qkv, caches, index, layer):
        """One request's words against its cache, which grows by them."""
        query, key, value = qkv.view(-1, 3, self.heads, self.width // self.heads).permute(1, 2, 0, 3)
        first = layer not in caches[index]
        if not first:
            key = torch.cat([caches[index][layer][0], key], dim=1)
            value = torch.cat([caches[index][layer][1], value], dim=1)
        caches[index][layer] = key, value
        a = F.scaled_dot_product_attention(query[None], key[None], value[None],
                                           is_causal=first and query.shape[1] > 1)
        return a[0].transpose(0, 1).reshape(-1, self.width)

    def forward(self, x, counts, caches, layer):
        """x has the words of all requests one after the other, counts[i] of the i-th."""
        parts = self.qkv(self.norm1(x)).split(counts)
        x = x + self.out(torch.cat([self.attend(part, caches, i, layer)
                                    for i, part in enumerate(parts)]))
        return x + self.mlp(self.norm2(x))


class Server:
    def __init__(self, device, width, heads, layers, words, most, prompts, answers):
        # cuDNN's attention compiles a kernel for each length: 400 ms a step, whatever allocates.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.device, self.words, self.most = device, words, most
        self.prompts, self.answers = prompts, answers
        dtype = torch.bfloat16
        self.names = nn.Embedding(words, width).to(device, dtype)
        self.stack = nn.ModuleList(Layer(width, heads) for _ in range(layers)).to(device, dtype)
        self.head = nn.Linear(width, words, bias=False).to(device, dtype)
        self.caches, self.left, self.said = [], [], []

    def run(self, texts, caches):
        """The word that comes after each text."""
        x, counts = self.names(torch.cat(texts)), [text.numel() for text in texts]
        for layer, module in enumerate(self.stack):
            x = module(x, counts, caches, layer)
        last = torch.tensor(counts, device=self.device).cumsum(0) - 1
        return list(self.head(x[last]).argmax(dim=-1).split(1))

    def come(self):
        """Up to three new ones, read together."""
        new = min(random.randint(0, 3), self.most - len(self.caches))
        if new <= 0:
            return
        texts = [torch.randint(0, self.words, (between(*self.prompts),), device=self.device)
                 for _ in range(new)]
        caches = [{} for _ in range(new)]
        self.said += self.run(texts, caches)
        self.caches += caches
        self.left += [between(*self.answers) for _ in range(new)]

    def step(self, number):
        with torch.no_grad():
            self.come()
            if self.caches:
                self.said = self.run(self.said, self.caches)
        self.left = [left - 1 for left in self.left]
        goes_on = [left > 0 for left in self.left]
        # Some hang up.
        if self.left and random.random() < 0.1:
            goes_on[random.randrange(len(goes_on))] = False
        self.caches, self.left, self.said = (
            [one for one, stays in zip(ones, goes_on) if stays]
            for ones in (self.caches, self.left, self.said))
        return float(len(self.caches))


def build(device, **sizes):
    return Server(device, **sizes).step
