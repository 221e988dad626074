"""Segmentation: a U-Net trained in bfloat16 on images whose size changes with every batch."""

import torch
from torch import nn
from torch.nn import functional as F

from layers import between, conv_norm, learn, low

STEPS = 24
FULL = {"width": 64, "levels": 5, "images": 4, "sides": (256, 640), "classes": 21}
TINY = {"width": 4, "levels": 3, "images": 2, "sides": (16, 32), "classes": 3}


class Unet(nn.Module):
    def __init__(self, width, levels, classes):
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down, self.up, self.join = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for inner, outer in zip([3] + widths, widths):
            self.down.append(nn.Sequential(conv_norm(inner, outer), conv_norm(outer, outer)))
        for outer, inner in reversed(list(zip(widths, widths[1:]))):
            self.up.append(nn.ConvTranspose2d(inner, outer, 2, 2))
            self.join.append(nn.Sequential(conv_norm(2 * outer, outer), conv_norm(outer, outer)))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skips = []
        for level, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


def build(device, width, levels, images, sides, classes):
    model = Unet(width, levels, classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    grain = max(8, 1 << (levels - 1))

    def step(number):
        height, wide = between(*sides, grain), between(*sides, grain)
        x = torch.rand(images, 3, height, wide, device=device)
        labels = torch.randint(0, classes, (images, height, wide), device=device)
        with low(device):
            loss = F.cross_entropy(model(x), labels)
        return learn(loss, optimizer)

    return step
