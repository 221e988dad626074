"""A process that finds the GPU full gets what others keep and do not use (core/process/neighbour.h).

    neighbour.py NEIGHBOUR SHIM LIBCUDA

NEIGHBOUR is the program beside this. All processes share the memory of one software device.
"""
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

PROGRAM, SHIM, LIBCUDA = sys.argv[1:4]
WIRE = (pathlib.Path(__file__).resolve().parents[2] / 'core' / 'share' / 'wire.h').read_text()
NAME = re.compile(r'[0-9a-f]{32}')  # of a socket
PATIENT_S = 30
PATIENT_MS = 20000  # nothing here takes long, but the machine may be busy
TRIES = 20  # to see a call that is not held up, which a busy machine may hold up
CHURN_MIB = 96  # neighbour.c
FLUSH_S = 2
FLUSHES_MOST = 16  # at 20, 60, 140, 300, 620 ms and each 400 after that, and some more
WAIT_MS = 45  # who does not answer is waited for a little longer than this


def check(condition, what):
    if not condition:
        sys.exit(f'failed: {what}')


def await_that(condition, what):
    deadline = time.monotonic() + PATIENT_S
    while not condition():
        check(time.monotonic() < deadline, what)
        time.sleep(0.002)


def has_socket(pid):
    """Whether a process that has no socket of its own has asked somebody, or has ended."""
    try:
        return any(os.readlink(entry).startswith('socket:')
                   for entry in pathlib.Path(f'/proc/{pid}/fd').iterdir())
    except OSError:
        return True


def plea(wanted):
    """An ORDER to trim the first device."""
    driver = ctypes.CDLL(LIBCUDA)
    uuid = (ctypes.c_ubyte * 16)()
    check(driver.cuInit(0) == 0 and driver.cuDeviceGetUuid(uuid, 0) == 0, 'it has a UUID')
    number = lambda name: int(re.search(rf'{name}[\s=,]*(\d+)', WIRE)[1])
    return struct.pack('=IHHII', 0x67707368, number('GS_WIRE_VERSION'), number('GS_WIRE_ORDER'), 376,
                       1) + struct.pack('=IIIIQ16s320x', 0, 0, 0, 0, wanted, bytes(uuid))


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
                'GPUSHIM_DEBUG_RECLAIM_FROM_PEERS': 'on',
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
        """Until so many processes can be asked."""
        await_that(lambda: sum(bool(NAME.fullmatch(name)) for name in self.left()) >= count,
                   f'{count} processes can be asked')

    def taker(self, *arguments, wrap=(), **settings):
        """A process that is about to take memory, or to ask for it."""
        return subprocess.Popen([*wrap, PROGRAM, '--take', *map(str, arguments)], text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment(**settings))

    @staticmethod
    def taken(taker):
        """What it says when it has ended, in figures and in the log."""
        said, logged = taker.communicate(timeout=90)
        check(taker.returncode == 0, f'it ended with {taker.returncode}: {logged}')
        return json.loads(said), logged

    def take(self, *arguments, **settings):
        line, logged = self.taken(self.taker(*arguments, **settings))
        check(line['most_ms'] < PATIENT_MS, f'it took {line["most_ms"]} ms')
        return line['result'] == 'success', line['most_ms'], logged

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
    machine.fails('--percent', 60, GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='off')
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
    machine.cache('--percent', 60, GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='off')
    check(machine.left() == [], 'it has no socket')
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


