"""Processes that call what a test tells them (tests/puppet.c), and what tests make of that: a test is a function
here, and what it tells happens in processes under the library.

    PROGRAM.py PUPPET SHIM BROKER HOW...    calls the function HOW, with the words behind it

    one = Puppet()                      a process under the library, which has begun with the driver
    one.cuMemFree(block)                must succeed; says what is in its OUT arguments afterwards
    one.result('cuMemFree', block)      its result, whatever it is
    one.thread(1).cuMemFree(block)      in another thread of it

Arguments are numbers, text, bytes, which a pointer to is passed of, OUT for a number of eight bytes that the call
writes, OUT4 for one of four, Out(b'...') for bytes that it changes, and a Handle. All processes log to one file,
which is shown at the end, and share in one folder of the test's own.
"""
import collections
import contextlib
import os
import pathlib
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

PATIENT_S = 60
PUPPET, SHIM, BROKER = map(os.path.abspath, sys.argv[1:4])
HOW = sys.argv[4:]
MIB = 1 << 20
BLOCK = 4 * MIB
STAMP = 0x5ca1ab1e
NOBODY = 65533
ERRNO = 4711  # before each call
INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, MAP_FAILED = 1, 2, 201, 205
NOT_READY, NOT_PERMITTED, NOT_SUPPORTED = 600, 800, 801
# What cuda.h calls otherwise.
NAMES = {name: name + '_v2' for name in (
    'cuMemAlloc', 'cuMemFree', 'cuMemGetInfo', 'cuMemsetD8', 'cuMemsetD32', 'cuMemcpyDtoH', 'cuMemcpyHtoD',
    'cuMemcpyDtoD', 'cuMemcpyDtoDAsync',
    'cuMemGetAddressRange', 'cuMemHostRegister', 'cuCtxDestroy', 'cuCtxPopCurrent', 'cuCtxPushCurrent',
    'cuDevicePrimaryCtxRelease', 'cuDevicePrimaryCtxReset', 'cuEventDestroy', 'cuStreamDestroy', 'cuIpcOpenMemHandle',
    'cuStreamBeginCapture')}
STATE = collections.namedtuple('State', 'size since_ns away copied shared registered ending refused own text')
SLEEP_NS = 30 * 10**9
CENSUS = collections.namedtuple('Census', 'contexts streams events modules graphs handles reservations mappings '
                                          'exported blocks ipc_opened host_blocks pools bytes')


class Out(bytes):
    """Bytes that a call changes, which are said afterwards."""
    number = False


class Number(Out):
    number = True


class Handle(bytes):
    """Of memory or of an event, which is passed by value."""


OUT, OUT4 = Number(8), Number(4)


def fail(what):
    sys.exit(f'failed: {what}')


def check(holds, what):
    if not holds:
        fail(what)


def waits(condition):
    """Whether it holds, or comes to."""
    deadline = time.monotonic() + PATIENT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def await_that(condition, what):
    check(waits(condition), what)


def skip(why):
    print('skipped:', why)
    sys.exit(77)


# ---- What is around --------------------------------------------------------------------------------------------------


