"""What a verbs program sees of its registrations of GPU memory under the library, also where memory goes in other ways
than by a free of the arena's, and of what it may do wrong. Its card is a stand-in, which counts and checks.

    verbs.py PUPPET SHIM BROKER HOW
"""
import collections
import os
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from puppet import (ERRNO, INVALID_VALUE, MIB, NOT_SUPPORTED, OUT, OUT4, SHIM, Out, Puppet, await_that, check, main,
                    set_for_all, times_logged)

KIB = 1 << 10
PIECE = 4 * MIB  # the 256th of this GPU: a larger block lies across the driver's allocations
LOCAL, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, MW_BIND, ZERO_BASED, ON_DEMAND = 1, 2, 4, 8, 16, 32, 64
REMOTE = LOCAL | REMOTE_WRITE
TRANSLATION, ACCESS = 1, 4  # what a registration that is changed has anew
EPERM, EIO, ENOMEM, EFAULT, EBUSY, EINVAL = 1, 5, 12, 14, 16, 22
SIZE_MAX = (1 << 64) - 1
LONG, SOON = 30 * 10**9, 20 * 10**6
COUNTS = collections.namedtuple('Counts', 'registered deregistered live killed sent wrong tried unknown')
PINNED = struct.pack('4I16x', 1, 0, 1, 0)
CROSSES = os.environ.get('GPUSHIM_DEBUG_POOL_CROSS') != 'off'


class Card(Puppet):
    """One card and one domain, and a GPU whose memory is never free as a whole."""

    def __init__(self):
        super().__init__()
        self.alloc(PIECE)
        self.trim()
        self.kept = self.census().bytes
        self.card = self.pointer('ibv_open_device', self.pointer('peek', self.pointer('ibv_get_device_list', 0)))
        self.pd = self.pointer('ibv_alloc_pd', self.card)

    def counts(self):
        return COUNTS(*struct.unpack('8Q', self.call('stand_in_counts', Out(64))[1]))

    def counted(self, **expected):
        now = self.counts()._asdict()
        expected = {'wrong': 0} | expected
        check({name: now[name] for name in expected} == expected, f'{expected} was to be so: {now}')

    def held(self):
        """What the GPU has for more than what is never freed."""
        return self.census().bytes - self.kept

    def holds(self, size):
        check(self.held() == size, f'{self.held()} bytes are held, and not {size}')

    def is_rid_of_all(self):
        self.trim()
        self.counted(live=0)
        self.holds(0)

    def free(self, *blocks):
        for block in blocks:
            self.cuMemFree(block)

    def try_reg(self, address, size, access=LOCAL, pd=None):
        return self.pointer('ibv_reg_mr', pd or self.pd, address, size, access)

    def reg(self, address, size, access=LOCAL, pd=None):
        mr = self.try_reg(address, size, access, pd)
        check(mr, f'it is refused, {self.errno}')
        check((self.part(mr, 1), self.part(mr, 2), self.part(mr, 3)) == (pd or self.pd, address, size),
              'it shows what was named')
        return mr

    def refused(self, address, size, error=EFAULT, access=LOCAL, pd=None):
        check(not self.try_reg(address, size, access, pd) and self.errno == error, f'it is refused, {self.errno}')

    def dereg(self, mr):
        check(mr and self.result('ibv_dereg_mr', mr) == 0, 'it is ended')

    def once(self, *arguments):
        self.dereg(self.reg(*arguments))

    def part(self, mr, word):
        """Of a region: context, domain, address, length, handle and key."""
        return self.pointer('peek', mr + 8 * word)

    def key(self, mr):
        return self.part(mr, 4) >> 32

    def at(self, mr, address):
        return self.pointer('stand_in_at', mr, address)

    def reg_ex(self, size, address, comp_mask, iova=0, access=LOCAL):
        attr = struct.pack('Qi4xQQQi4xQQ', size, access, comp_mask, iova, address, 0, 0, 0)
        return self.pointer('ibv_reg_mr_ex', self.pd, attr)

    def rereg(self, mr, what, address=0, size=0, access=0):
        return self.result('ibv_rereg_mr', mr, what, 0, address, size, access)

    def range_handle(self, address, size):
        return self.call('cuMemGetHandleForAddressRange', OUT4, address, size, 1, 0)

    def dmabuf(self, address, size):
        result, fd = self.range_handle(address, size)
        check(result == 0, f'a dma-buf: {result}')
        return fd

    def reg_dmabuf(self, offset, size, iova, fd):
        return self.pointer('ibv_reg_dmabuf_mr', self.pd, offset, size, iova, fd, LOCAL)

    def close_fd(self, fd):
        self.result('close', fd)

    def dmabufs(self):
        return self.pointer('softcuda_calls', 'cuMemGetHandleForAddressRange')

    def fails(self, call, error):
        check(self.result('softcuda_fail', call, 0, error) == 0, 'it is to fail')

    def fill(self, address, byte, size):
        self.cuMemsetD8(address, byte, size)
        self.cuCtxSynchronize()

    def alloc_native(self, size):
        """Memory that the arena cannot have, and so is the driver's."""
        self.fails('cuMemCreate', NOT_SUPPORTED)
        block = self.alloc(size)
        self.pointer('softcuda_reset')
        return block


