"""A sampler of a diffusion model: a U-Net with attention at its lower resolutions takes noise away in
a few rounds, with and without the prompt, then a decoder makes the images. Batches and sizes change.
Inference alone.
"""

import torch
from torch import nn
from torch.nn import functional as F

from layers import Attention, between

STEPS = 16
FULL = {"width": 192, "levels": 3, "sides": (48, 96), "images": (1, 8), "rounds": 3}
TINY = {"width": 16, "levels": 2, "sides": (8, 16), "images": (1, 2), "rounds": 2}
GROUPS, PROMPT, CHANNELS = 8, 77, 4


class Residual(nn.Module):
    def __init__(self, inner, outer, times):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(GROUPS, inner), nn.GroupNorm(GROUPS, outer)
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(times, outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Looks(nn.Module):
    """Each place at all others, and at the prompt."""

    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(GROUPS, width), nn.LayerNorm(width)
        self.itself, self.prompt = Attention(width, GROUPS), Attention(width, GROUPS)

    def forward(self, x, prompt):
        flat = self.norm1(x).flatten(2).transpose(1, 2)
        flat = flat + self.itself(flat)
        flat = flat + self.prompt(self.norm2(flat), prompt)
        return x + flat.transpose(1, 2).reshape(x.shape)


class Denoiser(nn.Module):
    def __init__(self, width, levels):
        super().__init__()
        self.width, self.first = width, nn.Conv2d(CHANNELS, width, 3, padding=1)
        self.prompts = nn.ModuleList(nn.Linear(width, width << level) for level in range(levels))
        self.down, self.up, self.looks = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for level in range(levels):
            outer = width << level
            self.down.append(Residual(width << max(level - 1, 0), outer, width))
            self.looks.append(Looks(outer))
        for level in reversed(range(levels)):
            self.up.append(Residual(2 * (width << level), width << max(level - 1, 0), width))
        self.last = nn.Conv2d(width, CHANNELS, 3, padding=1)

    def forward(self, x, time, prompt):
        x, skips = self.first(x), []
        for level, (down, looks) in enumerate(zip(self.down, self.looks)):
            x = down(F.avg_pool2d(x, 2) if level else x, time)
            x = looks(x, self.prompts[level](prompt))
            skips.append(x)
        for i, up in enumerate(self.up):
            skip = skips.pop()
            x = F.interpolate(x, size=skip.shape[-2:]) if i else x
            x = up(torch.cat([x, skip], dim=1), time)
        return self.last(x)


def decoder(width):
    """From latents to images of eight times their side."""
    layers = [nn.Conv2d(CHANNELS, width, 3, padding=1)]
    for inner, outer in ((width, width), (width, width // 2), (width // 2, width // 2)):
        layers += [nn.GroupNorm(GROUPS, inner), nn.SiLU(), nn.Upsample(scale_factor=2),
                   nn.Conv2d(inner, outer, 3, padding=1)]
    return nn.Sequential(*layers, nn.SiLU(), nn.Conv2d(width // 2, 3, 3, padding=1))


def build(device, width, levels, sides, images, rounds):
    dtype = torch.bfloat16
    denoiser = Denoiser(width, levels).to(device, dtype).eval()
    shows = decoder(width).to(device, dtype).eval()
    grain = 1 << (levels - 1)

    def step(number):
        count = between(*images)
        shape = (count, CHANNELS, between(*sides, grain), between(*sides, grain))
        with torch.no_grad():
            x = torch.randn(shape, device=device, dtype=dtype)
            prompt = torch.randn(2 * count, PROMPT, width, device=device, dtype=dtype)
            for at in torch.linspace(1, 0.1, rounds).tolist():
                time = torch.full((2 * count, width), at, device=device, dtype=dtype)
                with_it, without = denoiser(torch.cat([x, x]), time, prompt).chunk(2)
                x = x - 0.1 * (without + 5 * (with_it - without))
            return shows(x).float().mean()

    return step
