"""Members of the cluster that mean harm: they are in the directory, with a certificate of theirs, and lie. The honest
machines are served meanwhile, and what these have of each other stays theirs.

usage: liars.py GPUSHIM SHIM LIBCUDA AGENT BROKER
"""
import base64
import ctypes
import ctypes.util
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import struct
import sys
import threading

sys.path.insert(0, os.path.dirname(__file__))
from caller import HELLO, LISTED, VERSION, context_of, message, server_of
from machines import MIB, PATIENT_S, Program, await_that, check, skip, with_machines

KEPT, TAKE, TAKEN, REFUSED, ENDED, RECALL = 2, 4, 5, 6, 7, 8
DRIVER = 5  # GS_REFUSED_DRIVER


class Liar:
    """One more machine in the directory, that this test plays."""

    def __init__(self, cluster, port):
        self.port, self.folder = port, f'{cluster.folder}/directory'
        self.machine, self.boot = os.urandom(16), os.urandom(16)
        self.context = context_of(cluster)
        with open(f'{cluster.folder}/cert.pem', encoding='ascii') as file:
            self.print = hashlib.sha256(ssl.PEM_cert_to_DER_cert(file.read())).hexdigest()
        self.write(f'leases/{self.machine.hex()}', '3600\n')
        self.write(f'agents/{self.machine.hex()}', f'{self.machine.hex()}\n' + json.dumps({
            'name': 'liar', 'address': '127.0.0.1', 'port': 1, 'fingerprint': self.print, 'boot': self.boot.hex()}))

    def write(self, name, text):
        with open(f'{self.folder}/leases/.new', 'w', encoding='ascii') as file:
            file.write(text)
        os.rename(f'{self.folder}/leases/.new', f'{self.folder}/{name}')

    def call(self):
        """A link on which it has said who it is, and was believed."""
        link = self.context.wrap_socket(socket.create_connection(('127.0.0.1', self.port), timeout=PATIENT_S))
        link.sendall(message(HELLO, self.machine + self.boot + bytes(40)))
        check(len(link.recv(4096)) > 0, 'the liar is a member')
        return link


def take(lease):
    return message(TAKE, os.urandom(48) + struct.pack('<QII', lease, 0, 0) + bytes(128))


def flood(liar, over, counts):
    """Leases of blocks that it never opened, the ends of others', takes without the handle, whose answers nobody reads;
    torn and wrong messages. Each is told off or hung up on, and it comes again."""
    torn = [message(LISTED)[:5], struct.pack('<HHI', VERSION, KEPT, 9) + b'x', struct.pack('<HHI', 9, LISTED, 8),
            message(HELLO, liar.machine + liar.boot + bytes(40))]
    while not over.is_set():
        try:
            with liar.call() as link:
                lies = b''.join(message(KEPT, os.urandom(32)) for _ in range(500)) + message(LISTED)
                ends = b''.join(message(ENDED, struct.pack('<Q', lease)) for lease in range(500))
                for _ in range(10):
                    link.sendall(lies + ends + b''.join(take(i + 1) for i in range(100)))
                link.sendall(torn[counts[0] % len(torn)])
        except (ConnectionError, ssl.SSLError, TimeoutError):
            pass
        counts[0] += 1


def is_served(one, a, b, what):
    pointer = a.do(f'alloc({4 * MIB}, 0x41)')
    handle = a.do(f'share({pointer})')
    got = []
    await_that(lambda: got.append(b.do(f'open_({handle!r})')) or isinstance(got[-1], int), f'{what}: it opens')
    a.do(f'free({pointer})')
    other = a.do(f'alloc({4 * MIB}, 0x42)')
    check(b.do(f'read({got[-1]})') == '41414141', f'{what}: it is read on')
    check(one.limbo() == 4 * MIB, f'{what}: it is limbo: {one.limbo()}')
    b.do(f'close({got[-1]})')
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
    told = json.loads(one.gpushim('cluster', '--json')[1])[0]['machines']
    check(not [row for row in told if row['name'] == 'liar' and row['leases']], f'it has nothing: {told}')


