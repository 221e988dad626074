"""The structs of gpushim.h (a test compares them)."""
from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Tuple


class Struct(ctypes.Structure):
    """Its first field is its size, by which a library of another version knows how much there is."""

    @classmethod
    def sized(cls, **fields: Any) -> Any:
        return cls(size=ctypes.sizeof(cls), **fields)


def _all(kind: Any, names: str) -> List[Tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Memory(Struct):
    _fields_ = [('size', ctypes.c_size_t),
                *_all(ctypes.c_uint64, 'reserved live cached retired ordered limbo reserved_peak live_peak hits misses '
                      'pieces_made pieces_given_back in_background at_once events waits waits_given_up wait_ns map_ns'),
                ('took', ctypes.c_uint64 * 24), ('slow', ctypes.c_uint64), ('uuid', ctypes.c_ubyte * 16)]


class RegistrationCounts(Struct):
    _fields_ = [('size', ctypes.c_size_t),
                *_all(ctypes.c_uint64,
                      'hits misses pins unpins pin_ns unpin_ns failures merges evictions invalidations '
                      'kept in_use bytes')]


class Publication(Struct):
    _fields_ = [('size', ctypes.c_size_t), ('address', ctypes.c_uint64), ('label', ctypes.c_char_p),
                ('note', ctypes.c_char_p), ('note_size', ctypes.c_size_t)]


class Named(Struct):
    _fields_ = [('size', ctypes.c_size_t), ('handle', ctypes.c_ubyte * 64),
                *_all(ctypes.c_uint64, 'offset bytes address age_ns pid'), ('uid', ctypes.c_uint32),
                ('kept', ctypes.c_uint32), ('uuid', ctypes.c_ubyte * 16), ('process', ctypes.c_char * 16),
                ('label', ctypes.c_char * 64), ('note_size', ctypes.c_size_t), ('note', ctypes.c_ubyte * 256)]


class Asleep(Struct):
    _fields_ = [('size', ctypes.c_size_t),
                *_all(ctypes.c_uint64, 'since_ns away copied shared registered ending refused own'),
                ('text', ctypes.c_char * 320)]


class SleepHow(Struct):
    _fields_ = [('size', ctypes.c_size_t), ('timeout_ns', ctypes.c_uint64), ('directory', ctypes.c_char_p),
                ('discard', ctypes.c_char_p)]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class External(Struct):
    _fields_ = [('size', ctypes.c_size_t), *_all(ctypes.c_int, 'kind access device fd'),
                *_all(ctypes.c_uint64, 'offset address bytes'), ('label', ctypes.c_char_p), ('deleter', DELETER),
                ('arg', ctypes.c_void_p)]


def as_dict(struct: Struct) -> Dict[str, Any]:
    """Without its size; bytes in hexadecimal, and lists."""
    found: Dict[str, Any] = {}
    fields: Any = struct._fields_[1:]  # pylint: disable=protected-access
    for name, kind in fields:
        value = getattr(struct, name)
        if isinstance(value, ctypes.Array):
            value = bytes(value).hex() if kind._type_ is ctypes.c_ubyte else list(value)
        found[name] = value
    return found
