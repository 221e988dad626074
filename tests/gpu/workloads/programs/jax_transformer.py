"""A transformer in JAX, trained on batches of a few lengths; each has its own compiled program, whose
temporaries come and go as one block, while batches, gradients and states are arrays of their own.
"""

import jax
import jax.numpy as jnp

STEPS = 24
FULL = {"width": 768, "heads": 12, "layers": 6, "words": 16000, "batch": 12,
        "lengths": (128, 256, 384, 512)}
TINY = {"width": 16, "heads": 2, "layers": 1, "words": 50, "batch": 2, "lengths": (8, 16)}


def make_weights(key, width, layers, words):
    def random(*shape):
        nonlocal key
        key, mine = jax.random.split(key)
        return jax.random.normal(mine, shape) * 0.02

    stack = [{"qkv": random(width, 3 * width), "out": random(width, width),
              "up": random(width, 4 * width), "down": random(4 * width, width)}
             for _ in range(layers)]
    return {"names": random(words, width), "stack": stack, "head": random(width, words)}


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def attend(x, heads):
    batch, length, _ = x.shape
    q, k, v = (part.reshape(batch, length, heads, -1) for part in jnp.split(x, 3, axis=-1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    seen = jnp.tril(jnp.ones((length, length), bool))
    scores = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(batch, length, -1)


def build(device, width, heads, layers, words, batch, lengths):
    weights = make_weights(jax.random.PRNGKey(1), width, layers, words)
    speeds = jax.tree_util.tree_map(jnp.zeros_like, weights)

    def loss_of(weights, text):
        x = weights["names"][text[:, :-1]]
        for layer in weights["stack"]:
            x = x + attend(norm(x) @ layer["qkv"], heads) @ layer["out"]
            x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
        said = jax.nn.log_softmax(norm(x) @ weights["head"])
        return -jnp.take_along_axis(said, text[:, 1:, None], axis=-1).mean()

    slopes_of = jax.jit(jax.value_and_grad(loss_of))

    @jax.jit
    def move(weights, speeds, slopes):
        speeds = jax.tree_util.tree_map(lambda v, g: 0.9 * v + g, speeds, slopes)
        return jax.tree_util.tree_map(lambda w, v: w - 0.01 * v, weights, speeds), speeds

    def step(number):
        nonlocal weights, speeds
        key = jax.random.PRNGKey(number)
        text = jax.random.randint(key, (batch, lengths[number % len(lengths)] + 1), 0, words)
        loss, slopes = slopes_of(weights, text)
        weights, speeds = move(weights, speeds, slopes)
        # All of the step, and not the loss alone, which is there before.
        jax.block_until_ready(weights)
        return loss

    return step
