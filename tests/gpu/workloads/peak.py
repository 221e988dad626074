"""Runs a program and says how much memory of the GPU it took at most, by NVML.

    python3 peak.py PROGRAM ARGS…

Looks at the device's memory in use about every millisecond, from before the program starts to its
end, in a process of its own so that the program is not slowed. Nothing else may use the GPU: what
counts is the device's use beyond what it was at the start. That is the driver's own book-keeping
and needs nothing of the program. Prints "MEMORY peak device memory N MiB"; the exit status is the
program's.
"""

import ctypes
import subprocess
import sys
import time


class Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                ("used", ctypes.c_ulonglong)]


def reader():
    """A function that gives the bytes in use on the first GPU."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    device = ctypes.c_void_p()
    for name, args in (("nvmlInit_v2", ()),
                       ("nvmlDeviceGetHandleByIndex_v2", (0, ctypes.byref(device)))):
        error = getattr(nvml, name)(*args)
        if error:
            sys.exit(f"peak: {name}: error {error}")
    memory = Memory()

    def used():
        error = nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
        if error:
            sys.exit(f"peak: nvmlDeviceGetMemoryInfo: error {error}")
        return memory.used

    return used


def main():
    used = reader()
    # What the run before left is being cleared away for a moment.
    time.sleep(0.5)
    before = peak = used()
    program = subprocess.Popen(sys.argv[1:])
    while program.poll() is None:
        peak = max(peak, used())
        time.sleep(0.001)
    print(f"MEMORY peak device memory {(peak - before) / 2**20:.0f} MiB", flush=True)
    return program.returncode


if __name__ == "__main__":
    sys.exit(main())
