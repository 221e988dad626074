"""How fast host memory is made, registered, filled from the GPU and given back: what a sleep cannot be faster than.

    host_memory.py [--gib 8] [--rounds 3] [--threads 8,4,1] [--registrars 1,4] [--part 256] [--beside | --blocked]

Each round maps so much memory with huge pages, has it touched by so many threads in parts of so many MiB, registers it, copies
GPU memory there and back, ends the registration and unmaps it. A row says each in GB/s, and at last the same with registering and
copying, copying and unregistering under way at once. With --beside another thread fills GPU memory all the time meanwhile: told is
how long its calls took and how many of its 50 fills were done in a second, while nothing else happens and while a registration
ends. With --blocked a stream waits for two seconds: told is how long the end of a registration takes meanwhile, and another thread's
fill on another stream. Without a GPU the exit status is 77.
"""
import argparse
import concurrent.futures
import ctypes
import sys
import threading
import time

MAP_PRIVATE_ANONYMOUS, READ_WRITE, HUGE, POPULATE = 0x22, 3, 14, 23


def must(result, call):
    if result != 0:
        sys.exit(f'{call}: error {result}')


def timed(size, work, *arguments):
    began = time.monotonic()
    work(*arguments)
    return f'{size / (time.monotonic() - began) / 1e9:6.1f}'


class Machine:
    def __init__(self, size, part):
        self.libc, self.cuda, self.size, self.part = ctypes.CDLL(None, use_errno=True), ctypes.CDLL('libcuda.so.1'), size, part
        self.libc.mmap.restype = ctypes.c_void_p
        if self.cuda.cuInit(0) != 0:
            sys.exit(77)
        context, self.block = ctypes.c_void_p(), ctypes.c_uint64()
        self.context = context
        must(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), 'cuDevicePrimaryCtxRetain')
        must(self.cuda.cuCtxSetCurrent(context), 'cuCtxSetCurrent')
        must(self.cuda.cuMemAlloc_v2(ctypes.byref(self.block), ctypes.c_size_t(self.part)), 'cuMemAlloc')

    def parts(self, base):
        return [base + at for at in range(0, self.size, self.part)]

    def map(self):
        base = self.libc.mmap(None, ctypes.c_size_t(self.size), READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, ctypes.c_long(0))
        self.libc.madvise(ctypes.c_void_p(base), ctypes.c_size_t(self.size), HUGE)
        return base

    def by_threads(self, threads, work, base):
        """That of each part; in this thread where it is one."""
        def one(at):
            must(self.cuda.cuCtxSetCurrent(self.context), 'cuCtxSetCurrent')
            work(at)
        if threads == 1:
            for at in self.parts(base):
                work(at)
            return
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(one, self.parts(base)))

    def touch(self, at):
        must(self.libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(self.part), POPULATE), 'madvise')

    def register(self, at):
        must(self.cuda.cuMemHostRegister_v2(ctypes.c_void_p(at), ctypes.c_size_t(self.part), 1), 'cuMemHostRegister')

    def unregister(self, at):
        must(self.cuda.cuMemHostUnregister(ctypes.c_void_p(at)), 'cuMemHostUnregister')

    def out(self, at):
        must(self.cuda.cuMemcpyDtoHAsync_v2(ctypes.c_void_p(at), self.block, ctypes.c_size_t(self.part), None), 'cuMemcpyDtoHAsync')

    def back(self, at):
        must(self.cuda.cuMemcpyHtoDAsync_v2(self.block, ctypes.c_void_p(at), ctypes.c_size_t(self.part), None), 'cuMemcpyHtoDAsync')

    def wait(self):
        must(self.cuda.cuCtxSynchronize(), 'cuCtxSynchronize')

    def copy(self, base, way):
        self.by_threads(1, way, base)
        self.wait()

    def register_and_copy(self, threads, base):
        def both(at):
            self.register(at)
            self.out(at)
        self.by_threads(threads, both, base)
        self.wait()

    def copy_and_unregister(self, threads, base):
        """Behind the copy of each part; all are submitted at first."""
        events = []
        for at in self.parts(base):
            event = ctypes.c_void_p()
            must(self.cuda.cuEventCreate(ctypes.byref(event), 2), 'cuEventCreate')
            self.back(at)
            must(self.cuda.cuEventRecord(event, None), 'cuEventRecord')
            events.append((at, event))
        waits = dict(events)
        def behind(at):
            must(self.cuda.cuEventSynchronize(waits[at]), 'cuEventSynchronize')
            self.unregister(at)
        self.by_threads(threads, behind, base)

    def unmap(self, base):
        self.libc.munmap(ctypes.c_void_p(base), ctypes.c_size_t(self.size))


