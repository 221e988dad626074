"""Runs numba-cuda's own installed tests natively and under the shim and compares them one by one.

    python3 numba_suite.py --shim LIBRARY [--seconds N] [--jobs N] [--logs FOLDER] [--rows FILE]
                           [--packages NAME…] [--only TEXT]

Each module of tests runs in a process of its own, natively and under the shim at about the same
time, --jobs processes at once (one for each core). Tests that then end differently are run again,
with their module, up to twice and with less beside them: what ends the same way now and then in
both is a test that is not steady by itself, and is named as such. What differs each time is a
difference. --seconds is for everything; modules that did not get their turn are counted.

Prints the differences and a summary. Exit status 1 where tests differ, or none ran.
"""

import argparse
import collections
import concurrent.futures
import importlib
import importlib.util
import os
import pathlib
import pkgutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PACKAGES = ("cudadrv", "cudapy", "nrt", "doc_examples")
MODULE_SECONDS = 240
AGAIN = 2
MODES = ("native", "shim")

# Names that NumPy has dropped and the tests still use.
NUMPY_NAMES = {"row_stack": "vstack", "in1d": "isin", "trapz": "trapezoid"}

# Stands in for the package filecheck where that is not installed; the tests that need it fail, both
# ways, but what imports it can be loaded.
STAND_IN = """
class Missing:
    def __init__(self, *args, **kwargs):
        raise RuntimeError("filecheck is not installed")

Matcher = Options = Parser = FInput = pattern_for_opts = Missing
"""


# ---- One module of tests, in a process of its own ----


class Recorder(unittest.TestResult):
    """Writes "test outcome" lines as they come, so that a crash loses one test only."""

    def __init__(self, path):
        super().__init__()
        self.file = open(path, "a", encoding="utf-8", buffering=1)

    def note(self, test, outcome):
        self.file.write(f"{test.id().replace(' ', '_')} {outcome}\n")

    def addSuccess(self, test):
        self.note(test, "ok")

    def addError(self, test, err):
        self.note(test, f"failing {str(err[1]).splitlines()[:1]}")

    addFailure = addError

    def addSkip(self, test, reason):
        self.note(test, "skipped")

    def addExpectedFailure(self, test, err):
        self.note(test, "expected-failure")

    def addUnexpectedSuccess(self, test):
        self.note(test, "unexpected-success")

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.note(test, f"failing {str(err[1]).splitlines()[:1]}")


def run_module(name, path):
    import numpy

    for old, new in NUMPY_NAMES.items():
        if not hasattr(numpy, old):
            setattr(numpy, old, getattr(numpy, new))
    unittest.defaultTestLoader.loadTestsFromName(name).run(Recorder(path))


# ---- All of them ----


def find_modules(packages, only):
    """Modules of tests, the largest first: they are likely to take longest."""
    found = []
    for package in packages:
        try:
            folder = importlib.import_module(f"numba.cuda.tests.{package}")
        except ImportError as error:
            print(f"no {package}: {error}")
            continue
        for module in pkgutil.iter_modules(folder.__path__):
            if module.name.startswith("test_") and (not only or only in module.name):
                size = os.path.getsize(os.path.join(module.module_finder.path, module.name + ".py"))
                found.append((size, f"{folder.__name__}.{module.name}"))
    return [name for _, name in sorted(found, reverse=True)]


def outcomes_of(path):
    """{test: outcome}; a test that failed in several parts has one."""
    outcomes = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            test, _, rest = line.partition(" ")
            outcome = rest.split()[0]
            if outcomes.get(test) != "failing":
                outcomes[test] = outcome
    return outcomes


