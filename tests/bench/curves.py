"""What an allocation and its free cost by size, in powers of two: one curve each for plain and stream-ordered
ones, for every number of threads and of live blocks of that size.

usage: curves.py [--out FOLDER] [--software] [--budget SECONDS] [--memory BYTES] [--repeats N] [--quick]
                 [--threads N…] [--live N…] [--kinds plain stream-ordered] [--sizes BYTES…]

A point is the median of `pair`'s batches, and of --repeats runs the least: what else the machine does only adds.
A point whose cost is more than a fifth, and more than 10 ns, above that of half its size is a step, and marked *.
Live blocks take no more than --memory (16 GiB; 8 on the software driver) together, so curves of many end early.
--out writes curves.txt and curves.json. No figure decides the exit status: 1 means that a
program failed.
"""
import argparse
import datetime
import json
import math
import pathlib
import sys
import time

from run import machine, run_once

SIZES = [512 << i for i in range(24)]  # to 4 GiB
WAYS = ('native', 'shim')
KINDS = ('plain', 'stream-ordered')  # index: whether ordered
STEP, STEP_NS = 1.2, 10
FEW = 1 << 26  # above it a pair may be a chunk's making and giving back
SLOW = 1 << 28  # from here on the driver's own pair takes milliseconds


def name_of(size):
    for unit, factor in (('G', 30), ('M', 20), ('K', 10)):
        if size >= 1 << factor:
            return f'{size >> factor}{unit}'
    return str(size)


def point(options, way, curve, size):
    """Nanoseconds of a pair, of all threads together; None where it cannot be had."""
    slow = way == 'native' and size >= SLOW
    pairs = 200 if options.quick or slow else 2000 if size >= FEW or way == 'native' else 20000
    command = ('pair', '--size', str(size), '--pairs', str(pairs), '--warmup', str(pairs // 10),
               '--threads', str(curve['threads']), '--live', str(curve['live']),
               *(('--async',) if curve['async'] else ()))
    values = []
    for _ in range(options.repeats):
        result = run_once(command, way, options.software)
        if 'error' in result:
            print(f'failed: {way} {" ".join(command)}: {result["error"]}', file=sys.stderr)
            return None
        values.append(result['ns_per_pair'])
    return min(values)


def measure(options):
    """[curve], each with its points by way; and whether all could be had."""
    curves = [{'async': bool(ordered), 'threads': threads, 'live': live, 'native': {}, 'shim': {}}
              for ordered in map(KINDS.index, options.kinds) for threads in options.threads for live in options.live]
    end = time.monotonic() + options.budget
    whole = True
    for curve in curves:
        for size in options.sizes:
            if size * (curve['live'] + curve['threads']) > options.memory:
                break
            for way in WAYS:
                if time.monotonic() > end:
                    print('left out: the budget is used up', file=sys.stderr)
                    return curves, False
                ns = point(options, way, curve, size)
                whole = whole and ns is not None
                if ns is not None:
                    curve[way][size] = ns
    return curves, whole


def is_step(points, size):
    before, now = points.get(size // 2), points.get(size)
    return bool(before and now and now > before * STEP and now - before > STEP_NS)


def title(curve):
    return (f'{KINDS[curve["async"]]}, {curve["threads"]} threads, '
            f'{curve["live"]:,} live')


def text(curves):
    for curve in curves:
        yield f'{title(curve)}: ns a pair; * a step'
        for way in WAYS:
            points = curve[way]
            yield f'  {"library" if way == "shim" else way:8}' + ' '.join(
                f'{name_of(size)}:{ns:.0f}{"*" if is_step(points, size) else ""}'
                for size, ns in points.items())
    steps = [(title(curve), name_of(size)) for curve in curves for size in curve['shim']
             if is_step(curve['shim'], size)]
    yield f'{len(steps)} steps under the library' + ''.join(f'; {name} at {size}' for name, size in steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', type=pathlib.Path)
    parser.add_argument('--software', action='store_true')
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--budget', type=float, default=math.inf, metavar='SECONDS')
    parser.add_argument('--memory', type=int)
    parser.add_argument('--repeats', type=int, default=2)
    parser.add_argument('--threads', type=int, nargs='+', default=[1, 4, 16])
    parser.add_argument('--live', type=int, nargs='+', default=[10, 1000, 100000, 1000000])
    parser.add_argument('--kinds', nargs='+', choices=KINDS, default=KINDS)
    parser.add_argument('--sizes', type=int, nargs='+')
    options = parser.parse_args()
    options.memory = options.memory or (8 if options.software else 16) << 30
    options.sizes = options.sizes or (SIZES[::8] if options.quick else SIZES)
    curves, whole = measure(options)
    where = machine(options.software)
    said = '\n'.join(text(curves)) + '\n'
    print(said, end='')
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        when = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds')
        (options.out / 'curves.txt').write_text(said)
        (options.out / 'curves.json').write_text(json.dumps({'machine': where, 'when': when, 'curves': curves}, indent=1))
    sys.exit(0 if whole else 1)


if __name__ == '__main__':
    main()
