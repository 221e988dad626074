"""Speech to text: sounds of changing length become spectra, convolutions shorten them, a transformer
reads them, and CTC says how wrong it is. Trained in bfloat16.
"""

import torch
from torch import nn
from torch.nn import functional as F

from layers import Block, between, learn, low, padding

STEPS = 20
FULL = {"width": 512, "heads": 8, "layers": 12, "batch": 24, "seconds": (2, 18), "words": 1000}
TINY = {"width": 16, "heads": 2, "layers": 1, "batch": 2, "seconds": (1, 2), "words": 20}
RATE, WINDOW, HOP, BANDS = 16000, 400, 160, 80


class Ears(nn.Module):
    """Sounds to spectra of BANDS bands, then two convolutions, each of which halves the time."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("window", torch.hann_window(WINDOW))
        self.register_buffer("bands", torch.rand(BANDS, WINDOW // 2 + 1) / WINDOW)
        self.first = nn.Conv2d(1, 64, 3, 2, 1)
        self.second = nn.Conv2d(64, 64, 3, 2, 1)
        self.out = nn.Linear(64 * BANDS // 4, width)

    def forward(self, sounds):
        spectra = torch.stft(sounds, WINDOW, HOP, window=self.window, return_complex=True)
        spectra = (self.bands @ spectra.abs().square() + 1e-6).log()
        # Parts of some spectra are hidden, as one does against learning them by heart.
        hidden = torch.rand(spectra.shape[0], 1, spectra.shape[2], device=sounds.device) < 0.1
        spectra = spectra.masked_fill(hidden, 0)
        x = F.gelu(self.second(F.gelu(self.first(spectra[:, None]))))
        return self.out(x.permute(0, 3, 1, 2).flatten(2))


def build(device, width, heads, layers, batch, seconds, words):
    ears, head = Ears(width), nn.Linear(width, words)
    places = nn.Conv1d(width, width, 31, padding=15, groups=heads)
    stack = nn.ModuleList(Block(width, heads) for _ in range(layers))
    model = nn.ModuleList([ears, places, stack, head]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step(number):
        samples = int(between(seconds[0] * 10, seconds[1] * 10) / 10 * RATE)
        lengths = [between(samples // 2, samples) for _ in range(batch)]
        sounds = torch.randn(batch, samples, device=device) * padding(lengths, samples, device)
        with low(device):
            x = ears(sounds)
            x = x + F.gelu(places(x.transpose(1, 2))).transpose(1, 2)
            frames = [max(1, x.shape[1] * length // samples) for length in lengths]
            mask = padding(frames, x.shape[1], device)[:, None, None, :]
            for block in stack:
                x = block(x, mask=mask)
            said = head(x).float().log_softmax(dim=-1).transpose(0, 1)
        letters = [max(1, count // 8) for count in frames]
        text = torch.randint(1, words, (sum(letters),), device=device)
        loss = F.ctc_loss(said, text, torch.tensor(frames), torch.tensor(letters),
                          zero_infinity=True)
        return learn(loss, optimizer)

    return step
