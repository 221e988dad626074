"""A member of a cluster that a test plays: it is in the directory, with a certificate of its own, and says what the
test has it say. For tests of machines that mean harm.
"""
import ctypes
import ctypes.util
import hashlib
import os
import socket
import ssl
import struct
import threading

from caller import HELLO, VERSION, context_of, message, server_of
from machines import PATIENT_S, await_that, check

KEPT, TAKE, TAKEN, REFUSED, ENDED, RECALL = 2, 4, 5, 6, 7, 8


class Liar:
    """One more machine in the directory, that this test plays."""

    def __init__(self, cluster, port):
        self.port, self.folder = port, f'{cluster.folder}/directory/gpushim'
        self.machine, self.boot = os.urandom(16), os.urandom(16)
        self.context = context_of(cluster)
        with open(f'{cluster.folder}/cert.pem', encoding='ascii') as file:
            self.print = hashlib.sha256(ssl.PEM_cert_to_DER_cert(file.read())).digest()
        self.listen_at(1)

    def listen_at(self, port):
        self.write(f'agents.{self.machine.hex()}', struct.pack('<II32s64s32s16s', VERSION, port, b'liar', b'127.0.0.1',
                                                               self.print, self.boot))

    def write(self, name, value):
        with open(f'{self.folder}/.new', 'wb') as file:
            file.write(self.machine.hex().encode() + b'\n' + value)
        os.rename(f'{self.folder}/.new', f'{self.folder}/{name}')

    def call(self):
        """A link on which it has said who it is, and was believed."""
        link = self.context.wrap_socket(socket.create_connection(('127.0.0.1', self.port), timeout=PATIENT_S))
        link.sendall(message(HELLO, self.machine + self.boot + bytes(16)))
        check(len(link.recv(4096)) > 0, 'the liar is a member')
        return link


def take(lease):
    return message(TAKE, os.urandom(48) + struct.pack('<QII', lease, 0, 0))


class Exporter:
    """The liar as who shares: it puts itself into the directory in the place of who does, and answers as it is told."""

    def __init__(self, cluster, port):
        self.liar = Liar(cluster, port)
        self.listener = socket.create_server(('127.0.0.1', 0))
        self.context = server_of(cluster)
        self.answer, self.noise = None, b''  # of a TAKE's body; b'': none
        self.then = lambda link: None  # when that was said
        self.takes, self.ended = [], []  # the numbers of leases
        self.importer = b''                    # who called last
        self.liar.listen_at(self.listener.getsockname()[1])
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
                        self.importer = body[:16]
                        link.sendall(message(HELLO, self.liar.machine + self.liar.boot + bytes(16)))
                    elif kind == ENDED:
                        self.ended.append(struct.unpack('<Q', body)[0])
                    elif kind == TAKE:
                        self.takes.append(struct.unpack_from('<Q', body, 48)[0])
                        link.sendall(self.noise + self.answer(body))
                        self.then(link)
        except (ConnectionError, ssl.SSLError):
            pass

    def replace(self, name, sealed=None):
        """An export in the directory is the liar's from now on."""
        self.liar.write(name, self.liar.machine + (sealed or sealed_of(self.liar.folder, name)))


def sealed_of(folder, name):
    """What the directory has of an export, behind its owner and its machine."""
    with open(f'{folder}/{name}', 'rb') as file:
        return file.read().split(b'\n', 1)[1][16:]


def hash_of(handle, purpose, more=b''):
    """As shim/agent/seal.c; the handle is core/share/ipc_handle.h's."""
    key = hashlib.blake2b(handle[48:64], digest_size=32).digest()
    return hashlib.blake2b(purpose + b'\0' + handle[8:32] + more, digest_size=32, key=key).digest()


def proof_of(handle, take, importer, exporter):
    return hash_of(handle, b"gpushim exporter's proof", importer + exporter + take[48:56])


class Seal:
    """What is sealed of an export, by who has its handle."""

    FORM = '<QQQ16s64sII'  # size, offset, chunk_size, uuid, fabric, read_only

    def __init__(self, handle, sealed):
        self.sodium = ctypes.CDLL(ctypes.util.find_library('sodium'))
        self.key = hash_of(handle, b"gpushim export's seal")
        out = ctypes.create_string_buffer(len(sealed) - 40)
        check(self.sodium.crypto_secretbox_open_easy(out, sealed[24:], ctypes.c_ulonglong(len(sealed) - 24),
                                                     sealed[:24],
                                                     self.key) == 0, 'the test reads a seal')
        self.fields = struct.unpack(self.FORM, out.raw)

    def forged(self, number, value):
        plain = struct.pack(self.FORM, *(value if i == number else field for i, field in enumerate(self.fields)))
        nonce, out = os.urandom(24), ctypes.create_string_buffer(len(plain) + 16)
        self.sodium.crypto_secretbox_easy(out, plain, ctypes.c_ulonglong(len(plain)), nonce, self.key)
        return nonce + out.raw


def exports(cluster):
    """The names in the directory of what is shared."""
    return {name for name in os.listdir(f'{cluster.folder}/directory/gpushim') if name.startswith('exports.')}


def published(cluster, before):
    """That of what was shared since."""
    names = []
    await_that(lambda: names.extend(exports(cluster) - before) or names, 'it is published')
    return names[0]
