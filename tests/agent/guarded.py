"""An etcd with TLS and users: who has all of it shares; who lacks one is told which.

usage: guarded.py GPUSHIM SHIM LIBCUDA AGENT BROKER
"""
import base64
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(__file__))
from machines import MIB, Cluster, Program, await_that, check, end_with_faults, skip

USER, PASSWORD = 'gpushim', 'a word of its own'


def make_certificate(folder, name):
    files = f'{folder}/{name}.pem', f'{folder}/{name}.key'
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes',
                    '-subj', f'/CN={name}', '-addext', 'subjectAltName=IP:127.0.0.1', '-out', files[0], '-keyout',
                    files[1]], check=True, capture_output=True)
    return files


def ask(cluster, context, path, **body):
    """The first member that answers; None: none does yet."""
    for endpoint in cluster.directory.split(','):
        request = urllib.request.Request(f'{endpoint}/v3/{path}', json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            print(path, error.read().decode(), flush=True)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
    return None


def guard(cluster, certificate):
    """One role for the agents, which may read and write what is below their prefix, and nothing else."""
    context = ssl.create_default_context(cafile=certificate)
    start, end = (base64.b64encode(key).decode() for key in (b'gpushim/', b'gpushim0'))
    await_that(lambda: ask(cluster, context, 'maintenance/status') is not None, 'etcd answers')
    for path, body in (
            ('auth/role/add', {'name': 'root'}), ('auth/user/add', {'name': 'root', 'password': 'root'}),
            ('auth/user/grant', {'user': 'root', 'role': 'root'}), ('auth/role/add', {'name': USER}),
            ('auth/role/grant', {'name': USER, 'perm': {'permType': 'READWRITE', 'key': start, 'range_end': end}}),
            ('auth/user/add', {'name': USER, 'password': PASSWORD}),
            ('auth/user/grant', {'user': USER, 'role': USER}), ('auth/enable', {})):
        check(ask(cluster, context, path, **body) is not None, f'etcd takes {path}')
    check(ask(cluster, context, 'kv/range', key=start) is None, 'who is no user reads nothing')


def written(folder, name, text):
    path = f'{folder}/{name}'
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), 'w', encoding='utf-8') as file:
        file.write(text)
    return path


def check_refused(machine, word, *options):
    """Of several options of one name the last one counts."""
    before = machine.said().count(word)
    machine.start_agent(*options)
    machine.await_word(word, before + 1)
    machine.kill('agent')


def main():
    if not shutil.which('etcd'):
        skip('there is no etcd (Debian: etcd-server)')
    if not shutil.which('openssl'):
        skip('there is no openssl, the program')
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        certificate, another = make_certificate(folder, 'etcd'), make_certificate(folder, 'another')
        password = written(folder, 'password', PASSWORD + '\n')
        cluster = Cluster(2, etcd=1, certificate=certificate)
        try:
            guard(cluster, certificate[0])
            cluster.agent_options = ['--etcd-ca', certificate[0], '--etcd-user', USER, '--etcd-password-file', password]
            one, two = cluster.machines
            one.start_broker()
            two.start_broker()
            check_refused(one, 'certificate problem', '--etcd-ca', another[0])
            check_refused(one, 'lets this agent not do that', '--etcd-password-file',
                          written(folder, 'wrong', 'another word\n'))
            for machine in cluster.machines:
                machine.start_agent()
            for machine in cluster.machines:
                machine.await_word('joined the broker')
                machine.await_word('the directory answers')
            a, b = Program(one), Program(two)
            handle = a.do(f'share(alloc({MIB}, 0x21))')
            b.opens(handle, 'it is shared')
            check(b.do(f'read(open_({handle!r}))') == '21212121', 'the other machine reads its bytes')
            b.end()
            a.end()
            end_with_faults()
        finally:
            cluster.end()


main()
