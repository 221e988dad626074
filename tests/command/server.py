"""gpushim export --listen, for tests: started, asked over HTTP byte by byte, looked into and ended."""
import atexit
import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess

from holder import GPUSHIM, PATIENT_S, check, clean


# An address of this machine where no other test has ports: one that was free there still is.
OWN_HOST = f'127.{128 | os.getpid() >> 16 & 127}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}'


class Server:
    def __init__(self, folder, where='127.0.0.1:0', *arguments, **how):
        self.process = subprocess.Popen([GPUSHIM, 'export', '--prometheus', '--listen', where, *arguments],
                                        env=clean(folder), text=True, stdout=subprocess.PIPE, **how)
        atexit.register(self.process.kill)  # a test that fails leaves none behind
        said = re.fullmatch(r'serves http://(.*):(\d+)/metrics\n', self.process.stdout.readline())
        check(said, 'it says where it serves')
        self.host, self.port = said[1].strip('[]'), int(said[2])

    def connect(self):
        return socket.create_connection((self.host, self.port), timeout=PATIENT_S)

    def send(self, request):
        connection = self.connect()
        connection.sendall(request)
        return connection

    def ask(self, request):
        return answer(self.send(request))

    def get(self, path='/metrics', method='GET', host='127.0.0.1'):
        return self.ask(f'{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n'.encode())

    def places(self):
        """Its connections: sockets, but for the one that listens."""
        found = []
        for file in pathlib.Path(f'/proc/{self.process.pid}/fd').iterdir():
            with contextlib.suppress(FileNotFoundError):  # one that it closes just now
                found += [file] if os.readlink(file).startswith('socket:') else []
        return found[1:]

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        check(self.process.wait(timeout=PATIENT_S) == 0, f'it ends well by {how}: {self.process.returncode}')
        self.process.stdout.close()


def answer(connection):
    """(status, headers, body); (0, {}, b''): it was closed without one."""
    got = b''
    with connection:
        try:
            while part := connection.recv(65536):
                got += part
        except ConnectionResetError:
            pass
    head, _, body = got.partition(b'\r\n\r\n')
    lines = head.decode('ascii').split('\r\n')
    if not lines[0]:
        return 0, {}, b''
    check(re.fullmatch(r'HTTP/1\.1 \d{3} [\w ]+', lines[0]), f'the first line: {lines[0]!r}')
    headers = dict(line.lower().split(': ', 1) for line in lines[1:])
    return int(lines[0].split()[1]), headers, body
