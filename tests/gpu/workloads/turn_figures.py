"""What the records of turns.py come to: medians, and rows for tests/gpu/table.py."""

import collections
import statistics

MIB = 1 << 20
# How much longer a step may take than with the framework's own cache natively. Of reserved memory: no
# more than that.
GOALS = {"shim": 1.03, "shim_cached": 1.02, "ordered": 1.02}
MEMORY_GOAL = 1.0
TITLES = {"cached": "cached", "uncached": "uncached", "shim": "uncached", "shim_cached": "cached",
          "ordered": "gpushim.torch", "again": "again"}
NATIVE = ("cached", "uncached", "again")
FIRST = "cached"


def spread(values):
    """First and third quartile."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


class Mode:
    """What one process did."""

    def __init__(self):
        self.device, self.alone_ms, self.peaks, self.failure = None, None, {}, None
        self.missing, self.in_turns = None, {}

    def of_turn(self, turn):
        return {number: step["ms"] for number, step in self.in_turns.items()
                if turn in (None, step["turn"])}

    def ms(self):
        """Of a step: in turns where it took any."""
        times = [step["ms"] for step in self.in_turns.values()]
        return statistics.median(times) if times else self.alone_ms

    def own(self):
        """What its allocator had from the driver at most: the library, else the framework's cache."""
        return (self.peaks.get("library") or self.peaks.get("framework") or [None])[0]

    def of_live(self):
        """That in terms of what the program had of it at most."""
        framework = self.peaks.get("framework") or [None, None]
        library = self.peaks.get("library") or [None, None]
        # Under a cache the library does not see what the program has.
        return quotient(self.own(), framework[1] or library[1])


class Comparison:
    """The steps of one mode against the same ones of the first."""

    def __init__(self, first, mode):
        self.first, self.mode = first, mode
        both = sorted(first.in_turns.keys() & mode.in_turns.keys())
        self.ratios = {n: mode.in_turns[n]["ms"] / first.in_turns[n]["ms"] for n in both}
        turns = collections.defaultdict(list)
        for n in both:
            turns[mode.in_turns[n]["turn"]].append(self.ratios[n])
        self.turns = [statistics.median(ratios) for _, ratios in sorted(turns.items())]

    def time(self):
        return statistics.median(self.ratios.values())

    def memory(self):
        """On the device, with the context and all; and what the allocators had of it."""
        return quotient(self.mode.device, self.first.device), quotient(self.mode.own(),
                                                                       self.first.own())


def quotient(one, two):
    return one / two if one is not None and two else None


class Programs:
    """All records, program by program."""

    def __init__(self):
        self.programs = {}

    def add(self, record):
        modes = self.programs.setdefault(record["program"], collections.defaultdict(Mode))
        if record["kind"] == "turn":
            return
        mode = modes[record["mode"]]
        if record["kind"] == "alone":
            mode.device, mode.alone_ms = record["device"], record["ms"]
        elif record["kind"] == "peaks":
            mode.peaks = {"framework": record["framework"], "library": record["library"]}
        elif record["kind"] == "failure":
            mode.failure, mode.missing = record["what"], record["missing"]
        elif record["turn"] is not None:
            mode.in_turns[record["step"]] = record

    def modes(self, name):
        """Always in the same order."""
        order = list(TITLES)
        return dict(sorted(self.programs.get(name, {}).items(), key=lambda item: order.index(item[0])
                           if item[0] in order else len(order)))

    def compared(self, name):
        """Who went on to the end, against the first."""
        modes = {mode: it for mode, it in self.modes(name).items() if not it.failure}
        first = modes.pop(FIRST, None)
        comparisons = {mode: Comparison(first, it) for mode, it in modes.items() if first}
        return {mode: it for mode, it in comparisons.items() if it.ratios}

    def any_failed(self):
        """A module that is not there is no failure."""
        return any(mode.failure and not mode.missing
                   for modes in self.programs.values() for mode in modes.values())

    def row(self, name, rows_as):
        modes = self.modes(name)
        cells = []
        for natively in (True, False):
            told = [told_of(mode, modes[mode]) for mode in modes
                    if (mode in NATIVE) == natively]
            cells.append("; ".join(filter(None, told)) or "-")
        return (f"{rows_as}_{name}", *cells, self.outcome(name))

    def outcome(self, name):
        modes = self.modes(name)
        missing = {mode.missing for mode in modes.values() if mode.missing}
        if missing:
            return f"not run: no Python module {', '.join(sorted(missing))} here"
        whys = collections.defaultdict(list)
        for mode, it in modes.items():
            if it.failure:
                whys[it.failure].append(mode)
        parts = [f"failed: {', '.join(who)}: {why}" for why, who in whys.items()]
        compared = self.compared(name)
        parts += [told_of_comparison(mode, it) for mode, it in compared.items()]
        for it in list(compared.values())[:1]:
            parts.append(f"{len(it.ratios)} steps in {len(it.turns)} turns")
        return "; ".join(parts) or "nothing to compare"


def told_of(name, mode):
    """Its time and memory, in a few words; None where it has neither."""
    parts = []
    if mode.ms() is not None:
        parts.append(f"{mode.ms():.2f} ms")
    if mode.device is not None:
        parts.append(f"{mode.device / MIB:.0f} MiB of the device")
    if mode.own() is not None:
        parts.append(f"{mode.own() / MIB:.0f} MiB reserved")
        if mode.of_live() is not None:
            parts[-1] += f" ({mode.of_live():.2f} of live)"
    return f"{TITLES.get(name, name)} {', '.join(parts)}" if parts else None


def told_of_comparison(name, comparison):
    goal, (low, high) = GOALS.get(name), spread(comparison.turns)
    text = f"{TITLES.get(name, name)} {comparison.time():.3f} ({low:.3f} to {high:.3f}) times the time"
    if goal and round(comparison.time(), 3) > goal:
        text += f", above {goal:g}"
    device, own = comparison.memory()
    if device is not None:
        text += f", {device:.3f} times the memory"
    if own is not None:
        text += f", {own:.3f} times what is reserved"
    if goal and round(max(device or 0, own or 0), 2) > MEMORY_GOAL:
        text += f", above {MEMORY_GOAL:g}"
    return text
