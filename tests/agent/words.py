"""What etcd says when it refuses, as its versions word it: 3.4 in "error", 3.5 and later in "message" alone; and what
one in its place says to have it in the log. And what an agent says of its options: what is wrong with them, and who
else may read its password.

usage: words.py AGENT
"""
import contextlib
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), os.pardir))
from faults import await_that, check, end_with_faults

AGENT = os.path.abspath(sys.argv[1])
FULL = 'etcdserver: mvcc: database space exceeded'
DENIED = 'etcdserver: permission denied'
EXPIRED = 'etcdserver: invalid auth token'
TOKEN = 'x' * 900  # as long as signed ones are
RAW = '\x1b]0;title\x07\x1b[2J\u202e\nfake line: all is well'


def in_34(code, text):
    return {'error': text, 'message': text, 'code': code}


def in_35(code, text):
    return {'code': code, 'message': text}


class Etcd:
    """Answers each path as `answers` says: (status, JSON), or a function of the headers that gives it."""

    def __init__(self, answers):
        self.asked, self.said = [], {}  # said: the last of each path
        good = {'header': {'revision': '1'}, 'ID': '7', 'TTL': '15', 'result': {'TTL': '15'}}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                path = self.path.removeprefix('/v3/')
                outer.said[path] = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
                outer.asked.append(path)
                answer = answers.get(path, (200, good))
                status, body = answer(self.headers) if callable(answer) else answer
                text = json.dumps(body).encode()
                with contextlib.suppress(ConnectionError):
                    self.send_response(status)
                    self.send_header('Content-Length', str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.place = f'http://127.0.0.1:{self.server.server_port}'
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@contextlib.contextmanager
def agent(place, *options):
    """What it has said so far, by a call."""
    with tempfile.TemporaryDirectory(prefix='gpushim-words-', ignore_cleanup_errors=True) as folder:
        os.mkdir(f'{folder}/share', 0o700)
        with open(f'{folder}/log', 'wb') as log:
            process = subprocess.Popen([AGENT, '--directory', place, '--listen', '127.0.0.1', '--machine-id',
                                        f'{1:032x}',
                                        '--boot-id', f'{2:032x}', *options], stderr=log,
                                       env={'GPUSHIM_SHARE_DIR': f'{folder}/share', 'GPUSHIM_CONFIG': '',
                                            'PATH': '/usr/bin'})

        def said():
            with open(f'{folder}/log', 'rb') as file:
                return file.read().decode('utf-8')

        try:
            yield said
        finally:
            process.kill()
            process.wait()


def says(answers, word, what, *options):
    with agent(Etcd(answers).place, *options) as said:
        await_that(lambda: word in said(), f'{what}: {said()}')
        return said()


def refusals():
    for version, word in (('3.4', in_34), ('3.5', in_35)):
        says({'lease/grant': (403, word(7, DENIED))}, f'lets this agent not do that ({DENIED})', f'{version}, denied')
        says({'kv/txn': (429, word(8, FULL))}, f'has no room ({FULL})', f'{version}, full')


def token_that_ends(folder):
    """Who is told that its token is none signs in again, whatever the version; a token may be long."""
    password = secret(folder, 'right', 'password', 0o600)
    for version, word in (('3.4', in_34), ('3.5', in_35)):
        tokens = iter(['first', TOKEN])
        etcd = Etcd({'auth/authenticate': lambda _: (200, {'token': next(tokens, TOKEN)}),
                     'lease/grant': lambda headers: (200, {'ID': '7', 'TTL': '15'}) if headers['Authorization'] == TOKEN
                     else (400, word(16, EXPIRED))})
        with agent(etcd.place, '--etcd-user', 'u', '--etcd-password-file', password) as said:
            await_that(lambda: 'the directory answers' in said(), f'{version}: it signs in anew: {said()}')
        check(etcd.asked.count('auth/authenticate') >= 2, f'{version}: it signed in twice: {etcd.asked}')


def no_answers(folder):
    """What is of no use is told as such, whatever stands in etcd's place; and one without a token is no token."""
    for answer in ({}, 'a page'):
        with agent(Etcd({'lease/grant': (200, answer)}).place) as said:
            await_that(lambda: 'until the directory is well' in said() or 'the directory answers' in said(),
                       f'{answer}: {said()}')
            check('does not answer' in said(), f'{answer}: {said()}')
    late = (200, {'ID': '7', 'TTL': '3'})
    with agent(Etcd({'lease/grant': lambda _: time.sleep(3.2) or late}).place, '--lease', '3') as said:
        await_that(lambda: 'the directory' in said(), f'a lease that may be over: {said()}')
        check('until the directory is well' in said(), f'a lease that may be over: {said()}')
    password, tokens = secret(folder, 'right', 'password', 0o600), iter([{}])
    etcd = Etcd({'auth/authenticate': lambda _: (200, next(tokens, {'token': TOKEN})),
                 'lease/grant': lambda headers: (200, {'ID': '7', 'TTL': '15'}) if headers['Authorization'] == TOKEN
                 else (400, in_35(3, 'etcdserver: user name is empty'))})
    with agent(etcd.place, '--etcd-user', 'u', '--etcd-password-file', password) as said:
        await_that(lambda: 'the directory answers' in said(), f'it signs in until it has a token: {said()}')


def raw_text():
    for answer in (in_34(2, RAW), in_35(2, RAW), {'error': {'grpc_code': 2, 'message': RAW}}):
        with agent(Etcd({'lease/grant': (500, answer)}).place) as said:
            await_that(lambda: 'fake line' in said(), f'it is said: {said()}')
            check('\x1b' not in said() and '\nfake' not in said() and '\u202e' not in said(),
                  f'as it may stand in a line: {said()!r}')


def secret(folder, text, name, mode):
    path = f'{folder}/{name}'
    with open(path, 'w', encoding='ascii') as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def passwords(folder):
    etcd = Etcd({'auth/authenticate': (200, {'token': 't'})})
    for mode, word in ((0o666, 'change'), (0o640, 'read'), (0o600, None)):
        path = secret(folder, 'x' * 20, f'password-{mode:o}', mode)
        with agent(etcd.place, '--etcd-user', 'u', '--etcd-password-file', path, '--name', 'n' * 31) as said:
            await_that(lambda: 'the directory answers' in said(), f'it runs: {said()}')
            check(word is None or f'others may {word} the password in {path} (mode 0{mode:o})' in said(),
                  f'{mode:o}: {said()}')
            check(word or 'others may' not in said(), f'nothing to say: {said()}')
            check('goes over the network as it is' in said(), f'a password over http: {said()}')


def wrong_options():
    """One line each, and it does not start."""
    for options, word in ((('--name', 'n' * 32), '--name wants up to 31'), (('--prefix', ''), '--prefix wants 1 to 60'),
                          (('--prefix', 'p' * 61), '--prefix wants 1 to 60'),
                          (('--listen', '0.0.0.0'), 'give --address'),
                          (('--listen', '[::]:7610'), 'give --address'),
                          *((('--lease', lease), '--lease wants a number')
                            for lease in ('2', '3601', '15 s', '4294967311', '')),
                          *((('--listen', where), '--listen wants') for where in
                            ('', ':7610', '127.0.0.1:', '127.0.0.1:65536', '127.0.0.1:7x', '[::1', '[]', '[::1]:'))):
        with tempfile.TemporaryDirectory(prefix='gpushim-words-', ignore_cleanup_errors=True) as folder:
            run = subprocess.run([AGENT, '--directory', f'folder:{folder}', '--listen', '127.0.0.1', *options],
                                 text=True,
                                 env={'GPUSHIM_SHARE_DIR': folder, 'GPUSHIM_CONFIG': ''}, capture_output=True,
                                 timeout=60,
                                 check=False)
        check(run.returncode == 2 and run.stderr.startswith(f'gpushim-agent: {word}') and run.stderr.count('\n') == 1,
              f'{options}: {run}')


def leases():
    """So many seconds does etcd keep what is not renewed."""
    for options, seconds in ((), 15), (('--lease', '7'), 7):
        etcd = Etcd({})
        with agent(etcd.place, *options):
            await_that(lambda: 'lease/grant' in etcd.said, 'it asks for a lease')
        check(etcd.said['lease/grant'] == {'TTL': seconds}, f'{options}: {etcd.said}')


def addresses():
    """With a port or without, and in brackets."""
    for listen in ('127.0.0.1', '127.0.0.1:0', '[127.0.0.1]', '[127.0.0.1]:0'):
        with agent(Etcd({}).place, '--listen', listen) as said:
            await_that(lambda: ', at 127.0.0.1 port ' in said(), f'{listen}: {said()}')


with tempfile.TemporaryDirectory(prefix='gpushim-words-', ignore_cleanup_errors=True) as scratch:
    refusals()
    raw_text()
    token_that_ends(scratch)
    no_answers(scratch)
    passwords(scratch)
wrong_options()
leases()
addresses()
end_with_faults()
