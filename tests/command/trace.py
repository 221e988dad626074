"""Reads a recording (core/record/trace_format.h): a small reader of the tests' own, which takes nothing for
granted and says what is wrong.
"""
import dataclasses
import struct

from trace_file import (ALLOC, ALLOC_ASYNC, BLOCK, BLOCK_MAGIC, CACHED, CLOSED, DEVICE, DEVICES, DRIVER, END,
                        EVENTS, EXPORTED, FREE, FREE_ASYNC, FURTHER, HEADER, MODULES, NAMED, NAMES, NEW, OPENED,
                        PIECE_GONE, PIECE_MADE, REFUSED, WAITED, FIGURE as IS_FIGURES)

EVENT, CALL, FIGURES = struct.Struct('=QBBBBI'), struct.Struct('=QQQiI'), struct.Struct('=QQQQ')
MAKES = (ALLOC, ALLOC_ASYNC, PIECE_MADE, OPENED)


@dataclasses.dataclass
class Event:
    time_ns: int
    op: int
    device: int
    outcome: int
    took_ns: int
    thread: int
    block: int # which of the file's
    address: int = 0
    size: int = 0
    stream: int = 0
    result: int = 0
    figures: tuple = ()
    frames: tuple = ()

    def addresses(self):
        return [frame for frame in self.frames if not frame & NAMED]


class Trace:
    """What a file has; `wrong` says what it should not have. `cut`: bytes after the last whole block."""

    def __init__(self, path):
        with open(path, 'rb') as file:
            data = file.read()
        self.wrong, self.blocks, self.events, self.devices, self.modules = [], [], [], {}, []
        self.names = {}
        self.ended, self.cut = False, 0
        magic, version, size, self.realtime_ns, self.monotonic_ns, self.pid, self.has_stacks, name = \
            HEADER.unpack_from(data)
        if (magic, version, size) != (b'GSTRACE\0', 1, HEADER.size):
            self.wrong.append(f'the header is {magic} {version} {size}')
        self.program = name.rstrip(b'\0').decode()
        at = size
        while len(data) - at >= BLOCK.size and len(data) - at >= BLOCK.unpack_from(data, at)[1]:
            magic, size, kind, thread, waited = BLOCK.unpack_from(data, at)
            if magic != BLOCK_MAGIC or size < BLOCK.size:
                self.wrong.append(f'at {at} is no block: {magic:x} of {size}')
                break
            if self.ended:
                self.wrong.append(f'a block of kind {kind} is behind the end')
            self.blocks.append((kind, thread, size, waited))
            self.take(kind, thread, data[at + BLOCK.size:at + size])
            at += size
        self.cut = len(data) - at
        # What makes memory, by its end: then each address is made and goes by turns.
        self.events.sort(key=lambda event: event.time_ns + (event.took_ns if event.op in MAKES else 0))

    def take(self, kind, thread, data):
        if kind == EVENTS:
            self.take_events(thread, data)
        elif kind == MODULES:
            self.modules.append(data.decode())
        elif kind == DEVICES:
            for number, _, size, uuid, name in DEVICE.iter_unpack(data):
                self.devices[number] = (size, uuid, name.rstrip(b'\0').decode())
        elif kind == NAMES:
            for line in data.decode().splitlines():
                number, line, name = line.split(' ', 2)
                if int(number) in self.names:
                    self.wrong.append(f'name {number} is told again')
                self.names[int(number)] = (*name.split('\t'), int(line))
        elif kind == END and not data:
            self.ended = True
        else:
            self.wrong.append(f'a block of kind {kind} with {len(data)} bytes')

    def take_events(self, thread, data):
        at, last = 0, 0
        while at < len(data):
            time, op, device, outcome, frames, took = EVENT.unpack_from(data, at)
            event = Event(time, op, device, outcome, took, thread, len(self.blocks))
            if op == IS_FIGURES:
                event.figures = FIGURES.unpack_from(data, at + EVENT.size)
            else:
                event.address, event.size, event.stream, event.result, _ = \
                    CALL.unpack_from(data, at + EVENT.size)
            at += EVENT.size + CALL.size
            event.frames = struct.unpack_from(f'{frames}Q', data, at)
            at += 8 * frames
            if time < last:
                self.wrong.append(f'{event} is before the one that it follows, at {last}')
            if not 1 <= op <= IS_FIGURES or outcome > REFUSED:
                self.wrong.append(f'{event} is of no kind there is')
            last = time
            self.events.append(event)

    def named(self, event):
        """What its frames stand for, (function, file, line) each; ('?', '', 0): one that had no room."""
        return [self.names.get(frame - NAMED, ('?', '', 0)) for frame in event.frames if frame & NAMED]

    def of(self, *ops):
        return [event for event in self.events if event.op in ops]
