"""A model's weights in GPU memory, found by a name: the first process loads them and publishes them, others map them
in milliseconds, and with a broker a new one starts on them when all before it have ended.

    weights.py make FILE MIB           writes a file of weights (safetensors), to try it with
    weights.py run NAME FILE           maps the weights that NAME leads to, or loads FILE and publishes it
    weights.py check NAME FILE         the same, and compares every byte with FILE
    weights.py unpublish NAME

`run` says what it did and how long that took, reads the weights until its standard input ends, and once more then. An
engine takes what is here up to tensors(), and no more: its own allocator and its kernels need not know of it.

The block has the file's index (safetensors: 8 bytes of length, then JSON) and behind it, at a multiple of 512 bytes,
its data; so all that a reader needs is in the memory itself. The note says where the data begins, and the file's size
and time, so that another version of the file is not taken for it.
"""
import array
import ctypes
import json
import os
import select
import struct
import sys
import time

PIECE = 64 << 20


class Handle(ctypes.Structure):  # passed by value
    _fields_ = [('bytes', ctypes.c_ubyte * 64)]


class Publication(ctypes.Structure):
    _fields_ = [('size', ctypes.c_size_t), ('address', ctypes.c_uint64), ('label', ctypes.c_char_p),
                ('note', ctypes.c_char_p), ('note_size', ctypes.c_size_t)]


class Named(ctypes.Structure):
    _fields_ = [('size', ctypes.c_size_t), ('handle', Handle), ('offset', ctypes.c_uint64), ('bytes', ctypes.c_uint64),
                ('address', ctypes.c_uint64), ('age_ns', ctypes.c_uint64), ('pid', ctypes.c_uint64),
                ('uid', ctypes.c_uint32), ('kept', ctypes.c_uint32), ('uuid', ctypes.c_ubyte * 16),
                ('process', ctypes.c_char * 16), ('label', ctypes.c_char * 64), ('note_size', ctypes.c_size_t),
                ('note', ctypes.c_ubyte * 256)]


