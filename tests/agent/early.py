"""Opens that come before the agents have heard of what is opened, or of each other: they wait for that, and are
told the true cause where it does not come.

usage: early.py GPUSHIM SHIM LIBCUDA AGENT BROKER
"""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(__file__))
from machines import MIB, Program, check, with_machines

WAITS = 'an open waits, and is tried again'


def before_it_is_published(one, two, a, b):
    """The exporter's agent is stopped, until the importer's has found nothing."""
    waits = two.said().count(WAITS)
    one.agent.send_signal(signal.SIGSTOP)
    handle = a.do(f'share(alloc({MIB}, 0x31))')
    b.say(f'open_({handle!r})')
    two.await_word(WAITS, waits + 1)
    one.agent.send_signal(signal.SIGCONT)
    there = b.hear()
    check(isinstance(there, int), f'what is published only then opens: {there}, {two.said()[-900:]}')
    check(b.do(f'read({there})') == '31313131', 'and is read')
    b.do(f'close({there})')


def before_it_is_heard_of(cluster, one, two, a, b):
    """The exporter's machine knows nothing of the importer's, until it has hung up on it."""
    folder = f'{cluster.folder}/directory/gpushim'
    own = next(name for name in os.listdir(folder) if name.startswith('agents.')
               and b'm2\0' in contents(f'{folder}/{name}'))
    text = contents(f'{folder}/{own}')
    os.unlink(f'{folder}/{own}')
    one.kill('agent')
    said, waits, joined = (machine.said().count(word) for machine, word in
                           ((one, 'does not know its machine'), (two, WAITS), (one, 'joined the broker')))
    one.start_agent()
    one.await_word('joined the broker', joined + 1)
    handle = a.do(f'share(alloc({MIB}, 0x32))')
    b.say(f'open_({handle!r})')
    one.await_word('does not know its machine', said + 1)
    two.await_word(WAITS, waits + 1)
    with open(f'{folder}/.new', 'wb') as file:
        file.write(text)
    os.rename(f'{folder}/.new', f'{folder}/{own}')
    there = b.hear()
    check(isinstance(there, int), f'who is heard of only then opens: {there}, {one.said()[-900:]} {two.said()[-900:]}')
    b.do(f'close({there})')


def contents(path):
    with open(path, 'rb') as file:
        return file.read()


def never(one, two):
    """What is shared with its own machine alone is refused in the end; the log says why, and not that anybody ended."""
    log = f'{two.cluster.folder}/program.log'
    a, b = Program(one, GPUSHIM_SHARE_REACH='machine'), Program(two, GPUSHIM_LOG_TARGET=log)
    handle = a.do(f'share(alloc({MIB}, 0x33))')
    got = b.do(f'open_({handle!r})')
    check(isinstance(got, str), f'it is refused: {got}')
    said = contents(log).decode()
    check('no machine of the cluster has published it' in said and 'has ended, and' not in said, f'its log: {said}')
    a.end()
    b.end()


def test(cluster, machines, a, b):
    one, two = machines
    before_it_is_published(one, two, a, b)
    before_it_is_heard_of(cluster, one, two, a, b)
    never(one, two)


with_machines(test, 2)
