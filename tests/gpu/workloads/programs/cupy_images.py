"""Images in CuPy: filtered by Fourier transforms, sharpened, and counted; sizes change with each."""

import random

import cupy

STEPS = 24
FULL = {"sides": (1024, 4096), "images": 4, "filters": 3}
TINY = {"sides": (32, 64), "images": 2, "filters": 2}


def blurred(images, far):
    height, width = images.shape[1:]
    y, x = cupy.fft.fftfreq(height)[:, None], cupy.fft.rfftfreq(width)[None]
    spectrum = cupy.fft.rfft2(images) * cupy.exp(-far * (x * x + y * y)).astype(cupy.float32)
    return cupy.fft.irfft2(spectrum, s=(height, width))


def build(device, sides, images, filters):
    def step(number):
        shape = (images, random.randint(*sides) // 8 * 8, random.randint(*sides) // 8 * 8)
        raw = cupy.random.random_sample(shape, dtype=cupy.float32)
        for i in range(filters):
            soft = blurred(raw, 50.0 * (i + 1)).astype(cupy.float32)
            raw = cupy.clip(raw + 0.5 * (raw - soft), 0, 1)
        light, _ = cupy.histogram(raw, bins=64, range=(0, 1))
        bright = raw[raw > cupy.percentile(raw, 90)]
        edges = cupy.abs(raw[:, 1:, 1:] - raw[:, :-1, :-1]).sum(axis=(1, 2))
        return float(bright.mean() + edges.mean() + light[0])

    return step
