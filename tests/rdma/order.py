"""While all work goes to one stream, freed memory is used again at once. What lets others reach memory beside that
stream ends it, and nothing else does.

    order.py PUPPET SHIM BROKER HOW
"""
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from puppet import OUT, OUT4, Out, Puppet, check, main, set_for_all

SIZE = 64 << 10
MEMORY_TYPE, TOKENS, SYNC_MEMOPS = 2, 5, 6


class Process(Puppet):
    def __init__(self):
        super().__init__()
        self.pointer('load_kernels')
        self.one, self.block = self.stream(), self.alloc(SIZE)

    def launch(self, address, stream):
        self.pointer('launch_fill', address, 1, stream, SIZE // 4)

    def is_used_again_at_once(self):
        """Whether what is freed behind work that has not begun is the next allocation's."""
        self.hold(1)
        first = self.alloc(SIZE)
        self.launch(first, self.one)
        self.cuMemFree(first)
        following = self.alloc(SIZE)
        self.hold(0)
        self.cuStreamSynchronize(self.one)
        self.cuMemFree(following)
        return first == following


# ---- What ends it -----------------------------------------------------------------------------------


def registration(it):
    no_call = it.pointer('dlsym', 0, 'nothing')
    pinner = struct.pack('5Q', 40, it.pointer('place', 'test', 5), no_call, no_call, 0)
    pinner = it.pointer('place', pinner, len(pinner))
    it.gpushim_pinner_add(pinner)
    it.gpushim_pin(pinner, 1, 0, it.block, SIZE, OUT, OUT)


def dma_buf(it):
    it.cuMemGetHandleForAddressRange(OUT4, it.block, SIZE, 1, 0)


def tokens(it):
    it.result('cuPointerGetAttribute', Out(16), TOKENS, it.block)


def tokens_among_others(it):
    room = [it.pointer('place', bytes(16), 16) for _ in range(2)]
    it.result('cuPointerGetAttributes', 2, struct.pack('2I', MEMORY_TYPE, TOKENS), struct.pack('2Q', *room), it.block)


def sync_memops(it):
    it.cuPointerSetAttribute(struct.pack('I', 1), SYNC_MEMOPS, it.block)


def ipc_handle(it):
    it.handle(it.block)


def other_stream(it):
    other = it.stream()
    it.launch(it.block, other)
    it.cuStreamSynchronize(other)


def other_context(it):
    context = it.cuCtxGetCurrent(OUT)
    it.set_context(it.cuDevicePrimaryCtxRetain(OUT, 1))
    it.alloc(SIZE)
    it.set_context(context)


def capture(it):
    it.cuStreamBeginCapture(it.one, 2)
    it.cuStreamEndCapture(it.one, OUT)


def listener(it):
    listening = struct.pack('5Q', 40, it.pointer('dlsym', 0, 'nothing'), 0, 0, 0)
    it.gpushim_listen(it.pointer('place', listening, len(listening)))


# ---- What does not -----------------------------------------------------------------------------------


def nothing(it):
    pass


def questions(it):
    it.cuPointerGetAttribute(OUT4, MEMORY_TYPE, it.block)
    it.cuPointerSetAttribute(bytes(4), SYNC_MEMOPS, it.block)
    check(it.cuMemGetAddressRange(0, OUT, it.block) == SIZE, 'its size')


def work(it):
    for _ in range(100):
        it.launch(it.block, it.one)
    it.cuMemcpyDtoHAsync_v2(Out(64), it.block, 64, it.one)
    it.cuStreamSynchronize(it.one)


def one_stream_and(how):
    it = Process()
    check(it.is_used_again_at_once(), 'it is used again at once')
    globals()[how.replace('-', '_').replace(' ', '_').lower()](it)
    check(it.is_used_again_at_once() == (how in ('nothing', 'questions', 'work')), f'and with {how} it is, or not')


set_for_all(GPUSHIM_POOL_DECAY='0')
main(globals())
