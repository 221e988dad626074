"""gpushim report: what it says of traces, good ones and damaged ones, and what it turns them into.

usage: report.py GPUSHIM
"""
import ctypes
import json
import os
import pickle
import random
import re
import resource
import sys
import tempfile

import alone
import elf_file
import trace_file as t
from alone import check, end_with_faults, faults, run

GPUSHIM = os.path.realpath(sys.argv[1])
BASE, MIB = 0x7f0000000000, 1 << 20
DAMAGES = 400


def report(*arguments, **options):
    return run([GPUSHIM, 'report', *arguments], **options)


def expect(arguments, status, out='', err=''):
    return alone.expect(report(*arguments), status, out, err).stdout


def rows_of(path, *more, err=''):
    out = expect([path, '--json', *more], 0, '.*', err)
    try:
        return json.loads(out)
    except ValueError:
        faults.append(f'{path}: {out!r} is no JSON')
        return {'devices': [{}], 'slowest': []}


def compare(what, rows, **expected):
    for name, value in expected.items():
        check(rows.get(name) == value, f'{what}: {name} is {rows.get(name)}, not {value}')


def sample(path):
    """One thread; pieces of 8 MiB, blocks in them and across them, one that is the driver's own, one refused."""
    truth, chance = t.Truth(), random.Random(17)
    for piece in range(4):
        truth.add(t.call, t.PIECE_MADE, BASE + piece * 8 * MIB, 8 * MIB, took=30000)
    for step in range(500):
        address = BASE + MIB // 2 + chance.randrange(31) * MIB
        if address in truth.live:
            truth.free(address, op=chance.choice([t.FREE, t.FREE_ASYNC]), stream=step % 3)
        else:
            truth.alloc(address, MIB - 512 * (step % 5), op=chance.choice([t.ALLOC, t.ALLOC_ASYNC]),
                        stream=step % 3)
    truth.alloc(0x500000000000, 3 * MIB, outcome=t.DRIVER, took=7_000_000)
    truth.add(t.call, t.ALLOC, 0, (1 << 64) - 1, outcome=t.REFUSED, result=t.OUT_OF_MEMORY)
    truth.add(t.figures, truth.now, 5 * MIB, 3 * MIB, MIB)
    blocks = [truth.events[i:i + 100] for i in range(0, len(truth.events), 100)]
    t.write(path, t.header(), t.devices((0, 80 << 30, b'Some GPU')),
            *[t.block(t.EVENTS, b''.join(events), waited=1000) for events in blocks], t.block(t.END))
    return truth


# ---- What it says --------------------------------------------------------------------------------

def tells(folder):
    path = f'{folder}/sample'
    truth = sample(path)
    rows = rows_of(path)
    compare('a trace', rows, program='trainer', pid=4711, events=len(truth.events), threads=1, ended=True,
            cut=False, missing=None, allocations=truth.allocations, frees=truth.frees, refused=1,
            unknown_frees=0, gone_with_their_context=0, waited_for_file_ns=1000 * 6, began_ns=t.BEGAN)
    device = rows['devices'][0]
    compare('its GPU', device, device=0, name='Some GPU', bytes=80 << 30, live_peak_bytes=truth.peak,
            reserved_peak_bytes=32 * MIB, cached_peak_bytes=5 * MIB, retired_peak_bytes=3 * MIB,
            limbo_peak_bytes=MIB, never_freed=len(truth.live), never_freed_bytes=sum(truth.live.values()),
            uuid=bytes(range(16)).hex())
    held = device.get('holders_at_peak', [])
    check(sum(holder['bytes'] for holder in held) == truth.peak and all(holder['by_size'] for holder in held),
          f'who holds the peak: {held}')
    check([holder['bytes'] for holder in held] == sorted((holder['bytes'] for holder in held), reverse=True),
          f'not the largest first: {held}')
    check(rows['slowest'][0] == {'call': 'cuMemAlloc', 'took_ns': 7_000_000, 'bytes': 3 * MIB, 'device': 0,
                                 'time_ns': rows['slowest'][0]['time_ns'], 'thread': 4711,
                                 'outcome': "the driver's"} and len(rows['slowest']) == 10,
          f'the slowest: {rows["slowest"]}')
    expect([path], 0, rf'program +trainer, pid 4711, .*calls +{truth.allocations} allocations, {truth.frees} frees'
                      rf'.*failed +1 allocations, 0 frees\n.*GPU 0, Some GPU, 80.0 GiB\npeaks .*reserved 32.0 MiB'
                      rf'.*held at the peak.*never freed: {len(truth.live)} blocks.*slowest calls:\n +7 ms  cuMemAlloc'
                      r' of 3.0 MiB, the driver.s.*')