# ---- Kept ------------------------------------------------------------------------------------------------------------


def kept():
    one = Card()
    a, b, big = one.alloc(64 * KIB), one.alloc(100 * KIB), one.alloc(8 * MIB)
    first = one.reg(a, 64 * KIB)
    one.dereg(first)
    check(one.errno == ERRNO, 'also where it had to look for libraries')
    second = one.reg(b, 100 * KIB)  # another block of the same piece
    check(second == first, 'it serves that as well')
    one.counted(registered=1)
    third = one.reg(a + 512, 1000)  # while that one is in use: one of its own
    check(third != second and one.key(third) != one.key(second), 'another')
    one.counted(registered=2)
    one.dereg(third)
    one.dereg(second)
    one.counted(live=2)
    for _ in range(2):
        for i in range(10):
            one.once(big + 64 * KIB * i, 64 * KIB)
            one.once(big + 64 * KIB * i + 5, 64 * KIB - 10)
        one.counted(registered=12)
    one.once(big, 8 * MIB)  # more than those: pinned anew, in the place of all of them
    one.once(big + 300, 7 * MIB)
    one.counted(registered=13)


def remote():
    """Keys that others may hold die when the program says so, and reach what it named."""
    one = Card()
    a = one.alloc(64 * KIB)
    for i in range(3):
        one.once(a, 64 * KIB, REMOTE)
        one.counted(registered=i + 1, live=0)
    for i, other in enumerate((REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, MW_BIND, ZERO_BASED, ON_DEMAND)):
        one.once(a, 64 * KIB, LOCAL | other)
        one.counted(registered=4 + i, live=0)


def none_kept():
    """Under registrations.keep = none."""
    one = Card()
    a = one.alloc(64 * KIB)
    for i in range(3):
        one.once(a, 64 * KIB)
        one.counted(registered=i + 1, live=0)
    set_for_all(GPUSHIM_LOG='info')
    for count in range(2):  # who registered nothing has no word of it in the log
        other = Card()
        a = other.alloc(64 * KIB)
        for _ in range(count):
            other.once(a, 64 * KIB)
        other.end()
        check(times_logged('registrations: ') == times_logged('registrations: 0 found kept, 1 not') == count, 'the sum')


def all_kept():
    """Under registrations.keep = all: but of what can be reached no more than was named."""
    one = Card()
    a = one.alloc(64 * KIB)
    for _ in range(3):
        one.once(a, 64 * KIB, REMOTE)
    one.counted(registered=1, live=1)
    one.once(a, 64 * KIB, LOCAL | REMOTE_ATOMIC)
    one.once(a, 32 * KIB, REMOTE)
    one.counted(registered=3, live=3)
    one.once(a, 64 * KIB, LOCAL | MW_BIND)
    one.counted(registered=4, live=3)
    one.free(a)
    one.trim()
    one.counted(live=0)


def two_kept():
    """Under debug.registrations_count = 2."""
    one = Card()
    for i in range(4):
        one.once(one.alloc(4 * MIB), 4 * MIB)
        one.counted(live=1 if i == 0 else 2)


def iova():
    one = Card()
    a = one.alloc(64 * KIB)

    def reg(call, address, its_iova):
        mr = one.pointer(call, one.pd, address, 4096, its_iova, LOCAL)
        check(mr and one.part(mr, 2) == address, 'it is registered')
        check(one.at(mr, its_iova) == address and one.at(mr, its_iova + 4095) == address + 4095, 'it is there')
        one.dereg(mr)
        return mr
    check(reg('ibv_reg_mr_iova', a + 4096, 0x1000) == reg('ibv_reg_mr_iova2', a + 4096, 0x1000),
          'the same by another call')
    one.counted(registered=1)
    reg('ibv_reg_mr_iova2', a + 4096, 0x2000)
    reg('ibv_reg_mr_iova2', a + 8192, 0x3000)  # as far from its addresses as the last
    one.counted(registered=2)


# ---- Memory that goes ------------------------------------------------------------------------------------------------


def free_and_unmap():
    one = Card()
    a, big = one.alloc(64 * KIB), one.alloc(8 * MIB)
    one.once(a, 64 * KIB)
    one.once(big, 8 * MIB)
    one.free(a, big)
    one.counted(live=2)  # freed memory that is kept stays registered
    one.is_rid_of_all()


