import ctypes
import types

import torch


class CUDAPluggableAllocator:
    def __init__(self, path, alloc, free):
        library = ctypes.CDLL(path)
        self.made = torch.Pluggable(ctypes.cast(getattr(library, alloc), ctypes.c_void_p).value,
                                    ctypes.cast(getattr(library, free), ctypes.c_void_p).value)

    def allocator(self):
        return self.made


class MemPool:
    def __init__(self, allocator):
        self.allocator = allocator


awaited = []  # devices whose current stream was waited for


def current_stream(device):
    return types.SimpleNamespace(synchronize=lambda: awaited.append(device))


def change_current_allocator(allocator):
    torch._C._cuda_changeCurrentAllocator(allocator.allocator())


memory = types.SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator,
                               change_current_allocator=change_current_allocator)
