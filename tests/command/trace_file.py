"""Writes files as a recorded process does (core/record/trace_format.h), for tests of what reads them."""
import struct

MAGIC, VERSION, BLOCK_MAGIC = b'GSTRACE\0', 1, 0x4b4c4247
HEADER, BLOCK, CALL = struct.Struct('=8sIIQQiI64s'), struct.Struct('=IIIIQ'), struct.Struct('=QBBBBIQQQiI')
FIGURES, DEVICE = struct.Struct('=QBBBBIQQQQ'), struct.Struct('=IIQ16s64s')
EVENTS, MODULES, DEVICES, END, NAMES = 1, 2, 3, 4, 5
NAMED = 1 << 63
(ALLOC, FREE, ALLOC_ASYNC, FREE_ASYNC, PIECE_MADE, PIECE_GONE, EXPORTED, OPENED, CLOSED, FIGURE) = range(1, 11)
NONE, CACHED, FURTHER, NEW, WAITED, DRIVER, REFUSED = range(7)
OUT_OF_MEMORY = 2
BEGAN = 1_790_000_000_000_000_000
assert (HEADER.size, BLOCK.size, CALL.size, FIGURES.size, DEVICE.size) == (104, 24, 48, 48, 96)


def header(program=b'trainer', stacks=False, version=VERSION, size=HEADER.size, pid=4711):
    return HEADER.pack(MAGIC, version, size, BEGAN, 1_000_000_000, pid, stacks, program)


def block(kind, content=b'', thread=4711, waited=0):
    return BLOCK.pack(BLOCK_MAGIC, BLOCK.size + len(content), kind, thread, waited) + content


def call(time, op, address, size=0, device=0, outcome=NONE, took=500, stream=0, result=0, frames=()):
    return (CALL.pack(time, op, device, outcome, len(frames), took, address, size, stream, result, 0) +
            struct.pack(f'={len(frames)}Q', *frames))


def figures(time, live, cached=0, retired=0, limbo=0, device=0):
    return FIGURES.pack(time, FIGURE, device, NONE, 0, 0, live, cached, retired, limbo)


def devices(*rows):
    """Each (number, bytes, name)."""
    return block(DEVICES, b''.join(DEVICE.pack(number, 0, size, bytes(range(16)), name)
                                   for number, size, name in rows))


def write(path, *parts):
    with open(path, 'wb') as file:
        file.write(b''.join(parts))
    return path


class Truth:
    """A trace of calls in turn, and what it comes to by a count of its own."""

    def __init__(self, device=0):
        self.events, self.live, self.device = [], {}, device
        self.allocations = self.frees = self.peak = self.now = self.time = self.took = 0

    def alloc(self, address, size, **more):
        self.time += 1000 + self.took
        self.took = more.setdefault('took', 500)
        self.events.append(call(self.time, more.pop('op', ALLOC), address, size, self.device,
                                more.pop('outcome', CACHED), **more))
        self.live[address] = size
        self.allocations += 1
        self.now += size
        self.peak = max(self.peak, self.now)

    def free(self, address, **more):
        self.time += 1000 + self.took
        self.took = more.setdefault('took', 400)
        self.events.append(call(self.time, more.pop('op', FREE), address, 0, self.device, **more))
        self.frees += 1
        self.now -= self.live.pop(address)

    def add(self, make, *arguments, **more):
        self.time += 1000 + self.took
        self.took = more.get('took', 500)
        self.events.append(make(self.time, *arguments, **more))
