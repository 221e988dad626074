"""What gpushim report reads of other users' files: a module that is cut meanwhile keeps it from nothing else.

usage: others_files.py GPUSHIM CUTS
"""
import os
import sys
import tempfile

import elf_file
import trace_file as t
from alone import check, end_with_faults, run

gpushim, cuts = (os.path.realpath(path) for path in sys.argv[1:3])


def cut_module(folder):
    """Of a recording whose module is cut, the place stays known."""
    module = t.write(f'{folder}/module', elf_file.library([('function', 0, 4096)]))
    path = t.write(f'{folder}/trace', t.header(stacks=True),
                   t.block(t.MODULES, f'10000-20000 r-xp 0 0:0 1 {module}\n'.encode()),
                   t.block(t.EVENTS, t.call(1, t.ALLOC, 4096, 4096, frames=(0x10010,))), t.block(t.END))
    for settings, said in ({}, 'function (module+0x10)'), ({'LD_PRELOAD': cuts, 'CUT_FILE': module}, ' module+0x10\n'):
        ran = run([gpushim, 'report', path], settings, timeout=60)
        check(ran.returncode == 0 and said in ran.stdout, f'a module that is cut: not {said!r}: {ran}')


with tempfile.TemporaryDirectory(prefix='gpushim-files-', ignore_cleanup_errors=True) as scratch:
    cut_module(scratch)
end_with_faults()
