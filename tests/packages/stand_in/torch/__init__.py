"""Stands in for PyTorch where there is none: as much of it as gpushim.torch uses, with allocators that call their
functions as torch/csrc/cuda/CUDAPluggableAllocator.cpp does. Streams are numbers of the driver's."""
import ctypes
import types

from torch import cuda

__all__ = ['cuda']
strided = 'strided'


class Id(ctypes.Structure):  # MempoolId_t, by value
    _fields_ = [('a', ctypes.c_uint64), ('b', ctypes.c_uint64)]


_VOID = ctypes.c_void_p
_FORMS = {'set_record_stream_fn': (None, _VOID, _VOID), 'set_begin_allocate_to_pool': (None, ctypes.c_int, Id, _VOID),
          'set_end_allocate_to_pool_fn': (None, ctypes.c_int, Id), 'set_release_pool': (None, ctypes.c_int, Id)}


class Pluggable:
    def __init__(self, alloc, free):
        self.alloc = ctypes.CFUNCTYPE(_VOID, ctypes.c_size_t, ctypes.c_int, _VOID)(alloc)
        self.free = ctypes.CFUNCTYPE(None, _VOID, ctypes.c_size_t, ctypes.c_int, _VOID)(free)
        self.given, self.functions = {}, {}

    def __getattr__(self, name):
        form = ctypes.CFUNCTYPE(*_FORMS[name])
        return lambda address: self.functions.__setitem__(name, form(address))

    def malloc(self, size, device=0, stream=None):
        address = self.alloc(size, device, stream)
        self.given[address] = (size, device, stream)
        return address

    def raw_delete(self, address):
        self.free(address, *self.given.pop(address))


class _State:
    current = None


def _change(allocator):
    if _State.current:
        raise RuntimeError("Can't swap an already initialized allocator")
    _State.current = allocator


_C = types.SimpleNamespace(_cuda_customAllocator=Pluggable, _cuda_changeCurrentAllocator=_change)


class Storage:
    def __init__(self, address, nbytes, keeps=None):
        self.address, self.size, self.keeps = address, nbytes, keeps

    def __del__(self):
        if self.keeps is None and self.address:
            _State.current.raw_delete(self.address)

    def nbytes(self):
        return self.size

    def data_ptr(self):
        return self.address


class Tensor:
    is_cuda, is_nested, layout, is_leaf, dtype = True, False, strided, True, 'float32'

    def __init__(self, storage, offset=0, size=(0,), stride=(1,), requires_grad=False):
        self.storage, self.offset, self.shape, self.strides = storage, offset, size, stride
        self.requires_grad = requires_grad
        self.device = types.SimpleNamespace(index=0)

    def untyped_storage(self):
        return self.storage

    def storage_offset(self):
        return self.offset

    def size(self):
        return self.shape

    def stride(self):
        return self.strides

    def set_(self, storage, offset, size, stride):
        self.storage, self.offset, self.shape, self.strides = storage, offset, size, stride
        return self

    def requires_grad_(self, requires_grad):
        self.requires_grad = requires_grad
        return self


class Parameter(Tensor):
    def __init__(self, tensor, requires_grad=True):
        super().__init__(tensor.storage, tensor.offset, tensor.shape, tensor.strides, requires_grad)


nn = types.SimpleNamespace(Parameter=Parameter)


def empty(count, dtype='float32', device=None):
    del dtype, device
    return Tensor(Storage(_State.current.malloc(4 * count) if count else None, 4 * count), size=(count,))


def manual_seed(seed):
    del seed


def from_dlpack(array):
    capsule = array.__dlpack__()
    return Tensor(Storage(array.__cuda_array_interface__['data'][0], array.nbytes, (array, capsule)), size=array.shape)
