"""Members of the cluster that mean harm: they are in the directory, with a certificate of theirs, and lie. The honest
machines are served meanwhile, and what these have of each other stays theirs.

usage: liars.py GPUSHIM SHIM LIBCUDA AGENT BROKER
"""
import json
import os
import re
import shutil
import signal
import ssl
import struct
import sys
import threading

sys.path.insert(0, os.path.dirname(__file__))
from caller import HELLO, LISTED, VERSION, message
from liar import (ENDED, KEPT, RECALL, REFUSED, TAKEN, Exporter, Liar, Seal, exports, proof_of, published, sealed_of,
                  take)
from machines import MIB, Program, await_that, check, skip, with_machines

DRIVER = 5  # GS_REFUSED_DRIVER


def flood(liar, over, counts):
    """Leases of blocks that it never opened, the ends of others', takes without the handle, whose answers nobody reads;
    torn and wrong messages. Each is told off or hung up on, and it comes again."""
    torn = [message(LISTED)[:5], struct.pack('<HHI', VERSION, KEPT, 9) + b'x', struct.pack('<HHI', 9, LISTED, 8),
            message(HELLO, liar.machine + liar.boot + bytes(16))]
    while not over.is_set():
        try:
            with liar.call() as link:
                lies = b''.join(message(KEPT, os.urandom(8)) for _ in range(500)) + message(LISTED)
                ends = b''.join(message(ENDED, struct.pack('<Q', lease)) for lease in range(500))
                link.sendall(lies)
                for _ in range(10):
                    link.sendall(ends + b''.join(take(i + 1) for i in range(100)))
                link.sendall(torn[counts[0] % len(torn)])
        except (ConnectionError, ssl.SSLError, TimeoutError):
            pass
        counts[0] += 1


def is_served(one, a, b, what):
    pointer = a.do(f'alloc({4 * MIB}, 0x41)')
    handle = a.do(f'share({pointer})')
    there = b.opens(handle, f'{what}: it opens')
    a.do(f'free({pointer})')
    other = a.do(f'alloc({4 * MIB}, 0x42)')
    check(b.do(f'read({there})') == '41414141', f'{what}: it is read on')
    check(one.limbo() == 4 * MIB, f'{what}: it is limbo: {one.limbo()}')
    b.do(f'close({there})')
    await_that(lambda: one.limbo() == 0, f'{what}: it comes back')
    a.do(f'free({other})')


def check_liar(cluster, one, a, b):
    liar = Liar(cluster, int(re.search(r'port (\d+)', one.said())[1]))
    over, counts = threading.Event(), [0]
    attack = threading.Thread(target=flood, args=(liar, over, counts))
    attack.start()
    try:
        await_that(lambda: counts[0] > 2, 'the attack has begun')
        for i in range(10):
            is_served(one, a, b, f'while one lies ({i})')
        await_that(lambda: counts[0] > 8, 'it was told off in all ways')
    finally:
        over.set()
        attack.join()
    told = json.loads(one.gpushim('cluster', '--json')[1])['rows'][0]['machines']
    check(not [row for row in told if row['name'] == 'liar' and row['leases']], f'it has nothing: {told}')


