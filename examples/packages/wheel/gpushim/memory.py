"""GPU memory of other processes and of others' making, as arrays that frameworks take without a copy."""
from __future__ import annotations

import ctypes
import errno
import itertools
import json
import math
import os
import weakref
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

from gpushim import _cuda, _dlpack, _structs

KINDS = {'exported': 1, 'memfd': 2, 'address': 3}
_MARK = 'gpushim'  # of a note that says what an array is


class NotLoaded(RuntimeError):
    """The library is not in this process, or does nothing there."""
    __module__ = 'gpushim'


def call(function: str, *arguments: Any) -> int:
    """0 or an errno value of a function of gpushim.h."""
    try:
        found = getattr(ctypes.CDLL(None), function)
    except AttributeError:
        raise NotLoaded("libgpushim is not in this process, and can only be from its start: start it with 'python -m "
                        "gpushim run -- PROGRAM'") from None
    error: int = found(*arguments)
    if error == errno.ENODEV:
        raise NotLoaded('libgpushim is in this process and does nothing there, or the memory is none of its own: it '
                        'begins '
                        "with the first use of CUDA (torch.cuda.init(), cuInit), unless it is switched off ('gpushim "
                        "config' says so) or could not start, which it said on standard error")
    return error


def text(words: Union[str, bytes]) -> bytes:
    """As C has it, where a zero would end it."""
    encoded = words.encode() if isinstance(words, str) else words
    if b'\0' in encoded:
        raise ValueError(f'{words!r} has a zero in it')
    return encoded


def _raise(error: int, what: Any) -> None:
    raise OSError(error, os.strerror(error), what)


class Array:
    """Memory as an array of one type, in rows without gaps. Frameworks take it by DLPack or by the CUDA array
    interface, and keep it: it is given back when the last of them has let go of it."""

    def __init__(self, memory: Memory, dtype: Any = 'uint8', shape: Optional[Sequence[int]] = None, offset: int = 0):
        self.memory, self.dtype = memory, _dlpack.dtype_name(dtype)
        self.itemsize = _dlpack.itemsize(self.dtype)
        self.shape = ((memory.nbytes - offset) // self.itemsize,) if shape is None else tuple(int(n) for n in shape)
        self.nbytes = math.prod(self.shape) * self.itemsize
        self.address = memory.address + offset
        if min(self.shape, default=0) < 0 or offset < 0 or offset + self.nbytes > memory.nbytes:
            raise ValueError(f'{self.shape} of {self.dtype} from {offset} on are not in {memory.nbytes} bytes')

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        self.memory.check_open()
        typestr = _dlpack.typestr(self.dtype)
        if typestr is None:
            raise AttributeError(f'the CUDA array interface has no {self.dtype}; DLPack has')
        return {'shape': self.shape, 'typestr': typestr, 'data': (self.address, self.memory.read_only), 'strides': None,
                'stream': None, 'version': 3}

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.memory.dlpack_device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None,
                   copy: Optional[bool] = None) -> Any:
        """What others wrote is theirs to have finished: no stream is waited for."""
        del stream, max_version
        if copy or (dl_device is not None and tuple(dl_device) != self.memory.dlpack_device):
            raise BufferError('memory of another process is not copied')
        if self.memory.read_only:
            raise BufferError('DLPack cannot say that memory is read-only; the CUDA array interface can')
        self.memory.check_open()
        return _dlpack.capsule(self)


class Memory:
    """An allocation that is open here: a lease of another process's, or one that was attached. It ends with close(), or
    when nothing uses it any more. `address` is for CUDA."""

    def __init__(self, address: int, nbytes: int, device: int, close: Callable[[], None], *, read_only: bool = False,
                 on_host: bool = False, array: Optional[Dict[str, Any]] = None):
        self.address, self.nbytes, self.device, self.read_only = address, nbytes, device, read_only
        self.dlpack_device = (3 if on_host else 2, 0 if on_host else device)  # kDLCUDAHost, kDLCUDA
        self._array = array or {}
        self._end = weakref.finalize(self, close)
        self._end.atexit = False  # the end of the process ends it anyway, and others may have arrays of it until then

    @property
    def closed(self) -> bool:
        return not self._end.alive

    def check_open(self) -> None:
        if self.closed:
            raise ValueError('the memory is closed')

    def array(self, dtype: Any = None, shape: Optional[Sequence[int]] = None, offset: int = 0) -> Array:
        """As an array: as it was published, unless it is said otherwise; else of bytes."""
        if dtype is None and shape is None and offset == 0:
            return Array(self, **self._array) if self._array else Array(self)
        return Array(self, dtype or self._array.get('dtype', 'uint8'), shape, offset)

    def close(self) -> None:
        """At once, whoever has arrays of it."""
        self._end()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _described(memory: Any) -> Tuple[int, Optional[Dict[str, Any]]]:
    """(address, what it is as an array) of a tensor, an array, or an address."""
    if isinstance(memory, int):
        return memory, None
    if hasattr(memory, 'data_ptr'):  # PyTorch, whose bfloat16 the interface below lacks
        if not memory.is_contiguous():
            raise ValueError('only an array in rows without gaps can be published')
        return memory.data_ptr(), {'dtype': _dlpack.dtype_name(memory.dtype), 'shape': list(memory.shape)}
    interface = memory.__cuda_array_interface__
    dtype = _dlpack.dtype_name(interface['typestr'])
    strides, expected = interface.get('strides'), _dlpack.itemsize(dtype)
    for length, stride in zip(reversed(interface['shape']), reversed(strides or ())):
        if stride != expected:
            raise ValueError('only an array in rows without gaps can be published')
        expected *= length
    return interface['data'][0], {'dtype': dtype, 'shape': list(interface['shape'])}


