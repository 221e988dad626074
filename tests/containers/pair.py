"""Puppets in containers, and what two of them do together. As tests/puppet.py says, the test's arguments begin with
PUPPET SHIM BROKER.
"""
import os
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import containers
from puppet import MIB, OUT, OUT_OF_MEMORY, PUPPET, STAMP, Thread, await_that, check

SIZE = 10 * MIB  # the device has no room for two
PIECE = 2 * MIB
PLAIN = struct.pack('4I16x', 1, 0, 1, 0)
READ_WRITE = struct.pack('3I', 1, 0, 3)
ANSWER = 0x0ddba11
ENOENT, EBUSY = 2, 16
WAIT_NS = 400 * 10**6  # in which nothing ends
STAY = 'while :; do /bin/busybox sleep 1; done'  # of a shell that is the first process of its PID namespace


class Inside(Thread):
    """A puppet in a container of its own, which calls by a socket in the folder. `behind`: it is a shell's child there,
    which does that afterwards."""

    def __init__(self, case, role, user=containers.HERE, settings=None, command=(), behind=None):
        self.case, self.role = case, role
        words = [*command, '/bin/puppet', f'/shared/talk/{role}']
        if behind is not None:
            words = ['/bin/busybox', 'sh', '-c', ' '.join(words) + behind]
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.settimeout(containers.TIMEOUT)
            listener.bind(case.talk(role))
            os.chmod(case.talk(role), 0o777)
            listener.listen()
            self.running = case.start(role, user, settings or {}, words)
            super().__init__(listener.accept()[0])
        os.unlink(case.talk(role))
        self.begin()

    def leave(self):
        """It has ended when this returns."""
        self.channel.shutdown(socket.SHUT_WR)
        check(self.channel.recv(1) == b'', f'{self.role} says something')

    def end(self):
        self.leave()
        status = self.running.wait()
        check(status == 0, f'{self.role} ended with {status}')


def both(case, **more):
    return Inside(case, 'giver', **more), Inside(case, 'taker', **more)


def mapped(giver):
    """Memory that it makes and maps itself, in several pieces."""
    base = giver.cuMemAddressReserve(OUT, SIZE, 0, 0, 0)
    for at in range(base, base + SIZE, PIECE):
        made = giver.cuMemCreate(OUT, PIECE, PLAIN, 0)
        giver.cuMemMap(at, PIECE, 0, made, 0)
        giver.cuMemRelease(made)
    giver.cuMemSetAccess(base, SIZE, READ_WRITE, 1)
    return base


def attached(giver):
    """Memory of a memfd."""
    fd = giver.result('memfd_create', 'external', 3)
    check(fd >= 0 and giver.result('ftruncate', fd, SIZE) == 0, 'there is a memfd')
    block = giver.gpushim_attach(struct.pack('Q4i6Q', 72, 2, 2, 0, fd, 0, 0, SIZE, 0, 0, 0), OUT)
    giver.result('close', fd)
    return block


def stamped(giver, block):
    """Its handle."""
    giver.cuMemsetD32(block, STAMP, SIZE // 4)
    giver.cuCtxSynchronize()
    return giver.handle(block)


def share(giver, taker, block):
    """The taker has it open, and has answered in it."""
    address = taker.open(stamped(giver, block))
    check(taker.word(address) == taker.word(address + SIZE - 4) == STAMP, 'what was opened is not the block')
    taker.write(address, ANSWER)
    check((giver.word(block), giver.word(block + 4)) == (ANSWER, STAMP), 'the answer is not there')
    return address


def comes_back(giver):
    """The device is too small for two blocks: another can only have the same bytes."""
    await_that(lambda: giver.result('cuMemAlloc', OUT, SIZE) == 0, 'the freed memory comes back')


def is_kept(giver):
    time.sleep(0.3)
    check(giver.result('cuMemAlloc', OUT, SIZE) == OUT_OF_MEMORY, 'it came back while the other container has it open')


def share_and_end(giver, taker):
    block = giver.alloc(SIZE)
    address = share(giver, taker, block)
    taker.close(address)
    giver.cuMemFree(block)
    comes_back(giver)
    for one in giver, taker:
        one.end()
    left = os.listdir(os.path.join(giver.case.shared, 'run'))
    check(not left, f'{giver.case.kind}: {left} is left in the runtime directory')
