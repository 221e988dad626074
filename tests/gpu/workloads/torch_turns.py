"""Times PyTorch with its caching allocator natively against PyTorch without a cache of its own under
the shim, step by step in turns, and says how much device memory each takes.

    python3 torch_turns.py WORKLOAD --shim LIBRARY [--seconds N] [--rows FILE]

Runs torch_steps.py WORKLOAD --fast in a process each: "cached", "shim" and, for the price of having
no cache, "uncached". First each by itself: its peak of device memory is what NVML says is in use
beyond what was before it started; meanwhile the others hold what they have and do nothing. Then
"cached" and "shim" take a few steps each in turns: both take the same steps in the same order, so a
step of one is compared with the same step of the other within a second, and a machine that gets
slower meets both. Prints a line for the table of tests/gpu/run.sh.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

MIB = 1 << 20
# Steps by itself, and steps a turn.
STEPS = {"gpt": (20, 5), "resnet": (20, 5), "gnn": (40, 10), "decode": (3, 1)}
MODES = {
    "cached": {},
    "shim": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "uncached": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}


class Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                ("used", ctypes.c_ulonglong)]


class Device:
    """The first GPU's memory in use, as the driver has it in its books."""

    def __init__(self):
        self.nvml, self.handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        self.must("nvmlInit_v2")
        self.must("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(self.handle))
        self.peak, self.watched = 0, True
        threading.Thread(target=self.watch, daemon=True).start()

    def must(self, name, *args):
        error = getattr(self.nvml, name)(*args)
        if error:
            sys.exit(f"turns: {name}: error {error}")

    def used(self):
        memory = Memory()
        self.must("nvmlDeviceGetMemoryInfo", self.handle, ctypes.byref(memory))
        return memory.used

    def watch(self):
        while self.watched:
            self.peak = max(self.peak, self.used())
            time.sleep(0.001)


class Worker:
    """One process. It loads PyTorch at once, and touches the GPU when it is first told to step."""

    def __init__(self, workload, mode, shim):
        environment = dict(os.environ, **MODES[mode])
        if mode == "shim":
            environment.update(LD_PRELOAD=shim, GPUSHIM_LOG="info")
        steps = pathlib.Path(__file__).with_name("torch_steps.py")
        self.process = subprocess.Popen(
            [sys.executable, str(steps), workload, "0", "--fast", "--told"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.times = []

    def step(self, count):
        """Times of so many steps, in milliseconds."""
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self.process.wait(10)}")
        times = json.loads(line)
        self.times += times
        return times

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def measure(workload, workers, seconds):
    """What each takes by itself, in MiB, and the times of the steps that were taken in turns."""
    alone, turn = STEPS[workload]
    device, peaks = Device(), {}
    for mode in ("cached", "shim"):
        before = device.peak = device.used()
        workers[mode].step(alone)
        peaks[mode] = (device.peak - before) / MIB
    device.watched = False
    pairs, end = [], time.monotonic() + seconds
    while time.monotonic() < end and len(pairs) < 40 * turn:
        pairs += zip(workers["cached"].step(turn), workers["shim"].step(turn))
    workers["uncached"].step(alone)
    return peaks, pairs


def row(workload, workers, peaks, pairs):
    cached, shim = (statistics.median(times) for times in zip(*pairs))
    uncached = statistics.median(workers["uncached"].times[2:])
    ratio = statistics.median(two / one for one, two in pairs)
    return (f"memory_{workload}",
            f"cached {cached:.2f} ms, {peaks['cached']:.0f} MiB; uncached {uncached:.2f} ms",
            f"uncached {shim:.2f} ms, {peaks['shim']:.0f} MiB",
            f"{ratio:.3f} times the time ({len(pairs)} steps), "
            f"{peaks['shim'] / peaks['cached']:.3f} times the memory of native cached")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=STEPS)
    parser.add_argument("--shim", required=True)
    parser.add_argument("--seconds", type=float, default=12, help="how long they take turns")
    parser.add_argument("--rows")
    options = parser.parse_args()
    workers = {mode: Worker(options.workload, mode, options.shim) for mode in MODES}
    try:
        for worker in workers.values():
            worker.step(0)  # it has loaded what it needs
        peaks, pairs = measure(options.workload, workers, options.seconds)
    finally:
        for worker in workers.values():
            worker.end()
    cells = row(options.workload, workers, peaks, pairs)
    print("  ".join(cells))
    if options.rows:
        with open(options.rows, "a", encoding="utf-8") as rows:
            rows.write("\t".join(cells) + "\n")


if __name__ == "__main__":
    main()
