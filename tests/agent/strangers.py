"""A caller that is not of the cluster: let in as nobody, whatever it says; and the agent serves on.

usage: strangers.py GPUSHIM SHIM LIBCUDA AGENT BROKER
"""
import os
import re
import shutil
import socket
import ssl
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(__file__))
from caller import HELLO, LISTED, context_of, message
from liar import Liar
from machines import MIB, PATIENT_S, check, skip, with_machines

def call(context, port, *said):
    """What comes back until the agent hangs up."""
    heard = b''
    with socket.create_connection(('127.0.0.1', port), timeout=PATIENT_S) as plain:
        with context.wrap_socket(plain) as link:
            try:
                for text in said:
                    link.sendall(text)
                while part := link.recv(4096):
                    heard += part
            except (ConnectionError, ssl.SSLError):
                pass
    return heard


class Crowd:
    """Callers that say nothing, more than an agent has room for, and new ones for all that are hung up on."""

    def __init__(self, port, count=200):
        self.port, self.over = port, False
        self.callers = [self.call() for _ in range(count)]
        self.thread = threading.Thread(target=self.keep)
        self.thread.start()

    def call(self):
        caller = socket.create_connection(('127.0.0.1', self.port), timeout=PATIENT_S)
        caller.setblocking(False)
        return caller

    def keep(self):
        while not self.over:
            for i, caller in enumerate(self.callers):
                try:
                    gone = caller.recv(1) == b''
                except BlockingIOError:
                    gone = False
                except ConnectionError:
                    gone = True
                if gone:
                    caller.close()
                    self.callers[i] = self.call()
            time.sleep(0.01)  # how fast they come is a part of the attack

    def end(self):
        self.over = True
        self.thread.join()
        for caller in self.callers:
            caller.close()


def who_came_in_between_is_heard(cluster, port):
    """With all places taken by those who say nothing: the oldest of them go for those who come."""
    member = Liar(cluster, port)
    context = member.context
    silent = [socket.create_connection(('127.0.0.1', port), timeout=PATIENT_S) for _ in range(100)]
    with socket.create_connection(('127.0.0.1', port), timeout=PATIENT_S) as plain:
        with context.wrap_socket(plain) as link:
            silent += [socket.create_connection(('127.0.0.1', port), timeout=PATIENT_S) for _ in range(20)]
            # The agent has taken the last one in when it has answered it.
            context.wrap_socket(silent.pop()).close()
            link.sendall(message(HELLO, member.machine + member.boot + bytes(16)))
            check(link.recv(4096), 'who is of the cluster is answered')
    for caller in silent:
        caller.close()


def test(cluster, machines, a, b):
    one, two = machines
    port = int(re.search(r'port (\d+)', one.said())[1])
    known = bytes.fromhex(re.search(r'\(([0-9a-f]{32})\)', two.said())[1])
    context = context_of(cluster)
    boot, file = bytes.fromhex(two.boot), bytes(16)
    heard = call(context, port, message(HELLO, known + boot + file), message(LISTED))
    check(not heard, f'a caller that says it is another machine hears nothing: {heard!r}')
    one.await_word('its certificate is not the one that the directory has')
    of_no_machine = message(HELLO, bytes(range(16)) + boot + file)
    check(not call(context, port, of_no_machine), 'nor one of no machine')
    one.await_word('the directory does not know its machine')
    check(not call(context, port, message(LISTED)), 'nor one that does not say who it is')
    one.await_word('it did not say who it is')
    check('is here' not in one.said(), 'none of them was taken for a machine')
    handle = a.do(f'share(alloc({MIB}, 0x21))')
    b.opens(handle, 'it serves on')
    who_came_in_between_is_heard(cluster, port)
    two.kill('agent')
    crowd = Crowd(port)
    try:
        two.start_agent()
        handle = a.do(f'share(alloc({MIB}, 0x22))')
        b.opens(handle, 'it lets in who is of the cluster meanwhile')
    finally:
        crowd.end()


if not shutil.which('openssl'):
    skip('there is no openssl, the program')
with_machines(test, 2)
