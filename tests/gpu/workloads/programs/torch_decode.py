"""A Llama of torch_steps.py (transformers) that continues prompts, 24 words a step."""

import transformers  # at once, not in the first step

import torch_steps

STEPS = 3
FULL = TINY = {}


def build(device):
    torch_steps.DEVICE = device
    step = torch_steps.decode_step()
    return lambda number: step()
