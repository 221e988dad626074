"""Thousands of sleeps and wakes at random moments, of programs that look at each of their bytes.

    sleeps.py SHIM GPUSHIM STRESS [--times 10000] [--stress 6] [--pairs 2] [--seconds 400] [--native]

Some are tests/stress: threads and work of all kinds, in one context each (natively, driver 580, H200, where several
programs run and one makes and destroys contexts all the time, it hangs in cuCtxCreate, cuCtxDestroy or a launch).
With --native there are these alone, without the library, and nobody sleeps: whether the driver hangs by itself.
Others are pairs of this file's own: one fills a block by a graph that was captured once, the other has it open by CUDA
IPC, looks at it, and writes back; a pair sleeps in one command, and a third of the times only one of it. The driver is
the one that programs find. Ends when there were so many wakes, or the time is over. Exit status: 0 where all programs
ended well, and each kind had its turns.
"""
import argparse
import collections
import ctypes
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

from driver import Driver, Handle
from limited import take_stacks

SIZE, MORE = 16 << 20, 96 << 20
LIFE_S = 20  # of a stress program
LATE_S = 15  # later than that it hangs: it says so itself when it has waited for a minute
PATIENT_S = 120


# ---- A pair --------------------------------------------------------------------------------------


def look(side, block, word, what, size=SIZE):
    if not side.holds_word(block, size, word):
        sys.exit(f'{what} is not {word}')


def producer():
    side = Driver()
    source, shared, more = side.allocate(SIZE), side.allocate(SIZE), side.allocate(MORE)
    side.fill(more, 4711, MORE)
    stream = side.made('cuStreamCreate', 1)
    side.must('cuStreamBeginCapture_v2', stream, 2)
    side.must('cuMemcpyDtoDAsync_v2', shared, source, SIZE, stream)
    graph = ctypes.c_uint64()
    side.must('cuStreamEndCapture', stream, ctypes.byref(graph))
    ready = side.made('cuGraphInstantiateWithFlags', graph, 0)
    print(bytes(side.made('cuIpcGetMemHandle', shared, kind=Handle).bytes).hex(), flush=True)
    number = 0
    while sys.stdin.readline().strip() != 'end':  # the other has looked
        if number:
            look(side, shared, number + 1, 'what the consumer wrote')
        number += 2
        side.fill(source, number, SIZE)
        side.must('cuGraphLaunch', ready, stream)
        side.must('cuStreamSynchronize', stream)
        print(number, flush=True)
    look(side, more, 4711, 'what nobody wrote', MORE)


def consumer():
    side = Driver()
    more = side.allocate(MORE)
    side.fill(more, 815, MORE)
    opened = side.made('cuIpcOpenMemHandle_v2', Handle.from_buffer_copy(bytes.fromhex(sys.stdin.readline())), 1)
    print('ready', flush=True)
    while (line := sys.stdin.readline().strip()) != 'end':
        look(side, opened, int(line), 'what the producer wrote')
        side.fill(opened, int(line) + 1, SIZE)
        print('done', flush=True)
    look(side, more, 815, 'what nobody wrote', MORE)


# ---- Sleeping ------------------------------------------------------------------------------------


