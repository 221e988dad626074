"""Registers GPU memory with what a machine has for it, natively and under the library: dma-buf descriptors of the real
driver, the real cuFile in its compatibility mode, and as much of UCX as answers without a network card.

    registration.py [PART...]    parts: dmabuf cufile ucx; all of them by default

Prints "RESULT what = answer" for what has to be the same with and without the library, "PROBE" for what may differ,
"SKIP part: why" for what this machine does not have. Each part runs in a process of its own. Exit status 1: something
is not as it must be.

CUFILE_LIBRARY and UCX_LIBRARY name libcufile.so.0 and libucp.so.0 where the loader does not find them.
"""
import contextlib
import ctypes
import os
import shutil
import signal
import struct
import sys
import tempfile

from driver import Driver, Missing, symbol

KIB, MIB = 1 << 10, 1 << 20
PART_SECONDS = 60
DMA_BUF_SUPPORTED = 124  # an attribute of a device
DMA_BUF_FD = 1
FILE = 'file'
here = {'part': None, 'failed': False}


def say(kind, what, answer):
    print(f'{kind} {here["part"]}: {what} = {answer}', flush=True)


def result(what, answer):
    say('RESULT', what, answer)


def probe(what, answer):
    say('PROBE', what, answer)


def must_be(holds, what):
    """Natively as well as under the library."""
    result(what, 'yes' if holds else 'NO')
    here['failed'] |= not holds


# ---- dma-buf -----------------------------------------------------------------------------------------------------


def export_range(driver, address, size):
    """What the driver says, and a descriptor or -1."""
    fd = ctypes.c_int(-1)
    said = driver.said('cuMemGetHandleForAddressRange', ctypes.byref(fd), address, size, DMA_BUF_FD, 0)
    return said, fd.value


def exports(driver, what, address, size, tell=result):
    """Exports a range, and keeps nothing."""
    said, fd = export_range(driver, address, size)
    tell(what, said)
    if fd >= 0:
        os.close(fd)


def size_of(fd):
    try:
        return os.lseek(fd, 0, os.SEEK_END)
    except OSError:
        return -1


def begins_with(fd, size, word):
    """Whether the descriptor's first bytes are this word; None: it cannot be read here."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    at = libc.mmap(None, size, 1, 1, fd, 0)  # PROT_READ, MAP_SHARED
    if at == ctypes.c_void_p(-1).value:
        return None
    same = ctypes.c_uint32.from_address(at).value == word
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return same


def imports_with(driver, fd, size, word):
    """Imports a descriptor through CUDA, as external memory, and copies from it; and what came of that."""
    described = struct.pack('i4xi12xQ72x', 9, os.dup(fd), size)  # a dma-buf: of CUDA 13.0
    memory, mapped = ctypes.c_void_p(), ctypes.c_uint64()
    error = driver.call('cuImportExternalMemory', ctypes.byref(memory), described)
    if error == 0:
        error = driver.call('cuExternalMemoryGetMappedBuffer', ctypes.byref(mapped), memory,
                            struct.pack('QQ72x', 0, size))
    return driver.holds_word(mapped.value, 4, word) if error == 0 else None, driver.name_of(error)


def offset_right(driver, fd, size, word, what):
    """What the descriptor's offset 0 is: the address that was exported. One of more bytes than were asked for is of the
    memory around it, as the software driver's are, and says nothing."""
    why, is_it = '', begins_with(fd, size, word)
    if is_it is None:
        is_it, why = imports_with(driver, fd, size, word)
    if is_it is None:
        probe(what, f'cannot be seen here: no mmap, and import gave {why}')
    elif size_of(fd) > size:
        probe(what, f'it has {size_of(fd)} bytes')
    else:
        must_be(is_it, what)


def export_and_look(driver, name, address, size, word):
    """Of a part of what the program has, the descriptor's size where it has a name."""
    said, fd = export_range(driver, address, size)
    result(f'export of a {name}', said)
    if fd < 0:
        return
    if name == 'part':
        result('its size', size_of(fd))
    offset_right(driver, fd, size, word, f"its first bytes are the {name}'s")
    os.close(fd)


