"""A server with a model that lies in GPU memory; it knows nothing of the library.

    server.py NAME MIB

Reads a line for each question, and answers it out of its model, through the GPU. Several of them whose models
do not fit side by side share a GPU where all but one sleep: sleep.sh.
"""
import ctypes
import sys


def must(result):
    if result != 0:
        sys.exit(f'CUDA error {result}')


def main(name, mib):
    cuda = ctypes.CDLL('libcuda.so.1')
    context, model, answer = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
    words = mib << 18
    seed = sum(name.encode()) << 16
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuMemAlloc_v2(ctypes.byref(model), ctypes.c_size_t(4 * words)))
    for row in range(mib):
        must(cuda.cuMemsetD32_v2(ctypes.c_uint64(model.value + (row << 20)), ctypes.c_uint(seed + row),
                                 ctypes.c_size_t(1 << 18)))
    print(f'{name} has a model of {mib} MiB', flush=True)
    for question, line in enumerate(sys.stdin):
        row = int(line) % mib
        must(cuda.cuMemcpyDtoH_v2(ctypes.byref(answer), ctypes.c_uint64(model.value + (row << 20)), ctypes.c_size_t(4)))
        right = answer.value == seed + row
        print(f'{name} answers question {question + 1}: {"right" if right else "WRONG"}', flush=True)


main(sys.argv[1], int(sys.argv[2]))
