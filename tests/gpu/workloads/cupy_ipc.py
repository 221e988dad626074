"""CuPy arrays read and written by a second process through CUDA IPC.

Once from CuPy's default pool (cudaMalloc) and once from its asynchronous pool (cudaMallocAsync,
which the driver alone cannot share: a "GAIN"). Prints one line with pool, size and outcome each.
"""

import ctypes
import subprocess
import sys

import cupy

SIZES = (100, 5000, 1 << 20, 10 << 20)


def base_and_size(pointer):
    """The driver's allocation around a pointer: an IPC handle is of the whole of it."""
    driver = ctypes.CDLL("libcuda.so.1")
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    error = driver.cuMemGetAddressRange_v2(
        ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer))
    if error:
        raise RuntimeError(f"cuMemGetAddressRange: {error}")
    return base.value, size.value


def consumer():
    """Reads offers from stdin: handle, offset, count, first value. Answers with one word each."""
    for line in sys.stdin:
        handle, offset, count, start = line.split()
        offset, count, start = int(offset), int(count), int(start)
        try:
            opened = cupy.cuda.runtime.ipcOpenMemHandle(bytes.fromhex(handle))
            memory = cupy.cuda.UnownedMemory(opened + offset, count * 4, None)
            array = cupy.ndarray((count,), cupy.int32, cupy.cuda.MemoryPointer(memory, 0))
            good = bool((array == cupy.arange(start, start + count, dtype=cupy.int32)).all())
            array += 3
            cupy.cuda.runtime.deviceSynchronize()
            cupy.cuda.runtime.ipcCloseMemHandle(opened)
            answer = "ok" if good else "WRONG"
        except Exception as error:  # the outcome is what this program is for
            answer = str(error).split(":")[0].replace(" ", "_")
        print(answer, flush=True)


def share(process, count, start):
    array = cupy.arange(start, start + count, dtype=cupy.int32)
    cupy.cuda.runtime.deviceSynchronize()
    pointer = array.data.ptr
    try:
        handle = cupy.cuda.runtime.ipcGetMemHandle(pointer)
        base, _ = base_and_size(pointer)
    except Exception as error:
        return str(error).split(":")[0]
    process.stdin.write(f"{bytes(handle).hex()} {pointer - base} {count} {start}\n")
    process.stdin.flush()
    answer = process.stdout.readline().strip()
    if answer != "ok":
        return f"consumer {answer}"
    good = bool((array == cupy.arange(start + 3, start + 3 + count, dtype=cupy.int32)).all())
    return "ok" if good else "WRONG after the consumer's write"


def main():
    if sys.argv[1:] == ["--consumer"]:
        consumer()
        return
    process = subprocess.Popen(
        [sys.executable, __file__, "--consumer"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pools = {"default": cupy.cuda.MemoryPool().malloc, "async": cupy.cuda.MemoryAsyncPool().malloc}
    try:
        for name, malloc in pools.items():
            cupy.cuda.set_allocator(malloc)
            for i, count in enumerate(SIZES):
                kind = "GAIN" if name == "async" else "RESULT"
                print(f"{kind} {name}_{count} {share(process, count, 100 * i)}", flush=True)
    finally:
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


if __name__ == "__main__":
    main()
