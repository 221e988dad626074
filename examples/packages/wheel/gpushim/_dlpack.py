"""DLPack, by which frameworks take arrays of each other without a copy: https://dmlc.github.io/dlpack/latest/"""
from __future__ import annotations

import ctypes
from typing import Any, Dict, Optional, Tuple

# name: (DLPack's code, bits, what the array interface calls it)
_TYPES: Dict[str, Tuple[int, int, Optional[str]]] = {
    **{f'int{bits}': (0, bits, f'<i{bits // 8}') for bits in (8, 16, 32, 64)},
    **{f'uint{bits}': (1, bits, f'<u{bits // 8}') for bits in (8, 16, 32, 64)},
    **{f'float{bits}': (2, bits, f'<f{bits // 8}') for bits in (16, 32, 64)},
    'bfloat16': (4, 16, None),
    'complex64': (5, 64, '<c8'),
    'complex128': (5, 128, '<c16'),
    'bool': (6, 8, '|b1'),
    'float8_e4m3fn': (10, 8, None),
    'float8_e5m2': (12, 8, None),
}
_BY_TYPESTR = {typestr: name for name, (_, _, typestr) in _TYPES.items() if typestr}


def dtype_name(dtype: Any) -> str:
    """'float32' of that, of '<f4', of torch.float32 and of numpy's."""
    name = str(getattr(dtype, 'name', dtype)).rpartition('.')[2]
    name = _BY_TYPESTR.get(name.replace('|u1', '<u1').replace('|i1', '<i1'), name)
    if name not in _TYPES:
        raise TypeError(f'arrays of {dtype} cannot be told of')
    return name


def itemsize(name: str) -> int:
    return _TYPES[name][1] // 8


def typestr(name: str) -> Optional[str]:
    """None: the array interface has none for it."""
    told = _TYPES[name][2]
    return told.replace('<', '|') if told and itemsize(name) == 1 else told


class _Tensor(ctypes.Structure):
    _fields_ = [('data', ctypes.c_void_p), ('device_type', ctypes.c_int32), ('device_id', ctypes.c_int32),
                ('ndim', ctypes.c_int32), ('code', ctypes.c_uint8), ('bits', ctypes.c_uint8),
                ('lanes', ctypes.c_uint16),
                ('shape', ctypes.POINTER(ctypes.c_int64)), ('strides', ctypes.POINTER(ctypes.c_int64)),
                ('byte_offset', ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    _fields_ = [('tensor', _Tensor), ('manager', ctypes.c_void_p), ('deleter', ctypes.c_void_p)]


_NAME = b'dltensor'  # until it was taken; compared by its text
_given: Dict[int, Tuple[Any, ...]] = {}  # address of the struct: it, and what it keeps
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)


def _forget(address: int) -> None:
    """Called by who took it, on any thread."""
    _given.pop(address, None)


def _forget_untaken(capsule: int) -> None:
    """Nobody took it."""
    if _is_valid(capsule, _NAME):
        _given.pop(_pointer(capsule, _NAME), None)


_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_forget)
_untaken = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_forget_untaken)


def capsule(array: Any) -> Any:
    """One that keeps the array."""
    code, bits, _ = _TYPES[array.dtype]
    kind, number = array.memory.dlpack_device
    shape = (ctypes.c_int64 * len(array.shape))(*array.shape)
    managed = _Managed(_Tensor(array.address, kind, number, len(array.shape), code, bits, 1,
                               ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)), None, 0),
                       None, ctypes.cast(_delete, ctypes.c_void_p))
    address = ctypes.addressof(managed)
    _given[address] = (managed, shape, array)
    return _new(address, _NAME, ctypes.cast(_untaken, ctypes.c_void_p))
