"""Where the CPU time of a program's steps goes, natively and under the library, side by side.

    python3 beside.py --shim LIBRARY --sampler LIBRARY [--steps N] [--modes MODE,…] PROGRAM

For programs that the CPU leads: they take 0.8 to 1.2 times as long from one process or turn to the next.
Each mode of turns.py has a process on cores of its own, all at once; then all once more, on the cores of
another. A third of the steps is for warming up. Said of each: the median step, its CPU time, and in which
libraries samples of it fell (tests/gpu/sampler.c, each millisecond), in percent.

A program is a file of the folder programs, without its ending, or a path. Exit status 1 where one failed.
"""

import argparse
import collections
import ctypes
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

from turn_process import Stepper
from turns import MODES

HERE = pathlib.Path(__file__).resolve().parent
SHOWN = 12


def path_of(name):
    return pathlib.Path(name) if name.endswith(".py") else HERE / "programs" / f"{name}.py"


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def one(options):
    """A process of one mode: prints a line of JSON."""
    os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})
    path = path_of(options.program)
    sys.path[:0] = [str(path.parent), str(HERE)]
    stepper = Stepper(argparse.Namespace(program=path, device=options.device, tiny=options.tiny,
                                         no_pool=options.no_pool))
    stepper.load()
    stepper.build()
    warm = options.steps // 3
    for number in range(warm):
        stepper.take(number)
    sampler = ctypes.CDLL(os.path.abspath(options.sampler))
    before = cpu_seconds()
    if sampler.sampler_start():
        raise OSError("no SIGPROF here")
    times = [stepper.take(number)["ms"] for number in range(warm, options.steps)]
    with tempfile.NamedTemporaryFile(mode="r", encoding="utf-8") as file:
        if sampler.sampler_stop(file.name.encode()):
            raise OSError(f"cannot write {file.name}")
        samples = collections.Counter(line.strip() for line in file)
    print(json.dumps({"ms": statistics.median(times), "cpu_ms": (cpu_seconds() - before) * 1e3 / len(times),
                      "library": stepper.library.version, "samples": samples}), flush=True)


def mode_of(options, name):
    return MODES[path_of(options.program).stem.partition("_")[0]][name]


def started(options, mode, cores):
    environment = dict(os.environ, **mode.environment)
    if mode.library:
        preload = [options.shim, os.environ.get("LD_PRELOAD", "")]
        environment.update(LD_PRELOAD=":".join(filter(None, preload)))
    return subprocess.Popen([sys.executable, __file__, "--cores", ",".join(map(str, cores)), *sys.argv[1:],
                             *mode.arguments], stdout=subprocess.PIPE, text=True, env=environment)


def row(said):
    samples = collections.Counter(said["samples"])
    shown = dict(samples.most_common(SHOWN))
    if said["library"]:
        shown["libgpushim.so"] = samples["libgpushim.so"]
    return (f"{said['ms']:.1f} ms a step, {said['cpu_ms']:.1f} of CPU; {samples.total()} samples: "
            + ", ".join(f"{name} {100 * times / samples.total():.1f}" for name, times in shown.items()))


def outcome_of(process, mode):
    """(whether it ran as it should, what to say of it)."""
    said = process.communicate()[0].splitlines()
    if process.returncode or not said:
        return False, f"failed ({process.returncode})"
    said = json.loads(said[-1])
    if bool(said["library"]) != bool(mode.library):
        return False, f"failed: the library is {'not ' if mode.library else ''}there"
    return True, row(said)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shim", default="libgpushim.so")
    parser.add_argument("--sampler", required=True)
    parser.add_argument("--steps", type=int, default=36)
    parser.add_argument("--modes", default="cached,uncached,shim,shim_cached")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a machine without a GPU")
    parser.add_argument("--no-pool", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cores", help=argparse.SUPPRESS)
    parser.add_argument("program")
    options = parser.parse_args()
    if options.cores:
        one(options)
        return
    modes, cores = options.modes.split(","), sorted(os.sched_getaffinity(0))
    each = max(len(cores) // len(modes), 1)
    wrong = False
    for turn in range(2):
        processes = []
        for place, name in enumerate(modes):
            first = (place + turn) % len(modes) * each % len(cores)
            processes.append((name, started(options, mode_of(options, name), cores[first:first + each])))
        for name, process in processes:
            ran, said = outcome_of(process, mode_of(options, name))
            wrong |= not ran
            print(f"{name}: {said}", flush=True)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
