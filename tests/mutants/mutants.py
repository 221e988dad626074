"""Plants bugs one after the other and runs the tests that are to catch them (tests/mutants.sh).

    mutants.py ROOT FOLDER [PATTERN | --sample NUMBER [COMMIT] | --draw NUMBER SEED [PATTERN] | --check
                            | --prepare [--draw]] [--part NTH/ALL] [-DOPTION=VALUE…]

The bugs are in the files *.txt beside this one, one for each folder of the sources, under the file that they change:

    in FILE
    NAME by TEST[: FILTER]
    ~    a line of the file, where the bug takes [-these words-] away, adds {+these+} or puts [-some-]{+others+} there
    NAME by TEST
     a line of the file that stays
    -a line that the bug takes away
    +a line that it adds

Further tests have lines of their own, "by TEST[: FILTER]", and so has a first one that is too long for its bug's line.
The lines of the file must be in it exactly once, one after the other (an empty line between them stands for
itself); a bug whose lines are not is a failure. A line that has [-, -], {+ or +} in it already is written with - and +.
TEST is one of `meson test --list`, FILTER chooses among the tests in that program, which then is one of Criterion's;
where several tests are named they run in turn until one fails. A line that begins with # is a comment.

Each of the tests first runs without any bug: one that fails then proves nothing. Who does not know yet which
test notices a bug writes "by ?": then those run that draw.py's table says, and what noticed it is told.

Under a bug "simulation, STRATEGY" runs one world after the other until a rule is broken, STEPS at most, from the
seed on that its FILTER is. Each change of core/share makes other worlds of the same seeds: a row needs
a seed only where the bug is not found without one. The world that finds it runs without the bug too,
and proves nothing where that fails.

With --draw the bugs are nobody's choice: draw.py makes them, and says which tests are to notice them.
--prepare builds all there is, and with --draw runs the tests of drawn bugs once: a folder that is copied then
has that.
"""

import fcntl
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from commit import commit_of  # noqa: E402
from draw import TESTS, draw, stages_of  # noqa: E402
from targets import of_tests  # noqa: E402

NOT_COPIED = ("build*", ".*", "__pycache__")
DRAWN_STEPS = 20000000  # of the simulation, under drawn bugs
STEPS = 60000000  # under a planted one: half a minute,
PART_STEPS = 3000000  # and so many at a time: where that takes LIMIT_S of CPU a world does not end
FIRST_SEED = "100000"
UNKNOWN = [("?", "")]  # tests of a bug
LIMIT_S = 60  # of a test under a bug, which may well wait for ever
LONGER = 10  # times what it takes without one, where that is less; and so many seconds
DRAWN_LONGEST_S = 25  # of a test that runs under drawn bugs, and has this part of its time-out
DRAWN_PART = 0.25
DRAWN_STAGE_S = 150  # for all tests of a stage; what has not passed by then is not asked


class Bug:
    def __init__(self, group, name, file):
        self.name = f"{group}/{name}"
        self.file = file
        self.tests = []  # (test, filter)
        self.good = self.bad = ""


def broken(text):
    sys.exit(f"mutants: {text}")


SEARCHED = "simulation, "


def is_search(test):
    return test.startswith(SEARCHED)


HEAD = re.compile(r"([a-z0-9-]+)(?: by (.*))?")
CHANGED = re.compile(r"\[-(.+?)-\]|\{\+(.+?)\+\}")  # within a line


def read_table(path):
    file, bugs, empty = None, [], 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            empty += 1
            continue
        found, bug = HEAD.fullmatch(line), bugs[-1] if bugs and bugs[-1].file == file else None
        by = line[3:] if line.startswith("by ") else None
        if line.startswith("in "):
            file = line[3:]
        elif found and file:
            bug, by = Bug(path.stem, found[1], file), found[2]
            bugs.append(bug)
        elif bug and line[0] in " -+~":
            bug.good += "\n" * empty * bool(bug.good)
            bug.bad += "\n" * empty * bool(bug.good)
            bug.good += CHANGED.sub(r"\1", line[1:]) + "\n" if line[0] in " -~" else ""
            bug.bad += CHANGED.sub(r"\2", line[1:]) + "\n" if line[0] in " +~" else ""
        elif not (bug and by):
            broken(f"{path.name}:{number}: not a line of a bug: {line}")
        if by:
            test, _, choice = by.partition(": ")
            bug.tests.append((test.strip(), choice.strip()))
        empty = 0
    return bugs


