"""Members of the cluster that mean harm: they are in the directory, with a certificate of theirs, and lie. The honest
machines are served meanwhile, and what these have of each other stays theirs.

usage: liars.py GPUSHIM SHIM LIBCUDA AGENT BROKER
"""
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
from caller import HELLO, LISTED, context_of, message
from machines import MIB, PATIENT_S, Program, await_that, check, skip, with_machines

KEPT, TAKE, ENDED = 2, 4, 7


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
        link.sendall(message(HELLO, self.machine + self.boot + bytes(32)))
        check(len(link.recv(4096)) > 0, 'the liar is a member')
        return link


def take(lease):
    return message(TAKE, os.urandom(48) + struct.pack('<QII', lease, 0, 0) + bytes(128))


def flood(liar, over, counts):
    """Leases of blocks that it never opened, the ends of others', takes without the handle, whose answers nobody reads;
    torn and wrong messages. Each is told off or hung up on, and it comes again."""
    torn = [message(LISTED)[:5], struct.pack('<HHI', 1, KEPT, 9) + b'x', struct.pack('<HHI', 9, LISTED, 8),
            message(HELLO, liar.machine + liar.boot + bytes(32))]
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
    check_silent(three, one, a, b, two)


if not shutil.which('openssl'):
    skip('there is no openssl, the program')
with_machines(test, 3)
