"""gpushim who, of what others hold of a process: who has it open, in what they are by now, and how much it is where a
program mapped it itself or somebody else made it.

    held.py GPUSHIM SHIM LIBCUDA
"""
from holder import MIB, Holder, await_that, check, gpushim, prove_each, refuses, rows

LONG = {'GPUSHIM_DEBUG_IDLE': '60 min', 'GPUSHIM_POOL_DECAY': '60 min', 'GPUSHIM_DEBUG_GRACE': '60 min'}
NEVER = {'GPUSHIM_DEBUG_IDLE': '0', 'GPUSHIM_DEBUG_GRACE': '0'}  # what is closed or freed goes at once


def shared(holder, size):
    """A block of its own: its number, its handle."""
    holder.do(f'alloc {size}')
    index = int(holder.run('print(len(held) - 1)'))
    return index, holder.do(f'share {index}')


def sums(folder, pid):
    row, = (row for row in rows(folder, 'who') if row['pid'] == pid)
    return row['blocks'], row['bytes'], row['freed_blocks'], row['freed_bytes'], {
        each['pid']: (each['blocks'], each['bytes'], each['freed_blocks'], each['freed_bytes'])
        for each in row['holders']}


def stands_still(folder):
    """A block is freed and still held, by two of whom one stands still."""
    exporter, first, second = (Holder(folder, **LONG) for _ in range(3))
    index, handle = shared(exporter, 3 * MIB)
    for importer in (first, second):
        importer.do(f'open {handle}')
    second.stop()
    exporter.do(f'free {index}')
    row, = (row for row in rows(folder, 'who') if row['pid'] == exporter.pid)
    check({held['pid']: held['stopped'] for held in row['holders']} == {first.pid: False, second.pid: True},
          f'one stands still: {row}')
    for held in row['holders']:
        oldest = held['oldest_freed']
        check(oldest['bytes'] == 3 * MIB and oldest['freed_seconds'] <= oldest['held_seconds'] < 600,
              f'what it keeps: {row}')
    text = gpushim(folder, 'who').stdout
    check(f'held by pid {second.pid} (' in text and ', which is stopped: 1 blocks' in text, text)
    for holder in (first, second):
        holder.end()
    await_that(lambda: not sums(folder, exporter.pid)[4], 'it is given back')
    exporter.end()


def another_program(folder):
    """Who calls exec has closed nothing, for all that anybody knows, until it ends: that is told."""
    def held():
        row, = (row for row in rows(folder, 'who') if row['pid'] == exporter.pid)
        return [(holder['pid'], holder['hung_up'], holder['freed_blocks']) for holder in row['holders']]
    exporter, importer = Holder(folder, **NEVER), Holder(folder, **NEVER)
    index, handle = shared(exporter, MIB)
    importer.do(f'open {handle}')
    check(held() == [(importer.pid, False, 0)], f'it has it open: {held()}')
    importer.process.stdin.write('do ' + b"import os; os.execlp('sleep', 'sleep', '600')".hex() + '\n')
    importer.process.stdin.flush()
    await_that(lambda: held() == [(importer.pid, True, 0)], 'it is another program')
    exporter.do(f'free {index}')
    check(held() == [(importer.pid, True, 1)], f'it has it still: {held()}')
    text = gpushim(folder, 'who').stdout
    check(f'held by pid {importer.pid} (' in text and ', which has hung up and not ended: 1 blocks' in text, text)
    importer.end()
    await_that(lambda: not held(), 'it is given back')
    exporter.end()