def check_exporter(cluster, machines, a, b):
    """What a machine says that puts itself in the place of another is not believed, and what it may say as one that was
    given the handle harms nobody."""
    one, two, three = machines
    liar = Exporter(cluster, 1)
    here = a.do(f'share(alloc({MIB}, 0x45))')
    honest = b.opens(here, 'an honest block opens')
    block = bytes.fromhex(here)[8:32]
    # Before each answer: recalls of what others share, and answers that nobody waits for.
    liar.noise = b''.join(message(RECALL, block) + message(RECALL, os.urandom(24)) + message(TAKEN, os.urandom(48))
                          for _ in range(200))
    c, importer = Program(three), Program(two)

    def taken(proof):
        return lambda take: message(TAKEN, take[48:56] + proof(take) + struct.pack('<II', 0, 0))

    def refused(reason, error):
        return lambda take: message(REFUSED, take[48:56] + struct.pack('<II', reason, error))

    def shared():
        before = exports(cluster)
        handle = c.do(f'share(alloc({MIB}, 0x46))')
        return handle, published(cluster, before)

    ways = {'gives what it did not share': taken(lambda take: bytes(32)),
            'gives the importer\'s own proof back': taken(lambda take: take[16:48]),
            'says what is not its to say': lambda take: message(KEPT, os.urandom(8)),
            'refuses for no reason': refused(0, 0),
            'refuses for an unknown reason': refused(0xffffffff, 0xffffffff),
            'refuses with the driver\'s success': refused(DRIVER, 0),
            'refuses with an error that is none': refused(DRIVER, 0x7fffffff)}
    for way, answer in ways.items():
        handle, name = shared()
        liar.answer = answer
        liar.replace(name)
        count = len(liar.takes)
        answered = importer.do(f'open_({handle!r})')
        check(isinstance(answered, str), f'a machine that {way}: nothing is opened: {answered}')
        check(len(liar.takes) > count, f'a machine that {way} was asked')
        is_served(one, a, b, f'while one {way}')
    check(two.said().count('gives memory that it did not share') == 2, 'the log says so')

    def with_seal(change):
        """What comes of an open whose seal the liar has changed, with the handle, of which it has the proof too."""
        handle, name = shared()
        raw = bytes.fromhex(handle)
        seal = Seal(raw, sealed_of(liar.liar.folder, name))
        liar.answer = taken(lambda take: proof_of(raw, take, liar.importer, liar.liar.machine))
        liar.replace(name, seal.forged(*change(*seal.fields)))
        return importer.do(f'open_({handle!r})')

    pointer = with_seal(lambda size, *_: (0, size))
    check(isinstance(pointer, int) and importer.do(f'read({pointer})') == '46464646',
          f'who has the handle may give what it leads to: {pointer}')
    for what, change in (('another size of its piece', lambda size, offset, piece, *_: (2, 2 * piece)),
                         ('a piece beyond all addresses', lambda *_: (2, 1 << 62)),
                         ('a piece that is no pages', lambda size, offset, piece, *_: (2, piece - 1)),
                         ('a place beyond its piece', lambda size, offset, piece, *_: (1, piece - size + 1)),
                         ('a size that is not the handle\'s', lambda size, *_: (0, size + 1)),
                         ('memory that there is not', lambda *_: (4, bytes(64)))):
        answered = with_seal(change)
        check(isinstance(answered, str), f'a machine that lies of {what}: nothing is opened: {answered}')
        is_served(one, a, b, f'while one lies of {what}')
    importer.do(f'close({pointer})')
    importer.end()
    await_that(lambda: liar.takes[-1] in liar.ended, f'the lease is over: {liar.takes} {liar.ended}')
    check(b.do(f'read({honest})') == '45454545', 'the honest block is read on')
    check(two.broker.poll() is None and two.agent.poll() is None, 'broker and agent live')
    b.do(f'close({honest})')
    c.end()


def check_silent(three, one, a, b, two):
    """A machine that never answers: who opens its memory waits for it, and others do not."""
    c, waiting = Program(three), Program(two)
    handle = c.do(f'share(alloc({MIB}, 0x43))')
    there = b.opens(handle, 'it opens while that answers')
    b.do(f'close({there})')
    other = c.do(f'share(alloc({MIB}, 0x44))')
    await_that(lambda: len(exports(three.cluster)) >= 2, 'it is published')
    three.agent.send_signal(signal.SIGSTOP)
    waiting.say(f'open_({other!r})')
    for i in range(3):
        is_served(one, a, b, f'while one is silent ({i})')
    three.agent.send_signal(signal.SIGCONT)
    waiting.hear()  # whatever it is by now: nobody waits for ever
    c.end()
    waiting.end()


def test(cluster, machines, a, b):
    one, two, three = machines
    check_liar(cluster, one, a, b)
    check_exporter(cluster, machines, a, b)
    check_silent(three, one, a, b, two)


if not shutil.which('openssl'):
    skip('there is no openssl, the program')
with_machines(test, 3)
