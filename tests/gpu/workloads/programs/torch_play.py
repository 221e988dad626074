"""Reinforcement learning: games on the GPU are played by a small net, what was seen goes into a buffer
there, and samples of it train the net (DQN). Very many small allocations beside one large one.
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 30
FULL = {"games": 128, "kept": 65536, "side": 84, "batch": 256, "moves": 4, "lessons": 2}
TINY = {"games": 2, "kept": 32, "side": 36, "batch": 4, "moves": 2, "lessons": 1}
FRAMES, ACTIONS, DISCOUNT = 4, 6, 0.99


class Net(nn.Module):
    def __init__(self, side):
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(FRAMES, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2),
                                 nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten())
        seen = self.see(torch.zeros(1, FRAMES, side, side)).shape[1]
        self.worth, self.better = nn.Linear(seen, 1), nn.Linear(seen, ACTIONS)

    def forward(self, frames):
        x = self.see(frames.float() / 255)
        better = self.better(x)
        return self.worth(x) + better - better.mean(dim=1, keepdim=True)


class Games:
    """A dot that is pushed about and wants to be in the middle."""

    def __init__(self, count, side, device):
        self.count, self.side, self.device = count, side, device
        self.at = torch.rand(count, 2, device=device)
        self.pushes = torch.tensor([[0, 0], [0, 1], [0, -1], [1, 0], [-1, 0], [1, 1]],
                                   device=device) * 0.05
        self.places = (torch.arange(side, device=device) + 0.5) / side
        self.frames = torch.zeros(count, FRAMES, side, side, dtype=torch.uint8, device=device)

    def draw(self):
        x = (-((self.places[None] - self.at[:, :1]) * 12).square()).exp()
        y = (-((self.places[None] - self.at[:, 1:]) * 12).square()).exp()
        image = (y[:, :, None] * x[:, None, :] * 255).to(torch.uint8)
        self.frames = torch.cat([self.frames[:, 1:], image[:, None]], dim=1)

    def move(self, actions):
        """Rewards, and which games are over; these begin anew."""
        self.at = self.at + self.pushes[actions] + 0.01 * torch.randn_like(self.at)
        over = ((self.at < 0) | (self.at > 1)).any(dim=1)
        rewards = torch.where(over, -1.0, 0.5 - (self.at - 0.5).abs().sum(dim=1))
        ended = over.nonzero()[:, 0]
        self.at[ended] = torch.rand(ended.numel(), 2, device=self.device)
        self.draw()
        return rewards, over


class Buffer:
    """The last so many moves."""

    def __init__(self, kept, side, device):
        shape = (kept, FRAMES, side, side)
        self.before = torch.zeros(shape, dtype=torch.uint8, device=device)
        self.after = torch.zeros(shape, dtype=torch.uint8, device=device)
        self.rest = torch.zeros(kept, 3, device=device)
        self.kept, self.next, self.device = kept, 0, device

    def add(self, before, actions, rewards, over, after):
        rows = (torch.arange(len(before), device=self.device) + self.next) % self.kept
        self.before.index_copy_(0, rows, before)
        self.after.index_copy_(0, rows, after)
        self.rest.index_copy_(0, rows, torch.stack([actions.float(), rewards, over.float()], dim=1))
        self.next += len(before)

    def sample(self, count):
        rows = torch.randint(0, min(self.next, self.kept), (count,), device=self.device)
        return self.before[rows], self.after[rows], *self.rest[rows].unbind(dim=1)


def build(device, games, kept, side, batch, moves, lessons):
    net = Net(side).to(device)
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)
    world, buffer = Games(games, side, device), Buffer(kept, side, device)

    def play():
        before = world.frames
        with torch.no_grad():
            best = net(before).argmax(dim=1)
        tried = torch.randint_like(best, ACTIONS)
        actions = torch.where(torch.rand(games, device=device) < 0.1, tried, best)
        rewards, over = world.move(actions)
        buffer.add(before, actions, rewards, over, world.frames)

    def learn_once():
        before, after, actions, rewards, over = buffer.sample(batch)
        with torch.no_grad():
            best = net(after).argmax(dim=1, keepdim=True)
            wanted = rewards + DISCOUNT * (1 - over) * target(after).gather(1, best)[:, 0]
        worth = net(before).gather(1, actions.long()[:, None])[:, 0]
        loss = F.smooth_l1_loss(worth, wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), net.parameters()):
                slow.lerp_(fast, 0.01)
        return loss.detach()

    def step(number):
        for _ in range(moves):
            play()
        return torch.stack([learn_once() for _ in range(lessons)]).mean().item()

    return step