# What a program maps itself, in pieces of 2 MiB at `strip`; and memory of a memfd that it attaches.
OWN = '''
import os
PIECE = 2 << 20
class Properties(ctypes.Structure):
    _fields_ = [('type', ctypes.c_int), ('types', ctypes.c_int), ('location', ctypes.c_int * 2),
                ('windows', ctypes.c_void_p), ('flags', ctypes.c_ubyte * 8)]
class External(ctypes.Structure):
    _fields_ = [('size', ctypes.c_size_t), *((name, ctypes.c_int) for name in ('kind', 'access', 'device', 'fd')),
                *((name, ctypes.c_uint64) for name in ('offset', 'address', 'bytes')),
                ('label', ctypes.c_char_p), ('deleter', ctypes.c_void_p), ('arg', ctypes.c_void_p)]
strip = ctypes.c_uint64()
assert cuda.cuMemAddressReserve(ctypes.byref(strip), ctypes.c_size_t(8 * PIECE), ctypes.c_size_t(0),
                                ctypes.c_uint64(0), ctypes.c_ulonglong(0)) == 0
strip = strip.value
def map_piece(piece):
    made, access = ctypes.c_ulonglong(), (ctypes.c_int * 3)(1, 0, 3)
    at, size = ctypes.c_uint64(strip + piece * PIECE), ctypes.c_size_t(PIECE)
    properties = Properties(1, 0, (1, 0))
    assert cuda.cuMemCreate(ctypes.byref(made), size, ctypes.byref(properties), ctypes.c_ulonglong(0)) == 0
    assert cuda.cuMemMap(at, size, ctypes.c_size_t(0), made, ctypes.c_ulonglong(0)) == 0
    assert cuda.cuMemRelease(made) == 0 and cuda.cuMemSetAccess(at, size, access, ctypes.c_size_t(1)) == 0
def unmap(pieces):
    assert cuda.cuMemUnmap(ctypes.c_uint64(strip), ctypes.c_size_t(pieces * PIECE)) == 0
def handle_at(address):
    assert cuda.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(address)) == 0
    print(bytes(handle).hex())
def attach(size):
    fd = os.memfd_create('external', os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    at = ctypes.c_uint64()
    external = External(ctypes.sizeof(External), 2, 2, 0, fd, 0, 0, size)
    assert ctypes.CDLL(None).gpushim_attach(ctypes.byref(external), ctypes.byref(at)) == 0
    return at.value
def detach(address):
    assert ctypes.CDLL(None).gpushim_detach(ctypes.c_uint64(address), ctypes.c_uint64(0)) in (0, 16) # EBUSY
'''


def mapped_by_itself(folder):
    """A strip: whoever has any piece of it open has all of it, and its bytes count once."""
    exporter, first, second = Holder(folder, **NEVER), Holder(folder, **NEVER), Holder(folder, **NEVER)
    exporter.run(OWN + 'for piece in range(3): map_piece(piece)\n')
    handles = [exporter.run(f'handle_at(strip + {piece} * PIECE)') for piece in range(3)]
    for handle in handles[:2]:
        first.do(f'open {handle}')
    second.do(f'open {handles[2]}')
    check(sums(folder, exporter.pid) == (3, 6 * MIB, 0, 0,
                                         {first.pid: (2, 6 * MIB, 0, 0), second.pid: (1, 6 * MIB, 0, 0)}),
          f'its bytes count once: {sums(folder, exporter.pid)}')
    exporter.run('unmap(3)')  # others keep it, and another is mapped in its place
    check(sums(folder, exporter.pid) == (3, 6 * MIB, 3, 6 * MIB,
                                         {first.pid: (2, 6 * MIB, 2, 6 * MIB), second.pid: (1, 6 * MIB, 1, 6 * MIB)}),
          f'what others keep counts once: {sums(folder, exporter.pid)}')
    exporter.run('map_piece(0)')
    second.do('open ' + exporter.run('handle_at(strip)'))
    check(sums(folder, exporter.pid)[4][second.pid] == (2, 8 * MIB, 1, 6 * MIB),
          f'the new one too: {sums(folder, exporter.pid)}')
    for each in (first, second):
        each.end()
    await_that(lambda: sums(folder, exporter.pid) == (1, 2 * MIB, 0, 0, {}), 'it is given back')
    exporter.end()


def external(folder):
    """What somebody else made is a block as any, from its first handle on."""
    exporter, importer = Holder(folder, **NEVER), Holder(folder, **NEVER)
    exporter.run(OWN + 'outer = attach(4 << 20)\n')
    importer.do('open ' + exporter.run('handle_at(outer)'))
    check(sums(folder, exporter.pid) == (1, 4 * MIB, 0, 0, {importer.pid: (1, 4 * MIB, 0, 0)}), 'it is held')
    exporter.run('detach(outer)')
    check(sums(folder, exporter.pid) == (1, 4 * MIB, 1, 4 * MIB, {importer.pid: (1, 4 * MIB, 1, 4 * MIB)}), 'it counts')
    importer.end()
    await_that(lambda: not sums(folder, exporter.pid)[4], 'it is given back')
    exporter.end()


def wrong(folder):
    for what in ('0x7f00', 'block', '00' * 64):
        refuses(folder, 2, ('who', what), 'is no process id', '(gpushim help who)')
    refuses(folder, 1, ('who', '1'), 'shares nothing')


prove_each(stands_still, another_program, mapped_by_itself, external, wrong)
