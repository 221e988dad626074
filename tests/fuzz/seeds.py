"""Makes what some of the fuzz targets begin with.

usage: seeds.py FOLDER
"""
import os
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / 'command'))

import elf_file # noqa: E402
import trace_file as t # noqa: E402

BASE, MIB = 0x7f0000000000, 1 << 20


def recording():
    truth = t.Truth()
    truth.add(t.call, t.PIECE_MADE, BASE, 8 * MIB, took=30000)
    for address in BASE, BASE + MIB, 0x500000000000:
        truth.alloc(address, MIB, stream=3)
    truth.free(BASE)
    truth.alloc(BASE, 2 * MIB, op=t.ALLOC_ASYNC)
    truth.add(t.call, t.ALLOC, 0, 1 << 60, outcome=t.REFUSED, result=t.OUT_OF_MEMORY)
    for op in t.EXPORTED, t.OPENED, t.CLOSED, t.PIECE_GONE:
        truth.add(t.call, op, BASE, MIB)
    truth.add(t.figures, truth.now, 5, 3, 1)
    events = t.block(t.EVENTS, b''.join(truth.events))
    framed = t.block(t.EVENTS,
                     b''.join(t.call(i, t.ALLOC, BASE + i * MIB, i, device=i % 3, frames=(0x1010, 0x20, 0x3010))
                                        for i in range(1, 9)))
    modules = t.block(t.MODULES, b'1000-2000 r-xp 0 0:0 1 /none/a\n1800-4000 r-xp 10 0:0 1   /none\n')
    yield t.header() + t.devices((0, 80 << 30, b'Some GPU')) + events + t.block(t.END)
    yield t.header(stacks=True) + framed + modules + events[:-5]
    yield t.header() + events + t.block(t.EVENTS, t.call(1, t.FREE, BASE), thread=7) + bytes(100)
    yield t.header() + t.block(t.END)


def leases():
    record, boot, machines = struct.Struct('=II16sQ16sQ16siIQ16s'), b'boot of the fuzz', (bytes(16), b'm' * 16)
    added, ended, unnoted = 16, 17, 18

    def one(kind, machine=0, lease=0, block=0, pid=0, boot=boot):
        return record.pack(0x67736167, kind, machines[machine], lease, b'i' * 16, block, machines[1], pid, 0, pid * 100,
                           boot)
    some = b''.join(one(added, i % 2, i, i // 3, i + 5) for i in range(6))
    yield some + one(ended, 1, 3) + one(ended, 0, 9)
    yield b''.join(one(mark, 1) for mark in range(1, 7)) + one(unnoted, 1, 3) + some + one(added, 0, 2, 1)
    yield one(added, 0, 1, boot=bytes(16)) + one(1, 1, boot=bytes(16)) + some[:-7]


def http():
    for line in (b'GET /metrics HTTP/1.1', b'HEAD / HTTP/1.0', b'GET http://host:9465/metrics?x=1 HTTP/1.1',
                 b'POST /metrics HTTP/1.1', b'GET /none HTTP/1.1', b'GET', b'GET  HTTP/1.1', b'GET /metrics HTTP/2.0'):
        yield line + b'\r\nHost: localhost:9465\r\nAccept: */*\r\n\r\nrest'
    yield b'GET /metrics HTTP/1.1\n\n'


def elf():
    functions = [('outer', 0, 0x100), ('inner', 0x40, 0x10), ('_ZSt9terminatev', 0x200, 0x40)]
    yield elf_file.library(functions)
    dynamic = elf_file.library(functions, elf_file.DYNSYM)
    yield dynamic
    yield dynamic[:120] + elf_file.SECTION.pack(0, elf_file.SYMTAB, 0, 0, elf_file.HEAD, 0, 2, 0, 8, 24) + dynamic[184:]
    for kind in 0x13, 0x50, 0x25, 0x40: # tables of loaded objects: with which hashes, with versions or not
        yield bytes([kind, 12] + [byte for i in range(12) for byte in (i, i * 37 % 256)])


def config():
    sample = (pathlib.Path(__file__).resolve().parents[2] / 'config/gpushim.conf.sample').read_bytes()
    yield sample
    yield sample.replace(b'\n# ', b'\n').replace(b'\n#', b'\n')
    yield b'[share]\ndir = /tmp/x\ngrace = 10 ms\nuids = 1 2,3\n[pool]\nsmall_limit = 64KiB # c\n[general]\nlog=debug\n'
    yield (b'\xef\xbb\xbf[nowhere]\nx = 1\n[share\ndir\n= 3\n[pool]\ncache_limit = unlimited\n'
           b'epoch_bytes = 99999999999999999999T')


for make in recording, leases, http, elf, config:
    folder = pathlib.Path(sys.argv[1]) / make.__name__
    os.makedirs(folder, exist_ok=True)
    for number, content in enumerate(make()):
        (folder / str(number)).write_bytes(content)