def read_tables():
    bugs = [bug for path in sorted(HERE.glob("*.txt")) for bug in read_table(path)]
    names = [bug.name for bug in bugs]
    for bug in bugs:
        if not bug.tests or bug.good == bug.bad or not bug.good or names.count(bug.name) > 1:
            broken(f"{bug.name}: no test, no change, or twice the name")
    return bugs


# ---- The copy ---------------------------------------------------------------------------------


def copied_files(folder):
    for path in sorted(folder.iterdir()):
        if any(fnmatch.fnmatch(path.name, pattern) for pattern in NOT_COPIED):
            continue
        if path.is_dir():
            yield from copied_files(path)
        else:
            yield path


def copy_tree(root, tree):
    """Only what differs is written, so that only that is built anew."""
    wanted = {path.relative_to(root) for path in copied_files(root)}
    for name in wanted:
        source, target = root / name, tree / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            shutil.copymode(source, target)
    if tree.exists():
        for path in [path for path in copied_files(tree) if path.relative_to(tree) not in wanted]:
            path.unlink()


def configure(folder, tree, options):
    if (folder / "meson-private" / "coredata.dat").exists():
        command = ["meson", "configure", folder, *options] if options else ["true"]
    else:
        command = ["meson", "setup", folder, tree, "-Ddebug=false", f"-Dsimulation_steps={DRAWN_STEPS}", *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    error = done.stdout[-4000:] if done.returncode != 0 else build(folder, ["build.ninja"])
    if error:
        broken(error)


def build(folder, targets):
    """What ninja says, or None: it is built."""
    done = subprocess.run(["ninja", "-C", folder, *sorted(targets)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return None if done.returncode == 0 else done.stdout[-3000:]


def targets_of_tests(folder):
    """What is to be built for each test, and how long it may take."""
    return {test["name"]: (files, test["timeout"]) for files, test in of_tests(folder)}


# ---- Running ----------------------------------------------------------------------------------


def run_test(folder, test, choice, share):
    """Whether it passed within that share of its time, and what says so: the names of what failed,
    where Criterion tells."""
    command = ["meson", "test", "-C", folder, "--no-rebuild", "-t", str(share), test]
    if choice:
        command.append("--test-args=--filter " + shlex.quote(choice))
    log = folder / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    results = []
    if log.exists():
        results = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    if len(results) != 1:
        return None, f"{len(results)} tests have the name {test}: {done.stdout[-500:]}"
    result = results[0]
    said = result.get("stdout", "") + result.get("stderr", "")
    if result["result"] == "SKIP":
        return None, "skipped"
    said = re.sub(r"\x1b\[[0-9;]*m", "", said)  # colours
    if choice and re.search(r"Tested: 0\b", said):
        return None, f"no test has the name {choice}"
    if done.returncode == 0:
        return True, said
    names = sorted(set(re.findall(r"\[FAIL\S* (\w+::\w+)", said)))
    names = names[:3] + ["…"] if len(names) > 3 else names
    return False, ", ".join(names) if names else result["result"].lower()


def limit_cpu():
    """A world that does not end says its seed then (SIGXCPU), however busy the machine is."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S + 1))


def run_worlds(program, strategy, seed, limit):
    """(the seed that broke a rule, or None; what that was; how many worlds were run)."""
    command = [program, "--strategy", strategy, "--no-shrink", "--output", "/dev/null", "--seed", str(seed), *limit]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", preexec_fn=limit_cpu, check=False)
    if done.returncode == 0:
        return None, "", int(re.search(r": (\d+) seeds, ", done.stdout)[1])
    found = re.search(r"^seed (\d+)(?:: | fails .*\n  )(.*)", done.stdout, re.M)
    return (int(found[1]), found[2], 0) if found else (seed, done.stdout[-200:], 0)


def search(program, strategy, seed):
    """(the seed that breaks a rule, or None; what that is)."""
    for _ in range(0, STEPS, PART_STEPS):
        found, said, worlds = run_worlds(program, strategy, seed, ["--all-steps", str(PART_STEPS)])
        if found is not None:
            return found, said
        seed += worlds
    return None, ""


def run_stage(folder, names, share, *options, within=DRAWN_STAGE_S):
    """The results by name of all those tests, up to the first that fails or as many as there is time for."""
    log = folder / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    with subprocess.Popen(["meson", "test", "-C", folder, "--no-rebuild", "-t", str(share), *options, *names],
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          start_new_session=True) as meson:
        try:
            meson.wait(within)
        except subprocess.TimeoutExpired:
            os.killpg(meson.pid, signal.SIGTERM)
    results = {}
    if log.exists():
        for line in log.read_text(encoding="utf-8").splitlines():
            result = json.loads(line)
            # "project:suites / name", and from Meson 1.10 on "suites - project:name".
            name = re.split(r" / | - libgpushim:", result["name"])[-1]
            results[name] = result["result"], result["duration"]
    return results


class Drawn:
    """Bugs that draw.py made; how they are tested differs from Run's planted ones."""

    def __init__(self, run):
        self.run, self.suites = run, {}
        self.known = run.folder / "stages.json"
        self.stages = json.loads(self.known.read_text(encoding="utf-8")) if self.known.exists() else {}
        for _, test in of_tests(run.folder):
            for suite in test["suite"]:
                self.suites.setdefault(suite.rpartition(":")[2], []).append(test["name"])

    def all_of(self, stage):
        names = [stage[1:]] if stage[0] == "=" else self.suites.get(stage[1:], [])
        return [name for name in names if name in self.run.tests]  # what is not built here is not there

    def look(self, stages):
        """Which of their tests pass without a bug, in not too long a time: all at once."""
        wanted = {name for stage in stages for name in self.all_of(stage)}
        self.build(wanted)
        results = run_stage(self.run.folder, sorted(wanted), 3) if wanted else {}
        good = {name for name, (result, took) in results.items() if result == "OK" and took < DRAWN_LONGEST_S}
        for stage in stages:
            names = self.all_of(stage)
            self.stages[stage] = [name for name in names if name in good]
            print(f"mutants: {stage}: {len(self.stages[stage])} of {len(names)} tests pass without a bug "
                  "and are short", flush=True)
        self.known.write_text(json.dumps(self.stages), encoding="utf-8")

    def names(self, stage):
        """The stage's tests that pass without a bug, in not too long a time."""
        if stage not in self.stages:
            self.look([stage])
        return self.stages[stage]

    def build(self, names):
        return self.run.build_for([(name, "") for name in names])

    def sure_failures(self, names):
        """The first that fail, and fail again by themselves, with all their time: a busy machine is no bug."""
        ends = time.monotonic() + DRAWN_STAGE_S
        while names and time.monotonic() < ends:
            results = run_stage(self.run.folder, names, DRAWN_PART, "--maxfail", "1", within=ends - time.monotonic())
            # What runs as the time is over, or beside the first that fails, is interrupted.
            failed = [test for test, (result, _) in results.items() if result not in ("OK", "SKIP", "INTERRUPT")]
            if not failed:
                return []
            again = {test: run_stage(self.run.folder, [test], 1) for test in failed}
            sure = [test for test in failed if again[test].get(test, ("OK",))[0] not in ("OK", "SKIP")]
            if sure:
                return sure
            names = [test for test in names if test not in failed and results.get(test, ("",))[0] not in ("OK", "SKIP")]
        return []

    def one(self, drawn):
        name, file, good, bad, what, stages = drawn
        bug, began = Bug(*name.split("/"), file), time.monotonic()
        tests = [(stage, self.names(stage)) for stage in stages]
        (self.run.tree / file).write_text(bad, encoding="utf-8")
        try:
            for stage, names in tests:
                if not names:
                    continue
                if self.build(names):
                    return self.run.say("caught", bug, f"by the compiler: {what}", began)
                failed = self.sure_failures(names)
                if failed:
                    return self.run.say("caught", bug, f"by {stage}: {'; '.join(failed[:3])}: {what}", began)
            return self.run.say("survived", bug, what, began)
        finally:
            (self.run.tree / file).write_text(good, encoding="utf-8")


def prepare_all(run, draws):
    error = build(run.folder, ["all"])
    if error:
        broken(f"the sources as they are do not build:\n{error}")
    if draws:
        Drawn(run).look(sorted({stage for _, stages in TESTS for stage in stages}))


class Run:
    def __init__(self, folder, tree):
        self.folder, self.tree = folder, tree
        self.tests = targets_of_tests(folder)
        self.count = {"caught": 0, "survived": 0, "broken": 0}
        self.sound = {}  # (test, filter): None, or what is wrong without any bug
        self.limit = {}  # (test, filter): in seconds, under a bug
        self.simulation = folder / "tests" / "simulation" / "simulation"
        self.without_bug = folder / "simulation-without-bug"

    def say(self, verdict, bug, text, began=None):
        took = f" ({time.monotonic() - began:.1f} s)" if began else ""
        self.count[verdict] += 1
        print(f"{verdict:<9} {bug.name:<34} {text}{took}", flush=True)

    def build_for(self, tests):
        return build(self.folder, set().union(*(self.tests[test][0] for test, _ in tests)))

    def prepare(self, bugs):
        """The build without a bug, and the tests on it."""
        wanted = {test for bug in bugs for test in bug.tests}
        unknown = sorted({test for test, _ in wanted} - set(self.tests))
        if unknown and "MUTANTS_WITHOUT" not in os.environ:  # without the agent's libraries there are no tests of it
            broken(f"no test is called {', '.join(unknown)}")
        bugs[:] = [bug for bug in bugs if not any(test in unknown for test, _ in bug.tests)]
        wanted = {test for bug in bugs for test in bug.tests}
        error = self.build_for(wanted)
        if error:
            broken(f"the sources as they are do not build:\n{error}")
        if any(is_search(test) for test, _ in wanted):
            shutil.copy2(self.simulation, self.without_bug)
        for test, choice in sorted(wanted):
            if is_search(test):
                self.sound[test, choice] = None
                continue
            began = time.monotonic()
            passed, said = run_test(self.folder, test, choice, 3)
            self.sound[test, choice] = None if passed else said[-1500:]
            self.limit[test, choice] = min(LIMIT_S, LONGER * (1 + time.monotonic() - began))
        print(f"mutants: {len(bugs)} bugs; of their {len(wanted)} tests "
              f"{sum(said is None for said in self.sound.values())} pass without any", flush=True)

    def run(self, test, choice):
        if not is_search(test):
            return run_test(self.folder, test, choice, self.limit[test, choice] / self.tests[test][1])
        strategy = test.removeprefix(SEARCHED)
        seed, said = search(self.simulation, strategy, int(choice or FIRST_SEED))
        if seed is None:
            return True, ""
        if run_worlds(self.without_bug, strategy, seed, ["--seeds", "1"])[0] is not None:
            return None, f"without the bug seed {seed} breaks a rule too: {said}"
        return False, f"seed {seed}: {said}"

    def one(self, bug):
        began = time.monotonic()
        unsound = [said for test in bug.tests if (said := self.sound[test])]
        path = self.tree / bug.file
        good = path.read_text(encoding="utf-8")
        if unsound:
            return self.say("broken", bug, f"fails without the bug: {unsound[0]}")
        path.write_text(("\n" + good).replace("\n" + bug.good, "\n" + bug.bad)[1:],
                        encoding="utf-8")
        try:
            error = self.build_for(bug.tests)
            if error:
                return self.say("broken", bug, f"does not build:\n{error}")
            for test, choice in bug.tests:
                passed, said = self.run(test, choice)
                if passed is None:
                    return self.say("broken", bug, said)
                if not passed:
                    return self.say("caught", bug, f"by {test}: {said}", began)
            return self.say("survived", bug, "not noticed by " +
                            "; ".join(test for test, _ in bug.tests), began)
        finally:
            path.write_text(good, encoding="utf-8")


def is_there(root, bug):
    """Whether its lines are in the file exactly once."""
    path = root / bug.file
    text = "\n" + path.read_text(encoding="utf-8") if path.exists() else ""
    return text.count("\n" + bug.good) == 1


def as_drawn(root, bug):
    text = (root / bug.file).read_text(encoding="utf-8")
    return (bug.name, bug.file, text, ("\n" + text).replace("\n" + bug.good, "\n" + bug.bad)[1:], "",
            stages_of(bug.file))


def choose(bugs, root, arguments):
    if arguments[:1] != ["--sample"]:
        pattern = re.compile(arguments[0] if arguments else "")
        return [bug for bug in bugs if pattern.search(bug.name) or pattern.search(bug.file)]
    commit = (arguments[2] if len(arguments) > 2 else commit_of(root)) or "no commit"
    print(f"mutants: {arguments[1]} of {len(bugs)}, chosen by {commit}")
    order = sorted(bugs, key=lambda bug: hashlib.sha256((commit + bug.name).encode()).digest())
    return sorted(order[:int(arguments[1])], key=lambda bug: bug.name)


def without_test(bugs, build):
    """Those whose test is not in that build; none where there is no build."""
    if not (build / "meson-info" / "intro-tests.json").exists():
        return []
    names = {test["name"] for _, test in of_tests(build)}
    return [(bug, test) for bug in bugs for test, _ in bug.tests if bug.tests != UNKNOWN and test not in names]


def main():
    root, folder = (pathlib.Path(name).resolve() for name in sys.argv[1:3])
    options = [word for word in sys.argv[3:] if word.startswith("-D")]
    arguments = [word for word in sys.argv[3:] if not word.startswith("-D")]
    tree = folder / "tree"
    bugs = read_tables()
    gone = [bug for bug in bugs if not is_there(root, bug)]
    for bug in gone:
        print(f"broken    {bug.name:<34} its lines are not in {bug.file} exactly once")
    nth, parts = 1, 1
    if "--part" in arguments:
        at = arguments.index("--part")
        nth, parts = (int(number) for number in arguments[at + 1].split("/"))
        del arguments[at:at + 2]
    drawn = None
    if arguments[:1] == ["--draw"]:
        number, seed, pattern = (arguments[1:] + ["1", "", ""])[:3]
        drawn = list(draw(root, int(number), seed, pattern))[nth - 1::parts]
        bugs = []
    if drawn or arguments == ["--prepare", "--draw"]:
        options.append("-Dc_args=-DGS_CHECK_LOCKS")  # a lock that is left out is seen without a race
    if arguments == ["--check"]:
        unknown = sum(bug.tests == UNKNOWN for bug in bugs)
        print(f"mutants: {len(bugs)} bugs, {len(gone)} of them do not fit the sources, "
              f"{unknown} do not say which test notices them")
        nameless = without_test(bugs, pathlib.Path(str(folder).removesuffix("-mutants")))
        for bug, test in nameless:
            print(f"broken    {bug.name:<34} no test is called {test}")
        sys.exit(1 if gone or unknown or nameless else 0)
    if arguments[:1] == ["--prepare"]:
        bugs = []
    elif drawn is None:
        bugs = [bug for bug in choose(bugs, root, arguments) if bug not in gone][nth - 1::parts]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "mutants.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        copy_tree(root, tree)
        # Newer Mesons build nowhere above the sources.
        configure(folder / "build", tree, options)
        run = Run(folder / "build", tree)
        if arguments[:1] == ["--prepare"]:
            prepare_all(run, arguments[1:] == ["--draw"])
            return
        drawn = drawn or [as_drawn(root, bug) for bug in bugs if bug.tests == UNKNOWN]
        bugs = [bug for bug in bugs if bug.tests != UNKNOWN]
        if bugs:
            run.prepare(bugs)
        for bug in bugs:
            run.one(bug)
        if drawn:
            by_chance = Drawn(run)
            for bug in drawn:
                by_chance.one(bug)
    count = run.count
    wrong = count["broken"] + (len(gone) if drawn is None else 0)
    print(f"mutants: {count['caught']} caught, {count['survived']} survived" +
          (f", {wrong} broken" if wrong else ""))
    sys.exit(0 if (bugs or drawn) and not wrong and not count["survived"] else 1)


if __name__ == "__main__":
    main()
