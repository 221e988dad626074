"""Blocks of cuMemAlloc that several processes share, in the order in which the tests stand in meson.build.

    blocks.py PUPPET SHIM BROKER HOW...
"""
import os
import pathlib
import re
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from puppet import (BLOCK, BROKER, INVALID_CONTEXT, INVALID_VALUE, MIB, NOT_SUPPORTED, OUT, OUT_OF_MEMORY,
                    SHIM, STAMP, Broker,
                    Handle, Out, Puppet, around, await_that, check, fail, main, need_descriptors, one_machine,
                    set_for_all, times_logged)


# ---- What does nothing is not woken -----------------------------------------------------------


def sleeps(pid):
    """How often threads of a process have gone to sleep; one that ends is seen, too."""
    status = [path.read_text() for path in pathlib.Path(f'/proc/{pid}/task').glob('*/status')]
    return sum(int(re.search(r'^voluntary_ctxt_switches:\s*(\d+)', text, re.M)[1]) + 1 for text in status)


def asleep():
    """One process shares memory; another has some of it open, and some closed and kept. Then both are woken by
    nothing but what removes their sockets, which are there again."""
    looks, most, quiet, last = 3000, 30000, 0, None  # of a millisecond, or as long as the machine takes for one
    set_for_all(GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on')
    owner, other = Puppet(), Puppet()
    opened = [other.open(owner.handle(owner.alloc(128 * MIB))) for _ in range(2)]
    other.close(opened[1])
    while quiet < looks:
        now = sleeps(owner.pid), sleeps(other.pid)
        quiet = quiet + 1 if now == last else 0
        last, most = now, most - 1
        check(most > 0, 'a program that does nothing is woken again and again')
        time.sleep(0.001)
    sockets = [path for path in pathlib.Path(around.folder).iterdir() if path.is_socket()]
    check(sockets, 'nobody has a socket')
    for path in sockets:
        path.unlink()
    await_that(lambda: all(path.is_socket() for path in sockets if path.exists()) and
               sum(path.is_socket() for path in pathlib.Path(around.folder).iterdir()) == len(sockets),
               'a socket that was removed is put up again')


def private():
    """A process that uses memory of its own alone has no share thread and no socket; one that has asked for a
    handle has both."""
    one = Puppet(begin=False)
    folder = pathlib.Path(around.folder)
    had = len(one.files('socket:'))

    def of_sharing():
        threads = [path.read_text() for path in pathlib.Path(f'/proc/{one.pid}/task').glob('*/comm')]
        return (threads.count('gpushim-share\n'), len(one.files('socket:')) - had,
                sum(path.is_socket() for path in folder.iterdir()))
    one.begin()
    stream = one.stream()
    for _ in range(20):
        small, large = one.alloc(4096), one.alloc(8 * MIB)
        ordered = one.cuMemAllocAsync(OUT, MIB, stream)
        one.cuMemsetD32Async(ordered, 1, MIB // 4, stream)
        one.cuMemcpyDtoD(large, small, 4096)
        one.cuMemFreeAsync(ordered, stream)
        one.cuMemFree(small)
        one.cuMemFree(large)
        one.cuMemGetInfo(OUT, OUT)
    check(of_sharing() == (0, 0, 0), f'threads, sockets, sockets in the folder: {of_sharing()}')
    one.handle(one.alloc(4096))
    await_that(lambda: of_sharing()[0] and of_sharing()[1] and of_sharing()[2] == 1, 'what sharing takes is there')


# ---- What others have, and its way back --------------------------------------------------------

BLOCKS, MOST = 40, 104 * MIB  # of 128 MiB


def freed_while_mapped(holds, **settings):
    """Blocks of an owner that are freed while another process has them open, or keeps their mappings: both, and
    how much the other has mapped."""
    owner, other = (Puppet(SOFTCUDA_MEMORY='128M', GPUSHIM_DEBUG_IDLE='10 min', **settings) for _ in range(2))
    before = other.census().mappings
    blocks = [owner.alloc(2 * MIB) for _ in range(BLOCKS)]
    for address in [other.open(owner.handle(block)) for block in blocks]:
        if not holds:
            other.close(address)
    check(other.census().mappings - before >= BLOCKS, 'it stays mapped: else this test shows nothing')
    for block in blocks:
        owner.cuMemFree(block)
    return owner, other, lambda: other.census().mappings - before


def called_back(how):
    """What another process only keeps for its next open is called back: no descriptor keeps the memory from the
    driver. `create`: the program's cuMemCreate finds the GPU full; `full`: behind an allocation that does, and has
    the memory at once; `trim`: it lies idle, and neither program does anything."""
    owner, _, mapped = freed_while_mapped(False, GPUSHIM_POOL_DECAY='300 ms' if how == 'trim' else '0')
    anchor = 1  # a descriptor of what the device was probed with
    made = 0
    if how == 'full':  # at once: the other one has not heard of it yet
        owner.cuMemFree(owner.alloc(MOST))
    if how != 'trim':
        made = owner.cuMemCreate(OUT, MOST, on_device(), 0)

    def is_back():
        now, there = owner.census(), mapped()
        return now.handles < BLOCKS and there <= now.handles and now.exported <= now.handles + anchor
    await_that(is_back, f'memory that went back is not kept: {owner.census()}')
    if made:
        owner.cuMemRelease(made)


def limbo_is_said(setting, value):
    """What the other process has open still the log tells of. Told by their age they may be as many as were freed
    before the machine stood still."""
    _, other, _ = freed_while_mapped(True, GPUSHIM_POOL_DECAY='0', **{f'GPUSHIM_DEBUG_{setting}': value})
    words = f'most by process {other.pid} (puppet): ' + ('' if setting.endswith('AGE') else f'{BLOCKS} blocks')
    await_that(lambda: words in around.said(), 'the log says what is freed and still held')


def on_device():
    return bytes([1, 0, 0, 0, 0, 0, 0, 0, 1]).ljust(32, b'\0')


def coming(how, *native):
    """A program frees what another one reads, that one reads on for a while, and as soon as it has closed it,
    exited or been killed, and this is known here, the first one needs the memory, and has it as natively.
    `busy`: it closes while GPU work of its own still runs."""
    one_machine('64M')
    if native:
        set_for_all(LD_PRELOAD=None)
    owner = Puppet()
    for reads_on_s in 0, 0.3, 0.6, 0.9, 1.5:
        other = Puppet()
        stream = other.stream()
        shared = owner.alloc(40 * MIB)
        opened = other.open(owner.handle(shared))
        owner.cuMemFree(shared)
        time.sleep(reads_on_s)
        if how == 'busy':
            other.cuLaunchHostFunc(stream, other.pointer('dlsym', 0, 'usleep'), 20000)
        if how in ('busy', 'close'):
            other.close(opened)
        elif how == 'exit':
            other.end()
        else:
            other.kill()
        owner.cuMemFree(owner.alloc(45 * MIB))
        if how in ('busy', 'close'):
            other.end()


def in_flight(how):
    """A handle that is on its way when its block is freed opens 3 s later, where the GPU has room; and until the
    memory is needed."""
    set_for_all(GPUSHIM_LOG='info', SOFTCUDA_MEMORY='128M')
    sender, other = Puppet(), Puppet()
    block = sender.block()
    handle = sender.handle(block)
    sender.cuMemFree(block)
    if how == 'room':
        time.sleep(3)
        check(other.opens(handle), 'it opens')
    else:
        sender.result('cuMemAlloc', OUT, 128 * MIB)
        check(not other.opens(handle), 'what was needed is not kept')
        check(times_logged('memory is needed: freed blocks whose handles nobody has opened yet (1)') == 1, 'it is said')


# ---- Where memory is that an allocation did not get ---------------------------------------------


def needs(one):
    result, block = one.call('cuMemAlloc', OUT, 45 * MIB)
    if result == 0:
        one.cuMemFree(block)
    return result


def lacks(one):
    check(needs(one) == OUT_OF_MEMORY, 'the memory is not to be had: else this test shows nothing')


def lines_of_shortage(words=''):
    return sum('warning: no 45 MiB are left on device 0; ' in line and words in line
               for line in around.said().split('\n'))


def is_said(one, words):
    """Once a second, and who has it when the library's thread has had the time to look."""
    def said():
        if not lines_of_shortage(words):
            lacks(one)
        return lines_of_shortage(words) > 0
    await_that(said, f'it is said: {words}')


def freed_while_open(idle='10 min', closes=False):
    """40 of 64 MiB that another process has open, or has closed and is stopped since."""
    owner, other = (Puppet(SOFTCUDA_MEMORY='64M', GPUSHIM_DEBUG_IDLE=idle) for _ in range(2))
    return owner, other, share_and_free(owner, other, closes, 0)


def share_and_free(owner, other, closes, after_s):
    before = other.census().mappings
    shared = owner.alloc(40 * MIB)
    opened = other.open(owner.handle(shared))
    if closes:
        other.close(opened)
        if after_s:
            await_that(lambda: other.census().mappings == before, 'it keeps nothing')
        time.sleep(after_s)
        other.stop()
    owner.cuMemFree(shared)


def shortage(how):
    """An allocation that fails says where memory is that nobody uses, and who has it: one line of log."""
    owner, other, _ = freed_while_open(closes=how == 'stopped')
    lacks(owner)
    if how == 'often':  # tried without end: one line a second
        began = time.monotonic()
        while lines_of_shortage() < 2:
            lacks(owner)
        check(lines_of_shortage() - 1 <= time.monotonic() - began + 1, 'it is said once a second')
        return
    stopped = ', stopped,' if how == 'stopped' else ''
    is_said(owner,
            f'40 MiB are freed and with 1 other processes: process {other.pid} (puppet){stopped} has 40 MiB for ')
    if stopped:
        other.go_on()
    else:
        other.end()
    await_that(lambda: needs(owner) == 0, 'it has come back')


def shortage_of_nobody():
    """Under debug.idle 0 the other one keeps nothing: what it has closed it has given back a moment after it was
    unmapped, if it was not stopped before."""
    for after_s in 0.001, 0.01, 0.1, 1, 5:
        owner, other = (Puppet(SOFTCUDA_MEMORY='64M', GPUSHIM_DEBUG_IDLE='0') for _ in range(2))
        share_and_free(owner, other, True, after_s)
        result = needs(owner)
        other.go_on()
        if result == 0:
            return
    fail('what nobody keeps is to be had')


def shortage_behind_work():
    one = Puppet(SOFTCUDA_MEMORY='64M')
    stream = one.cuStreamCreate(OUT, 1)
    block = one.cuMemAllocAsync(OUT, 40 * MIB, stream)
    one.cuStreamSynchronize(stream)
    one.hold(1)
    one.cuMemsetD8Async(block, 1, 40 * MIB, stream)
    one.cuMemFreeAsync(block, stream)
    lacks(one)
    is_said(one, '40 MiB are freed behind GPU work that has not ended')
    one.hold(0)
    await_that(lambda: needs(one) == 0, 'it has come back')


def peer():
    """What is opened is reached by a peer that was let in, or is not opened: the driver may have no memory for the
    peer's page tables."""
    set_for_all(SOFTCUDA_DEVICES=2, GPUSHIM_DEBUG_IDLE=0)
    owner, one = Puppet(), Puppet()
    handle = owner.handle(owner.block())
    one.use_memory()
    here = one.cuCtxGetCurrent(OUT)
    there = one.set_context(one.cuDevicePrimaryCtxRetain(OUT, 1))
    one.cuCtxEnablePeerAccess(here, 0)
    one.set_context(here)
    before = one.census().mappings
    one.pointer('softcuda_reset')
    one.pointer('softcuda_fail', 'cuMemSetAccess', 2, OUT_OF_MEMORY)  # the first is the importer's own
    check(one.try_open(handle)[0] == OUT_OF_MEMORY, 'it is not opened where the peer may not touch it')
    block = one.open(handle)
    one.set_context(there)
    one.cuMemsetD32Async(block, 0, 1, 1)
    one.cuCtxSynchronize()
    one.set_context(here)
    one.close(block)
    await_that(lambda: one.census().mappings == before, 'what was refused is not mapped')


# ---- Refusals ------------------------------------------------------------------------------------


def refusal(one, wanted, words, name, *arguments):
    """The call gives that error, and says so in those words."""
    before = len(around.said())
    result = one.result(name, *arguments)
    check(result == wanted and words in around.said()[before:],
          f'{name} gave {result}, not {wanted}, or did not say {words}')


def refused(how):
    """Every refusal to share names its reason in the log and gives the driver's error to the caller."""
    other = Puppet()
    one = Puppet(GPUSHIM_LOG='debug', GPUSHIM_SHARE_ENABLE='off' if how == 'off' else 'on',
                 GPUSHIM_SHARE_ISOLATE='refuse' if how == 'isolate' else 'off')
    theirs = other.handle(other.alloc(4096))
    if how != 'on':
        block = one.alloc(4096)
        for _ in range(2):  # the first time and every time
            refusal(one, NOT_SUPPORTED, f'share.{"enable is off" if how == "off" else "isolate is on"}',
                    'cuIpcGetMemHandle', Out(64), block)
        if how == 'off':
            refusal(one, NOT_SUPPORTED, 'sharing is off here', 'cuIpcOpenMemHandle', OUT, theirs, 1)
        return
    block = one.alloc(4096)
    own = one.handle(block)
    changed = Handle(theirs[:40] + bytes([theirs[40] ^ 1]) + theirs[41:])
    for wanted, words, arguments in (
            (INVALID_CONTEXT, 'opened in the process that made it', (OUT, own, 1)),
            (INVALID_VALUE, 'flags 0, and 1', (OUT, theirs, 0)),
            (INVALID_VALUE, 'nowhere to write', (0, theirs, 1)),
            (INVALID_VALUE, 'was changed on its way', (OUT, changed, 1))):
        refusal(one, wanted, words, 'cuIpcOpenMemHandle', *arguments)
    context = one.cuCtxPopCurrent(OUT)
    refusal(one, INVALID_CONTEXT, 'no context of a GPU', 'cuIpcOpenMemHandle', OUT, theirs, 1)
    one.cuCtxPushCurrent(context)
    refusal(one, INVALID_VALUE, 'no IPC memory was closed', 'cuIpcCloseMemHandle', block)
    opened = one.open(theirs)
    refusal(one, INVALID_VALUE, 'does not begin at', 'cuIpcCloseMemHandle', opened + 256)
    one.close(opened)
    one.cuMemFree(block)
    refusal(one, INVALID_VALUE, 'no block in use lies at', 'cuIpcGetMemHandle', Out(64), block)
    late = Puppet()  # one that had been opened would be open still
    theirs = late.handle(late.alloc(4096))
    late.end()
    refusal(one, INVALID_VALUE, 'has ended', 'cuIpcOpenMemHandle', OUT, theirs, 1)


# ---- Where there is no place for a socket ----------------------------------------------------------


def nowhere(how):
    """Where this library could not share memory the driver does: whoever takes its place in the file system, or
    forbids sockets, switches nobody's CUDA IPC off. The driver's own memory from the beginning, and in each process
    one line of why."""
    above = around.folder + '/above'
    set_for_all(GPUSHIM_SHARE_DIR=above + '/run')
    if how != 'folder':
        os.mkdir(above, 0o700)
    why = 'cannot be made: No such file' if how == 'folder' else 'no socket can be made in'

    def process():
        it = Puppet(begin=False)
        if how != 'folder':
            check(it.result('forbid', how, 1) == 0, 'there is a filter of calls')
        it.begin()
        return it
    owner = process()
    for _ in range(2):
        block = owner.block()
        check(process().opens(owner.handle(block)), 'another process opens the block')
        owner.cuMemFree(block)
    check(times_logged("stay the driver's own") == 3 and times_logged(why) == 3, f'each says once: {why}')


def nowhere_later():
    """The folder goes, and cannot be made again until it can."""
    above = around.folder + '/above'
    run = above + '/run'
    os.mkdir(above, 0o700)
    set_for_all(GPUSHIM_SHARE_DIR=run)
    owner = Puppet()
    blocks = [owner.block()]
    handles = [owner.handle(blocks[0])]

    def all_open():
        other = Puppet()
        check(all(other.opens(handle) for handle in handles), 'another process opens the blocks')
        other.end()
    all_open()
    for entry in os.listdir(run):
        os.unlink(f'{run}/{entry}')
    os.rmdir(run)
    os.rmdir(above)
    blocks.append(owner.block())
    check(owner.result('cuIpcGetMemHandle', Out(64), blocks[1]) == NOT_SUPPORTED,
          'no handle that nobody can open is given out')
    check(times_logged('cannot be made: No such file'), 'why is said')
    os.mkdir(above, 0o700)
    handles.append(owner.handle(blocks[1]))
    all_open()
    check(times_logged("stay the driver's own") == 0, "memory is not the driver's")


def broker_beside():
    """No broker is installed: one that lies beside the library is started."""
    beside = around.folder + '/beside'
    os.mkdir(beside, 0o700)
    for program, name in (SHIM, 'libgpushim.so'), (BROKER, 'gpushim-broker'):
        pathlib.Path(beside, name).write_bytes(pathlib.Path(program).read_bytes())
        os.chmod(f'{beside}/{name}', 0o755)
    one = Puppet(LD_PRELOAD=f'{beside}/libgpushim.so', GPUSHIM_SHARE_STRATEGY='broker', GPUSHIM_SHARE_KEEP='0')
    one.handle(one.block())

    def is_there():
        return any(name.startswith('broker') for name in os.listdir(around.folder))
    await_that(is_there, 'a broker is started')
    one.end()
    await_that(lambda: not is_there(), 'it ends')


# ---- Threads that wait for a process which does not answer -------------------------------------------

TIMEOUT_S = 2  # debug.timeout


def stopped_owner():
    set_for_all(GPUSHIM_DEBUG_TIMEOUT=f'{TIMEOUT_S}s')
    owner = Puppet()
    handles = [owner.handle(owner.alloc()) for _ in range(8)]
    one = Puppet(threads=5)
    owner.stop()
    return owner, one, handles


def waits_cancelled():
    """A thread is cancelled in cuIpcOpenMemHandle: the next one that opens memory of the same process, which has
    gone on, gets it; and what the cancelled one opened, it has open."""
    owner, one, handles = stopped_owner()
    thread = one.thread(1)
    task = thread.result('gettid')
    itself = thread.pointer('pthread_self')
    thread.tell('cuIpcOpenMemHandle', OUT, handles[0], 1)
    asleep_in_a_row = 0
    while asleep_in_a_row < 50:
        at = pathlib.Path(f'/proc/{one.pid}/task/{task}/stat').read_text()
        asleep_in_a_row = asleep_in_a_row + 1 if ') S ' in at else 0
        time.sleep(0.001)
    one.pointer('pthread_cancel', itself)
    owner.go_on()
    await_that(lambda: not pathlib.Path(f'/proc/{one.pid}/task/{task}').exists(), 'the thread is cancelled')
    for handle in handles[1], handles[0]:
        one.thread(2).open(handle)


def waits_together():
    """Four threads open blocks of a process that is stopped: none waits for the others."""
    owner, one, handles = stopped_owner()
    threads, began, took = one.threads[1:], time.monotonic(), {}
    for thread, handle in zip(threads, handles):
        thread.tell('cuIpcOpenMemHandle', OUT, handle, 1)
    while len(took) < len(threads):
        for thread in threads:
            if thread not in took and thread.has_answered():
                check(thread.answer()[0] != 0, 'a stopped process gives no memory')
                took[thread] = time.monotonic() - began
        time.sleep(0.001)
    check(max(took.values()) < 2 * TIMEOUT_S, f'none waits for other threads as well: {took.values()}')
    owner.go_on()
    threads[0].open(handles[0])


# ---- A program that closes descriptors that are not its own ---------------------------------------------

TEXT = "a line of the program's own\n"


def file_at(one, number):
    """A file of the program's own under that number."""
    one.result('close', number)
    fd = one.result('memfd_create', 'own', 1)
    check(one.result('write', fd, TEXT.encode(), len(TEXT)) == len(TEXT), 'it has a file')
    if fd != number:
        one.result('dup2', fd, number)
        one.result('close', fd)


def check_files(one, numbers):
    for number in numbers:
        result, text = one.call('pread', number, Out(2 * len(TEXT)), 2 * len(TEXT), 0)
        check(result == len(TEXT) and text[:result].decode() == TEXT, f'the file at {number} stays as it is: {text}')


def new_files(one, had, words):
    """Those that were opened since; of the software driver only where it is asked for."""
    return [number for number in one.files(words) if number > 2 and number not in had and
            (words or not re.search('softcuda|machine', os.readlink(f'/proc/{one.pid}/fd/{number}')))]


def closed_files():
    """Everything but the driver's, in a process that shares: its files stay as they are."""
    one = Puppet(GPUSHIM_DEBUG_TIMEOUT='5s')
    following = one.alloc()
    had = one.files()
    block = one.block()
    one.handle(block)
    time.sleep(0.1)  # the share thread sleeps by then, or not: either must do
    numbers = new_files(one, had, '')
    check(len(numbers) >= 3, 'it has descriptors to close')
    for number in numbers:
        one.result('close', number)
    for number in numbers:
        file_at(one, number)
    one.cuMemFree(block)
    one.result('cuIpcGetMemHandle', Out(64), following)  # it may fail now
    one.cuMemFree(following)
    for _ in range(20):
        more = one.alloc()
        one.result('cuIpcGetMemHandle', Out(64), more)
        one.cuMemFree(more)
        time.sleep(0.01)
    check_files(one, numbers)


def closed_export():
    """The one that stands for its shared memory: who opens that gets the memory."""
    one, other = (Puppet(GPUSHIM_DEBUG_TIMEOUT='5s') for _ in range(2))
    block = one.block()
    had = one.files()
    handle = one.handle(block)
    await_that(lambda: new_files(one, had, 'softcuda'), 'something is exported ahead')
    numbers = new_files(one, had, 'softcuda')
    for number in numbers:
        file_at(one, number)
    check(other.opens(handle), 'the other process gets the memory')
    check_files(one, numbers)


def connection_of(one, handle):
    """Opens it; the descriptor of the connection to whom it has it of."""
    had = one.files()
    block = one.open(handle)
    numbers = new_files(one, had, 'socket:')
    check(len(numbers) == 1, f'one connection: {numbers}')
    return block, numbers[0]


def closed_socket():
    """The connection to whom it has opened memory of: its own socket is not read from, nor written to, and it opens
    on."""
    owner, one = (Puppet(GPUSHIM_DEBUG_TIMEOUT='5s') for _ in range(2))
    _, number = connection_of(one, owner.handle(owner.block()))
    one.result('close', number)
    ends = one.call('socketpair', 1, 1, 0, Out(8))[1]
    ends = [int.from_bytes(ends[:4], 'little'), int.from_bytes(ends[4:], 'little')]
    if ends[0] != number:
        one.result('dup2', ends[0], number)
        one.result('close', ends[0])
    check(one.result('send', ends[1], TEXT.encode(), len(TEXT), 0) == len(TEXT), 'it sends')
    check(one.opens(owner.handle(owner.block())), 'it opens another block')
    check(one.result('recv', ends[1], Out(64), 64, 0x40) == -1 and one.errno == 11,
          "its socket is not written to, or shut down")
    check(one.result('recv', number, Out(64), 64, 0x40) == len(TEXT), 'what was sent to the program is not read')


def comes_back(one, block, tries):
    """Whether the bytes at `block` are handed out again within so many hundredths of a second. Other free memory may
    come first: where the machine is busy, and frees wait for it, there is a lot of that. So what comes is held until
    as much was had as is ever free beside it."""
    held = []
    for _ in range(tries):
        time.sleep(0.01)
        held.append(one.alloc())
        one.cuMemsetD8(held[-1], 90, BLOCK)
        if held[-1] == block:
            break
        if len(held) == 64:
            while held:
                one.cuMemFree(held.pop())
    came = block in held
    for address in held:
        one.cuMemFree(address)
    return came


def closed_reader(*strategy):
    """It has lost its connection, and goes on reading while its exporter frees and allocates; what it closes comes
    back."""
    # the block stays where it is
    set_for_all(GPUSHIM_DEBUG_SETTLE='50ms', GPUSHIM_DEBUG_GRACE='0', GPUSHIM_POOL_DECAY='60min',
                GPUSHIM_DEBUG_TIMEOUT='5s')
    if strategy:
        set_for_all(GPUSHIM_SHARE_STRATEGY='broker', GPUSHIM_SHARE_BROKER=BROKER, GPUSHIM_SHARE_KEEP='100ms')
    reader, owner = Puppet(), Puppet()
    block = owner.block()
    opened, number = connection_of(reader, owner.handle(block))
    file_at(reader, number)
    owner.cuMemFree(block)
    # A hang-up rests for a second and the time set above.
    check(not comes_back(owner, block, 250), 'memory that a living process has open is not handed out again')
    check(reader.word(opened) == STAMP, "the reader does not see another's bytes")
    reader.close(opened)
    check(comes_back(owner, block, 3000), 'what the reader has closed comes back')
    check_files(reader, [number])


# ---- Many -------------------------------------------------------------------------------------------

MANY, FILES, OWN = 4000, 256, 24  # OWN: descriptors of a process for itself: its streams, socket, directory, ...


class Importer:
    """Opens what it is told, and says how many it could, and how many descriptors it had meanwhile."""

    def __init__(self):
        self.process = Puppet(files=FILES)
        self.opened = {}

    def open_all(self, handles):
        most = 0
        for number, handle in enumerate(handles):
            result, address = self.process.try_open(handle)
            if result == 0:
                check(self.process.word(address) == number + 1, f'it is the block {number}')
                self.opened[number] = address
            if number % 64 == 0 or number == len(handles) - 1:
                most = max(most, len(self.process.files(below=FILES)))
        for address in self.opened.values():
            self.process.handle(address)  # passed on
        most = max(most, len(self.process.files(below=FILES)))
        check(most <= OWN, f'it has {most} descriptors')
        return len(self.opened)

    def end(self):
        self.process.end()


def many(how):
    """4,000 shared blocks, each in a piece of its own, between processes that may have 256 descriptors. One process
    opens all, holds them and passes them on. `embedded`: when their process has ended another opens none; `broker`:
    it opens all; `narrow`: the same where the broker may have 256 descriptors itself: what it can keep."""
    need_descriptors(2 * MANY)
    set_for_all(GPUSHIM_SHARE_BROKER=BROKER, GPUSHIM_SHARE_STRATEGY='embedded' if how == 'embedded' else 'broker',
                SOFTCUDA_MEMORY='16G')
    least = {'embedded': 0, 'broker': MANY, 'narrow': FILES // 4}[how]
    broker = Broker(files=FILES) if how == 'narrow' else None
    owner = Puppet(files=FILES)
    handles = []
    for number in range(MANY):
        block = owner.alloc(2 * MIB)
        owner.write(block, number + 1)  # a word of each: filled, they are 8 GiB of the machine's
        handles.append(owner.handle(block))
    first = Importer()
    check(first.open_all(handles) == MANY, 'all can be opened')
    check(len(owner.files(below=FILES)) <= FILES // 8 + OWN,
          f'the exporter has {len(owner.files(below=FILES))} descriptors')
    # To whom it leaves them has taken them before: who is slow for a second is left alone for as long.
    asker = Puppet(begin=False, LD_PRELOAD=None)
    await_that(lambda: least == 0 or asker.pointer('broker_has', around.folder) >= least, 'the broker has them')
    owner.end()
    second = Importer()
    opened = second.open_all(handles)
    check(opened >= least and (least or opened == 0), f'{opened} are opened after their process has ended')
    first.end()
    second.end()
    if broker:
        broker.end()


def read_only():
    """No copy goes into what is shared for reading, passed on, or left to a broker. The exporter's option is that of
    the importers here: it says what others may do."""
    asker = Puppet(begin=False, LD_PRELOAD=None)

    def opens(handle, access, may_write):
        one = Puppet(GPUSHIM_DEBUG_ACCESS=access)
        opened = one.open(handle)
        wrote = one.result('cuMemcpyHtoD', opened, bytes([1, 0, 0, 0]), 4)
        check(may_write or wrote == INVALID_VALUE, f'a copy into what is shared for reading: {wrote}')
        check(one.handle(opened) == handle, 'what is passed on has the same handle')
        return one
    for strategy in 'broker', 'embedded':
        set_for_all(GPUSHIM_SHARE_STRATEGY=strategy, GPUSHIM_SHARE_BROKER=BROKER)
        for by_importer in False, True:
            theirs = 'read-only' if by_importer else 'read-write'
            owner = Puppet(GPUSHIM_DEBUG_ACCESS='read-write' if by_importer else 'read-only')
            handle = owner.handle(owner.block(2 * MIB, 1))
            holders = [opens(handle, theirs, False) for _ in range(2)]
            if strategy == 'broker':
                await_that(lambda: asker.pointer('broker_has', around.folder) >= 1 + by_importer, 'the broker has it')
            owner.end()
            if strategy == 'broker':
                holders.append(opens(handle, 'read-write', by_importer))
            else:
                check(Puppet().try_open(handle)[0] != 0, 'nobody has it after its process has ended')
            for holder in holders:
                holder.end()
        if strategy == 'broker':
            check(asker.result('broker_ends', around.folder), 'the broker ends')


# ---- Isolation ----------------------------------------------------------------------------------------

SECRET, THEFT, ROUNDS = 0x5ec2e755, 0x7be47be4, 100  # 1 s: the lease is over long before


def count(one, address, size, word):
    return one.pointer('count_words', address, size, word)


def isolation(how):
    """What an importer sees that ignores this library: it asks for the descriptor of a handle's piece by hand, maps
    the whole of it with the driver's own calls and looks for other blocks' bytes, and it keeps that mapping when it
    has given its lease back. Blocks that are made from then on have no word of the thief's, and are not seen by it."""
    set_for_all(GPUSHIM_SHARE_ISOLATE=how)
    thief, owner = Puppet(LD_PRELOAD=None), Puppet()
    # A small block, and one of 2.5 MiB: half a megabyte of its piece is left. Where it is not isolated that one lies
    # across pieces, which come one by one (tests/unit/share/strip.c).
    for size in (4096, 5 << 19) if how != 'off' else (4096,):
        refuses = how == 'refuse' and size == 4096
        block = [owner.block(size, stamp) for stamp in (SECRET, STAMP, SECRET)]
        result, handle = owner.call('cuIpcGetMemHandle', Out(64), block[1])
        check(refuses == (result != 0), f'cuIpcGetMemHandle gave {result}')
        if refuses:
            continue
        thief.pointer('take_piece', handle, around.folder)
        base, length, offset = (thief.pointer('taken', part) for part in range(3))
        check(count(thief, base + offset, size, STAMP) == size // 4, 'the thief has the block')
        secrets = count(thief, base, length, SECRET)
        check(secrets == 0 if how != 'off' else secrets > 0, f'{secrets} words of others are seen in an isolated piece')
        thief.result('leave_piece', THEFT)
        owner.cuMemFree(block[1])
        for _ in range(ROUNDS if how != 'off' else 0):
            blocks = [owner.alloc(size) for _ in range(4)]
            check(not any(count(owner, one, size, THEFT) for one in blocks),
                  'a new block has nothing that an importer of the last one wrote')
            for one in blocks:
                owner.cuMemsetD32(one, SECRET, size // 4)
            owner.cuCtxSynchronize()
            check(count(thief, base, length, SECRET) == 0, 'who kept the memory does not see the next block in it')
            for one in blocks:
                owner.cuMemFree(one)
            time.sleep(0.01)
        for one in block[0], block[2]:
            owner.cuMemFree(one)


main(globals())
