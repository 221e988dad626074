"""Idle memory is handed over from one process to another as it is (core/handover.h).

    handover.py HANDOVER SHIM LIBCUDA BROKER [CASE…]

HANDOVER is a program that does what it is told (handover.c). All processes share the memory of one
software device of 512 MiB.
"""
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time

from page import PAGE, PATIENT_S, check, count_listeners

PROGRAM, SHIM, LIBCUDA, BROKER = map(os.path.abspath, sys.argv[1:5])
MOST = 300  # MiB of a block that only one process at a time can have
FIRST = 'alloc 9 1'  # the device is looked at
DESCRIPTORS = 200
ROUNDS = 60  # of each thread
TRIES = 30  # of what a busy machine may hold up
MAGIC, VERSION, CLOSE, MEMORY = 0x67707368, 3, 5, 14  # core/share/wire.h
OUT_OF_MEMORY, UNKNOWN = 2, 999


class Process:
    def __init__(self, machine, wrap=(), **settings):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.said = open(machine.path / f'said-{len(machine.processes)}', 'w+', encoding='utf-8')
        self.popen = subprocess.Popen(
            [*wrap, PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said,
            text=True, bufsize=1, env=machine.environment(**settings),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard)))
        self.pid = self.popen.pid
        machine.processes.append(self)
        self.own = []  # what its device was probed with
        check(self.popen.stdout.readline() == 'ready\n', f'a process starts: {self.log()}')
        self.own = self.descriptors()

    def tell(self, order):
        self.popen.stdin.write(order + '\n')

    def hear(self):
        return self.popen.stdout.readline().rstrip('\n')

    def ask(self, order):
        self.tell(order)
        return self.hear()

    def does(self, *orders):
        for order in orders:
            said = self.ask(order)
            check(said == '0', f'{order}: {said}; {self.log()}')

    def log(self):
        self.said.flush()
        return pathlib.Path(self.said.name).read_text()

    def as_they_were(self):
        """MiB that others handed over to it."""
        return sum(map(int, re.findall(r'; (\d+) MiB as they were', self.log())))

    def gave(self):
        """MiB that it gave, and those that it handed over."""
        said = re.findall(r': (\d+) MiB that lay idle were given back, (\d+) of', self.log())
        return tuple(sum(int(one[i]) for one in said) for i in range(2))

    def descriptors(self, pid=None, limit=DESCRIPTORS):
        """Those of memory that came later, and of another process all. The software driver's own
        lie beyond the limit."""
        own = [] if pid else self.own
        found = []
        for entry in pathlib.Path(f'/proc/{pid or self.pid}/fd').iterdir():
            try:
                number = int(entry.name)
                if number < limit and number not in own and 'softcuda' in os.readlink(entry):
                    found.append(number)
            except FileNotFoundError:
                pass
        return found

    def end(self):
        if self.popen.returncode is None:
            self.popen.communicate(timeout=PATIENT_S)
        return self.popen.returncode


