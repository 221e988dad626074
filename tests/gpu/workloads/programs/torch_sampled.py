"""A graph network on samples of a large graph: for each batch of nodes, some of their neighbours, some
of theirs, and so on; how many different ones these are is known when they are counted. The graph and
its features stay on the GPU. Trained.
"""

import torch
from torch import nn
from torch.nn import functional as F

from layers import between, learn

STEPS = 30
FULL = {"nodes": 1_500_000, "degree": 14, "features": 256, "width": 384, "classes": 47,
        "seeds": (1024, 8192), "fans": (12, 10, 5)}
TINY = {"nodes": 500, "degree": 4, "features": 8, "width": 16, "classes": 3, "seeds": (8, 32),
        "fans": (3, 2)}


class Graph:
    """Neighbours of node i are those from starts[i] to starts[i + 1]."""

    def __init__(self, nodes, degree, features, classes, device):
        counts = torch.randint(1, 2 * degree, (nodes,), device=device)
        self.starts = F.pad(counts.cumsum(0), (1, 0))
        # Some nodes are many others' neighbours.
        popular = torch.rand(int(self.starts[-1].item()), device=device).square()
        self.neighbours = (popular * nodes).long().clamp(max=nodes - 1)
        self.features = torch.randn(nodes, features, device=device, dtype=torch.bfloat16)
        self.labels = torch.randint(0, classes, (nodes,), device=device)

    def sample(self, nodes, fan):
        """(all nodes with the given first, and edges of places in it: from, to)."""
        start = self.starts[nodes]
        count = self.starts[nodes + 1] - start
        chosen = (torch.rand(nodes.numel(), fan, device=nodes.device) * count[:, None]).long()
        found = self.neighbours[start[:, None] + chosen].flatten()
        to = torch.arange(nodes.numel(), device=nodes.device).repeat_interleave(fan)
        together, place = torch.unique(torch.cat([nodes, found]), return_inverse=True)
        # The given ones keep their places, all others come behind.
        given = torch.zeros(together.numel(), dtype=torch.bool, device=nodes.device)
        given[place[: nodes.numel()]] = True
        others = together[~given]
        where = torch.empty_like(together)
        where[place[: nodes.numel()]] = torch.arange(nodes.numel(), device=nodes.device)
        where[~given] = torch.arange(others.numel(), device=nodes.device) + nodes.numel()
        return torch.cat([nodes, others]), where[place[nodes.numel():]], to


class Mean(nn.Module):
    """A node and the mean of its sampled neighbours."""

    def __init__(self, inner, outer):
        super().__init__()
        self.own, self.others = nn.Linear(inner, outer), nn.Linear(inner, outer)

    def forward(self, x, source, target, count):
        total = x.new_zeros(count, x.shape[1]).index_add(0, target, x[source])
        edges = x.new_zeros(count).index_add(0, target, torch.ones_like(target, dtype=x.dtype))
        return self.own(x[:count]) + self.others(total / edges.clamp(min=1)[:, None])


def build(device, nodes, degree, features, width, classes, seeds, fans):
    graph = Graph(nodes, degree, features, classes, device)
    widths = [features, *[width] * (len(fans) - 1), classes]
    model = nn.ModuleList(Mean(a, b) for a, b in zip(widths, widths[1:])).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(number):
        batch = torch.randperm(nodes, device=device)[: between(*seeds)]
        known, hops = batch, []
        for fan in fans:
            count = known.numel()
            known, source, target = graph.sample(known, fan)
            hops.append((source, target, count))
        x = graph.features[known].float()
        for i, (layer, hop) in enumerate(zip(model, reversed(hops))):
            x = layer(F.relu(x) if i else x, *hop)
        return learn(F.cross_entropy(x, graph.labels[batch]), optimizer)

    return step
