"""A graph network of torch_steps.py (torch_geometric), trained on graphs of changing size."""

import torch_geometric.nn  # at once, not in the first step

import torch_steps

STEPS = 40
FULL = TINY = {}


def build(device):
    torch_steps.DEVICE = device
    step = torch_steps.gnn_step()
    return lambda number: step()