class Machine:
    """A folder with the runtime directory and the device's memory, and who uses them."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix='gpushim-handover-')
        self.path = pathlib.Path(self.folder.name)
        self.run = self.path / 'run'
        self.processes = []
        self.children = []  # of those

    def environment(self, **settings):
        return {**os.environ, 'LD_PRELOAD': SHIM, 'LD_LIBRARY_PATH': os.path.dirname(LIBCUDA),
                'SOFTCUDA_MACHINE': str(self.path / 'machine'), 'SOFTCUDA_MEMORY': '512M',
                'GPUSHIM_SHARE_DIR': str(self.run), 'GPUSHIM_LOG': 'debug',
                'GPUSHIM_POOL_NEIGHBOURS': 'on',
                'GPUSHIM_POOL_DECAY': '10 min', **settings}  # nothing goes unasked

    def giver(self, *sizes, listeners=1, **settings):
        """One that keeps blocks of so many MiB, which were full of its bytes."""
        process = Process(self, **settings)
        for i, size in enumerate(sizes or (MOST,)):
            process.does(f'alloc {i} {size}', f'fill {i} 170')
        for i in range(len(sizes or (MOST,))):
            process.does(f'free {i}')
        self.await_true(lambda: count_listeners(self.run) >= listeners, 'it listens')
        return process

    def await_true(self, condition, what):
        deadline = time.monotonic() + PATIENT_S
        while not condition():
            check(time.monotonic() < deadline, what)
            time.sleep(0.001)

    def await_socket(self, taker=None):
        """That of who waits for memory; None: it does not any more."""
        found = []

        def look():
            found[:] = [name for name in self.left() if re.fullmatch('[0-9a-f]{32}.memory', name)]
            return found or (taker and taker.popen.poll() is not None)
        self.await_true(look, 'a process waits for memory')
        return self.run / found[0] if found else None

    def pair(self, giving=(), **taking):
        """Two of which one has handed a block over to the other, which has it as block 0. `giving`
        are orders to the first."""
        for _ in range(TRIES):  # if an answer came too late
            giver, taker = self.giver(), Process(self, **taking)
            taker.does(FIRST)
            giver.does(*giving)
            result = taker.ask(f'alloc 0 {MOST}')
            if result == '0' and taker.as_they_were() == MOST:
                return giver, taker
            self.leave()
        sys.exit(f'failed: nothing is handed over: {result}; {taker.log()}')

    def is_through_driver(self, giver, taker, refused=False):
        """It can be had, and is not what the other had, or was `refused`."""
        taker.does(FIRST)
        self.await_true(lambda: taker.ask(f'alloc 0 {MOST}') == '0', 'it is to be had')
        check(taker.as_they_were() == 0, f'it was handed over: {taker.log()}')
        if not refused:
            check(giver.gave() == (MOST, 0), f'it gave {giver.gave()}')

    def all_is_there(self):
        """Nobody has anything any more."""
        last = Process(self)
        last.does(FIRST, 'alloc 0 480')
        last.end()

    def left(self):
        return sorted(entry.name for entry in self.run.iterdir()) if self.run.exists() else []

    def leave(self):
        for process in self.processes:
            process.end()

    def clean(self):
        for child in self.children:
            os.kill(child, signal.SIGKILL)
        for process in self.processes:
            if process.popen.poll() is None:
                process.popen.kill()
            process.popen.communicate()
            process.said.close()
        self.folder.cleanup()


def box(*options):
    wrap = ('bwrap', '--dev-bind', '/', '/', '--die-with-parent', *options)
    if not shutil.which('bwrap') or subprocess.run([*wrap, 'true'], check=False).returncode:
        return None
    return wrap


# ---- What is handed over ---------------------------------------------------------------------

def idle_memory_is_handed_over_as_zeroes(machine):
    giver, taker = machine.pair()
    check(giver.gave() == (MOST, MOST), f'it gave {giver.gave()}')
    check(taker.ask('sum 0') == '0', 'there are no bytes of another process')
    check(giver.descriptors() == [], 'who gave it keeps no descriptor')
    check(len(taker.descriptors()) == 1, 'who has it keeps one')
    giver.end()
    taker.does('fill 0 85')
    check(taker.ask('sum 0') == str(MOST << 20), 'it holds what is written')
    taker.does('free 0')
    machine.leave()
    check(machine.left() == [], f'{machine.left()} are left')
    machine.all_is_there()


def it_goes_from_hand_to_hand(machine):
    _, taker = machine.pair()
    taker.does('fill 0 85', 'free 0')
    for _ in range(TRIES):
        third = Process(machine)
        third.does(FIRST)
        if third.ask(f'alloc 0 {MOST}') == '0':
            break
        third.end()
    check(third.as_they_were() == MOST, f'the next one has it too: {third.log()}')
    check(third.ask('sum 0') == '0', 'there are no bytes of another process')
    check(taker.descriptors() == [], 'who had it keeps no descriptor')
    machine.leave()
    machine.all_is_there()


def several_at_once(machine):
    for _ in range(TRIES):
        giver, taker = machine.giver(80, 80, 80, 80), Process(machine)
        taker.does(FIRST)
        results = [taker.ask(f'alloc {i} 80') for i in range(6)]
        if results == ['0'] * 6 and taker.as_they_were() >= 160:
            break
        machine.leave()
    check(taker.as_they_were() >= 160, f'{results}: {taker.log()}')
    check(all(taker.ask(f'sum {i}') == '0' for i in range(6)), 'all of it is zero')
    machine.leave()
    machine.all_is_there()


def what_is_larger_than_wanted_serves_others(machine):
    for _ in range(TRIES):
        giver, taker = machine.giver(400), Process(machine)
        taker.does(FIRST)
        if taker.ask('alloc 0 210') == '0' and taker.as_they_were() == 400:
            break
        machine.leave()
    check(taker.as_they_were() == 400, f'a larger one is handed over: {taker.log()}')
    taker.does('alloc 1 150')
    check(taker.as_they_were() == 400, 'what was left of it is used')
    machine.leave()


def no_more_is_kept_than_may_be(machine):
    """What comes beside the one that was wanted goes to the driver where that is the limit."""
    for _ in range(TRIES):
        machine.giver(80, 80, 80, 80)
        taker = Process(machine, GPUSHIM_POOL_CACHE_LIMIT='50M')
        taker.does(FIRST, 'alloc 8 170')
        if taker.ask('alloc 0 80') == '0' and taker.as_they_were() > 80:
            break
        machine.leave()
    check(taker.as_they_were() > 80, f'several are handed over: {taker.log()}')
    check(len(taker.descriptors()) == 1, f'it keeps {len(taker.descriptors())} of them')
    machine.leave()
    machine.all_is_there()


def it_is_shared_like_any_other(machine, **settings):
    giver, taker = machine.pair(**settings)
    taker.does('fill 0 85')
    handle = taker.ask('handle 0')
    for i in range(2):
        opener = Process(machine)
        opener.does(f'open 1 {handle}')
        check(opener.ask('sum 1') == str(MOST << 20), 'another process reads what it wrote')
        opener.does('close 1')
        opener.end()
        giver.end()  # and once more without it
    return taker, handle


def it_is_shared_with_a_broker(machine):
    settings = {'GPUSHIM_SHARE_STRATEGY': 'broker', 'GPUSHIM_SHARE_BROKER': BROKER}
    for _ in range(TRIES):  # it may end before the broker has it
        taker, handle = it_is_shared_like_any_other(machine, **settings)
        taker.end()
        opener = Process(machine, **settings)
        opened = opener.ask(f'open 1 {handle}')
        if opened == '0':
            break
        machine.leave()
    check(opened == '0', f'it is opened when who had it has ended: {opened}; {opener.log()}')
    check(opener.ask('sum 1') == str(MOST << 20), 'and read')
    opener.does('close 1')


def many_at_once(machine):
    """Processes of several threads take blocks from each other all the time; one has none that is
    another's."""
    handed = 0
    for _ in range(TRIES):  # if no GPU was idle when it was asked for
        several = [Process(machine, GPUSHIM_SHARE_GRACE='0', GPUSHIM_SHARE_IDLE='0')
                   for _ in range(3)]
        for process in several:
            process.tell(f'storm 2 {ROUNDS}')
        for process in several:
            check(int(process.hear() or 0) > 0, f'it had some: {process.log()}')
        for process in several:
            check(process.end() == 0, f'it ended well: {process.log()}')
        handed = sum(process.as_they_were() for process in several)
        if handed:
            break
    check(handed > 0, 'some were handed over')
    check(machine.left() == [], f'{machine.left()} are left')
    machine.all_is_there()


