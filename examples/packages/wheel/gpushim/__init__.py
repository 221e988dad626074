"""libgpushim for Python: the library, the command that starts programs with it, and what it does in this process.

    python -m gpushim run -- PROGRAM ...      starts a program with the library
    python -m gpushim kernelspec              installs a Jupyter kernel that has it
    gpushim.stats()                           what this process holds of the GPUs' memory

The library is in a process from its start or not at all: importing this package brings it into none.
"""
import ctypes
import errno
import os
import struct

from gpushim import _built

__all__ = ['NotLoaded', 'command', 'library', 'loaded', 'stats', 'version']
__version__ = _built.VERSION

_DEVICES = 64  # the most that the library serves
_ROOM = 8192  # bytes for a struct: a newer library may have more in it than this package knows


class NotLoaded(RuntimeError):
    """The library is not in this process, or does nothing there."""


def version():
    """The version of this package, and so of the library and the command in it."""
    return _built.VERSION


def command():
    """The path of the command gpushim."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), 'bin', 'gpushim')


def library():
    """The path of the library, for LD_PRELOAD."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), 'bin', 'libgpushim.so')


def _ask(function, names, *arguments):
    """One of gpushim.h's structs as a dict; None where the library does nothing (yet)."""
    room = (ctypes.c_size_t * (_ROOM // 8))(_ROOM)  # what the struct begins with: its size
    error = function(*arguments, ctypes.byref(room))
    if error == errno.ENODEV:
        return None
    if error:
        raise OSError(error, os.strerror(error))
    values = list(struct.unpack_from('@N' + ''.join(f'{count}{kind}' for _, kind, count in names), bytes(room)))[1:]
    found = {}
    for name, kind, count in names:
        value, values = values[:count], values[count:]
        found[name] = bytes(value).hex() if kind == 'B' else value if count > 1 else value[0]
    return found


def loaded():
    """Whether the library is in this process."""
    return hasattr(ctypes.CDLL(None), 'gpushim_memory')


def stats():
    """What this process holds of the GPUs' memory, and what its allocations came from.

    {'devices': {NUMBER: {'reserved': BYTES, 'live': BYTES, ...}}, 'registrations': {'hits': ..., ...}}

    A device is listed by its number in CUDA when the process has had memory of the library's there. The
    names are those of gpushim.h, which says what they mean: bytes, nanoseconds where the name ends in _ns,
    and counts since the start of the process; 'took' is a list, 'uuid' in hexadecimal. NotLoaded says, in words, that the library
    is not here, or that it does nothing (the program has not used CUDA yet, or it is switched off).
    """
    if not loaded():
        raise NotLoaded("libgpushim is not in this process, and can only be from its start: start it with 'python -m "
                        f"gpushim run -- PROGRAM', or with LD_PRELOAD={library()}")
    process = ctypes.CDLL(None)
    devices = {}
    for number in range(_DEVICES):
        memory = _ask(process.gpushim_memory, _built.MEMORY, number)
        if memory is None:
            raise NotLoaded('libgpushim is in this process and does nothing there: it begins with the first use of CUDA '
                            "(torch.cuda.init(), cuInit), unless it is switched off ('gpushim config' says so) or could "
                            'not start, which it said on standard error')
        if memory['reserved_peak']:
            devices[number] = memory
    return {'devices': devices,
            'registrations': _ask(process.gpushim_registration_counts, _built.REGISTRATIONS)}
