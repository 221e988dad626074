"""Runs the measuring programs natively and under the shim, in turns, and compares.

usage: run.py [--out FILE] [--svg FILE] [--software] [--quick] [--repeats N]
              [--budget SECONDS] [--only NAME…]

Prints a table; --out writes all results as JSON, --svg a picture for README.md here. The build
folder is build, or what GPUSHIM_BUILD says. --quick takes tiny counts: it proves that everything
works and measures nothing. What would start after --budget is left out. No figure decides the exit
status: 1 means that a program failed or was left out.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import time
from xml.sax.saxutils import escape

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = pathlib.Path(os.environ.get('GPUSHIM_BUILD', ROOT / 'build')).resolve()
RECORDED = ('gpt', 'resnet', 'decode', 'gnn')  # of PyTorch, in traces/
MADE = ('unet', 'detect', 'translate', 'experts', 'lstm', 'serve')  # by programs.py
TIMEOUT = 180


class Row:
    """One figure: `field` of what a program prints. Rows with the same command share its runs."""

    def __init__(self, name, title, command, field, unit, drawn=True, more_is_better=False):
        self.name, self.title, self.command, self.field = name, title, command, field
        self.unit, self.drawn, self.more_is_better = unit, drawn, more_is_better
        self.native = self.shim = self.ratio = None

    def fill(self, runs):
        self.native, self.shim = (self.middle(runs[mode]) for mode in ('native', 'shim'))
        if self.native and self.shim:
            better, worse = (self.shim, self.native) if self.more_is_better else (
                self.native, self.shim)
            self.ratio = better / worse

    def middle(self, results):
        values = [r[self.field] for r in results if r.get(self.field) is not None]
        return statistics.median(values) if values else None


class OverheadRow(Row):
    """overhead runs both ways by itself, and names its fields after them."""

    def __init__(self, name, title, field, unit):
        super().__init__(name, title, ('overhead', '--whole'), field, unit, drawn=False)

    def fill(self, runs):
        for mode in ('native', 'shim'):
            values = [r[f'{self.field}_{mode}'] for r in runs['shim']
                      if r.get(f'{self.field}_{mode}') is not None]
            setattr(self, mode, statistics.median(values) if values else None)


def pair(size, pairs, *more):
    return ('pair', '--size', size, '--pairs', str(pairs), *more)


def all_rows(quick, software):
    many, few = (320, 32) if quick else (200000, 3200)
    # The software driver's own book-keeping does not take a million.
    live = 2000 if quick else 20000 if software else 1000000
    threads = '4' if quick else '16'
    behind = ('behind', '--ms', '20' if quick else '500')
    ipc = ('ipc', '--blocks', '10', '--rounds', '5') if quick else ('ipc',)
    # The software driver copies with the processor.
    bandwidth = ('bandwidth', *(('--size', '16M', '--rounds', '3') if quick or software else ()))
    rows = [
        Row('pair_64k', 'alloc + free, 64 KiB', pair('64K', many), 'ns_per_pair', 'ns'),
        Row('pair_64k_async', '64 KiB, stream-ordered', pair('64K', many, '--async'),
            'ns_per_pair', 'ns'),
        Row('pair_256m', 'alloc + free, 256 MiB', pair('256M', few), 'ns_per_pair', 'ns'),
        Row('pair_64k_threads', f'64 KiB, {threads} threads',
            pair('64K', many // 10, '--warmup', str(many // 20), '--threads', threads),
            'pairs_per_second',
            'pairs/s', more_is_better=True),
        Row('pair_4k_live_1000', '4 KiB beside 1,000 live', pair('4K', many, '--live', '1000'),
            'ns_per_pair', 'ns', drawn=False),
        Row('pair_4k_live_many', f'4 KiB beside {live:,} live',
            pair('4K', many, '--live', str(live)), 'ns_per_pair', 'ns'),
        Row('free_behind', 'free behind a busy GPU', behind, 'free_us', 'us'),
        Row('alloc_behind', 'allocation behind a busy GPU', behind, 'alloc_us', 'us', drawn=False),
    ]
    for trace in RECORDED[-1:] if quick else RECORDED + MADE:
        made = trace in MADE
        path = str(BUILD / 'tests' / 'bench' / f'{trace}.trace' if made
                   else HERE / 'traces' / f'{trace}.trace.xz')
        title = f'{"made" if made else "PyTorch"} {trace}'
        replay = ('replay', path) + (('--loops', '1') if quick else ())
        rows += [
            Row(f'replay_{trace}', f'{title}, a call', replay, 'ns_per_call', 'ns',
                drawn=not made),
            Row(f'replay_{trace}_memory', f'{title}, memory held / live', replay, 'ratio', '',
                drawn=False),
            Row(f'replay_{trace}_async', f'{title}, stream-ordered, a call', (*replay, '--async'),
                'ns_per_call', 'ns', drawn=False),
            Row(f'replay_{trace}_async_memory', f'{title}, stream-ordered, memory held / live',
                (*replay, '--async'), 'ratio', '', drawn=False),
            Row(f'replay_{trace}_tight', f'{title} in 1.02 of its peak: failed',
                ('replay', path, '--limit', '1.02x', '--loops', '1'), 'failed', '', drawn=False),
        ]
    rows += [
        Row('ipc_get', 'IPC: get a handle again', ipc, 'get_handle_again_ns', 'ns', drawn=False),
        Row('ipc_open_first', 'IPC: first open', ipc, 'open_first_us', 'us'),
        Row('ipc_reopen', 'IPC: open and close again', ipc, 'reopen_close_us', 'us'),
        Row('ipc_share_each', 'IPC: share 1 of many', ipc, 'share_each_us', 'us', drawn=False),
        Row('ipc_open_each', 'IPC: open 1 of many', ipc, 'open_each_us', 'us', drawn=False),
        *(Row(f'bandwidth_{name}', title, bandwidth, f'{name}_gb_s', 'GB/s', drawn=False,
              more_is_better=True) for name, title in (
                  ('copy', 'copies within the device'), ('kernel', 'a kernel that copies'),
                  ('copy_pieces', 'copies, blocks of 4 MiB'),
                  ('kernel_pieces', 'a kernel, blocks of 4 MiB'),
                  ('to_device', 'copies from the host'), ('to_host', 'copies to the host'))),
        *(OverheadRow(f'foreign_{name}', title, f'{field}_instructions', 'instructions') for name, title, field in (
            ('attribute', 'attribute of memory not ours', 'pointer_attribute'),
            ('range', 'range of memory not ours', 'address_range'),
            ('free', 'free of memory not ours', 'free'),
            ('free_from_pool', 'stream-ordered free of memory not ours', 'free_from_pool'),
            ('copy', 'copy of memory not ours', 'copy'),
            ('copy_rows', 'copy of rows not ours', 'copy_rows'),
            ('fill', 'fill of memory not ours', 'fill'),
            ('launch', 'launch on memory not ours', 'launch'),
            ('dlsym', 'dlsym of a name not ours', 'dlsym'))),
        OverheadRow('first_init', 'first cuInit', 'init_us', 'us'),
        OverheadRow('first_alloc', 'start to first allocation', 'first_alloc_us', 'us'),
        OverheadRow('no_cuda', 'a process without CUDA', 'true_us', 'us'),
        OverheadRow('no_cuda_instructions', 'a process without CUDA', 'true_instructions',
                    'instructions'),
    ]
    if quick:
        for row in rows:
            if row.command[0] == 'overhead':
                row.command = ('overhead', '--runs', '5', '--starts', '3')
    return rows


def run_once(command, mode, software):
    """The program's line as a dictionary; {'error': …} where it failed."""
    program = BUILD / 'tests' / 'bench' / command[0]
    line = ['sh', str(ROOT / 'tests' / 'with.sh'), mode, *(['--software'] if software else []),
            str(program), *command[1:]]
    environment = dict(os.environ, GPUSHIM_BUILD=str(BUILD))
    try:
        run = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT,
                             env=environment, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return {'error': f'did not end within {TIMEOUT} s'}
    if run.returncode != 0:
        said = run.stderr.strip().splitlines()
        return {'error': said[-1] if said else f'ended with {run.returncode}'}
    try:
        return json.loads(run.stdout)
    except ValueError:
        return {'error': f'printed no JSON: {run.stdout[:200]!r}'}


