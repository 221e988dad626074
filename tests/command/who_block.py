"""gpushim who HANDLE | ADDRESS: one shared block, whose it is and who has it open.

    who_block.py GPUSHIM SHIM LIBCUDA
"""
import json
import os
import resource
import signal
import struct
import subprocess

from holder import GPUSHIM, MIB, Holder, await_that, check, clean, gpushim, prove_each, refuses, rows
import wire

LONG = {'GPUSHIM_DEBUG_IDLE': '60 min', 'GPUSHIM_POOL_DECAY': '60 min', 'GPUSHIM_DEBUG_GRACE': '60 min'}
NEVER = {'GPUSHIM_DEBUG_IDLE': '0', 'GPUSHIM_DEBUG_GRACE': '0'}  # what is closed or freed goes at once


def blocks(folder, what):
    run = gpushim(folder, 'who', what, '--json')
    check(run.returncode == (0 if json.loads(run.stdout)['rows'] else 1), f'its status: {run}')
    return json.loads(run.stdout)['rows']


def address_of(holder, index):
    return int(holder.run(f'print(held[{index}].value)'))


def shared(holder, size):
    """A block of its own: its number, its handle."""
    holder.do(f'alloc {size}')
    index = int(holder.run('print(len(held) - 1)'))
    return index, holder.do(f'share {index}')


def one_block(folder):
    exporter, first, second = (Holder(folder, **LONG) for _ in range(3))
    index, handle = shared(exporter, 3 * MIB)
    exporter.do(f'alloc {MIB}')
    _, other = shared(exporter, 5 * MIB)
    at = address_of(exporter, index)
    found = blocks(folder, handle)
    check([(row['pid'], row['bytes'], row['freed'], row['holders']) for row in found] ==
          [(exporter.pid, 3 * MIB, False, [])], f'shared, and open nowhere: {found}')
    first.do(f'open {handle}')
    first.do(f'open {handle}')
    second.do(f'open {handle}')
    second.do(f'open {other}')
    by_handle = blocks(folder, handle)
    holders = {row['pid']: row for row in by_handle[0]['holders']}
    check(sorted(holders) == sorted([first.pid, second.pid]), f'both have it: {by_handle}')
    check(not any(row['stopped'] for row in holders.values()), f'nobody is stopped: {by_handle}')
    check([row['pid'] for row in blocks(folder, other)[0]['holders']] == [second.pid], 'the other is one\'s')
    for where in (at, at + 3 * MIB - 1):
        check(blocks(folder, hex(where))[0]['block'] == by_handle[0]['block'], f'by an address: {hex(where)}')
    text = gpushim(folder, 'who', hex(at)).stdout
    check(f'of 3.0 MiB, shared by process pid {exporter.pid}' in text and f'open in pid {first.pid}' in text, text)
    refuses(folder, 1, ('who', hex(at + 3 * MIB)), 'shares memory at', 'not of those that have it open')
    # It is freed and still held, by one that stands still.
    second.stop()
    exporter.do(f'free {index}')
    for what in (handle, hex(at)):
        row = blocks(folder, what)[0]
        check(row['freed'] and row['freed_seconds'] < 60, f'it is freed: {row}')
        check({h['pid']: h['stopped'] for h in row['holders']} == {first.pid: False, second.pid: True},
              f'and one holder stands still: {row}')
    text = gpushim(folder, 'who', handle).stdout
    check('ago and kept' in text and ', which is stopped' in text, text)
    for holder in (first, second):
        holder.end()
    await_that(lambda: not any(row['holders'] for row in blocks(folder, handle)), 'it is given back')
    exporter.end()


def gone(folder):
    """Handles of blocks that are no more."""
    exporter = Holder(folder, **NEVER)
    index, handle = shared(exporter, MIB)
    _, kept = shared(exporter, MIB)
    at = address_of(exporter, index)
    exporter.do(f'free {index}')
    await_that(lambda: not blocks(folder, handle), 'a freed block that nobody had is no more')
    refuses(folder, 1, ('who', handle), 'has been freed')
    refuses(folder, 1, ('who', hex(at)), 'shares memory at')
    check(len(blocks(folder, kept)) == 1, 'the other is')
    exporter.end()
    refuses(folder, 1, ('who', kept), 'its process has ended')


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


