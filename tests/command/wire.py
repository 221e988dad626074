"""Messages to a process's socket by hand, for tests of what it answers to those who know the protocol."""
import os
import socket
import struct

from holder import PATIENT_S

VERSION = 17
REFUSE, QUERY, SET, SET_TO, COLLECT, COLLECTED, FIND, FOUND = 4, 9, 21, 22, 23, 24, 27, 28
OTHER_USER, OUT_OF_PLACE = 2, 8  # reasons of a REFUSE


def message(kind, body=b'', version=VERSION):
    return struct.pack('<IHHII', 0x67707368, version, kind, 16 + len(body), 1) + body


def to_set(name, value):
    return message(SET, struct.pack('<Q40s', value, name))


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
