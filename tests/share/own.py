"""Memory that a program makes and maps by itself (cuMemCreate, cuMemMap): shared by CUDA IPC, and published under a
name (gpushim_publish).

    own.py PUPPET SHIM BROKER HOW...
"""
import collections
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from puppet import (INVALID_VALUE, MIB, NOBODY, NOT_PERMITTED, OUT, Broker, Handle, Out, Puppet, around, await_that,
                    check,
                    main, need_descriptors, set_for_all, skip, times_logged)

PIECE = 2 * MIB
FILES, MOST_PIECES = 256, 2000
OWN = 24  # descriptors of a process for itself: its streams, socket, directory, ...
NONE, READ, READ_WRITE = 0, 1, 3
ENOENT, ENODEV, ENOSPC, EFAULT, ENOTSUP = 2, 19, 28, 14, 95
COMPRESSIBLE = bytes([1, 0, 0, 0, 0, 0, 0, 0, 1]).ljust(24, b'\0') + bytes([1]).ljust(8, b'\0')
PLAIN = bytes([1, 0, 0, 0, 0, 0, 0, 0, 1]).ljust(32, b'\0')

Named = collections.namedtuple('Named', 'size handle offset bytes address age_ns pid uid kept')


# ---- What a process does that maps by itself -----------------------------------------------------


def access_set(one, address, size, flags):
    one.cuMemSetAccess(address, size, struct.pack('3i', 1, 0, flags), 1)


def map_piece(one, address, prop=PLAIN):
    """The handle is released at once: the mapping has the memory."""
    handle = one.cuMemCreate(OUT, PIECE, prop, 0)
    one.cuMemMap(address, PIECE, 0, handle, 0)
    one.cuMemRelease(handle)
    access_set(one, address, PIECE, READ_WRITE)


def map_stamped(one, base, piece, stamp):
    map_piece(one, base + piece * PIECE)
    one.write(base + piece * PIECE, stamp)


def reserve(one, pieces, at=0):
    return one.cuMemAddressReserve(OUT, pieces * PIECE, 0, at, 0)


def map_all(one, pieces, room=None):
    base = reserve(one, room or pieces)
    for piece in range(pieces):
        map_stamped(one, base, piece, piece + 1)
    return base


def unmap(one, base, first, pieces):
    one.cuMemUnmap(base + first * PIECE, pieces * PIECE)


def end_all(one, base, pieces):
    unmap(one, base, 0, pieces)
    one.cuMemAddressFree(base, pieces * PIECE)


class Held:
    """What a process holds of the software driver, and its descriptors but for those above the soft limit, where that
    driver keeps its memory's. On a real driver only descriptors more than there were."""

    def __init__(self, one, and_own=False):
        self.one = one
        of_the_driver = 0 if one.has('softcuda_census') else len(one.files(below=FILES))
        self.base = one.__dict__.setdefault('of_the_driver', of_the_driver)
        self.before, self.files = self.now(), OWN if and_own else self.descriptors()

    def now(self):
        census = self.one.census() if self.one.has('softcuda_census') else None
        return (census.handles, census.mappings, census.reservations, census.exported) if census else (0, 0, 0, 0)

    def descriptors(self):
        return len(self.one.files(below=FILES)) - self.base

    def no_more(self, files=False):
        return all(now <= before for now, before in zip(self.now(), self.before)) and (
            not files or self.descriptors() <= self.files)


def open_piece(one, handle, pieces, piece=0):
    """The handle of a piece opens its place, with all of the strip around it."""
    address = one.open(handle)
    base, size = one.range_of(address + 4)
    check((base + piece * PIECE, size) == (address, pieces * PIECE),
          f'what it opened has another range, of {size // MIB} MiB')
    return address


def processes(count, **settings):
    """That share what they map, may have 256 descriptors, and keep nothing that was closed."""
    need_descriptors(2 * MOST_PIECES)
    settings = {'GPUSHIM_DEBUG_IDLE': '0', 'SOFTCUDA_MEMORY': '16G', **settings}
    return [Puppet(files=FILES, **settings) for _ in range(count)]


# ---- By their handles ------------------------------------------------------------------------------


