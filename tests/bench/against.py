"""How long single allocations and frees take, in mixes of them and in recorded traces: by the driver, by the
library, and by what a user could pick instead, in one run.

usage: against.py [--mix NAME]... [--trace NAME]... [--way NAME]... [--turns N] [--seconds S]
                  [--budget SECONDS] [--out FOLDER] [--software] [--torch LIBRARY] [--rmm LIBRARY]

The ways: native and library allocate by cuMemAlloc; `library async` in stream order, as all others do, which are
cudaMallocAsync that gives nothing back (its release threshold), PyTorch's caching allocator without Python
(--torch names its libtorch_cuda.so; the installed one otherwise), and RMM's pool, arena and async resources
(--rmm names the library that `sh tests/gpu/bench.sh bundle` builds).

Each run is a process of its own, and a turn has one of each. In a mix the first native run takes --seconds; all
others make as many calls. A trace is played twice. Every call is timed by itself. A figure is the median of the turns'.
--budget is when no more turn is begun, and what the first cannot do in it is left out. Where something cannot be
measured, its row says why; what is not installed here has a line at the end. The first 0.2 s of each run, while
its first blocks come, have a table of their own. Of the library's mean it is said how much was waiting for the GPU
(waits) and how much making pieces (makes), and how many pieces were made in 1,000 calls.

--out writes against.txt and against.json. No figure
decides the exit status: 1 means that a program failed, or that something was left out for want of time.
"""
import argparse
import datetime
import importlib.util
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

from run import BUILD, HERE, ROOT, machine

sys.path.insert(0, str(HERE.parent))
from commit import commit_of  # pylint: disable=wrong-import-position

MIXES = ('mixed', 'server', 'training', 'threads')
FIGURES = ('mean', 'p50', 'p90', 'p99', 'p99.9', 'p99.99', 'max')
PATIENCE = 4  # times the first run's time, for those that make as many calls
TRACES = ('gpt', 'resnet', 'gnn')  # of PyTorch, in traces/
WAYS = ('native', 'library', 'library async', 'mempool', 'torch', 'rmm pool', 'rmm arena', 'rmm async')
OURS = ('library', 'library async')
TIMEOUT_S = 120


def torch_library():
    """Without importing it, which takes long."""
    try:
        found = importlib.util.find_spec('torch')
    except ValueError:
        found = None
    for folder in found.submodule_search_locations or () if found else ():
        library = pathlib.Path(folder) / 'lib' / 'libtorch_cuda.so'
        if library.exists():
            return library
    return None


def arguments_of(options, way):
    """(native or shim, the program's arguments), or a text: why that is not to be had here."""
    if way in OURS or way == 'native':
        return ('native' if way == 'native' else 'shim', ['--async'] if way == 'library async' else [])
    if way == 'mempool':
        return 'native', ['--with', 'mempool']
    if way == 'torch':
        if not options.torch:
            return 'no PyTorch with CUDA is installed here'
        return 'native', ['--with', f'torch:{options.torch}']
    if not options.rmm.exists():
        return f'no {options.rmm}: it was built without RMM'
    return 'native', ['--with', f'{way.split()[1]}:{options.rmm}']


def place(case):
    return case if case in MIXES else str(HERE / 'traces' / f'{case}.trace.xz')


def run_once(options, case, how, *more):
    """What the program printed, or a text that says why it did not."""
    mode, arguments = how
    line = ['sh', str(ROOT / 'tests' / 'with.sh'), mode, *(['--software'] if options.software else []),
            str(BUILD / 'tests' / 'bench' / 'latency'), place(case), *arguments, *map(str, more)]
    environment = dict(os.environ, GPUSHIM_BUILD=str(BUILD))
    try:
        run = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment,
                             stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return f'did not end within {TIMEOUT_S} s'
    if run.returncode != 0:
        said = run.stderr.strip().splitlines()
        for first in ('RMM: ', 'latency: '):  # the cause comes before what follows from it
            said = [text for text in said if text.startswith(first)] or said
        return said[-1] if said else f'ended with {run.returncode}'
    return json.loads(run.stdout)


def figures_of(line):
    figures = {**{figure: line['all'][f'{figure}_ns'] for figure in FIGURES}, 'reserved': line['ratio'],
               'calls': line['calls'], 'live': line['live_peak'],
               **{f'first {figure}': line['first'][f'{figure}_ns'] for figure in FIGURES}}
    if 'library' in line:
        since = line['library_since_start']
        figures |= {'waits': since['wait_ns'] / line['calls'], 'makes': since['map_ns'] / line['calls'],
                    'pieces': 1000 * since['pieces_made'] / line['calls']}
    return figures


