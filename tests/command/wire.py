"""Messages to a process's socket by hand, for tests of what it answers to those who know the protocol."""
import contextlib
import os
import pathlib
import re
import socket
import struct
import threading

from faults import PATIENT_S  # beside which holder and alone look

HEADER = (pathlib.Path(__file__).parents[2] / 'core/share/wire.h').read_text(encoding='utf-8')
VERSION = int(re.search(r'#define GS_WIRE_VERSION (\d+)', HEADER)[1])
NUMBER = {name: int(number) for name, number in re.findall(r'M\(GS_WIRE_(\w+), (\d+), ', HEADER)}
REFUSE, QUERY, REPORT, ORDER, DONE = (NUMBER[name] for name in ('REFUSE', 'QUERY', 'REPORT', 'ORDER', 'DONE'))
SET, SLEEP, UNNAME = 1, 2, 3  # kinds of ORDER
ABOUT_NAME, ABOUT_NEXT_NAME, ABOUT_MACHINE = 1, 2, 4  # of QUERY
OTHER_USER, OUT_OF_PLACE = 2, 8  # reasons of a REFUSE


def message(kind, body=b'', version=VERSION, request=1):
    return struct.pack('<IHHII', 0x67707368, version, kind, 16 + len(body), request) + body


def query(index=0, device=0, about=0, number=0, name=b''):
    return message(QUERY, struct.pack('<IIIIQ16s64s', index, device, about, 0, number, b'', name))


def machine(*fields):
    """What a REPORT says about machines."""
    return struct.pack('<QII3QII16s32s6Q384s', *fields).ljust(552, b'\0')


def order(kind, value=0, name=b'', verb=0):
    return message(ORDER, struct.pack('<IIIIQ16s256s64s', kind, verb, 0, 0, value, b'', name, b''))


def done(*figures, outcome=0):
    return message(DONE, struct.pack('<II8Q320x', 0, outcome, *figures, *[0] * (8 - len(figures))))


def brokers(folder):
    """The names of their sockets; one that does not listen yet has another (core/share/directory.c)."""
    return [name for name in os.listdir(folder) if name.startswith('broker') and not name.endswith('.new')]


def sockets(folder):
    return [os.path.join(folder, name) for name in os.listdir(folder) if len(name) == 32]


def say(path, *messages):
    """What each is answered, as (type, body); less, where it hangs up."""
    answers = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(PATIENT_S)
        connection.connect(path)
        for text in messages:
            try:
                connection.send(text)
                answer = connection.recv(4096)
            except ConnectionResetError:  # it has hung up before it read all; what it said lies there
                answer = connection.recv(4096)
            except BrokenPipeError:
                break
            if not answer:
                break
            answers.append((struct.unpack_from('<IHH', answer)[2], answer[16:]))
    return answers


def is_refused(answers, reason):
    return len(answers) == 1 and answers[0][0] == REFUSE and struct.unpack_from('<I', answers[0][1])[0] == reason


def listen(path):
    """A socket there, of which nobody hears anything."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    return listener


class Listener:
    """A socket of this test's own at `path`, where each message is answered with what `answer` makes of its type and
    its bytes; b'': with nothing, None: it is hung up on."""

    def __init__(self, path, answer):
        self.path, self.answer, self.socket = path, answer, listen(path)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):  # it is over
            while True:
                threading.Thread(target=self.talk, args=(self.socket.accept()[0],), daemon=True).start()

    def talk(self, connection):
        with connection, contextlib.suppress(OSError):
            while text := connection.recv(4096):
                answer = self.answer(struct.unpack_from('<IHH', text)[2], text)
                if answer is None:
                    break
                if answer:
                    connection.send(answer)

    def end(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        os.unlink(self.path)


class Between:
    """Sockets of this test's own in the folder, over which a process is asked, whose socket is at `path`: what is said
    is passed on, but `instead` (by type) is answered in place of the process, or made of its answer where that is a
    function; None: it is hung up on."""

    def __init__(self, folder, path, instead=None, count=1):
        self.path, self.instead = path, instead or {}
        self.names = [os.path.join(folder, f'{at:032x}') for at in range(0xbe0000, 0xbe0000 + count)]

    def __enter__(self):
        self.listeners = [listen(name) for name in self.names]
        for listener in self.listeners:
            threading.Thread(target=self.serve, args=(listener,), daemon=True).start()
        return self

    def __exit__(self, *_):
        for name, listener in zip(self.names, self.listeners):
            listener.shutdown(socket.SHUT_RDWR)
            os.unlink(name)

    def serve(self, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # it is over
            with connection, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as process:
                process.connect(self.path)
                while text := connection.recv(4096):
                    answer = self.instead.get(struct.unpack_from('<IHH', text)[2], lambda answer: answer)
                    if answer is None:
                        break
                    if callable(answer):
                        process.send(text)
                        answer = answer(process.recv(4096))
                    connection.send(answer)
