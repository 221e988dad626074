"""What a program meets that sleeps: each test has a process of its own. Its calls are those of tests/asleep/inside.c,
the driver and the library.

    asleep.py PUPPET SHIM BROKER HOW...
"""
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from puppet import (INVALID_VALUE, MIB, OUT, OUT4, OUT_OF_MEMORY, PATIENT_S, SHIM, Out, Puppet, await_that, check, main,
                    set_for_all, skip)

SIZE, PIECE, PIECES = 5 * MIB, 2 * MIB, 6
SLOW_US = 3 * 10**6  # a call of the driver's that is looked at meanwhile
WORDS = SIZE // 4
LONG_NS, SHORT_NS = 30 * 10**9, 20 * 10**6
ENOENT, ENOMEM, EBUSY, EDEADLK, ENOTSUP, EALREADY = 2, 12, 16, 35, 95, 114


class Sleeper(Puppet):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.pointer('load_kernels')

    def block(self, size=SIZE, stamp=0):
        block = self.alloc(size)
        self.cuMemsetD32(block, stamp, size // 4)
        return block

    def must_sleep(self):
        state = self.sleep()
        check(state.since_ns and state.away, 'something is away')

    def sleep_and_wake(self):
        self.must_sleep()
        self.must_wake()

    def must_be(self, block, value, size=SIZE):
        check(self.result('is_all', block, size, value) & 1, f'all is {value:x}')

    def waits(self, thread):
        """It stands in a futex's wait."""
        with open(f'/proc/{self.pid}/task/{thread}/syscall', encoding='ascii') as file:
            return file.read().split()[0] == str(202 if os.uname().machine == 'x86_64' else 98)

    def tell_and_see_wait(self, name, *arguments):
        """Another thread makes the call, and waits: that thread."""
        thread = self.thread(1)
        task = thread.result('gettid')
        thread.tell(name, *arguments)
        # Before the call it waits for a line, which is no futex.
        await_that(lambda: self.waits(task), f'{name} waits')
        check(not thread.has_answered(), f'{name} is not done')
        return thread

    def map_piece(self, at, handle):
        self.cuMemMap(at, PIECE, 0, handle, 0)
        self.cuMemSetAccess(at, PIECE, struct.pack('3i', 1, 0, 3), 1)

    def create(self, types=0):
        return self.cuMemCreate(OUT, PIECE, struct.pack('4i16x', 1, types, 1, 0), 0)

    def reserve(self, pieces):
        return self.cuMemAddressReserve(OUT, pieces * PIECE, 0, 0, 0)


# ---- Work on several threads ------------------------------------------------------------------------


def among_workers(sleep_and_wake):
    """While they work; each time they have gone on."""
    one = Sleeper(threads=4)
    for number, thread in enumerate(one.threads[1:], 1):
        thread.tell('work', number)
    for _ in range(60):
        before = one.result('rounds_done')
        await_that(lambda: one.result('rounds_done') >= before + 2, 'they go on')
        sleep_and_wake(one)
    one.pointer('stop_work')
    for thread in one.threads[1:]:
        thread.answer()


def work():
    among_workers(Sleeper.sleep_and_wake)


def use():
    """With sleep.wake = use nobody else wakes it."""
    set_for_all(GPUSHIM_SLEEP_WAKE='use', GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on')

    def sleeps(one):
        error = EBUSY
        while error in (EBUSY, EALREADY):  # a worker is at waking it still
            error, state = one.try_sleep()
        check(error == 0, f'it sleeps: {error}, {state.text}')
    among_workers(sleeps)


def refused():
    """With sleep.wake = use, where it cannot be woken: calls that have no memory natively say so, a free waits. Once it
    can be, all is as it was."""
    one = Sleeper(threads=9, GPUSHIM_SLEEP_WAKE='use', GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on')
    block, graph_of = one.block(stamp=6), one.cuGraphCreate(OUT, 0)
    for device in 0, 1:
        one.cuDevicePrimaryCtxRetain(OUT, device)
    contexts = [one.thread(number).cuCtxCreate(OUT, 0, 0) for number in (4, 5)]  # of who ends them
    ends = [('cuMemFree', one.alloc(SIZE)), ('cuMemFreeAsync', one.alloc(SIZE), 0), ('cuStreamDestroy', one.stream()),
            *(zip(('cuCtxDestroy', 'cuCtxDetach'), contexts)), ('cuDevicePrimaryCtxRelease', 0),
            ('cuDevicePrimaryCtxReset', 1), ('cuStreamWaitEvent', 0, one.cuEventCreate(OUT, 0), 0)]
    tasks = [thread.result('gettid') for thread in one.threads[1:]]
    one.must_sleep()
    one.pointer('softcuda_fail', 'cuMemMap', 0, 999)
    for thread, end in zip(one.threads[1:], ends):
        thread.tell(*end)
    for call in (('cuMemcpyDtoH', Out(4), block, 4), ('cuMemsetD32Async', block, 7, WORDS, 0),
                 ('cuMemAlloc', OUT, SIZE), ('cuMemCreate', OUT, PIECE, struct.pack('4i16x', 1, 0, 1, 0), 0),
                 ('cuDevicePrimaryCtxRetain', OUT, 0), ('cuGreenCtxCreate', OUT, 0, 0, 0),
                 ('cuGraphAddMemAllocNode', OUT, graph_of, 0, 0, bytes(128))) * 20:
        check(one.result(*call) == OUT_OF_MEMORY, f'{call[0]} is refused')
    for task, end in zip(tasks, ends):
        await_that(lambda: one.waits(task), f'{end[0]} waits')
    one.cuMemGetInfo(OUT, OUT)
    error, state = one.state_of('gpushim_asleep')
    check(error == 0 and state.since_ns, 'it sleeps')
    one.pointer('softcuda_reset')
    one.must_be(block, 6)
    for thread, end in zip(one.threads[1:], ends):
        check(thread.answer()[0] == 0, f'{end[0]} is done')
    one.cuMemsetD32(block, 8, WORDS)
    one.must_be(block, 8)


def graph():
    """A graph that was made before is launched after."""
    one = Sleeper()
    a, b, stream = one.alloc(SIZE), one.alloc(SIZE), one.stream()
    one.cuStreamBeginCapture(stream, 2)
    one.pointer('launch_fill', a, 77, stream, WORDS)
    one.cuMemcpyDtoDAsync(b, a, SIZE, stream)
    executable = one.cuGraphInstantiateWithFlags(OUT, one.cuStreamEndCapture(stream, OUT), 0)
    for _ in range(3):
        one.cuMemsetD32(a, 1, WORDS)
        one.cuMemsetD32(b, 2, WORDS)
        one.sleep_and_wake()
        one.must_be(b, 2)
        one.cuGraphLaunch(executable, stream)
        one.cuStreamSynchronize(stream)
        one.must_be(a, 77)
        one.must_be(b, 77)


# ---- What the program maps itself -------------------------------------------------------------------


def own():
    """Every other piece is made anew after a wake, by numbers that the driver gives again."""
    one = Sleeper()
    one.alloc(SIZE)
    base = one.reserve(PIECES)
    at = [base + piece * PIECE for piece in range(PIECES)]
    handles = [one.create() for _ in at]
    for piece in range(PIECES):
        one.map_piece(at[piece], handles[piece])
        one.cuMemsetD32(at[piece], piece, PIECE // 4)

    def is_told():  # also while it sleeps
        told = struct.unpack('4i', one.cuMemGetAllocationPropertiesFromHandle(Out(32), handles[1])[:16])
        check((told[1], told[3]) == (0, 0), 'it is told as it was made')
    for turn in range(4):
        one.must_sleep()
        is_told()
        one.must_wake()
        is_told()
        for piece in range(PIECES):
            one.must_be(at[piece], 100 * turn + piece, PIECE)
        anew = range(turn % 2, PIECES, 2)
        for piece in anew:
            one.cuMemUnmap(at[piece], PIECE)
            one.cuMemRelease(handles[piece])
        for piece in anew:
            handles[piece] = one.create()
            one.map_piece(at[piece], handles[piece])
        for piece in range(PIECES):
            one.cuMemsetD32(at[piece], 100 * (turn + 1) + piece, PIECE // 4)
            check(one.cuMemRetainAllocationHandle(OUT, at[piece]) == handles[piece], 'its handle')
            one.cuMemRelease(handles[piece])
    one.cuCtxSynchronize()
    other = Sleeper()
    check(other.word(other.open(one.handle(at[0]))) == 400, 'what was made anew is shared as before')
    other.end()
    one.cuMemUnmap(base, PIECES * PIECE)
    for handle in handles:
        one.cuMemRelease(handle)
    if one.has('softcuda_reset'):  # a GPU's driver follows such a number wherever it leads
        check(one.result('cuMemRelease', handles[0]) != 0, 'no handle is released once too often')
    one.cuMemAddressFree(base, PIECES * PIECE)


def lent():
    """After a wake it is given away as before; from then on it stays."""
    one = Sleeper()
    one.alloc(SIZE)
    base = one.reserve(3)
    handle = one.create(1)
    one.map_piece(base, handle)
    one.cuMemsetD32(base, 5, PIECE // 4)
    one.sleep_and_wake()
    fd = one.cuMemExportToShareableHandle(OUT4, handle, 1, 0)
    one.map_piece(base + PIECE, one.cuMemImportFromShareableHandle(OUT, fd, 1))
    one.map_piece(base + 2 * PIECE, one.create(1))
    one.cuMemGetHandleForAddressRange(OUT4, base + 2 * PIECE, PIECE, 1, 0)
    state = one.sleep()
    check((state.shared, state.own) == (3 * PIECE, 0), f'{state.shared} bytes are shared')
    one.must_wake()
    one.cuMemsetD32(base, 6, PIECE // 4)
    check(one.word(base + PIECE) == 6, 'what was given away is that memory')


def dma_buf():
    """It stays: else the descriptor had other memory than its address, after a wake."""
    one, size = Sleeper(), 200 * MIB  # of several pieces
    block = one.alloc(size)
    one.cuMemsetD32(block, 5, WORDS)
    one.cuMemGetHandleForAddressRange(OUT4, block, size, 1, 0)
    state = one.sleep()
    check(state.shared >= size and not state.away, f'{state.shared} bytes are shared, and {state.away} away')
    one.must_wake()
    one.must_be(block, 5)
    one.cuMemFree(block)


def tag():
    """Of either kind of memory: what is discarded is there again, and anything."""
    one = Sleeper()
    kept, base = one.block(stamp=8), one.reserve(2)
    check(one.result('gpushim_tag', 'kv') == 0, 'a tag')
    block, handles = one.block(stamp=9), [one.create()]
    check(one.result('gpushim_tag', 0) == 0, 'no tag')
    handles.append(one.create())
    for piece, handle in enumerate(handles):
        one.map_piece(base + piece * PIECE, handle)
        one.cuMemsetD32(base + piece * PIECE, 7, PIECE // 4)
    state = one.sleep(discard='kv')
    check(state.away >= 2 * SIZE + 2 * PIECE and state.copied <= SIZE + PIECE + MIB,
          f'of {state.away} bytes {state.copied} are kept')
    one.must_wake()
    one.must_be(kept, 8)
    one.cuMemsetD32(block, 10, WORDS)
    one.must_be(block, 10)
    one.cuMemsetD32(base, 11, PIECE // 4)
    one.sleep_and_wake()
    one.must_be(block, 10)


# ---- Who is waited for, and who waits ----------------------------------------------------------------


def under_way():
    """A call that does not return is named, and the gate opens again; also one that has waited there."""
    one = Sleeper(threads=2)
    block = one.alloc(SIZE)
    one.hold(1)
    one.pointer('launch_fill', block, 5, 0, WORDS)
    one.thread(1).tell('cuMemcpyDtoH', Out(4), block, 4)
    text = b''
    while b'cuMemcpyDtoH_v2' not in text:  # it may be on its way to the call still
        error, state = one.try_sleep(SHORT_NS)
        check(error == EBUSY and not state.since_ns, f'it does not sleep: {error}, {state.text}')
        text = state.text
    one.hold(0)
    one.thread(1).answer()
    one.sleep_and_wake()
    one.must_be(block, 5)
    one.pointer('softcuda_delay', 'cuStreamCreate', SLOW_US)
    one.must_sleep()
    late = one.tell_and_see_wait('cuStreamCreate', OUT, 0)
    made = one.result('softcuda_calls', 'cuStreamCreate')
    one.must_wake()
    await_that(lambda: one.result('softcuda_calls', 'cuStreamCreate') > made, 'the call that waited is made')
    error, state = one.try_sleep(SHORT_NS)
    check(error == EBUSY and b'cuStreamCreate' in state.text,
          f'a call that has waited is waited for: {error}, {state.text}')
    late.answer()
    one.sleep_and_wake()


def hidden():
    """A thread that ends while all are listed hides one that is in a call, and another begins: there are as many as
    before."""
    one = Sleeper()
    block = one.block(stamp=4)
    one.pointer('softcuda_delay', 'cuStreamCreate', SLOW_US)
    made = one.result('softcuda_calls', 'cuStreamCreate')
    one.pointer('make_stream_hidden')
    await_that(lambda: one.result('softcuda_calls', 'cuStreamCreate') > made, 'one is in the call')
    error, state = one.try_sleep(15 * SHORT_NS)
    check(error == EBUSY and b'cuStreamCreate' in state.text, f'it is waited for: {error}, {state.text}')
    check(one.result('was_hidden') & 1, 'it was not listed at first')
    one.sleep_and_wake()
    one.must_be(block, 4)


def asks():
    """Questions about what is away wait for it; others are answered."""
    one = Sleeper(threads=2)
    mapped = one.reserve(1)
    one.map_piece(mapped, one.create())
    host, kind = one.pointer('place', bytes(8), 8), struct.pack('i', 2)
    kinds = one.pointer('place', kind, 4)
    for block in one.alloc(SIZE), mapped:
        answer = one.pointer('place', bytes(8), 8)
        for call in (('cuMemGetAddressRange', OUT, OUT, block), ('cuMemGetAccess', OUT, struct.pack('2i', 1, 0), block),
                     ('cuPointerGetAttribute', OUT4, 2, block),
                     ('cuPointerGetAttributes', 1, kinds, struct.pack('Q', answer), block)):
            one.must_sleep()
            thread = one.tell_and_see_wait(*call)
            check(one.result('cuPointerGetAttribute', OUT4, 2, host) == INVALID_VALUE,
                  "the host's memory is not told of")
            one.must_wake()
            result, outs = thread.answer()
            check(result == 0, f'{call[0]} answers: {result}')
            check(call[0] != 'cuMemGetAddressRange' or outs[0] == block, 'its range')
            check(call[0] != 'cuPointerGetAttribute' or outs == 2, 'its kind')
        check(one.pointer('peek', answer) == 2, 'its kind among others')


def limits():
    """Of a context's limits that of its stacks, which sleep lowers, is told when it is as before."""
    one = Sleeper(threads=2)
    one.alloc(SIZE)
    stack, queue = (one.cuCtxGetLimit(OUT, limit) for limit in (0, 1))
    one.must_sleep()
    thread = one.tell_and_see_wait('cuCtxGetLimit', OUT, 0)
    check(one.cuCtxGetLimit(OUT, 1) == queue, 'another is told at once')
    one.must_wake()
    check(thread.answer() == (0, stack), 'it is what it was')


def small():
    """With sleep.wake = use: whoever calls wakes it on the stack that it has, also where the GPU is full at first and
    others are asked."""
    one = Sleeper(GPUSHIM_SLEEP_WAKE='use', GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on')
    block = one.alloc(SIZE)
    for full in False, True:
        one.must_sleep()
        if full:
            one.pointer('softcuda_fail', 'cuMemCreate', 1, OUT_OF_MEMORY)
        one.pointer('fill_on_small_stack', block)
        one.must_be(block, 9)


MOUNTS = ('mount --bind "$0/meminfo" /proc/meminfo && mount --bind "$0/cgroup" /proc/$$/cgroup && '
          'mount --bind "$0/groups" /sys/fs/cgroup && exec "$@"')
KIB = 1024
OLD, OUTER, INNER = ('groups/' + group for group in ('memory/old', 'outer', 'outer/inner'))
ROOMY = {'meminfo': f'MemTotal: 1 kB\nMemAvailable: {64 * KIB} kB\n',
         'cgroup': '4:cpu,memory:/old\n1:name=x:/\n0::/outer/inner\n',
         f'{OLD}/memory.limit_in_bytes': 1 << 62, f'{OLD}/memory.usage_in_bytes': 6 * MIB, f'{OLD}/memory.stat': ''} | {
             f'{group}/memory.{name}': text for group in (OUTER, INNER)
             for name, text in (('max', 'max'), ('high', 'max'), ('current', 6 * MIB), ('stat', 'file 9\n'))}


def room():
    """Whether the host has room is known before anything moves: by the kernel, and by what groups of either kind
    leave."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        def tell(**told):
            for name, text in (ROOMY | told).items():
                with open(os.path.join(folder, name), 'w', encoding='ascii') as file:
                    file.write(str(text))
        for group in OLD, INNER:
            os.makedirs(os.path.join(folder, group))
        tell()
        before = ('unshare', '--map-root-user', '--mount', 'sh', '-c', MOUNTS, folder)
        if subprocess.run([*before, 'true'], stderr=subprocess.DEVNULL, check=False).returncode:
            skip('nothing can be mounted')
        one = Sleeper(before=before)
        block = one.block(stamp=12)
        for little in ({'meminfo': f'MemAvailable: {4 * KIB} kB\n'}, {f'{OUTER}/memory.max': 10 * MIB},
                       {f'{INNER}/memory.high': 10 * MIB}, {f'{OLD}/memory.limit_in_bytes': 10 * MIB},
                       {f'{INNER}/memory.max': 10 * MIB, f'{INNER}/memory.stat': 'inactive_file 1\n'}):
            tell(**little)
            error, state = one.try_sleep()
            check(error == ENOMEM and b"the host's memory has room for " in state.text,
                  f'with {little}: {error}, {state.text}')
            one.must_be(block, 12)
        for enough in ({}, {f'{OUTER}/memory.max': 12 * MIB},
                       {f'{INNER}/memory.max': 10 * MIB, f'{INNER}/memory.stat': f'inactive_file {2 * MIB}\n'}):
            tell(**enough)
            one.sleep_and_wake()
            one.must_be(block, 12)


def captures():
    """A stream that captures is named at once, and so is a tag that nothing has; the capture goes on."""
    one = Sleeper()
    block, stream = one.block(stamp=5), one.stream()
    one.cuStreamBeginCapture(stream, 0)
    error, state = one.try_sleep(20 * LONG_NS)
    check(error == EBUSY and b'stream 0x%x captures' % stream in state.text, f'{error}, {state.text}')
    one.cuMemsetD32Async(block, 6, 1, stream)
    one.cuGraphDestroy(one.cuStreamEndCapture(stream, OUT))
    one.sleep_and_wake()
    one.hold(1)
    one.cuMemsetD32Async(block, 5, 1, stream)
    error, state = one.try_sleep(discard='kv')
    check(error == ENOENT and b"tag 'kv'" in state.text, f'{error}, {state.text}')
    one.hold(0)
    one.must_be(block, 5)


def signals():
    """Signals are the program's: their handlers run, and the call goes on afterwards."""
    one = Sleeper(threads=2)
    block, itself = one.alloc(SIZE), one.thread(1).pointer('pthread_self')
    one.result('signals_counted')
    one.must_sleep()
    thread = one.tell_and_see_wait('cuMemsetD32', block, 9, WORDS)
    for count in range(1, 21):
        one.result('pthread_kill', itself, signal.SIGUSR1)
        await_that(lambda: one.result('signals_counted') >= count, 'its handler runs')
    check(not thread.has_answered(), 'the call is not done')
    one.must_wake()
    check(thread.answer()[0] == 0 and thread.errno == 4711, 'it is done, and errno is as before')
    one.must_be(block, 9)


def info():
    """What the program is told of free memory does not change while it sleeps."""
    one = Sleeper()
    one.alloc(SIZE)
    one.sleep_and_wake()
    before = one.cuMemGetInfo(OUT, OUT)
    one.must_sleep()
    check(one.cuMemGetInfo(OUT, OUT) == before, 'as much is free')
    one.must_wake()


def within():
    """What the program does within a call, by what it is told of memory, is of that call."""
    one = Sleeper(threads=2)
    error = one.result('sleep_within_free', one.alloc(SIZE))
    check(error == EDEADLK, f'within a call: error {error}')
    freed = one.alloc(SIZE)
    one.alloc(SIZE)
    one.sleep_and_wake()
    slow = one.thread(1)
    slow.tell('free_slowly', freed)
    await_that(lambda: one.result('is_freeing_slowly') & 1, 'it frees')
    one.must_sleep()
    await_that(slow.has_answered, 'the free is done, and was waited for')
    slow.answer()
    one.must_wake()


def unknown():
    """A call that nobody knows was looked up."""
    one = Sleeper()
    one.alloc(SIZE)
    one.cuGetProcAddress_v2('cuLaunchKernelNext', OUT, 14000, 0, 0)
    error, state = one.try_sleep()
    check(error == ENOTSUP and b'cuLaunchKernelNext' in state.text, f'it is named: {error}, {state.text}')


def looked_up():
    """Nor is it found while the process sleeps, either way; and who looks it up as the gate closes keeps it awake."""
    for look_up in ('cuGetProcAddress_v2', 'cuLaunchKernelNext', OUT, 14000, 0, 0), ('dlsym', 0, 'cuLaunchKernelNext'):
        one = Sleeper(threads=2)
        one.alloc(SIZE)
        one.must_sleep()
        thread = one.tell_and_see_wait(*look_up)
        one.must_wake()
        thread.answer()
        check(one.try_sleep()[0] == ENOTSUP, 'it is known afterwards')
    one = Sleeper(threads=3)
    block = one.block(stamp=3)
    task = one.thread(1).result('gettid')
    one.pointer('halt_listing', task)
    one.tell('gpushim_sleep', struct.pack('4Q', 32, LONG_NS, 0, 0), 0)
    await_that(lambda: one.thread(1).result('is_halted_at') == task, 'it lists the threads')
    thread = one.tell_and_see_wait('cuGetProcAddress_v2', 'cuLaunchKernelNext', OUT, 14000, 0, 0)
    one.thread(2).pointer('halt_listing', 0)
    check(one.answer()[0] == ENOTSUP, 'it does not sleep')
    check(thread.answer()[0] == 0, 'it is found')
    one.must_be(block, 3)


def forbidden():
    """Where threads cannot be looked at, or be told, no gate is closed for good."""
    one = Sleeper(threads=4)
    block = one.alloc(SIZE)
    for call, thread in zip(('membarrier', 'get_robust_list', 'process_vm_readv'), one.threads[1:]):
        check(thread.result('forbid', call, 38) == 0, 'there is a filter of calls')
        error, state = thread.state_of('gpushim_sleep', struct.pack('4Q', 32, LONG_NS, 0, 0))
        check(error == ENOTSUP and call.encode() in state.text, f'without {call}: {error}, {state.text}')
        thread.cuMemsetD32(block, 5, WORDS)  # the gate is open
    one.sleep_and_wake()
    one.must_be(block, 5)


def apart():
    """In a PID namespace with the /proc of another the threads have other numbers there: that is said at once."""
    before = ('unshare', '--map-root-user', '--pid', '--kill-child', '--fork')
    if subprocess.run([*before, 'true'], stderr=subprocess.DEVNULL, check=False).returncode:
        skip('no PID namespace can be made')
    one = Sleeper(before=before)
    block = one.block(stamp=2)
    error, state = one.try_sleep()
    check(error == ENOTSUP and b'PID namespace' in state.text, f'it does not sleep: {error}, {state.text}')
    one.must_be(block, 2)


def main_ends():
    """Other threads go on when the main one has ended: by its own number the process has no memory any more."""
    one = Sleeper(threads=2)
    block, thread = one.block(stamp=4), one.thread(1)
    one.tell('pthread_exit', 0)
    stat = pathlib.Path(f'/proc/{one.pid}/stat')
    await_that(lambda: stat.read_text().rpartition(')')[2].split()[0] == 'Z', 'it ends')
    for folder in 0, thread.pointer('place', b'/tmp\0', 5):
        error, state = thread.state_of('gpushim_sleep', struct.pack('4Q', 32, LONG_NS, folder, 0))
        check(error == 0, f'it sleeps: {error}, {state.text}')
        error, state = thread.state_of('gpushim_wake', LONG_NS)
        check(error == 0, f'it wakes: {error}, {state.text}')
        check(thread.result('is_all', block, SIZE, 4) & 1, 'all is 4')
    thread.tell('_exit', 0)
    check(one.process.wait(PATIENT_S) == 0, 'it has ended')


# ---- Ends -------------------------------------------------------------------------------------------


def fork():
    """A child that is forked meanwhile passes all on, and so does what it becomes."""
    one = Sleeper()
    block = one.block(stamp=3)
    one.must_sleep()
    status = one.forked('free_in_child', block)
    check(status == 7 << 8, f'the child does not sleep: it ended with {status:x}')
    check(one.result('execute') == 0, 'what a child becomes works')
    one.must_wake()
    one.must_be(block, 3)


def end_asleep():
    """It waits for no wake, though handlers free what is away, and other threads wait."""
    one = Sleeper(threads=2)
    block = one.alloc(SIZE)
    one.pointer('at_the_end', block, 0)
    one.sleep()
    one.thread(1).tell('cuMemcpyDtoH', Out(4), block, 4)
    time.sleep(0.01)
    one.end()


def end_again():
    """Also those handlers that were registered since it first slept."""
    one = Sleeper()
    block = one.alloc(SIZE)
    one.sleep_and_wake()
    one.pointer('at_the_end', block, 0)
    one.sleep()
    one.end()


def end_quick():
    """By quick_exit, whose handlers are others."""
    one = Sleeper()
    block = one.alloc(SIZE)
    one.sleep_and_wake()
    one.pointer('at_a_quick_end', block)
    one.sleep()
    one.tell('quick_exit', 0)
    check(one.process.wait(timeout=PATIENT_S) == 0, 'it ends')


def end_late():
    """Nobody puts it to sleep any more."""
    one = Sleeper()
    one.pointer('at_the_end', one.alloc(SIZE), 1)
    one.sleep_and_wake()
    one.end()


def end_waking():
    """A wake that waits for the GPU's memory is not waited for. A copy under way is, by this clock for good."""
    one = Sleeper(threads=2, LD_PRELOAD=f'{SHIM}:{os.environ["STILL_CLOCK"]}')
    one.pointer('signal', signal.SIGPIPE, 1)  # the wake gives up, and nobody hears of that
    one.block()
    one.sleep()
    one.pointer('softcuda_fail', 'cuMemCreate', 0, OUT_OF_MEMORY)
    made = one.result('softcuda_calls', 'cuMemCreate')
    one.thread(1).tell('gpushim_wake', LONG_NS, 0)
    await_that(lambda: one.result('softcuda_calls', 'cuMemCreate') > made + 1, 'it tries to wake')
    one.end()


main(globals())
