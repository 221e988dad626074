"""Point clouds: sparse convolutions over the places that have points, by a map of neighbours that is
looked up for each cloud, gathers and scatters. How many places there are changes with each. Trained.
"""

import torch
from torch import nn
from torch.nn import functional as F

from layers import between, learn

STEPS = 20
FULL = {"points": (200_000, 800_000), "side": 320, "widths": (32, 64, 128, 128), "classes": 20}
TINY = {"points": (50, 200), "side": 32, "widths": (4, 8), "classes": 3}
REACH = [(x, y, z) for x in (-1, 0, 1) for y in (-1, 0, 1) for z in (-1, 0, 1)]


class Places:
    """Where there are points, as sorted keys, and for each neighbour who has one there."""

    def __init__(self, keys, side):
        self.keys, self.side = keys, side

    def at(self):
        z, rest = self.keys % self.side, self.keys // self.side
        return torch.stack([rest // self.side, rest % self.side, z], dim=1)

    def key(self, at):
        return (at[:, 0] * self.side + at[:, 1]) * self.side + at[:, 2]

    def pairs(self):
        """For each of REACH (rows that have such a neighbour, the neighbours' rows)."""
        at, found = self.at(), []
        for move in REACH:
            moved = at + torch.tensor(move, device=at.device)
            inside = ((moved >= 0) & (moved < self.side)).all(dim=1)
            wanted = self.key(moved)
            row = torch.searchsorted(self.keys, wanted).clamp(max=self.keys.numel() - 1)
            there = (inside & (self.keys[row] == wanted)).nonzero()[:, 0]
            found.append((there, row[there]))
        return found

    def halved(self):
        """Places of twice the size, and in which of them each of these is."""
        half = Places(None, max(self.side // 2, 1))
        half.keys, inside = torch.unique(half.key(self.at() // 2), return_inverse=True)
        return half, inside


class Convolution(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(len(REACH), inner, outer) * (9 * inner) ** -0.5)
        self.norm = nn.BatchNorm1d(outer)

    def forward(self, x, pairs):
        out = x.new_zeros(x.shape[0], self.weights.shape[2])
        for weight, (to, source) in zip(self.weights, pairs):
            out = out.index_add(0, to, x[source] @ weight)
        return F.relu(self.norm(out))


class Net(nn.Module):
    def __init__(self, widths, classes):
        super().__init__()
        inner = (3, *widths)
        self.first = nn.ModuleList(Convolution(a, b) for a, b in zip(inner, widths))
        self.second = nn.ModuleList(Convolution(width, width) for width in widths)
        self.head = nn.Linear(sum(widths), classes)

    def forward(self, x, places):
        """Classes of the finest places: of all levels, brought back to these."""
        seen, back = [], None
        for level, (first, second) in enumerate(zip(self.first, self.second)):
            if level:
                places, inside = places.halved()
                x = x.new_zeros(places.keys.numel(), x.shape[1]).index_add(0, inside, x)
                back = inside if back is None else inside[back]
            pairs = places.pairs()
            x = second(first(x, pairs), pairs)
            seen.append(x if back is None else x[back])
        return self.head(torch.cat(seen, dim=1))


def build(device, points, side, widths, classes):
    model = Net(widths, classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(number):
        # Around a few centres, as things are.
        count = between(*points)
        centres = torch.rand(8, 3, device=device)
        which = torch.randint(0, 8, (count,), device=device)
        cloud = centres[which] + 0.05 * torch.randn(count, 3, device=device)
        at = (cloud.clamp(0, 0.999) * side).long()
        places = Places(None, side)
        places.keys = torch.unique(places.key(at))
        features = places.at().float() / side
        labels = torch.randint(0, classes, (places.keys.numel(),), device=device)
        return learn(F.cross_entropy(model(features, places), labels), optimizer)

    return step
