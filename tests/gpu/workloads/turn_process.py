"""A process that takes steps of one program when it is told to; turns.py starts it and tells it.

    python3 turn_process.py programs/FRAMEWORK_NAME.py [--tiny] [--device DEVICE] [--no-pool | --ordered]

An order is a line of JSON, [first, count]: it takes the steps of these numbers. [0, 0] loads the
framework and touches no GPU. The answer is a line too: {"steps": [...], "peaks": {...}}, or
{"error": "..."}, after which the process ends. Of each step it has the milliseconds until the GPU was
done ("ms") and until all of it was submitted ("host_ms"), what the step came to, and how much the
counters of the library and of the framework's cache rose meanwhile ("did"). They are read between
steps: no step pays for it.

A program is a file that has build(device, **sizes), FULL and TINY, the sizes, and STEPS, how many
steps show its peak. build gives a function: step(number). Random numbers are seeded before each step
by its number, so step n is the same in every process that took all steps before it.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import pathlib
import random
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
SEED = 20240229
TOOK = 24


class Memory(ctypes.Structure):
    """struct gpushim_memory of shim/gpushim.h."""

    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in (
        "reserved", "live", "cached", "retired", "ordered", "limbo", "reserved_peak", "live_peak",
        "hits", "misses", "pieces_made", "pieces_given_back", "in_background", "at_once", "events",
        "waits", "waits_given_up", "wait_ns", "map_ns")] + [
        ("took", ctypes.c_uint64 * TOOK), ("slow", ctypes.c_uint64), ("uuid", ctypes.c_ubyte * 16)]


class Library:
    """libgpushim in this process, where it is."""

    def __init__(self):
        process = ctypes.CDLL(None)
        self.ask = getattr(process, "gpushim_memory", None)
        self.version = None
        if self.ask:
            process.gpushim_version.restype = ctypes.c_char_p
            self.version = process.gpushim_version().decode()

    def memory(self):
        memory = Memory(size=ctypes.sizeof(Memory))
        # Before the first call of CUDA it says ENODEV, and all is 0.
        if self.ask:
            self.ask(0, ctypes.byref(memory))
        return memory

    def counted(self):
        if not self.ask:
            return {}
        m = self.memory()
        return {"allocations": m.hits + m.misses, "further": m.misses, "made": m.pieces_made,
                "given_back": m.pieces_given_back, "in_background": m.in_background,
                "at_once": m.at_once, "events": m.events, "waits": m.waits,
                "given_up": m.waits_given_up, "wait_us": m.wait_ns / 1e3, "map_us": m.map_ns / 1e3,
                # took[i] counts calls of less than 2^i microseconds.
                "over_32_us": sum(m.took[6:]), "over_256_us": sum(m.took[9:]), "slow": m.slow}

    def peaks(self):
        memory = self.memory()
        return [memory.reserved_peak, memory.live_peak] if self.ask else None


class Plain:
    """No framework: for programs that need no GPU, and for what frameworks have in common."""

    def __init__(self, options):
        self.options = options

    def load(self):
        pass

    def begin(self, number):
        random.seed(SEED + number)

    def wait(self, outcome):
        """Until the GPU has done the step."""

    def counted(self):
        return {}

    def peaks(self):
        """What its own cache had from the driver at most, and the program of it, in bytes; None: it
        has no cache."""


class Torch(Plain):
    def load(self):
        import torch

        self.torch = torch
        self.gpu = self.options.device == "cuda"
        self.cache = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") != "1" and not self.options.ordered
        if self.options.ordered:
            import gpushim_package

            gpushim_package.torch().use()

    def begin(self, number):
        super().begin(number)
        self.torch.manual_seed(SEED + number)

    def wait(self, outcome):
        if self.gpu:
            self.torch.cuda.synchronize()

    def counted(self):
        if not self.gpu or not self.cache:
            return {}
        stats = self.torch.cuda.memory_stats_as_nested_dict()
        if not stats:
            return {}
        return {"torch_allocations": stats["allocation"]["all"]["allocated"],
                "segments_made": stats["segment"]["all"]["allocated"],
                "segments_freed": stats["segment"]["all"]["freed"],
                "retries": stats["num_alloc_retries"]}

    def peaks(self):
        if not self.gpu or not self.cache:
            return None
        return [self.torch.cuda.max_memory_reserved(), self.torch.cuda.max_memory_allocated()]


class Cupy(Plain):
    def load(self):
        import cupy

        self.cupy, self.peak = cupy, 0
        if self.options.no_pool:
            cupy.cuda.set_allocator(None)

    def begin(self, number):
        super().begin(number)
        self.cupy.random.seed(SEED + number)

    def wait(self, outcome):
        self.cupy.cuda.Device().synchronize()

    def counted(self):
        if not self.options.no_pool:
            # It gives nothing back by itself but where it would be refused more.
            pool = self.cupy.get_default_memory_pool()
            self.peak = max(self.peak, pool.total_bytes())
        return {}

    def peaks(self):
        return None if self.options.no_pool else [self.peak, None]


FRAMEWORKS = {"torch": Torch, "cupy": Cupy, "plain": Plain}


def load_program(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


class Stepper:
    def __init__(self, options):
        self.path = pathlib.Path(options.program)
        self.options = options
        self.framework = FRAMEWORKS[self.path.stem.partition("_")[0]](options)
        self.library = Library()
        self.step, self.at = None, None

    def load(self):
        self.framework.load()
        self.program = load_program(self.path)
        return {"library": self.library.version, "steps_alone": self.program.STEPS}

    def build(self):
        """Seeded as a step before the first one."""
        self.framework.begin(-1)
        sizes = self.program.TINY if self.options.tiny else self.program.FULL
        self.step = self.program.build(self.options.device, **sizes)
        self.framework.wait(None)

    def counted(self):
        return {**self.library.counted(), **self.framework.counted()}

    def take(self, number):
        self.framework.begin(number)
        before = self.counted()
        start = time.perf_counter()
        outcome = self.step(number)
        submitted = time.perf_counter()
        self.framework.wait(outcome)
        done = time.perf_counter()
        did = {name: round(count - before.get(name, 0), 3)
               for name, count in self.counted().items()}
        return {"step": number, "ms": (done - start) * 1e3, "host_ms": (submitted - start) * 1e3,
                "value": float(outcome), "did": did}

    def obey(self, first, count):
        if not count:
            return self.load()
        if not self.step:
            self.at = "its beginning"
            self.build()
        steps = []
        for number in range(first, first + count):
            self.at = f"step {number}"
            steps.append(self.take(number))
        return {"steps": steps, "peaks": {"framework": self.framework.peaks(),
                                          "library": self.library.peaks()}}


def error_of(stepper, error):
    where = f"in {stepper.at}: " if stepper.at else ""
    text = " ".join(str(error).split())[:200]
    answer = {"error": f"{where}{type(error).__name__}: {text}"}
    if isinstance(error, ModuleNotFoundError):
        answer["missing"] = error.name
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--tiny", action="store_true", help="sizes for a machine without a GPU")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-pool", action="store_true", help="CuPy without its pool")
    parser.add_argument("--ordered", action="store_true", help="PyTorch with gpushim.torch")
    stepper = Stepper(parser.parse_args())
    # What a program prints goes elsewhere than the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path[:0] = [str(stepper.path.parent), str(HERE)]
    for line in sys.stdin:
        try:
            answer = stepper.obey(*json.loads(line))
        except Exception as error:  # whatever a program does, the others go on
            answer = error_of(stepper, error)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if "error" in answer:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