class Exporter:
    """The liar as who shares: it puts itself into the directory in the place of who does, and answers as it is told."""

    def __init__(self, cluster, port):
        self.liar = Liar(cluster, port)
        self.listener = socket.create_server(('127.0.0.1', 0))
        self.context = server_of(cluster)
        self.answer, self.noise = None, b''  # of a TAKE's body; b'': none
        self.takes, self.ended = [], []      # the numbers of leases
        self.opener = b''                    # who called last
        self.liar.write(f'agents/{self.liar.machine.hex()}', f'{self.liar.machine.hex()}\n' + json.dumps({
            'name': 'liar', 'address': '127.0.0.1', 'port': self.listener.getsockname()[1],
            'fingerprint': self.liar.print, 'boot': self.liar.boot.hex()}))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            link, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(link,), daemon=True).start()

    def serve(self, link):
        try:
            with self.context.wrap_socket(link, server_side=True) as link, link.makefile('rb') as said:
                while head := said.read(8):
                    _, kind, size = struct.unpack('<HHI', head)
                    body = said.read(size - 8)
                    if kind == HELLO:
                        self.opener = body[:16]
                        link.sendall(message(HELLO, self.liar.machine + self.liar.boot + bytes(40)))
                        if body[64]:  # it asks what it has here
                            link.sendall(b''.join(message(KEPT, os.urandom(32)) for _ in range(3)) + message(LISTED))
                    elif kind == ENDED:
                        self.ended.append(struct.unpack('<Q', body)[0])
                    elif kind == TAKE:
                        self.takes.append(struct.unpack_from('<Q', body, 48)[0])
                        link.sendall(self.noise + self.answer(body))
        except (ConnectionError, ssl.SSLError):
            pass

    def replace(self, name, sealed=None):
        """An export in the directory is the liar's from now on."""
        path = f'{self.liar.folder}/exports/{name}'
        with open(path, encoding='ascii') as file:
            value = json.loads(file.read().split('\n', 1)[1])
        value['machine'] = self.liar.machine.hex()
        value['sealed'] = sealed or value['sealed']
        self.liar.write(f'exports/{name}', f'{self.liar.machine.hex()}\n' + json.dumps(value))


def hash_of(handle, purpose, more=b''):
    """As shim/agent/seal.c; the handle is core/share/ipc_handle.h's."""
    key = hashlib.blake2b(handle[48:64], digest_size=32).digest()
    return hashlib.blake2b(purpose + b'\0' + handle[8:32] + more, digest_size=32, key=key).digest()


def proof_of(handle, take, opener, exporter):
    return hash_of(handle, b"gpushim exporter's proof", opener + exporter + take[48:56])


class Seal:
    """What is sealed of an export, by who has its handle."""

    FORM = '<QQQ16s64sII'  # size, offset, chunk_size, uuid, fabric, read_only

    def __init__(self, handle, sealed):
        self.sodium = ctypes.CDLL(ctypes.util.find_library('sodium'))
        self.key = hash_of(handle, b"gpushim export's seal")
        bytes_ = base64.b64decode(sealed)
        out = ctypes.create_string_buffer(len(bytes_) - 40)
        check(self.sodium.crypto_secretbox_open_easy(out, bytes_[24:], ctypes.c_ulonglong(len(bytes_) - 24), bytes_[:24],
                                                     self.key) == 0, 'the test reads a seal')
        self.fields = struct.unpack(self.FORM, out.raw)

    def forged(self, number, value):
        plain = struct.pack(self.FORM, *(value if i == number else field for i, field in enumerate(self.fields)))
        nonce, out = os.urandom(24), ctypes.create_string_buffer(len(plain) + 16)
        self.sodium.crypto_secretbox_easy(out, plain, ctypes.c_ulonglong(len(plain)), nonce, self.key)
        return base64.b64encode(nonce + out.raw).decode()


def published(cluster, before):
    """The name in the directory of what was shared since."""
    folder, names = f'{cluster.folder}/directory/exports', []
    await_that(lambda: names.extend(set(os.listdir(folder)) - before) or names, 'it is published')
    return names[0]


