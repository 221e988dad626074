"""Whether all GPU work of PyTorch programs is submitted by documented calls, which the library sees.

    python3 unseen.py [--steps N] PROGRAM…

Natively, under PyTorch's profiler (CUPTI): each kernel, copy and fill that ran on the GPU has the number of
the call that submitted it. One whose number no call of the runtime or the driver has came by another way,
such as the driver's undocumented tables (shim/hooks/tables.c says which are known to be no such way). So
this is to be run again with new versions of cuBLAS, cuDNN and the others. The exit status is 1 where something
was submitted unseen, or nothing ran. Of copies by the driver API the profiler lists the work and not the call:
they are said to be unseen, and have to be looked at by hand.

A program is a file of the folder programs, without its ending.
"""

import argparse
import collections
import json
import pathlib
import sys
import tempfile

import torch
from torch.profiler import ProfilerActivity, profile

from turn_process import Stepper

HERE = pathlib.Path(__file__).resolve().parent
WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
CALLS = {"cuda_runtime", "cuda_driver"}


def events_of(name, steps):
    """What CUPTI has of some steps, the first ones too: libraries are loaded in them."""
    stepper = Stepper(argparse.Namespace(program=HERE / "programs" / f"{name}.py", device="cuda", tiny=False,
                                         no_pool=False))
    stepper.load()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        stepper.build()
        for number in range(steps):
            stepper.take(number)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiled.export_chrome_trace(file.name)
        return json.load(open(file.name, encoding="utf-8"))["traceEvents"]


def number_of(event):
    return event.get("args", {}).get("correlation")


def look(name, steps):
    """The names of what was submitted unseen, counted; and how much there was in all."""
    events = events_of(name, steps)
    calls = {number_of(event): event["name"] for event in events if event.get("cat") in CALLS}
    work = [event for event in events if event.get("cat") in WORK]
    unseen = collections.Counter(event["name"][:60] for event in work if number_of(event) not in calls)
    by = collections.Counter(calls.get(number_of(event), "unseen") for event in work)
    return unseen, len(work), by


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("programs", nargs="+")
    options = parser.parse_args()
    sys.path[:0] = [str(HERE / "programs")]
    wrong = False
    for name in options.programs:
        unseen, count, by = look(name, options.steps)
        wrong |= bool(unseen) or count == 0
        print(f"{name}: {count} kernels, copies and fills, {sum(unseen.values())} unseen; by "
              + ", ".join(f"{call} {times}" for call, times in by.most_common(8)), flush=True)
        for kernel, times in unseen.most_common(5):
            print(f"   unseen: {kernel} {times}", flush=True)
        torch.cuda.empty_cache()
    sys.exit(wrong)


if __name__ == "__main__":
    main()
