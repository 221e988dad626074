"""A program that pins GPU memory through libgdrapi and registers it with libcufile, both found by dlopen, as their
users do: stand-ins for both.

    others.py PUPPET SHIM BROKER gdr|gdr-first|gdr-early|cufile|cufile-unkept LIBRARY
"""
import collections
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from puppet import HOW, MIB, OUT, Out, Puppet, check, main, set_for_all

KIB = 1 << 10
EINVAL = 22
NOT_REGISTERED, REGISTERED, BAD_POINTER = 5024, 5023, 5014
Counts = collections.namedtuple('Counts', 'pinned live left_to_close wrong')


class Process(Puppet):
    def __init__(self, library):
        super().__init__(begin=False)
        self.library = self.pointer('dlopen', library, 2)
        check(self.library, 'the library is there')

    def of(self, name, *arguments):
        """What a function of the library's returns."""
        return self.call(hex(self.pointer('dlsym', self.library, name)), *arguments)

    def counts(self):
        return Counts(*struct.unpack('4Q', self.of(f'{HOW[0].partition("-")[0]}_stand_in_counts', Out(32))[1]))

    def mappings(self):
        """Of which each holds one piece of memory."""
        return self.census().mappings

    def is_(self, what, **expected):
        now = self.counts()._asdict()
        check({name: now[name] for name in expected} == expected, f'{what}: {now}')


def crosses():
    return os.environ.get('GPUSHIM_DEBUG_POOL_CROSS') != 'off'


# ---- libgdrapi ----------------------------------------------------------------------------------------


class Gdr(Process):
    def open_gdr(self):
        return self.pointer(hex(self.pointer('dlsym', self.library, 'gdr_open')))

    def pin(self, g, address, size, token=0, space=0):
        return self.of('gdr_pin_buffer', g, address, size, token, space, OUT)

    def pin_v2(self, g, address, size, flags):
        return self.of('gdr_pin_buffer_v2', g, address, size, flags, OUT)

    def unpin(self, g, handle):
        return self.of('gdr_unpin_buffer', g, handle)[0]

    def must_pin(self, g, address, size):
        error, handle = self.pin(g, address, size)
        check(error == 0, f'gdr_pin_buffer gave {error}')
        return handle

    def pin_and_unpin(self, g, pinned):
        error, handle = pinned
        check(error == 0 and self.unpin(g, handle) == 0, f'pinned, and not any more: {error}')

    def other_pins(self, g):
        """What the program asked for is what it gets: a pin that was made otherwise is another."""
        a, before = self.alloc(4 * MIB), self.counts().pinned
        for _ in range(2):
            for token, space in (0, 0), (0, 1), (1, 0), (1, 1):
                self.pin_and_unpin(g, self.pin(g, a, 64 * KIB, token, space))
            self.is_('by token and space', pinned=before + 4)
        for _ in range(2):
            for flags in 1, 2:
                self.pin_and_unpin(g, self.pin_v2(g, a, 64 * KIB, flags))
            self.is_('by flags', pinned=before + 6)
        self.cuMemFree(a)
        self.trim()

    def across(self, g, is_across):
        """Its kernel's driver pins no more than one of the driver's allocations (4 MiB of this GPU)."""
        a, before = self.alloc(8 * MIB), self.counts().live
        for _ in range(2):
            error, handle = self.pin_v2(g, a, 8 * MIB, 0)
            check(error == (EINVAL if is_across else 0) and (error or self.unpin(g, handle) == 0), f'across: {error}')
            self.pin_and_unpin(g, self.pin_v2(g, a + 4 * MIB, 4 * MIB, 0))
        self.cuMemFree(a)
        self.trim()
        self.is_('then', live=before, wrong=0)


def gdr_opened(library, early):
    """A program that opens it before it has any memory has none across allocations; before any call of CUDA, too."""
    one = Gdr(library)
    g = one.open_gdr() if early else 0
    one.begin()
    g = g or one.open_gdr()
    check(g, 'it is open')
    one.alloc(MIB)
    one.across(g, False)


def gdr_first(library):
    gdr_opened(library, True)


def gdr_early(library):
    gdr_opened(library, False)


def gdr(library):
    one = Gdr(library)
    one.begin()
    one.alloc(4 * MIB)  # so that the device is never free as a whole: trim()
    a = one.alloc(4 * MIB)
    g, other = one.open_gdr(), one.open_gdr()

    def mapped(handle, size):
        error, va = one.of('gdr_map', g, handle, OUT, size)
        check(error == 0, f'gdr_map gave {error}')
        return va
    for _ in range(5):
        handle = one.must_pin(g, a, 64 * KIB)
        check(one.of('gdr_unmap', g, handle, mapped(handle, 64 * KIB), 64 * KIB)[0] == 0 and one.unpin(g, handle) == 0,
              'unmapped, unpinned')
    one.is_('one serves all', pinned=1, live=1)
    check(one.unpin(g, handle) == EINVAL, 'not twice')
    second = one.must_pin(other, a, 64 * KIB)
    check(second != handle, 'another of another')
    handle = one.must_pin(g, a, 128 * KIB)
    one.is_('a larger one', pinned=3)
    mapped(handle, 128 * KIB)
    check(one.unpin(g, handle) == 0, 'mapped: that has to unmap it')
    one.is_('both', live=2)
    one.cuMemFree(a)
    check(one.pin(g, a, 64 * KIB)[0] == EINVAL, 'freed, though a pin of it is kept')
    one.trim()
    b = one.alloc(4 * MIB)
    check(b != a, 'the second is in use: it waits')
    check(one.pin(g, b, 8 * MIB)[0] == EINVAL, 'past its end')
    check(one.of('gdr_close', other)[0] == 0, 'closed')
    one.is_('that was open', left_to_close=1)
    one.trim()
    one.is_('all has gone', live=0, wrong=0)
    other = one.open_gdr()
    handle = one.must_pin(g, b, 64 * KIB)
    check(one.of('gdr_close', other)[0] == 0, 'closed')
    one.cuMemFree(b)
    one.trim()
    one.is_('that is in use, whichever else was closed', live=1)
    check(one.unpin(g, handle) == 0, 'unpinned')
    one.is_('in order', wrong=0)
    one.trim()
    one.other_pins(g)
    one.across(g, crosses())
    one.pin_and_unpin(g, one.pin(g, one.alloc(4 * MIB), 64 * KIB))
    check(one.of('gdr_close', g)[0] == 0, 'closed')
    one.is_('in the end', left_to_close=1, wrong=0, live=0)