def differs(folder):
    """Two recordings: their peaks and who held them, whatever else was there."""
    def recorded(name, sizes, freed=0, device=0):
        calls = [t.call(1000 * (i + 1), t.ALLOC, BASE + 8 * MIB * i, size, device=device) for i,
                 size in enumerate(sizes)]
        calls += [t.call(100000 + i, t.FREE, BASE + 8 * MIB * i, device=device) for i in range(freed)]
        return t.write(f'{folder}/{name}', t.header(), t.block(t.EVENTS, b''.join(calls)), t.block(t.END))
    now = recorded('now', [MIB, MIB, MIB, 2 * MIB, 3 * MIB], freed=2)
    before = recorded('before', [MIB, 4 * MIB, 3 * MIB])
    elsewhere = recorded('elsewhere', [MIB], device=3)
    rows = rows_of(now, '--against', before)
    compare('against', rows, allocations=5, allocations_before=3)
    device, = rows['devices']
    compare('against, the GPU', device, device=0, live_peak_bytes=8 * MIB, live_peak_bytes_before=8 * MIB,
            never_freed_bytes=6 * MIB, never_freed_bytes_before=8 * MIB)
    changes = [(one['bytes'] // MIB, one['bytes_before'] // MIB) for one in device['holders_at_peak']]
    check(changes[0] == (0, 4) and sorted(changes[1:]) == [(2, 0), (3, 1)], f'the largest change first: {changes}')
    expect([now, '--against', before], 0, r'trainer, pid 4711, against trainer, .*calls +5 allocations, 3 before; .*'
           r'GPU 0\nlive peak +8.0 MiB, 8.0 MiB before: the same\n.*never freed 6.0 MiB, 8.0 MiB before: -2.0 MiB\n.*'
           r'  -4.0 MiB +0 bytes, 4.0 MiB before  .*  \+2.0 MiB   .*')
    check(rows_of(now, '--against', now)['devices'][0]['holders_at_peak'] == [], 'none from itself')
    check([one['device'] for one in rows_of(now, '--against', elsewhere)['devices']] == [0, 3], 'GPUs of either')
    expect([now, '--against', f'{folder}/none'], 1, '', '.*none.*')
    many = [512 * (i + 1) for i in range(2100)]
    rows = rows_of(recorded('more', [64 * MIB, *many]), '--against', recorded('many', many))
    check([(one['bytes'], one['bytes_before']) for one in rows['devices'][0]['holders_at_peak']] == [(64 * MIB, 0)],
          'of many holders the one that is new')


# Times in every unit and at its beginning, stacks of as many frames as are shown and of one more, a free that fails and
# an open alone, figures that differ, blocks that were never freed and others at the peak.
IN_FULL = """\
program     trainer, pid 4711, recorded from 2026-09-21T14:13:20Z on for 2.400 s
events      6 of 2 threads; the program waited 0 ns for the file
calls       2 allocations, 1 frees, 2.001 s in them
failed      0 allocations, 1 frees
shared      0 blocks exported, 1 of others opened

GPU 0, Some GPU, 80.0 GiB
peaks       live 9.0 MiB (after 2.000 s), reserved 0 bytes, cached 3.0 MiB, retired 2.0 MiB, limbo 1.0 MiB
held at the peak of live:
       5.0 MiB in      1  0x10
                          0x11
                          0x12
                          0x13
                          0x14
                          0x15
                          0x16
                          0x17
       4.0 MiB in      1  0x20
                          0x21
                          0x22
                          0x23
                          0x24
                          0x25
                          0x26
                          0x27
                          and 1 more (--json)
never freed: 1 blocks, 5.0 MiB
       5.0 MiB in      1  0x10
                          0x11
                          0x12
                          0x13
                          0x14
                          0x15
                          0x16
                          0x17

slowest calls:
   2.000 s  cuMemAlloc of 4.0 MiB, the driver's, GPU 0, thread 11, after 5 us
      1 ms  cuMemFree, GPU 0, thread 12, after 2.200 s
      1 us  cuMemAlloc of 5.0 MiB, new memory, GPU 0, thread 11, after 1 us
    999 ns  cuMemFree, GPU 0, thread 12, after 2.100 s
"""


def text_in_full(folder):
    one = [t.call(1000, t.ALLOC, BASE, 5 * MIB, took=1000, frames=range(0x10, 0x18), outcome=t.NEW),
           t.call(5000, t.ALLOC, BASE + 8 * MIB, 4 * MIB, took=2_000_000_000, frames=range(0x20, 0x29),
                  outcome=t.DRIVER)]
    two = [t.call(2_100_000_000, t.FREE, BASE + 8 * MIB, took=999),
           t.call(2_200_000_000, t.FREE, BASE + 9 * MIB, result=1, took=999_600),
           t.call(2_300_000_000, t.OPENED, 1, MIB),
           t.figures(2_400_000_000, 5 * MIB, 3 * MIB, 2 * MIB, MIB)]
    path = t.write(f'{folder}/full', t.header(stacks=True), t.devices((0, 80 << 30, b'Some GPU')),
                   t.block(t.EVENTS, b''.join(one), 11), t.block(t.EVENTS, b''.join(two), 12), t.block(t.END))
    expect([path], 0, re.escape(IN_FULL))
    # Of 14 sizes at the peak ten are shown, and of 12 at the end.
    events = ([t.call(1000 * i, t.ALLOC, BASE + i * MIB, 4096 * (i + 1), took=10) for i in range(14)] +
              [t.call(100000 + 1000 * i, t.FREE, BASE + i * MIB, took=10) for i in range(2)])
    path = t.write(f'{folder}/many', t.header(), t.block(t.EVENTS, b''.join(events)), t.block(t.END))
    expect([path], 0,
           r'.*\nevents +16 of 1 thread; .*\n  and 4 more\nnever freed: 12 blocks, 408.0 KiB\n.*\n  and 2 more\n.*')
    # A file that is not written is a failure, whatever else is.
    for more in (['--json'], ['--memory-viz', f'{folder}/beside']):
        expect([path, '--html', f'{folder}/none/x', *more], 1, '', '.*cannot be written.*')


def nothing_recorded(folder):
    path = t.write(f'{folder}/nothing', t.header(), t.block(t.END))
    compare('nothing', rows_of(path), events=0, allocations=0, devices=[], slowest=[], duration_ns=0)
    for option in OPTIONS:
        expect([path, option, f'{folder}/nothing{option}'], 0)


def threads(folder):
    """Two threads' events, each in a block: a block given by one is used by the other meanwhile."""
    one = [t.call(1000, t.ALLOC, BASE, MIB, outcome=t.NEW), t.call(5000, t.FREE, BASE, took=4000)]
    # Begins before the free does, and gets the memory when that is under way.
    two = [t.call(4800, t.ALLOC, BASE, 2 * MIB, outcome=t.WAITED, took=3000, device=0),
           t.call(20000, t.ALLOC, BASE + MIB, MIB, device=3)]
    path = t.write(f'{folder}/threads', t.header(), t.block(t.EVENTS, b''.join(two), 12),
                   t.block(t.EVENTS, one[0], 11), t.block(t.EVENTS, t.figures(6000, 0), 12),
                   t.block(t.EVENTS, one[1], 11), t.block(t.END))
    rows = rows_of(path)
    compare('threads', rows, threads=2, allocations=3, frees=1, gone_with_their_context=0, unknown_frees=0)
    check([(row['device'], row['live_peak_bytes'], row['never_freed']) for row in rows['devices']] ==
          [(0, 2 * MIB, 1), (3, MIB, 1)], f'devices: {rows["devices"]}')


def new_memory(folder):
    """An allocation's event comes before that of the piece that was made for it: it began first."""
    events = [t.call(1000, t.ALLOC, BASE + 512, MIB, outcome=t.NEW, took=9000),
              t.call(2000, t.PIECE_MADE, BASE, 2 * MIB, took=5000)]
    path = t.write(f'{folder}/new', t.header(), t.block(t.EVENTS, b''.join(events)), t.block(t.END))
    expect([path, '--memory-viz', f'{folder}/new.pickle'], 0)
    with open(f'{folder}/new.pickle', 'rb') as file:
        snapshot = pickle.load(file)
    check([(one['address'], one['total_size']) for one in snapshot['segments']] == [(BASE, 2 * MIB)] and
          [entry['action'] for entry in snapshot['device_traces'][0]] == ['segment_map', 'alloc'],
          f'new memory: {snapshot}')


def odd_frees(folder):
    events = [t.call(10, t.FREE, BASE), t.call(1000, t.FREE, 0), t.call(2000, t.ALLOC, BASE, MIB),
              t.call(3000, t.ALLOC, BASE, 2 * MIB), t.call(4000, t.FREE, BASE, result=1),
              t.call(5000, t.EXPORTED, BASE), t.call(6000, t.OPENED, 1, MIB)]
    path = t.write(f'{folder}/odd', t.header(), t.block(t.EVENTS, b''.join(events)), t.block(t.END))
    rows = rows_of(path)
    compare('odd frees', rows, frees=2, unknown_frees=1, failed_frees=1, gone_with_their_context=1, exported=1,
            opened=1)
    compare('odd frees', rows['devices'][0], live_peak_bytes=2 * MIB, never_freed=1)


def ties(folder):
    """What took effect at one time did so in the order of the file; the last event counts as any other."""
    events = [t.call(1000, t.ALLOC, BASE, MIB, took=500), t.call(1500, t.FREE, BASE, took=0),
              t.call(1400, t.ALLOC, BASE, 2 * MIB, took=100), t.call(1500, t.FREE, BASE, took=0),
              t.call(2000, t.ALLOC, BASE, 3 * MIB, took=0)]
    path = t.write(f'{folder}/ties', t.header(), t.block(t.EVENTS, b''.join(events)), t.block(t.END))
    rows = rows_of(path)
    compare('ties', rows, frees=2, unknown_frees=0, gone_with_their_context=0)
    compare('ties', rows['devices'][0], live_peak_bytes=3 * MIB, never_freed=1,
            holders_at_end=[{'bytes': 3 * MIB, 'blocks': 1, 'first_ns': 2000, 'last_ns': 2000, 'by_size': True,
                             'stack': [f'blocks of {3 * MIB} bytes']}])


def mapped(function):
    """The lines of what is mapped here, and where in which file a function's address is."""
    with open('/proc/self/maps', encoding='utf-8') as file:
        lines = [line for line in file if ' r-x' in line]
    maps = next(line for line in lines if int(line.split('-')[0], 16) <= function < int(
        line.split()[0].split('-')[1], 16))
    start, offset, path = int(maps.split('-')[0], 16), int(maps.split()[2], 16), maps.split()[5]
    return lines, f'{os.path.basename(path)}+0x{function + 4 - start + offset:x}'


def stacks(folder):
    """Frames become module, place and function; blocks of one stack are one holder."""
    function = ctypes.cast(ctypes.CDLL('libc.so.6').malloc, ctypes.c_void_p).value
    lines, place = mapped(function)
    known, unknown = (function + 4, 0x10), (0x10, 0x20, 0x30)
    events = [t.call(1000 * i, t.ALLOC, BASE + i * MIB, (i + 1) * 4096, frames=known if i % 3 else unknown)
              for i in range(9)]
    trace = t.write(f'{folder}/stacks', t.header(stacks=True), t.block(t.EVENTS, b''.join(events)),
                    t.block(t.MODULES, ''.join(lines).encode()), t.block(t.END))
    held = rows_of(trace)['devices'][0]['holders_at_peak']
    check([(holder['bytes'], holder['blocks'], holder['by_size'], holder['first_ns'], holder['last_ns'])
           for holder in held] ==
          [(4096 * 33, 6, False, 1500, 8500), (4096 * 12, 3, False, 500, 6500)], f'stacks: {held}')
    check(re.fullmatch(rf'\w*malloc \({re.escape(place)}\)', held[0]['stack'][0]) and
          held[0]['stack'][1:] == ['0x10'] and held[1]['stack'] == ['0x10', '0x20', '0x30'], f'frames: {held}')
    expect([trace], 0, rf'.*\d  \w*malloc \({re.escape(place)}\)\n +0x10\n.*')
    # What cannot be a line, and files that are no ELF files, leave places as they are.
    broken = b'\nx\n7f-\nffff-0 r-xp 0 0 0 /x\n0-100 r-xp 0 0:0 1   ' + folder.encode() + b'/stacks\n\xff\xfe'
    trace = t.write(f'{folder}/broken', t.header(stacks=True), t.block(t.MODULES, broken),
                    t.block(t.EVENTS, b''.join(events)))
    held = rows_of(trace, err=".*: the file has no end: .*\n")['devices'][0]['holders_at_peak']
    check(held[1]['stack'] == ['stacks+0x10', 'stacks+0x20', 'stacks+0x30'], f'broken modules: {held}')


def names(folder):
    """Lines of scripts and labels, told before or after who uses them; what was not told, and what is no name."""
    told = (b'1 41 Model.forward\t/srv/train.py\n2 0 the optimizer\t\n65535 7 f\xc3\xa9\t/\x1b[31m.py\n'
            b'x\n\n3\n4 5\n6 7 no tab\n70000 1 f\tg\n-1 1 f\tg\n9 99999999999 f\tg\n10 -1 f\tg\n')
    stacks_ = [[1], [2, 1], [65535], [0], [9], [70000], [1 << 40], [6], [10]]
    events = [t.call(1000 * i, t.ALLOC, BASE + i * MIB, (20 - i) * 4096,
                     frames=[t.NAMED | name for name in frames] + [0x10])
              for i, frames in enumerate(stacks_)]
    trace = t.write(f'{folder}/named', t.header(stacks=True), t.block(t.EVENTS, b''.join(events[:5])),
                    t.block(t.NAMES, told), t.block(t.EVENTS, b''.join(events[5:])), t.block(t.END))
    held = [holder['stack'] for holder in rows_of(trace)['devices'][0]['holders_at_peak']]
    check(held == [['Model.forward (/srv/train.py:41)', '0x10'],
                   ['label the optimizer', 'Model.forward (/srv/train.py:41)', '0x10'],
                   ['f\u00e9 (/\x1b[31m.py:7)', '0x10']] + [['?', '0x10']] * 6, f'names: {held}')
    # Of a script its lines alone are told.
    expect([trace], 0, r'.*\d  Model\.forward \(/srv/train\.py:41\)\n[^\n]*\d  label the optimizer\n'
                       r' +Model\.forward \(/srv/train\.py:41\)\n[^\n]*\d  f\u00e9 \(/\\x1b\[31m\.py:7\)\n[^\n]*\d  '
                       r'\?\n +0x10\n.*')
    expect([trace, '--memory-viz', f'{folder}/named.pickle'], 0)
    with open(f'{folder}/named.pickle', 'rb') as file:
        entry = [entry for entry in pickle.load(file)['device_traces'][0] if entry['action'] == 'alloc'][1]
    check(entry['frames'] == [{'filename': 'label', 'line': 0, 'name': 'the optimizer'},
                              {'filename': '/srv/train.py', 'line': 41, 'name': 'Model.forward'},
                              {'filename': '', 'line': 0, 'name': '+0x10'}], f'memory_viz: {entry}')


def modules(folder):
    """Parts of two files, of which one lies behind its beginning; and one file of many parts with few descriptors."""
    first = t.write(f'{folder}/first', elf_file.library([('_ZSt9terminatev', 0x1000, 16), ('plain', 0x1010, 16)]))
    second = t.write(f'{folder}/second', elf_file.library([('other', 0, 16), ('further', 0x30, 16)]))
    lines = f'10000-11000 r-xp 1000 0:0 1 {first}\n20000-21000 r-xp 0 0:0 1 {second}\n'
    names = names_of(folder, lines, [0x10008, 0x20038, 0x10018, 0x20008])
    check(names == ['_ZSt9terminatev (first+0x1008)', 'further (second+0x38)', 'plain (first+0x1018)',
                    'other (second+0x8)'], f'names in parts of two files: {names}')
    parts = [f'{at:x}-{at + 4096:x} r-xp 1000 0:0 1 {first}\n' for at in range(0x100000, 0x100000 + 10 * 4096, 4096)]
    frames = [0x100008 + 4096 * i for i in range(10)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (12, limits[1]))
    names = names_of(folder, ''.join(parts), frames)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    check(names == ['_ZSt9terminatev (first+0x1008)'] * 10, f'names in one file of many parts: {names}')


def names_of(folder, lines, frames):
    """What the report calls each of these addresses."""
    events = [t.call(1000 + i, t.ALLOC, BASE + i * MIB, MIB, frames=(frame,)) for i, frame in enumerate(frames)]
    trace = t.write(f'{folder}/names', t.header(stacks=True), t.block(t.MODULES, lines.encode()),
                    t.block(t.EVENTS, b''.join(events)), t.block(t.END))
    return [holder['stack'][0] for holder in rows_of(trace)['devices'][0]['holders_at_peak']]


def overlaps(folder):
    """Of modules that were mapped in the same place the last counts, of nested functions the inner."""
    names = names_of(folder, '1000-9000 r-xp 0 0:0 1 /none/outer\n3000-5000 r-xp 0 0:0 1 /none/inner\n'
                     '8000-a000 r-xp 0 0:0 1 /none/last\n',
                     [0x1000, 0x2fff, 0x3000, 0x4fff, 0x5000, 0x8000, 0x9fff, 0xa000, 0xfff])
    check(names == ['outer+0x0', 'outer+0x1fff', 'inner+0x0', 'inner+0x1fff', 'outer+0x4000', 'last+0x0',
                    'last+0x1fff', '0xa000', '0xfff'], f'modules: {names}')
    for kind in elf_file.SYMTAB, elf_file.DYNSYM:
        path = t.write(f'{folder}/library', elf_file.library(
            [('outer', 0, 0x100), ('inner', 0x40, 0x10), ('twin', 0x40, 0x10), ('after', 0x200, 0x10), ('', 0x300, 1)],
            kind))
        names = names_of(folder, f'10000-20000 r-xp 0 0:0 1 {path}\n',
                         [0x10000 + 1 + place for place in (0, 0x3f, 0x40, 0x4f, 0x50, 0xff, 0x100, 0x20f, 0x300)])
        check([name.split(' ')[0] for name in names] ==
              ['outer', 'outer', 'inner', 'inner', 'outer', 'outer', 'library+0x101', 'after', 'library+0x301'],
              f'functions: {names}')


# ---- What is wrong -------------------------------------------------------------------------------

def cut(folder):
    """Cut anywhere, it is read up to there, and that is said."""
    whole = f'{folder}/whole'
    sample(whole)
    with open(whole, 'rb') as file:
        content = file.read()
    first = t.HEADER.size + t.BLOCK.size + t.DEVICE.size
    for size in [*range(first + 1, len(content), 997), len(content) - 1]:
        path = t.write(f'{folder}/cut', content[:size])
        whole_blocks = (size - first) // (t.BLOCK.size + 100 * t.CALL.size)
        events = 507 if size == len(content) - 1 else whole_blocks * 100
        said = f"gpushim: '{re.escape(path)}': the file (ends within a block|has no end): .*\n"
        compare(f'cut at {size}', rows_of(path, err=said), ended=False, events=events)
    path = t.write(f'{folder}/zeros', content[:first + 4824], bytes(5000))
    compare('zeros', rows_of(path, err='.*ends within a block: the process was killed, or the disk was full.*'),
            cut=True, events=100)


def refused(folder):
    good = t.call(1, t.ALLOC, BASE, MIB)
    for content, said in (
            (b'', 'is no trace; gpushim record writes them'), (b'x' * 500, 'is no trace; .*'),
            (t.header()[:50], 'ends within its first 104 bytes: nothing was recorded'),
            (t.header(version=2), 'is of another version, 2; use .*'),
            (t.header(size=90), 'is damaged: it says that its first block is at byte 90; .*'),
            (t.header(size=900), 'is damaged: it says that its first block is at byte 900; .*'),
            (t.header() + b'x' * 24, 'is damaged: the block at byte 104 does not begin as one; .*'),
            (t.header() + t.BLOCK.pack(t.BLOCK_MAGIC, 23, 1, 1, 0), '.* 104 is of a size that cannot be; .*'),
            (t.header() + t.BLOCK.pack(t.BLOCK_MAGIC, 1 << 31, 1, 1, 0), '.* 104 is of a size that cannot be; .*'),
            (t.header() + t.block(t.EVENTS, waited=1 << 63), '.* tells a wait that cannot be; .*'),
            (t.header() + t.block(9), '.* is of no kind that there is; .*'),
            (t.header() + t.block(t.EVENTS, good + b'x'), '.* ends within an event; .*'),
            (t.header() + t.block(t.EVENTS, t.call(1, 1, 1, 1, frames=[1, 2])[:-8]), '.* ends within a call stack; .*'),
            (t.header() + t.block(t.EVENTS, t.call(1, 0, 1, 1)), '.* has an event that cannot be; .*'),
            (t.header() + t.block(t.EVENTS, t.call(1, 99, 1, 1)), '.* has an event that cannot be; .*'),
            (t.header() + t.block(t.EVENTS, t.call(1, 1, 1, 1, outcome=77)), '.* has an event that cannot be; .*'),
            (t.header() + t.block(t.EVENTS, t.call(1 << 63, 1, 1, 1)), '.* has an event that cannot be; .*'),
            (t.header() + t.block(t.EVENTS, t.call(1, 1, 1, 1 << 60)), '.* has an event that cannot be; .*'),
            (t.header() + t.block(t.EVENTS, t.figures(1, 1 << 63)), '.* has an event that cannot be; .*'),
            (t.header() + t.devices((300, 1, b'')), '.* has a GPU that cannot be; .*'),
            (t.header() + t.block(t.NAMES, b'1 2 f\t/x'), '.* ends within a name; .*'),
            (t.header() + t.block(t.DEVICES, b'x' * 95), '.* ends within a GPU; .*')):
        path = t.write(f'{folder}/refused', content)
        expect([path], 1, '', f"gpushim: '{re.escape(path)}' {said}\n")
        expect([path, '--json'], 1, '', f"gpushim: '{re.escape(path)}' {said}\n")
    expect([folder], 1, '', f"gpushim: '{re.escape(folder)}' cannot be read: Is a directory\n")
    expect([folder + '/none'], 1, '', '.* cannot be read: No such file or directory\n')
    expect(['/dev/null'], 1, '', '.* cannot be read: .*\n')


def damage(folder):
    """Bytes changed, cut out and put in, anywhere: it reads what there is or says what is wrong."""
    path, chance = f'{folder}/damaged', random.Random(4)
    whole = t.header() + t.devices((0, 80 << 30, b'Some GPU'))
    frames = t.block(t.EVENTS, b''.join(t.call(i, i % 10 + 1, BASE + i, MIB, i % 4, frames=range(i % 7))
                                        for i in range(40)))
    content = whole + frames * 3 + t.block(t.MODULES, b'0-ffff r-xp 0 0:0 1 /proc/self/exe\n')
    content += t.block(t.NAMES, b'1 2 f\t/x\n2 0 label\t\n')
    content += t.block(t.EVENTS, t.call(900, 1, BASE, MIB, frames=(t.NAMED | 1, t.NAMED | 2)))
    seen = set()
    for number in range(DAMAGES):
        bytes_ = bytearray(content)
        for _ in range(chance.choice([1, 1, 3, 20])):
            at = chance.randrange(len(bytes_)) if chance.random() < .6 else chance.randrange(400)
            size = chance.choice([1, 1, 4, 8, 48])
            way = chance.randrange(4)
            bytes_[at:at + size] = (chance.randbytes(size), b'\xff' * size, b'', bytes_[at:at + size] * 2)[way]
        t.write(path, bytes(bytes_))
        option = [[], ['--json'], ['--html', f'{folder}/d'], ['--memory-viz', f'{folder}/d']][number % 4]
        if os.path.exists(f'{folder}/d'):
            os.remove(f'{folder}/d')
        ran = report(path, *option)
        seen.add(ran.returncode)
        if ran.returncode not in (0, 1) or (ran.returncode == 1 and not ran.stderr.startswith('gpushim: ')):
            faults.append(f'damage {number} {option}: it ended with {ran.returncode}, {ran.stderr!r}')
    check(seen == {0, 1}, f'damaged files ended with {seen} alone')


def no_place(folder):
    path = f'{folder}/sample'
    expect([path, '--html', f'{folder}/none/x'], 1, '',
           '.*/none/x. cannot be written: No such file or directory; make its folder first .*\n')
    expect([path, '--memory-viz', '/dev/null'], 1, '', '.*/dev/null. cannot be written: it is no regular file; .*\n')
    check(not os.path.isfile('/dev/null'), '/dev/null was replaced')


def no_room(folder):
    """What could not be written whole is not left behind."""
    path, place = f'{folder}/sample', f'{folder}/no-room'
    os.mkdir(place)
    for option in OPTIONS:
        ran = report(path, option, f'{place}/out', restore_signals=False,  # so SIGXFSZ stays ignored
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16)))
        check(ran.returncode == 1 and 'cannot be written: File too large' in ran.stderr and not os.listdir(place),
              f'{option} without room: {ran}, left {os.listdir(place)}')