# ---- What is not -----------------------------------------------------------------------------

def small_ones_go_through_the_driver(machine):
    giver, taker = machine.giver(*[30] * 15), Process(machine)
    taker.does(FIRST)
    machine.await_true(lambda: taker.ask('alloc 0 40') == '0', 'it is to be had')
    check(taker.as_they_were() == 0, 'it was handed over')
    check(giver.gave()[1] == 0, f'it gave {giver.gave()}')


def what_was_shared_goes_through_the_driver(machine):
    giver = Process(machine, GPUSHIM_SHARE_GRACE='0', GPUSHIM_SHARE_IDLE='0')
    giver.does(f'alloc 0 {MOST}')
    giver.ask('handle 0')
    giver.does('free 0', f'alloc 0 {MOST}', 'free 0')
    machine.await_true(lambda: count_listeners(machine.run) == 1, 'it listens')
    machine.is_through_driver(giver, Process(machine))


def isolated_ones_go_through_the_driver(machine):
    alone = {'GPUSHIM_SHARE_ISOLATE': 'alone'}
    machine.is_through_driver(machine.giver(**alone), Process(machine))
    machine.leave()
    machine.is_through_driver(machine.giver(), Process(machine, **alone))


def other_containers_go_through_the_driver(machine):
    wrap = box('--unshare-user', '--unshare-pid')
    if not wrap:
        return
    machine.is_through_driver(machine.giver(wrap=wrap), Process(machine))
    machine.leave()
    machine.is_through_driver(machine.giver(), Process(machine, wrap=wrap))
    machine.leave()
    machine.is_through_driver(machine.giver(wrap=wrap), Process(machine, wrap=wrap))


