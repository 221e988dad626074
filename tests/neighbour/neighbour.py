"""A process that finds the GPU full gets what others keep and do not use (core/process/neighbour.h).

    neighbour.py NEIGHBOUR SHIM LIBCUDA

NEIGHBOUR is tests/bench/neighbour. All processes share the memory of one software device.
"""
import ctypes
import fcntl
import json
import mmap
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from page import ASKER_BYTE, PAGE, PATIENT_S, check, count_listeners

PROGRAM, SHIM, LIBCUDA = sys.argv[1:4]
PATIENT_MS = 20000  # nothing here takes long, but the machine may be busy
TRIES = 20  # to see a call that is not held up, which a busy machine may hold up
CHURN_MIB = 96  # tests/bench/neighbour.c
FLUSH_S = 2
FLUSHES_MOST = 16  # at 20, 60, 140, 300, 620 ms and each 400 after that, and some more
WAIT_MS = 45  # who does not answer is waited for a little longer than this


class Machine:
    """A folder with the runtime directory and the device's memory, and who uses them."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix='gpushim-neighbour-')
        self.path = pathlib.Path(self.folder.name)
        self.run = self.path / 'run'
        self.cachers = []

    def environment(self, **settings):
        return {**os.environ, 'LD_PRELOAD': SHIM, 'LD_LIBRARY_PATH': os.path.dirname(LIBCUDA),
                'SOFTCUDA_MACHINE': str(self.path / 'machine'), 'SOFTCUDA_MEMORY': '4G',
                'GPUSHIM_SHARE_DIR': str(self.run), 'GPUSHIM_LOG': 'info',
                'GPUSHIM_POOL_NEIGHBOURS': 'on',
                'GPUSHIM_POOL_DECAY': '10 min', **settings}  # nothing goes unasked

    def cache(self, *arguments, wrap=(), fds=(), **settings):
        cacher = subprocess.Popen([*wrap, PROGRAM, '--cache', *map(str, arguments)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, pass_fds=fds,
                                  env=self.environment(**settings))
        check(cacher.stdout.readline().startswith('{'), 'a process caches')
        self.cachers.append(cacher)
        return cacher

    def await_listeners(self, count):
        deadline = time.monotonic() + PATIENT_S
        while count_listeners(self.run) < count:
            check(time.monotonic() < deadline, f'{count} processes listen')
            time.sleep(0.005)

    def asked(self):
        """The number of the last request (struct gs_page)."""
        return (self.run / PAGE).read_bytes()[:4]

    def take(self, *arguments, wrap=(), **settings):
        done = subprocess.run([*wrap, PROGRAM, '--take', *map(str, arguments)], text=True,
                              capture_output=True, stdin=subprocess.DEVNULL, timeout=90,
                              env=self.environment(**settings))
        check(done.returncode == 0, f'it ended with {done.returncode}: {done.stderr}')
        line = json.loads(done.stdout)
        check(line['most_ms'] < PATIENT_MS, f'it took {line["most_ms"]} ms')
        return line['result'] == 'success', line['most_ms'], done.stderr

    def succeeds(self, *arguments, **settings):
        """At once, or again and again: on a busy machine others may answer too late."""
        deadline = time.monotonic() + PATIENT_S
        taken, _, said = self.take(*arguments, **settings)
        while not taken and time.monotonic() < deadline:
            taken, _, said = self.take(*arguments, **settings)
        check(taken, f'{arguments} were not to be had: {said}')

    def fails(self, *arguments, **settings):
        taken, milliseconds, _ = self.take(*arguments, **settings)
        check(not taken, f'{arguments} were to be had')
        return milliseconds

    @staticmethod
    def end(cacher):
        """Ends it in order; the MiB that it gave."""
        _, said = cacher.communicate(timeout=90)
        check(cacher.returncode == 0, f'it ended with {cacher.returncode}: {said}')
        gave = re.search(r'this one was asked \d+ times and gave (\d+) MiB', said)
        return int(gave[1]) if gave else 0

    def leave(self):
        for cacher in self.cachers:
            if cacher.returncode is None:
                self.end(cacher)

    def left(self):
        return sorted(entry.name for entry in self.run.iterdir()) if self.run.exists() else []


def idle_memory_is_given(machine):
    machine.cache('--percent', 60)
    machine.fails('--percent', 60, GPUSHIM_POOL_NEIGHBOURS='off')
    machine.succeeds('--percent', 60)
    machine.leave()
    check(machine.left() == [], f'{machine.left()} are left')


def no_more_than_what_is_missing(machine):
    cacher = machine.cache('--percent', 60, '--pieces', 24)
    machine.succeeds('--percent', 60)
    gave = Machine.end(cacher)
    check(0.2 * 4096 <= gave < 0.3 * 4096, f'it gave {gave} MiB')


def many_give_together(machine):
    for _ in range(8):
        machine.cache('--percent', 10, '--pieces', 3)
    machine.succeeds('--percent', 95)
    machine.leave()
    check(machine.left() == [], f'{machine.left()} are left')


def one_that_wants_none_to_ask_keeps_it(machine):
    machine.cache('--percent', 60, GPUSHIM_POOL_NEIGHBOURS='off')
    check(machine.left() == [], 'it has no file')
    machine.fails('--percent', 60)


def kept_for_ever_is_given_too(machine):
    machine.cache('--percent', 60, GPUSHIM_POOL_DECAY='0')
    machine.succeeds('--percent', 60)


def during_a_capture(machine):
    machine.cache('--percent', 60, '--capture')
    machine.succeeds('--percent', 60)


def a_full_device_at_the_very_start(machine):
    """Not even the trial allocation fits."""
    machine.cache('--percent', 100)
    machine.succeeds('--percent', 50)


def a_stopped_one_is_waited_for_once(machine):
    cacher = machine.cache('--percent', 60)
    machine.await_listeners(1)
    cacher.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, cacher.pid, os.WSTOPPED)  # it may still run, and give, until then
    first = machine.fails('--percent', 60)
    check(first >= WAIT_MS, f'after {first} ms nothing had come')
    check(any(machine.fails('--percent', 60) < WAIT_MS for _ in range(TRIES)),
          'it was waited for again')
    _, _, said = machine.take('--percent', 60)
    check(re.search(rf'warning: no \d+ MiB are left on device 0; 1 other processes of this user do not '
                    rf'answer.*, as process {cacher.pid}:', said), f'who has it is said: {said}')
    cacher.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + PATIENT_S
    while not machine.take('--percent', 60)[0]:
        check(time.monotonic() < deadline, 'it answers when it goes on')
    machine.leave()


def a_standstill_of_all_counts_for_nothing(machine):
    """Who asks and who is asked are stopped for longer than an answer is waited for."""
    for _ in range(TRIES):  # if it was stopped too late
        cacher = machine.cache('--percent', 60)
        machine.await_listeners(1)
        cacher.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, cacher.pid, os.WSTOPPED)
        before = machine.asked()
        taker = subprocess.Popen([PROGRAM, '--take', '--percent', '60'], text=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 env=machine.environment())
        while machine.asked() == before:
            if os.waitid(os.P_PID, taker.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                break
            time.sleep(0.001)
        time.sleep(0.005)  # it waits now
        os.kill(taker.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, taker.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        time.sleep(0.4)
        os.kill(taker.pid, signal.SIGCONT)
        time.sleep(0.015)
        cacher.send_signal(signal.SIGCONT)
        said, _ = taker.communicate(timeout=90)
        machine.leave()
        if json.loads(said)['result'] == 'success':
            return
    sys.exit('failed: it waits on when it goes on')


class Locks:
    """Those of a process that never lets go: it is stopped, or means harm."""

    def __init__(self, machine, first, count):
        machine.run.mkdir(mode=0o700, exist_ok=True)
        self.file = os.open(machine.run / PAGE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        lock = struct.pack('hhqqi4x', fcntl.F_WRLCK, os.SEEK_SET, first, count, 0)
        fcntl.fcntl(self.file, fcntl.F_OFD_SETLK, lock)

    def close(self):
        os.close(self.file)


def a_lock_of_who_asks_stops_nobody(machine):
    machine.cache('--percent', 60)
    machine.await_listeners(1)
    locks = Locks(machine, ASKER_BYTE, 1)
    machine.succeeds('--percent', 60)
    locks.close()
    machine.leave()
    check(machine.left() == [], f'{machine.left()} are left')


def locks_keep_nobody_from_listening(machine):
    locks = Locks(machine, ASKER_BYTE, 2)
    machine.cache('--percent', 60)
    machine.succeeds('--percent', 60)
    machine.leave()
    locks.close()


def who_finds_all_places_taken_listens_later(machine):
    locks = Locks(machine, ASKER_BYTE, 200)
    machine.cache('--percent', 60, GPUSHIM_POOL_DECAY='200ms')
    machine.cache('--percent', 30, '--churn', GPUSHIM_POOL_DECAY='200ms')
    time.sleep(0.3)  # it has tried, or the test proves less
    locks.close()
    machine.await_listeners(1)


def one_stopped_while_it_asks_stops_nobody(machine):
    machine.cache('--percent', 5)  # so that the page stays
    cacher = machine.cache('--percent', 60)
    machine.await_listeners(2)
    cacher.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, cacher.pid, os.WSTOPPED)
    before = machine.asked()
    asker = subprocess.Popen([PROGRAM, '--take', '--percent', '60'], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, env=machine.environment())
    for _ in range(TRIES):  # it asks once a moment only
        while machine.asked() == before and asker.poll() is None:
            time.sleep(0.0005)
        if asker.poll() is None:
            break
        asker = subprocess.Popen([PROGRAM, '--take', '--percent', '60'], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, env=machine.environment())
    os.kill(asker.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, asker.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    cacher.send_signal(signal.SIGCONT)
    machine.end(cacher)
    machine.cache('--percent', 60)  # whom nobody has asked yet
    machine.succeeds('--percent', 60)
    asker.kill()
    asker.wait()


def one_that_asks_without_end_costs_little(machine):
    """It writes the page a hundred times a second, and uses nothing of what it is given."""
    cacher = machine.cache('--percent', 30, '--churn')
    machine.await_listeners(1)
    taken, _, said = machine.take('--percent', 99)  # where the device's UUID comes from
    uuid = (machine.run / PAGE).read_bytes()[8:24]
    check(uuid != bytes(16), f'somebody asked: {taken}, {said}')
    with open(machine.run / PAGE, 'r+b', buffering=0) as file:
        page = mmap.mmap(file.fileno(), 4096)
        word = ctypes.c_uint32.from_buffer(page)
        end = time.monotonic() + FLUSH_S
        while time.monotonic() < end:
            os.pwrite(file.fileno(), uuid + struct.pack('=QII', 1 << 39, 128, 0), 8)
            os.pwrite(file.fileno(), struct.pack('=I', word.value + 1), 0)
            ctypes.CDLL(None).syscall(202, ctypes.byref(word), 1, 1 << 30, None, None, 0)
            time.sleep(0.01)
        del word
        page.close()
    _, said = cacher.communicate(timeout=90)
    gave = re.search(r'this one was asked (\d+) times and gave (\d+) MiB', said)
    check(gave and int(gave[2]) > 0, f'it was asked: {said}')
    most = 4096 * 30 // 100 + FLUSHES_MOST * CHURN_MIB
    check(int(gave[2]) <= most, f'it gave {gave[2]} MiB, asked {gave[1]} times, of {most}')


def one_killed_while_it_gives(machine):
    machine.cache('--percent', 30)
    killed = machine.cache('--percent', 30, '--pieces', 4, SOFTCUDA_FAULTS='cuMemUnmap:kill:3')
    machine.succeeds('--percent', 70)
    check(killed.wait(PATIENT_S) == -signal.SIGKILL, 'it was killed while it gave')


def killed_ones_are_forgotten(machine):
    for _ in range(TRIES):  # each time another one
        cacher = machine.cache('--percent', 10)
        machine.await_listeners(1)
        cacher.kill()
        cacher.wait()
        check(machine.left() == [PAGE], 'a killed one leaves the file')
        alone = machine.fails('--percent', 10, SOFTCUDA_FAULTS='cuMemCreate:2+:2,cuMemAlloc:*:2')
        if alone < WAIT_MS:
            break
    check(alone < WAIT_MS, f'nobody is waited for, {alone} ms')
    machine.cache('--percent', 50)
    machine.succeeds('--percent', 70)
    machine.leave()
    check(machine.left() == [], 'the last one removes it')


def between_containers(machine):
    if not shutil.which('bwrap'):
        return
    box = ('bwrap', '--dev-bind', '/', '/', '--unshare-user', '--unshare-pid', '--unshare-ipc',
           '--unshare-net', '--unshare-uts', '--die-with-parent')
    if subprocess.run([*box, 'true'], check=False).returncode:
        return
    machine.cache('--percent', 60, wrap=box)
    machine.succeeds('--percent', 60, wrap=box)


def without_futex_waitv(machine):
    """As before Linux 5.16: a filter answers ENOSYS."""
    box = ('bwrap', '--dev-bind', '/', '/', '--die-with-parent')
    if not shutil.which('bwrap') or subprocess.run([*box, 'true'], check=False).returncode:
        return
    program = [(0x20, 0, 0, 0), (0x15, 0, 1, 449), (0x06, 0, 0, 0x50000 | 38),
               (0x06, 0, 0, 0x7fff0000)]
    reader, writer = os.pipe()
    os.write(writer, b''.join(struct.pack('=HBBI', *step) for step in program))
    os.close(writer)
    machine.cache('--percent', 60, wrap=(*box, '--seccomp', str(reader)), fds=(reader,))
    os.close(reader)
    machine.succeeds('--percent', 60)


def little_is_no_reason_for_a_thread_or_a_file(machine):
    cacher = machine.cache('--percent', 1)
    names = [task.read_text() for task in pathlib.Path(f'/proc/{cacher.pid}/task').glob('*/comm')]
    check(not any('gpushim' in name for name in names), f'threads: {names}')
    check(not machine.run.exists(), 'the folder is not even made')


def a_file_that_is_not_ours(machine):
    machine.run.mkdir(mode=0o700)
    precious = machine.path / 'precious'
    precious.write_text('precious')
    (machine.run / PAGE).symlink_to(precious)
    machine.cache('--percent', 60)
    machine.fails('--percent', 60)
    machine.leave()
    check(precious.read_text() == 'precious', 'the file behind a link is not touched')
    check(machine.left() == [PAGE], 'nor is the link')


def a_file_cut_short(machine):
    cacher = machine.cache('--percent', 60)
    machine.await_listeners(1)
    os.truncate(machine.run / PAGE, 0)
    machine.fails('--percent', 60)
    check(cacher.poll() is None, 'the process that listened on it lives')
    machine.leave()


def junk_in_the_file(machine):
    machine.cache('--percent', 60)
    machine.await_listeners(1)
    junk = bytes(range(1, 256)) * 17
    with open(machine.run / PAGE, 'r+b') as file:
        file.write(junk[:4096])
    machine.take('--percent', 60)
    machine.succeeds('--percent', 30)
    machine.leave()


for case in (idle_memory_is_given, no_more_than_what_is_missing, many_give_together,
             one_that_wants_none_to_ask_keeps_it, kept_for_ever_is_given_too, during_a_capture,
             a_full_device_at_the_very_start, a_stopped_one_is_waited_for_once,
             a_standstill_of_all_counts_for_nothing, a_lock_of_who_asks_stops_nobody,
             locks_keep_nobody_from_listening, who_finds_all_places_taken_listens_later,
             one_stopped_while_it_asks_stops_nobody, one_that_asks_without_end_costs_little,
             one_killed_while_it_gives,
             killed_ones_are_forgotten, between_containers, without_futex_waitv,
             little_is_no_reason_for_a_thread_or_a_file, a_file_that_is_not_ours,
             a_file_cut_short, junk_in_the_file):
    print(case.__name__, flush=True)
    here = Machine()
    try:
        case(here)
        here.leave()
    finally:
        for one in here.cachers:
            if one.poll() is None:
                one.kill()
            one.communicate()
        here.folder.cleanup()
