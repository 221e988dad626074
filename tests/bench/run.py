"""Runs the measuring programs natively and with the library, in turns, and prints a table.

usage: run.py [--software] [--quick] [--repeats N] [--budget SECONDS] [--out FILE] [PROGRAM…]

PROGRAM is pair, ipc or overhead, all of them by default; latency is against.py's. --software takes the software
driver, as does a machine without a GPU. --quick proves only that the programs work. A figure is the median of the
repeats; what there is no time for within --budget is left out. --out gets the table too. Exit status 1 where a
program failed.
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = pathlib.Path(os.environ.get('GPUSHIM_BUILD', ROOT / 'build')).resolve()
TIMEOUT = 180
MODES = ('native', 'shim')


def all_rows(quick, software):
    """(title, command, field, unit) of each figure. Rows with the same command share its runs."""
    many, few = (320, 32) if quick else (200000, 3200)
    # The software driver's own book-keeping does not take a million.
    live = 2000 if quick else 20000 if software else 1000000
    threads = 4 if quick else 16
    pair = lambda size, pairs, *more: ('pair', '--size', size, '--pairs', str(pairs), *more)
    ipc = ('ipc', '--blocks', '10', '--rounds', '5', '--pieces', '3') if quick else ('ipc',)
    overhead = ('overhead', '--runs', '5', '--starts', '3') if quick else ('overhead', '--whole')
    shared = [(f'{title}, {when}', (*ipc, *flags), field, 'us') for when, flags in (
        ('at once', ('--warm',)), ('300 ms later', ('--warm', '--pause', '300'))) for title, field in (
        ('IPC: first open', 'open_first_us'), ('IPC: share 1 of many', 'share_each_us'),
        ('IPC: open 1 of many', 'open_each_us'), ('IPC: close 1 of many', 'close_each_us'))]
    return [
        ('alloc + free, 64 KiB', pair('64K', many), 'ns_per_pair', 'ns'),
        ('64 KiB, stream-ordered', pair('64K', many, '--async'), 'ns_per_pair', 'ns'),
        ('alloc + free, 256 MiB', pair('256M', few), 'ns_per_pair', 'ns'),
        ('256 MiB, stream-ordered', pair('256M', few, '--async'), 'ns_per_pair', 'ns'),
        (f'1 MiB, {threads} threads', pair('1M', few, '--warmup', str(few), '--threads', str(threads)),
         'ns_per_pair_mean', 'ns'),
        (f'64 KiB, {threads} threads', pair('64K', many // 10, '--warmup', str(many // 20), '--threads', str(threads)),
         'pairs_per_second', 'pairs/s'),
        (f'4 KiB beside {live:,} live', pair('4K', many, '--live', str(live)), 'ns_per_pair', 'ns'),
        ('IPC: get a handle again', ipc, 'get_handle_again_ns', 'ns'),
        ('IPC: open and close again', ipc, 'reopen_close_us', 'us'),
        ('IPC: first open, each piece beyond the first', ipc, 'open_piece_us', 'us'),
        *shared,
        *((f'{name.replace("_", " ")} of what is not ours', overhead, f'{name}_instructions', 'instructions')
          for name in (
            'pointer_attribute', 'address_range', 'free', 'free_from_pool', 'copy', 'copy_rows', 'copy_volume',
            'copy_peer', 'fill', 'launch', 'launch_per_thread', 'launch_config', 'launch_attribute', 'launch_graph',
            'dlsym')),
        ('first cuInit', overhead, 'init_us', 'us'),
        ('start to first allocation', overhead, 'first_alloc_us', 'us'),
        ('a process without CUDA', overhead, 'true_us', 'us'),
        ('a process without CUDA', overhead, 'true_instructions', 'instructions'),
    ]


def run_once(command, mode, software):
    """The program's line as a dictionary, or a text: why there is none."""
    line = ['sh', str(ROOT / 'tests' / 'with.sh'), mode, *(['--software'] if software else []),
            str(BUILD / 'tests' / 'bench' / command[0]), *command[1:]]
    try:
        run = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT, check=False,
                             env=dict(os.environ, GPUSHIM_BUILD=str(BUILD)), stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f'did not end within {TIMEOUT} s'
    if run.returncode != 0:
        said = run.stderr.strip().splitlines()
        return said[-1] if said else f'ended with {run.returncode}'
    return json.loads(run.stdout)


def run_all(commands, repeats, software, budget):
    """{command: {mode: what its runs printed}}, and whether all worked. Native and shimmed runs follow each
    other, so that what else the machine does meets both. overhead runs both ways by itself."""
    results, worked, end = {}, True, time.monotonic() + budget
    for command in commands:
        results[command] = {mode: [] for mode in MODES}
        for _ in range(repeats):
            for mode in MODES[command[0] == 'overhead':]:
                said = run_once(command, mode, software) if time.monotonic() < end else 'left out: no time was left'
                if isinstance(said, str):
                    worked = False
                    print(f'failed: {mode} {" ".join(command)}: {said}', file=sys.stderr)
                else:
                    results[command][mode].append(said)
    return results, worked


def figure(runs, mode, field):
    """The middle one, or None."""
    if any(f'{field}_{mode}' in run for run in runs['shim']):
        runs, field = runs['shim'], f'{field}_{mode}'
    else:
        runs = runs[mode]
    values = [run[field] for run in runs if run.get(field) is not None]
    return statistics.median(values) if values else None


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


def number(value, unit):
    if value is None:
        return '-'
    if unit == 'ns' and value >= 10000:
        value, unit = value / 1000, 'us'
    if unit == 'us' and value >= 10000:
        value, unit = value / 1000, 'ms'
    digits = 0 if value >= 100 or value == int(value) else 1 if value >= 10 else 2
    return f'{value:,.{digits}f} {unit}'.strip()


def table(rows, results):
    lines = [('', *MODES)]
    lines += [(title, *(number(figure(results[command], mode, field), unit) for mode in MODES))
              for title, command, field, unit in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(MODES) + 1)]
    return '\n'.join(f'{title:<{widths[0]}}  {native:>{widths[1]}}  {shim:>{widths[2]}}' for title, native,
                     shim in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', type=pathlib.Path)
    parser.add_argument('--software', action='store_true')
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--repeats', type=int, default=3)
    parser.add_argument('--budget', type=float, default=float('inf'), metavar='SECONDS')
    parser.add_argument('program', nargs='*', default=['pair', 'ipc', 'overhead'])
    options = parser.parse_args()
    rows = [row for row in all_rows(options.quick, options.software) if row[1][0] in options.program]
    if not rows or options.repeats < 1:
        parser.error('nothing to run')
    results, worked = run_all(dict.fromkeys(command for _, command, _, _ in rows), options.repeats,
                              options.software, options.budget)
    where = machine(options.software)
    text = f'{where["gpu"]}, {where["cpus"]} CPUs, {where["libc"]}\n{table(rows, results)}\n'
    print(text, end='')
    if options.out:
        options.out.write_text(text, encoding='utf-8')
    sys.exit(0 if worked else 1)


if __name__ == '__main__':
    main()