def where_processes_cannot_be_told_it_goes_through_the_driver(machine):
    """Without /proc nobody knows whose namespaces are whose."""
    wrap = box('--tmpfs', '/proc')
    if not wrap:
        return
    machine.is_through_driver(machine.giver(wrap=wrap), Process(machine))
    machine.leave()
    machine.is_through_driver(machine.giver(), Process(machine, wrap=wrap), refused=True)


def a_busy_gpu_goes_through_the_driver(machine):
    giver = machine.giver()
    giver.does('info', 'busy')
    machine.is_through_driver(giver, Process(machine))
    giver.does('idle')


def during_a_capture_it_goes_through_the_driver(machine):
    giver = machine.giver()
    giver.does('info', 'capture')
    machine.is_through_driver(giver, Process(machine))


def nothing_is_begun_where_nothing_fits(machine):
    """No event is recorded in a context that has no such chunk."""
    giver, taker = machine.giver(*[30] * 15), Process(machine)
    before = giver.ask('calls cuCtxRecordEvent')
    taker.does(FIRST)
    machine.await_true(lambda: taker.ask('alloc 0 80') == '0' or giver.gave()[0], 'it is asked')
    check(giver.gave()[1] == 0 and giver.ask('calls cuCtxRecordEvent') == before,
          'it looked whether the GPU is idle')


# ---- What fails ------------------------------------------------------------------------------

def givers_killed_in_the_midst(machine):
    """Nothing is sent before it is in no other process."""
    for call in ('cuMemsetD8Async', 'cuStreamSynchronize', 'cuMemExportToShareableHandle',
                 'cuMemUnmap', 'cuMemAddressFree', 'cuMemRelease'):
        giver, taker = machine.giver(), Process(machine)
        giver.does(f'kill {call} 1')
        taker.does(FIRST)
        machine.await_true(lambda: taker.ask(f'alloc 0 {MOST}') == '0', 'it is to be had')
        check(giver.end() == -signal.SIGKILL, f'it was killed at {call}')
        check(taker.as_they_were() == 0, f'{call}: it was sent already')
        check(taker.ask('sum 0') == '0', f'{call}: bytes of a process that was killed')
        taker.does('fill 0 85')
        machine.leave()
        machine.all_is_there()
        check(machine.left() == [], f'{machine.left()} are left')


def takers_killed_in_the_midst(machine):
    for call in ('cuMemImportFromShareableHandle', 'cuMemAddressReserve', 'cuMemMap',
                 'cuMemSetAccess'):
        giver, taker = machine.giver(), Process(machine)
        taker.does(FIRST, f'kill {call} 1')
        while taker.ask(f'alloc 0 {MOST}') == str(OUT_OF_MEMORY):  # it asked in vain
            pass
        check(taker.end() == -signal.SIGKILL, f'it was killed at {call}')
        giver.does(f'alloc 0 {MOST}', 'fill 0 1', 'free 0')
        giver.end()
        machine.all_is_there()
        check(machine.left() == [], f'{machine.left()} are left')