def dmabuf():
    driver, supported = Driver(), ctypes.c_int()
    driver.must('cuDeviceGetAttribute', ctypes.byref(supported), DMA_BUF_SUPPORTED, driver.device)
    if not supported.value:
        raise Missing('the device says that it does not export dma-bufs')
    big, small, neighbour = (driver.allocate(size) for size in (4 * MIB, 64 * KIB, 64 * KIB))
    for address, word, size in ((big, 0xb16, 4 * MIB), (big + MIB, 0xb17, 3 * MIB), (small, 0x5a11, 64 * KIB),
                                (neighbour, 0x4e16, 64 * KIB)):
        driver.fill(address, word, size)
    said, fd = export_range(driver, big, 4 * MIB)
    if fd < 0:
        result('export of a block', said)
        raise Missing(f'the driver exports no dma-buf here: {said}')
    result('export of a block', f'{said}, {size_of(fd)} bytes')
    offset_right(driver, fd, 4 * MIB, 0xb16, "its first bytes are the block's")
    export_and_look(driver, 'part', big + MIB, MIB, 0xb17)
    export_and_look(driver, 'small block', small, 64 * KIB, 0x5a11)
    # The driver may hand out what lies in its own 2 MiB; the library keeps to the block.
    exports(driver, 'export of two neighbours', min(small, neighbour), 128 * KIB, probe)
    exports(driver, 'export past a block of 4 MiB', big, 64 * MIB)
    driver.free(big)
    must_be(size_of(fd) == 4 * MIB, 'the descriptor is good after the free')  # and holds the memory
    exports(driver, 'export of freed memory', big, 4 * MIB)
    again = driver.allocate(4 * MIB)
    probe('the next block of this size has its address', 'yes' if again == big else 'no')
    os.close(fd)
    driver.free(again, small, neighbour)


# ---- cuFile ------------------------------------------------------------------------------------------------------


class Error(ctypes.Structure):
    _fields_ = [('err', ctypes.c_int), ('cu_err', ctypes.c_int)]

    def __str__(self):
        return f'{self.err}/{self.cu_err}'


def find_library(name, variable, places):
    why = None
    for path in (os.environ.get(variable, name), *(f'{place}/{name}' for place in places)):
        try:
            return ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
        except OSError as error:
            why = why or error
    raise Missing(why)


def registrations():
    """How many the library keeps; -1 natively."""
    program = ctypes.CDLL(None)
    return program.gpushim_registrations(None, 0) if hasattr(program, 'gpushim_registrations') else -1


class CuFile:
    def __init__(self, library):
        for name in 'DriverOpen', 'DriverClose', 'HandleRegister', 'BufRegister', 'BufDeregister':
            setattr(self, name, symbol(library, f'cuFile{name}', Error))
        self.HandleDeregister = symbol(library, 'cuFileHandleDeregister', None)
        self.Read, self.Write = (symbol(library, f'cuFile{name}', ctypes.c_ssize_t) for name in ('Read', 'Write'))

    def register(self, address, size):
        return self.BufRegister(ctypes.c_void_p(address), ctypes.c_size_t(size), 0)

    def deregister(self, address):
        return self.BufDeregister(ctypes.c_void_p(address))

    def move(self, call, file, address, size, offset):
        return call(file, ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_long(0), ctypes.c_long(offset))


