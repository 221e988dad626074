"""How long single allocations and frees take, natively and under the library in turns.

usage: latency.py [--turns N] [--seconds S | --budget S] [--mix NAME]... [--async]
                  [--out FOLDER] [--rows FILE] [--software] [--bundle FOLDER]

Each turn runs every mix (tests/bench/latency_mix.c) natively and under the library, each in a process of
its own; who goes first changes. The first run of a mix, a native one, takes --seconds; all others make
as many calls as it did, so that a maximum is one of as many. A figure is the median of the turns'; --budget
is how long everything together may take about, instead of --seconds.

--out writes latency.txt, latency.json and latency.svg; --rows appends lines for the table of
tests/gpu/run.sh. Programs are those of the build folder (build, or what GPUSHIM_BUILD says), or of the
bundle that tests/gpu/bundle.sh made. No figure decides the exit status: 1 means that a program failed.
"""
import argparse
import collections
import datetime
import json
import math
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import time

from latency_draw import draw
from run import HERE, ROOT, BUILD, machine

sys.path.insert(0, str(HERE.parent))
from commit import commit_of  # pylint: disable=wrong-import-position

MIXES = ('mixed', 'server', 'training', 'threads')
WAYS = ('native', 'shim')
KINDS = ('alloc', 'free', 'all')
PERCENTILES = ('p50', 'p90', 'p99', 'p99.9', 'p99.99')
FIGURES = ('mean', *PERCENTILES, 'max')
PATIENCE = 4  # times the first run's time, for those that make as many calls
START_S = 1.0  # of a process, about


class Failed(Exception):
    pass


def command(options, way):
    """The program's command line, and its environment."""
    environment = dict(os.environ)
    if not options.bundle:
        environment['GPUSHIM_BUILD'] = str(BUILD)
        return ['sh', str(ROOT / 'tests' / 'with.sh'), way,
                *(['--software'] if options.software else []),
                str(BUILD / 'tests' / 'bench' / 'latency')], environment
    folders = [options.bundle / 'softcuda'] if options.software else []
    environment['LD_LIBRARY_PATH'] = ':'.join(filter(None, (
        *map(str, folders), environment.get('LD_LIBRARY_PATH'), str(options.bundle / 'lib'))))
    if way == 'shim':
        before = environment.get('LD_PRELOAD')
        environment['LD_PRELOAD'] = ':'.join(filter(None, (str(options.bundle / 'libgpushim.so'),
                                                           before)))
    return [str(options.bundle / 'latency')], environment


def run_once(options, way, mix, *arguments, limit):
    """What the program printed."""
    line, environment = command(options, way)
    line += [mix, *(['--async'] if options.stream_ordered else []), *map(str, arguments)]
    try:
        run = subprocess.run(line, capture_output=True, text=True, timeout=limit, env=environment,
                             stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f'{way} {mix} did not end within {limit:.0f} s') from None
    except OSError as error:
        raise Failed(f'{way} {mix}: {error}') from None
    if run.returncode != 0:
        said = run.stderr.strip().splitlines()
        raise Failed(f'{way} {mix}: {said[-1] if said else f"ended with {run.returncode}"}')
    result = json.loads(run.stdout)
    if result['shim'] != (way == 'shim'):
        raise Failed(f'{way} {mix}: the library is {"" if result["shim"] else "not "}there')
    return result


def turn(options, mix, runs, seconds, nth):
    """One run each way; the very first says how many calls all make."""
    for way in WAYS if nth % 2 == 0 else WAYS[::-1]:
        if runs['native']:
            calls, longest = runs['native'][0]['calls'], PATIENCE * seconds
        else:
            calls, longest = 1 << 40, seconds
        runs[way].append(run_once(options, way, mix, '--calls', calls, '--milliseconds',
                                  math.ceil(longest * 1000), limit=longest + 120))


def middle(runs, kind):
    """The figures of one kind of call, in nanoseconds: the medians of the turns'."""
    return {figure: statistics.median(run[kind][f'{figure}_ns'] for run in runs)
            for figure in FIGURES}


def together(runs):
    """The histogram of all turns' calls."""
    counts = collections.Counter()
    for run in runs:
        for begin, count in run['all']['histogram']:
            counts[begin] += count
    return sorted(counts.items())


def summary(runs):
    result = {kind: middle(runs, kind) for kind in KINDS}
    for name in ('calls', 'live_peak', 'reserved_peak', 'ratio', 'seconds'):
        result[name] = statistics.median(run[name] for run in runs)
    result['maxima_ns'] = [run['all']['max_ns'] for run in runs]
    result['library'] = [run['library'] for run in runs if 'library' in run]
    result['histogram'] = together(runs)
    return result


def measure(options):
    """{mix: {way: summary}}, and what failed."""
    runs = {mix: {way: [] for way in WAYS} for mix in options.mix}
    failed = {}
    end = time.monotonic() + (options.budget or math.inf)
    shares = len(options.mix) * 2 * options.turns
    seconds = options.seconds if not options.budget else max(0.1, options.budget / shares - START_S)
    done = 0
    for nth in range(options.turns):
        began = time.monotonic()
        for mix in options.mix:
            if mix in failed:
                continue
            try:
                turn(options, mix, runs[mix], seconds, nth)
            except Failed as failure:
                failed[mix] = str(failure)
        done = nth + 1
        if time.monotonic() + (time.monotonic() - began) > end:
            break
    results = {}
    for mix in options.mix:
        if mix not in failed:
            results[mix] = {way: summary(runs[mix][way]) for way in WAYS}
            results[mix]['driver'] = runs[mix]['native'][0]['driver']
    return results, failed, done, seconds