def calls_that_fail(machine):
    """Of who gives and of who takes: it is had in another way, and nothing is lost."""
    for call in ('cuMemImportFromShareableHandle', 'cuMemAddressReserve', 'cuMemMap',
                 'cuMemSetAccess', 'cuMemsetD8Async', 'cuStreamSynchronize',
                 'cuMemExportToShareableHandle'):
        of_giver = call in ('cuMemsetD8Async', 'cuStreamSynchronize',
                            'cuMemExportToShareableHandle')
        giver, taker = machine.giver(), Process(machine)
        taker.does(FIRST)
        before = [int(count) for count in taker.ask('census').split()]
        (giver if of_giver else taker).does(f'fail {call} 1')
        machine.await_true(lambda: taker.ask(f'alloc 0 {MOST}') == '0', 'it is to be had')
        after = [int(count) for count in taker.ask('census').split()]
        check(after == [count + 1 for count in before], f'{call}: {before} became {after}')
        check(taker.descriptors() == [] and giver.descriptors() == [], f'{call}: descriptors')
        check(giver.gave()[1] == (0 if of_giver else giver.gave()[0]), f'{call}: {giver.gave()}')
        check(taker.ask('sum 0') == '0' or of_giver, 'zeroes')
        machine.leave()
        machine.all_is_there()


def what_comes_and_is_not_said_is_taken(machine):
    """Who gives is at the second of two pieces for longer than it is waited for."""
    for _ in range(TRIES):
        giver, taker = machine.giver(128, 128, 128), Process(machine)
        taker.does(FIRST)
        before = [int(count) for count in taker.ask('census').split()]
        giver.does('delay cuMemsetD8Async 700000')
        result = taker.ask('alloc 0 128')
        after = [int(count) for count in taker.ask('census').split()]
        came = after[0] > before[0]
        machine.leave()
        if came:
            break
    check(came and result == '0', f'{result}: {taker.log()}')


