"""A measuring program works on the software driver: its line is JSON with what it promises, and
what does not depend on time is right. No time decides anything.

usage: smoke.py CASE     (the build folder is GPUSHIM_BUILD; GPUSHIM_AS_SHIPPED is 1 if the library
                          in it is optimised and has no instrumentation)
"""
import concurrent.futures
import json
import lzma
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from against import TRACES

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ['GPUSHIM_BUILD'])
MIB = 1 << 20
PATIENT_S = 200  # the machine may be busy

PIECE = 2 * MIB

# 1 MiB and 3 MiB live at once with 512 bytes: 2 + 4 + 2 MiB of a device. The last two stay.
TRACE = f'''a {MIB} 7f0000000000
a 512 7f0000100000
a {3 * MIB} 7f0000200000
f 0 7f0000000000
a 1000 7f0000000000
f 0 7f0000100000
'''


def trace(name):
    return HERE / 'traces' / f'{name}.trace.xz'


def check(condition, what):
    if not condition:
        sys.exit(f'failed: {what}')


def run(mode, name, *arguments):
    return subprocess.run(['sh', str(HERE.parent / 'with.sh'), mode, '--software',
                           str(BUILD / 'tests' / 'bench' / name), *map(str, arguments)],
                          capture_output=True, text=True, timeout=PATIENT_S,
                          stdin=subprocess.DEVNULL)


def measure(mode, name, *arguments):
    """The one line of a run that must work."""
    done = run(mode, name, *arguments)
    print(done.stdout, done.stderr, sep='', end='')
    check(done.returncode == 0, f'{name} ended with {done.returncode}')
    check(done.stdout.count('\n') == 1, 'one line is printed')
    line = json.loads(done.stdout)
    check(line['bench'] == name and line['driver'] == 'software', 'the line names its program')
    check(line['shim'] == (mode == 'shim'), 'the line says whether the shim is there')
    return line


def refused(status, said, name, *arguments):
    done = run('native', name, *arguments)
    check(done.returncode == status, f'{name} {arguments} ended with {done.returncode}')
    check(done.stdout == '' and said in done.stderr, f'{name} {arguments} said: {done.stderr}')


def positive(line, *keys):
    for key in keys:
        value = line[key]
        check(isinstance(value, (int, float)) and math.isfinite(value) and value > 0,
              f'{key} is {value}')


def pair():
    for more in ((), ('--async',), ('--threads', 3, '--live', 20), ('--size', '256M')):
        line = measure('native', 'pair', '--pairs', 64, '--warmup', 1, *more)
        positive(line, 'ns_per_pair', 'ns_per_pair_mean', 'pairs_per_second')
        check(line['calls'] == 2 * 64 * line['threads'], 'calls')
        check(line['async'] == ('--async' in more), 'async')
    check(line['size'] == 256 * MIB, 'a size with a suffix')
    refused(1, 'usage: pair', 'pair', '--pairs', '0')
    refused(2, 'usage: pair', 'pair', '--size', '99999999999G')
    refused(1, 'CUDA_ERROR_INVALID_VALUE', 'pair', '--size', '0')


# About what a driver on a GPU takes for them, in us; a sleep is 50 us longer, and all other calls are one.
SLOWLY = 'cuMemCreate:delay:60,cuMemSetAccess:delay:40,cuMemUnmap:delay:50,cuMemRelease:delay:100,*:delay:1'


def tight():
    """What the driver has memory for, the shim has as well: in 1.02 of what a program needs at its
    peak, also when the GPU runs behind and what is freed comes back late."""
    needs = {name: measure('native', 'latency', trace(name), '--rounds', 1, '--kernel', 0)['needs'] for name in TRACES}

    def passes(name, *more):
        """Who gets no memory ends."""
        os.environ['SOFTCUDA_MEMORY'] = str(math.ceil(1.02 * needs[name] / PIECE) * PIECE)
        measure('shim', 'latency', trace(name), *more)

    for name in TRACES:
        passes(name, '--rounds', 4, '--kernel', 0)
        passes(name, '--rounds', 1, '--kernel', 0, '--async')
    passes('resnet', '--rounds', 4, '--kernel', 50)
    passes('gnn', '--rounds', 4, '--kernel', 200)
    # Making pieces costs it time.
    os.environ['SOFTCUDA_FAULTS'] = SLOWLY
    passes('gnn', '--rounds', 4, '--kernel', 0)