def check_exporter(cluster, machines, a, b):
    """What a machine says that puts itself in the place of another is not believed, and what it may say as one that was
    given the handle harms nobody."""
    one, two, three = machines
    liar = Exporter(cluster, 1)
    here = a.do(f'share(alloc({MIB}, 0x45))')
    got = []
    await_that(lambda: got.append(b.do(f'open_({here!r})')) or isinstance(got[-1], int), 'an honest block opens')
    block = bytes.fromhex(here)[8:32]
    # Before each answer: recalls of what others share, and answers that nobody waits for.
    liar.noise = b''.join(message(RECALL, block) + message(RECALL, os.urandom(24)) + message(TAKEN, os.urandom(48))
                          for _ in range(200))
    c, opener = Program(three), Program(two)

    def taken(proof):
        return lambda take: message(TAKEN, take[48:56] + proof(take) + struct.pack('<II', 0, 0))

    def refused(reason, error):
        return lambda take: message(REFUSED, take[48:56] + struct.pack('<II', reason, error))

    def shared():
        before = set(os.listdir(f'{cluster.folder}/directory/exports'))
        handle = c.do(f'share(alloc({MIB}, 0x46))')
        return handle, published(cluster, before)

    ways = {'gives what it did not share': taken(lambda take: bytes(32)),
            'gives the opener\'s own proof back': taken(lambda take: take[16:48]),
            'says what is not its to say': lambda take: message(KEPT, os.urandom(32)),
            'refuses for no reason': refused(0, 0),
            'refuses for an unknown reason': refused(0xffffffff, 0xffffffff),
            'refuses with the driver\'s success': refused(DRIVER, 0),
            'refuses with an error that is none': refused(DRIVER, 0x7fffffff)}
    for way, answer in ways.items():
        handle, name = shared()
        liar.answer = answer
        liar.replace(name)
        count = len(liar.takes)
        answered = opener.do(f'open_({handle!r})')
        check(isinstance(answered, str), f'a machine that {way}: nothing is opened: {answered}')
        check(len(liar.takes) > count, f'a machine that {way} was asked')
        is_served(one, a, b, f'while one {way}')
    check(two.said().count('gives memory that it did not share') == 2, 'the log says so')

    def with_seal(change):
        """What comes of an open whose seal the liar has changed, with the handle, of which it has the proof too."""
        handle, name = shared()
        raw = bytes.fromhex(handle)
        with open(f'{cluster.folder}/directory/exports/{name}', encoding='ascii') as file:
            seal = Seal(raw, json.loads(file.read().split('\n', 1)[1])['sealed'])
        liar.answer = taken(lambda take: proof_of(raw, take, liar.opener, liar.liar.machine))
        liar.replace(name, seal.forged(*change(*seal.fields)))
        return opener.do(f'open_({handle!r})')

    pointer = with_seal(lambda size, *_: (0, size))
    check(isinstance(pointer, int) and opener.do(f'read({pointer})') == '46464646',
          f'who has the handle may give what it leads to: {pointer}')
    for what, change in (('another size of its chunk', lambda size, offset, chunk, *_: (2, 2 * chunk)),
                         ('a chunk beyond all addresses', lambda *_: (2, 1 << 62)),
                         ('a chunk that is no pages', lambda size, offset, chunk, *_: (2, chunk - 1)),
                         ('a place beyond its chunk', lambda size, offset, chunk, *_: (1, chunk - size + 1)),
                         ('a size that is not the handle\'s', lambda size, *_: (0, size + 1)),
                         ('memory that there is not', lambda *_: (4, bytes(64)))):
        answered = with_seal(change)
        check(isinstance(answered, str), f'a machine that lies of {what}: nothing is opened: {answered}')
        is_served(one, a, b, f'while one lies of {what}')
    opener.do(f'close({pointer})')
    opener.end()
    await_that(lambda: liar.takes[-1] in liar.ended, f'the lease is over: {liar.takes} {liar.ended}')
    check(b.do(f'read({got[-1]})') == '45454545', 'the honest block is read on')
    check(two.broker.poll() is None and two.agent.poll() is None, 'broker and agent live')
    b.do(f'close({got[-1]})')
    c.end()


def check_silent(three, one, a, b, two):
    """A machine that never answers: who opens its memory waits for it, and others do not."""
    c, waiting = Program(three), Program(two)
    handle = c.do(f'share(alloc({MIB}, 0x43))')
    got = []
    await_that(lambda: got.append(b.do(f'open_({handle!r})')) or isinstance(got[-1], int), 'it opens while that answers')
    b.do(f'close({got[-1]})')
    other = c.do(f'share(alloc({MIB}, 0x44))')
    name = three.cluster.folder + '/directory/exports'
    await_that(lambda: len(os.listdir(name)) >= 2, 'it is published')
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