# ---- What it may write over ----------------------------------------------------------------------

OPTIONS = '--html', '--memory-viz'


def bytes_of(path):
    with open(path, 'rb') as file:
        return file.read()


def is_kept(path, option, place, said):
    """What lies at this place stays, and it is said why."""
    before, content = os.lstat(place), bytes_of(place)
    expect([path, option, place], 1, '', f"gpushim: '{re.escape(place)}' cannot be written: {said}\n")
    after = os.lstat(place)
    check((before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns) and bytes_of(place) == content,
          f'{option} {place}: it is another file')


def keeps_what_is_there(folder):
    place = f'{folder}/kept'
    os.mkdir(place)
    path = f'{place}/trace'
    sample(path)
    os.link(path, f'{place}/hard')
    os.symlink(path, f'{place}/soft')
    t.write(f'{place}/other', t.header(), t.block(t.END))
    with open(f'{place}/notes', 'w', encoding='utf-8') as file:
        file.write('<!DOCTYPE html>\n<html lang="en">\n')
    for option in OPTIONS:
        for name in 'trace', 'hard', 'other':
            is_kept(path, option, f'{place}/{name}', 'it is a recording; name another file')
        is_kept(path, option, f'{place}/soft', 'it is a symbolic link; name the file that it leads to')
        is_kept(path, option, f'{place}/notes', 'a file is there that this command did not make; name another, .*')
    check(sorted(os.listdir(place)) == ['hard', 'notes', 'other', 'soft', 'trace'], f'left: {os.listdir(place)}')
    # Its own it replaces, and what is empty; not those of the other options.
    for option in OPTIONS:
        with open(f'{place}/own{option}', 'w', encoding='utf-8'):
            pass
        for _ in range(2):
            expect([path, option, f'{place}/own{option}'], 0)
    is_kept(path, '--html', f'{place}/own--memory-viz', 'a file is there that this command did not make; .*')