def asleep():
    """What is registered stays on the GPU, where a card may be at it; of the rest what is kept ends."""
    one = Card()
    used, kept_only = one.alloc(8 * MIB), one.alloc(8 * MIB)
    one.fill(used, 7, 8 * MIB)
    mr = one.reg(used, 8 * MIB)
    one.once(kept_only, 8 * MIB)
    state = one.sleep()
    check(state.away >= 8 * MIB and state.registered == 8 * MIB, f'{state}')
    one.must_wake()
    one.counted(registered=2, live=1)
    check(one.pointer('peek', one.at(mr, used + 8)) == 0x0707070707070707, 'the card reaches what it did')
    one.dereg(mr)
    check(one.sleep().registered == 0, 'nothing is registered any more')
    one.must_wake()
    one.counted(live=0)
    one.once(used, 8 * MIB)
    one.counted(registered=3)


def free_in_use():
    one = Card()
    a = one.alloc(8 * MIB)
    mr = one.reg(a, 8 * MIB, REMOTE)
    one.free(a)
    one.trim()
    check(one.alloc(8 * MIB) != a, 'it waits')
    one.counted(live=1)
    one.dereg(mr)
    one.trim()
    one.counted(live=0)
    one.holds(8 * MIB)


def neighbours():
    """A freed block waits for its own registration alone, however much more that pins."""
    one = Card()
    a, b = one.alloc(64 * KIB), one.alloc(64 * KIB)
    mr = one.reg(a, 64 * KIB)
    one.free(b)
    one.trim()
    check(one.alloc(64 * KIB) == b, 'the neighbour is had again')
    one.free(a)
    one.trim()
    check(a not in [one.alloc(64 * KIB) for _ in range(20)], 'it waits')
    one.dereg(mr)
    one.trim()
    check(one.alloc(64 * KIB) == a, 'it is had again')
    one.counted()


def stream_order():
    """What is freed in stream order is used again by that stream at once, but not while registered."""
    one = Card()
    stream = one.stream()
    a = one.cuMemAllocAsync(OUT, 4 * MIB, stream)
    mr = one.reg(a, 4 * MIB, REMOTE)
    one.cuMemFreeAsync(a, stream)
    b = one.cuMemAllocAsync(OUT, 4 * MIB, stream)
    check(a != b, 'it waits')
    one.dereg(mr)
    one.once(b, 4 * MIB)
    one.hold(1)  # the stream does not get there
    one.cuMemsetD8Async(b, 1, 4 * MIB, stream)
    one.cuMemFreeAsync(b, stream)
    one.counted(live=1)
    one.hold(0)
    one.cuStreamSynchronize(stream)
    one.is_rid_of_all()


def foreign():
    """The program's own mapping, which goes and comes back at the same address as something else."""
    one = Card()
    a = one.cuMemAddressReserve(OUT, 2 * MIB, 0, 0, 0)
    for i in range(3):
        handle = one.cuMemCreate(OUT, 2 * MIB, PINNED, 0)
        one.cuMemMap(a, 2 * MIB, 0, handle, 0)
        one.cuMemSetAccess(a, 2 * MIB, struct.pack('3I', 1, 0, 3), 1)
        mr = one.reg(a, 64 * KIB)
        key = one.key(mr)
        one.dereg(mr)
        mr = one.reg(a, 64 * KIB)
        check(one.key(mr) == key, 'the same')
        one.counted(registered=i + 1)
        if i < 2:  # else it is in use: what goes is the program's business
            one.dereg(mr)
        one.cuMemUnmap(a, 2 * MIB)
        one.cuMemRelease(handle)
    one.counted(live=1, wrong=1)
    one.dereg(mr)  # and it is not kept after that
    one.counted(live=0, wrong=1)


# ---- By dma-buf ------------------------------------------------------------------------------------------------------


def dmabuf_of_a_neighbour(one):
    """One of a range that leaves its block is refused, before the driver is asked."""
    low, high = one.alloc(64 * KIB), one.alloc(64 * KIB)
    asked = one.dmabufs()
    check(high == low + 64 * KIB, 'side by side')
    for address, size in (low, 64 * KIB + 1), (low, 68 * KIB), (low, 128 * KIB), (low + 4096, SIZE_MAX - 8191):
        check(one.range_handle(address, size)[0] == INVALID_VALUE, f'{size} bytes')
    check(one.dmabufs() == asked, 'the driver was asked')
    one.close_fd(one.dmabuf(low, 64 * KIB))
    one.free(low, high)