def publish(name: str, memory: Any, *, label: Optional[str] = None, note: Optional[bytes] = None) -> None:
    """Publishes GPU memory of this process under a name: an object of PyTorch, CuPy, Numba, JAX ..., or an address.

    Of an object its type and shape are published with it, unless there is a note (bytes) of the caller's own.
    """
    address, array = _described(memory)
    if note is None and array:
        note = json.dumps({_MARK: 1, **array}, separators=(',', ':')).encode()
    publication = _structs.Publication.sized(address=address, label=text(label) if label else None, note=note,
                                             note_size=len(note or b''))
    error = call('gpushim_publish', text(name), ctypes.byref(publication))
    if error:
        _raise(error, name)


def unpublish(name: str) -> None:
    """Ends this user's name. Who has it open keeps it. KeyError: nobody has it."""
    error = call('gpushim_unpublish', text(name))
    if error == errno.ENOENT:
        raise KeyError(name)
    if error:
        _raise(error, name)


class Named:
    """What is found under a name."""

    def __init__(self, name: str, struct: _structs.Named):
        self.name, self.handle = name, bytes(struct.handle)
        self.offset, self.nbytes = struct.offset, struct.bytes
        self.own_address, self.age_ns, self.pid, self.uid = struct.address, struct.age_ns, struct.pid, struct.uid
        self.kept, self.uuid = bool(struct.kept), bytes(struct.uuid)
        self.process = struct.process.decode(errors='replace')
        self.label = struct.label.decode(errors='replace')
        self.note = bytes(struct.note[:struct.note_size])

    @property
    def array(self) -> Dict[str, Any]:
        """Its type and shape, where it was published with these: arguments of Array."""
        try:
            told: Dict[str, Any] = json.loads(self.note)
            if told.pop(_MARK) == 1 and set(told) == {'dtype', 'shape'}:
                return told
        except (ValueError, KeyError, AttributeError, TypeError):
            pass
        return {}


def lookup(name: str) -> Named:
    """Who has the name, and what it is. KeyError: nobody; TimeoutError: nobody who answers."""
    struct = _structs.Named.sized()
    error = call('gpushim_lookup', text(name), ctypes.byref(struct))
    if error == errno.ENOENT:
        raise KeyError(name)
    if error:
        _raise(error, name)
    return Named(name, struct)


def open_memory(what: Union[str, Named, bytes], *, device: Optional[int] = None,
                nbytes: Optional[int] = None) -> Memory:
    """Opens what is published under a name, what lookup() found, or a CUDA IPC handle of 64 bytes; of the last `device`
    and `nbytes` have to be said, as the handle does not."""
    if isinstance(what, (bytes, bytearray)):
        if device is None or nbytes is None or len(what) != 64:
            raise ValueError('a handle is of 64 bytes, and says neither its device nor its size')
        _cuda.call('cuInit', 0)
        base = _cuda.open_handle(device, what)
        return Memory(base, nbytes, device, lambda: _cuda.close_handle(device, base))
    named = lookup(what) if isinstance(what, str) else what
    found = _cuda.device_of(named.uuid)
    size = named.nbytes - named.offset
    if named.own_address:
        return Memory(named.own_address, size, found, lambda: None, array=named.array)
    base = _cuda.open_handle(found, named.handle)
    return Memory(base + named.offset, size, found, lambda: _cuda.close_handle(found, base), array=named.array)


_numbers = itertools.count()  # no two threads get one
_deleters: Dict[int, _structs.External] = {}  # those of what is attached, until they were called


def attach(source: int, nbytes: int, *, kind: str, device: int = 0, offset: int = 0, read_only: bool = False,
           label: Optional[str] = None, deleter: Optional[Callable[[], None]] = None) -> Memory:
    """Memory that somebody else made becomes memory of the library's: `source` is a descriptor ('exported' by CUDA, or
    a 'memfd') or an 'address'. `deleter`, without arguments, is called once when nothing uses it any more; close()
    begins that, and does not wait."""
    number = next(_numbers)

    def ended(_: Any) -> None:
        _deleters.pop(number, None)
        if deleter:
            deleter()
    is_address = kind == 'address'
    external = _structs.External.sized(
        kind=KINDS[kind], access=1 if read_only else 2, device=device, fd=-1 if is_address else source, offset=offset,
        address=source if is_address else 0, bytes=nbytes, label=text(label) if label else None,
        deleter=_structs.DELETER(ended))
    address = ctypes.c_uint64()
    _deleters[number] = external
    with _cuda.context_of(device):
        error = call('gpushim_attach', ctypes.byref(external), ctypes.byref(address))
    if error:
        del _deleters[number]
        _raise(error, label)

    def detach() -> None:
        call('gpushim_detach', ctypes.c_uint64(address.value), ctypes.c_uint64(0))
    return Memory(address.value, nbytes, device, detach, read_only=read_only, on_host=kind == 'memfd')
