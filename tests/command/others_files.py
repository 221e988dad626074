"""What a command reads of other users' files: a pipe in the place of one, a terabyte, and one that is cut meanwhile
keep it from nothing else.

usage: others_files.py GPUSHIM CUTS
"""
import os
import subprocess
import sys
import tempfile

import elf_file
import trace_file as t
from alone import end_with_faults, faults, run

gpushim, cuts = (os.path.realpath(path) for path in sys.argv[1:3])
WAIT_S = 60
LIBRARIES = 'libgpushim.so', 'libcuda.so.1'
# Maps these files, says so, and ends with its standard input.
MAPS = '''import mmap, os, sys
kept = [mmap.mmap(os.open(path, os.O_RDONLY), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ) for path in sys.argv[1:]]
print("ready", flush=True)
sys.stdin.read()
'''


def ask(*arguments, **settings):
    """None where it does not end."""
    try:
        return run([gpushim, *arguments], settings, timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        return None


class Process:
    """Has two files mapped that are called as the libraries are."""

    def __init__(self, folder, size=4096):
        os.makedirs(folder)
        self.paths = [f'{folder}/{name}' for name in LIBRARIES]
        for path in self.paths:
            with open(path, 'wb') as file:
                file.write(b'x' * size)
        self.process = subprocess.Popen([sys.executable, '-c', MAPS, *self.paths], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != 'ready\n':
            faults.append(f'{folder}: no process')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()

    def is_told(self, what, everybody=True, **settings):
        """Of all processes, and of this one."""
        for arguments in [[]] * everybody + [[str(self.process.pid)]]:
            ran = ask('doctor', '--all', *arguments, **settings)
            if ran is None:
                faults.append(f'{what}: doctor {arguments} does not end')
            elif ran.returncode not in (0, 1) or self.paths[0].split('\n', maxsplit=1)[0] not in ran.stdout:
                faults.append(f'{what}: doctor {arguments}: {ran}')


def pipe(folder):
    """The kernel tells of a newline in a path as \\012, by which another folder may be called."""
    os.makedirs(f'{folder}/a\\012b')
    os.mkfifo(f'{folder}/a\\012b/{LIBRARIES[0]}')
    with Process(f'{folder}/a\nb') as process:
        process.is_told('a pipe')


def terabyte(folder):
    with Process(f'{folder}/terabyte') as process:
        os.truncate(process.paths[0], 1 << 40)
        process.is_told('a terabyte')


def large(folder):
    """The version at the end of a library is told, but for that none is read that is larger than any."""
    for size, told in (1 << 20, True), (257 << 20, False):
        with Process(f'{folder}/large{size}') as process:
            with open(process.paths[0], 'r+b') as file:
                file.seek(size)
                file.write(b'libgpushim 7.7.7\n')
            ran = ask('doctor', '--all', str(process.process.pid))
            if ran is None or (' 7.7.7' in ran.stdout) != told:
                faults.append(f'a library of {size} bytes: {ran}')


def cut(folder):
    with Process(f'{folder}/cut', 1 << 16) as process:
        process.is_told('a library that is cut', everybody=False, LD_PRELOAD=cuts, CUT_FILE=process.paths[0])


def cut_module(folder):
    """Of a recording whose module is cut, the place stays known."""
    module = t.write(f'{folder}/module', elf_file.library([('function', 0, 4096)]))
    path = t.write(f'{folder}/trace', t.header(stacks=True),
                   t.block(t.MODULES, f'10000-20000 r-xp 0 0:0 1 {module}\n'.encode()),
                   t.block(t.EVENTS, t.call(1, t.ALLOC, 4096, 4096, frames=(0x10010,))), t.block(t.END))
    for settings, said in ({}, 'function (module+0x10)'), ({'LD_PRELOAD': cuts, 'CUT_FILE': module}, ' module+0x10\n'):
        ran = ask('report', path, **settings)
        if ran is None or ran.returncode != 0 or said not in ran.stdout:
            faults.append(f'a module that is cut: not {said!r}: {ran}')


with tempfile.TemporaryDirectory(prefix='gpushim-files-') as scratch:
    for case in pipe, terabyte, large, cut, cut_module:
        case(scratch)
end_with_faults()
