"""What gpushim says of the cluster, while etcd loses its majority.

usage: health.py GPUSHIM SHIM LIBCUDA AGENT BROKER
"""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
from machines import MIB, await_that, check, with_machines


def told(machine):
    return json.loads(machine.gpushim('cluster', '--json')[1])['rows'][0]


def check_well(one, b, handle):
    b.opens(handle)

    def is_well():
        row = told(one)
        return row['lease_seconds'] > 0 and row['directory'] is None and row['machines'][0]['name'] == 'm2'

    def says_so():
        out = one.gpushim('cluster')[1]
        return 'machine m2' in out and 's left' in out and 'directory: ' in out

    # A lease of 3 s may be over for a moment where the machine is busy.
    await_that(is_well, f'it tells of its lease, the directory and machines: {one.gpushim("cluster")}')
    await_that(says_so, f'and in text: {one.gpushim("cluster")}')


def check_dying(cluster, one):
    for member in cluster.members[1:]:
        member.kill()
        member.wait()
    await_that(lambda: told(one)['lease_seconds'] == 0 and told(one)['directory'],
               'without a majority there is no lease')
    out = one.gpushim('cluster')[1]
    check('lease, WRONG: ' in out and 'directory, WRONG: ' in out, f'and in text: {out}')


def test(cluster, machines, a, b):
    one = machines[0]
    check_well(one, b, a.do(f'share(alloc({MIB}, 0x51))'))
    check_dying(cluster, one)
    one.kill('agent')
    await_that(lambda: not told(one)['has_agent'], 'and without an agent')


with_machines(test, 2, ['etcd'])
