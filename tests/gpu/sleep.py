"""Sleep and wake on a GPU: how fast memory goes and comes, beside a checkpoint by the driver (cuCheckpointProcess*).

    sleep.py LIBRARY [PROGRAM] [--gib 8,60] [--rounds 3]

LIBRARY is libgpushim.so. For each size a process of this file's own has so much memory in blocks of 256 MiB, each
filled with a number of its own. Under the library it sleeps and wakes by itself, so many rounds; natively this process
has the driver checkpoint and restore it, and the same of one that sleeps under the library. A row says how long each
took, in GB/s as well, and whether the contents are right. PROGRAM is "asleep" of tests/asleep: the tests of asleep.py
there that are for a GPU run, work for several threads and graphs among them. Without a GPU the exit status is 77. Where
contents are wrong, or a case fails, it is 1.
"""
import argparse
import ctypes
import os
import subprocess
import sys
import time

from driver import Driver, Missing

BLOCK = 256 << 20
TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, 'asleep', 'asleep.py')
CASES = ('work', 'graph', 'signals', 'info', 'within', 'fork', 'own', 'lent', 'tag', 'end asleep', 'end again',
         'end late')
TIMEOUT_NS = 120 * 10**9


class How(ctypes.Structure):  # gpushim_sleep_how
    _fields_ = [('size', ctypes.c_size_t), ('timeout_ns', ctypes.c_uint64), ('directory', ctypes.c_char_p),
                ('discard', ctypes.c_char_p)]


class Asleep(ctypes.Structure):  # gpushim_asleep
    _fields_ = [('size', ctypes.c_size_t), *((name, ctypes.c_uint64) for name in (
        'since_ns', 'away', 'copied', 'shared', 'registered', 'ending', 'refused', 'own')),
                ('text', ctypes.c_char * 320)]


class Holder:
    """What a child has of the GPU."""

    def __init__(self, size):
        try:
            self.driver = Driver()
        except Missing:
            sys.exit(77)
        self.blocks = [self.driver.allocate(BLOCK) for _ in range(size // BLOCK)]
        for number, block in enumerate(self.blocks):
            self.driver.fill(block, number + 1, BLOCK)

    def is_right(self):
        """The first and last page of each, and of one all."""
        return all(self.driver.holds_word(block + at, size, number + 1) for number, block in enumerate(self.blocks)
                   for size in (BLOCK if number == 0 else 4096,) for at in (0, BLOCK - size))


def rate(size, seconds):
    return f'{seconds * 1000:.0f} ms, {size / seconds / 1e9:.1f} GB/s'


def goes():
    """How long it took, and what is away."""
    how, told = How(ctypes.sizeof(How), TIMEOUT_NS), Asleep(size=ctypes.sizeof(Asleep))
    began = time.monotonic()
    if ctypes.CDLL(None).gpushim_sleep(ctypes.byref(how), ctypes.byref(told)):
        sys.exit(f'not put to sleep: {told.text.decode()}')
    return time.monotonic() - began, told.away


def comes():
    told = Asleep(size=ctypes.sizeof(Asleep))
    began = time.monotonic()
    if ctypes.CDLL(None).gpushim_wake(ctypes.c_uint64(TIMEOUT_NS), ctypes.byref(told)):
        sys.exit(f'not woken: {told.text.decode()}')
    return time.monotonic() - began


def sleeps(size, rounds):
    """In a child, under the library."""
    holder = Holder(size)
    for number in range(rounds):
        out, away = goes()
        back = comes()
        right = holder.is_right()
        print(f'sleep {size / (1 << 30):g} GiB round {number + 1}: out {rate(size, out)} ({away >> 20} MiB); back '
              f'{rate(size, back)}; '
              f'contents {"right" if right else "WRONG"}', flush=True)
        if not right:
            sys.exit(1)


def is_held(size, asleep):
    """In a child: answers when it has the memory, and again when it was restored."""
    holder = Holder(size)
    if asleep:
        goes()
    print('held', flush=True)
    sys.stdin.readline()
    if asleep:
        comes()
    print('right' if holder.is_right() else 'WRONG', flush=True)


def child(role, size, rounds, environment):
    return subprocess.Popen([sys.executable, __file__, 'child', role, str(size), str(rounds)], text=True,
                            env=environment,
                            stdin=subprocess.PIPE, stdout=None if role == 'sleeps' else subprocess.PIPE)


def checkpoint(size, what, role, environment):
    """By the driver, from here."""
    cuda = ctypes.CDLL('libcuda.so.1')
    if cuda.cuInit(0) != 0 or not hasattr(cuda, 'cuCheckpointProcessLock'):
        print('checkpoint: this driver has none')
        return
    one = child(role, size, 1, environment)
    one.stdout.readline()
    zeros, times = (ctypes.c_uint64 * 8)(), []
    for call in ('Lock', 'Checkpoint', 'Restore', 'Unlock'):
        began = time.monotonic()
        result = getattr(cuda, 'cuCheckpointProcess' + call)(one.pid, ctypes.byref(zeros))
        times.append(time.monotonic() - began)
        if result != 0:
            print(f'{what} {size / (1 << 30):g} GiB: cuCheckpointProcess{call}: error {result}')
            one.kill()
            one.wait()
            return
    right, _ = one.communicate('look\n')
    print(f'{what} {size / (1 << 30):g} GiB: out {rate(size, times[0] + times[1])}; back '
          f'{rate(size, times[2] + times[3])}; contents '
          f'{right.strip()}', flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('library')
    parser.add_argument('program', nargs='?')
    parser.add_argument('--gib', default='8,60')
    parser.add_argument('--rounds', type=int, default=3)
    options = parser.parse_args()
    under = {**os.environ, 'LD_PRELOAD': os.path.abspath(options.library)}
    status = 0
    for gib in options.gib.split(','):
        size = int(float(gib) * (1 << 30)) // BLOCK * BLOCK
        status = status or child('sleeps', size, options.rounds, under).wait()
        checkpoint(size, 'checkpoint', 'held',
                   {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'})
        checkpoint(size, 'checkpoint of who sleeps', 'asleep', under)
    for case in CASES if options.program else ():
        began = time.monotonic()
        done = subprocess.run([sys.executable, TESTS, options.program, options.library, '', case], check=False)
        print(f'asleep {case}: {"ok" if done.returncode == 0 else "FAILED"} in {time.monotonic() - began:.1f} s',
              flush=True)
        status = status or done.returncode
    sys.exit(status)


if sys.argv[1:2] == ['child']:
    if sys.argv[2] == 'sleeps':
        sleeps(int(sys.argv[3]), int(sys.argv[4]))
    else:
        is_held(int(sys.argv[3]), sys.argv[2] == 'asleep')
else:
    main()