def transfer(driver, lib, file, source, target):
    """A file written from one buffer and read into another, at an offset."""
    driver.fill(source, 0xf11e, MIB)
    driver.fill(target, 0, MIB)
    result('bytes written from GPU memory', lib.move(lib.Write, file, source, MIB, 0))
    result('bytes read into GPU memory', lib.move(lib.Read, file, target, MIB // 2, MIB // 2))
    driver.must('cuCtxSynchronize')
    must_be(driver.holds_word(target + MIB // 2, MIB // 2, 0xf11e), 'the bytes arrived')
    must_be(driver.holds_word(target, MIB // 2, 0), 'and no others')


def use_cufile(driver, lib, folder):
    a, b = driver.allocate(4 * MIB), driver.allocate(4 * MIB)
    path, flags = f'{folder}/{FILE}', os.O_RDWR | os.O_CREAT
    try:
        fd = os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:  # a file system in memory
        fd = os.open(path, flags, 0o600)
    file = ctypes.c_void_p()
    result('cuFileHandleRegister', lib.HandleRegister(ctypes.byref(file), struct.pack('i4xi4xQ', 1, fd, 0)))
    for _ in range(3):
        error = lib.register(a, MIB)
        result('cuFileBufRegister', error)
        if not error.err:
            result('cuFileBufDeregister', lib.deregister(a))
    probe('registrations kept by the library', registrations())
    result('deregistering it twice', lib.deregister(a))
    result('registering nothing', lib.register(a, 0))
    result('registering 4 MiB', lib.register(b, 4 * MIB))
    result('registering it twice', lib.register(b, 4 * MIB))
    if file:
        transfer(driver, lib, file, a, b)  # one without a registration, one with
        transfer(driver, lib, file, b, a)
    # Freed with a registration over it; the address then means something else.
    result('cuMemFree of a registered block', driver.said('cuMemFree_v2', b))
    probe('registering freed memory', lib.register(b, MIB))
    b = driver.allocate(4 * MIB)
    if file:
        transfer(driver, lib, file, a, b)
    probe('deregistering after the free', lib.deregister(b))
    driver.free(a, b)
    if file:
        lib.HandleDeregister(file)
    os.close(fd)


def cufile():
    folder = tempfile.mkdtemp(prefix='registration.', dir='/tmp')
    with open(f'{folder}/cufile.json', 'w', encoding='ascii') as file:  # which lets it work without its kernel module
        file.write(f'{{"logging": {{"dir": "{folder}", "level": "ERROR"}}, '
                   '"properties": {"allow_compat_mode": true, "use_pci_p2pdma": false}}\n')
    os.environ.update(CUFILE_ENV_PATH_JSON=f'{folder}/cufile.json', CUFILE_FORCE_COMPAT_MODE='true')
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, True)
        library = find_library('libcufile.so.0', 'CUFILE_LIBRARY', (
            '/usr/local/cuda/lib64', '/usr/local/cuda/targets/x86_64-linux/lib', '/usr/lib/x86_64-linux-gnu'))
        driver, lib = Driver(), CuFile(library)
        error = lib.DriverOpen()
        result('cuFileDriverOpen', error)
        if not error.err:
            use_cufile(driver, lib, folder)
            result('cuFileDriverClose', lib.DriverClose())
            probe('registrations left', registrations())


# ---- UCX ---------------------------------------------------------------------------------------------------------

UCM_MEM_TYPE_ALLOC, UCM_MEM_TYPE_FREE = 1 << 20, 1 << 21


class Event(ctypes.Structure):
    """ucm_event_t's part for memory of a device."""
    _fields_ = [('address', ctypes.c_uint64), ('size', ctypes.c_size_t), ('type', ctypes.c_int)]


class Heard:
    """Allocations, and frees of the address that is listened for."""

    def __init__(self):
        self.address, self.freed_size, self.allocs, self.frees = None, 0, 0, 0
        self.callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(Event), ctypes.c_void_p)(self.hear)

    def hear(self, kind, event, _):
        if kind == UCM_MEM_TYPE_ALLOC:
            self.allocs += 1
        elif kind == UCM_MEM_TYPE_FREE and event.contents.address == self.address:
            self.frees += 1
            self.freed_size = event.contents.size


def ucx():
    """UCX's own knowledge of an address (its memory type cache, or the driver's answer)."""
    ucp = find_library('libucp.so.0', 'UCX_LIBRARY',
                       ('/opt/ucx/lib', '/opt/hpcx/ucx/lib', '/usr/local/ucx/lib', '/usr/local/lib'))
    driver, heard = Driver(), Heard()
    features = (ctypes.c_uint64 * 64)(1, 1)  # only these are given: tagged messages
    status = symbol(ucp, 'ucp_init_version')(1, 0, features, None, ctypes.byref(ctypes.c_void_p()))
    result('ucp_init', status)
    if status:
        raise Missing('UCX does not start here')
    try:
        ucm = ctypes.CDLL('libucm.so.0', mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError as error:
        raise Missing(f'libucp did not load libucm: {error}') from error
    status = symbol(ucm, 'ucm_set_event_handler')(UCM_MEM_TYPE_ALLOC | UCM_MEM_TYPE_FREE, 1000, heard.callback, None)
    result('ucm_set_event_handler', status)
    if status:
        raise Missing('this UCX has no hooks for CUDA memory')

    def free(block):
        heard.address = block
        driver.free(block)
    block = driver.allocate(3 * MIB)
    result('allocations that its hooks heard', 'some' if heard.allocs else 'none')
    free(block)
    result('frees that its hooks heard', f'{heard.frees}, of {heard.freed_size} bytes')
    heard.frees = 0
    for _ in range(100):
        free(driver.allocate(3 * MIB))
    result('of 100 more', heard.frees)


# ---- All of them -------------------------------------------------------------------------------------------------


def run_part(name):
    """In a process of its own. Whether it went well."""
    here['part'] = name
    child = os.fork()
    if child == 0:
        signal.alarm(PART_SECONDS)
        try:
            PARTS[name]()
        except Missing as why:
            print(f'SKIP {name}: {why}', flush=True)
        except BaseException as error:  # pylint: disable=broad-exception-caught
            result('stopped', error)
            here['failed'] = True
        os._exit(here['failed'])  # none of these libraries can be relied on to leave
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        result('ended by signal', os.WTERMSIG(status))
    return status == 0


PARTS = {'dmabuf': dmabuf, 'cufile': cufile, 'ucx': ucx}
sys.exit(not all([run_part(name) for name in sys.argv[1:] or PARTS]))
