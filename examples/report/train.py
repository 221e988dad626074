"""A loop whose GPU memory looks like a training program's: weights and their gradients, the optimizer's state, what a
forward pass keeps for the backward pass, a validation now and then that keeps nothing, and one list that forgets to let
go. No kernel runs: memory is taken, filled and given back, by the driver's calls alone, so that any driver will do.

    train.py [STEPS]
"""
import ctypes
import os
import random
import sys

MIB = 1 << 20
LAYERS = 12

cuda = ctypes.CDLL('libcuda.so.1')


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result != 0:
        sys.exit(f'train: {name}: CUDA error {result}')


class Tensor:
    """Ends with the last reference to it, as PyTorch's do."""

    def __init__(self, size):
        self.address = ctypes.c_uint64()
        call('cuMemAlloc_v2', ctypes.byref(self.address), ctypes.c_size_t(size))
        call('cuMemsetD8Async', self.address, 0, ctypes.c_size_t(size), None)

    def __del__(self):
        call('cuMemFree_v2', self.address)


def load_weights():
    return [Tensor(4 * MIB) for _ in range(LAYERS)]


def make_optimizer(weights):
    return [(Tensor(4 * MIB), Tensor(4 * MIB)) for _ in weights]


def forward(weights, batch):
    kept = []
    for _ in weights:
        attention = Tensor(batch * MIB // 2)  # ends with this layer
        kept.append(Tensor(batch * MIB // 4))
        del attention
    return kept


def backward(weights, kept):
    gradients = []
    for _ in weights:
        gradients.append(Tensor(4 * MIB))
        kept.pop()
    return gradients


def validate(weights):
    for _ in range(4):
        logits = Tensor(96 * MIB)
        forward(weights, 16)
        del logits


losses = []


def log_loss():
    losses.append(Tensor(MIB))  # never read and never let go: what the report is to find


def train(steps):
    weights = load_weights()
    optimizer = make_optimizer(weights)
    for step in range(steps):
        kept = forward(weights, random.choice((16, 24, 32)))
        gradients = backward(weights, kept)
        call('cuCtxSynchronize')
        del gradients
        if step % 5 == 0:
            log_loss()
        if step % 20 == 19:
            validate(weights)
    del optimizer
    print(f'train: {steps} steps')


if __name__ == '__main__':
    context = ctypes.c_void_p()
    random.seed(1)
    call('cuInit', 0)
    call('cuDevicePrimaryCtxRetain', ctypes.byref(context), 0)
    call('cuCtxSetCurrent', context)
    train(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
    sys.stdout.flush()
    os._exit(0)  # frees nothing, as where a framework ends
