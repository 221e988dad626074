"""Memory that PyTorch makes and maps itself, opened by other programs through raw CUDA IPC.

usage: own_vmm.py expandable | saver

expandable: tensors of PyTorch's expandable segments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True),
each by its cudaIpcMemHandle, opened by CuPy and by numba in processes of their own, which check what they
see and write; then how long getting, opening and opening again take, beside torch.multiprocessing's own way.

saver: the same of torch_memory_saver's memory, with its pause and resume between: who has it open keeps
what was there; the handle of before is refused, the new one opens.

The driver gives such memory no handle: each outcome is a "GAIN".
"""

import ctypes
import os
import statistics
import subprocess
import sys
import time

import torch

from results import result

COUNTS = {"small": 1000, "odd": 123457, "million": 1 << 20, "large": 40 << 20}
TIMES = 20


def driver_call(name, *args):
    error = getattr(ctypes.CDLL("libcuda.so.1"), name)(*args)
    if error:
        raise RuntimeError(f"{name}:{error}")


def handle_of(pointer):
    """The handle, as hexadecimal digits, and where in it the pointer lies."""
    handle = (ctypes.c_char * 64)()
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    driver_call("cuIpcGetMemHandle", handle, ctypes.c_uint64(pointer))
    driver_call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer))
    return handle.raw.hex(), pointer - base.value


class CupyImporter:
    def __init__(self):
        import cupy
        self.cupy = cupy
        cupy.cuda.runtime.free(0)

    def open(self, handle):
        return self.cupy.cuda.runtime.ipcOpenMemHandle(bytes.fromhex(handle))

    def close(self, opened):
        self.cupy.cuda.runtime.ipcCloseMemHandle(opened)

    def view(self, opened, offset, count):
        memory = self.cupy.cuda.UnownedMemory(opened + offset, count * 4, None)
        return self.cupy.ndarray((count,), self.cupy.int32, self.cupy.cuda.MemoryPointer(memory, 0))

    def check(self, opened, offset, count, start):
        view = self.view(opened, offset, count)
        good = bool((view == self.cupy.arange(start, start + count, dtype=self.cupy.int32)).all())
        view += 3
        self.cupy.cuda.runtime.deviceSynchronize()
        return good

    def first(self, opened, offset):
        return int(self.view(opened, offset, 1)[0])


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


class NumbaImporter:
    """Opens by the driver's call; numba's arrays are over what that gave."""

    def __init__(self):
        import numpy
        from numba import cuda
        self.numpy, self.cuda = numpy, cuda
        cuda.current_context()

    def open(self, handle):
        pointer = ctypes.c_uint64()
        driver_call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer),
                    IpcHandle.from_buffer_copy(bytes.fromhex(handle)), ctypes.c_uint(1))
        return pointer.value

    def close(self, opened):
        driver_call("cuIpcCloseMemHandle", ctypes.c_uint64(opened))

    def view(self, opened, offset, count):
        class Array:
            __cuda_array_interface__ = {"shape": (count,), "typestr": "<i4", "data": (opened + offset, False),
                                        "version": 3, "strides": None}
        return self.cuda.as_cuda_array(Array())

    def check(self, opened, offset, count, start):
        view = self.view(opened, offset, count)
        seen = view.copy_to_host()
        expected = self.numpy.arange(start, start + count, dtype=self.numpy.int32)
        view.copy_to_device(seen + 3)
        self.cuda.synchronize()
        return bool((seen == expected).all())

    def first(self, opened, offset):
        return int(self.view(opened, offset, 1).copy_to_host()[0])


def answer(importer, held, words):
    what, handle, offset, count, start = words[0], words[1], *map(int, words[2:5])
    if what == "check":
        opened = importer.open(handle)
        good = importer.check(opened, offset, count, start)
        importer.close(opened)
        return "ok" if good else "WRONG"
    if what == "hold":
        held[handle] = importer.open(handle)
        return "ok"
    if what == "first":
        return str(importer.first(held[handle], offset))
    if what == "drop":
        importer.close(held.pop(handle))
        return "ok"
    times = []
    for _ in range(count):
        began = time.perf_counter_ns()
        opened = importer.open(handle)
        times.append(time.perf_counter_ns() - began)
        importer.close(opened)
    return f"{times[0]} {int(statistics.median(times[1:]))}"


def consumer(kind):
    """One request a line on stdin, one answer a line on stdout."""
    importer, held = (CupyImporter if kind == "cupy" else NumbaImporter)(), {}
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            said = answer(importer, held, line.split())
        except Exception as error:  # the outcome is what this program is for
            said = f"{type(error).__name__}:{str(error).splitlines()[0][:80]}".replace(" ", "_")
        print(said, flush=True)


