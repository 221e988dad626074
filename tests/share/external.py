"""External memory (gpushim_attach, gpushim_detach): somebody else made it.

    external.py PUPPET SHIM BROKER HOW...
"""
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from puppet import (BROKER, INVALID_VALUE, NOT_PERMITTED, OUT, OUT4, Handle, Out, Puppet, await_that, check, main,
                    set_for_all, skip,
                    times_logged)

SIZE = 4 << 20
PAGE = 4096
LONG, SOON = 60 * 10**9, 20 * 10**6  # what has to come is waited for for so long; what does not
SLOW_US = 300000  # each call of the driver that a check is about
EXPORTED, MEMFD, ADDRESS = 1, 2, 3
READ_ONLY, MUTABLE = 1, 2
HOST, DEVICE = 1, 2  # types of memory
EBUSY, EINVAL, ENODEV, ENOENT, ENOTSUP = 16, 22, 19, 2, 95
FIELDS = 'size kind access device fd offset address bytes label deleter arg'.split()
PROP = bytes([1, 0, 0, 0, 1, 0, 0, 0, 1]).ljust(32, b'\0')  # of what is exported as a descriptor
ATTACHED = struct.Struct('4i2Q64s')


class Process(Puppet):
    """One that attaches. What the first one starts stays: a thread, a socket; so there was one before."""

    def __init__(self, *, warm=True, **settings):
        super().__init__(**settings)
        self.deleter = self.pointer('dlsym', 0, 'note_deleted')
        self.noted = self.pointer('dlsym', 0, 'deletions')
        self.before = 0
        if warm:
            made = self.exported()
            address = self.attach(made)
            self.handle(address)
            check(self.detach(address) == 0 and self.deleted() == 1, 'it ends')
            self.before = 1
            self.unmake(made)
            check(self.result('all_come_to_rest'), 'the library comes to rest')

    def note(self, part):
        return self.pointer('peek', self.noted + 8 * part)

    def deleted(self):
        return self.note(0) - self.before

    def exported(self):
        handle = self.cuMemCreate(OUT, SIZE, PROP, 0)
        return {'kind': EXPORTED, 'handle': handle, 'fd': self.cuMemExportToShareableHandle(OUT4, handle, 1, 0)}

    def memfd(self):
        """What is attached begins a page into it."""
        fd = self.result('memfd_create', 'external', 3)
        check(fd >= 0 and self.result('ftruncate', fd, SIZE + PAGE) == 0, 'there is a memfd')
        return {'kind': MEMFD, 'fd': fd, 'offset': PAGE}

    def make(self, kind):
        return self.exported() if kind == 'exported' else self.memfd()

    def unmake(self, made):
        self.result('close', made['fd'])
        if 'handle' in made:
            self.cuMemRelease(made['handle'])

    def external(self, made, **other):
        fields = dict.fromkeys(FIELDS, 0) | {'size': 72, 'access': MUTABLE, 'bytes': SIZE, 'label': 'weights',
                                             'deleter': self.deleter}
        fields |= {name: value for name, value in (made | other).items() if name in FIELDS}
        if isinstance(fields['label'], str):
            text = fields['label'].encode() + b'\0'
            fields['label'] = self.pointer('place', text, len(text))
        return struct.pack('Q4i6Q',
                           *(fields[name] & (1 << 64) - 1 if name in ('bytes', 'offset', 'address') else fields[name]
                                      for name in FIELDS))

    def try_attach(self, made, **other):
        return self.call('gpushim_attach', self.external(made, **other), Out(struct.pack('Q', 77)))

    def attach(self, made, **other):
        error, address = self.try_attach(made, **other)
        check(error == 0, f'gpushim_attach gave {error}')
        return int.from_bytes(address, 'little')

    def detach(self, address, wait=LONG):
        return self.result('gpushim_detach', address, wait)

    def externals(self):
        return self.result('gpushim_externals', 0, 0)

    def type_of(self, address):
        """Of memory; 0 where the driver knows none."""
        result, kind = self.call('cuPointerGetAttribute', OUT4, 2, address)
        return kind if result == 0 else 0

    def counts(self):
        now = self.census()
        return [now.handles, now.mappings, now.reservations, now.host_blocks, now.exported, len(self.files())]

    def comes_back_to(self, before):
        await_that(lambda: self.counts() == before, f'nothing is left of it: {before}, {self.counts()}')


def mapped(one):
    now = one.census()
    return now.mappings + now.host_blocks + now.reservations


def open_of(one, handle):
    address = one.open(handle)
    check(one.range_of(address + 4)[1] == SIZE, 'it has the same size there')
    return address