class Filler(threading.Thread):
    """Keeps the GPU at work: 50 fills, and waits for them."""

    def __init__(self, machine):
        super().__init__(daemon=True)
        self.machine, self.end, self.calls, self.turns = machine, False, [], 0

    def run(self):
        cuda, stream = self.machine.cuda, ctypes.c_void_p()
        must(cuda.cuCtxSetCurrent(self.machine.context), 'cuCtxSetCurrent')
        must(cuda.cuStreamCreate(ctypes.byref(stream), 1), 'cuStreamCreate')
        while not self.end:
            for _ in range(50):
                began = time.monotonic()
                must(cuda.cuMemsetD8Async(self.machine.block, 1, ctypes.c_size_t(self.machine.part), stream), 'cuMemsetD8Async')
                self.calls.append(time.monotonic() - began)
            must(cuda.cuStreamSynchronize(stream), 'cuStreamSynchronize')
            self.turns += 1

    def during(self, what, work):
        self.calls, self.turns, began = [], 0, time.monotonic()
        work()
        took = time.monotonic() - began
        calls = sorted(self.calls) or [0]
        print(f'beside: {what}: {took * 1000:.0f} ms; a fill is submitted in {calls[len(calls) // 2] * 1e6:.0f} us, at most '
              f'{calls[-1] * 1e6:.0f}; {self.turns / took:.1f} turns a second', flush=True)


def beside(machine, size):
    base, filler = machine.map(), Filler(machine)
    machine.by_threads(4, machine.touch, base)
    machine.by_threads(1, machine.register, base)
    filler.start()
    filler.during('nothing', lambda: time.sleep(1))
    filler.during(f'{size >> 30} GiB unregistered', lambda: machine.by_threads(1, machine.unregister, base))
    filler.during('nothing', lambda: time.sleep(1))
    filler.end = True
    filler.join()
    machine.unmap(base)


def blocked(machine):
    """Who waits for what, while a stream waits for a word of the host's memory."""
    cuda, base, word, address = machine.cuda, machine.map(), ctypes.c_void_p(), ctypes.c_uint64()
    streams = [ctypes.c_void_p(), ctypes.c_void_p()]
    machine.touch(base)
    machine.register(base)
    for stream in streams:
        must(cuda.cuStreamCreate(ctypes.byref(stream), 1), 'cuStreamCreate')
    must(cuda.cuMemHostAlloc(ctypes.byref(word), ctypes.c_size_t(4096), 2), 'cuMemHostAlloc')
    ctypes.memset(word, 0, 4096)
    must(cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(address), word, 0), 'cuMemHostGetDevicePointer')
    must(cuda.cuStreamWaitValue32_v2(streams[0], address, 1, 0), 'cuStreamWaitValue32')

    def told(what, work):
        must(cuda.cuCtxSetCurrent(machine.context), 'cuCtxSetCurrent')
        began = time.monotonic()
        work()
        print(f'blocked: {what} took {(time.monotonic() - began) * 1000:.1f} ms', flush=True)

    def fill():
        must(cuda.cuMemsetD8Async(machine.block, 1, ctypes.c_size_t(4096), streams[1]), 'cuMemsetD8Async')

    threads = [threading.Thread(target=told, args=arguments) for arguments in (
        ('a fill that comes first', fill), ('the end of a registration', lambda: machine.unregister(base)),
        ('a fill meanwhile', fill))]
    for thread in threads:
        thread.start()
        time.sleep(0.5)
    time.sleep(0.5)
    ctypes.memset(word, 1, 4)
    for thread in threads:
        thread.join()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--gib', type=int, default=8)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--threads', default='8,4,1')
    parser.add_argument('--registrars', default='1,4')
    parser.add_argument('--part', type=int, default=256)
    parser.add_argument('--beside', action='store_true')
    parser.add_argument('--blocked', action='store_true')
    options = parser.parse_args()
    size = options.gib << 30
    machine = Machine(size, options.part << 20)
    if options.blocked:
        return blocked(machine)
    if options.beside:
        return beside(machine, size)
    print('threads registrars round  touch  register   out   back  unregister  unmap  register+out  back+unregister  (GB/s)')
    for threads in map(int, options.threads.split(',')):
        for registrars in map(int, options.registrars.split(',')):
            for nth in range(1, options.rounds + 1):
                base = machine.map()
                row = [timed(size, machine.by_threads, threads, machine.touch, base),
                       timed(size, machine.by_threads, registrars, machine.register, base),
                       timed(size, machine.copy, base, machine.out), timed(size, machine.copy, base, machine.back),
                       timed(size, machine.by_threads, registrars, machine.unregister, base)]
                both = [timed(size, machine.register_and_copy, registrars, base), timed(size, machine.copy_and_unregister, registrars, base)]
                row.append(timed(size, machine.unmap, base))
                print(f'{threads:7} {registrars:10} {nth:5} {"  ".join(row + both)}', flush=True)


if __name__ == '__main__':
    main()