def stop(process):
    """It may still run, and give, until the kernel says so."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def a_stopped_one_is_waited_for_once(machine):
    cacher = machine.cache('--percent', 60)
    machine.await_listeners(1)
    stop(cacher)
    line, logged = machine.taken(machine.taker('--percent', 60, '--tries', TRIES))
    check(line['result'] != 'success' and line['most_ms'] >= WAIT_MS, f'it is waited for: {line}')
    check(line['again_ms'] < WAIT_MS, f'it was waited for again: {line}')
    cacher.send_signal(signal.SIGCONT)
    check(re.search(rf'warning: no \d+ MiB are left on device 0; .*; 1 other processes of this user do '
                    rf'not answer.*, as process {cacher.pid};', logged),
          f'who has it is said: {logged}')


def a_stopped_one_that_goes_on_is_asked_again(machine):
    cacher = machine.cache('--percent', 60)
    machine.await_listeners(1)
    stop(cacher)
    taker = machine.taker('--percent', 60, '--tries', 10000)
    await_that(lambda: has_socket(taker.pid), 'it has asked')
    time.sleep(0.3)  # and again, or the test proves less
    cacher.send_signal(signal.SIGCONT)
    check(machine.taken(taker)[0]['result'] == 'success', 'it answers when it goes on')


def a_standstill_of_all_counts_for_nothing(machine):
    """Who asks and who is asked are stopped for longer than an answer is waited for."""
    for _ in range(TRIES):  # if it was stopped too late
        cacher = machine.cache('--percent', 60)
        machine.await_listeners(1)
        stop(cacher)
        taker = machine.taker('--percent', 60)
        await_that(lambda: has_socket(taker.pid), 'it has asked')
        time.sleep(0.005)  # it waits now
        os.kill(taker.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, taker.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        time.sleep(0.4)
        os.kill(taker.pid, signal.SIGCONT)
        time.sleep(0.015)
        cacher.send_signal(signal.SIGCONT)
        line, _ = machine.taken(taker)
        machine.leave()
        if line['result'] == 'success':
            return
    sys.exit('failed: it waits on when it goes on')


def many_ask_at_once(machine):
    machine.cache('--percent', 98, '--pieces', 8)
    machine.await_listeners(1)
    for taker in [machine.taker('--percent', 10, '--tries', 100) for _ in range(8)]:
        check(machine.taken(taker)[0]['result'] == 'success', 'each gets its part')


def one_stopped_or_killed_while_it_asks_stops_nobody(machine):
    for number in (signal.SIGSTOP, signal.SIGKILL):
        cacher = machine.cache('--percent', 60)
        machine.await_listeners(1)
        stop(cacher)
        asker = machine.taker('--percent', 60)
        await_that(lambda: has_socket(asker.pid), 'it asks')
        os.kill(asker.pid, number)
        os.waitid(os.P_PID, asker.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        cacher.send_signal(signal.SIGCONT)
        machine.succeeds('--percent', 60)
        asker.kill()
        asker.communicate()
        machine.end(cacher)


def one_that_asks_without_end_costs_little(machine):
    """A hundred times a second, and uses nothing of what it is given."""
    cacher = machine.cache('--percent', 30, '--churn')
    machine.await_listeners(1)
    message, answers = plea(1 << 39), 0
    end = time.monotonic() + FLUSH_S
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker:
            asker.settimeout(0.01)
            asker.connect(str(machine.run / machine.left()[0]))
            asker.send(message)
            try:
                while asker.recv(512):
                    answers += 1
            except TimeoutError:
                pass
    check(answers > 0, 'it is answered')
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


def nobody_is_waited_for(machine):
    """Of an allocation that fails for want of memory, but for a busy machine's."""
    alone = machine.fails('--percent', 10, SOFTCUDA_FAULTS='cuMemCreate:2+:2,cuMemAlloc:*:2')
    return alone < WAIT_MS


def killed_ones_are_forgotten(machine):
    for _ in range(TRIES):  # each time another one
        cacher = machine.cache('--percent', 10)
        machine.await_listeners(1)
        cacher.kill()
        cacher.wait()
        check(len(machine.left()) == 1, 'a killed one leaves its socket')
        alone = nobody_is_waited_for(machine)
        machine.cache('--percent', 50)
        machine.await_listeners(1)
        machine.succeeds('--percent', 70)
        machine.leave()
        check(machine.left() == [], 'the next one removes it')
        if alone:
            return
    sys.exit('failed: one that was killed is waited for')