# ---- Attached and shared ---------------------------------------------------------------------------


def is_as_of_cumemalloc(one, address, kind):
    """It answers as memory of cuMemAlloc does, and is listed."""
    check(one.range_of(address + 77) == [address, SIZE], 'its range')
    check(one.cuPointerGetAttribute(OUT, 1, address) == one.cuCtxGetCurrent(OUT), 'its context')
    check(one.type_of(address) == (HOST if kind == 'memfd' else DEVICE), 'its type')
    check(one.cuPointerGetAttribute(OUT, 7, address) and one.cuPointerGetAttribute(OUT4, 10, address) == 1,
          'its attributes')
    check(one.result('cuMemFree', address) == INVALID_VALUE, 'it cannot be freed')
    check(one.result('cuIpcCloseMemHandle', address) == INVALID_VALUE, 'it cannot be closed')
    check(one.result('cuMemsetD8', address + SIZE - 8, 1, 16) == INVALID_VALUE, 'no copy leaves it')
    count, listed = one.call('gpushim_externals', Out(2 * ATTACHED.size), 2)
    _, _, _, detached, at, size, label = ATTACHED.unpack_from(listed)
    check((count, detached, at, size, label.rstrip(b'\0')) == (1, 0, address, SIZE, b'weights'),
          f'it is listed: {listed}')


def shared(kind):
    """Attached, asked about, shared, opened by another process, held beyond its detach, and given up."""
    me, first, late = Process(), Puppet(), Puppet()
    made = me.make(kind)
    before, held = me.counts(), mapped(first)
    address = me.attach(made)
    is_as_of_cumemalloc(me, address, kind)
    me.write(address, 11)
    if kind == 'memfd':
        check(me.call('pread', made['fd'], OUT4, 4, PAGE) == (4, 11), 'it is that memory')
    handle = me.handle(address + 5)
    check(handle == me.handle(address), 'it has one handle')
    there = open_of(first, handle)
    check(first.word(there) == 11, 'what was written here')
    first.write(there + SIZE - 4, 12)
    check(me.word(address + SIZE - 4) == 12, 'what was written there')
    me.unmake(made)  # who made it may let go of it
    check(me.word(address) == 11, 'it stays without its maker')
    check(me.detach(address, SOON) == EBUSY, 'it is not detached while it is open')
    check(me.deleted() == 0, 'its deleter is not called while it is open')
    check(times_logged('has it open for') == 1, 'who has it open is named')
    check(late.try_open(handle)[0] == NOT_PERMITTED, 'a stale handle is not opened')
    check(me.result('cuIpcGetMemHandle', Out(64), address) != 0, 'it has no handle any more')
    check(first.word(there) == 11, 'it is there')
    first.close(there)
    check(me.detach(address) == 0 or me.deleted() == 1, 'it ends')
    check(me.deleted() == 1 and me.note(1), 'its deleter was called once')
    check(me.detach(address) == ENOENT and me.externals() == 0, 'it is not attached any more')
    check(me.type_of(address) == 0, 'the driver does not know it any more')
    await_that(lambda: mapped(first) == held, 'the importer keeps nothing')
    if kind == 'exported':  # the driver has one of each handle
        before[0], before[4], before[5] = before[0] - 1, before[4] - 1, before[5] - 1
    before[5] -= 1
    first.end()
    late.end()
    me.comes_back_to(before)


def read_only(kind):
    """Neither this process nor who opens it writes to it."""
    me, other = Process(), Puppet()
    made = me.make(kind)
    if kind == 'memfd':
        check(me.result('pwrite', made['fd'], b'data', 4, PAGE) == 4, 'its maker writes to it')
    address = me.attach(made, access=READ_ONLY)
    there = open_of(other, me.handle(address))
    check(other.result('cuMemsetD32', there, 5, 1) != 0, 'it is not written there')
    check(me.result('cuMemsetD32', address, 5, 1) != 0, 'it is not written here')
    if kind == 'memfd':
        check(other.word(there) == me.word(address) != 0, 'it is read there')
    other.close(there)
    check(me.detach(address) == 0 and me.deleted() == 1, 'it ends')


def plain(one):
    """Memory of the host's."""
    return one.pointer('mmap', 0, SIZE, 3, 0x22, -1, 0)


