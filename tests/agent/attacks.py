"""Attacks on an agent, by strangers and by members, with honest opens beside each. Each cell of the table in
shim/agent/README.md that is about messages and connections has its attack here. What the agent may come to (memory,
log, the file of leases) is printed with what it came to; so are the times, which decide nothing.

usage: attacks.py GPUSHIM SHIM LIBCUDA AGENT BROKER CROWD [NAME...]
"""
import contextlib
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(__file__))
from caller import HELLO, LISTED, context_of, message
from liar import ENDED, KEPT, RECALL, REFUSED, TAKE, TAKEN, Exporter, Liar, exports, hash_of, proof_of, published, take
from machines import MIB, PATIENT_S, await_that, check, faults, skip, with_machines

CROWD, NAMES = sys.argv[6], sys.argv[7:]
BLOCKS = 4096           # of the broker; so many leases are there room for:
LEASES = 4 * BLOCKS
MEMORY_KIB = 24 << 10   # that an agent may grow by under one attack
LOG_KIB = 64
ELSEWHERE = '127.0.0.2'  # where strangers call from


def memory_kib(machine):
    with open(f'/proc/{machine.agent.pid}/status', encoding='ascii') as file:
        return int(re.search(r'VmRSS:\s+(\d+)', file.read())[1])


def file_bytes(machine):
    with contextlib.suppress(FileNotFoundError):
        return os.path.getsize(f'{machine.share}/agent.leases')
    return 0


class Attack:
    """So many threads do something again and again; each time counts. What it throws as it is hung up on is nothing."""

    def __init__(self, act, threads=1):
        self.count, self.over = 0, threading.Event()
        self.threads = [threading.Thread(target=self.go_on, args=(act,)) for _ in range(threads)]

    def go_on(self, act):
        while not self.over.is_set():
            with contextlib.suppress(OSError, ssl.SSLError):
                act(self)
            self.count += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()


class Watch:
    """What an agent takes meanwhile, at most."""

    def __init__(self, machine):
        self.machine = machine
        self.memory, self.log, self.file = memory_kib(machine), os.path.getsize(machine.log.name), file_bytes(machine)
        self.most, self.over = self.memory, threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def look(self):
        while not self.over.wait(0.05):
            with contextlib.suppress(OSError):
                self.most = max(self.most, memory_kib(self.machine))

    def end(self, what, times, count):
        self.over.set()
        self.thread.join()
        log = os.path.getsize(self.machine.log.name) - self.log
        file = file_bytes(self.machine) - self.file
        print(f'{what}: done {count} times; opens took {", ".join(f"{took:.3f}" for took in times)} s; memory grew by '
              f'{self.most - self.memory} KiB of {MEMORY_KIB}, the log by {log >> 10} KiB of {LOG_KIB}, '
              f'the file by {file >> 10} KiB')
        check(self.most - self.memory <= MEMORY_KIB, f'{what}: memory grew by {self.most - self.memory} KiB')
        check(log <= LOG_KIB << 10, f'{what}: the log grew by {log} bytes')
        check(file <= 256 * LEASES, f'{what}: the file of leases grew by {file} bytes')


def opens(a, b, what, count=3):
    """Each is served at the first try; how long each took."""
    times = []
    for _ in range(count):
        pointer = a.do(f'alloc({MIB}, 0x41)')
        handle = a.do(f'share({pointer})')
        opened = b.do(f'open_({handle!r})')
        times.append(b.took_s)
        check(isinstance(opened, int), f'{what}: an honest open is {opened}')
        if isinstance(opened, int):
            check(b.do(f'read({opened})') == '41414141', f'{what}: it is read')
            b.do(f'close({opened})')
        a.do(f'free({pointer})')
    return times


