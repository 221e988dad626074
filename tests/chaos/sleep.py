"""Sleep and wake on their worst days: a program that allocates, computes, makes and ends contexts (tests/stress) is put
to sleep and woken again and again, and SIGKILL meets the command, or the program, at any moment.

    sleep.py STRESS GPUSHIM SHIM LIBCUDA [--seconds N] [--seed N]

Every other time it is four servers that have room for two, each used at moments of its own: they sleep for each other
and wake by use, and SIGKILL meets some.

A program that is not killed must end well, which it does where each byte was right; and what a killed one had must be
had again: memory of the GPU, files of contents. The same seed takes the same choices, at other instants.
"""
import argparse
import ctypes
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), os.pardir))
from faults import PATIENT_S, await_that, check, end_with_faults, faults

LIFE_S = 4  # of a program, but for the time that it sleeps
KILLED_WITHIN_S = 0.06  # a command takes some 30 ms
FREE = '''
import ctypes, sys
cuda = ctypes.CDLL('libcuda.so.1')
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
for device in range(2):
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0 and cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    print(total.value - free.value)
'''
# Used at moments of its own. Where the GPU has no room in time (2, OUT_OF_MEMORY) nothing was done, and it tries again.
SERVER = '''
import ctypes, random, sys, time
number, calls = int(sys.argv[1]), int(sys.argv[2])
cuda = ctypes.CDLL('libcuda.so.1')
context, block, host = ctypes.c_void_p(), ctypes.c_uint64(), (ctypes.c_ubyte * 4096)()
def until_done(call, *arguments):
    while (result := call(*arguments)) == 2:
        time.sleep(0.05)
    assert result == 0, result
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
until_done(cuda.cuMemAlloc_v2, ctypes.byref(block), ctypes.c_size_t(200 << 20))
until_done(cuda.cuMemsetD8_v2, block, ctypes.c_ubyte(number), ctypes.c_size_t(200 << 20))
for i in range(calls):
    at = ctypes.c_uint64(block.value + random.randrange((200 << 20) - 4096))
    until_done(cuda.cuMemcpyDtoH_v2, host, at, ctypes.c_size_t(4096))
    assert bytes(host) == bytes([number]) * 4096, f'call {i} of server {number}'
    time.sleep(random.random() * 0.1)
'''
SERVERS, CALLS = 4, 12


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument('files', nargs=4, type=os.path.abspath)
    parser.add_argument('--seconds', type=float, default=10)
    parser.add_argument('--seed', type=int, default=random.SystemRandom().randrange(1 << 32))
    return parser.parse_args()