def address():
    """Memory of the program's own: its driver's matter as before, until the end."""
    me = Process()
    ours = plain(me)
    for memory in ours, ours, me.cuMemHostAlloc(OUT, SIZE, 0):
        before, deleted = me.counts(), me.deleted()
        it = {'kind': ADDRESS, 'address': memory}
        check(me.attach(it, label=0) == memory, 'it lies where it lay')
        check(me.type_of(memory) == HOST, 'its type')
        me.write(memory, 5)
        check(me.try_attach(it)[0] == EINVAL, 'it is not attached twice')
        check(me.try_attach(it, bytes=PAGE, address=memory + SIZE - PAGE)[0] == EINVAL, 'nor is a part of it')
        check(publish(me, 'name', memory) == ENODEV, 'it is not published')
        check(me.externals() == 1, 'it is listed')
        check(me.detach(memory) == 0 and me.deleted() == deleted + 1, 'it ends, and its deleter is called once')
        me.comes_back_to(before)


def work():
    """The end waits for GPU work, in whichever context."""
    me = Process()
    address = me.attach(me.exported())
    first, second = me.cuCtxGetCurrent(OUT), me.cuCtxCreate_v4(OUT, 0, 0, 0)
    me.use_memory()  # from here on the library knows the second one
    me.hold(1)
    me.cuMemsetD32Async(address, 1, 1, 0)
    me.set_context(first)
    check(me.detach(address, SOON) == EBUSY, 'it does not end while the GPU is at it')
    check(times_logged('the GPU has not done') == 1, 'that is said')
    check(me.deleted() == 0, 'its deleter is not called while the GPU is at it')
    me.hold(0)
    await_that(lambda: me.deleted() == 1 and me.externals() == 0, 'it ends')
    me.cuCtxDestroy(second)


def publish(one, name, address):
    return one.result('gpushim_publish', name, struct.pack('5Q', 40, address, one.pointer('place', 'label', 6), 0, 0))


def look_up(one, name):
    error, found = one.call('gpushim_lookup', name, Out(struct.pack('Q', 480) + bytes(472)))
    return error, *struct.unpack_from('64s3Q', found, 8)


def named(*strategy):
    """It is found by a name, and takes one over that a block has."""
    if strategy:
        set_for_all(GPUSHIM_SHARE_STRATEGY='broker', GPUSHIM_SHARE_BROKER=BROKER, GPUSHIM_SHARE_KEEP='100ms')
    me, other = Process(), Puppet()
    check(publish(me, 'external', me.alloc(SIZE)) == 0, 'a block is published')
    at = me.attach(me.memfd())
    me.write(at + 8, 5)
    check(publish(me, 'external', at + 8) == 0, 'it is published')
    check(times_logged('no broker has the name') == 0, 'no broker is to have it')
    error, handle, offset, size, where = look_up(me, 'external')
    check((error, offset, size, where) == (0, 8, SIZE, at + 8), f'what is found: {error}')
    there = open_of(other, Handle(handle))
    check(other.word(there + offset) == 5, 'what is there')
    other.close(there)
    check(me.detach(at) == 0, 'it ends')
    await_that(lambda: look_up(me, 'external')[0] == ENOENT, 'its name goes')


def context():
    """Its context ends: so does it, when no other context is at it."""
    me = Process()
    exported, memfd = me.exported(), me.memfd()
    before = me.counts()
    primary, second = me.cuCtxGetCurrent(OUT), me.cuCtxCreate_v4(OUT, 0, 0, 0)
    at = me.attach(exported)
    me.attach(memfd)
    check(me.externals() == 2, 'they are there')
    me.set_context(primary)
    me.hold(1)
    me.cuMemsetD32Async(at, 1, 1, 0)
    me.cuCtxDestroy(second)
    check(me.detach(at, SOON) == EBUSY and me.externals() >= 1, 'none ends while another context is at it')
    me.hold(0)
    await_that(lambda: me.deleted() == 2, 'they end with their context')
    check(me.note(2) == primary and me.note(1), 'the deleter has the primary context')
    await_that(lambda: me.externals() == 0, 'they are gone')
    me.comes_back_to(before)


# ---- The end of the process -------------------------------------------------------------------------


def exits(how):
    """The process ends in order: `held`, while another has it; in a `deleter`; or beside a `fork`ed child."""
    me, other = Process(warm=False), Puppet()
    in_deleter = how == 'deleter'
    exported = me.exported()
    at = me.attach(exported, arg=me.pointer('dlsym', 0, 'exit') if in_deleter else 0)
    me.pointer('poke', me.noted + 24, me.channels[0])
    me.write(at, 33)
    handle = me.handle(at)
    if not in_deleter:
        memfd = me.memfd()
        me.attach(memfd)
        there = open_of(other, handle)  # and keeps it
    if how == 'fork':
        check(me.forked('gpushim_attach', me.external(memfd), OUT) == ENODEV << 8, 'a forked child attaches nothing')
    if in_deleter:
        me.tell('gpushim_detach', at, 0)  # its deleter ends the process
    else:
        me.channel.shutdown(1)
    said = b''
    while got := me.channel.recv(64):
        said += got
    said = ''.join(letter for letter in said.decode() if letter in 'yn')  # and not an answer
    check(said == ('y' if in_deleter else 'yy'), f'its deleters are called once each, and can call CUDA: {said}')
    me.end()
    if not in_deleter:
        check(other.word(there) == 33, 'what an importer has stays')
        other.close(there)