def is_as_private(folder):
    path = f'{folder}/private'
    sample(path)
    for mode, wanted in (0o600, 0o600), (0o640, 0o600), (0o644, 0o644):
        os.chmod(path, mode)
        for option in OPTIONS:
            out = f'{folder}/private-{mode:o}{option}'
            expect([path, option, out], 0)
            got = os.stat(out).st_mode & 0o7777
            check(got == wanted, f'{option} of a recording of mode {mode:o} is of mode {got:o}')


# ---- What it turns them into ---------------------------------------------------------------------

def to_memory_viz(path, out, truth):
    """As memory_viz reads it: from the segments at the end backwards, each block in a segment."""
    expect([path, '--memory-viz', out], 0)
    with open(out, 'rb') as file:
        snapshot = pickle.load(file)
    segments = {one['address']: one['total_size'] for one in snapshot['segments']}
    live = {}
    for segment in snapshot['segments']:
        at = segment['address']
        for block in segment['blocks']:
            check(block['address'] == at and block['requested_size'] <= block['size'], f'memory_viz: {block}')
            if block['state'] == 'active_allocated':
                live[at] = block['size']
            at += block['size']
        check(at == segment['address'] + segment['total_size'], f'memory_viz: holes in {segment}')
    check(live == truth.live, f'memory_viz: {len(live)} blocks at the end, not {len(truth.live)}')
    peak = now = sum(live.values())
    for entry in reversed(snapshot['device_traces'][0]):
        action, address, size = entry['action'], entry['addr'], entry['size']
        if action == 'free_completed':
            live[address] = size
            now += size
        elif action == 'alloc':
            check(live.pop(address, None) == size, f'memory_viz: {entry}')
            now -= size
        elif action in ('segment_free', 'segment_unmap'):
            segments[address] = size
        elif action == 'segment_alloc':
            check(segments.pop(address, None) == size, f'memory_viz: {entry}')
        elif action == 'segment_map':  # a part of one
            start, whole = next((each for each in segments.items() if each[0] <= address < sum(each)), (0, 0))
            check(start and address + size <= start + whole, f'memory_viz: {entry}')
            segments.pop(start, None)
            segments |= {at: there for at,
                         there in ((start, address - start), (address + size, start + whole - address - size)) if there}
        else:
            check(action in ('free_requested', 'oom'), f'memory_viz: {entry}')
        if action in ('free_completed', 'alloc') and address in live:
            check(any(start <= address and address + size <= start + whole for start, whole in segments.items()),
                  f'memory_viz: in no segment: {entry}')
        peak = max(peak, now)
    check(peak == truth.peak and not live and not segments and now == 0, f'memory_viz: {peak}, {live}, {segments}')
    check(sum(entry['action'] == 'oom' for entry in snapshot['device_traces'][0]) == 1, 'memory_viz: oom')