# ---- showing ----

def microseconds(ns):
    us = ns / 1000
    return f'{us:,.0f}' if us >= 100 else f'{us:.1f}' if us >= 10 else f'{us:.2f}'


def size(number):
    for unit, factor in (('GiB', 30), ('MiB', 20), ('KiB', 10)):
        if number >= 1 << factor:
            return f'{number / (1 << factor):.1f} {unit}'
    return f'{number} B'


def table(results):
    """The library's figures that are above the driver's have a * behind them."""
    lines = [('mix, us', '', '', *FIGURES)]
    for mix, ways in results.items():
        for kind in KINDS:
            for way in WAYS:
                figures = ways[way][kind]
                cells = [microseconds(figures[figure]) +
                         ('*' if way == 'shim' and figures[figure] > ways['native'][kind][figure]
                          else ' ') for figure in FIGURES]
                lines.append((mix, kind, 'library' if way == 'shim' else way, *cells))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return '\n'.join('  '.join(cell.ljust(width) if i < 3 else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(line, widths))).rstrip()
                     for line in lines)


def memory(results):
    for mix, ways in results.items():
        yield (f'{mix}: {ways["native"]["calls"]:,.0f} calls natively, {ways["shim"]["calls"]:,.0f} '
               f'under the library; reserved of {size(ways["native"]["live_peak"])} live at most: '
               f'{ways["native"]["ratio"]:.2f} natively, {ways["shim"]["ratio"]:.2f} under the '
               'library')


def short(figures):
    return ', '.join(f'{figure} {microseconds(figures[figure])}' for figure in FIGURES
                     if figure != 'p90') + ' us'


def row(name, ways):
    """For tests/gpu/table.py."""
    native, ours = ways['native']['all'], ways['shim']['all']
    above = [f'{figure} {ours[figure] / native[figure]:.2f}' for figure in FIGURES
             if ours[figure] > native[figure]]
    said = f'above native: {", ".join(above)} times' if above else 'nothing above native'
    return (name, short(native), short(ours),
            f'{said}; reserved {ways["shim"]["ratio"]:.2f} of live')


def commit(bundle):
    """Of what was measured, in a bundle or (None) built here; None where nothing says so."""
    if bundle:
        said = bundle / 'commit'
        return said.read_text(encoding='utf-8').strip() if said.exists() else None
    return commit_of(ROOT)


def document(options, results, failed, turns, seconds):
    where = machine(options.software)
    if any(ways['driver'] == 'software' for ways in results.values()):
        where['gpu'] = 'software driver'
    return {'machine': where, 'commit': commit(options.bundle),
            'when': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
            'command': shlex.join(['python3', 'tests/bench/latency.py', *sys.argv[1:]]),
            'async': options.stream_ordered, 'turns': turns, 'seconds': seconds, 'mixes': results,
            'failed': failed}


def write(options, said, text):
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / 'latency.txt').write_text(text + '\n', encoding='utf-8')
    (options.out / 'latency.json').write_text(json.dumps(said, indent=None) + '\n',
                                              encoding='utf-8')
    (options.out / 'latency.svg').write_text(draw(said), encoding='utf-8')


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--turns', type=int, default=5)
    parser.add_argument('--seconds', type=float, default=2)
    parser.add_argument('--budget', type=float)
    parser.add_argument('--mix', action='append', choices=MIXES)
    parser.add_argument('--async', action='store_true', dest='stream_ordered')
    parser.add_argument('--out', type=pathlib.Path)
    parser.add_argument('--rows', type=pathlib.Path)
    parser.add_argument('--software', action='store_true')
    parser.add_argument('--bundle', type=pathlib.Path)
    options = parser.parse_args()
    options.mix = options.mix or list(MIXES)
    if options.turns < 1 or not options.seconds > 0 or (options.budget or 1) <= 0:
        parser.error('nothing to measure')
    if not options.bundle and not BUILD.exists():
        options.bundle = ROOT / '.bundle'
    return options


def main():
    options = arguments()
    results, failed, turns, seconds = measure(options)
    said = document(options, results, failed, turns, seconds)
    text = '\n'.join((f'{said["machine"]["gpu"]}, commit {said["commit"]}, medians of {turns} turns'
                      f'{", in stream order" if options.stream_ordered else ""}',
                      table(results), *memory(results)))
    print(text)
    for failure in failed.values():
        print(f'failed: {failure}', file=sys.stderr)
    if options.out:
        write(options, said, text)
    if options.rows:
        with open(options.rows, 'a', encoding='utf-8') as rows:
            for mix, ways in results.items():
                rows.write('\t'.join(row(f'latency_{mix}', ways)) + '\n')
    sys.exit(1 if failed else 0)


if __name__ == '__main__':
    main()
