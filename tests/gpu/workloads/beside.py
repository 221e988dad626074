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
SHOWN = 6


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


def started(options, mode, cores):
    mode = MODES[path_of(options.program).stem.partition("_")[0]][mode]
    environment = dict(os.environ, **mode.environment)
    if mode.library:
        preload = [options.shim, os.environ.get("LD_PRELOAD", "")]
        environment.update(LD_PRELOAD=":".join(filter(None, preload)))
    return subprocess.Popen([sys.executable, __file__, "--cores", ",".join(map(str, cores)), *sys.argv[1:],
                             *mode.arguments], stdout=subprocess.PIPE, text=True, env=environment)


def row(mode, said):
    samples = collections.Counter(said["samples"])
    parts = [f"{name} {100 * times / samples.total():.1f}" for name, times in samples.most_common(SHOWN)]
    ours = samples["libgpushim.so"]
    if ours and ours not in [times for _, times in samples.most_common(SHOWN)]:
        parts.append(f"libgpushim.so {100 * ours / samples.total():.1f}")
    return (f"{mode}: {said['ms']:.1f} ms a step, {said['cpu_ms']:.1f} of CPU; {samples.total()} samples: "
            + ", ".join(parts))


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
        for place, mode in enumerate(modes):
            first = (place + turn * (len(modes) + 1) // 2) % len(modes) * each % len(cores)
            processes.append((mode, started(options, mode, cores[first:first + each])))
        for mode, process in processes:
            said = process.communicate()[0].splitlines()
            wrong |= process.returncode != 0 or not said
            print(row(mode, json.loads(said[-1])) if said and not process.returncode else
                  f"{mode}: failed ({process.returncode})", flush=True)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