def many(folder):
    """More holders than one answer has."""
    exporter = Holder(folder, **LONG)
    _, handle = shared(exporter, MIB)
    importers = [Holder(folder, **LONG) for _ in range(12)]
    for importer in importers[1:]:
        importer.do(f'open {handle}')
    found = blocks(folder, handle)[0]['holders']
    check(sorted(row['pid'] for row in found) == sorted(importer.pid for importer in importers[1:]), f'all of them: {found}')
    few = subprocess.run([GPUSHIM, 'who', handle, '--json'], env=clean(folder), capture_output=True, text=True, check=False,
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12)))
    check(few.returncode == 0 and sorted(row['pid'] for row in json.loads(few.stdout)['rows'][0]['holders']) ==
          sorted(importer.pid for importer in importers[1:]), f'with few descriptors too: {few}')
    for each in (exporter, *importers):
        each.end()


def at_a_broker(folder):
    """One that was left behind is the broker's."""
    broker = {**LONG, 'GPUSHIM_SHARE_STRATEGY': 'broker', 'GPUSHIM_SHARE_BROKER': GPUSHIM + '-broker'}
    exporter, importer = Holder(folder, **broker), Holder(folder, **broker)
    _, handle = shared(exporter, MIB)
    importer.do(f'open {handle}')
    await_that(lambda: sorted(row['broker'] for row in blocks(folder, handle)) == [False, True], 'both have it')
    check([len(row['holders']) for row in sorted(blocks(folder, handle), key=lambda row: row['broker'])] == [1, 0],
          f'who opened it asked the process: {blocks(folder, handle)}')
    exporter.end()
    await_that(lambda: [row['broker'] for row in blocks(folder, handle)] == [True], 'the broker has it')
    late = Holder(folder, **broker)
    late.do(f'open {handle}')
    await_that(lambda: late.pid in [holder['pid'] for row in blocks(folder, handle) for holder in row['holders']],
               'and serves it')
    broker_pid = blocks(folder, handle)[0]['pid']
    for each in (importer, late):
        each.end()
    os.kill(broker_pid, signal.SIGKILL)


def wrong(folder):
    exporter = Holder(folder, **LONG)
    _, handle = shared(exporter, MIB)
    changed = handle[:20] + ('0' if handle[20] != '0' else '1') + handle[21:]
    refuses(folder, 1, ('who', changed), 'it was changed')
    refuses(folder, 1, ('who', '00' * 64), 'the driver made it')
    for what in (handle[:-1], handle + '0', handle[:-1] + 'x', '0x', '0xzz', '0x1ffffffffffffffff', 'block'):
        run = gpushim(folder, 'who', what)
        check(run.returncode == 2 and '(gpushim help who)' in run.stderr, f'who {what}: {run}')
    # Whoever asks by hand, for numbers that nobody has.
    path = wire.sockets(folder)[0]
    for about in (wire.ABOUT_BLOCK, wire.ABOUT_ADDRESS):
        for number in (0, 2**64 - 1):
            answers = wire.say(path, wire.query(2**32 - 1, 0, about, number, b'x' * 16))
            check(len(answers) == 1 and answers[0][0] == wire.REPORT and
                  struct.unpack_from('<Q', answers[0][1], 408)[0] == 0, f'{about}, {number}: {answers}')
    check(len(blocks(folder, handle)) == 1, 'it goes on')
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
    assert cuda.cuMemCreate(ctypes.byref(made), size, ctypes.byref(Properties(1, 0, (1, 0))), ctypes.c_ulonglong(0)) == 0
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


def sums(folder, pid):
    row, = (row for row in rows(folder, 'who') if row['pid'] == pid)
    return row['blocks'], row['bytes'], row['freed_blocks'], row['freed_bytes'], {
        each['pid']: (each['blocks'], each['bytes'], each['freed_blocks'], each['freed_bytes']) for each in row['holders']}