def run_all(rows, repeats, software, budget):
    """What every command printed: {command: {'native': […], 'shim': […]}}. Native and shimmed runs
    follow each other, so that what else the machine does meets both."""
    results = {}
    end = time.monotonic() + budget
    for command in dict.fromkeys(row.command for row in rows):
        results[command] = {'native': [], 'shim': []}
        modes = ('shim',) if command[0] == 'overhead' else ('native', 'shim')
        for _ in range(repeats):
            for mode in modes:
                result = (run_once(command, mode, software) if time.monotonic() < end
                          else {'error': 'left out: the budget is used up'})
                results[command][mode].append(result)
                if 'error' in result:
                    print(f'failed: {mode} {short(command)}: {result["error"]}', file=sys.stderr)
    return results


def short(command):
    return ' '.join(part.rsplit('/', 1)[-1] for part in command)


def machine(software):
    gpu = 'software driver'
    if not software and shutil.which('nvidia-smi'):
        run = subprocess.run(['nvidia-smi', '--query-gpu=name,driver_version',
                              '--format=csv,noheader', '--id=0'],
                             capture_output=True, text=True, check=False, timeout=60)
        if run.returncode == 0 and run.stdout.strip():
            name, version = (part.strip() for part in run.stdout.strip().rsplit(',', 1))
            gpu = f'{name}, driver {version}'
    return {'gpu': gpu, 'system': f'{platform.system()} {platform.release()}',
            'libc': ' '.join(platform.libc_ver()), 'cpus': os.cpu_count()}


# ---- showing ----