def dmabuf_of_one_file(one):
    """One file may stand for one range after the other: the last counts."""
    a, before = one.alloc(4 * MIB), one.counts().live
    fds = one.dmabuf(a, 64 * KIB), one.dmabuf(a + 2 * MIB, MIB)
    check(len({os.stat(f'/proc/{one.pid}/fd/{fd}').st_ino for fd in fds}) == 1, 'one file')
    one.dereg(one.reg_dmabuf(0, MIB, a + 2 * MIB, fds[1]))
    one.counted(live=before + 1)  # known, and so kept
    for fd in fds:
        one.close_fd(fd)
    one.free(a)
    one.trim()


def dmabuf_of_what_went(one):
    """A descriptor keeps its memory, and says nothing about what lies at the address by then."""
    a, others = one.alloc(16 * MIB), []
    fd = one.dmabuf(a, 16 * MIB)
    one.free(a)
    one.trim()
    while a not in others:  # until other memory has the address
        check(len(others) < 64, 'it is had again')
        others.append(one.alloc(16 * MIB))
    live = one.counts().live
    one.dereg(one.reg_dmabuf(0, 64 * KIB, a, fd))
    one.counted(live=live)  # not kept as one of the new memory
    one.close_fd(fd)
    one.free(*others)
    one.trim()


def dmabuf_of_more_than_there_is(one):
    """What is more than the dma-buf has, and what is none, is for the card to judge, and not known."""
    a = one.alloc(4 * MIB)
    fd, live = one.dmabuf(a, 64 * KIB), one.counts().live
    closed = one.result('dup', fd)
    one.close_fd(closed)
    mr = one.reg_dmabuf(32 * KIB, 64 * KIB, a, fd)
    if mr:
        one.dereg(mr)
    one.counted(live=live)
    mr = one.reg_dmabuf(0, 64 * KIB, a, fd)
    check(not one.reg_dmabuf(0, 64 * KIB, a, closed), 'it is none')
    one.dereg(mr)
    one.close_fd(fd)
    one.free(a)
    one.trim()
    one.counted(live=live)


def dmabuf_of_what_went_in_part(one):
    low, block = one.alloc(MIB), one.alloc(7 * MIB)
    fd = one.dmabuf(block, 7 * MIB)
    one.free(block)
    one.trim()
    again = one.alloc(7 * MIB)
    check(again == block or not CROSSES, 'it is had again')
    live = one.counts().live
    one.dereg(one.reg_dmabuf(0, 64 * KIB, again, fd))
    one.counted(live=live)
    one.close_fd(fd)
    one.free(again, low)
    one.trim()


def dmabuf():
    one = Card()
    dmabuf_of_one_file(one)
    dmabuf_of_what_went(one)
    dmabuf_of_more_than_there_is(one)
    dmabuf_of_what_went_in_part(one)
    before = one.counts().registered
    a = one.alloc(4 * MIB)
    for _ in range(3):
        fd = one.dmabuf(a, 4 * MIB)
        mr = one.reg_dmabuf(64 * KIB, 64 * KIB, a + 64 * KIB, fd)
        check(mr and (one.part(mr, 2), one.part(mr, 3)) == (64 * KIB, 64 * KIB), 'it shows what was named')
        one.close_fd(fd)
        one.dereg(mr)
    one.counted(registered=before + 1, live=1)
    one.once(a + 64 * KIB, 64 * KIB)  # by its address: another kind
    one.counted(registered=before + 2)
    dmabuf_of_a_neighbour(one)
    one.free(a)
    one.is_rid_of_all()


# ---- Across allocations of the driver's ------------------------------------------------------------------------------


def across_by_every_call(one, block, border, small):
    """A program cannot tell where the driver's allocations end: the key reaches all that was named."""
    here, before = one.reg(small, 4096), one.dmabufs()
    for i in range(8):
        at, access = border - 100 - i, (LOCAL, REMOTE)[i % 2]
        its_iova = at if i < 2 else 0x10000000 + at % 4096  # the same in the page
        there = bytes((i * 31 + j) % 256 for j in range(200))
        one.cuMemcpyHtoD(at, there, 200)
        one.fill(small, 0, 4096)
        mr = (one.reg(at, 200, access) if i < 2 else
              one.pointer('ibv_reg_mr_iova', one.pd, at, 200, its_iova, access) if i < 4 else
              one.pointer('ibv_reg_mr_iova2', one.pd, at, 200, its_iova, access) if i < 6 else
              one.reg_ex(200, at, 1 | 2, its_iova, access))
        check(mr and (one.part(mr, 2), one.part(mr, 3)) == (at, 200), 'it shows what was named')
        check(one.pointer('stand_in_access', mr) == access, 'it may be what was asked for')
        check(one.pointer('move', one.pd, mr, its_iova, here, small, 200) & 1, 'it is moved')
        check(one.cuMemcpyDtoH(Out(200), small, 200) == there, 'what was there')
        one.dereg(mr)
    check((one.dmabufs() > before) == CROSSES and one.census().exported == 0, 'by dma-buf, which is closed')
    mr = one.reg(block, 8 * MIB, REMOTE)
    one.fill(small, 77, 200)
    check(one.pointer('move', one.pd, here, small, mr, block + 8 * MIB - 200, 200) & 1, 'it is moved')
    check(one.cuMemcpyDtoH(Out(200), block + 8 * MIB - 200, 200) == bytes([77] * 200), 'to its end')
    one.dereg(mr)
    one.dereg(here)
    one.counted()


