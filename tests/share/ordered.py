"""Memory in a stream's order, as an allocator's functions (gpushim_allocate and its kin in gpushim.h).

    ordered.py PUPPET SHIM BROKER HOW...
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from puppet import MIB, OUT, OUT4, Puppet, around, check, main, set_for_all

SIZE, MOST = MIB, 64
FIRST, SECOND = (1, 2), (1, 3)  # whose graphs
GLOBAL, RELAXED = 0, 2  # captures


class Process(Puppet):
    def take(self, stream, size=SIZE):
        memory = self.try_take(stream, size)
        check(memory, 'there is memory')
        return memory

    def try_take(self, stream, size=SIZE, device=0):
        return self.pointer('gpushim_allocate', size, device, stream)

    def give(self, memory, stream, size=SIZE, device=0):
        self.pointer('gpushim_free', memory, size, device, stream)

    def used(self, memory, stream):
        self.pointer('gpushim_used', memory, stream)

    def fill(self, memory, byte, stream):
        self.cuMemsetD8Async(memory, byte, SIZE, stream)

    def of_several_streams(self):
        """A capture ends single-stream mode, in which what is freed is free at once."""
        self.begin_capture(stream := self.stream(), RELAXED)
        self.cuGraphDestroy(self.cuStreamEndCapture(stream, OUT))

    def comes_back(self, memory):
        """Whether it is had by who takes all that there is."""
        stream, taken = self.stream(), []
        while len(taken) < MOST and (one := self.try_take(stream)):
            taken.append(one)
        check(len(taken) < MOST, 'that was all of it')
        for one in taken[::-1]:
            self.give(one, stream)
        self.cuCtxSynchronize()
        self.cuStreamDestroy(stream)
        return memory in taken

    # ---- Graphs

    def begin_capture(self, stream, mode=GLOBAL):
        self.cuStreamBeginCapture(stream, mode)

    def end_capture(self, stream):
        captured = self.cuStreamEndCapture(stream, OUT)
        executable = self.cuGraphInstantiateWithFlags(OUT, captured, 0)
        self.cuGraphDestroy(captured)
        return executable

    def graphs(self, what, whose, device=0):
        self.pointer(f'gpushim_graphs_{what}', device, *whose, 0)

    def launch(self, executable, stream, memory):
        self.cuGraphLaunch(executable, stream)
        self.cuCtxSynchronize()
        return self.word(memory) & 255

    def join(self, one, other):
        """The other stream's work is captured as well, or not any more."""
        event = self.cuEventCreate(OUT, 2)
        self.cuEventRecord(event, one)
        self.cuStreamWaitEvent(other, event, 0)
        self.cuEventDestroy(event)


def order():
    """What is freed in a stream is free for that at once, for others when its work has passed."""
    one = Process()
    a, b = one.stream(), one.stream()
    memory, other = one.take(a), one.take(b)
    one.of_several_streams()
    one.fill(other, 1, b)
    one.hold(1)
    one.fill(memory, 2, a)
    one.give(memory, a)
    check(one.take(a) == memory, 'its stream has it at once')
    one.give(memory, a)
    others = one.take(b)
    check(others != memory, 'another stream does not have it before its work is done')
    one.hold(0)
    one.cuCtxSynchronize()
    check(one.comes_back(memory), 'then it has')
    for it in other, others:
        one.give(it, b)


def used():
    """What another stream was said to use is behind that, too."""
    one = Process()
    a, b, c = (one.stream() for _ in range(3))
    memory, own, several = (one.take(a) for _ in range(3))
    one.of_several_streams()
    one.fill(own, 1, b)
    one.hold(1)
    one.fill(memory, 2, b)
    one.used(memory, b)
    one.give(memory, a)
    check(one.take(a) != memory, 'what another stream uses is not free for its own at once')
    one.used(own, a)
    one.give(own, a)
    check(one.take(a) == own, 'what its own stream uses is')
    for stream in a, c, a:
        one.used(several, stream)
    one.give(several, a)
    check(one.take(a) != several, 'what several streams use is not')
    one.hold(0)
    one.cuCtxSynchronize()
    check(one.comes_back(memory) and one.comes_back(several), 'it is when their work is done')
    one.used(0, a)


def graph():
    """What a capture allocates and frees is that graph's until its end."""
    one = Process()
    a, b = one.stream(), one.stream()
    one.graphs('begin', FIRST)
    one.begin_capture(a)
    inner = one.take(a)
    one.fill(inner, 3, a)
    one.give(inner, a)
    check(one.take(a) == inner, 'a capture has again what it has freed')
    kept, large = one.take(a), one.take(a, 8 * SIZE)
    check(len({kept, inner, large}) == 3, 'memory of its own')
    one.fill(kept, 4, a)
    one.give(inner, a)
    one.give(large, a)
    one.join(a, b)
    check(one.take(b) != inner, 'not in another stream')
    one.join(b, a)
    check(one.take(a) == inner, 'in its own')
    check(one.take(a) != large, 'not where it is much too large')
    one.give(inner, a)
    out = one.take(a, 4 * SIZE)
    first = one.end_capture(a)
    one.graphs('end', FIRST)
    one.give(out, a)
    check(not one.comes_back(out), 'nor what is freed later')
    check(not one.comes_back(inner), 'nobody else has it')
    check((one.launch(first, a, kept), one.launch(first, b, inner)) == (4, 3), 'the graph writes there')

    one.graphs('begin', FIRST)
    one.begin_capture(a)
    check(one.take(a) == inner, 'the next capture has it')
    one.fill(inner, 5, a)
    one.give(inner, a)
    second = one.end_capture(a)
    one.graphs('end', FIRST)
    check((one.launch(first, a, inner), one.launch(second, a, inner)) == (3, 5), 'both may be launched')
    one.graphs('gone', FIRST)
    check(not one.comes_back(inner), 'one of two has gone')
    for executable in first, second:
        one.cuGraphExecDestroy(executable)
    one.graphs('gone', FIRST)
    one.graphs('gone', FIRST)
    check(one.comes_back(inner), 'it is free with the last')
    one.give(one.take(a), a)  # without that it would wait for the GPU, which is full
    one.hold(1)
    one.fill(kept, 6, b)
    one.give(kept, a)
    check(one.take(a) != kept, 'what was had beyond is behind all streams')
    one.hold(0)
    one.cuCtxSynchronize()
    check(one.comes_back(kept), 'and comes back')