class Around:
    """The folder that processes share in, and their log. Nothing is left in the folder in the end."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix='gpushim-test-', dir='/tmp')
        self.log = tempfile.TemporaryFile()
        self.settings = {'LD_PRELOAD': SHIM, 'GPUSHIM_SHARE_DIR': self.folder, 'GPUSHIM_CONFIG': ''}
        # Whatever ends this, the folder and who runs there end with it.
        self.watcher = subprocess.Popen([PUPPET, 'watch', self.folder], stdin=subprocess.PIPE,
                                        env={**os.environ, 'GPUSHIM_SHARE_DIR': '/nowhere'})

    def environment(self, settings):
        all_of_it = {**os.environ, **self.settings, **settings}
        return {name: str(value) for name, value in all_of_it.items() if value is not None}

    def said(self):
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), size, 0).decode(errors='replace')

    def is_empty(self):
        return not os.path.exists(self.folder) or not os.listdir(self.folder)


def set_for_all(**settings):
    """Settings of all processes that are started from here on."""
    around.settings.update(settings)


def times_logged(words):
    return around.said().count(words)


def one_machine(memory='128M'):
    """All processes have the same GPUs."""
    set_for_all(SOFTCUDA_MACHINE=tempfile.mkdtemp(dir=around.folder) + '/machine', SOFTCUDA_MEMORY=memory)


# ---- Processes -------------------------------------------------------------------------------------------------------


def word_of(argument):
    if isinstance(argument, str):
        argument = argument.encode() + b'\0'
    if isinstance(argument, Handle):
        return '@' + argument.hex()
    if isinstance(argument, bytes):
        return '~' + argument.hex()
    return str(int(argument) & (1 << 64) - 1)


class Thread:
    """Of a process: what it is told is done in turn."""

    def __init__(self, channel):
        self.channel, self.heard, self.asked, self.errno = channel, b'', None, 0

    def tell(self, name, *arguments, forked=False):
        """And do not wait for the answer."""
        self.asked = name, arguments
        words = ['forked'] * forked + [NAMES.get(name, name), *map(word_of, arguments)]
        self.channel.sendall(' '.join(words).encode() + b'\n')

    def has_answered(self):
        return b'\n' in self.heard or bool(select.select([self.channel], [], [], 0)[0])

    def answer(self):
        """The result, of 64 bits, and what is in the buffers."""
        while b'\n' not in self.heard:
            check(select.select([self.channel], [], [], PATIENT_S)[0], f'{self.asked[0]} does not return')
            got = self.channel.recv(1 << 16)
            check(got, f'the process has ended in {self.asked[0]}')
            self.heard += got
        line, _, self.heard = self.heard.partition(b'\n')
        result, self.errno, *buffers = line.decode().split(' ')
        self.errno = int(self.errno)
        buffers = [bytes.fromhex(buffer) for buffer in buffers]
        passed = [argument for argument in self.asked[1] if isinstance(argument, (bytes, str))]
        outs = [int.from_bytes(buffer, 'little') if argument.number else buffer
                for argument, buffer in zip(passed, buffers) if isinstance(argument, Out)]
        return int(result), outs[0] if len(outs) == 1 else outs

    def call(self, name, *arguments):
        """The result as an int of C, and what it wrote."""
        self.tell(name, *arguments)
        result, outs = self.answer()
        return (result & 0xffffffff ^ 0x80000000) - 0x80000000, outs

    def result(self, name, *arguments):
        return self.call(name, *arguments)[0]

    def pointer(self, name, *arguments):
        self.tell(name, *arguments)
        return self.answer()[0]

    def forked(self, name, *arguments):
        """The wait status of a child that makes the call and ends with its result."""
        self.tell(name, *arguments, forked=True)
        return self.answer()[0]

    def __getattr__(self, name):
        if not name.startswith(('cu', 'gpushim_')):
            raise AttributeError(name)

        def must(*arguments):
            result, outs = self.call(name, *arguments)
            check(result == 0, f'{name} gave {result}')
            return outs
        return must

    # What several tests tell.

    def begin(self):
        """The first device's primary context is current afterwards."""
        self.cuInit(0)
        return self.set_context(self.cuDevicePrimaryCtxRetain(OUT, 0))

    def set_context(self, context):
        self.cuCtxSetCurrent(context)
        return context

    def alloc(self, size=BLOCK):
        return self.cuMemAlloc(OUT, size)

    def block(self, size=BLOCK, stamp=STAMP):
        block = self.alloc(size)
        self.cuMemsetD32(block, stamp, size // 4)
        self.cuCtxSynchronize()
        return block

    def word(self, address):
        return self.cuMemcpyDtoH(OUT4, address, 4)

    def write(self, address, word):
        self.cuMemsetD32(address, word, 1)
        self.cuCtxSynchronize()

    def handle(self, address):
        return Handle(self.cuIpcGetMemHandle(Out(64), address))

    def try_open(self, handle):
        return self.call('cuIpcOpenMemHandle', OUT, handle, 1)

    def open(self, handle):
        return self.cuIpcOpenMemHandle(OUT, handle, 1)

    def state_of(self, name, *arguments):
        error, state = self.call(name, *arguments, Out(struct.pack('Q', 392) + bytes(384)))
        return error, STATE(*struct.unpack('9Q320s', state))

    def try_sleep(self, timeout_ns=SLEEP_NS, discard=None):
        tag = self.pointer('place', discard, len(discard) + 1) if discard else 0
        return self.state_of('gpushim_sleep', struct.pack('4Q', 32, timeout_ns, 0, tag))

    def sleep(self, discard=None):
        error, state = self.try_sleep(discard=discard)
        check(error == 0, f'put to sleep: {state.text}')
        return state

    def must_wake(self):
        error, state = self.state_of('gpushim_wake', SLEEP_NS)
        check(error == 0 and not state.since_ns and not state.away, f'woken: {state.text}')

    def close(self, address):
        self.cuIpcCloseMemHandle(address)

    def opens(self, handle, stamp=STAMP):
        """Whether it can be opened; it is looked at and closed."""
        result, address = self.try_open(handle)
        if result == 0:
            check(self.word(address) == stamp, 'what was opened is not the block')
            self.close(address)
        return result == 0

    def range_of(self, address):
        return self.cuMemGetAddressRange(OUT, OUT, address)

    def use_memory(self):
        """A few allocations and frees of both kinds, which go whatever is around."""
        for _ in range(10):
            small, large = self.alloc(4096), self.alloc()
            self.cuMemsetD8(small, 7, 4096)
            self.cuMemFree(small)
            self.cuMemFree(large)

    def stream(self):
        return self.cuStreamCreate(OUT, 1)

    def hold(self, held):
        """The GPU does nothing meanwhile."""
        self.pointer('softcuda_hold', held)

    def has(self, name):
        return self.pointer('dlsym', 0, name) != 0

    def census(self):
        return CENSUS(*struct.unpack('13I4xQ', self.call('softcuda_census', Out(64))[1]))

    def trim(self):
        """What the arena can give back goes back: an allocation that cannot be had asks for it."""
        total = self.cuMemGetInfo(OUT, OUT)[1]
        check(self.result('cuMemAlloc', OUT, total - 1) == OUT_OF_MEMORY, 'that is not to be had')


class Puppet(Thread):
    """A process. `before` is a command that executes another."""
    all = []

    def __init__(self, *, threads=1, begin=True, before=(), files=None, user=None, program=PUPPET, **settings):
        pairs = [socket.socketpair() for _ in range(threads)]
        self.channels = [pair[1].fileno() for pair in pairs]
        super().__init__(pairs[0][0])
        self.threads = [self, *(Thread(pair[0]) for pair in pairs[1:])]
        environment = around.environment(settings)
        command = [program, *map(str, self.channels)]
        if before:  # which is not to have the library itself
            preload = environment.pop('LD_PRELOAD', None)
            command = [*before, 'env', *([f'LD_PRELOAD={preload}'] if preload else []), *command]
        self.process = start(command, environment, files, pass_fds=self.channels, user=user, group=user)
        for pair in pairs:
            pair[1].close()
        self.pid = self.process.pid
        Puppet.all.append(self)
        if begin:
            context = self.begin()
            for thread in self.threads[1:]:
                thread.set_context(context)

    def thread(self, number):
        return self.threads[number]

    def stop(self):
        """All of its threads stand still when this returns."""
        self.signal(signal.SIGSTOP)
        await_that(lambda: states(self.pid) == {'T'}, 'it stops')

    def go_on(self):
        self.signal(signal.SIGCONT)

    def signal(self, number):
        self.process.send_signal(number)

    def hang_up(self):
        for thread in self.threads:
            thread.channel.close()

    def end(self):
        self.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            check(self.process.wait(PATIENT_S) == 0, f'a process ended with {self.process.returncode}')
            return
        fail('a process does not end')

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.hang_up()

    def files(self, words='', below=None):
        """Its descriptors of files that have those words in their names, of those below a limit."""
        return [number for number, name in open_files(self.pid).items()
                if words in name and (below is None or number < below)]


def start(command, environment, files=None, **more):
    """So many descriptors may it have."""
    limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard_limit()))) if files else None
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=around.log, stderr=around.log,
                            preexec_fn=limit, **more)


