"""Messages to a process's socket by hand, for tests of what it answers to those who know the protocol."""
import os
import pathlib
import re
import socket
import struct
import threading

from holder import PATIENT_S

HEADER = (pathlib.Path(__file__).parents[2] / 'core/share/wire.h').read_text(encoding='utf-8')
VERSION = int(re.search(r'#define GS_WIRE_VERSION (\d+)', HEADER)[1])
NUMBER = {name: int(number) for name, number in re.findall(r'M\(GS_WIRE_(\w+), (\d+), ', HEADER)}
REFUSE, QUERY, REPORT, ORDER, DONE = (NUMBER[name] for name in ('REFUSE', 'QUERY', 'REPORT', 'ORDER', 'DONE'))
SET, SLEEP, UNNAME = 1, 2, 3  # kinds of ORDER
ABOUT_BLOCK, ABOUT_ADDRESS, ABOUT_NAME, ABOUT_NEXT_NAME, ABOUT_MACHINE = 1, 2, 3, 4, 6  # of QUERY
OTHER_USER, OUT_OF_PLACE = 2, 8  # reasons of a REFUSE


def message(kind, body=b'', version=VERSION):
    return struct.pack('<IHHII', 0x67707368, version, kind, 16 + len(body), 1) + body


def query(index=0, device=0, about=0, number=0, instance=b'', name=b''):
    return message(QUERY, struct.pack('<IIIIQ16s64s', index, device, about, 0, number, instance, name))


def machine(*fields):
    """What a REPORT says about machines."""
    return struct.pack('<QII3QII16s32s6Q384s', *fields).ljust(552, b'\0')


def order(kind, value=0, name=b'', verb=0):
    return message(ORDER, struct.pack('<IIIIQ16s256s64s', kind, verb, 0, 0, value, b'', name, b''))


def done(*figures, outcome=0):
    return message(DONE, struct.pack('<II8Q320x', 0, outcome, *figures, *[0] * (8 - len(figures))))


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


class Between:
    """Sockets of this test's own in the folder, over which a process is asked, whose socket is at `path`: what is said is
    passed on, but `instead` (by type) is answered in place of the process, or made of its answer where that is a
    function; None: it is hung up on."""

    def __init__(self, folder, path, instead=None, count=1):
        self.path, self.instead = path, instead or {}
        self.names = [os.path.join(folder, f'{at:032x}') for at in range(0xbe0000, 0xbe0000 + count)]

    def __enter__(self):
        self.listeners = []
        for name in self.names:
            self.listeners.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            self.listeners[-1].bind(name)
            self.listeners[-1].listen()
            threading.Thread(target=self.serve, args=(self.listeners[-1],), daemon=True).start()
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