def number(value, unit):
    if value is None:
        return '-'
    if unit == 'ns' and value >= 10000:
        value, unit = value / 1000, 'us'
    if unit == 'us' and value >= 10000:
        value, unit = value / 1000, 'ms'
    digits = 0 if value >= 100 or value == int(value) else 1 if value >= 10 else 2
    return f'{value:,.{digits}f} {unit}'.strip()


def times(ratio):
    if ratio is None:
        return ''
    digits = 0 if ratio >= 10 else 1 if ratio >= 1.05 else 2
    return f'{ratio:,.{digits}f}×'


def table(rows):
    cells = [('', 'native', 'shim', 'better')]
    cells += [(row.title, number(row.native, row.unit), number(row.shim, row.unit),
               times(row.ratio)) for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(4)]
    return '\n'.join(f'{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}'
                     for a, b, c, d in cells)


def rows_as_lines(document):
    """As JSON, a line a row."""
    parts = ['[\n  ' + ',\n  '.join(map(json.dumps, part)) + '\n ]' if isinstance(part, list) else json.dumps(part)
             for part in document.values()]
    return '{\n ' + ',\n '.join(f'{json.dumps(name)}: {part}' for name, part in zip(document, parts)) + '\n}\n'


# In the middle between black and white: to be read on either.
TEXT, NATIVE, SHIM = '#768390', '#8b949e', '#2da44e'
LEFT, WIDTH, RIGHT, ROW, BAR = 200, 380, 200, 44, 14


def draw(rows, where):
    """One pair of bars a figure, each pair to its own scale, with the factor at the right."""
    rows = [row for row in rows if row.drawn and row.ratio]
    height = 40 + ROW * len(rows) + 30
    width = LEFT + WIDTH + RIGHT
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           f'width="{width}" height="{height}" font-family="sans-serif" font-size="13" '
           f'fill="{TEXT}" role="img">',
           '<title>An allocation and its free: the native driver and libgpushim</title>',
           f'<rect x="{LEFT}" y="12" width="12" height="12" fill="{NATIVE}"/>',
           f'<text x="{LEFT + 18}" y="23">native driver</text>',
           f'<rect x="{LEFT + 120}" y="12" width="12" height="12" fill="{SHIM}"/>',
           f'<text x="{LEFT + 138}" y="23">under libgpushim</text>']
    for index, row in enumerate(rows):
        top = 40 + ROW * index
        out.append(f'<text x="{LEFT - 10}" y="{top + 20}" text-anchor="end">'
                   f'{escape(row.title)}</text>')
        largest = max(row.native, row.shim)
        for line, (value, colour) in enumerate(((row.native, NATIVE), (row.shim, SHIM))):
            y = top + line * (BAR + 2)
            length = max(2, WIDTH * value / largest)
            out.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" '
                       f'fill="{colour}"/>')
            out.append(f'<text x="{LEFT + length + 6:.1f}" y="{y + 11}" font-size="11">'
                       f'{escape(number(value, row.unit))}</text>')
        out.append(f'<text x="{width - 10}" y="{top + 21}" text-anchor="end" font-size="16" '
                   f'font-weight="bold" fill="{SHIM if row.ratio >= 1 else TEXT}">'
                   f'{times(row.ratio)}</text>')
    out.append(f'<text x="{LEFT}" y="{height - 12}" font-size="11">{escape(where)}; shorter is '
               'better, but for pairs/s; × is how many times better</text>')
    out.append('</svg>')
    return '\n'.join(out) + '\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', type=pathlib.Path)
    parser.add_argument('--svg', type=pathlib.Path)
    parser.add_argument('--software', action='store_true')
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--repeats', type=int, default=3)
    parser.add_argument('--budget', type=float, default=float('inf'), metavar='SECONDS')
    parser.add_argument('--only', nargs='+', metavar='NAME', help='rows whose name begins so')
    options = parser.parse_args()
    rows = all_rows(options.quick, options.software)
    if options.only:
        rows = [row for row in rows if row.name.startswith(tuple(options.only))]
    if not rows or options.repeats < 1:
        parser.error('nothing to run')

    results = run_all(rows, options.repeats, options.software, options.budget)
    for row in rows:
        row.fill(results[row.command])
    where = machine(options.software)
    printed = [r for modes in results.values() for runs in modes.values() for r in runs]
    if any(r.get('driver') == 'software' for r in printed):
        where['gpu'] = 'software driver'
    print(table(rows))
    if options.out:
        document = {
            'machine': where,
            'when': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
            'figures': [{'name': row.name, 'title': row.title, 'unit': row.unit,
                         'native': row.native, 'shim': row.shim, 'ratio': row.ratio,
                         'more_is_better': row.more_is_better} for row in rows],
            'runs': [{'command': short(command), **modes} for command, modes in results.items()],
        }
        options.out.write_text(rows_as_lines(document))
    if options.svg:
        options.svg.write_text(draw(rows, where['gpu']))
    sys.exit(1 if any('error' in r for r in printed) else 0)


if __name__ == '__main__':
    main()