def reopened(how):
    """Its importer's context ends, while that has it open or has closed it, and it is opened again in another."""
    me, other = Process(), Puppet()
    at = me.attach(me.memfd())
    me.write(at, 33)
    handle = me.handle(at)
    primary, second = other.cuCtxGetCurrent(OUT), other.cuCtxCreate_v4(OUT, 0, 0, 0)
    there = other.open(handle)
    check(other.word(there) == 33, 'what is there')
    if how == 'closed':
        other.close(there)
    other.cuCtxDestroy(second)
    other.set_context(primary)
    there = other.open(handle)
    check(other.word(there) == 33, 'what is there then')
    other.write(there, 44)
    other.close(there)
    check(me.word(at) == 44, 'what its importer wrote')
    check(me.detach(at) == 0 and me.deleted() == 1, 'it ends')


# ---- Refusals ---------------------------------------------------------------------------------------


def refuses(me, made, error=EINVAL, **other):
    before = me.counts()
    got, at = me.try_attach(made, **other)
    check(got == error, f'{other} gave {got}, not {error}')
    check(at == struct.pack('Q', 77) and me.counts() == before and me.externals() == 0, f'nothing is left of {other}')


def refused():
    """What is no external memory; nothing is left of it."""
    me = Process()
    exported, memfd, ours = me.exported(), me.memfd(), {'kind': ADDRESS, 'address': plain(me), 'label': 0}
    block = me.alloc(SIZE)
    check(me.result('gpushim_attach', 0, OUT) == EINVAL
          and me.result('gpushim_attach', me.external(exported), 0) == EINVAL,
          'nothing is given')
    pipe = int.from_bytes(me.call('pipe', Out(8))[1][:4], 'little')
    unsealed = me.result('memfd_create', 'unsealed', 1)
    check(me.result('ftruncate', unsealed, SIZE + PAGE) == 0, 'there is another memfd')
    for field, value, error in (
            ('size', 64, EINVAL), ('kind', 0, EINVAL), ('kind', ADDRESS + 1, EINVAL), ('access', 0, EINVAL),
            ('bytes', 0, EINVAL),
            ('bytes', -1, EINVAL), ('bytes', SIZE - PAGE, EINVAL), ('bytes', SIZE + (2 << 20), EINVAL),
            ('offset', 2 << 20, EINVAL),
            ('device', 5, ENODEV), ('device', -1, ENODEV), ('fd', -1, EINVAL), ('fd', 4711, EINVAL),
            ('fd', pipe, EINVAL),
            ('label', 'a\nb', EINVAL), ('label', '0123456789' * 6 + '0123', EINVAL)):
        refuses(me, exported, error, **{field: value})
    for field, value in (('bytes', SIZE + PAGE), ('bytes', SIZE - 1), ('offset', 8), ('fd', pipe),
                         ('fd', exported['fd']), ('fd', unsealed)):
        refuses(me, memfd, **{field: value})
    for field, value in (('address', 0), ('address', block), ('address', block + SIZE - PAGE), ('address', -1 - PAGE),
                         ('address', ours['address'] + 1), ('deleter', 0)):
        refuses(me, ours, **{field: value})
    me.pointer('softcuda_fail', 'cuMemHostRegister', 1, 801)
    refuses(me, ours, ENOTSUP)
    me.pointer('softcuda_reset')
    check(times_logged('external memory is not attached') > 5, 'reasons are said')
    check(me.deleted() == 0, 'no deleter was called')
    check(me.detach(block, 0) == me.detach(0, 0) == ENOENT, 'nothing is detached')
    check(me.detach(me.attach(exported)) == 0, 'what fits is taken after all of that')