# ---- libcufile ----------------------------------------------------------------------------------------


class Cufile(Process):
    def __init__(self, library):
        super().__init__(library)
        self.begin()
        self.alloc(4 * MIB)  # as above

    def reg(self, address, size, flags=0, error=0):
        got = self.of('cuFileBufRegister', address, size, flags)[0]
        check(got == error, f'cuFileBufRegister of {size >> 10} KiB gave {got}, not {error}')

    def dereg(self, address, error=0):
        got = self.of('cuFileBufDeregister', address)[0]
        check(got == error, f'cuFileBufDeregister gave {got}, not {error}')

    def close_driver(self, error=0):
        got = self.of('cuFileDriverClose')[0]
        check(got == error, f'cuFileDriverClose gave {got}, not {error}')

    def fails(self, error):
        self.of('cufile_stand_in_fail', error)

    def across(self):
        """As within; but what is not registered is moved all the same, so a program need not know."""
        parts = self.mappings()
        p, before = self.alloc(8 * MIB), self.counts().pinned
        for _ in range(2):
            self.reg(p, 8 * MIB)
            self.dereg(p)
            self.dereg(p, NOT_REGISTERED)
        self.is_('across', pinned=before + (not crosses()))
        self.reg(p, 12 * MIB, error=BAD_POINTER)  # past its end
        self.reg(p + 4 * MIB, MIB)
        self.reg(p, 8 * MIB, error=REGISTERED)  # the library's own error
        self.dereg(p + 4 * MIB)
        self.reg(p, 8 * MIB)
        self.cuMemFree(p)
        self.trim()
        self.dereg(p)
        self.trim()
        self.is_('then', live=0, wrong=0)
        check(self.mappings() <= parts, 'nothing holds memory')


def cufile(library):
    one = Cufile(library)
    p = one.alloc(4 * MIB)
    for _ in range(5):
        one.reg(p, MIB)
        one.dereg(p)
    one.is_('one serves all', pinned=1)
    one.dereg(p, NOT_REGISTERED)  # twice
    one.reg(p, 2 * MIB)  # the kept one goes for it
    one.is_('a larger one', live=1, pinned=2)
    one.reg(p, 2 * MIB, error=REGISTERED)  # the library's own error
    one.reg(p + 64, 64, error=REGISTERED)
    one.reg(p, 64 * MIB, error=BAD_POINTER)  # past the end
    one.dereg(p)
    one.cuMemFree(p)
    one.reg(p, 2 * MIB, error=BAD_POINTER)
    one.is_('freed, though it is kept', live=1)
    one.trim()
    one.is_('then', live=0, wrong=0)
    a = one.alloc(4 * MIB)
    one.reg(a, MIB)
    one.dereg(a)
    one.close_driver()
    one.is_('nothing was left', left_to_close=0)
    one.across()
    one.reg(a, MIB)
    one.is_('not the one of before', live=1)
    one.close_driver()
    one.is_('it was left', left_to_close=1)
    one.dereg(a, NOT_REGISTERED)
    for flags in 0, 1, 0, 1:  # other flags, another registration; the kept one is in the way
        pinned = one.counts().pinned
        one.reg(a, MIB, flags)
        one.dereg(a)
        one.is_('by flags', pinned=pinned + 1, live=1)

    # What a close has ended holds no memory, and what one that failed has not does.
    one.close_driver()
    before = one.mappings()
    b = one.alloc(16 * MIB)
    check(one.mappings() > before, 'it is mapped')
    one.reg(b, MIB)
    one.fails(5011)
    one.close_driver(5011)
    one.cuMemFree(b)
    one.trim()
    check(one.mappings() > before, 'it is held')
    one.is_('in order', wrong=0)
    one.close_driver()
    one.is_('ended', live=0)
    one.trim()
    check(one.mappings() <= before, 'it is not held')
    one.is_('in order', wrong=0)

    # An error that is not this call's is not told by it.
    b = one.alloc(16 * MIB)
    one.reg(b, MIB)
    one.dereg(b)
    one.fails(5030)
    one.reg(b, 2 * MIB, error=REGISTERED)  # the kept one could not be ended for it
    one.reg(a, MIB)
    one.dereg(a)
    one.close_driver()
    one.is_('in order', wrong=0)


def cufile_unkept(library):
    """With nothing kept, the program hears what the library says of each end."""
    one = Cufile(library)
    p = one.alloc(4 * MIB)
    one.reg(p, MIB)
    one.fails(5030)
    both = one.pointer(hex(one.pointer('dlsym', one.library, 'cuFileBufDeregister')), p)
    check((both & 0xffffffff, both >> 32) == (5030, 7), f'both errors: {both:x}')
    one.is_('it is there', live=1)
    one.dereg(p)
    one.is_('it is gone', live=0)
    one.dereg(p, NOT_REGISTERED)


set_for_all(GPUSHIM_POOL_DECAY='0')
main(globals())
