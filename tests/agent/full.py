"""An etcd without room for more: what it has is opened, what is open stays, and people are told. What is shared
meanwhile is found when there is room again.

usage: full.py GPUSHIM SHIM LIBCUDA AGENT BROKER
"""
import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
from etcd import ask, exports_there
from machines import MIB, await_that, check, with_machines


def alarm(cluster, action):
    """As etcd sets it itself when its file is as large as it may be."""
    for member in ask(cluster, 'cluster/member/list')['members']:
        ask(cluster, 'maintenance/alarm', action=action, memberID=member['ID'], alarm='NOSPACE')


def of_directory(machine):
    """What is wrong with it, as people are told; None: nothing."""
    return json.loads(machine.gpushim('cluster', '--json')[1])['rows'][0]['directory']


def test(cluster, machines, a, b):
    one, two = machines
    first, held = (a.do(f'share(alloc({MIB}, {byte}))') for byte in (0x31, 0x32))
    going = a.do(f'alloc({MIB}, 0x34)')
    gone = a.do(f'share({going})')
    await_that(lambda: exports_there(cluster)[0] == 3, 'all are in the directory')
    there = b.opens(held, 'it opens')
    for handle in (first, gone):  # which so is in flight no more
        b.do(f"close({b.opens(handle, 'so does another')})")
    alarm(cluster, 'ACTIVATE')
    pointer = a.do(f'alloc({MIB}, 0x33)')
    new = a.do(f'share({pointer})')
    one.await_word('has no room')
    check('alarm disarm' in (of_directory(one) or ''), f'what is to be done is said: {of_directory(one)}')
    a.do(f'free({going})')
    await_that(lambda: a.do(f'free(alloc({MIB}, 0))') == 0 and exports_there(cluster)[0] == 2,
               'what is freed goes, though what is new cannot come')
    time.sleep(2 * cluster.lease_s)  # leases of the directory are kept all the same
    again = b.opens(first, 'what it has is opened')
    check(b.do(f'read({again})') == '31313131' and b.do(f'read({there})') == '32323232', 'and read')
    check(isinstance(b.do(f'open_({new!r})'), str), 'what it does not have is refused')
    for pointer_ in (again, there):
        check(b.do(f'close({pointer_})') == 0, 'it closes')
    alarm(cluster, 'DEACTIVATE')
    one.await_word('the directory answers', 2)
    await_that(lambda: of_directory(one) is None, f'that it is well is said: {of_directory(one)}')
    last = b.opens(new, 'what was shared meanwhile opens')
    check(b.do(f'read({last})') == '33333333', 'and is it')
    two.kill('agent')
    alarm(cluster, 'ACTIVATE')
    two.start_agent()  # which gets no lease
    two.await_word('has no room')
    alarm(cluster, 'DEACTIVATE')
    two.await_word('the directory answers', 2)
    b.do(f'close({last})')


with_machines(test, 2, ['etcd'])