class Consumer:
    def __init__(self, kind):
        self.process = subprocess.Popen([sys.executable, __file__, "--consumer", kind],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self.process.stdout.readline().strip() == "ready"

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def gain(what, outcome):
    print(f"GAIN {what} {outcome}", flush=True)


def shared(consumer, count, start):
    tensor = torch.arange(start, start + count, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    try:
        handle, offset = handle_of(tensor.data_ptr())
    except RuntimeError as error:
        return str(error)
    said = consumer.ask("check", handle, offset, count, start)
    if said != "ok":
        return f"consumer {said}"
    expected = torch.arange(start + 3, start + 3 + count, dtype=torch.int32, device="cuda")
    return "ok" if torch.equal(tensor, expected) else "WRONG after the consumer's write"


def receiver(offers, answers):
    while (offer := offers.get(timeout=60)) is not None:
        tensor, began = offer
        first = int(tensor[0])
        answers.put((first, time.perf_counter_ns() - began))
        del tensor, offer


def times_of(consumer, pieces):
    """By raw handles and by torch.multiprocessing, of as many of PyTorch's pieces of 20 MiB."""
    count = pieces * (20 << 20) // 4
    held = torch.zeros(count, dtype=torch.int32, device="cuda")
    try:
        handle, offset = handle_of(held.data_ptr())
        said = consumer.ask("times", handle, offset, TIMES, 0)
        first, again = (int(each) / 1e3 for each in said.split())
        print(f"TIME raw handle of {pieces} pieces: first open {first:.0f} us, again {again:.2f} us", flush=True)
    except (RuntimeError, ValueError) as error:
        print(f"TIME raw handle of {pieces} pieces: {error}", flush=True)
    del held
    context = torch.multiprocessing.get_context("spawn")
    offers, answers = context.Queue(), context.Queue()
    process = context.Process(target=receiver, args=(offers, answers), daemon=True)
    process.start()
    took = []
    for number in range(6):
        tensor = torch.full((count,), number, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        offers.put((tensor, time.perf_counter_ns()))
        first, ns = answers.get(timeout=60)
        if number > 0:
            took.append(ns / 1e3)
        del tensor
    offers.put(None)
    process.join(20)
    print(f"TIME torch.multiprocessing of {pieces} pieces: {took[0]:.0f} us, median {statistics.median(took):.0f} us",
          flush=True)


def expandable():
    for kind in ("cupy", "numba"):
        consumer = Consumer(kind)
        for i, (name, count) in enumerate(COUNTS.items()):
            gain(f"{kind}_{name}", shared(consumer, count, 1000 * i + 7))
        if kind == "cupy":
            for pieces in (1, 256):
                times_of(consumer, pieces)
        consumer.end()


def saver():
    from torch_memory_saver import torch_memory_saver as saver_of
    saver_of.hook_mode = "torch"
    consumer = Consumer("cupy")
    with saver_of.region():
        tensor = torch.full((8 << 20,), 41, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    try:
        handle, offset = handle_of(tensor.data_ptr())
    except RuntimeError as error:
        for what in ("held", "kept", "stale", "resumed"):
            gain(what, error)
        saver_of.pause()
        saver_of.resume()
        tensor.fill_(42)
        result("after_resume", int(tensor[0]))
        consumer.end()
        sys.stdout.flush()
        os._exit(0)
    gain("held", "ok" if consumer.ask("hold", handle, offset, 0, 0) == "ok" else "WRONG")
    saver_of.pause()
    first = consumer.ask("first", handle, offset, 0, 0)
    gain("kept", "ok" if first == "41" else f"WRONG {first} while paused")
    saver_of.resume()
    tensor.fill_(42)
    torch.cuda.synchronize()
    first = consumer.ask("first", handle, offset, 0, 0)
    stale = consumer.ask("check", handle, offset, 1, 42)
    consumer.ask("drop", handle, offset, 0, 0)
    refused = consumer.ask("check", handle, offset, 1, 42)
    gain("stale", "ok" if first == "41" and refused not in ("ok", "WRONG") else f"WRONG {first} {stale} {refused}")
    handle, offset = handle_of(tensor.data_ptr())
    said = consumer.ask("check", handle, offset, 1, 42)
    gain("resumed", said)
    result("after_resume", int(tensor[1]))
    consumer.end()
    sys.stdout.flush()
    os._exit(0)  # its allocator ends the process with an error when the interpreter frees the pool, natively too


def main():
    if sys.argv[1] == "--consumer":
        consumer(sys.argv[2])
    elif sys.argv[1] == "expandable":
        expandable()
    else:
        saver()


if __name__ == "__main__":
    main()
