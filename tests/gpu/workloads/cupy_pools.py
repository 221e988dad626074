"""Work with CuPy from one of its pools, the results as digests of their bytes.

    python3 cupy_pools.py default|async|managed
"""

import hashlib
import sys

import cupy

from results import all_run, result

MIB = 1 << 20


def digest(array):
    return hashlib.sha256(cupy.asnumpy(array).tobytes()).hexdigest()[:16]


def the_pool(name):
    if name == "default":
        return cupy.cuda.MemoryPool()
    if name == "async":
        return cupy.cuda.MemoryAsyncPool()
    # Small amounts only: more managed memory than the device has free can hang it.
    return cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)


def numbers(count, seed):
    """Pseudo-random numbers that depend on nothing but the seed."""
    x = cupy.arange(seed, seed + count, dtype=cupy.uint32)
    for _ in range(3):
        x ^= x << 13
        x ^= x >> 17
        x ^= x << 5
    return x


def work():
    x = numbers(1 << 20, 1)
    result("sort", digest(cupy.sort(x)))
    result("sum", int(x.sum(dtype=cupy.uint64)))
    result("cumsum", digest(cupy.cumsum(x, dtype=cupy.uint64)))
    result("unique", int(cupy.unique(x % 5000).size))
    a = (numbers(1 << 18, 7) % 64).astype(cupy.float32).reshape(512, 512)
    b = (numbers(1 << 18, 9) % 64).astype(cupy.float32).reshape(512, 512)
    result("matmul", digest(a @ b))  # whole numbers below 2^24: exact whatever the order
    result("transposed", digest(cupy.ascontiguousarray((a * 2).T[::3, ::-1])))
    result("where", digest(cupy.where(a > b, a, -b)))
    kernel = cupy.ElementwiseKernel("T x, T y", "T z", "z = x * 3 + y", "three_x_and_y")
    result("kernel", digest(kernel(a, b)))
    raw = cupy.RawKernel(r"""
extern "C" __global__ void shift(const unsigned *in, unsigned *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[(i + 1000) % n];
}""", "shift")
    out = cupy.empty_like(x)
    raw(((1 << 20) // 256,), (256,), (x, out, cupy.int32(1 << 20)))
    result("raw_kernel", digest(out))


def streams():
    """Each stream makes, changes and drops its own arrays; the host waits at the end alone."""
    kept, many = [], [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    for i in range(200):
        with many[i % 4]:
            x = cupy.full((1 << 16) + 512 * (i % 13), i, dtype=cupy.int32)
            y = x * 2
            del x
            if i % 10 == 0:
                kept.append((i, y + 1))
    for stream in many:
        stream.synchronize()
    result("streams", all(bool((y == 2 * i + 1).all()) for i, y in kept))


def sizes():
    """Many sizes live at once, freed in another order, filled again."""
    good = True
    for turn in range(3):
        arrays = [cupy.full((i * 7919) % 60000 + 1, i + turn, dtype=cupy.int32)
                  for i in range(300)]
        for i in range(0, 300, 2):
            arrays[i] = None
        again = [cupy.full(3000 + i, -i, dtype=cupy.int32) for i in range(100)]
        good = good and all(bool((a == i + turn).all()) for i, a in enumerate(arrays)
                            if a is not None)
        good = good and all(bool((a == -i).all()) for i, a in enumerate(again))
    result("sizes", good)


def accounts(name, pool):
    cupy.cuda.runtime.deviceSynchronize()
    pool.free_all_blocks()
    array = cupy.ones(8 * MIB, dtype=cupy.uint8)
    if name != "async":
        result("used_bytes", pool.used_bytes())
        result("free_blocks", pool.n_free_blocks())
        result("total_bytes", pool.total_bytes())
        pool.set_limit(size=16 * MIB)
        try:
            cupy.ones(32 * MIB, dtype=cupy.uint8)
            result("limit", "WRONG it was given")
        except cupy.cuda.memory.OutOfMemoryError:
            result("limit", "out of memory")
        pool.set_limit(size=0)
    else:
        result("used_bytes_async_at_least", pool.used_bytes() >= 8 * MIB)
    result("sum_of_ones", int(array.sum()))
    del array
    pool.free_all_blocks()
    if name != "async":
        result("after_all", f"{pool.used_bytes()} used, {pool.total_bytes()} held")


def main():
    name = sys.argv[1]
    pool = the_pool(name)
    cupy.cuda.set_allocator(pool.malloc)
    passed = all_run((work, streams, sizes, lambda: accounts(name, pool)))
    return not passed


if __name__ == "__main__":
    sys.exit(main())