class Cuda:
    """The driver's calls that are needed, in the device's primary context, which PyTorch has too."""

    def __init__(self, device=0):
        self.library = ctypes.CDLL('libcuda.so.1')
        context = ctypes.c_void_p()
        self.call('cuInit', 0)
        self.call('cuDevicePrimaryCtxRetain', ctypes.byref(context), device)
        self.call('cuCtxSetCurrent', context)

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            sys.exit(f'weights: {name}: CUDA error {result}')

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call('cuMemAlloc_v2', ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def write(self, address, data):
        self.call('cuMemcpyHtoD_v2', ctypes.c_uint64(address), bytes(data), ctypes.c_size_t(len(data)))

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self.call('cuMemcpyDtoH_v2', data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw

    def open(self, handle):
        address = ctypes.c_uint64()
        result = self.library.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, 1)
        return address.value if result == 0 else None


class Names:
    """gpushim.h, of the library that is preloaded."""

    def __init__(self):
        self.library = ctypes.CDLL(None)
        if not hasattr(self.library, 'gpushim_publish'):
            sys.exit('weights: libgpushim is not in this process; start it with gpushim run')

    def look_up(self, name):
        named = Named(size=ctypes.sizeof(Named))
        error = self.library.gpushim_lookup(name.encode(), ctypes.byref(named))
        return named if error == 0 else None

    def publish(self, name, address, label, note):
        it = Publication(ctypes.sizeof(Publication), address, label.encode()[:63], note, len(note))
        error = self.library.gpushim_publish(name.encode(), ctypes.byref(it))
        if error:
            sys.exit(f'weights: {name} cannot be published: {os.strerror(error)}')

    def unpublish(self, name):
        error = self.library.gpushim_unpublish(name.encode())
        return os.strerror(error) if error else None


def data_at(index_length):
    return (8 + index_length + 511) // 512 * 512


def note_of(file):
    """Where the data begins, and which file it is."""
    about = os.stat(file)
    with open(file, 'rb') as read:
        length, = struct.unpack('<Q', read.read(8))
    return struct.pack('<QQQ', data_at(length), about.st_size, about.st_mtime_ns)


def load(cuda, file):
    """The file in GPU memory: its address."""
    size = os.path.getsize(file)
    with open(file, 'rb') as read:
        length, = struct.unpack('<Q', read.read(8))
        begin, index = data_at(length), read.read(length)
        address = cuda.allocate(begin + size - 8 - length)
        cuda.write(address, struct.pack('<Q', length) + index)
        at = address + begin
        while piece := read.read(PIECE):
            cuda.write(at, piece)
            at += len(piece)
    return address


def attach(cuda, names, name, file):
    """The address of the weights, and how they came: mapped where they are, else loaded and published."""
    note = note_of(file)
    named = names.look_up(name)
    if named and bytes(named.note[:named.note_size]) == note:
        address = named.address or cuda.open(named.handle)
        if address:  # else it has gone since
            return address + (0 if named.address else named.offset), 'mapped'
    address = load(cuda, file)
    names.publish(name, address, os.path.basename(file), note)
    return address, 'loaded'


def index_of(cuda, address):
    """Of each tensor its type, shape and place, as they stand in front of the data."""
    length, = struct.unpack('<Q', cuda.read(address, 8))
    index = json.loads(cuda.read(address + 8, length))
    begin = address + data_at(length)
    return {name: (entry['dtype'], entry['shape'], begin + entry['data_offsets'][0],
                   entry['data_offsets'][1] - entry['data_offsets'][0])
            for name, entry in index.items() if name != '__metadata__'}


class Tensor(ctypes.Structure):  # DLTensor and DLManagedTensor, in one
    _fields_ = [('data', ctypes.c_void_p), ('device_kind', ctypes.c_int32), ('device', ctypes.c_int32),
                ('dimensions', ctypes.c_int32), ('code', ctypes.c_uint8), ('bits', ctypes.c_uint8),
                ('lanes', ctypes.c_uint16), ('shape', ctypes.POINTER(ctypes.c_int64)),
                ('strides', ctypes.c_void_p), ('byte_offset', ctypes.c_uint64), ('owner', ctypes.c_void_p),
                ('deleter', ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


class Memory:
    """What PyTorch, JAX, CuPy and Numba take as memory that is not theirs, without a copy: DLPack."""
    NAME = b'dltensor'  # capsules point to it
    CUDA = 2
    lent = {}  # by address, until whoever took it lets it go
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype, new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

    def __init__(self, address, shape, code, bits):
        self.tensor = Tensor(address, self.CUDA, 0, len(shape), code, bits, 1, (ctypes.c_int64 * len(shape))(*shape),
                             None, 0, None, self.let_go)

    @staticmethod
    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def let_go(lent):
        Memory.lent.pop(lent, None)

    def __dlpack_device__(self):
        return self.tensor.device_kind, self.tensor.device

    def __dlpack__(self, **_):
        lent = ctypes.addressof(self.tensor)
        self.lent[lent] = self
        return self.new_capsule(lent, self.NAME, None)


# DLPack's code and bits of each type that is in files of weights.
KINDS = {'F64': (2, 64), 'F32': (2, 32), 'F16': (2, 16), 'BF16': (4, 16), 'I64': (0, 64), 'I32': (0, 32),
         'I16': (0, 16),
         'I8': (0, 8), 'U8': (1, 8), 'BOOL': (6, 8)}


def tensors(cuda, address):
    """PyTorch's tensors over the weights, where they lie; None without PyTorch or its GPU."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    made = {}
    for name, (kind, shape, at, _) in index_of(cuda, address).items():
        made[name] = torch.from_dlpack(Memory(at, shape, *KINDS[kind]))
        assert made[name].data_ptr() == at, 'it was copied'
    return made


def use(cuda, address):
    """Reads all of them: a sum by PyTorch, or else of the bytes."""
    made = tensors(cuda, address)
    if made is not None:
        return sum(float(tensor.float().sum()) for tensor in made.values())
    return sum(sum(cuda.read(at, size)[::4097]) for _, _, at, size in index_of(cuda, address).values())


def input_has_ended(seconds):
    ready, _, _ = select.select([0], [], [], seconds)
    return bool(ready) and not os.read(0, 1)


def run(name, file, compares):
    cuda, names = Cuda(), Names()
    begun = time.monotonic()
    address, how = attach(cuda, names, name, file)
    took = (time.monotonic() - begun) * 1000
    index = index_of(cuda, address)
    mib = sum(size for _, _, _, size in index.values()) / (1 << 20)
    print(f'{how} {name}: {len(index)} tensors, {mib:.0f} MiB, in {took:.1f} ms', flush=True)
    if compares:
        with open(file, 'rb') as read:
            length, = struct.unpack('<Q', read.read(8))
            for kind, shape, at, size in index.values():
                read.seek(8 + length + at - address - data_at(length))
                if read.read(size) != cuda.read(at, size):
                    sys.exit(f'weights: other bytes than in {file}')
        print('every byte is as in the file', flush=True)
        return
    first = use(cuda, address)
    while not input_has_ended(0.05):
        if use(cuda, address) != first:
            sys.exit('weights: they changed under a reader')
    print('the same until the end' if use(cuda, address) == first else 'they changed', flush=True)


def make(file, mib):
    """Four tensors of random numbers."""
    each = mib * (1 << 20) // 4 // 4
    index, at = {}, 0
    for layer in range(4):
        index[f'layers.{layer}.weight'] = {'dtype': 'F32', 'shape': [each // 256, 256],
                                           'data_offsets': [at, at + each // 256 * 1024]}
        at += each // 256 * 1024
    text = json.dumps(index).encode()
    text += b' ' * (-len(text) % 8)
    with open(file, 'wb') as written:
        written.write(struct.pack('<Q', len(text)) + text)
        for layer in range(4):
            values = array.array('f', (float((i * 7919 + layer) % 1000) for i in range(256)))
            written.write(values.tobytes() * (each // 256))


def main(arguments):
    if len(arguments) == 3 and arguments[0] == 'make':
        return make(arguments[1], int(arguments[2]))
    if len(arguments) == 3 and arguments[0] in ('run', 'check'):
        return run(arguments[1], arguments[2], arguments[0] == 'check')
    if len(arguments) == 2 and arguments[0] == 'unpublish':
        Cuda()
        return Names().unpublish(arguments[1])
    return __doc__


sys.exit(main(sys.argv[1:]))