def pieces(count):
    """One handle of so many pieces: the importer has one range, both see what the other writes, and nothing is left
    afterwards."""
    count = int(count)
    me, other = processes(2)
    here, there = Held(me, and_own=True), Held(other)
    base = map_all(me, count)
    handle, middle = me.handle(base + 12345), me.handle(base + count // 2 * PIECE + 12345)
    check(me.range_of(base + 5) == [base, PIECE], "the exporter's address range is the driver's")
    address = open_piece(other, handle, count)
    for piece in range(count):
        check(other.word(address + piece * PIECE) == piece + 1, f'whose memory lies in piece {piece}')
    other.write(address + (count - 1) * PIECE, 4711)
    check(me.word(base + (count - 1) * PIECE) == 4711, 'what the importer wrote')
    check(open_piece(other, handle, count) == address, 'opened again it lies there')
    # A program counts from where the piece begins, as cuMemGetAddressRange tells it.
    piece = open_piece(other, middle, count, count // 2)
    check(piece == address + count // 2 * PIECE, 'a piece of it lies there')
    check(count <= 2 or other.word(piece + PIECE) == count // 2 + 2, 'the piece behind it')
    check(there.now()[0] <= there.before[0], "no handles of the importer's stay")
    check(max(there.descriptors(), here.descriptors()) <= OWN, 'no descriptors stay')
    first = 4711 if count == 1 else 1
    other.close(address)
    check(other.word(address) == first, 'closed once it is there')
    other.close(piece)
    check(other.word(address) == first, 'with a piece all is there')
    check(count == 1 or other.result('cuIpcCloseMemHandle', piece) == INVALID_VALUE, 'a piece is closed that is open')
    other.close(address)
    await_that(there.no_more, 'the importer keeps nothing')
    end_all(me, base, count)
    await_that(lambda: here.no_more(files=True), 'the exporter keeps nothing')


def lifetime():
    """The program unmaps, releases and maps anew while others have it open: at once, and they keep what they have; a
    handle of what has gone is refused."""
    me, first, late = processes(3)
    base = map_all(me, 4)
    handle = me.handle(base)
    address = open_piece(first, handle, 4)
    before = Held(me)
    check(me.handle(base + PIECE - 1) == handle, 'the same piece has the same handle')
    unmap(me, base, 1, 1)
    now = before.now()
    check(not any(before.before) or now[0] <= before.before[0] and now[1] + 1 == before.before[1],
          'an unmapped handle is not had')
    check(first.word(address + PIECE) == 2, 'what is open is there')
    check(late.try_open(handle)[0] == NOT_PERMITTED, 'a stale handle is not opened')
    map_stamped(me, base, 1, 77)
    check(first.word(address + PIECE) == 2, 'remapped memory does not show in an old open')
    check(late.try_open(handle)[0] == NOT_PERMITTED, 'a stale handle is not opened where something is mapped again')
    anew = me.handle(base)
    check(anew != handle, 'another strip has another handle')
    other = open_piece(late, anew, 4)
    check((late.word(other + PIECE), late.word(other + 2 * PIECE)) == (77, 3), 'the new piece, and an old one')
    end_all(me, base, 4)
    check(first.word(address) == 1 and late.word(other + 3 * PIECE) == 4, 'it is there while it is open')
    first.close(address)
    late.close(other)


def strips():
    """What one handle is of: neither what has no access, nor another reservation."""
    me, other, late = processes(3, GPUSHIM_LOG='debug')
    base = map_all(me, 5, room=6)
    beside = reserve(me, 1, at=base + 6 * PIECE)
    map_stamped(me, beside, 0, 99)
    whole = me.handle(base)
    address = open_piece(other, whole, 5)
    access_set(me, base, 5 * PIECE, READ_WRITE)
    check(me.handle(base) == whole, 'who may reach it may do so still: the handle is the same')

    def opens(handle, count, piece, word, at=0):
        there = open_piece(other, handle, count, piece)
        check(other.word(there + at * PIECE) == word, f'what {word} was written to')
        other.close(there)
    # One without access is in no strip, and has no handle; the handle before is stale.
    access_set(me, base + 2 * PIECE, PIECE, NONE)
    check(me.result('cuIpcGetMemHandle', Out(64), base + 2 * PIECE) == INVALID_VALUE,
          'there is no handle of what nobody may reach')
    check(times_logged('no device has access to it') == 1, 'it is said why')
    other.close(address)
    check(late.try_open(whole)[0] == NOT_PERMITTED, 'a strip that lost its middle is not opened')
    opens(me.handle(base + PIECE), 2, 1, 2)
    opens(me.handle(base + 4 * PIECE), 2, 1, 4, at=-1)
    # With one more piece it is a larger one, up to the end of the reservation; the smaller opens still.
    smaller = me.handle(base + 4 * PIECE)
    map_stamped(me, base, 5, 6)
    opens(me.handle(base + 4 * PIECE), 3, 1, 6, at=1)
    opens(smaller, 2, 1, 5)
    # What may be read only is shared so, and by no handle from before.
    before = me.handle(base)
    access_set(me, base, 2 * PIECE, READ)
    check(late.try_open(before)[0] == NOT_PERMITTED, 'by the handle from before it is not written')
    address = open_piece(other, me.handle(base), 2)
    check(other.result('cuMemsetD32', address, 5, 1) != 0, 'what may be read only is not written')
    other.close(address)
    me.cuMemUnmap(beside, PIECE)
    me.cuMemAddressFree(beside, PIECE)
    unmap(me, base, 0, 6)
    me.cuMemAddressFree(base, 6 * PIECE)


def idle():
    """What an importer keeps for its next open is given back when the memory goes."""
    me, other = processes(2, GPUSHIM_DEBUG_IDLE='60 min')
    there = Held(other)
    base = map_all(me, 3)
    other.close(open_piece(other, me.handle(base), 3))
    check(there.now()[1] >= there.before[1] + 3, 'something is kept for the next open')
    end_all(me, base, 3)
    await_that(there.no_more, 'the importer keeps no memory that has gone')


def full():
    """What is kept for the next open, where the GPU is full: the program gets its memory again at once."""
    me, other = processes(2, GPUSHIM_DEBUG_IDLE='60 min', SOFTCUDA_MEMORY='128M')
    for _ in range(20):
        base = map_all(me, 50)
        other.close(open_piece(other, me.handle(base), 50))
        end_all(me, base, 50)


def ends():
    """The exporter is killed, and the importer is."""
    killed, me, other, late = processes(4)
    handle = killed.handle(map_all(killed, 40))
    address = open_piece(other, handle, 40)
    killed.kill()
    for piece in range(40):
        check(other.word(address + piece * PIECE) == piece + 1, 'memory of a killed process')
    check(late.try_open(handle)[0] != 0, 'a handle of a killed process is not opened')
    base = map_all(me, 40)
    here = Held(me, and_own=True)
    address = open_piece(other, me.handle(base), 40)
    check(other.word(address + 39 * PIECE) == 40, 'what is open')
    other.kill()
    await_that(lambda: here.no_more(files=True), 'nothing is left of a killed importer')
    address = open_piece(late, me.handle(base), 40)
    check(late.word(address) == 1, 'what is open after that')
    end_all(me, base, 40)


def churn():
    """A thread unmaps and maps anew at random, while others open: what one gets is what was mapped when its handle was
    given out, or nothing."""
    churned, opens = 12, 300
    need_descriptors(2 * MOST_PIECES)
    me, other = (Puppet(files=FILES, threads=2, GPUSHIM_DEBUG_IDLE='0', SOFTCUDA_MEMORY='16G') for _ in range(2))
    here, there = Held(me, and_own=True), Held(other)
    base = map_all(me, churned)
    me.thread(1).tell('churn_pieces', base)
    results = collections.Counter()
    while sum(results.values()) < opens or (not results[0] and sum(results.values()) < 100 * opens):
        handle, stamps = me.call('handle_of_pieces', base, Out(64), Out(4 * churned))[1]
        result, address = other.try_open(Handle(handle))
        results[result] += 1
        if result == 0:
            found = [other.word(address + piece * PIECE) for piece in range(churned)]
            check(found == list(struct.unpack(f'{churned}I', stamps)), 'what was opened is what was shared')
            other.close(address)
    me.pointer('end_churn')
    me.thread(1).answer()
    print(results)
    check(results[0] and not set(results) - {0, NOT_PERMITTED}, f'what opens gave: {results}')
    end_all(me, base, churned)
    await_that(lambda: here.no_more(files=True) and there.no_more(), 'nobody keeps anything')


def broker():
    """With a broker it is its process's alone all the same: a block of cuMemAlloc outlives its process there, what it
    mapped does not."""
    set_for_all(GPUSHIM_SHARE_STRATEGY='broker')
    keeper = Broker()
    killed, other = processes(2)
    own, block = killed.handle(map_all(killed, 40)), killed.handle(killed.block())
    address = open_piece(other, own, 40)
    await_that(lambda: other.pointer('broker_has', around.folder) == 1, 'the broker has the block alone')
    killed.kill()
    check(other.word(address + 39 * PIECE) == 40, 'what is open is there')
    other.close(address)
    other.end()
    other, = processes(1)
    await_that(lambda: other.try_open(block)[0] == 0, 'a block of a killed process')
    check(other.try_open(own)[0] != 0, 'what a killed process mapped is not opened')
    other.end()
    keeper.end()


def off():
    """debug.user_vmm = off: as natively."""
    me, = processes(1, GPUSHIM_DEBUG_USER_VMM='off')
    base = map_all(me, 2)
    check(me.result('cuIpcGetMemHandle', Out(64), base) == INVALID_VALUE, 'it is not shared')
    end_all(me, base, 2)


def alone():
    """share.isolate = alone: a handle is of one piece."""
    me, other = processes(2, GPUSHIM_SHARE_ISOLATE='alone')
    base = map_all(me, 3)
    middle = open_piece(other, me.handle(base + PIECE), 1)
    check(other.word(middle) == 2, 'the piece')
    other.close(middle)
    unmap(me, base, 0, 1)  # not of what the handle is of
    other.close(open_piece(other, me.handle(base + PIECE), 1))
    unmap(me, base, 1, 2)
    me.cuMemAddressFree(base, 3 * PIECE)


# ---- Under a name ----------------------------------------------------------------------------------


def publish(one, name, address):
    return one.result('gpushim_publish', name, struct.pack('5Q', 40, address, 0, 0, 0))


def must_publish(one, name, address):
    result = publish(one, name, address)
    check(result == 0, f'gpushim_publish gave {result}')


def look_up(one, name):
    """The error, and what was found."""
    error, found = one.call('gpushim_lookup', name, Out(struct.pack('Q', 480) + bytes(472)))
    return error, Named(*struct.unpack_from('Q64s5Q2I', found))


def of(one, name):
    error, found = look_up(one, name)
    check(error == 0, f'this process finds {name}')
    return found


def is_gone(name, *those):
    return all(look_up(one, name)[0] == ENOENT for one in those)


def finds(one, name, word):
    """It finds and opens the name, and reads that word there: the address, its offset from what was opened, the bytes
    of that, and whether a broker keeps it."""
    found = of(one, name)
    address = one.open(Handle(found.handle)) + found.offset
    check(one.word(address) == word, f'it finds {one.word(address)}, not {word}')
    return address, found.offset, found.bytes, found.kept


def named_lifetime():
    """Found, opened and read by another process until a piece of it is unmapped, mapped anew, or out of reach, the name
    taken back or published anew; who has it open keeps it."""
    me, other = Puppet(), Puppet()
    base = map_all(me, 3)
    must_publish(me, 'w', base + 8)
    me.write(base + 8, 11)
    found = of(me, 'w')
    check(me.handle(base) == found.handle, 'the same handle')
    check(found[2:5] + found[6:7] + found[8:] == (8, 3 * PIECE, base + 8, me.pid, 0), f'what this process has: {found}')
    first, *told = finds(other, 'w', 11)
    check(told == [8, 3 * PIECE, 0], f'what the reader is told: {told}')
    unmap(me, base, 1, 1)
    check(is_gone('w', other, me), 'a piece of it has gone')
    check((other.word(first), other.word(first - 8 + PIECE)) == (11, 2), 'what is open is there')
    map_stamped(me, base, 1, 77)
    check(is_gone('w', other, me), 'mapped anew it has not the old name')
    must_publish(me, 'w', base + PIECE)
    finds(other, 'w', 77)
    check(other.word(first - 8 + PIECE) == 2, 'the old one stays')
    must_publish(me, 'w', base + 2 * PIECE)  # another place of the same
    second, *told = finds(other, 'w', 3)
    check(told == [0, PIECE, 0], f'its place: {told}')
    check(me.result('gpushim_unpublish', 'w') == 0, 'it can be taken back')
    check(is_gone('w', other) and me.result('gpushim_unpublish', 'w') == ENOENT, 'taken back')
    check(other.word(second) == 3, 'what was taken back is open')
    must_publish(me, 'w', base)
    access_set(me, base + 2 * PIECE, PIECE, NONE)
    check(is_gone('w', other, me), 'nobody may reach a piece of it')
    must_publish(me, 'w', base)
    must_publish(me, 'also', base + PIECE)
    end_all(me, base, 3)
    check(is_gone('w', other) and is_gone('also', me), 'all of it has gone')
    base, newer = map_all(me, 1), map_all(other, 1)
    must_publish(me, 'w', base)
    must_publish(other, 'w', newer)
    end_all(other, newer, 1)
    await_that(lambda: is_gone('w', other, me), "the older one's name ended when another had it")
    end_all(me, base, 1)
    check(other.word(first) == 11, 'what is open is there at the end')


def named_pieces():
    """An address in the middle of several, and what is mapped beside it later."""
    me, other = Puppet(), Puppet()
    base, middle = map_all(me, 40, room=41), 20 * PIECE
    me.write(base + middle + 4096, 4711)
    must_publish(me, 'middle', base + middle + 4096)
    check(of(me, 'middle').address == base + middle + 4096, 'its own address')
    address, offset, size, _ = finds(other, 'middle', 4711)
    check((offset, size) == (4096, 20 * PIECE), 'its place')
    address -= 4096
    for piece in range(1, 20):
        check(other.word(address + piece * PIECE) == 21 + piece, 'what lies behind it')
    check(other.word(address - middle) == 1, 'what lies before it')
    # What is mapped beside it ends nothing, and is not of it.
    map_stamped(me, base, 40, 41)
    check(of(me, 'middle').bytes == 20 * PIECE, 'one more piece')
    must_publish(me, 'middle', base + middle + 4096)
    address, _, size, _ = finds(other, 'middle', 4711)
    check(size == 21 * PIECE and other.word(address - 4096 + middle) == 41, 'the larger one, and its last piece')
    end_all(me, base, 41)
    check(is_gone('middle', other), 'it has gone')


def named_refused():
    """What cannot be shared, and why; what is not mapped."""
    me = Puppet()
    base = map_all(me, 1, room=2)
    map_piece(me, base + PIECE, COMPRESSIBLE)
    block = me.alloc(4096)
    must_publish(me, 'w', block)
    check(publish(me, 'w', base + PIECE) == ENOTSUP, 'what is compressible has no name')
    check(times_logged('gets no name: it was asked to be compressible') == 1, 'it is said why')
    access_set(me, base, PIECE, NONE)
    check(publish(me, 'w', base) == ENOTSUP, 'what nobody may reach has no name')
    check(times_logged('gets no name: no device has access to it') == 1, 'it is said')
    check(of(me, 'w').address == block, 'what was refused leaves the name')
    me.cuMemFree(block)
    end_all(me, base, 2)
    check(publish(me, 'w', base) == ENODEV, 'what is not mapped has no name')


def named_full():
    """One name more than a process may have: what that says, and that the others stay."""
    me, names = Puppet(), 1024  # of a process: gpushim.h says so
    block = me.alloc(4096)
    for number in range(names):
        must_publish(me, f'n{number}', block)
    check(publish(me, 'more', block) == ENOSPC and is_gone('more', me), 'there is not one name too many')
    must_publish(me, f'n{names - 1}', block)  # one that is there is none more
    check(me.result('gpushim_unpublish', 'n0') == 0, 'it can be taken back')
    must_publish(me, 'more', block)
    check(publish(me, 'n0', block) == ENOSPC, 'there is not one name too many again')
    check(publish(me, 'more', block + 4096) == EFAULT, 'what is freed has no name')


def named_off():
    """debug.user_vmm = off: the library does not follow it."""
    me = Puppet(GPUSHIM_DEBUG_USER_VMM='off')
    check(publish(me, 'w', map_all(me, 1)) == ENODEV, 'it has no name')


def named_broker():
    """With a broker the name is its process's alone, and takes one over that is kept."""
    set_for_all(GPUSHIM_SHARE_STRATEGY='broker')
    keeper = Broker()
    me, other = Puppet(), Puppet()
    block = me.block(stamp=5)
    must_publish(me, 'w', block)
    check(of(me, 'w').kept == 1, 'a broker has the block')
    base = map_all(me, 2)
    must_publish(me, 'w', base + PIECE)
    check(times_logged('no broker has the name') == 0, 'no broker was to have it')
    check(finds(other, 'w', 2)[3] == 0 and of(me, 'w').kept == 0, 'no broker has it')
    unmap(me, base, 1, 1)
    check(is_gone('w', other, me), 'the broker does not have the old one')
    must_publish(me, 'w', base)
    check(finds(other, 'w', 1)[2] == PIECE, 'the one piece')
    must_publish(me, 'w', block)
    check(finds(other, 'w', 5)[3] == 1, 'the block again')
    unmap(me, base, 0, 1)  # whose name it is no more
    check(finds(other, 'w', 5)[3] == 1, "the block's stays when what had it before goes")
    me.cuMemFree(block)
    for one in other, me:
        one.end()
    keeper.end()


def named_ends():
    """The process that published it is killed."""
    killed, other = Puppet(), Puppet()
    must_publish(killed, 'killed', map_all(killed, 2) + PIECE)
    address = finds(other, 'killed', 2)[0]
    killed.kill()
    check(is_gone('killed', other), 'it is not found after that')
    check(other.word(address) == 2, 'what is open is there')


def named_churn():
    """A thread unmaps, maps anew and publishes: who finds it opens what was published, or nothing."""
    least = 200
    me, other = Puppet(threads=2), Puppet()
    base = reserve(me, 3)
    map_stamped(me, base, 0, 1000000)
    map_stamped(me, base, 2, 2000000)
    me.thread(1).tell('churn_name', base + PIECE, 'w')
    results = collections.Counter()
    while results['found'] < least and sum(results.values()) < 100 * least:
        gone = me.pointer('newest_stamp', 1)
        error, found = look_up(other, 'w')
        check(error in (0, ENOENT), f'gpushim_lookup gave {error}')
        result, opened = other.try_open(Handle(found.handle)) if error == 0 else (0, 0)
        check(result in (0, NOT_PERMITTED), f'cuIpcOpenMemHandle gave {result}')
        if error == 0 and result == 0:
            word = other.word(opened + found.offset)
            check(gone < word <= me.pointer('newest_stamp', 0), f'what was found had not gone before: {word}')
            other.close(opened)
        results['none' if error else 'stale' if result else 'found'] += 1
    me.pointer('end_churn')
    me.thread(1).answer()
    print(results)
    check(results['found'], 'something is found')
    check(is_gone('w', other), 'it is not found after that')


def named_others():
    """Another user's: as if there were none. Root shares in a folder of its own."""
    if os.geteuid() != 0:
        skip('not root: there is no other user')
    os.chmod(around.folder, 0o755)
    other = Puppet(begin=False, GPUSHIM_SHARE_UIDS='0')
    for call in 'setgid', 'setuid':
        check(other.result(call, NOBODY) == 0, 'it is another user')
    me = Puppet()
    must_publish(me, 'w', map_all(me, 1))
    other.begin()
    error, found = other.call('gpushim_lookup', 'w',
                              Out(struct.pack('Q', 480) + bytes(104) + struct.pack('2I', 4711, 4711) + bytes(360)))
    found = Named(*struct.unpack_from('Q64s5Q2I', found))
    check(error == ENOENT, f"another user's is found: {error}")
    check((found.uid, found.kept, found.bytes) == (4711, 4711, 0), f'nothing is said: {found}')
    check(other.result('gpushim_unpublish', 'w') == ENOENT, "another user's is taken back")
    check(of(me, 'w').kept == 0, 'its own user finds it')


set_for_all(GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on')
main(globals())
