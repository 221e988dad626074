"""PyTorch allocates from the library, and each free names its stream: no cache of PyTorch's own keeps memory from
others.

    gpushim.torch.use()                                # all of PyTorch, before its first use of CUDA
    with torch.cuda.use_mem_pool(gpushim.torch.pool()): ...  # one part of a program; PyTorch's cache is its own there
    python -m gpushim run -- python -m gpushim.torch train.py ...  # a program that knows nothing of it
"""
from __future__ import annotations

import ctypes
import functools
import os
import runpy
import sys
import warnings
from multiprocessing.reduction import ForkingPickler
from typing import Any, Dict, List, Optional, Tuple

import torch

from gpushim import NotLoaded, _cuda, memory, stats

# What PyTorch calls it, and the library: of an allocator that is the current one.
_FUNCTIONS = {'set_record_stream_fn': 'gpushim_used', 'set_begin_allocate_to_pool': 'gpushim_graphs_begin',
              'set_end_allocate_to_pool_fn': 'gpushim_graphs_end', 'set_release_pool': 'gpushim_graphs_gone'}
# c10::detail::torchCheckFail, which throws what Python catches as a RuntimeError.
_THROWS = '_ZN3c106detail14torchCheckFailEPKcS2_jS2_'


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


@functools.lru_cache(maxsize=None)  # PyTorch keeps no reference
def allocator() -> Any:
    """A torch.cuda.memory.CUDAPluggableAllocator, for whoever has a use for one. NotLoaded."""
    if not hasattr(ctypes.CDLL(None), 'gpushim_allocate'):
        raise NotLoaded("libgpushim is not in this process, or is older than this package: start it with 'python -m "
                        "gpushim "
                        "run -- PROGRAM'")
    made = torch.cuda.memory.CUDAPluggableAllocator(None, 'gpushim_allocate', 'gpushim_free')  # None: of this process
    for setter, function in _FUNCTIONS.items():
        getattr(made.allocator(), setter)(_address(ctypes.CDLL(None), function))
    return made


def pool() -> Any:
    """A torch.cuda.MemPool whose memory comes from the library in the order of its stream. PyTorch caches what is freed
    in it, and gives it back with the pool."""
    return torch.cuda.MemPool(allocator().allocator())


def use() -> None:
    """All memory of CUDA that PyTorch allocates from now on, in all threads, comes from the library. RuntimeError:
    PyTorch has allocated there before; NotLoaded.

    A tensor's free names the stream that it was allocated in, and waits for those of record_stream(). What a CUDA graph
    allocates is the graph's until its end. torch.multiprocessing sends CUDA IPC handles: who receives them needs the
    library too, and the sender keeps the tensor until they are received. torch.cuda.memory_allocated() and its kin tell
    the library's figures, with peaks of the whole life of the process. torch.compile's mode 'reduce-overhead' and
    torch.cuda.memory_snapshot() ask for PyTorch's own allocator.
    """
    torch.cuda.memory.change_current_allocator(allocator())
    _raise_when_it_is_full()
    setattr(torch._C, '_cuda_memoryStats', _stats)  # pylint: disable=protected-access
    setattr(torch._C, '_cuda_resetPeakMemoryStats', _keep_peak)  # pylint: disable=protected-access
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _reduced)


def _raise_when_it_is_full() -> None:
    """PyTorch goes on with a tensor at no address where an allocator has no memory; so this does not return."""
    path = os.path.join(os.path.dirname(torch.__file__), 'lib', 'libc10.so')
    try:
        throws = _address(ctypes.CDLL(path), _THROWS)
    except (OSError, AttributeError):
        warnings.warn('an allocation that fails will not raise: this PyTorch has no such function')
        return
    memory.call('gpushim_on_failure', ctypes.c_void_p(throws))


# ---- Figures --------------------------------------------------------------------------------------------


def _stats(device: int) -> Dict[str, Any]:
    """What torch.cuda.memory_stats() makes its names of."""
    try:
        figures = stats()['devices'].get(device, {})
    except NotLoaded:  # nothing was allocated yet
        figures = {}
    return {name: {'all': {'current': figures.get(current, 0), 'peak': figures.get(current + '_peak', 0)}}
            for name, current in (('allocated_bytes', 'live'), ('reserved_bytes', 'reserved'))}


def _keep_peak(device: int) -> None:
    del device
    warnings.warn("with gpushim.torch peaks of memory are those of the process's life", stacklevel=3)


# ---- Between processes ----------------------------------------------------------------------------------


def _reduced(tensor: Any) -> Tuple[Any, ...]:
    """For another process: the handle of its allocation, and where in it the tensor lies. The work of the current
    stream is waited for, since no event goes with it."""
    from torch.multiprocessing import reductions  # pylint: disable=import-outside-toplevel

    def by_itself() -> Tuple[Any, ...]:
        reduced: Tuple[Any, ...] = reductions.reduce_tensor(tensor)
        return reduced
    if (not tensor.is_cuda or tensor.is_nested or tensor.layout != torch.strided or
            (tensor.requires_grad and not tensor.is_leaf)):
        return by_itself()
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return by_itself()
    device = tensor.device.index
    torch.cuda.current_stream(device).synchronize()
    base, handle = _cuda.handle_of(device, storage.data_ptr())
    return _rebuilt, (type(tensor) is torch.nn.Parameter, handle, device, storage.data_ptr() - base, storage.nbytes(),
                      tensor.dtype, tensor.storage_offset(), tuple(tensor.size()), tuple(tensor.stride()),
                      tensor.requires_grad)


def _rebuilt(is_parameter: bool, handle: bytes, device: int, start: int, nbytes: int, dtype: Any, offset: int,
             size: Tuple[int, ...], stride: Tuple[int, ...], requires_grad: bool) -> Any:
    lease = memory.open_memory(handle, device=device, nbytes=start + nbytes)
    whole = torch.from_dlpack(lease.array('uint8', (nbytes,), start))
    tensor = torch.empty(0, dtype=dtype, device=whole.device).set_(whole.untyped_storage(), offset, size, stride)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


# ---- As a program ---------------------------------------------------------------------------------------


def main(arguments: Optional[List[str]] = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words == ['-m']:
        sys.exit('usage: python -m gpushim.torch [SCRIPT | -m MODULE] [ARGUMENT...]')
    use()
    is_module = words[0] == '-m'
    sys.argv = words[is_module:]
    if is_module:
        runpy.run_module(words[1], run_name='__main__', alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name='__main__')


if __name__ == '__main__':
    from gpushim.torch import main as own_main  # by this name others find what a tensor is rebuilt by
    own_main()