class Machine:
    def __init__(self, options, folder):
        self.options, self.end = options, time.monotonic() + options.seconds
        self.count, self.wrong, self.lock = collections.Counter(), [], threading.Lock()
        plain = {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}
        self.plain, self.folder = {**plain, 'GPUSHIM_SHARE_DIR': folder}, folder
        self.under = self.plain if options.native else {**self.plain, 'LD_PRELOAD': options.shim, 'GPUSHIM_LOG': 'info'}

    def is_over(self):
        return bool(self.wrong) or self.count['woken'] >= self.options.times or time.monotonic() > self.end

    def add(self, what):
        with self.lock:
            self.count[what] += 1

    def order(self, what, pids):
        done = subprocess.run([self.options.gpushim, what, *map(str, pids)], env=self.plain, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=PATIENT_S, check=False)
        with self.lock:
            for line in done.stdout.splitlines() if done.returncode != 0 else ():
                self.count[re.sub(r'0x[0-9a-f]+|[0-9.]+', 'N', f'{what}: {line}')[:100]] += 1
        return done.returncode == 0 or 'awake, in' in done.stdout

    def sleep_and_wake(self, kind, pids, choose):
        """Whoever is woken, all are awake afterwards."""
        some = pids if choose.random() < 0.67 else [choose.choice(pids)]
        time.sleep(choose.random() * 0.03)
        if self.order('sleep', some):
            self.add(kind)
        time.sleep(choose.random() ** 4 * 0.2)
        if self.order('wake', pids):
            self.add('woken')

    def start(self, *words):
        with self.lock:
            self.count['started'] += 1
            log = f'{self.folder}/log-{self.count["started"]}'
        one = subprocess.Popen(words, env={**self.under, 'GPUSHIM_LOG_TARGET': log}, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        one.log, one.began, one.is_late = log, time.monotonic(), False
        return one

    def look_if_late(self, one):
        if not one.is_late and time.monotonic() - one.began > LIFE_S + LATE_S:
            one.is_late = True
            take_stacks([one.pid], one.log + '.stacks')

    def judge(self, one, name, said=''):
        try:
            said += one.communicate(timeout=PATIENT_S)[0]
        except subprocess.TimeoutExpired:
            one.kill()
            said += one.communicate()[0] + ' (it did not end)'
        if one.returncode != 0:
            logged = pathlib.Path(one.log).read_text(encoding='utf-8')[-1500:] if os.path.exists(one.log) else ''
            if one.is_late:
                logged += pathlib.Path(one.log + '.stacks').read_text(encoding='utf-8', errors='replace')
            with self.lock:
                self.wrong.append(f'{name} ended with {one.returncode}: {said[-400:]}\n{logged}')

    def stress(self, seed):
        choose = random.Random(seed)
        while not self.is_over():
            one = self.start(self.options.stress_program, '--seconds', str(LIFE_S), '--seed',
                             str(choose.randrange(1 << 31)),
                             '--one-context')
            while one.poll() is None and not self.is_over():
                self.look_if_late(one)
                if self.options.native:
                    time.sleep(0.1)
                else:
                    self.sleep_and_wake('stress', [one.pid], choose)
            self.judge(one, 'stress')
            self.add('programs')

    def pair(self, seed):
        choose = random.Random(seed)
        one, two = self.start(sys.executable, __file__, 'producer'), self.start(sys.executable, __file__, 'consumer')
        sleeper = threading.Thread(target=self.pair_sleeps, args=([one.pid, two.pid], choose))
        line = one.stdout.readline()
        two.stdin.write(line)
        two.stdin.flush()
        line = two.stdout.readline()
        sleeper.start()
        while line and not self.is_over():
            for side in one, two:
                side.stdin.write(line)
                side.stdin.flush()
                line = side.stdout.readline()
                if not line:
                    break
            self.add('exchanges')
        sleeper.join()
        for side, name in (one, 'producer'), (two, 'consumer'):
            if side.poll() is None:
                side.stdin.write('end\n')
            self.judge(side, name)

    def pair_sleeps(self, pids, choose):
        while not self.is_over():
            self.sleep_and_wake('pairs', pids, choose)


def main():
    parser = argparse.ArgumentParser()
    for name in 'shim', 'gpushim', 'stress_program':
        parser.add_argument(name, type=os.path.abspath)
    for name, value in ('times', 10000), ('stress', 6), ('pairs', 2), ('seconds', 400):
        parser.add_argument('--' + name, type=int, default=value)
    parser.add_argument('--native', action='store_true')
    options = parser.parse_args()
    options.pairs = 0 if options.native else options.pairs
    with tempfile.TemporaryDirectory(prefix='gpushim-sleeps-', ignore_cleanup_errors=True) as folder:
        machine = Machine(options, folder)
        threads = [threading.Thread(target=machine.stress, args=(seed,)) for seed in range(options.stress)]
        threads += [threading.Thread(target=machine.pair, args=(100 + seed,)) for seed in range(options.pairs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for what, times in machine.count.most_common():
        print(f'{times:7} {what}')
    for what in machine.wrong:
        print(f'WRONG: {what}')
    wanted = [] if options.native else [('stress', options.stress), ('pairs', options.pairs)]
    had = all(machine.count[kind] for kind, number in wanted if number)
    print(f'sleeps: {machine.count["woken"]} wakes, {machine.count["exchanges"]} exchanges, {len(machine.wrong)} '
          'programs wrong')
    sys.exit(0 if had and not machine.wrong else 1)


if sys.argv[1:] in (['producer'], ['consumer']):
    {'producer': producer, 'consumer': consumer}[sys.argv[1]]()
else:
    main()
