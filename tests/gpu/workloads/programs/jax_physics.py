"""Physics in JAX, one array operation after the other and not compiled as a whole: particles in cells,
whose fields are found by Fourier transforms. Arrays of a few sizes come and go all the time.
"""

import jax
import jax.numpy as jnp

STEPS = 24
FULL = {"sides": (256, 320, 384), "particles": 4_000_000, "rounds": 3}
TINY = {"sides": (8, 12), "particles": 500, "rounds": 2}


def density(at, side):
    """How many particles each cell has."""
    cell = jnp.floor(at * side).astype(jnp.int32) % side
    key = (cell[:, 0] * side + cell[:, 1]) * side + cell[:, 2]
    return jnp.zeros(side**3).at[key].add(1.0).reshape(side, side, side), key


def field(mass, side):
    """What pulls along each axis, by Poisson's equation."""
    waves = [jnp.fft.fftfreq(side)] * 2 + [jnp.fft.rfftfreq(side)]
    kx, ky, kz = jnp.meshgrid(*waves, indexing="ij")
    square = kx**2 + ky**2 + kz**2
    potential = jnp.fft.rfftn(mass - mass.mean()) / jnp.where(square == 0, 1.0, -square)
    return [jnp.fft.irfftn(1j * k * potential, s=mass.shape) for k in (kx, ky, kz)]


def build(device, sides, particles, rounds):
    at = jax.random.uniform(jax.random.PRNGKey(1), (particles, 3))
    speed = jnp.zeros_like(at)

    def step(number):
        nonlocal at, speed
        side = sides[number % len(sides)]
        for _ in range(rounds):
            mass, key = density(at, side)
            pull = jnp.stack([part.reshape(-1)[key] for part in field(mass, side)], axis=1)
            speed = 0.99 * speed + 1e-7 * pull
            at = (at + speed) % 1.0
        jax.block_until_ready(at)
        return jnp.abs(speed).mean()

    return step
