"""A process that never uses CUDA does the same with the shim as without, but for the mapping of the
library itself: same system calls, no thread, no file, nothing written.

usage: quiet_process.py LIBGPUSHIM PROGRAM...
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

library, program = os.path.realpath(sys.argv[1]), sys.argv[2:]
if not shutil.which('strace'):
    print('skipped: strace is not installed')
    sys.exit(77)

# What the dynamic linker does with the library's file once it is open.
LOADING = ('read(', 'mmap(', 'fstat(', 'newfstatat(', 'pread64(', 'mprotect(')


def traced(preload):
    """What strace says of each thread of a run, in the order in which they began."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = ['-E', f'LD_PRELOAD={preload}'] if preload else ['-E', 'LD_PRELOAD']
        run = subprocess.run(['strace', '-ff', '-o', folder + '/t', *environment, *program],
                             capture_output=True, text=True, timeout=60)
        if run.returncode != 0:
            if 'PTRACE' in run.stderr:
                print('skipped: this system does not let a process be traced')
                sys.exit(77)
            sys.exit(f'{program} ended with {run.returncode}: {run.stderr}')
        texts = {int(f.suffix[1:]): f.read_text() for f in pathlib.Path(folder).iterdir()}
        first = next(pid for pid, text in texts.items() if text.startswith('execve('))
        # Behind the last number the kernel gives the lowest ones again.
        return ''.join(f'begins\n{texts[pid]}' for pid in sorted(texts, key=lambda pid: (pid < first, pid)))


def calls(preload):
    """The system calls of a run, a line each, without addresses."""
    found = []
    for line in traced(preload).splitlines():
        line = re.sub(r'0x[0-9a-f]+|\b\d{5,}\b', 'N', line)
        # The loader takes memory for the paths that it was given, the preload's among them.
        line = re.sub(r'(mmap\(NULL, )\d+(.*MAP_ANONYMOUS)', r'\1N\2', line)
        if re.match(r'v?fork|clone|wait', line):
            line = re.sub(r'\d+', 'N', line)
        line = re.sub(r'/\* \d+ vars \*/', '', line)
        line = re.sub(r'getrandom\("[^"]*"', 'getrandom("N"', line)
        line = re.sub(r'(set_tid_address.*= ).*', r'\1N', line)
        found.append(line)
    return found


def without_one_mapping(lines):
    """Drops the loader's opening and mapping of the library, once."""
    kept, skipping, seen = [], False, 0
    for line in lines:
        if line.startswith('open') and library in line:
            skipping, seen = True, seen + 1
            continue
        if skipping:
            if line.startswith('close('):
                skipping = False
            elif not line.startswith(LOADING):
                sys.exit(f'while the library is loaded: {line}')
            continue
        kept.append(line)
    if seen != 1:
        sys.exit(f'the library was opened {seen} times')
    return kept


def comparable(lines):
    """Relocation protects one more segment, and a preloaded program's exec line differs. Waits and
    signals come as threads meet."""
    return [l for l in lines if not l.startswith(('execve(', 'mprotect(', 'munmap(', 'brk(',
                                                  'futex(', '---'))
            and '/etc/ld.so.preload' not in l]


native, shimmed = comparable(calls(None)), comparable(without_one_mapping(calls(library)))
if len(native) < 10:
    sys.exit('nothing was traced')
if native != shimmed:
    for a, b in zip(native + [''], shimmed + ['']):
        if a != b:
            print(f'without: {a}\nwith:    {b}')
            break
    sys.exit('the shim did something in a process that does not use CUDA')
print(f'{len(native)} system calls, the same with the shim')