def dma_buf():
    """A dma-buf is a descriptor as any to gpushim_attach, and the driver's import says whether it is taken: of the
    driver here it is, for its dma-bufs are the memory itself; of one that takes none nothing is left."""
    me = Process()
    base = me.cuMemAddressReserve(OUT, SIZE, 0, 0, 0)
    made = {'kind': EXPORTED, 'handle': me.cuMemCreate(OUT, SIZE, PROP[:4] + bytes(4) + PROP[8:], 0)}
    me.cuMemMap(base, SIZE, 0, made['handle'], 0)
    me.cuMemSetAccess(base, SIZE, struct.pack('3i', 1, 0, 3), 1)
    made['fd'] = me.cuMemGetHandleForAddressRange(OUT4, base, SIZE, 1, 0)
    for why, error in (999, ENOTSUP), (INVALID_VALUE, EINVAL):
        me.pointer('softcuda_fail', 'cuMemImportFromShareableHandle', 1, why)
        refuses(me, made, error)
        me.pointer('softcuda_reset')
    check(times_logged('the driver does not take it') == 2, 'it is said whose refusal it is')
    me.write(base, 0xd3aff)
    at = me.attach(made)
    check(me.word(at) == 0xd3aff, 'it is that memory')
    me.write(at, 4711)
    check(me.word(base) == 4711, 'what is written there')
    check(me.detach(at) == 0 and me.deleted() == 1, 'it ends')
    me.cuMemUnmap(base, SIZE)
    me.cuMemAddressFree(base, SIZE)


def churn():
    """Threads attach, share, detach and end all at once."""
    rounds = 60
    me = Process(threads=5)
    before = me.counts()
    for thread in me.threads[1:]:
        thread.tell('churn_external', rounds)
    for thread in me.threads[1:]:
        thread.answer()
    await_that(lambda: me.externals() == 0, 'all end')
    check(me.result('deletions_now') == 4 * rounds, 'deleters are called once each')
    me.comes_back_to(before)


# ---- What does not go smoothly -----------------------------------------------------------------------


def attached_again():
    """The same address is attached while its end is under way: the driver is slow to forget it."""
    me = Process(warm=False)
    ours = {'kind': ADDRESS, 'address': plain(me), 'label': 0}
    at = me.attach(ours)
    me.pointer('softcuda_delay', 'cuMemHostUnregister', SLOW_US)
    check(me.detach(at, 0) == EBUSY, 'it is not over already')
    await_that(lambda: me.result('softcuda_calls', 'cuMemHostUnregister') == 1, 'it ends')
    error = me.try_attach(ours)[0]
    await_that(lambda: me.deleted() == 1, 'its deleter is called')
    check(error in (0, EINVAL), f'it is refused for that reason: {error}')
    check(error == 0 or me.attach(ours), 'it is attached when it has ended')
    check(me.type_of(at), 'what is attached is known to the driver')
    check(me.detach(at) == 0, 'it ends')
    check(me.type_of(at) == 0, 'it is not known to the driver any more')


def attached_at_once():
    """By two threads: the driver is slow to say where one thread's is, and another attaches it too."""
    me = Process(warm=False, threads=2)
    ours = {'kind': ADDRESS, 'address': plain(me), 'label': 0}
    me.pointer('softcuda_delay', 'cuMemHostGetDevicePointer', SLOW_US)
    thread = me.thread(1)
    thread.tell('gpushim_attach', me.external(ours), OUT)
    await_that(lambda: me.result('softcuda_calls', 'cuMemHostGetDevicePointer') == 1, 'the driver is asked')
    error = me.try_attach(ours)[0]
    check((error == 0) + (thread.answer()[0] == 0) == 1, 'one of them has it')
    check(me.type_of(ours['address']), 'what is attached is known to the driver')
    check(me.detach(ours['address']) == 0, 'it ends')


def attached_exits():
    """A deleter ends its thread: the next ones end as well, and so does the process."""
    me = Process(warm=False)
    ours = {'kind': ADDRESS, 'address': plain(me), 'label': 0}
    for count in range(1, 5):
        me.attach(ours, arg=me.pointer('dlsym', 0, 'pthread_exit') if count % 3 else 0)
        check(me.detach(ours['address']) == 0, 'it ends')
        check(me.deleted() == count, 'its deleter is called once')
    me.attach(ours)  # and ends with the process


def attached_pages():
    """A memfd of larger pages than addresses are taken for is refused."""
    me = Process(warm=False)
    fd = me.result('memfd_create', 'pages', 1 | 2 | 4 | 30 << 26)
    if fd < 0 or me.result('ftruncate', fd, 1 << 30) != 0:
        skip('this kernel has no pages of 1 GiB')
    check(me.try_attach({'kind': MEMFD, 'fd': fd})[0] == EINVAL, 'it is not attached')
    check(times_logged('are larger than 2 MiB') == 1, 'why is said')


set_for_all(GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on')
main(globals())
