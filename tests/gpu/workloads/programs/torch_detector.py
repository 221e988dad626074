"""Detection: a convolutional backbone with a feature pyramid, proposals by score and overlap, as many
as come out, regions pooled from the pyramid, and a head on these; trained on images of changing size.
"""

import torch
from torch import nn
from torch.nn import functional as F

from layers import between, conv_norm, learn, low

STEPS = 16
FULL = {"width": 64, "images": 2, "sides": (512, 960), "most": 1500, "classes": 91}
TINY = {"width": 8, "images": 1, "sides": (64, 96), "most": 20, "classes": 4}
POOLED = 7
STRIDES = (4, 8, 16)
ANCHOR_STRIDES = (8, 16)  # sides of anchors, in strides of their level


class Residual(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.first, self.second = conv_norm(inner, outer, stride), conv_norm(outer, outer)
        self.skip = nn.Conv2d(inner, outer, 1, stride)

    def forward(self, x):
        return F.relu(self.second(self.first(x)) + self.skip(x))


class Pyramid(nn.Module):
    """Features of strides 4, 8 and 16, all of one width."""

    def __init__(self, width):
        super().__init__()
        self.stem = nn.Sequential(conv_norm(3, width, 2, 7), nn.MaxPool2d(3, 2, 1))
        self.stages = nn.ModuleList(
            nn.Sequential(Residual(width << max(i - 1, 0), width << i, 2 if i else 1),
                          Residual(width << i, width << i, 1)) for i in range(3))
        self.sides = nn.ModuleList(nn.Conv2d(width << i, 4 * width, 1) for i in range(3))

    def forward(self, images):
        x, maps = self.stem(images), []
        for stage, side in zip(self.stages, self.sides):
            x = stage(x)
            maps.append(side(x))
        for i in (1, 0):
            maps[i] = maps[i] + F.interpolate(maps[i + 1], size=maps[i].shape[-2:])
        return maps


def anchors(features, stride):
    """Boxes (x1, y1, x2, y2) around each place of a level, in the order of its scores."""
    height, width = features.shape[-2:]
    y, x = torch.meshgrid(torch.arange(height, device=features.device),
                          torch.arange(width, device=features.device), indexing="ij")
    centre = torch.stack([x, y, x, y], dim=-1)[None] * float(stride)
    half = torch.tensor(ANCHOR_STRIDES, device=features.device)[:, None, None, None] * stride / 2
    signs = torch.tensor([-1.0, -1.0, 1.0, 1.0], device=features.device)
    return (centre + half * signs).reshape(-1, 4)


def overlap(one, two):
    """Intersection over union of each with each."""
    top = torch.maximum(one[:, None, :2], two[None, :, :2])
    bottom = torch.minimum(one[:, None, 2:], two[None, :, 2:])
    shared = (bottom - top).clamp(min=0).prod(dim=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(dim=1) for boxes in (one, two)]
    return shared / (areas[0][:, None] + areas[1][None] - shared).clamp(min=1e-6)


def suppress(boxes, scores, most):
    """The best boxes that no better one covers; how many depends on the scores."""
    scores, order = scores.sort(descending=True)
    boxes = boxes[order[: 2 * most]]
    covered = overlap(boxes, boxes).triu(diagonal=1).amax(dim=0)
    return boxes[covered < 0.7][:most]


def pool(features, boxes, stride):
    """POOLED by POOLED samples of each box, by bilinear interpolation."""
    height, width = features.shape[-2:]
    at = (torch.arange(POOLED, device=boxes.device) + 0.5) / POOLED
    x = boxes[:, 0:1] + (boxes[:, 2:3] - boxes[:, 0:1]) * at
    y = boxes[:, 1:2] + (boxes[:, 3:4] - boxes[:, 1:2]) * at
    x, y = x / stride / width * 2 - 1, y / stride / height * 2 - 1
    grid = torch.stack([x[:, None, :].expand(-1, POOLED, -1), y[:, :, None].expand(-1, -1, POOLED)],
                       dim=-1)
    # All boxes as one tall image: each would copy the features' gradient otherwise.
    samples = F.grid_sample(features[None].float(), grid.reshape(1, -1, POOLED, 2),
                            align_corners=False)
    return samples[0].unflatten(1, (-1, POOLED)).transpose(0, 1)


class Detector(nn.Module):
    def __init__(self, width, most, classes):
        super().__init__()
        self.most = most
        self.pyramid = Pyramid(width)
        self.objects = nn.Sequential(conv_norm(4 * width, 4 * width),
                                     nn.Conv2d(4 * width, 5 * len(ANCHOR_STRIDES), 1))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(4 * width * POOLED**2, 1024), nn.ReLU(),
                                  nn.Linear(1024, 1024), nn.ReLU())
        self.classes, self.boxes = nn.Linear(1024, classes), nn.Linear(1024, 4)

    def proposals(self, maps, image):
        """Of each level of one image, and the loss of what they are made of."""
        found, losses = [], []
        for features, stride in zip(maps, STRIDES):
            said = self.objects(features[image][None])[0].float()
            kinds = len(ANCHOR_STRIDES)
            scores, moves = said[:kinds].flatten(), said[kinds:].reshape(kinds, 4, -1)
            boxes = anchors(features, stride) + 4 * moves.transpose(1, 2).reshape(-1, 4).tanh()
            good = (scores > scores.median()).nonzero()[:, 0]
            found.append(suppress(boxes[good].detach(), scores[good].detach(), self.most))
            losses.append(F.softplus(scores).mean() + moves.square().mean())
        return found, torch.stack(losses).mean()

    def forward(self, images):
        maps = self.pyramid(images)
        losses, regions, wanted = [], [], []
        for i in range(images.shape[0]):
            found, loss = self.proposals(maps, i)
            losses.append(loss)
            truth = torch.rand(8, 4, device=images.device) * min(images.shape[-2:]) / 2
            truth = torch.cat([truth[:, :2], truth[:, :2] + truth[:, 2:] + 8], dim=1)
            for features, boxes, stride in zip(maps, found, STRIDES):
                regions.append(pool(features[i], boxes, stride))
                near, which = overlap(boxes, truth).max(dim=1)
                wanted.append(torch.where(near > 0.3, which + 1, 0))
        x, wanted = self.head(torch.cat(regions)), torch.cat(wanted)
        hits = (wanted > 0).nonzero()[:, 0]
        return (torch.stack(losses).mean() + F.cross_entropy(self.classes(x).float(), wanted) +
                self.boxes(x[hits]).float().square().sum() / (hits.numel() + 1))


def build(device, width, images, sides, most, classes):
    model = Detector(width, most, max(classes, 9)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def step(number):
        x = torch.rand(images, 3, between(*sides, 32), between(*sides, 32), device=device)
        with low(device):
            loss = model(x)
        return learn(loss, optimizer)

    return step