class Machine:
    def __init__(self, folder, files):
        self.stress, self.gpushim, self.shim, libcuda = files
        self.run, self.contents = (pathlib.Path(folder, name) for name in ('run', 'contents'))
        for path in (self.run, self.contents):
            path.mkdir(mode=0o700)
        plain = {name: value for name, value in os.environ.items()
                 if not name.startswith(('GPUSHIM_', 'SOFTCUDA_')) and name != 'LD_PRELOAD'}
        self.environment = {**plain, 'GPUSHIM_SHARE_DIR': str(self.run), 'GPUSHIM_CONFIG': '',
                            'LD_LIBRARY_PATH': os.path.dirname(libcuda), 'SOFTCUDA_MEMORY': '512M',
                            'SOFTCUDA_MACHINE': str(pathlib.Path(folder, 'machine')),
                            'ASAN_OPTIONS': 'verify_asan_link_order=0:abort_on_error=1:detect_leaks=0'}

    def start(self, seed, settings):
        return subprocess.Popen([self.stress, '--seconds', str(LIFE_S), '--seed', str(seed)], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**self.environment, 'LD_PRELOAD': self.shim,
                                     'GPUSHIM_DEBUG_RECLAIM_FROM_PEERS': 'on', **settings})

    def serve(self, number):
        return subprocess.Popen([sys.executable, '-c', SERVER, str(number), str(CALLS)], text=True,
                                stderr=subprocess.PIPE,
                                env={**self.environment, 'LD_PRELOAD': self.shim,
                                     'GPUSHIM_DEBUG_RECLAIM_FROM_PEERS': 'on',
                                     'GPUSHIM_SLEEP_AFTER': '10 ms', 'GPUSHIM_SLEEP_WAKE': 'use'})

    def order(self, *words):
        return subprocess.Popen([self.gpushim, *words], env=self.environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def used(self):
        """Of each GPU, natively."""
        ran = subprocess.run([sys.executable, '-c', FREE], env=self.environment, capture_output=True, text=True,
                             check=True)
        return [int(line) for line in ran.stdout.split()]

    def ask(self, *words):
        """To the end. Whether it was done."""
        order = self.order(*words)
        order.communicate(timeout=PATIENT_S)
        return order.returncode == 0


def one_life(machine, choose):
    """What became of it: kills of commands, and whether the program was killed."""
    settings = choose.choice(({}, {'GPUSHIM_SLEEP_WAKE': 'use'},
                              {'GPUSHIM_SLEEP_AFTER': '1 ms', 'GPUSHIM_SLEEP_WAKE': 'use'}))
    program = machine.start(choose.randrange(1 << 31), settings)
    pid, kills, killed = str(program.pid), 0, False
    dies = choose.randrange(60) if choose.random() < 0.5 else None  # before this order
    orders = 0
    while program.poll() is None and not killed:
        words = choose.choice((('sleep', pid), ('sleep', pid, '--to', str(machine.contents)), ('wake', pid),
                               ('swap', pid, pid)))
        order = machine.order(*words, '--timeout', choose.choice(('0s', '0.01s', '5s')))
        if orders == dies:
            time.sleep(choose.random() * KILLED_WITHIN_S)
            program.kill()
            killed = True
        elif choose.random() < 0.5:
            time.sleep(choose.random() * KILLED_WITHIN_S)
            order.kill()
            kills += 1
        order.communicate(timeout=PATIENT_S)
        orders += 1
        if orders % 8 == 0 and not killed:  # whatever was begun and left, it does what it is told
            await_that(lambda: machine.ask('wake', pid) or program.poll() is not None or
                       machine.ask('sleep', pid, '--timeout', '5s'), f'{pid} neither wakes nor sleeps any more')
    said, wrong = program.communicate(timeout=PATIENT_S)
    if not killed:
        check(program.returncode == 0 and 'stress: ok' in said,
              f'with {settings} it ended with {program.returncode}: {said[-500:]} {wrong[-500:]}')
    return kills, killed


def servers(machine, choose):
    """How many were killed."""
    running = [machine.serve(number + 1) for number in range(SERVERS)]
    killed = set(choose.sample(running, choose.randrange(SERVERS)))
    for one in killed:
        time.sleep(choose.random() * 1.5)
        one.kill()
    for one in running:
        _, wrong = one.communicate(timeout=5 * PATIENT_S)
        check(one in killed or one.returncode == 0, f'a server ended with {one.returncode}: {wrong[-500:]}')
    return len(killed)


def main():
    asked = arguments()
    choose = random.Random(asked.seed)
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    kills = deaths = lives = 0
    with tempfile.TemporaryDirectory(prefix='gpushim-chaos-', ignore_cleanup_errors=True) as folder:
        machine = Machine(folder, asked.files)
        end = time.monotonic() + asked.seconds
        while (not lives or time.monotonic() < end) and not faults:
            more, killed = one_life(machine, choose) if lives % 2 == 0 else (0, servers(machine, choose))
            kills, deaths, lives = kills + more, deaths + killed, lives + 1
            await_that(lambda: machine.used() == [0, 0], f'memory is left on the GPUs: {machine.used()}')
            check(not os.listdir(machine.contents), 'no file of contents has a name')
    print(f'seed {asked.seed}: {lives} lives, {deaths} programs killed, {kills} commands killed')
    end_with_faults()


main()