def across_kept(one, block, border):
    one.once(block, 8 * MIB)
    before = one.counts().registered
    for _ in range(3):
        one.once(block, 8 * MIB)
        one.once(border - 512, 1024)
        one.once(border + MIB, MIB)
    one.counted(registered=before)
    one.refused(block, 8 * MIB + 64 * KIB)  # beyond the block


def across_refused(one, block, border):
    """Where no dma-buf is to be had the answer is the library's, of the call that was made."""
    live = one.counts().live
    one.fails('cuMemGetHandleForAddressRange', NOT_SUPPORTED)
    one.refused(border - 512, 1024, access=REMOTE)
    one.once(border, 1024, REMOTE)  # of one allocation
    one.pointer('softcuda_reset')
    one.pointer('stand_in_room', live)
    one.once(block, 8 * MIB, REMOTE)  # what is kept makes room
    one.pointer('stand_in_room', 100)
    one.pointer('stand_in_fail', 1, EPERM)
    one.refused(block, 8 * MIB, EPERM, REMOTE)
    one.pointer('stand_in_fail', 0, 0)
    one.counted()
    check(one.counts().live < live and one.census().exported == 0, 'nothing is left of it')


def across():
    one = Card()
    small, block = one.alloc(4096), one.alloc(8 * MIB)
    border = block + PIECE
    across_by_every_call(one, block, border, small)
    context = one.cuCtxGetCurrent(OUT)
    one.set_context(0)
    one.once(border - 512, 1024, REMOTE)  # it needs no context, and has none after it
    check(one.cuCtxGetCurrent(OUT) == 0, 'no call is the program\'s')
    one.set_context(context)
    across_kept(one, block, border)
    if CROSSES:
        across_refused(one, block, border)
    one.free(small)
    mr = one.reg(border - 512, 1024, REMOTE)
    one.once(block, 8 * MIB)
    one.free(block)
    one.trim()
    following = one.alloc(8 * MIB)
    check(following != block, 'it waits')
    one.holds(16 * MIB)
    one.refused(border - 512, 1024, access=REMOTE)
    one.free(following)
    one.trim()
    one.dereg(mr)
    one.is_rid_of_all()


# ---- Other ways to register ------------------------------------------------------------------------------------------


def extended():
    one = Card()
    a = one.alloc(4 * MIB)
    one.dereg(one.reg_ex(64 * KIB, a, 2))
    one.once(a, 64 * KIB)
    one.counted(registered=1)
    mr = one.reg_ex(64 * KIB, a, 2 | 1, 0x7000)
    check(one.at(mr, 0x7000) == a and one.at(mr, 0x7000 + 64 * KIB - 1) == a + 64 * KIB - 1, 'it is there')
    one.dereg(mr)
    one.counted(registered=2)
    mr = one.reg_ex(64 * KIB, a, 2 | 16)  # something this library does not know: registered as it came
    one.counted(registered=3, live=3)
    one.free(a)
    one.trim()
    one.holds(PIECE)  # and known
    one.dereg(mr)
    one.trim()
    one.holds(0)
    one.counted(live=0)
    check(not one.reg_ex(64 * KIB, 64, 2 | 16) and one.errno == EFAULT, 'no memory')


def moved():
    one = Card()
    a, b, host = one.alloc(64 * KIB), one.alloc(PIECE), one.pointer('malloc', 4096)
    mr = one.reg(a, 64 * KIB)
    check(one.rereg(mr, ACCESS, access=REMOTE) == 0, 'it may be reached')
    check((one.part(mr, 2), one.part(mr, 3)) == (a, 64 * KIB), 'no more is open to others')
    check(one.rereg(mr, TRANSLATION, b, PIECE) == 0, 'it is moved')
    one.free(a, b)
    one.trim()
    one.holds(PIECE)  # b waits, a went
    check(one.rereg(mr, TRANSLATION, host, 4096) == 0, 'it is moved to the host')
    one.trim()
    one.holds(0)
    check(one.rereg(mr, TRANSLATION, 64, 64) != 0, 'no memory')
    # That it may be reached is not where it is.
    a = one.alloc(64 * KIB)
    check(one.rereg(mr, ACCESS, a, 64 * KIB, REMOTE) == 0, 'it may be reached')
    one.free(a)
    one.trim()
    one.holds(0)
    one.dereg(mr)
    one.counted(live=0)