HIGH = 1 << 63


def two_gpus(path):
    """Numbers at the bounds of what a pickle's instructions take; two pieces of the second GPU, and one that went."""
    took = {'took': 10}
    return t.write(path, t.header(), t.block(t.EVENTS, b''.join([
        t.call(1000, t.PIECE_MADE, HIGH, 4 << 31, device=1, **took),
        t.call(2000, t.ALLOC, HIGH, 1 << 31, device=1, stream=(1 << 32) - 1, **took),
        t.call(3000, t.ALLOC, HIGH + (1 << 31), 1 << 31, device=1, **took),
        t.call(3100, t.ALLOC, HIGH + (1 << 32), 1 << 32, device=1, **took),
        t.call(3500, t.ALLOC, BASE, MIB, **took), t.call(4000, t.FREE, HIGH, device=1, **took),
        t.call(5000, t.ALLOC, 0, 7, device=1, outcome=t.REFUSED, result=t.OUT_OF_MEMORY, **took),
        t.call(6000, t.PIECE_MADE, 1 << 32, 2 * MIB, device=1, **took),
        t.call(7000, t.PIECE_GONE, 1 << 32, 2 * MIB, device=1, **took),
        t.call(8000, t.PIECE_MADE, 1 << 33, 2 * MIB, device=1, **took),
        t.call(9000, t.ALLOC, 1 << 33, MIB, device=1, **took)])), t.block(t.END))


