"""The driver, called by ctypes in the process itself: what the programs here begin with."""
import ctypes
import os
import struct
import sys


class Missing(Exception):
    """What this machine does not have."""


class Handle(ctypes.Structure):
    """Of memory, passed by value."""
    _fields_ = [('bytes', ctypes.c_ubyte * 64)]


def symbol(library, name, restype=ctypes.c_int):
    if not hasattr(library, name):
        raise Missing(f'the library has no {name}')
    found = getattr(library, name)
    found.restype = restype
    return found


class Driver:
    """The first device's primary context is current. Numbers are passed in 64 bits."""

    def __init__(self):
        if 'libgpushim' in os.environ.get('LD_PRELOAD', '') and not hasattr(ctypes.CDLL(None), 'gpushim_version'):
            sys.exit('the library is not there')
        try:
            self.library = ctypes.CDLL('libcuda.so.1')
        except OSError as error:
            raise Missing(error) from error
        if self.call('cuInit', 0) != 0:
            raise Missing('there is no GPU')
        self.device, context = ctypes.c_int(), ctypes.c_void_p()
        self.must('cuDeviceGet', ctypes.byref(self.device), 0)
        self.must('cuDevicePrimaryCtxRetain', ctypes.byref(context), self.device)
        self.must('cuCtxSetCurrent', context)

    def call(self, name, *arguments):
        arguments = [ctypes.c_uint64(argument) if isinstance(argument, int) else argument for argument in arguments]
        return symbol(self.library, name)(*arguments)

    def name_of(self, error):
        name = ctypes.c_char_p()
        self.call('cuGetErrorName', error, ctypes.byref(name))
        return name.value.decode() if name.value else 'an unknown error'

    def said(self, name, *arguments):
        return self.name_of(self.call(name, *arguments))

    def must(self, name, *arguments):
        error = self.call(name, *arguments)
        if error != 0:
            raise OSError(f'{name} gave {self.name_of(error)}')

    def made(self, name, *arguments, kind=ctypes.c_uint64):
        """What the call writes to its first argument."""
        made = kind()
        self.must(name, ctypes.byref(made), *arguments)
        return made.value if hasattr(made, 'value') else made

    def allocate(self, size):
        return self.made('cuMemAlloc_v2', size)

    def free(self, *blocks):
        for block in blocks:
            self.must('cuMemFree_v2', block)

    def fill(self, address, word, size):
        self.must('cuMemsetD32_v2', address, word, size // 4)
        self.must('cuCtxSynchronize')

    def holds_word(self, address, size, word):
        copy = ctypes.create_string_buffer(size)
        self.must('cuMemcpyDtoH_v2', copy, address, size)
        return copy.raw == struct.pack('I', word) * (size // 4)