def domains():
    one = Card()
    other, a = one.pointer('ibv_alloc_pd', one.card), one.alloc(64 * KIB)
    one.once(a, 64 * KIB)
    mr = one.reg(a, 64 * KIB, LOCAL, other)
    one.counted(registered=2)
    check(one.result('ibv_dealloc_pd', other) == EBUSY, "in use: the kernel's own answer")
    one.dereg(mr)
    one.counted(live=1)  # a domain that is to go keeps nothing more
    check(one.result('ibv_dealloc_pd', other) == 0, 'it goes')
    one.counted(live=1)
    check(one.result('ibv_close_device', one.card) == 0, 'all goes')
    one.counted(live=0)


def full():
    one = Card()
    one.pointer('stand_in_room', 3)
    blocks = [one.alloc(4 * MIB) for _ in range(6)]
    for block in blocks * 3:
        mr = one.reg(block, 4 * MIB)
        check(one.counts().live <= 3, 'what is kept makes room')
        one.dereg(mr)
    for block in blocks[:3]:
        one.reg(block, 4 * MIB)
    tried = one.counts().tried
    one.refused(blocks[3], 4 * MIB, ENOMEM)  # the caller's error
    one.counted(tried=tried + 1)  # nothing was unused, so nothing was worth another try
    one.pointer('stand_in_room', 100)
    one.once(blocks[3], 4 * MIB)
    one.pointer('stand_in_fail', 1, ENOMEM)
    tried = one.counts().tried
    one.refused(blocks[4], 4 * MIB, ENOMEM)
    one.counted(live=3, tried=tried + 2)  # once more, without what was unused
    one.pointer('stand_in_fail', 1, EPERM)
    one.refused(blocks[4], 4 * MIB, EPERM)
    one.counted(live=3, tried=tried + 3)


def bar1():
    """Under a stand-in for NVML that says that 64 MiB of each GPU can be seen from outside."""
    one = Card()
    blocks = [one.alloc(12 * MIB) for _ in range(8)]
    for block in blocks:
        one.once(block, 12 * MIB)
    one.counted(registered=8, live=2)  # half of it is kept at most
    one.once(blocks[7], 12 * MIB)
    one.counted(registered=8)
    one.once(blocks[0], 12 * MIB)
    one.once(blocks[7], 12 * MIB)
    one.counted(registered=9)  # the least recently used one went


def host():
    """Host memory is the library's alone."""
    one = Card()
    for memory in one.pointer('malloc', 64 * KIB), one.cuMemAllocHost_v2(OUT, 64 * KIB):
        for _ in range(3):
            one.once(memory, 64 * KIB)
    one.counted(registered=6, live=0)


def forked():
    """A child holds nothing: its calls reach the library as they are, and its end ends nothing."""
    one = Card()
    a, b = one.alloc(64 * KIB), one.alloc(4 * MIB)
    used = one.reg(b, 4 * MIB)
    attr = struct.pack('Qi4xQQQi4xQQ', 64 * KIB, LOCAL, 2, 0, a, 0, 0, 0)
    one.once(a, 64 * KIB)
    check(one.result('gpushim_registrations', 0, 0) == 2, 'two')
    check(one.forked('registers_as_a_child', one.pd, attr) == 0, 'the child')
    check(one.result('gpushim_registrations', 0, 0) == 2, 'two still')
    one.once(a, 64 * KIB)
    one.dereg(used)
    one.counted(registered=2, live=2)


def look_ups():
    one = Card()
    library, itself = one.pointer('dlopen', 'libibverbs.so.1', 2), one.pointer('dlopen', 0, 2)

    def find(scope, name, *version):
        return one.pointer('dlvsym' if version else 'dlsym', scope, name, *version)

    def object_of(address):
        for line in open(f'/proc/{one.pid}/maps', encoding='utf-8'):
            low, high = (int(end, 16) for end in line.split()[0].split('-'))
            if low <= address < high:
                return os.path.basename(line.split()[-1])
        return None
    hook, old = find(library, 'ibv_reg_mr_iova2'), find(library, 'ibv_reg_mr', 'IBVERBS_1.0')
    check(library and object_of(hook) == 'libgpushim.so', f'it is in {object_of(hook)}')
    check({find(library, 'ibv_reg_mr_iova2', 'IBVERBS_1.8'), find(0, 'ibv_reg_mr_iova2'),
           find(itself, 'ibv_reg_mr_iova2')} == {hook}, 'by any way')
    check(not find(library, 'ibv_reg_mr_iova2', 'IBVERBS_1.1'), 'no such version')
    check(old and object_of(old) != 'libgpushim.so', 'an older one')
    check(not find(0, 'gdr_pin_buffer') and not find(0, 'cuFileBufRegister'), 'libraries that are not there')
    check(object_of(find(library, 'ibv_alloc_pd')).startswith('libibverbs'), 'what is not led')