def viz_of_two_gpus(folder):
    expect([two_gpus(f'{folder}/two'), '--memory-viz', f'{folder}/two.pickle'], 0)
    with open(f'{folder}/two.pickle', 'rb') as file:
        snapshot = pickle.load(file)
    segments = [(one['device'], one['address'], one['total_size'], one['allocated_size'], one['active_size'],
                 [(block['address'], block['size'], block['state']) for block in one['blocks']])
                for one in snapshot['segments']]
    live, free = 'active_allocated', 'inactive'
    check(segments == [(0, BASE, MIB, MIB, MIB, [(BASE, MIB, live)]),
                       (1, 1 << 33, 2 * MIB, MIB, MIB, [(1 << 33, MIB, live), ((1 << 33) + MIB, MIB, free)]),
                       (1, HIGH, 4 << 31, 3 << 31, 3 << 31, [(HIGH, 1 << 31, free), (HIGH + (1 << 31), 1 << 31, live),
                                                             (HIGH + (1 << 32), 1 << 32, live)])],
          f'segments of two GPUs: {segments}')
    began = t.BEGAN // 1000
    told = [[(one['action'], one['addr'], one['size'], one['stream'], one['time_us'] - began) for one in each]
            for each in snapshot['device_traces']]
    check(told == [[('segment_alloc', BASE, MIB, 0, 3), ('alloc', BASE, MIB, 0, 3)],
                   [('segment_map', HIGH, 4 << 31, 0, 1), ('alloc', HIGH, 1 << 31, (1 << 32) - 1, 2),
                    ('alloc', HIGH + (1 << 31), 1 << 31, 0, 3), ('alloc', HIGH + (1 << 32), 1 << 32, 0, 3),
                    ('free_requested', HIGH, 1 << 31, 0, 4), ('free_completed', HIGH, 1 << 31, 0, 4),
                    ('oom', 0, 7, 0, 5),
                    ('segment_map', 1 << 32, 2 * MIB, 0, 6), ('segment_unmap', 1 << 32, 2 * MIB, 0, 7),
                    ('segment_map', 1 << 33, 2 * MIB, 0, 8), ('alloc', 1 << 33, MIB, 0, 9)]], f'of two GPUs: {told}')