def mapped_by_itself(folder):
    """A strip: whoever has any piece of it open has all of it, and its bytes count once."""
    exporter, first, second = Holder(folder, **NEVER), Holder(folder, **NEVER), Holder(folder, **NEVER)
    exporter.run(OWN + 'for piece in range(3): map_piece(piece)\n')
    handles = [exporter.run(f'handle_at(strip + {piece} * PIECE)') for piece in range(3)]
    at = int(exporter.run('print(strip)'))
    check([(row['bytes'], row['holders']) for row in blocks(folder, handles[1])] == [(6 * MIB, [])], 'open nowhere')
    for handle in handles[:2]:
        first.do(f'open {handle}')
    second.do(f'open {handles[2]}')
    for what in (*handles, hex(at), hex(at + 6 * MIB - 1)):
        found = blocks(folder, what)
        check([(row['pid'], row['bytes'], row['freed'], sorted(holder['pid'] for holder in row['holders']))
               for row in found] == [(exporter.pid, 6 * MIB, False, sorted([first.pid, second.pid]))],
              f'both have all of it, by {what}: {found}')
    check(sums(folder, exporter.pid) == (3, 6 * MIB, 0, 0, {first.pid: (2, 6 * MIB, 0, 0), second.pid: (1, 6 * MIB, 0, 0)}),
          f'its bytes count once: {sums(folder, exporter.pid)}')
    # It grows, and who has what it was before has the same memory.
    exporter.run('map_piece(3)')
    longer = exporter.run('handle_at(strip)')
    check([len(row['holders']) for row in blocks(folder, longer)] == [2], f'a longer one: {blocks(folder, longer)}')
    check([row['bytes'] for row in blocks(folder, hex(at + 6 * MIB))] == [8 * MIB], 'its new piece')
    # It goes, others keep it, and another is mapped in its place.
    exporter.run('unmap(4)')
    for what in (handles[0], hex(at)):
        found = blocks(folder, what)
        check([(row['freed'], len(row['holders'])) for row in found] == [(True, 2)], f'gone and kept, by {what}: {found}')
    check(sums(folder, exporter.pid) == (3, 6 * MIB, 3, 6 * MIB,
                                         {first.pid: (2, 6 * MIB, 2, 6 * MIB), second.pid: (1, 6 * MIB, 1, 6 * MIB)}),
          f'what others keep counts once: {sums(folder, exporter.pid)}')
    exporter.run('map_piece(0)')
    anew = exporter.run('handle_at(strip)')
    check([(row['freed'], row['bytes'], row['holders']) for row in blocks(folder, hex(at))] == [(False, 2 * MIB, [])],
          f'what lies there now: {blocks(folder, hex(at))}')
    check([len(row['holders']) for row in blocks(folder, handles[2])] == [2], 'what lay there before')
    second.do(f'open {anew}')
    check([row['pid'] for row in blocks(folder, anew)[0]['holders']] == [second.pid], 'the new one is one\'s')
    for each in (first, second):
        each.end()
    await_that(lambda: not blocks(folder, handles[0]) and sums(folder, exporter.pid)[:4] == (1, 2 * MIB, 0, 0),
               'it is given back')
    exporter.end()


def external(folder):
    """What somebody else made is a block as any, from its first handle on."""
    exporter, importer = Holder(folder, **NEVER), Holder(folder, **NEVER)
    at = int(exporter.run(OWN + 'outer = attach(4 << 20)\nprint(outer)\n'))
    refuses(folder, 1, ('who', hex(at)), 'shares memory at')
    handle = exporter.run('handle_at(outer)')
    importer.do(f'open {handle}')
    for freed in (False, True):
        for what in (handle, hex(at), hex(at + 4 * MIB - 1)):
            found = blocks(folder, what)
            check([(row['pid'], row['bytes'], row['freed'], [holder['pid'] for holder in row['holders']]) for row in found] ==
                  [(exporter.pid, 4 * MIB, freed, [importer.pid])], f'by {what}: {found}')
        exporter.run('pass' if freed else 'detach(outer)')
    check(sums(folder, exporter.pid) == (1, 4 * MIB, 1, 4 * MIB, {importer.pid: (1, 4 * MIB, 1, 4 * MIB)}), 'it counts')
    importer.end()
    await_that(lambda: not blocks(folder, handle), 'it is given back')
    exporter.end()


prove_each(one_block, gone, another_program, many, at_a_broker, mapped_by_itself, external, wrong)