# ---- Memory that goes otherwise --------------------------------------------------------------------------------------


def native_free():
    one = Card()
    a = one.alloc_native(8 * MIB)
    for _ in range(3):
        one.once(a, 64 * KIB)
    one.counted(registered=1, live=1)
    mr = one.reg(a + MIB, 64 * KIB)
    one.free(a)
    one.counted(live=1, wrong=1)  # as natively: this one was in use
    one.dereg(mr)
    one.counted(live=0, wrong=1)
    one.refused(a, 64 * KIB)


def external():
    """Kept beyond its end as any; what is kept ends with the memory, before its deleter may free what was attached. One
    that is in use keeps the memory."""
    one = Card()
    one.alloc(4096)  # beside which the deleter has a block
    before, noted = one.census().bytes, one.pointer('dlsym', 0, 'deletions')

    def attached():
        handle = one.cuMemCreate(OUT, 4 * MIB, struct.pack('4I16x', 1, 1, 1, 0), 0)
        fd = one.cuMemExportToShareableHandle(OUT4, handle, 1, 0)
        described = struct.pack('Q4i6Q', 72, 1, 2, 0, fd, 0, 0, 4 * MIB, 0, one.pointer('dlsym', 0, 'note_deleted'),
                                one.pointer('dlsym', 0, 'note_counts'))
        address = one.gpushim_attach(described, OUT)
        one.close_fd(fd)
        one.cuMemRelease(handle)
        return address

    def ended(times):
        live, held = (one.pointer('peek', one.pointer('dlsym', 0, name) + at) for name,
                      at in (('counts_then', 16), ('bytes_then', 0)))
        check((one.pointer('peek', noted), live, held) == (times, 0, before),
              f'{times} times: {live} live, {held} held')
        one.counted()
    a = attached()
    for _ in range(3):
        one.once(a, 64 * KIB)
    one.counted(registered=1, live=1)
    one.gpushim_detach(a, LONG)
    ended(1)
    a = attached()
    mr = one.reg(a + MIB, 64 * KIB)
    check(one.result('gpushim_detach', a, SOON) == EBUSY and one.pointer('peek', noted) == 1, 'it is in use')
    one.counted(live=1)
    check(one.census().bytes == before + 4 * MIB, 'and held')
    one.dereg(mr)
    one.result('gpushim_detach', a, LONG)  # or it has ended by itself
    ended(2)
    one.refused(a, 64 * KIB)


def context_ends():
    """And the driver's memory with it."""
    one = Card()
    before = one.cuCtxGetCurrent(OUT)
    context = one.cuCtxCreate_v2(OUT, 0, 0)
    one.once(one.alloc_native(8 * MIB), 64 * KIB)
    one.counted(live=1)
    one.cuCtxDestroy(context)
    one.counted(live=0)
    one.set_context(before)
    one.once(one.alloc_native(8 * MIB), 64 * KIB)
    one.counted(live=1)
    one.cuDevicePrimaryCtxReset(0)
    one.counted(live=0)


def context_ends_in_use():
    """The arena's memory ends with the context as well, but for what is registered and in use."""
    one = Card()
    context = one.cuCtxCreate_v2(OUT, 0, 0)
    a, b = one.alloc(8 * MIB), one.alloc(16 * MIB)
    mr = one.reg(a, 8 * MIB)
    one.once(b, 16 * MIB)
    one.cuCtxDestroy(context)
    one.counted(live=1)
    one.holds(8 * MIB)
    one.dereg(mr)
    one.set_context(one.cuDevicePrimaryCtxRetain(OUT, 0))
    one.is_rid_of_all()


def managed():
    one = Card()
    for _ in range(3):
        a = one.cuMemAllocManaged(OUT, 4 * MIB, 1)
        one.once(a, MIB)
        one.once(a, MIB)
        one.free(a)
        one.counted(live=0)
    one.counted(registered=3)


def out_of_memory():
    """What is freed and only kept makes room before anything fails."""
    one = Card()
    a = one.alloc(16 * MIB)
    left = one.cuMemGetInfo(OUT, OUT)[0]
    one.alloc(left - 2 * MIB & ~(2 * MIB - 1))
    one.once(a, 16 * MIB)
    one.free(a)
    one.counted(live=1)
    one.alloc(18 * MIB)  # of which 16 are those
    one.counted(live=0)