def data_of(page):
    with open(page, encoding='utf-8') as file:
        text = file.read()
    return json.JSONDecoder().raw_decode(text, text.index('{"report":'))[0]


def page_of_two_gpus(folder):
    """What the page's script draws."""
    expect([two_gpus(f'{folder}/two'), '--html', f'{folder}/two.html'], 0)
    data = data_of(f'{folder}/two.html')
    # A call that makes something does so at its end, one that gives back at its beginning.
    check(data['moments'] == [1010, 2010, 3010, 3110, 3510, 4000, 6010, 7000, 8010, 9010],
          f'moments: {data["moments"]}')
    blocks = sorted((row[0], row[1], row[2], row[3], row[4], row[5], row[7]) for row in data['blocks'])
    check(blocks == [(0, BASE, MIB, 4, -1, 0, -1), (1, 1 << 33, MIB, 9, -1, 0, -1),
                     (1, HIGH, 1 << 31, 1, 5, (1 << 32) - 1, -1), (1, HIGH + (1 << 31), 1 << 31, 2, -1, 0, -1),
                     (1, HIGH + (1 << 32), 1 << 32, 3, -1, 0, -1)], f'blocks: {blocks}')
    check(sorted(data['pieces']) == [[1, 1 << 32, 2 * MIB, 6, 7], [1, 1 << 33, 2 * MIB, 8, -1],
                                     [1, HIGH, 4 << 31, 0, -1]],
          f'pieces: {data["pieces"]}')
    check(data['left_out'] == 0, f'left out: {data["left_out"]}')
    events = [t.call(1000 * i, t.ALLOC, BASE + i * MIB, 512, frames=[(0x10, 0x20), (0x30,)][i % 3 == 0])
              for i in range(6)]
    events += [t.figures(10000 + i, i, 2 * i, 3 * i, 4 * i, device=i % 2) for i in range(5)]
    path = t.write(f'{folder}/six', t.header(stacks=True), t.block(t.EVENTS, b''.join(events)), t.block(t.END))
    expect([path, '--html', f'{folder}/six.html'], 0)
    data = data_of(f'{folder}/six.html')
    drawn = [data['stacks'][row[7]] for row in data['blocks']]
    check(sorted(data['stacks']) == [['0x10', '0x20'], ['0x30']] and
          drawn == [['0x30'] if i % 3 == 0 else ['0x10', '0x20'] for i in range(6)],
          f'stacks: {data["stacks"]}, {drawn}')
    check([row[1:] for row in data['figures']] == [[i % 2, i, 2 * i, 3 * i, 4 * i] for i in range(5)],
          f'figures: {data["figures"]}')