class Measured:
    def __init__(self):
        self.runs = {}  # (case, way): [figures]
        self.why = {}   # (case, way): why there are none
        self.turns = 0

    def take(self, options, case, way, calls):
        if (case, way) in self.why:
            return None
        if case not in MIXES:
            more = ()
        elif calls:
            more = ('--calls', calls, '--milliseconds', math.ceil(1000 * PATIENCE * options.seconds))
        else:
            more = ('--calls', 1 << 40, '--milliseconds', math.ceil(1000 * options.seconds))
        said = run_once(options, case, arguments_of(options, way), *more)
        if isinstance(said, str):
            self.why[case, way] = said
            print(f'failed: {case} {way}: {said}', file=sys.stderr)
            return None
        self.runs.setdefault((case, way), []).append(figures_of(said))
        return said['calls']

    def turn(self, options, end):
        for case in options.case:
            before = self.runs.get((case, 'native'))
            calls = before[0]['calls'] if before else None
            for way in options.way:
                if time.monotonic() > end:
                    self.why.setdefault((case, way), 'left out: no time was left')
                    continue
                took = self.take(options, case, way, calls)
                calls = calls or took

    def all_turns(self, options):
        began = time.monotonic()
        end = began + (options.budget or math.inf)
        for _ in range(options.turns):
            turn_began = time.monotonic()
            self.turn(options, end)
            self.turns += 1
            if 2 * time.monotonic() - turn_began > end:
                break

    def results(self, options):
        """{case: {way: figures, or why there are none}}"""
        return {case: {way: {name: statistics.median(run[name] for run in self.runs[case, way])
                             for name in self.runs[case, way][0]}
                       if (case, way) in self.runs else self.why[case, way]
                       for way in options.way} for case in options.case}


COLUMNS = (*FIGURES, 'waits', 'makes', 'pieces', 'reserved')
PLAIN = ('pieces', 'reserved')  # no times


def microseconds(ns):
    us = ns / 1000
    return f'{us:,.0f}' if us >= 100 else f'{us:.1f}' if us >= 10 else f'{us:.2f}'


def commit():
    """Of what was measured, in a bundle or built here; None where nothing says so."""
    said = BUILD / 'commit'
    return said.read_text(encoding='utf-8').strip() if said.exists() else commit_of(ROOT)


def cell(figures, column):
    if column not in figures:
        return '-'
    return f'{figures[column]:.2f}' if column in PLAIN else microseconds(figures[column])


def table(results, columns=COLUMNS, prefix=''):
    lines = [('us', '', *columns, '')]
    for case, ways in results.items():
        for way, figures in ways.items():
            if isinstance(figures, str):
                lines.append((case, way, *('-' for _ in columns), figures))
                continue
            lines.append((case, way, *(cell(figures, prefix + column) for column in columns), ''))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
    return '\n'.join('  '.join([*(cell.ljust(width) if i < 2 else cell.rjust(width)
                                  for i, (cell, width) in enumerate(zip(line, widths))), line[-1]]).rstrip()
                     for line in lines)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--mix', action='append', choices=MIXES)
    parser.add_argument('--trace', action='append', choices=TRACES)
    parser.add_argument('--way', action='append', choices=WAYS)
    parser.add_argument('--turns', type=int, default=3)
    parser.add_argument('--seconds', type=float, default=1)
    parser.add_argument('--budget', type=float)
    parser.add_argument('--out', type=pathlib.Path)
    parser.add_argument('--software', action='store_true')
    parser.add_argument('--torch', type=pathlib.Path, default=torch_library())
    parser.add_argument('--rmm', type=pathlib.Path, default=BUILD / 'other' / 'libother_rmm.so')
    options = parser.parse_args()
    if options.turns < 1 or not options.seconds > 0 or (options.budget or 1) <= 0:
        parser.error('nothing to measure')
    options.case = (*(options.mix or ()), *(options.trace or ())) or (*MIXES, *TRACES)
    wanted = [way for way in WAYS if way in (options.way or WAYS)]
    options.missing = {way: why for way in wanted if isinstance(why := arguments_of(options, way), str)}
    options.way = [way for way in wanted if way not in options.missing]
    return options


def main():
    options = arguments()
    measured = Measured()
    measured.all_turns(options)
    results, where = measured.results(options), machine(options.software)
    of = commit()
    text = '\n'.join((f'{where["gpu"]}, commit {of}, medians of {measured.turns} turns; reserved is of what is '
                      'live at most', table(results), '', 'the first 0.2 s', table(results, FIGURES, 'first '),
                      *(f'{way}: not measured: {why}' for way, why in options.missing.items()))) + '\n'
    print(text, end='')
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        when = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds')
        (options.out / 'against.txt').write_text(text, encoding='utf-8')
        (options.out / 'against.json').write_text(json.dumps(
            {'machine': where, 'commit': of, 'when': when, 'turns': measured.turns,
             'missing': options.missing, 'results': results}, indent=1) + '\n', encoding='utf-8')
    sys.exit(1 if measured.why else 0)


if __name__ == '__main__':
    main()