def graphs():
    """Of two captures at once nothing is had again."""
    one = Process()
    a, b = one.stream(), one.stream()
    one.graphs('begin', FIRST)
    one.graphs('begin', SECOND, device=1)  # of another device
    one.begin_capture(a)
    of_one = one.take(a)
    one.give(of_one, a)
    check(one.take(a) == of_one, 'one')
    one.give(of_one, a)
    one.graphs('begin', SECOND)
    one.begin_capture(b)
    of_both = one.take(b)
    one.give(of_both, b)
    check(of_both != of_one and one.take(b) != of_both, 'whose it is cannot be told')
    for stream, whose in (b, SECOND), (a, FIRST):
        one.cuGraphExecDestroy(one.end_capture(stream))
        one.graphs('end', whose)
    one.graphs('gone', FIRST)
    one.graphs('gone', SECOND)
    check(not one.comes_back(of_both), 'so it stays')
    check(one.comes_back(of_one), 'but not that of one')


def untold():
    """Captures that nobody told of; memory from before one that is freed in it."""
    one = Process()
    a = one.stream()
    before = one.take(a)
    one.fill(before, 1, a)
    one.begin_capture(a)
    within = one.take(a)
    one.fill(within, 2, a)
    one.give(before, a)
    one.give(within, a)
    one.cuGraphExecDestroy(one.end_capture(a))
    one.cuCtxSynchronize()
    check(one.comes_back(before) and one.comes_back(within), 'both come back')
    one.graphs('end', FIRST)
    one.graphs('gone', FIRST)


def device():
    """Another device than the current one, and no current one at all."""
    one = Process(threads=2)
    one.of_several_streams()
    zero = one.cuCtxGetCurrent(OUT)
    one.cuDevicePrimaryCtxRetain(OUT, 1)

    def device_of(memory):
        return one.cuPointerGetAttribute(OUT4, 9, memory)
    memory = one.try_take(0, device=1)
    check(memory and device_of(memory) == 1, 'of the device that is named')
    one.give(memory, 0, device=1)
    check(one.try_take(0, device=1) == memory, 'and free there')
    check(one.cuCtxGetCurrent(OUT) == zero, 'the current context stays')
    thread = one.thread(1)
    thread.set_context(0)
    its = thread.pointer('gpushim_allocate', SIZE, 1, 0)
    check(its and device_of(its) == 1, 'a thread without a context')
    thread.pointer('gpushim_free', its, SIZE, 1, 0)
    check(thread.cuCtxGetCurrent(OUT) == 0, 'which has none afterwards')
    one.give(memory, 0, device=1)
    one.cuDevicePrimaryCtxRelease(1)


def wrong():
    """No such device, no bytes, too many, a device without a context, a full one."""
    one = Process()
    before = one.census()

    def on_failure(handler):
        return one.pointer('gpushim_on_failure', handler and one.pointer('dlsym', 0, handler))
    check(on_failure('say_failure') == 0, 'a handler')

    def refused(size, number, words):
        said = around.said()
        return not one.try_take(0, size, number) and words in around.said()[len(said):]
    check(refused(0, 0, '') and 'failure:' not in around.said(), 'no bytes')
    check(refused(SIZE, -1, 'error 101:'), 'no such device')
    check(refused(SIZE, 64, 'failure:'), 'nor this')
    check(refused(SIZE, 1, 'error 201:'), 'no context there')
    check(refused(-1, 0, 'failure: gpushim_allocate CUDA out of memory. Tried to allocate '), 'too many')
    check(one.result('leave_allocation', 1 << 40) == 1, 'a handler may leave')
    on_failure(0)
    check(refused(1 << 40, 0, ''), 'it can be done without')
    one.give(0, 0, size=0)
    one.give(one.pointer('place', 'nothing', 8), 0, size=8)
    after = one.census()
    check((after.contexts, after.blocks) == (before.contexts, before.blocks), 'nothing is left of it')
    one.give(one.take(0), 0)


def off():
    """A library that is switched off: the driver's own memory."""
    one = Process(GPUSHIM_ENABLE=0)
    a = one.stream()
    memory, census = one.take(a), one.census()
    check((census.blocks, census.mappings) == (1, 0), "the driver's own")
    one.used(memory, a)
    one.give(memory, a)
    one.cuCtxSynchronize()
    check(one.census().blocks == 0, 'and freed there')
    for what in 'begin', 'end', 'gone':
        one.graphs(what, FIRST)


set_for_all(SOFTCUDA_MEMORY='48M')
main(globals())