# Of what is live at most, what is held, and so many pieces are made; and what is held where all is stream-ordered. What
# they held natively: 1.04, 1.06 and 1.01. A little more than they have: the trimmer's thread runs when it gets the CPU.
HELD = {'gpt': (1.02, 60, 1.02), 'resnet': (1.03, 60, 1.07), 'gnn': (1.09, 25, 1.08)}
BEHIND = 0.02  # where that thread gave some back meanwhile, whose like was needed once more


def held():
    """By a clock that only a look at it moves: nearly the same on each machine."""
    os.environ['LD_PRELOAD'] = os.environ['STILL_CLOCK']
    for name, (most, pieces, most_async) in HELD.items():
        for bound, more in (most, ()), (most_async, ('--async',)):
            line = measure('shim', 'latency', trace(name), '--rounds', 1, '--kernel', 0, *more)
            check(line['clock_ns'] == 1000, 'the clock is that one')
            bound += BEHIND * (line['library']['in_background'] > 0)
            check(line['ratio'] <= bound, f'{name} {more}: {line["ratio"]} of what is live is held')
            check(0 < line['library']['pieces_made'] <= pieces, f'{name} {more}: pieces are made')


def idle():
    """What a program holds for nothing goes back when it is idle, but for 64 MiB, and what lies in one
    piece with what is live."""
    os.environ['GPUSHIM_POOL_DECAY'] = '100ms'

    def held_idle(name):
        line = measure('shim', 'latency', trace(name), '--rounds', 1, '--idle', 60000)
        check(line['reserved_idle'] >= line['live_end'], 'what is live is held')
        check(line['reserved_idle'] <= line['idle_most'], f'{name}: what is held for nothing goes back')

    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(held_idle, TRACES))


def ipc():
    line = measure('native', 'ipc', '--blocks', 10, '--rounds', 3)
    positive(line, 'get_handle_first_us', 'get_handle_again_ns', 'open_first_us', 'close_first_us',
             'reopen_close_us', 'share_each_us', 'open_each_us', 'close_each_us')
    positive(measure('shim', 'ipc', '--blocks', 10, '--rounds', 3, '--pieces', 64), 'open_strip_us')
    refused(1, 'usage: ipc', 'ipc', '--blocks', 0)


# Hooked calls that are not about our memory, and how many instructions more each may take, three of them for the
# gate that a process asleep closes.
# In a free the software driver closes a gap in its own table, which has one entry more under the library: that takes
# up to 32 instructions more, by the memmove of this CPU.
OVERHEADS = dict.fromkeys(('pointer_attribute', 'pointer_attributes', 'address_range', 'free',
                           'free_from_pool', 'copy', 'copy_from_host', 'copy_rows', 'copy_volume',
                           'copy_peer', 'copy_peer_volume', 'fill', 'fill_rows', 'launch',
                           'launch_per_thread', 'launch_config', 'launch_attribute',
                           'launch_graph'), 63) | {'dlsym': 40, 'dlsym_known': 410, 'free': 63 + 32}


# Instructions of a warm allocation and its free, with the software driver's: as measured with gcc 12 at -O2 and a
# twentieth more. A compiler that guards stacks unasked, as Ubuntu's does, may take a sixth more.
PAIRS = {'pair_64k': 640, 'pair_64k_ordered': 770, 'pair_256m': 645, 'pair_1m': 645, 'pair_64k_several': 790,
         'pair_256m_several': 1640}


def guards_stacks():
    return '__SSP_' in subprocess.run(['cc', '-dM', '-E', '-x', 'c', '/dev/null'], capture_output=True, text=True,
                                      check=True).stdout