def hard_limit():
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def need_descriptors(count):
    if hard_limit() < count:
        skip("the hard limit of descriptors (ulimit -Hn) leaves the software driver's memory no room")


def states(pid):
    """Of its threads: R runs, S sleeps, T stands; Z has ended."""
    found = set()
    for stat in pathlib.Path(f'/proc/{pid}/task').glob('*/stat'):
        with contextlib.suppress(OSError):
            found.add(stat.read_text().rpartition(')')[2].split()[0])
    return found


def open_files(pid):
    files = {}
    for entry in pathlib.Path(f'/proc/{pid}/fd').iterdir():
        with contextlib.suppress(OSError):
            files[int(entry.name)] = os.readlink(entry)
    return files


def cpu_s(pid):
    times = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf('SC_CLK_TCK')


class Broker:
    """In the foreground, in the folder. Its first thread sleeps when it has opened all that it keeps."""

    def __init__(self, files=None, **settings):
        self.process = start([BROKER], around.environment({**settings, 'LD_PRELOAD': None}), files)
        self.pid = self.process.pid
        await_that(self.listens, 'the broker listens')

    def listens(self):
        names = [name for name in os.listdir(around.folder) if name.startswith('broker')]
        return any('lock' not in name and 'new' not in name for name in names) and thread_sleeps(self.pid)

    def end(self):
        self.process.terminate()
        check(self.process.wait(PATIENT_S) == 0, 'the broker failed')


def thread_sleeps(thread):
    return pathlib.Path(f'/proc/{thread}/stat').read_text().rpartition(')')[2].split()[0] == 'S'


around = Around()


def main(tests):
    """`tests` are a program's globals: one of them is called."""
    good = False
    try:
        tests[HOW[0].replace('-', '_').replace(' ', '_')](*HOW[1:])
        for puppet in Puppet.all:
            if puppet.process.returncode is None:
                puppet.end()
        good = True
    finally:
        for puppet in Puppet.all:
            if puppet.process.poll() is None:
                puppet.kill()
        if not good:
            print(around.said())
        around.watcher.stdin.close()
        around.watcher.wait()
        shutil.rmtree(around.folder, ignore_errors=True)
    print('ok')
