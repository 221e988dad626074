"""How a process can end, or become another program, while it has device memory that is live, shared and open elsewhere,
and while threads allocate and the library's own threads are at work. None of it hangs, crashes, or loses the exit
status; what others have open stays; and a process that ends in order leaves nothing in the folder of the sockets.

    ending.py PUPPET SHIM BROKER ending CASE LATE_MODULE      under this process's own LD_PRELOAD, if any
"""
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from puppet import OUT, PATIENT_S, Puppet, around, await_that, check, main, set_for_all, states

STATUS = 41
THREADS = 3
LED = 'libgpushim' in os.environ.get('LD_PRELOAD', '')


def prepare(one, other, case, late_module):
    """What the other one opened of it, and the free memory of that but for a block that is open here."""
    handlers = case == 'handlers'
    if case == 'fork-before':
        check(one.result('execute') == 0, 'a child of before')
    if handlers:  # before the library's own handler, so it runs after that
        one.pointer('use_memory_at_exit')
        one.pointer('use_memory_late')
    context = one.begin()
    for thread in one.threads[1:]:
        thread.set_context(context)
    one.pointer('have_blocks')
    theirs = other.open(one.handle(one.block(stamp=0x5a)))
    left = other.cuMemGetInfo(OUT, OUT)[0]
    mine = other.block()
    one.open(other.handle(mine))
    if handlers:
        late = one.pointer('dlopen', late_module, 2)
        one.pointer(hex(one.pointer('dlsym', late, 'late_set')), one.pointer('dlsym', 0, 'use_memory'))
        one.pointer('use_memory_at_exit')
    one.pointer('use_memory_at_quick_exit')
    return theirs, mine, left


def end(one, other, case):
    """Its status, and what the other one opened meanwhile."""
    how = case.removesuffix('-threads')
    again, ends = None, one
    if how != case:
        for thread in one.threads[1:1 + THREADS]:
            thread.tell('keep_allocating')
        time.sleep(0.03)  # they are under way
    if how == 'spawn':
        check(one.pointer('spawn_others') & 1, 'the others')
    if how == 'fork-after':  # a child that ends in order runs the parent's handlers: none of them is about the parent
        check(one.forked('nothing') == 0 and one.result('execute') == 0, 'the children')
    if how == 'pthread_exit-worker':
        one.tell('pthread_exit', 0)
        ends = one.threads[-1]
        await_that(lambda: 'Z' in states(one.pid), 'main has gone')
        ends.pointer('use_memory')
    # The software driver takes memory from /proc/PID/fd, which is gone when main is.
    if how.startswith(('spawn', 'fork')) or how == 'pthread_exit-worker' and LED:
        again = other.open(ends.handle(ends.block(stamp=0x5b)))
    if how.startswith('exec'):
        if how == 'exec-without':
            one.result('unsetenv', 'LD_PRELOAD')
        one.tell('execl', '/proc/self/exe', 'puppet', 'allocate', 0)
    elif how == 'thread-exit':
        one.threads[-1].tell('exit', STATUS)
    elif how in ('exit', '_exit', 'quick_exit', 'pthread_exit-worker'):
        ends.tell('exit' if ends is not one else how, STATUS)
    else:
        one.hang_up()
    return STATUS if 'exit' in how else 0, again


def ending(case, late_module):
    other = Puppet()
    one = Puppet(threads=THREADS + 2 if 'thread' in case else 1, begin=False)
    theirs, mine, left = prepare(one, other, case, late_module)
    wanted, again = end(one, other, case)
    status = one.process.wait(PATIENT_S)
    check(status == wanted, f'its status is {status}, and not {wanted}')
    check(other.word(theirs) == 0x5a and (not again or other.word(again) == 0x5b), 'what was open is as it was')
    other.close(theirs)
    if again:
        other.close(again)
    other.cuMemFree(mine)
    await_that(lambda: other.cuMemGetInfo(OUT, OUT)[0] >= left, 'what it had open comes back')
    other.end()
    if not case.startswith(('_exit', 'quick', 'exec')):
        check(around.is_empty(), 'it left something in the folder')


set_for_all(LD_PRELOAD=os.environ.get('LD_PRELOAD') or None, GPUSHIM_POOL_DECAY='1ms')
main(globals())