def a_stopped_taker(machine):
    """What was sent to it is there when it goes on."""
    for _ in range(TRIES):
        giver, taker = machine.giver(), Process(machine)
        taker.does(FIRST)
        giver.does('delay cuMemsetD8Async 200000')
        taker.tell(f'alloc 0 {MOST}')
        machine.await_socket()
        os.kill(taker.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 2
        while giver.gave() == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(taker.pid, signal.SIGCONT)
        result = taker.hear()
        done = giver.gave() == (MOST, MOST) and result == '0' and taker.as_they_were() == MOST
        machine.leave()
        if done:
            break
    check(done, f'{result}: {taker.log()}')


def a_taker_killed_while_it_waits(machine):
    """Its socket goes when another one looks after the folder."""
    giver, taker = machine.giver(), Process(machine)
    taker.does(FIRST)
    os.kill(giver.pid, signal.SIGSTOP)
    for _ in range(TRIES):
        taker.tell(f'alloc 0 {MOST}')
        machine.await_socket()
        os.kill(taker.pid, signal.SIGKILL)
        taker.popen.wait()
        if any(name.endswith('.memory') for name in machine.left()):
            break
        taker = Process(machine)
        taker.does(FIRST)
    check(any(name.endswith('.memory') for name in machine.left()), 'its socket is left')
    os.kill(giver.pid, signal.SIGCONT)
    giver.does('alloc 1 10')
    giver.end()
    other = machine.giver(100)  # a process that listens comes
    machine.await_true(lambda: machine.left() == [PAGE], f'{machine.left()} are left')
    other.end()


def one_that_ends_while_it_gives(machine):
    """It gives no more than it has begun with."""
    for _ in range(TRIES):
        giver, taker = machine.giver(64, 64, 64, 64, 64, 64), Process(machine)
        taker.does(FIRST, 'alloc 1 100')
        giver.does('delay cuMemsetD8Async 60000')
        taker.tell('alloc 0 64')
        machine.await_socket()
        giver.end()
        taker.hear()
        machine.leave()
        if taker.as_they_were() == 64:
            return
    sys.exit(f'failed: {taker.as_they_were()} MiB were handed over')


def a_capture_that_begins_meanwhile(machine):
    """It is not broken by what goes on in the background."""
    giver, taker = machine.giver(), Process(machine)
    taker.does(FIRST)
    giver.does('delay cuMemsetD8Async 100000')
    taker.tell(f'alloc 0 {MOST}')
    machine.await_socket()
    time.sleep(0.02)  # it overwrites now
    giver.does('capture')
    if taker.hear() == '0':
        check(taker.ask('sum 0') == '0', 'bytes of another process')
    giver.does('captured', 'alloc 1 10', 'fill 1 1', 'free 1')


def a_context_that_ends_meanwhile(machine):
    giver, taker = Process(machine), Process(machine)
    giver.does('context', f'alloc 0 {MOST}', 'fill 0 170', 'free 0')
    machine.await_true(lambda: count_listeners(machine.run) == 1, 'it listens')
    taker.does(FIRST)
    giver.does('delay cuMemsetD8Async 50000')
    taker.tell(f'alloc 0 {MOST}')
    machine.await_socket()
    giver.does('context')
    if taker.hear() == '0':
        check(taker.ask('sum 0') == '0', 'bytes of a context that ended')
    giver.does('alloc 1 10', 'fill 1 1', 'free 1')
    machine.leave()
    machine.all_is_there()


# ---- Descriptors -----------------------------------------------------------------------------

def descriptors_end_with_the_memory(machine):
    _, taker = machine.pair(GPUSHIM_POOL_CACHE_LIMIT='0')
    check(len(taker.descriptors()) == 1, 'it has one')
    taker.does('free 0')
    machine.await_true(lambda: taker.descriptors() == [], f'{taker.descriptors()} are left')


def a_forked_child_does_not_keep_the_memory(machine):
    _, taker = machine.pair(GPUSHIM_POOL_CACHE_LIMIT='0')
    child = int(taker.ask('fork'))
    machine.children.append(child)
    machine.await_true(lambda: taker.descriptors(child) == [], 'the child has none of it')
    check(len(taker.descriptors()) == 1, 'its parent has')
    taker.does('fill 0 3')
    handle = taker.ask('handle 0')
    opener = Process(machine)
    opener.does(f'open 1 {handle}')
    check(opener.ask('sum 1') == str(MOST << 20), 'and shares it')
    os.kill(machine.children.pop(), signal.SIGKILL)


def a_program_that_closes_all_descriptors(machine):
    """It keeps its memory, cannot share it, and none of its files is sent or closed."""
    _, taker = machine.pair(GPUSHIM_POOL_CACHE_LIMIT='0')
    check(int(taker.ask('close-all')) > 100, 'it has files of its own now')
    taker.does('fill 0 85')
    check(taker.ask('sum 0') == str(MOST << 20), 'it can use it')
    check(len(taker.ask('handle 0')) < 10, 'it cannot share it')
    count = int(taker.ask('census').split()[0])
    taker.does('free 0', 'info', 'alloc 1 1', 'free 1')  # a free sees what is too much
    machine.await_true(lambda: int(taker.ask('census').split()[0]) < count, 'it gives it back')
    taker.does('check-all')


def with_no_descriptor_left_it_goes_through_the_driver(machine):
    giver, taker = machine.giver(), Process(machine)
    taker.does(FIRST)
    resource.prlimit(taker.pid, resource.RLIMIT_NOFILE, (8, 8))
    result = taker.ask(f'alloc 0 {MOST}')
    check(result in ('0', str(OUT_OF_MEMORY)), f'it is answered: {result}')
    check(taker.as_they_were() == 0, 'nothing was handed over')


def a_process_keeps_few_descriptors(machine):
    """Its limit is its program's: of 24 one eighth are for memory."""
    giver = machine.giver(*[64] * 7)
    taker = Process(machine)
    taker.does(FIRST)
    resource.prlimit(taker.pid, resource.RLIMIT_NOFILE, (24, 20000))
    for i in range(7):
        machine.await_true(lambda i=i: taker.ask(f'alloc {i} 64') == '0', 'it is to be had')
    kept = taker.descriptors(limit=24)
    check(0 < len(kept) <= 3, f'it keeps {kept}')


# ---- Who lies --------------------------------------------------------------------------------

def message(kind, body=b''):
    return struct.pack('=IHHII', MAGIC, VERSION, kind, 16 + len(body), 0) + body


def memory(size, uuid):
    return message(MEMORY, struct.pack('=Q', size) + uuid)


def some_memory(size):
    """What the software driver takes for its memory."""
    import fcntl
    fd = os.memfd_create('softcuda-lie', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 7)
    return fd


def call(path):
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller.connect(str(path))
    return caller


def amid(machine, lie):
    """While one process waits for what another is to send, there are callers that `lie`."""
    for _ in range(TRIES):
        giver, taker = machine.giver(), Process(machine)
        taker.does(FIRST)
        before = [int(count) for count in taker.ask('census').split()]
        giver.does('delay cuMemsetD8Async 150000')
        taker.tell(f'alloc 0 {MOST}')
        path = machine.await_socket()
        uuid = (machine.run / PAGE).read_bytes()[8:24]
        try:
            kept = lie(path, uuid)
        except (FileNotFoundError, ConnectionError):
            kept = None
        result = taker.hear()
        if kept is not None and result == '0':
            break
        machine.leave()
    check(result == '0' and kept is not None, f'{result}: {taker.log()}')
    after = [int(count) for count in taker.ask('census').split()]
    check(after == [count + 1 for count in before], f'{before} became {after}: {taker.log()}')
    check(taker.ask('sum 0') == '0', 'it is zero')
    check(len(taker.descriptors()) <= 1, f'{taker.descriptors()}')
    taker.does('fill 0 1', 'free 0')
    machine.leave()
    check(machine.left() == [], f'{machine.left()} are left')
    return taker


def junk_at_the_socket(machine):
    def lie(path, _):
        callers = [call(path) for _ in range(6)]
        callers[0].send(b'x')
        callers[1].send(bytes(500))
        callers[2].send(message(CLOSE, bytes(8)))
        callers[3].send(message(MEMORY))
        callers[4].send(memory(MOST << 20, bytes(16))[:-1])
        return callers  # the last one says nothing
    amid(machine, lie)


def memory_that_is_not_what_it_is_said_to_be(machine):
    def lie(path, uuid):
        callers = []
        for size, said, whose in ((2, 64, uuid), (64, 65, uuid), (64, 1 << 40, uuid),
                                  (64, 0, uuid), (2, 2, uuid), (64, 64, bytes(16))):
            callers.append(call(path))
            fd = some_memory(size << 20)
            socket.send_fds(callers[-1], [memory(said << 20, whose)], [fd])
            os.close(fd)
        for flags in (os.O_RDONLY, os.O_RDWR):
            fd = os.open('/dev/null', flags)
            callers.append(call(path))
            socket.send_fds(callers[-1], [memory(64 << 20, uuid)], [fd])
            callers.append(call(path))
            socket.send_fds(callers[-1], [memory(64 << 20, uuid)], [fd, fd])
            os.close(fd)
        callers.append(call(path))
        callers[-1].send(memory(64 << 20, uuid))
        return callers
    amid(machine, lie)


def who_says_something_else_is_not_heard_out(machine):
    """Else one that never ends would never let the call return."""
    def lie(path, uuid):
        caller = call(path)
        caller.send(message(CLOSE, bytes(8)))
        fd = some_memory(64 << 20)
        socket.send_fds(caller, [memory(64 << 20, uuid)], [fd])
        os.close(fd)
        return caller
    amid(machine, lie)


def many_callers(machine):
    def lie(path, _):
        return [call(path) for _ in range(60)]
    amid(machine, lie)
    callers = []

    def lie_more(path, _):
        for _ in range(200):
            caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            caller.setblocking(False)
            callers.append(caller)
            try:
                caller.connect(str(path))
            except BlockingIOError:
                break
        return callers
    amid(machine, lie_more)


def a_name_that_is_not_one_of_ours(machine):
    giver = machine.giver()
    page = machine.run / PAGE
    names = [b'x' * 39, b'../' + b'x' * 36, b'0' * 32 + b'.memori', b'0' * 38 + b'/',
             b'g' * 32 + b'.memory', b'0' * 40]
    uuid = None
    taker = Process(machine)
    taker.does(FIRST)
    machine.await_true(lambda: taker.ask(f'alloc 0 {MOST}') == '0', 'it is to be had')
    uuid = page.read_bytes()[8:24]
    taker.end()
    giver.does(f'alloc 0 {MOST}', 'fill 0 1', 'free 0')
    listeners = []
    for name in names[:1] + names[2:3] + names[4:5]:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(machine.run / name.decode()))
        listener.listen()
        listener.setblocking(False)
        listeners.append(listener)
    with open(page, 'r+b', buffering=0) as file:
        for name in names:
            asked = struct.unpack('=I', os.pread(file.fileno(), 4, 0))[0] + 1
            request = uuid + struct.pack('=QIIQ', 64 << 20, 128, 0, 200 << 20)
            os.pwrite(file.fileno(), request + name.ljust(40, b'\0'), 8)
            os.pwrite(file.fileno(), struct.pack('=I', asked), 0)
            # It sleeps on the page's futex, which nobody here can wake; what it gives back does.
            giver.does('alloc 5 1', 'free 5')

            def finished():
                slots = os.pread(file.fileno(), 4096, 8 + 16 + 8 + 8 + 8 + 40 + 128 * 4)
                return any(struct.unpack_from('=I', slots, 16 * i + 4)[0] == asked
                           for i in range(128))
            if not finished():
                wake(file.fileno())
            machine.await_true(finished, 'it answers')
            for listener in listeners:
                try:
                    listener.accept()
                except BlockingIOError:
                    continue
                sys.exit(f'failed: it called {listener.getsockname()} for {name}')
            giver.does(f'alloc 0 {MOST}', 'fill 0 1', 'free 0')
    check(giver.gave()[1] in (0, MOST), f'it handed over {giver.gave()}')


