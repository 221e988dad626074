"""A process that finds the GPU full gets what others keep and do not use (core/process/neighbour.h). Who asks and
answers whom, and who is waited for how long, is tests/unit/share/pressure.c's.

    neighbour.py PUPPET SHIM BROKER HOW    as tests/puppet.py says
"""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import puppet
from puppet import MIB, OUT, OUT_OF_MEMORY, Out, Puppet, around, await_that, check, one_machine, set_for_all, skip

WIRE = (pathlib.Path(__file__).resolve().parents[2] / 'core' / 'share' / 'wire.h').read_text()
NAME = re.compile(r'[0-9a-f]{32}')  # of a socket
TOTAL = 4096 * MIB
CHURNED = 96 * MIB
FLUSH_S = 2
FLUSHES_MOST = 16  # at 20, 60, 140, 300, 620 ms and each 400 after that, and some more
RUN = pathlib.Path(around.folder, 'run')
PLACE = pathlib.Path(around.folder, 'of-the-test')


def left():
    return sorted(entry.name for entry in RUN.iterdir()) if RUN.is_dir() else []


def await_listeners(count):
    """Until so many processes can be asked."""
    await_that(lambda: sum(bool(NAME.fullmatch(name)) for name in left()) >= count, f'{count} processes can be asked')


