"""How much memory of the first GPU that programs see is in use, as the driver has it in its books, by NVML."""

import ctypes
import os
import threading
import time

LOOK_S = 0.001
SETTLED_S, UNSETTLED_S = 0.05, 3


class Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                ("used", ctypes.c_ulonglong)]


class Device:
    def __init__(self):
        self.nvml, self.handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        self.must("nvmlInit_v2")
        # NVML sees all of them, and numbers them as CUDA_DEVICE_ORDER=PCI_BUS_ID does.
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
        self.must("nvmlDeviceGetHandleByIndex_v2", int(first) if first.isdigit() else 0,
                  ctypes.byref(self.handle))
        self.peak, self.watched = 0, threading.Event()
        threading.Thread(target=self.watch, daemon=True).start()

    def must(self, name, *args):
        error = getattr(self.nvml, name)(*args)
        if error:
            raise OSError(f"{name}: error {error}")

    def used(self):
        memory = Memory()
        self.must("nvmlDeviceGetMemoryInfo", self.handle, ctypes.byref(memory))
        return memory.used

    def watch(self):
        while self.watched.wait():
            self.peak = max(self.peak, self.used())
            time.sleep(LOOK_S)

    def settled(self):
        """What is in use once it stays as it is: a process that has ended is still being cleared up."""
        end, used = time.monotonic() + UNSETTLED_S, self.used()
        while time.monotonic() < end:
            time.sleep(SETTLED_S)
            before, used = used, self.used()
            if used == before:
                break
        return used

    def begin(self):
        """From now on the peak is looked for."""
        self.before = self.peak = self.settled()
        self.watched.set()

    def end(self):
        """How much more than before was in use at the most."""
        self.watched.clear()
        return max(self.peak, self.used()) - self.before


class Nothing:
    """Where there is no GPU nothing is known of its memory."""

    def begin(self):
        pass

    def end(self):
        return None


def the_device():
    try:
        return Device()
    except OSError:
        return Nothing()