def beside(what, attacked, a, b, act, anew=None, enough=lambda attack: attack.count >= 3, threads=1):
    """Opens beside an attack, which has begun; `anew` makes the importer's link a new one first."""
    watch = Watch(attacked)
    with Attack(act, threads) as attack:
        await_that(lambda: enough(attack), f'{what}: it goes on')
        if anew:
            anew()
        times = opens(a, b, what)
    watch.end(what, times, attack.count)


# ---- By strangers -------------------------------------------------------------------------------

def call(port, since=ELSEWHERE):
    plain = socket.socket()
    plain.settimeout(PATIENT_S)
    plain.bind((since, 0))
    plain.connect(('127.0.0.1', port))
    return plain


def strangers(cluster, machines, a, b):
    one, two = machines[:2]
    port = int(re.findall(r'port (\d+)', one.said())[-1])
    context = context_of(cluster)

    def anew():
        before = {word: two.said().count(word) for word in ('joined the broker', 'the directory answers')}
        two.kill('agent')
        two.start_agent()
        for word, count in before.items():
            two.await_word(word, count + 1)

    def call_and_call(attack):
        with subprocess.Popen([CROWD, ELSEWHERE, '127.0.0.1', str(port)], stdout=subprocess.PIPE) as crowd:
            while not attack.over.is_set() and crowd.stdout.readline():
                attack.count += 1000
            crowd.kill()

    beside('strangers that call and say nothing', one, a, b, call_and_call, anew, lambda attack: attack.count > 10000,
           threads=2)

    hello = b'\x16\x03\x01\x40\x00' + b'\x01\x03\xff\xff' + bytes(16380)  # of 256 KiB, in records of 16

    def say_much(attack):
        with call(port) as plain:
            while not attack.over.is_set():
                plain.sendall(hello)

    beside('strangers whose first word does not end', one, a, b, say_much, anew, threads=8)

    def trickle(attack):
        with call(port) as plain:
            for byte in hello:
                if attack.over.is_set():
                    return
                plain.sendall(bytes([byte]))
                attack.count += 1

    beside('strangers that say it byte by byte', one, a, b, trickle, anew, lambda attack: attack.count > 1000,
           threads=16)

    def be_nobody(_):
        with context.wrap_socket(call(port)) as link:
            link.sendall(message(HELLO, os.urandom(16) + bytes(32)))
            while link.recv(4096):
                pass

    beside('strangers that say they are of a machine that there is not', one, a, b, be_nobody, anew,
           lambda attack: attack.count > 30 and 'lines of this kind were left out' in one.said(), threads=8)


# ---- By members ---------------------------------------------------------------------------------

def says(liar, text):
    """An act: a member that says this for as long as it is listened to. The answers it does not read."""
    def act(attack):
        with liar.call() as link:
            link.sendall(message(LISTED))
            while not attack.over.is_set():
                link.sendall(text)
                attack.count += 1
    return act


def takes_of(handle, liar, exporter, leases):
    """Of one handle, with the proof."""
    name = hash_of(handle, b"gpushim export's name")[:16]

    def one(lease):
        number = struct.pack('<Q', lease)
        return message(TAKE,
                       name + hash_of(handle, b"gpushim importer's proof", liar.machine + exporter + number) + number
                       + struct.pack('<II', os.getuid(), os.getgid()))
    return b''.join(one(lease) for lease in leases)


def answers(link, takes):
    """How many of each kind, when all takes are answered."""
    got, kept = {}, b''
    with contextlib.suppress(OSError):
        while got.get(TAKEN, 0) + got.get(REFUSED, 0) < takes and (part := link.recv(65536)):
            kept += part
            while len(kept) >= 8 and len(kept) >= struct.unpack_from('<I', kept, 4)[0]:
                _, kind, size = struct.unpack_from('<HHI', kept)
                got[kind] = got.get(kind, 0) + 1
                kept = kept[size:]
    return got