def overhead():
    line = measure('shim', 'overhead', '--runs', 3, '--starts', 3)
    for way in ('native', 'shim'):
        positive(line, f'init_us_{way}', f'first_alloc_us_{way}', f'true_us_{way}')
        for name in OVERHEADS:
            steps = line[f'{name}_instructions_{way}']
            check(steps is None or steps > 20, f'{name}: {steps} instructions')
    as_shipped = os.environ['GPUSHIM_AS_SHIPPED'] == '1'
    for name, budget in OVERHEADS.items():
        more = line[f'{name}_instructions_more']
        check(more is None or not as_shipped or more <= budget,
              f'{name} on what is not ours: {more} instructions more, budget {budget}')
    guarded = 7 / 6 if guards_stacks() else 1
    for name, budget in PAIRS.items():
        steps = line[f'{name}_instructions']
        check(steps is None or not as_shipped or 100 < steps <= budget * guarded,
              f'{name}: {steps} instructions, budget {budget}; make it cheaper, or say why the budget is to grow')
    whole = measure('native', 'overhead', '--runs', 1, '--starts', 1, '--whole')
    for name in ('start', 'true'):
        steps = whole[f'{name}_instructions_native']
        check(steps is None or steps > 5000, f'{name}: {steps} instructions')
    refused(1, 'usage: overhead', 'overhead', '--runs', 0)


MIXES = ('mixed', 'server', 'training', 'threads')


def counts_agree(line, calls):
    """What the histograms and the sums say fits together."""
    check(line['calls'] == calls == line['all']['calls'], f'{line["calls"]} of {calls} calls')
    check(line['alloc']['calls'] + line['free']['calls'] == calls, 'both kinds are all calls')
    check(line['first']['calls'] > 0, 'the first calls are told by themselves')
    for kind in ('alloc', 'free', 'all', 'first'):
        figures = line[kind]
        check(figures['calls'] > 0, f'calls of kind {kind}')
        check(sum(count for _, count in figures['histogram']) == figures['calls'],
              f'the histogram of {kind} has all calls')
        rising = [figures[f'{name}_ns'] for name in ('p50', 'p90', 'p99', 'p99.9', 'p99.99', 'max')]
        check(rising == sorted(rising), f'{rising} rise')


