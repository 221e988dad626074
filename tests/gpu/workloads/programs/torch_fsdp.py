"""The GPT of torch_ddp.py with its parameters, gradients and optimizer split over two GPUs (FSDP2): each
layer's parameters are gathered before it works and let go after, so memory comes and goes on streams
of its own.
"""

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torch_ddp
from ranks import RANKS, together
from torch_ddp import Gpt, trained

STEPS = torch_ddp.STEPS
FULL = torch_ddp.FULL
TINY = torch_ddp.TINY


def train(device, width, heads, layers, batch, length, words):
    mesh = init_device_mesh(device.partition(":")[0], (RANKS,))
    model = Gpt(width, heads, layers, length, words).to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return trained(model, device, batch, length, words)


def build(device, **sizes):
    return together("torch_fsdp", device, sizes)