class Suite:
    def __init__(self, options):
        self.options = options
        self.end = time.monotonic() + options.seconds
        self.logs = pathlib.Path(options.logs or tempfile.mkdtemp(prefix="numba-"))
        self.logs.mkdir(parents=True, exist_ok=True)
        self.seen = {mode: collections.defaultdict(set) for mode in MODES}
        self.module_of = {}
        self.left_out = set()
        self.environment = dict(os.environ)
        if not importlib.util.find_spec("filecheck"):
            self.stand_in()

    def stand_in(self):
        folder = self.logs / "stand-in" / "filecheck"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("__init__", "finput", "matcher", "options", "parser"):
            (folder / f"{name}.py").write_text(STAND_IN if name != "__init__" else "")
        paths = [str(folder.parent), os.environ.get("PYTHONPATH", "")]
        self.environment["PYTHONPATH"] = ":".join(path for path in paths if path)
        sys.path.insert(0, str(folder.parent))

    def run(self, module, mode, turn):
        """One module; what it said about each test goes into `seen`."""
        left = self.end - time.monotonic()
        if left < 20:
            self.left_out.add(module)
            return
        path = self.logs / f"{module.rpartition('.')[2]}.{mode}.{turn}"
        environment = dict(self.environment)
        if mode == "shim":
            environment["LD_PRELOAD"] = self.options.shim
            environment["GPUSHIM_LOG"] = "info"
            environment["GPUSHIM_LOG_TARGET"] = f"{path}.gpushim"
        with open(f"{path}.said", "wb") as said:
            process = subprocess.Popen(
                [sys.executable, __file__, "--module", module, "--to", str(path)],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment,
                start_new_session=True)
            try:
                process.wait(min(left, MODULE_SECONDS))
                end = "" if process.returncode == 0 else f"ended with {process.returncode}"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                end = "took too long"
        outcomes = outcomes_of(path)
        outcomes[module] = end.replace(" ", "-") or "ended"
        for test, outcome in outcomes.items():
            self.seen[mode][test].add(outcome)
            self.module_of[test] = module

    def turn(self, modules, number, jobs):
        work = [(module, mode) for module in modules for mode in MODES]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for future in [pool.submit(self.run, module, mode, number) for module, mode in work]:
                future.result()

    def differing(self):
        """Tests that never ended the same way both ways, and those that did only sometimes. A
        module that was left out says nothing."""
        differ, unsteady = [], []
        for test, module in self.module_of.items():
            native, shim = (self.seen[mode].get(test, {"not-run"}) for mode in MODES)
            if module in self.left_out or native == shim:
                continue
            (unsteady if native & shim else differ).append(test)
        return sorted(differ), sorted(unsteady)

    def count(self, mode):
        """How the tests ended at first or, where that came out both ways, at best."""
        counts = collections.Counter()
        for test, outcomes in self.seen[mode].items():
            if test == self.module_of[test] or self.module_of[test] in self.left_out:
                continue
            kind = "failing"
            if "skipped" in outcomes:
                kind = "skipped"
            if outcomes & {"ok", "expected-failure"}:
                kind = "ok"
            counts[kind] += 1
        return ", ".join(f"{counts[kind]} {kind}" for kind in ("ok", "skipped", "failing"))


def was_there(suite):
    """Whether the shim said at some process's end what it did."""
    return any(path.stat().st_size for path in suite.logs.glob("*.gpushim"))


def report(suite, modules):
    differ, unsteady = suite.differing()
    for title, tests in (("differs", differ), ("not steady", unsteady)):
        for test in tests[:40]:
            native, shim = (",".join(sorted(suite.seen[mode].get(test, {"not-run"})))
                            for mode in MODES)
            print(f"{title}: {test}: native {native}, shim {shim}")
    compared = "equal test by test" if not differ else f"{len(differ)} differ"
    if unsteady:
        compared += f", {len(unsteady)} not steady by themselves"
    if not was_there(suite):
        compared = "the library was not there"
    if suite.left_out:
        compared += f"; no time for {len(suite.left_out)} of {len(modules)} modules"
    row = ["numba", suite.count("native"), suite.count("shim"), compared]
    print("  ".join(row))
    if suite.options.rows:
        with open(suite.options.rows, "a", encoding="utf-8") as rows:
            rows.write("\t".join(row) + "\n")
    return bool(differ) or not was_there(suite) or len(suite.left_out) == len(modules)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shim", default="")
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--logs")
    parser.add_argument("--rows")
    parser.add_argument("--packages", nargs="+", default=PACKAGES)
    parser.add_argument("--only", default="")
    parser.add_argument("--module", help=argparse.SUPPRESS)
    parser.add_argument("--to", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.module:
        run_module(options.module, options.to)
        return 0
    suite = Suite(options)
    modules = find_modules(options.packages, options.only)
    suite.turn(modules, 0, options.jobs)
    for turn in range(1, AGAIN + 1):
        again = {suite.module_of[test] for tests in suite.differing() for test in tests}
        if not again or suite.end - time.monotonic() < 40:
            break
        suite.turn(sorted(again), turn, max(2, options.jobs // 3))
    return report(suite, modules)


if __name__ == "__main__":
    sys.exit(main())
