"""Programs step by step in turns: with their framework's own cache natively, without it under the
library, with it under the library. Says how much time and memory each takes of the first.

    python3 turns.py --shim LIBRARY [--seconds N] PROGRAM…

A program is a file of the folder programs, without its ending. Each has one process for each of:

    cached        natively, with the framework's own cache (CuPy's is its pool)
    shim          under the library, without it
    shim_cached   under the library, with it (PyTorch alone)
    uncached      natively, without it: the price of having none
    ordered       under the library, which PyTorch allocates from with streams (gpushim.torch)
    again         a second process of the first kind: what two processes differ by in any case

All processes load their framework at once. Then, program after program, each process takes its first
steps by itself: the peak of its memory is what NVML says is in use beyond what was before. Then they
step in turns. In a turn each takes the same steps, and who begins changes from turn to turn; a step is
compared with the same step of the first, so a machine that gets slower meets all. With --cores all keep
to the same few cores, so that none has better ones. At least five turns,
more where time is left: --seconds is for all programs together. A turn is short, and the first ones do not
count: who pauses for longer than pool.decay (2 s) has nothing idle left under the library, which is what
becomes of a program that pauses, not of one that goes on.

A process that fails or hangs is a row that says so; the others go on. --keep FILE gets a line of JSON
for each step, with what the library and the framework counted in it. Exit status 1 where one failed.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import select
import statistics
import subprocess
import sys
import time

from device_memory import the_device
from turn_figures import Programs

HERE = pathlib.Path(__file__).resolve().parent
# At least as many turns, if time allows; what is left is cut into so many; and no more than so many.
TURNS, PLANNED_TURNS, MOST_TURNS = 5, 8, 60
MOST_STEPS = 100
TURN_MS = 1000  # of all together, if a step takes no longer
WARM_TURNS = 3  # after the pause in which the others were by themselves
GRACE_S = 10  # for who is in the middle of something when the time is over
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


class Mode:
    """`library`: whether it is under the library."""

    def __init__(self, environment=None, library=False, arguments=()):
        self.environment, self.library, self.arguments = environment or {}, library, arguments


# The first of a framework is what the others are compared with. Those of "plain" programs, which need
# no framework, differ in a variable alone.
MODES = {
    "torch": {"cached": Mode(), "shim": Mode(UNCACHED, True), "shim_cached": Mode({}, True), "uncached": Mode(UNCACHED),
              "ordered": Mode({}, True, ("--ordered",)), "again": Mode()},
    "cupy": {"cached": Mode(), "shim": Mode({}, True, ("--no-pool",)), "uncached": Mode({}, False, ("--no-pool",))},
    "plain": {"cached": Mode({"TURN": "cached"}), "shim": Mode({"TURN": "shim"}),
              "shim_cached": Mode({"TURN": "shim_cached"}), "library": Mode({"TURN": "library"}, True)},
}


class Failure(Exception):
    """Why a process is no more; what is missing where that is all."""

    def __init__(self, what, missing=None):
        super().__init__(what)
        self.missing = missing


class Process:
    """One process of one program."""

    def __init__(self, program, mode, options):
        self.program, self.name, self.mode = program, mode, MODES[program.framework][mode]
        self.patience = options.patience
        environment = dict(os.environ, **self.mode.environment)
        if self.mode.library:
            preload = [options.shim or "libgpushim.so", os.environ.get("LD_PRELOAD", "")]
            environment.update(LD_PRELOAD=":".join(filter(None, preload)), GPUSHIM_LOG="info")
        self.log = options.logs / f"{program.name}.{mode}.err"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "turn_process.py"), str(program.path),
                 "--device", options.device, *(["--tiny"] if options.tiny else []),
                 *self.mode.arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment,
                bufsize=0)
        self.said = b""

    def line(self, seconds):
        """What it says next; None if it says nothing for so long."""
        end, pipe = time.monotonic() + seconds, self.process.stdout.fileno()
        while b"\n" not in self.said:
            left = max(end - time.monotonic(), 0)
            if not select.select([pipe], [], [], left)[0]:
                return None
            more = os.read(pipe, 1 << 16)
            if not more:
                raise Failure(f"ended with {ended(self.process)}")
            self.said += more
        line, _, self.said = self.said.partition(b"\n")
        return line

    def ask(self, first, count, seconds):
        """The answer to an order. Who gives none is no more; has it less than its patience, then because the
        time of all is over."""
        try:
            self.process.stdin.write(f"[{first}, {count}]\n".encode())
            line = self.line(seconds)
        except BrokenPipeError:
            raise Failure(f"ended with {ended(self.process)}") from None
        if line is None:
            what = f"steps {first} to {first + count - 1}" if count else "loading"
            raise Failure(f"hung in {what} ({seconds:.0f} s)" if seconds >= self.patience else
                          f"out of time in {what}")
        try:
            answer = json.loads(line)
        except ValueError:
            raise Failure(f"said what is no answer: {line[:80]!r}") from None
        if "error" in answer:
            raise Failure(answer["error"], answer.get("missing"))
        return answer

    def load(self, seconds):
        answer = self.ask(0, 0, seconds)
        if bool(answer["library"]) != self.mode.library:
            raise Failure("the library is not there" if self.mode.library else
                          "the library is there natively")
        return answer["steps_alone"]

    def keep_on(self, cores):
        """All its threads, and those that they start."""
        for thread in os.listdir(f"/proc/{self.process.pid}/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cores)

    def end(self, kill=False):
        self.process.stdin.close()
        try:
            if not kill:
                self.process.wait(20)
        except subprocess.TimeoutExpired:
            pass
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def ended(process):
    try:
        status = process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        return "its answers closed"
    return f"status {status}" if status >= 0 else f"signal {-status}"


class Program:
    """The processes of one program, and what they are told."""

    def __init__(self, path, run):
        self.path, self.name, self.run = path, path.stem, run
        self.framework = self.name.partition("_")[0]
        if self.framework not in MODES:
            sys.exit(f"turns: {self.name} is of no framework; there are: {', '.join(MODES)}")
        has = MODES[self.framework]
        self.wanted = [mode for mode in (*run.options.modes, *run.options.once) if mode in has]
        self.processes, self.steps_alone = {}, 0

    def failed(self, mode, error):
        """One is no more; its row says why."""
        process = self.processes.pop(mode, None)
        if process:
            process.end(kill=True)
            tail = process.log.read_text(errors="replace").splitlines()[-6:]
            print(f"-- {self.name}, {mode}: {error}", *tail, sep="\n   ", flush=True)
        self.run.keep("failure", self, mode, what=str(error),
                      missing=getattr(error, "missing", None))

    def ask(self, mode, first, count):
        """Steps of one, kept; None: it is no more."""
        try:
            answer = self.processes[mode].ask(first, count, self.run.patience())
        except Failure as error:
            self.failed(mode, error)
            return None
        self.run.keep("peaks", self, mode, **answer["peaks"])
        return answer["steps"]

    def load(self, mode):
        """On a thread of its own, others load meanwhile."""
        if self.run.left() <= 0:
            raise Failure("not run: out of time")
        try:
            self.processes[mode] = Process(self, mode, self.run.options)
        except OSError as error:
            raise Failure(f"not started: {error}") from None
        self.steps_alone = self.processes[mode].load(self.run.patience())

    def alone(self):
        """Each by itself: its peak of device memory, and its steps' time, in milliseconds."""
        times = {}
        for mode in [mode for mode in self.wanted if mode in self.processes]:
            self.run.device.begin()
            steps = self.ask(mode, 0, self.steps_alone)
            peak = self.run.device.end()
            if steps is None:
                continue
            # The first ones load libraries and kernels.
            times[mode] = statistics.median(step["ms"] for step in steps[len(steps) // 2:])
            self.run.keep("alone", self, mode, device=peak, ms=times[mode])
            self.run.keep_steps(self, mode, None, steps)
        return times

    def turns(self, times, until):
        """In turns until then, and for five turns that count at least while any time is left."""
        order = [mode for mode in self.wanted if mode in times and mode not in self.run.options.once]
        first = next(iter(MODES[self.framework]))
        per_step = max(sum(times[mode] for mode in order), 0.001)
        share = max(until - time.monotonic(), 0) * 1e3 / PLANNED_TURNS
        count = max(1, min(MOST_STEPS, int(min(share, TURN_MS) / per_step)))
        at = self.steps_alone
        for turn in range(-WARM_TURNS, MOST_TURNS):
            # Without the first there is nothing to compare with.
            if first not in order or len(order) < 2 or self.run.left() <= 0:
                break
            if turn >= TURNS and time.monotonic() + count * per_step / 1e3 > until:
                break
            counts = turn >= 0
            if counts:
                self.run.keep("turn", self, None, turn=turn, order=order)
            for mode in list(order):
                steps = self.ask(mode, at, count)
                if steps is None:
                    order.remove(mode)
                else:
                    self.run.keep_steps(self, mode, turn if counts else None, steps)
            at += count
            if counts:
                order = order[1:] + order[:1]

    def measure(self, until):
        if self.run.left() <= 0:
            for mode in list(self.processes):
                self.failed(mode, "not run: out of time")
        else:
            if self.run.options.cores:
                for process in self.processes.values():
                    process.keep_on(self.run.options.cores)
            self.turns(self.alone(), until)
        self.end()

    def end(self):
        for process in self.processes.values():
            process.end()
        self.processes.clear()


class Run:
    """All programs of one call, its time, and what is kept of it."""

    def __init__(self, options):
        self.options, self.ends = options, time.monotonic() + options.seconds
        self.device, self.figures = the_device(), Programs()
        # A line at a time: whoever ends this leaves what was measured.
        self.kept = open(options.keep, "a", encoding="utf-8", buffering=1) if options.keep else None

    def left(self):
        return self.ends - time.monotonic()

    def patience(self):
        """How long one may take to answer, in seconds."""
        return min(self.options.patience, max(self.left(), 0) + GRACE_S)

    def keep(self, kind, program, mode, **what):
        record = {"kind": kind, "program": program.name, "mode": mode, **what}
        self.figures.add(record)
        if self.kept:
            self.kept.write(json.dumps(record) + "\n")

    def keep_steps(self, program, mode, turn, steps):
        for step in steps:
            self.keep("step", program, mode, turn=turn, **step)

    def load(self, programs):
        """All processes, as many at a time as there are cores."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            loading = {pool.submit(program.load, mode): (program, mode)
                       for program in programs for mode in program.wanted}
            for load in concurrent.futures.as_completed(loading):
                program, mode = loading[load]
                if isinstance(load.exception(), Failure):
                    program.failed(mode, load.exception())
                else:
                    load.result()

    def measure(self, programs):
        try:
            self.load(programs)
            for i, program in enumerate(programs):
                share = max(self.left(), 0) / (len(programs) - i)
                program.measure(time.monotonic() + share)
                self.tell(program.name)
        finally:
            for program in programs:
                program.end()

    def tell(self, name):
        """The row of a program."""
        cells = self.figures.row(name, self.options.rows_as)
        print("  ".join(cells), flush=True)
        if self.options.rows:
            with open(self.options.rows, "a", encoding="utf-8") as rows:
                rows.write("\t".join(cells) + "\n")


def names(text):
    return tuple(filter(None, text.split(",")))


def numbers(text):
    return {int(number) for number in text.split(",")}


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("--shim", help="the library")
    parser.add_argument("--seconds", type=float, default=400, help="for all programs together")
    parser.add_argument("--patience", type=float, default=90, help="for one answer")
    parser.add_argument("--modes", type=names, default="cached,shim,shim_cached")
    parser.add_argument("--once", type=names, default="", help="modes that step by themselves only")
    parser.add_argument("--cores", type=numbers, help="these alone, as 0,1,2,3, once all is loaded")
    parser.add_argument("--keep", help="file for a line of JSON for each step")
    parser.add_argument("--rows", help="file of rows for tests/gpu/table.py")
    parser.add_argument("--rows-as", default="program", help="what the rows' names begin with")
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path("."),
                        help="folder for what the processes write to stderr")
    parser.add_argument("--folder", type=pathlib.Path, default=HERE / "programs")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a machine without a GPU")
    return parser.parse_args(arguments)


def main(arguments):
    options = parsed(arguments)
    run = Run(options)
    programs = [Program(options.folder / f"{name}.py", run) for name in options.programs]
    run.measure(programs)
    return run.figures.any_failed()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