class Process(Puppet):
    """With a log of its own."""

    def __init__(self, **settings):
        self.log = PLACE / f'log-{len(Puppet.all)}'
        super().__init__(GPUSHIM_LOG_TARGET=self.log, **settings)

    def caches(self, percent, pieces=1):
        """It fills a part of the device, and frees it."""
        blocks = [self.alloc(TOTAL // 100 * percent // pieces) for _ in range(pieces)]
        for block in blocks:
            self.cuMemFree(block)
        self.cuCtxSynchronize()
        return self

    def takes(self, percent):
        """Whether it can have as much."""
        result, block = self.call('cuMemAlloc', OUT, TOTAL // 100 * percent)
        check(result in (0, OUT_OF_MEMORY), f'cuMemAlloc gave {result}')
        if result == 0:
            self.cuMemFree(block)
        return result == 0

    def gave(self):
        """It ends: how often it was asked, and the MiB that it gave."""
        self.end()
        said = re.search(r'this one was asked (\d+) times and gave (\d+) MiB', self.log.read_text())
        return (int(said[1]), int(said[2])) if said else (0, 0)


def cacher(percent=60, pieces=1, **settings):
    """Which can be asked then."""
    listeners = len(left())
    one = Process(**settings).caches(percent, pieces)
    await_listeners(listeners + 1)
    return one


def succeeds(percent=60, **settings):
    """At once, or again and again: on a busy machine others may answer too late."""
    one = Process(**settings)
    await_that(lambda: one.takes(percent), f'{percent} of 100 are to be had')


def leave_nothing():
    for one in Puppet.all:
        one.end()
    check(left() == [], f'{left()} are left')


@contextlib.contextmanager
def churning(one):
    """It allocates and frees all the time."""
    ends = threading.Event()

    def churn():
        while not ends.wait(0.0005):
            result, block = one.call('cuMemAlloc', OUT, CHURNED)
            if result == 0:
                one.cuMemFree(block)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def given():
    cacher()
    check(not Process(GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='off').takes(60), 'who does not ask has it too')
    succeeds()
    leave_nothing()


def missing():
    """No more than what is missing is given."""
    one = cacher(pieces=24)
    succeeds()
    _, gave = one.gave()
    check(0.2 * 4096 <= gave < 0.3 * 4096, f'it gave {gave} MiB')


def together():
    for _ in range(8):
        cacher(10, 3)
    succeeds(95)
    leave_nothing()


def unasked():
    """Who does not want to ask keeps what it has."""
    Process(GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='off').caches(60)
    check(left() == [], 'it has no socket')
    check(not Process().takes(60), 'it is given')


def kept():
    """For ever, unless somebody asks."""
    cacher(GPUSHIM_POOL_DECAY='0')
    succeeds()


def capture():
    one = cacher()
    for _ in range(2):  # what was freed is seen to be idle before
        one.cuMemGetInfo(OUT, OUT)
        one.cuCtxSynchronize()
    one.cuStreamBeginCapture(one.stream(), 0)
    succeeds()


def at_the_start():
    """Not even the trial allocation fits."""
    cacher(100)
    succeeds(50)


def many():
    """They ask at once, and each gets its part."""
    cacher(98, 8)
    takers = [Process() for _ in range(8)]
    threads = [threading.Thread(target=await_that, args=(lambda one=one: one.takes(10), 'each gets its part'))
               for one in takers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(all(one.takes(10) for one in takers), 'each got its part')


def reclaim_request(device, wanted):
    """An ORDER to trim it."""
    number = lambda name: int(re.search(rf'{name}[\s=,]*(\d+)', WIRE)[1])
    return struct.pack('=IHHII', 0x67707368, number('GS_WIRE_VERSION'), number('GS_WIRE_ORDER'), 376,
                       1) + struct.pack('=IIIIQ16s320x', 0, 0, 0, 0, wanted, device)


def asks(message):
    """How many answers came soon."""
    answers = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker, contextlib.suppress(TimeoutError):
        asker.settimeout(0.01)
        asker.connect(str(RUN / left()[0]))
        asker.send(message)
        while asker.recv(512):
            answers += 1
    return answers


def flood():
    """Who asks a hundred times a second, and uses nothing of what it is given, costs little."""
    one, answers = cacher(30), 0
    message, end = reclaim_request(one.cuDeviceGetUuid(Out(16), 0), 1 << 39), time.monotonic() + FLUSH_S
    with churning(one):
        while time.monotonic() < end:
            answers += asks(message)
    check(answers > 0, 'it is answered')
    asked, gave = one.gave()
    most = 4096 * 30 // 100 + FLUSHES_MOST * CHURNED // MIB
    check(0 < gave <= most, f'it gave {gave} MiB, asked {asked} times, of {most}')


def killed():
    """One is, while it gives."""
    cacher(30)
    one = cacher(30, 4, SOFTCUDA_FAULTS='cuMemUnmap:kill:3')
    succeeds(70)
    check(one.process.wait(puppet.PATIENT_S) == -signal.SIGKILL, 'it was killed while it gave')


def containers():
    box = ('bwrap', '--dev-bind', '/', '/', '--unshare-user', '--unshare-pid', '--unshare-ipc', '--unshare-net',
           '--unshare-uts', '--die-with-parent')
    if not shutil.which('bwrap') or subprocess.run([*box, 'true'], check=False).returncode:
        skip('bwrap makes no container here')
    cacher(before=box)
    succeeds(before=box)


def little():
    """No reason for a thread or a file."""
    one = Process().caches(1)
    names = [task.read_text() for task in pathlib.Path(f'/proc/{one.pid}/task').glob('*/comm')]
    check(not any('gpushim' in name for name in names), f'threads: {names}')
    check(not left(), 'nothing is in the folder')


def later():
    """Who cannot be asked at first can be then."""
    RUN.write_text('in the way')
    one = Process(GPUSHIM_POOL_DECAY='200ms', GPUSHIM_SHARE_ENABLE='off')  # or it would take the driver's memory
    one.caches(30)
    with churning(one):
        time.sleep(0.3)  # it has tried, or the test proves less
        RUN.unlink()
        await_listeners(1)


def its_socket():
    """Is put up again."""
    cacher()
    shutil.rmtree(RUN)
    await_listeners(1)
    succeeds()


def without_sharing():
    cacher(GPUSHIM_SHARE_ENABLE='off')
    succeeds(GPUSHIM_SHARE_ENABLE='off')


def broker():
    """Who leaves what it shares with one is asked too."""
    cacher(GPUSHIM_SHARE_STRATEGY='broker')
    succeeds(GPUSHIM_SHARE_STRATEGY='broker')
    check(not any(name.startswith('broker') for name in left()), 'no broker is started')


PLACE.mkdir()
one_machine('4G')
# Nothing goes unasked.
set_for_all(GPUSHIM_SHARE_DIR=RUN, GPUSHIM_LOG='info', GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on',
            GPUSHIM_POOL_DECAY='10 min')
puppet.main(globals())