def wake(fd):
    """Who sleeps on the page."""
    import ctypes
    import mmap
    page = mmap.mmap(fd, 4096)
    word = ctypes.c_uint32.from_buffer(page)
    ctypes.CDLL(None).syscall(202, ctypes.byref(word), 1, 1 << 30, None, None, 0)
    del word
    page.close()


CASES = (
    idle_memory_is_handed_over_as_zeroes, it_goes_from_hand_to_hand, several_at_once,
    what_is_larger_than_wanted_serves_others, no_more_is_kept_than_may_be,
    it_is_shared_like_any_other, many_at_once,
    it_is_shared_with_a_broker, small_ones_go_through_the_driver,
    what_was_shared_goes_through_the_driver, isolated_ones_go_through_the_driver,
    other_containers_go_through_the_driver,
    where_processes_cannot_be_told_it_goes_through_the_driver, a_busy_gpu_goes_through_the_driver,
    during_a_capture_it_goes_through_the_driver, nothing_is_begun_where_nothing_fits,
    givers_killed_in_the_midst, takers_killed_in_the_midst, calls_that_fail,
    what_comes_and_is_not_said_is_taken, a_stopped_taker, a_taker_killed_while_it_waits,
    one_that_ends_while_it_gives, a_capture_that_begins_meanwhile, a_context_that_ends_meanwhile,
    descriptors_end_with_the_memory, a_forked_child_does_not_keep_the_memory,
    a_program_that_closes_all_descriptors, with_no_descriptor_left_it_goes_through_the_driver,
    a_process_keeps_few_descriptors, junk_at_the_socket,
    memory_that_is_not_what_it_is_said_to_be, who_says_something_else_is_not_heard_out,
    many_callers, a_name_that_is_not_one_of_ours)

for case in CASES:
    if sys.argv[5:] and case.__name__ not in sys.argv[5:]:
        continue
    print(case.__name__, flush=True)
    here = Machine()
    try:
        case(here)
        here.leave()
    finally:
        here.clean()