def traces():
    """A trace is a mix too, as it is and packed; what is none says where it is wrong."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        plain, packed = pathlib.Path(folder, 'small.trace'), pathlib.Path(folder, 'small.trace.xz')
        plain.write_text(TRACE)
        packed.write_bytes(lzma.compress(TRACE.encode()))
        for file, more, rounds in ((plain, (), 2), (packed, (), 2), (packed, ('--async',), 2),
                                   (plain, ('--rounds', 1, '--idle', 5), 1)):
            line = measure('native', 'latency', file, *more)
            check(line['calls'] == rounds * 2 * 4, 'it is played so often, and what is left is freed')
            check(line['live_peak'] == 4 * MIB + 512, 'a trace has its peak')
            check(line['needs'] == 8 * MIB, 'what a device needs for it')
            check(line['live_end'] == 3 * MIB + 1000, 'what is never freed')
        damaged = bytearray(packed.read_bytes())
        damaged[len(damaged) // 2] ^= 0xff
        packed.write_bytes(damaged)
        refused(1, 'damaged', 'latency', packed)
        for text, said in ('a 1\n', 'line 1'), ('f 0 7f\n', 'not live'):
            plain.write_text(text)
            refused(1, said, 'latency', plain)


def latency():
    calls = 3000
    for mix in MIXES:
        for more in ((), ('--async',)):
            lines = [measure(mode, 'latency', mix, '--calls', calls, *more)
                     for mode in ('native', 'shim')]
            for line in lines:
                counts_agree(line, calls)
                positive(line, 'live_peak', 'reserved_peak', 'ratio', 'seconds')
                check(line['mix'] == mix and line['async'] == bool(more), 'its mix')
                check(line['threads'] == (16 if mix == 'threads' else 1), 'its threads')
                if mix != 'threads':
                    check(line['ratio'] >= 1, 'what is live is held')
            check('library' in lines[1] and 'library' not in lines[0], "the library's own figures")
            check(lines[0]['bytes'] == lines[1]['bytes'], 'both allocate the same')
            if mix != 'threads':  # one's peak may be at the other's low
                check(lines[0]['live_peak'] == lines[1]['live_peak'], 'both have the same live')
    short = measure('native', 'latency', 'mixed', '--calls', '1G', '--milliseconds', 50)
    check(0 < short['calls'] < 1 << 30, 'a run may end by time')
    traces()
    refused(1, 'usage: latency', 'latency', 'threads', '--calls', 15)


def against():
    """Each allocator's own functions are called; against.py has a row for each, and says what is missing."""
    stand_in = BUILD / 'tests' / 'bench' / 'libother_stand_in.so'
    for name in (f'torch:{stand_in}', f'pool:{stand_in}'):
        done = run('native', 'latency', 'server', '--calls', 2000, '--with', name)
        check(done.returncode == 0, f'{name}: {done.stderr}')
        line = json.loads(done.stdout)
        counts_agree(line, 2000)
        given, taken = (int(n) for n in re.search(r'(\d+) given, (\d+) taken', done.stderr).groups())
        check(line['with'] == name and given == taken >= line['alloc']['calls'] > 0, f'{given} given, {taken} taken')
    line = measure('native', 'latency', 'mixed', '--calls', 2000, '--with', 'mempool')
    check(line['ratio'] > 1, 'what the pool reserves is seen')
    for bad, said in (('none', 'no other allocator none'), ('async:/none.so', '/none.so'),
                      (f'async:{stand_in}', 'of kind async'),
                      (f'torch:{BUILD}/tests/driver/libcuda.so.1', 'PyTorch 2.8')):
        refused(1, said, 'latency', 'mixed', '--with', bad)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        out = pathlib.Path(name)
        command = [sys.executable, str(HERE / 'against.py'), '--software', '--mix', 'mixed', '--trace', 'gpt',
                   '--seconds',
                   '0.05', '--out', str(out)]

        def against_says(status, *more):
            done = subprocess.run([*command, *map(str, more)], capture_output=True, text=True, timeout=PATIENT_S,
                                  check=False)
            print(done.stdout, done.stderr, sep='', end='')
            check(done.returncode == status, f'against.py ended with {done.returncode}')
            check((out / 'against.txt').read_text() == done.stdout, 'the text')
            return done.stdout, json.loads((out / 'against.json').read_text())

        text, said = against_says(1, '--turns', '2', '--torch', stand_in, '--rmm', stand_in)
        for case in ('mixed', 'gpt'):
            ways = said['results'][case]
            check(list(ways) == ['native', 'library', 'library async', 'mempool', 'torch', 'rmm pool', 'rmm arena',
                                 'rmm async'], f'its ways: {list(ways)}')
            for way, figures in ways.items():
                if way in ('rmm arena', 'rmm async'):  # the stand-in has none
                    check('of kind' in figures and figures in text, f'{way}: {figures}')
                else:
                    positive(figures, 'mean', 'p50', 'p99.9', 'max', 'reserved', 'calls', 'first mean', 'first max')
                    check(('pieces' in figures) == way.startswith('library'), "the library's own figures")
        text, said = against_says(0, '--turns', '1', '--rmm', out / 'none.so', '--way', 'mempool', '--way', 'library',
                                  '--way', 'rmm pool')
        check(list(said['missing']) == ['rmm pool'] and 'rmm pool: not measured' in text, 'what is missing')
        text, said = against_says(1, '--budget', '0.01', '--way', 'library')
        check(said['results']['gpt']['library'].startswith('left out'), 'what there is no time for')


def everything():
    """run.py has a row for each figure, and says what failed."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        out = pathlib.Path(folder, 'table.txt')
        command = [sys.executable, str(HERE / 'run.py'), '--quick', '--software', '--repeats', '1', '--out', str(out)]
        done = subprocess.run([*command, 'pair', 'ipc'], capture_output=True, text=True, timeout=PATIENT_S, check=False)
        print(done.stdout, done.stderr, sep='', end='')
        check(done.returncode == 0, f'run.py ended with {done.returncode}')
        check(out.read_text() == done.stdout, 'the text')
        rows = [re.split('  +', line) for line in done.stdout.splitlines()[2:]]
        # Natively memory of several pieces has no handle.
        check(len(rows) == 18 and all(len(row) == 3 and ('-' in row) == ('each piece' in row[0]) for row in rows),
              f'figures: {rows}')
        late = subprocess.run([*command, '--budget', '0', 'pair'], capture_output=True, text=True, timeout=PATIENT_S,
                              check=False)
        check(late.returncode == 1 and 'left out' in late.stderr, 'what there is no time for')


globals()[sys.argv[1]]()
