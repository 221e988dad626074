"""Trains a small network with JAX and does other work on arrays; all results exactly as they are.

Which allocator JAX takes is chosen by its XLA_PYTHON_CLIENT_* variables. Compiled without
autotuning, which chooses by time and so differently from run to run.
"""

import hashlib
import os
import sys

os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") +
                           " --xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")

import jax
import jax.numpy as jnp
import numpy

from results import all_run, result


def digest(array):
    return hashlib.sha256(numpy.asarray(array).tobytes()).hexdigest()[:16]


def train():
    keys = jax.random.split(jax.random.PRNGKey(1), 4)
    weights = [jax.random.normal(keys[0], (128, 512)) * 0.05,
               jax.random.normal(keys[1], (512, 512)) * 0.05,
               jax.random.normal(keys[2], (512, 10)) * 0.05]

    def loss_of(weights, x, y):
        for weight in weights[:-1]:
            x = jax.nn.relu(x @ weight)
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(x @ weights[-1]) * y, axis=-1))

    @jax.jit
    def step(weights, x, y):
        loss, slopes = jax.value_and_grad(loss_of)(weights, x, y)
        return [w - 0.1 * s for w, s in zip(weights, slopes)], loss

    for i in range(15):
        key = jax.random.fold_in(keys[3], i)
        x = jax.random.normal(key, ((64, 96, 128)[i % 3], 128))
        y = jax.nn.one_hot(jax.random.randint(key, (x.shape[0],), 0, 10), 10)
        weights, loss = step(weights, x, y)
        result(f"loss_{i}", float(loss).hex())


def arrays():
    x = jax.random.randint(jax.random.PRNGKey(3), (1 << 20,), 0, 1 << 30)
    result("sort", digest(jnp.sort(x)))
    result("cumsum", digest(jnp.cumsum(x % 1000)))
    result("fft", digest(jnp.fft.fft(jnp.arange(4096.0))))
    a = (x[: 1 << 18] % 64).astype(jnp.float32).reshape(512, 512)
    result("matmul", digest(a @ a.T))
    result("scan", digest(jax.lax.scan(lambda c, r: (c * 0.5 + r, c.sum()), a[0], a)[1]))


def comes_and_goes():
    """Donated buffers, deleted arrays, sizes that change."""
    add = jax.jit(lambda x, y: x + y, donate_argnums=0)
    good = True
    for i in range(60):
        x = jnp.full(((i % 12 * 7919) % 60000 + 1,), i, dtype=jnp.int32)
        y = jnp.ones_like(x)
        x = add(x, y)
        y.delete()
        good = good and bool((x == i + 1).all())
    result("comes_and_goes", good)
    large = jnp.ones((64 << 20,), dtype=jnp.int32)
    result("large", int(large.sum()))


def main():
    result("devices", f"{jax.default_backend()} {jax.devices()[0].device_kind}")
    passed = all_run((train, arrays, comes_and_goes))
    return not passed


if __name__ == "__main__":
    sys.exit(main())
