"""Runs a program with a time limit, and says where it hung.

    limited.py SECONDS STACKS PROGRAM ARGS…

A program that has not ended after so many seconds is stopped, with its process group and all that is
below it. Before that, the stacks of those that use CUDA go into the file STACKS, by gdb, cuda-gdb or the
bundle's eu-stack, and what each of their threads waits for in the kernel. SIGTERM comes a
second before SIGKILL: a program may have something to say. Exit status: the program's, 128 and its
signal's number where it was killed, or 124 when it took too long.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys

MOST = 4  # processes whose stacks are taken
STACK_SECONDS = 25
LAST_WORD_SECONDS = 1


def those_of(program):
    """What the program started: its group, and below it whoever has a group of its own, as Criterion's workers
    have. When each began, by its number, which another may have in a while."""
    parents, groups, began = {}, {}, {}
    for folder in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            # "pid (name) state parent group …", and the name may have anything in it
            fields = (folder / 'stat').read_text(errors='replace').rpartition(')')[2].split()
            pid = int(folder.name)
            parents[pid], groups[pid], began[pid] = int(fields[1]), int(fields[2]), fields[19]
        except (OSError, ValueError, IndexError):
            continue
    own = {pid for pid in groups if groups[pid] == program}
    while more := {pid for pid in parents if parents[pid] in own} - own:
        own |= more
    return {pid: began[pid] for pid in own}


def end(own):
    """Those of them that are there still."""
    for pid, began in own.items():
        try:
            if pathlib.Path(f'/proc/{pid}/stat').read_text(errors='replace').rpartition(')')[2].split()[19] == began:
                os.kill(pid, signal.SIGKILL)
        except OSError:
            pass  # it has ended


def that_use_cuda(pids):
    """Those that have a CUDA driver loaded, the youngest first: it is a child that works."""
    found = []
    for pid in pids:
        try:
            if 'libcuda.so' in pathlib.Path(f'/proc/{pid}/maps').read_text(errors='replace'):
                found.append(pid)
        except OSError:
            continue
    return sorted(found, reverse=True)


def kernel_waits(pid):
    """A line for each thread: its name, its state, and where in the kernel it is."""
    for task in sorted(pathlib.Path(f'/proc/{pid}/task').glob('*')):
        line = task.name
        for name in ('comm', 'wchan', 'syscall'):
            try:
                line += ' ' + (task / name).read_text(errors='replace').strip()
            except OSError:
                line += ' ?'
        yield line + '\n'


def debugger(pid):
    """A command that prints its stacks; tests/gpu/bundle.sh gathers eu-stack."""
    if found := shutil.which('gdb') or shutil.which('cuda-gdb', path=f'{os.environ.get("PATH")}:/usr/local/cuda/bin'):
        return [found, '--batch', '-p', str(pid), '-ex', 'thread apply all backtrace 20']
    folder = pathlib.Path(__file__).parents[2] / '.bundle/eu-stack'
    return ['env', f'LD_LIBRARY_PATH={folder}', folder / 'eu-stack', '-n', '20', '-p', str(pid)]


def take_stacks(pids, path):
    with open(path, 'w', encoding='utf-8') as out:
        for pid in that_use_cuda(pids)[:MOST]:
            out.write(f'== process {pid}\n')
            out.writelines(kernel_waits(pid))
            out.flush()
            try:
                subprocess.run(debugger(pid), stdin=subprocess.DEVNULL, stdout=out,
                               stderr=subprocess.STDOUT, timeout=STACK_SECONDS, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                out.write(f'no stacks: {error}\n')


def main():
    seconds, stacks, command = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    program = subprocess.Popen(command, process_group=0)
    own = {}
    try:
        program.wait(seconds)
        status = program.returncode
    except subprocess.TimeoutExpired:
        own = those_of(program.pid)
        take_stacks(own, stacks)
        status = 124
        try:
            os.killpg(program.pid, signal.SIGTERM)
            program.wait(LAST_WORD_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
    try:
        os.killpg(program.pid, signal.SIGKILL)  # what the program left running, too
    except ProcessLookupError:
        pass
    end(own)
    program.wait()
    return status if status >= 0 else 128 - status


if __name__ == '__main__':
    sys.exit(main())