def so_are_their_children(machine):
    """Which have its socket, and answer nobody: where the kernel tells who listens (Linux 6.5)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.getsockopt(socket.SOL_SOCKET, 77)
        except OSError:
            return
    cacher = machine.cache('--percent', 10, '--fork')
    machine.await_listeners(1)
    cacher.stdin.write('x')
    cacher.stdin.flush()
    child = int(cacher.stdout.readline())
    try:
        cacher.kill()
        cacher.wait()
        check(any(nobody_is_waited_for(machine) for _ in range(TRIES)), 'its child is waited for')
    finally:
        os.kill(child, signal.SIGKILL)


def between_containers(machine):
    if not shutil.which('bwrap'):
        return
    box = ('bwrap', '--dev-bind', '/', '/', '--unshare-user', '--unshare-pid', '--unshare-ipc',
           '--unshare-net', '--unshare-uts', '--die-with-parent')
    if subprocess.run([*box, 'true'], check=False).returncode:
        return
    machine.cache('--percent', 60, wrap=box)
    machine.succeeds('--percent', 60, wrap=box)


def little_is_no_reason_for_a_thread_or_a_file(machine):
    cacher = machine.cache('--percent', 1)
    names = [task.read_text() for task in pathlib.Path(f'/proc/{cacher.pid}/task').glob('*/comm')]
    check(not any('gpushim' in name for name in names), f'threads: {names}')
    check(not machine.left(), 'nothing is in the folder')


def who_cannot_be_asked_at_first_can_be_later(machine):
    machine.run.write_text('in the way')
    cacher = machine.cache('--percent', 30, '--churn', GPUSHIM_POOL_DECAY='200ms',
                           GPUSHIM_SHARE_ENABLE='off')  # or it would take the driver's memory
    time.sleep(0.3)  # it has tried, or the test proves less
    check(cacher.poll() is None, 'it does without')
    machine.run.unlink()
    machine.await_listeners(1)


def its_socket_is_put_up_again(machine):
    machine.cache('--percent', 60)
    machine.await_listeners(1)
    shutil.rmtree(machine.run)
    machine.await_listeners(1)
    machine.succeeds('--percent', 60)


def without_sharing(machine):
    machine.cache('--percent', 60, GPUSHIM_SHARE_ENABLE='off')
    machine.succeeds('--percent', 60, GPUSHIM_SHARE_ENABLE='off')


def who_leaves_what_it_shares_with_a_broker_is_asked_too(machine):
    machine.cache('--percent', 60, GPUSHIM_SHARE_STRATEGY='broker')
    machine.succeeds('--percent', 60, GPUSHIM_SHARE_STRATEGY='broker')
    check(not any(name.startswith('broker') for name in machine.left()), 'no broker is started')


def what_is_no_socket_is_left_alone(machine):
    machine.run.mkdir(mode=0o700)
    precious = machine.path / 'precious'
    precious.write_text('precious')
    (machine.run / ('0' * 32)).symlink_to(precious)
    (machine.run / ('1' * 32)).write_text('precious')
    machine.cache('--percent', 60)
    machine.succeeds('--percent', 60)
    machine.leave()
    check(precious.read_text() == 'precious', 'the file behind a link is not touched')
    check(machine.left() == ['0' * 32, '1' * 32], 'nor are these')


for case in (idle_memory_is_given, no_more_than_what_is_missing, many_give_together,
             one_that_wants_none_to_ask_keeps_it, kept_for_ever_is_given_too, during_a_capture,
             a_full_device_at_the_very_start, a_stopped_one_is_waited_for_once,
             a_stopped_one_that_goes_on_is_asked_again, a_standstill_of_all_counts_for_nothing,
             many_ask_at_once,
             one_stopped_or_killed_while_it_asks_stops_nobody,
             one_that_asks_without_end_costs_little, one_killed_while_it_gives,
             killed_ones_are_forgotten, so_are_their_children, between_containers,
             little_is_no_reason_for_a_thread_or_a_file, who_cannot_be_asked_at_first_can_be_later,
             its_socket_is_put_up_again, without_sharing,
             who_leaves_what_it_shares_with_a_broker_is_asked_too,
             what_is_no_socket_is_left_alone):
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
