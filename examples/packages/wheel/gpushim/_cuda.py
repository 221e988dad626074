"""What of the driver opening memory takes: by libcuda alone, whichever framework uses it, too."""
from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Iterator, Tuple


class CudaError(RuntimeError):
    """What the driver answered; `code` is its number."""

    def __init__(self, function: str, code: int):
        super().__init__(f'{function}: driver error {code}')
        self.code = code


class Handle(ctypes.Structure):  # is passed by value
    _fields_ = [('bytes', ctypes.c_ubyte * 64)]


def call(function: str, *arguments: Any) -> None:
    code = getattr(ctypes.CDLL('libcuda.so.1'), function)(*arguments)
    if code:
        raise CudaError(function, code)


def device_of(uuid: bytes) -> int:
    """Its number in CUDA, by the 16 bytes of its uuid."""
    call('cuInit', 0)
    count, found = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    call('cuDeviceGetCount', ctypes.byref(count))
    for number in range(count.value):
        call('cuDeviceGetUuid', ctypes.byref(found), number)
        if bytes(found) == bytes(uuid):
            return number
    raise CudaError('cuDeviceGetUuid', 101)  # no such device is seen here


@contextlib.contextmanager
def context_of(device: int) -> Iterator[None]:
    """The device's primary context is the current one, as every framework has it."""
    context = ctypes.c_void_p()
    call('cuInit', 0)
    call('cuDevicePrimaryCtxRetain', ctypes.byref(context), device)
    try:
        call('cuCtxPushCurrent_v2', context)
        try:
            yield
        finally:
            call('cuCtxPopCurrent_v2', ctypes.byref(context))
    finally:
        call('cuDevicePrimaryCtxRelease_v2', device)


def open_handle(device: int, handle: bytes) -> int:
    address = ctypes.c_uint64()
    # The context stays for as long as its memory is open: the reference is given back by close_handle.
    context = ctypes.c_void_p()
    call('cuDevicePrimaryCtxRetain', ctypes.byref(context), device)
    try:
        with context_of(device):
            call('cuIpcOpenMemHandle_v2', ctypes.byref(address), Handle.from_buffer_copy(bytes(handle)), 1)
    except CudaError:
        call('cuDevicePrimaryCtxRelease_v2', device)
        raise
    return address.value


def handle_of(device: int, address: int) -> Tuple[int, bytes]:
    """(where the allocation around the address begins, its handle)."""
    base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), Handle()
    with context_of(device):
        call('cuMemGetAddressRange_v2', ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        call('cuIpcGetMemHandle', ctypes.byref(handle), base)
    return base.value, bytes(handle)


def close_handle(device: int, address: int) -> None:
    try:
        with context_of(device):
            call('cuIpcCloseMemHandle', ctypes.c_uint64(address))
    finally:
        call('cuDevicePrimaryCtxRelease_v2', device)