def imported():
    """Another process's block that is registered when this one closes it stays until that ends."""
    exporter, one = Puppet(), Card()
    theirs = exporter.alloc(8 * MIB)
    before = one.census().mappings

    def comes_back():
        again = exporter.alloc(8 * MIB)
        exporter.cuMemFree(again)
        return again == theirs
    a = one.open(exporter.handle(theirs))
    one.refused(a, 9 * MIB)
    one.once(a, MIB)
    one.once(a, MIB)
    one.counted(registered=1)
    mr = one.reg(a + MIB, MIB, REMOTE)
    there = one.census().mappings
    check(there > before, 'it is mapped')
    one.once(a, 8 * MIB, REMOTE)  # across the driver's allocations, if it is
    one.counted(registered=3)
    one.close(a)
    one.refused(a, MIB)  # closed
    exporter.cuMemFree(theirs)
    for _ in range(20):
        check(not comes_back(), 'it stays')
        time.sleep(0.005)
    check(one.census().mappings == there, 'it is mapped still')
    one.counted()
    one.dereg(mr)
    await_that(lambda: one.census().mappings == before, 'it is unmapped')
    one.counted(live=0)
    await_that(comes_back, 'the block comes back to its owner')


# ---- Mistakes --------------------------------------------------------------------------------------------------------


def mistakes():
    one = Card()
    a, b, c, gone = one.alloc(64 * KIB), one.alloc(256 * KIB), one.alloc(256 * KIB), one.alloc(8 * MIB)
    low = min(b, c)
    one.refused(a, 0, EINVAL)  # nothing
    one.refused(a, 4 * MIB)  # past the end of its piece
    one.once(b, 256 * KIB)  # all of the piece is registered, and kept
    check(abs(b - c) == 256 * KIB, 'side by side')
    one.refused(low, 512 * KIB)  # two blocks
    one.refused(low + 128 * KIB, 192 * KIB)
    one.free(gone)
    one.refused(gone, 8 * MIB)  # freed
    one.trim()
    one.refused(gone, 8 * MIB)  # unmapped
    mr = one.reg(a, 64 * KIB)
    one.dereg(mr)
    check(one.result('ibv_dereg_mr', mr) == EINVAL, 'twice')
    one.counted(live=1, unknown=0)


def freed():
    """Memory that was freed, though a region over it is kept."""
    one = Card()
    small, other, big = one.alloc(64 * KIB), one.alloc(64 * KIB), one.alloc(8 * MIB)
    for _ in range(3):
        one.once(small, 64 * KIB)
        one.once(big, 8 * MIB)
    one.counted(registered=2)
    one.free(small, big)
    for address, size in (small, 64 * KIB), (small + 512, 512), (big + MIB, MIB):
        one.refused(address, size)
    one.once(other, 64 * KIB)  # its neighbour lives, and hits
    again = one.alloc(8 * MIB)
    if again == big:
        one.once(again, 8 * MIB)
        one.counted(registered=2)
    one.counted()


def unseen():
    """A region that was made by a call that nobody sees."""
    one = Card()
    a = one.alloc(64 * KIB)
    mr, ours = one.pointer('stand_in_reg', one.pd, a, 64 * KIB, LOCAL), one.reg(a, 64 * KIB)
    none = one.pointer('place', struct.pack('4Q16x', 0, one.pd, a, 64), 48)
    check(mr and ours != mr, 'another')
    one.dereg(mr)
    check(one.result('ibv_dereg_mr', none) == EINVAL, "the library's own answer")
    one.counted(unknown=1)
    one.dereg(ours)
    one.counted(live=1)


def no_domain():
    """A domain that was given back."""
    one = Card()
    other, a = one.pointer('ibv_alloc_pd', one.card), one.alloc(64 * KIB)
    one.once(a, 64 * KIB, LOCAL, other)
    check(one.result('ibv_dealloc_pd', other) == 0, 'it is given back')
    one.refused(a, 64 * KIB, EINVAL, LOCAL, other)
    one.counted(live=0)


def device_gone():
    """The card is pulled out with one registration in use and one kept."""
    one = Card()
    a, b, c = one.alloc(8 * MIB), one.alloc(16 * MIB), one.alloc(32 * MIB)
    mr = one.reg(a, 8 * MIB, REMOTE)
    one.once(b, 16 * MIB)
    one.pointer('stand_in_gone')
    one.refused(c, 32 * MIB, EIO)
    check(one.result('ibv_dereg_mr', mr) == EIO and one.rereg(mr, ACCESS, access=LOCAL) == EIO, 'no call goes')
    check(one.result('ibv_dealloc_pd', one.pd) == EIO, 'nor this one')
    one.free(a, b)
    one.trim()
    one.counted(live=2)
    one.holds(56 * MIB)  # all wait, and c lives
    check(one.result('ibv_close_device', one.card) == 0, 'it is closed')
    one.counted(live=0)
    one.trim()
    one.counted()
    one.holds(32 * MIB)


set_for_all(GPUSHIM_POOL_DECAY='0')
if 'NVML_STAND_IN' in os.environ:
    set_for_all(LD_PRELOAD=f'{SHIM}:{os.environ["NVML_STAND_IN"]}')
main(globals())
