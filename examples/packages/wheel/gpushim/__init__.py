"""libgpushim for Python: the library, the command that starts programs with it, and what it does in this process.

    python -m gpushim run -- PROGRAM ...      starts a program with the library
    python -m gpushim kernelspec              installs a Jupyter kernel that has it
    gpushim.stats()                           what this process holds of the GPUs' memory
    with gpushim.tag('kv'): ...               what is allocated here bears the tag: in recordings, and to be discarded
    gpushim.sleep(); gpushim.wake()           this process's memory off the GPU, and back
    gpushim.publish('weights', tensor)        under a name, for other processes;
    torch.from_dlpack(gpushim.open('weights').array())

The library is in a process from its start or not at all: importing this package brings it into none.
"""
import contextlib
import ctypes
import os
import shutil
import threading
from typing import Any, Dict, Iterator, Optional

from gpushim import _built, _structs, memory
from gpushim.memory import Array, Memory, Named, NotLoaded, attach, lookup, publish, unpublish
from gpushim.memory import open_memory as open  # pylint: disable=redefined-builtin

__all__ = ['Array', 'Memory', 'Named', 'NotLoaded', 'attach', 'command', 'library', 'loaded', 'lookup', 'memory',
           'open',
           'publish', 'sleep', 'stats', 'tag', 'unpublish', 'version', 'wake']
__version__ = _built.VERSION

_DEVICES = 64  # the most that the library serves


def version() -> str:
    """The version of this package, and so of the library and the command in it."""
    return _built.VERSION


def command() -> str:
    """The path of the command gpushim: of this package, or where it has none, as that of Python alone, the one of
    PATH."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'bin', 'gpushim')
    return own if os.path.exists(own) else shutil.which('gpushim') or own


def library() -> str:
    """The path of the library of this package, for LD_PRELOAD."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), 'bin', 'libgpushim.so')


def loaded() -> bool:
    """Whether the library is in this process."""
    return hasattr(ctypes.CDLL(None), 'gpushim_memory')


def stats() -> Dict[str, Any]:
    """What this process holds of the GPUs' memory, and what its allocations came from.

    {'devices': {NUMBER: {'reserved': BYTES, 'live': BYTES, ...}}, 'registrations': {'hits': ..., ...}}

    A device is listed by its number in CUDA when the process has had memory of the library's there. The
    names are those of gpushim.h, which says what they mean: bytes, nanoseconds where the name ends in _ns,
    and counts since the start of the process; 'took' is a list, 'uuid' in hexadecimal. NotLoaded says, in words, that
    the library is not here, or that it does nothing (the program has not used CUDA yet, or it is switched off).
    """
    if not loaded():
        raise NotLoaded("libgpushim is not in this process, and can only be from its start: start it with 'python -m "
                        f"gpushim run -- PROGRAM', or with LD_PRELOAD={library()}")
    devices = {}
    for number in range(_DEVICES):
        struct = _structs.Memory.sized()
        if memory.call('gpushim_memory', number, ctypes.byref(struct)) == 0 and struct.reserved_peak:
            devices[number] = _structs.as_dict(struct)
    counts = _structs.RegistrationCounts.sized()
    memory.call('gpushim_registration_counts', ctypes.byref(counts))
    return {'devices': devices, 'registrations': _structs.as_dict(counts)}


def sleep(timeout: float = 30.0, directory: Optional[str] = None, discard: Optional[str] = None) -> Dict[str, int]:
    """Takes this process's memory off the GPU. Its calls of CUDA that need the GPU wait until wake(), which so has to
    be called by another thread than one that waits. The contents go to the host's memory, or to a file in `directory`;
    but what bears the tag `discard`, which comes back with contents that are anything. Returns what is away, and what
    stays by reason, in bytes. OSError says why it does not sleep, and it is awake then."""
    how = _structs.SleepHow.sized(timeout_ns=_ns(timeout),
                                  directory=None if directory is None else memory.text(os.fsencode(directory)),
                                  discard=None if discard is None else memory.text(discard))
    return _slept('gpushim_sleep', ctypes.byref(how))


def wake(timeout: float = 30.0) -> Dict[str, int]:
    """Brings it back, at the same addresses; waits for the GPU's memory so long. OSError: it sleeps on."""
    return _slept('gpushim_wake', ctypes.c_uint64(_ns(timeout)))


def _ns(seconds: float) -> int:
    if seconds < 0:
        raise ValueError(f'{seconds} s is no time to wait')
    return int(seconds * 1e9)


def _slept(function: str, first: Any) -> Dict[str, int]:
    told = _structs.Asleep.sized()
    error = memory.call(function, first, ctypes.byref(told))
    if error:
        raise OSError(error, told.text.decode(errors='replace'))
    return {name: value for name, value in _structs.as_dict(told).items() if name != 'text'}


_tags = threading.local()


@contextlib.contextmanager
def tag(label: str) -> Iterator[None]:
    """What this thread allocates in the block bears the tag. It lies apart, so that sleep(discard=...) need not keep
    it, and is called so in recordings (gpushim record): its holders' stacks begin with it. Without the library nothing
    is done. ValueError: more than 63 bytes, or control characters."""
    before = getattr(_tags, 'label', None)
    _set_tag(label)
    try:
        yield
    finally:
        _set_tag(before)


def _set_tag(label: Any) -> None:
    try:
        # A zero would end it in C, and is refused as any other control character is.
        error = memory.call('gpushim_tag', None if label is None else label.encode().replace(b'\0', b'\1'))
    except NotLoaded:
        return
    if error:
        raise ValueError(f'{label!r} is longer than 63 bytes, or has control characters')
    _tags.label = label
