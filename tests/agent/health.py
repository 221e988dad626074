"""What gpushim says of the cluster: cluster, and doctor with --cluster, while etcd loses its majority.

usage: health.py GPUSHIM SHIM LIBCUDA AGENT BROKER
"""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
from machines import MIB, await_that, check, with_machines


def rows(machine):
    """Of the doctor: (subject, state, what was found)."""
    _, out, _ = machine.gpushim('doctor', '--cluster', '--json')
    return [(row['subject'], row['state'], row['found']) for row in json.loads(out)['rows']]


def of(machine, subject, state):
    return [found for name, is_, found in rows(machine) if (name, is_) == (subject, state)]


def check_well(one, b, handle):
    await_that(lambda: isinstance(b.do(f'open_({handle!r})'), int), 'it opens')
    check(of(one, 'lease', 'ok') and of(one, 'directory', 'ok'), 'so are its lease and the directory')
    check([name for name, _, _ in rows(one) if name.startswith('IMEX ')] == ['IMEX channel'], 'the channel is told of')
    machines = json.loads(one.gpushim('cluster', '--json')[1])['rows'][0]['machines']
    check(machines[0]['name'] == 'm2', f'cluster tells of machines: {machines}')
    out = one.gpushim('cluster')[1]
    check('machine m2' in out and 's left' in out and 'directory: ' in out, f'and in text: {out}')


def check_dying(cluster, one):
    for member in cluster.members[1:]:
        member.kill()
        member.wait()
    await_that(lambda: of(one, 'lease', 'FAIL') and of(one, 'directory', 'FAIL'), 'without a majority there is no lease')


def check_ended(one):
    """What lies there is nobody's who is believed."""
    path = os.path.join(one.share, 'agent.health')
    one.kill('agent')
    for text, wanted in ((b'gpushim-agent 1\ndirectory ok \x1b[31mred\n', r'directory: \x1b[31mred'), (b'no such thing\n', '')):
        with open(path, 'wb') as file:
            file.write(text)
        out = one.gpushim('cluster')[1]
        check(wanted in out and '\x1b' not in out, f'{text}: {out!r}')
        check(('directory' in out) == bool(wanted), f'{text}: {out!r}')
    os.unlink(path)
    os.symlink('/etc/passwd', path)
    check('agent' in [name for name, state, _ in rows(one) if state == 'warn'], 'without one the doctor says so')
    os.unlink(path)


def test(cluster, machines, a, b):
    one = machines[0]
    check_well(one, b, a.do(f'share(alloc({MIB}, 0x51))'))
    check_dying(cluster, one)
    check_ended(one)


with_machines(test, 2, ['etcd'])
