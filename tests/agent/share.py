"""Memory of one machine, opened on another: read, freed under its readers, closed, opened again, killed."""
import os
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
from machines import MIB, Program, await_that, check, with_machines


def check_share(one, two, a, b):
    pointer = a.do(f'alloc({4 * MIB}, 0x11)')
    handle = a.do(f'share({pointer})')
    check(len(handle) == 128, f'there is a handle: {handle}')
    there = b.opens(handle)
    check(b.do(f'read({there})') == '11111111', 'the other machine reads its bytes')
    b.do(f'fill({there}, 0x22, 4)')
    check(a.do(f'read({pointer})') == '22222222', 'and writes them')
    # Shared again by who has it open, with a process of each machine.
    passed = b.do(f'share({there})')
    for machine in (one, two):
        c = Program(machine)
        check(c.do(f'read({c.opens(passed)})') == '22222222', 'what is shared again is opened')
        c.end()
    # A free under its reader.
    check(a.do(f'free({pointer})') == 0, 'it is freed')
    others = [a.do(f'alloc({4 * MIB}, 0x33)') for _ in range(3)]
    check(b.do(f'read({there})') == '22222222', 'freed memory stays its reader\'s')
    check(one.limbo() == 4 * MIB, f'it is limbo: {one.limbo()}, {one.gpushim("who")}')
    check(b.do(f'close({there})') == 0, 'it is closed')
    await_that(lambda: one.limbo() == 0, 'closed there, it is used again here')
    for other in others:
        a.do(f'free({other})')


def check_killed(one, two, a):
    pointer = a.do(f'alloc({4 * MIB}, 0x44)')
    handle = a.do(f'share({pointer})')
    b, c = Program(two), Program(two)
    there = b.opens(handle)
    check(c.do(f'read({c.opens(handle)})') == '44444444', 'two processes of the other machine read it')
    a.do(f'free({pointer})')
    b.end()
    check(c.do(f'read(open_({handle!r}))') == '44444444', 'one is killed, the other reads on, and opens it again')
    check(one.limbo() == 4 * MIB, 'it is still held')
    c.end()
    await_that(lambda: one.limbo() == 0, 'both are killed: it comes back')
    check(isinstance(there, int), 'it was open')


def check_warned(cluster, one, b):
    """Who holds it its process cannot know: it says who does."""
    with open(f'{cluster.folder}/said', 'w+', encoding='utf-8') as said:
        a = Program(one, stderr=said, GPUSHIM_DEBUG_LIMBO_WARNING_AGE='100ms')
        pointer = a.do(f'alloc({4 * MIB}, 0x45)')
        there = b.opens(a.do(f'share({pointer})'))
        a.do(f'free({pointer})')
        await_that(lambda: said.seek(0) == 0 and '1 blocks, 4096 KiB, are freed and still held by other machines' in
                   said.read(), 'that another machine holds it is said')
        b.do(f'close({there})')
        a.end()


def check_exporter_killed(one, two):
    a, b, c = Program(one), Program(two), Program(two)
    handle = a.do(f'share(alloc({4 * MIB}, 0x66))')
    there = b.opens(handle)
    a.end()
    check(b.do(f'read({there})') == '66666666', 'its exporter is killed, and it reads on')
    check(c.do(f'read({c.opens(handle)})') == '66666666', 'who comes later has it of the broker')
    b.end()
    c.end()


def check_machine_gone(one, two):
    """All that was on it is killed at once: nobody waits for it for longer than the agents' bound."""
    a, b, c = Program(one), Program(two), Program(two)
    pointer = a.do(f'alloc({4 * MIB}, 0x77)')
    handle = a.do(f'share({pointer})')
    never_opened = a.do(f'share(alloc({4 * MIB}, 0x78))')
    there = b.opens(handle)
    a.process.kill()
    one.kill('agent')
    one.kill('broker')
    a.end()
    check(b.do(f'read({there})') == '77777777', 'what is open there is its reader\'s for as long as it is there')
    check(isinstance(c.do(f'open_({never_opened!r})'), str), 'what was not opened before is refused')
    check(b.do(f'close({there})') == 0, 'and it is closed without anybody to be told')
    b.end()
    c.end()


def check_stale(a, b):
    pointer = a.do(f'alloc({4 * MIB}, 0x55)')
    handle = a.do(f'share({pointer})')
    there = b.opens(handle)
    b.do(f'close({there})')
    a.do(f'free({pointer})')
    b.do('globals().update(again=lambda h: (lambda p: p if isinstance(p, str) else close(p))(open_(h)))')
    await_that(lambda: isinstance(b.do(f'again({handle!r})'), str), 'what is freed and called back opens no more')
    check(isinstance(b.do(f'open_({handle!r})'), str), 'and not again')


def check_skew(cluster, a, b):
    """Longer than leases of the directory, which the clocks have been at odds all the time."""
    behind = b.do('__import__("time").time()')  # first: what passes between the two only adds to it
    between = a.do('__import__("time").time()') - behind
    check(between > 15, f'the machines\' clocks differ: by {between} s')
    handles = [program.do(f'share(alloc({MIB}, 0x79))') for program in (a, b)]
    began = time.monotonic()
    while time.monotonic() - began < 2 * cluster.lease_s:  # that they hold all this time is what this is about
        for program, handle in zip((b, a), handles):
            check(program.do(f'close({program.opens(handle)})') == 0, 'it opens and closes')
        time.sleep(0.05)


def test(cluster, machines, a, b):
    one, two = machines
    if one.skew:
        check_skew(cluster, a, b)
    check_share(one, two, a, b)
    check_share(two, one, b, a)
    check_killed(one, two, a)
    check_stale(a, b)
    check_warned(cluster, one, b)
    check_exporter_killed(one, two)
    check_machine_gone(one, two)


with_machines(test, 2, sys.argv[6:])
