"""gpushim report: what it costs grows as the file does, however that is made. Instructions are counted
(valgrind's callgrind) of a recording with N things in it, and of one with 4 N.

usage: linear.py GPUSHIM
"""
import os
import re
import shutil
import sys
import tempfile

import elf_file
import trace_file as t
from alone import check, end_with_faults, run

gpushim = os.path.realpath(sys.argv[1])
N = 4000
MOST = 6  # times the cost of N: 4 N cost 4 times as much, and sorting them somewhat more
BASE = 0x7f0000000000


def cost(folder, option, content):
    """Instructions, with this recording."""
    path, counts, out = t.write(f'{folder}/trace', content), f'{folder}/counts', f'{folder}/out'
    if os.path.exists(out):
        os.remove(out)
    ran = run(['valgrind', '-q', '--tool=callgrind', f'--callgrind-out-file={counts}', gpushim, 'report', path,
               *([option, out] if option else [])], timeout=400)
    check(ran.returncode == 0, f'it ended with {ran.returncode}: {ran.stderr}')
    with open(counts, encoding='utf-8') as file:
        return int(re.search(r'^(?:summary|totals): (\d+)', file.read(), re.M).group(1))


def calls(rows):
    return t.block(t.EVENTS, b''.join(rows))


def threads(count, folder):
    return b''.join(t.block(t.EVENTS, t.call(1000 + i, t.FREE, 0), thread=i + 1) for i in range(count))


def pieces(count, folder):
    """Each below all others, and then given back from the lowest."""
    return calls([t.call(1000 + i, t.PIECE_MADE, BASE - i * 4096, 4096, took=0) for i in range(count)] +
                 [t.call(90000 + i, t.PIECE_GONE, BASE - i * 4096, 4096, took=0) for i in range(count)])


def zeros(count, folder):
    """Blocks, and then zeros: what a disk that was full leaves."""
    return b''.join(t.block(t.EVENTS) for i in range(count)) + bytes(count * 40)


def framed(lines, frames):
    """Each frame is asked for."""
    return (t.block(t.MODULES, lines) +
            calls([t.call(1000 + i, t.ALLOC, BASE + i * 4096, 4096, took=0, frames=(frame,))
                   for i, frame in enumerate(frames)]))


def modules(count, folder):
    """As many modules, of different paths, as addresses in them."""
    return framed(b''.join(b'%x-%x r-xp 0 0:0 1 /none/%x\n' % (i << 12, (i << 12) + 4096, i)
                           for i in range(1, count + 1)), [(i << 12) + 16 for i in range(1, count + 1)])


def nested_modules(count, folder):
    """Each lies in all that are before it, and the addresses in the first alone."""
    return framed(b''.join(b'%x-%x r-xp 0 0:0 1 /none\n' % (1 << 32, (1 << 34) - (i << 12)) for i in range(count)),
                  [(1 << 34) - (i << 12) - 16 for i in range(count)])


def functions(count, folder):
    """As many functions in a file, each in the one before, as addresses in them."""
    path = t.write(f'{folder}/library', elf_file.library([('function', 0, (1 << 20) - i * 16) for i in range(count)]))
    return framed(b'10000000-20000000 r-xp 0 0:0 1 %s\n' % path.encode(),
                  [0x10000000 + (1 << 20) - i * 16 for i in range(count)])


def a_long_name(count, folder):
    """Of the function that all addresses are in."""
    path = t.write(f'{folder}/library', elf_file.library([('f' * 64 * count, 0, 1 << 20)]))
    return framed(b'10000000-20000000 r-xp 0 0:0 1 %s\n' % path.encode(),
                  [0x10000000 + i * 16 for i in range(1, count + 1)])


def turns(count, folder):
    """Two files of as many functions, whose parts lie by turns."""
    parts = [('function', i * 16, 16) for i in range(count)]
    paths = [t.write(f'{folder}/{name}', elf_file.library(parts)).encode() for name in ('one', 'two')]
    return framed(b''.join(b'%x-%x r-xp 0 0:0 1 %s\n' % (i << 12, (i << 12) + 4096, paths[i % 2])
                           for i in range(1, count + 1)),
                  [(i << 12) + 8 for i in range(1, count + 1)])


if not shutil.which('valgrind'):
    end_with_faults('valgrind is not there: install it')
with tempfile.TemporaryDirectory(prefix='gpushim-linear-', ignore_cleanup_errors=True) as scratch:
    for make in threads, pieces, zeros, modules, nested_modules, functions, a_long_name, turns:
        stacks = make in (modules, nested_modules, functions, a_long_name, turns)
        least, one, four = (cost(scratch, '--html' if stacks else None,
                                 t.header(stacks=stacks) + make(count, scratch)
                                 + (b'' if make is zeros else t.block(t.END)))
                            for count in (1, N, 4 * N))
        ratio = (four - least) / (one - least)
        print(f'{make.__name__}: {ratio:.1f} times for 4 times as much ({one - least} instructions)')
        check(ratio <= MOST, f'{make.__name__}: 4 times as much costs {ratio:.1f} times as much')
end_with_faults()