def members(cluster, machines, a, b):
    one, two = machines[:2]
    liar = Liar(cluster, int(re.findall(r'port (\d+)', one.said())[-1]))
    for what, text in {'its list again': message(LISTED) * 4096,
                       'what it has, without end': b''.join(message(KEPT, os.urandom(8)) for _ in range(1000)),
                       'ends of what it has not': message(ENDED, struct.pack('<Q', 12345)) * 4096,
                       'takes without the handle': b''.join(take(i) for i in range(1, 500))}.items():
        beside(f'a member that says {what}', one, a, b, says(liar, text))
    check('its list is not what it says first, and once' in one.said(), f'a list is said once: {one.said()}')

    def never_ends(attack):
        with liar.call() as link:
            text = b''.join(message(KEPT, os.urandom(8)) for _ in range(1000))
            while not attack.over.is_set():
                link.sendall(text)
                attack.count += 1

    beside('a member whose list never ends', one, a, b, never_ends)

    def comes_again(_):
        with liar.call() as link:
            link.sendall(message(LISTED))

    beside('a member that calls again and again', one, a, b, comes_again, enough=lambda attack: attack.count > 30)


def one_handle(cluster, machines, a, b):
    """Who was given one handle has some leases of it, and no more; others open on."""
    one = machines[0]
    this = bytes.fromhex(re.search(r'\(([0-9a-f]{32})\)', one.said())[1])
    liar = Liar(cluster, int(re.findall(r'port (\d+)', one.said())[-1]))
    handle = a.do(f'share(alloc({MIB}, 0x41))')
    opened = b.do(f'open_({handle!r})')  # so it is published
    watch = Watch(one)
    with liar.call() as link:
        link.sendall(message(LISTED) + takes_of(bytes.fromhex(handle), liar, this, range(1, 2001)))
        got = answers(link, 2000)
        check(got.get(TAKEN, 0) + got.get(REFUSED, 0) == 2000, f'each take is answered: {got}')
        print(f'leases of one handle: {got.get(TAKEN)} of 2000')
        check(0 < got.get(TAKEN, 0) <= 16, f'one handle gives so many leases: {got}')
        times = opens(a, b, 'while one has all that it may of one handle')
    watch.end('a member that takes a handle again and again', times, 2000)
    b.do(f'close({opened})')


# ---- By who shares ------------------------------------------------------------------------------

def recalls_without_end(cluster, machines, a, b):
    two = machines[1]
    liar = Exporter(cluster, 1)
    before = exports(cluster)
    handle = a.do(f'share(alloc({MIB}, 0x47))')
    raw = bytes.fromhex(handle)
    recall = message(RECALL, raw[8:32]) * 4096
    over, said = threading.Event(), [0]

    def answer(body):
        return message(TAKEN,
                       body[48:56] + proof_of(raw, body, liar.importer, liar.liar.machine) + struct.pack('<II', 0, 0))

    liar.answer = answer

    def flood(link):
        while not over.is_set():
            link.sendall(recall)
            said[0] += 4096

    liar.then = flood
    liar.replace(published(cluster, before))
    opened = b.do(f'open_({handle!r})')
    check(isinstance(opened, int), f'who has the handle gives what it leads to: {opened}')
    if faults:
        return
    watch = Watch(two)
    try:
        await_that(lambda: said[0] > 100000, 'it recalls without end')
        times = opens(a, b, 'beside one that recalls without end')
    finally:
        over.set()
    watch.end('who shares, and recalls a block without end', times, said[0])
    check(two.said().count('the broker of this machine:') == 0, 'the agent has its broker still')
    b.do(f'close({opened})')


def test(cluster, machines, a, b):
    for attack in (strangers, members, one_handle, recalls_without_end):
        if not NAMES or attack.__name__ in NAMES:
            attack(cluster, machines, a, b)
        if faults:
            return


if not shutil.which('openssl'):
    skip('there is no openssl, the program')
with_machines(test, 2, GPUSHIM_DEBUG_BROKER_BLOCKS=str(BLOCKS))