def page_of_many(folder):
    """More blocks than are drawn: the small ones are left out, all of them, and told; more figures: every other one."""
    small, large, figures = 300001, 100, 100001
    events = [t.call(10 * i, t.ALLOC, BASE + i * MIB, 512 if i < small else MIB, took=1) for i in range(small + large)]
    begin = 10 * len(events)
    events += [t.figures(begin + i, 0, limbo=i, device=1) for i in range(figures)]
    path = t.write(f'{folder}/most', t.header(), t.block(t.EVENTS, b''.join(events)), t.block(t.END))
    expect([path, '--html', f'{folder}/most.html'], 0)
    data = data_of(f'{folder}/most.html')
    check((len(data['blocks']), data['left_out']) == (large, small),
          f'{len(data["blocks"])} blocks, {data["left_out"]} left out')
    check([row[5] for row in data['figures']] == list(range(0, figures, 2)), f'{len(data["figures"])} figures')
    os.unlink(path)


def converts(folder):
    path = f'{folder}/sample'
    truth = sample(path)
    to_memory_viz(path, f'{folder}/out.pickle', truth)
    path = t.write(f'{folder}/name', t.header(b'</script><b>\xff'), t.block(t.EVENTS, t.call(1, t.ALLOC, 1, 1)),
                   t.block(t.END))
    expect([path, '--html', f'{folder}/page'], 0)
    with open(f'{folder}/page', encoding='utf-8') as file:
        page = file.read()
    check(page.count('</script>') == 2 and '<b>' not in page, 'a name ends the page\'s script')
    check(not re.search(r'(src|href)=|url\(|https?://(?!www.w3.org/2000/svg)', page), 'the page names other pages')


with tempfile.TemporaryDirectory(prefix='gpushim-report-', ignore_cleanup_errors=True) as scratch:
    for prove in (tells, text_in_full, viz_of_two_gpus, page_of_two_gpus, page_of_many, modules, differs,
                  nothing_recorded, threads,
                  new_memory, odd_frees, ties, stacks, names, overlaps, cut, refused, damage, no_place, no_room,
                  keeps_what_is_there, is_as_private, converts):
        try:
            prove(scratch)
        except (KeyError, IndexError, ValueError) as error:
            faults.append(f'{prove.__name__}: {error!r}')
end_with_faults()
