"""Translation: an encoder and a decoder with relative places (T5), trained on batches of about as many
tokens whose lengths change.
"""

import torch
from torch import nn
from torch.nn import functional as F

from layers import Attention, Mlp, between, learn, low, padding

STEPS = 20
FULL = {"width": 768, "heads": 12, "layers": 8, "words": 32128, "tokens": 6144, "lengths": (32, 384)}
TINY = {"width": 32, "heads": 2, "layers": 1, "words": 60, "tokens": 64, "lengths": (8, 24)}
NEAR = 64  # how far places are told apart


class Places(nn.Module):
    """What is added to the scores of each head for how far apart two words are."""

    def __init__(self, heads, causal):
        super().__init__()
        self.causal, self.weights = causal, nn.Embedding(2 * NEAR + 1, heads)

    def forward(self, length, there):
        """`there`: which words of each sequence are; for all heads, (batch, heads, length, length)."""
        at = torch.arange(length, device=there.device)
        apart = at[None] - at[:, None]
        bias = self.weights((apart.clamp(-NEAR, NEAR)) + NEAR).permute(2, 0, 1)
        hidden = ~there[:, None, None, :]
        if self.causal:
            hidden = hidden | (apart > 0)
        return bias[None].masked_fill(hidden, float("-inf"))


class Layer(nn.Module):
    def __init__(self, width, heads, reads):
        super().__init__()
        self.attention, self.mlp = Attention(width, heads), Mlp(width)
        self.reads = Attention(width, heads) if reads else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, x, bias, source=None, mask=None):
        x = x + self.attention(self.norms[0](x), mask=bias.to(x.dtype))
        if self.reads:
            x = x + self.reads(self.norms[1](x), source, mask=mask)
        return x + self.mlp(self.norms[2](x))


class Stack(nn.Module):
    def __init__(self, width, heads, layers, decodes):
        super().__init__()
        self.places = Places(heads, decodes)
        self.layers = nn.ModuleList(Layer(width, heads, decodes) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x, there, source=None, mask=None):
        bias = self.places(x.shape[1], there)
        for layer in self.layers:
            x = layer(x, bias, source, mask)
        return self.norm(x)


class Translator(nn.Module):
    def __init__(self, width, heads, layers, words):
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.encoder = Stack(width, heads, layers, False)
        self.decoder = Stack(width, heads, layers, True)

    def forward(self, source, there, target, wanted):
        # In bfloat16 throughout, as the sums of residuals of such models mostly are.
        read = self.encoder(self.words(source).bfloat16(), there)
        said = self.decoder(self.words(target).bfloat16(), wanted, read, there[:, None, None, :])
        return self.head(said)


def build(device, width, heads, layers, words, tokens, lengths):
    model = Translator(width, heads, layers, words).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def sequences(batch, longest):
        there = padding([between(longest // 2, longest) for _ in range(batch)], longest, device)
        return torch.randint(0, words, (batch, longest), device=device), there

    def step(number):
        longest = between(*lengths)
        batch = max(1, tokens // longest)
        source, there = sequences(batch, longest)
        target, wanted = sequences(batch, between(max(4, longest * 3 // 4), longest * 5 // 4))
        with low(device):
            logits = model(source, there, target, wanted)
            labels = target[:, 1:].masked_fill(~wanted[:, 1:], -100)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels.flatten())
        return learn(loss, optimizer)

    return step
