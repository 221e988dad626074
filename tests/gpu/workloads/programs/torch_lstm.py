"""A language model of three LSTM layers, trained on sequences whose length changes; its state is carried
from batch to batch.
"""

import torch
from torch import nn
from torch.nn import functional as F

from layers import between

STEPS = 20
FULL = {"width": 1024, "layers": 3, "words": 20000, "batch": 48, "lengths": (16, 192)}
TINY = {"width": 16, "layers": 2, "words": 50, "batch": 2, "lengths": (4, 12)}


def build(device, width, layers, words, batch, lengths):
    names, head = nn.Embedding(words, width), nn.Linear(width, words)
    lstm = nn.LSTM(width, width, layers, dropout=0.2, batch_first=True)
    model = nn.ModuleList([names, head, lstm]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    state = [torch.zeros(layers, batch, width, device=device) for _ in range(2)]

    def step(number):
        text = torch.randint(0, words, (batch, between(*lengths) + 1), device=device)
        said, after = lstm(F.dropout(names(text[:, :-1]), 0.2), tuple(state))
        loss = F.cross_entropy(head(said).flatten(0, 1), text[:, 1:].flatten())
        state[:] = [part.detach() for part in after]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step
