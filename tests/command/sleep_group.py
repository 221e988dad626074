"""gpushim sleep and wake of processes that share among themselves: what is open only among them goes as well, and
comes back as one memory.

    sleep_group.py GPUSHIM SHIM LIBCUDA
"""
import os
import signal
import subprocess
import time

from holder import GPUSHIM, MIB, PUBLISH, Holder, await_that, check, clean, gpushim, prove_each, rows
import sleepers
from sleepers import READ, run

LARGE, SMALL = sleepers.LIVE, MIB  # of several pieces, and beside others

TRY = '''
pointer = ctypes.c_uint64()
status = cuda.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), Handle.from_buffer_copy(bytes.fromhex('{handle}')), 1)
opened.extend([pointer] if status == 0 else [])
print(status)
'''


def fill(one, value, block='held[0]', size=LARGE):
    sleepers.fill(one, value, block, size)


def has(one, value, block='opened[0]', size=LARGE):
    return sleepers.has(one, value, block, size)


def asked(folder, one):
    return 'awake already' in gpushim(folder, 'wake', str(one.pid)).stderr


def start(folder, sizes=(LARGE,), **settings):
    one = Holder(folder, **{'SOFTCUDA_MEMORY': '1G', 'GPUSHIM_DEBUG_RECLAIM_FROM_PEERS': 'on',
                            'GPUSHIM_DEBUG_TIMEOUT': '1 s', **settings})
    for size in (64 * MIB, *sizes):  # the first is what lets it be asked
        one.do(f'alloc {size}')
    run(one, 'held.append(held.pop(0))')
    await_that(lambda: asked(folder, one), 'a process that holds enough can be asked')
    return one


def says(folder, status, command, ones, *words, options=()):
    return sleepers.says(folder, status, (command, *(str(one.pid) for one in ones), *options), *words).stdout


def sleep_whole(folder, ones, **more):
    told = says(folder, 0, 'sleep', ones, **more)
    check(told.count('asleep, in') == len(ones) and 'stay' not in told, f'all of them, and all that they have: {told}')


def pair(folder, sizes=(LARGE,), **settings):
    """One shares its first blocks, the other has them open."""
    one, other = start(folder, sizes, **settings), start(folder, ())
    for number, size in enumerate(sizes):
        fill(one, 10 + number, f'held[{number}]', size)
        other.do('open ' + one.do(f'share {number}'))
    return one, other


def pair_with_broker(folder):
    """Which has what they share: it is asked for that later, and nobody waits for it."""
    one, other = pair(folder, GPUSHIM_SHARE_STRATEGY='broker', GPUSHIM_SHARE_BROKER=GPUSHIM + '-broker')
    await_that(lambda: any(row['broker'] and row['blocks'] for row in rows(folder, 'who')), 'the broker has it')
    return one, other


def end(*ones):
    for one in ones:
        one.end()


def prove_they_go_and_come(folder):
    """In whatever order they are named, once and again; what one writes afterwards the other reads."""
    one, other = pair(folder, (LARGE, SMALL, SMALL))
    for turn, order in enumerate(((one, other), (other, one), (one, other))):
        sleep_whole(folder, order)
        says(folder, 0, 'wake', order[::-1] if turn == 2 else order, 'awake, in')
        check(has(other, 10 + turn) and has(other, 11, 'opened[1]', SMALL), f'as it was, in turn {turn}')
        fill(one, 11 + turn)
        check(has(other, 11 + turn), f'one memory, in turn {turn}')
        fill(other, 77, 'opened[0]', SMALL)
        check(has(one, 77, 'held[0]', SMALL), f'for both, in turn {turn}')
        fill(one, 11 + turn)
    says(folder, 0, 'sleep', (one,), 'MiB shared stay')  # it is mapped again
    says(folder, 0, 'wake', (one,))
    other.do('close 0')
    one.do('free 0')
    check(has(other, 11, 'opened[0]', SMALL), 'the rest is as it was')
    end(one, other)


def prove_named_twice(folder):
    """By its number and in a group, or in two: it is told once."""
    one, other = pair(folder)
    group = os.path.join(folder, 'group')
    os.mkdir(group)
    with open(os.path.join(group, 'cgroup.procs'), 'w', encoding='utf-8') as file:
        file.write(f'{one.pid}\n{other.pid}\n')
    for words in ((group, one.pid), (one.pid, group, group), (one.pid, one.pid, other.pid)):
        for command, done in (('sleep', 'asleep, in'), ('wake', 'awake, in')):
            told = sleepers.says(folder, 0, (command, *map(str, words))).stdout
            check(told.count(done) == 2, f'both, and each once: {words}: {told}')
    check(has(other, 10), 'as it was')
    end(one, other)


def prove_both_ways(folder):
    """Each has something of the other's open."""
    one, other = pair(folder)
    other.do(f'alloc {LARGE}')
    run(other, 'held.insert(0, held.pop())')
    fill(other, 33)
    one.do('open ' + other.do('share 0'))
    sleep_whole(folder, (one, other))
    says(folder, 0, 'wake', (one, other), 'awake, in')
    check(has(one, 33) and has(other, 10), 'both are right')
    end(one, other)


def prove_a_handle_on_its_way(folder):
    """It opens after the wake; while its process sleeps who opens it is told so, and goes on."""
    one, other = start(folder), start(folder, ())
    handle = one.do('share 0')
    fill(one, 5)
    sleep_whole(folder, (one,))
    check(run(other, TRY, handle=handle) != '0', 'not while it sleeps')
    says(folder, 0, 'wake', (one,))
    check(run(other, TRY, handle=handle) == '0' and has(other, 5), 'and then it does')
    end(one, other)


LOOK_UP = '''
named = (480).to_bytes(8, 'little') + bytes(472)
print(ctypes.CDLL(None).gpushim_lookup(b'weights', named), named[8:72].hex())
'''


def prove_a_name(folder):
    """It stays while its process sleeps, and so does what it was found by before; both open after the wake."""
    one, other = start(folder), start(folder, ())
    run(one, PUBLISH + "assert publish(b'weights', held[0].value) == 0")
    fill(one, 15)
    before = run(other, LOOK_UP)
    sleep_whole(folder, (one,))
    check([row['name'] for row in rows(folder, 'ls')] == ['weights'], 'it is listed')
    check(run(other, LOOK_UP) == before and before.startswith('0 '), f'and found: {before}')
    says(folder, 0, 'wake', (one,))
    check(run(other, TRY, handle=before.split()[1]) == '0' and has(other, 15), 'and opens what it named')
    end(one, other)


def prove_a_broker_that_is_killed(folder):
    """What is left with it stays, and is right; also where it is killed while both sleep: then it is shared again."""
    one, other = pair_with_broker(folder)
    broker, = (row['pid'] for row in rows(folder, 'who') if row['broker'])
    for turn in range(3):
        says(folder, 0, 'sleep', (one, other), 'shared stay' if turn < 2 else 'asleep, in')
        if turn == 1:
            os.kill(broker, signal.SIGKILL)
        says(folder, 0, 'wake', (one, other))
        fill(one, 12 + turn)
        check(has(other, 12 + turn), f'one memory, in turn {turn}')
    other.do('close 0')
    check(run(other, TRY, handle=one.do('share 0')) == '0' and has(other, 14), 'and it opens anew')
    end(one, other)


def prove_what_was_closed(folder):
    """What an importer keeps for its next open is no obstacle, and is not taken for the memory after the wake."""
    one, other = pair(folder)
    handle = one.do('share 0')
    other.do('close 0')
    sleep_whole(folder, (one, other))
    says(folder, 0, 'wake', (one, other))
    fill(one, 44)
    check(run(other, TRY, handle=handle) == '0' and has(other, 44), 'it is opened anew')
    end(one, other)


PINS = '''
PIN = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 5, ctypes.c_void_p)
library, name, pins, retained = ctypes.CDLL(None), ctypes.c_char_p(b'test'), PIN(lambda *_: 0), ctypes.c_void_p()
address = lambda function: ctypes.cast(function, ctypes.c_void_p).value
pinner = (ctypes.c_uint64 * 5)(40, address(name), address(pins), address(cuda.cuDevicePrimaryCtxRetain),
                               ctypes.addressof(retained))
registration, size, domain = ctypes.c_void_p(), ctypes.c_size_t({size}), ctypes.c_size_t(1)
assert library.gpushim_pinner_add(pinner) == 0
assert library.gpushim_pin(pinner, domain, ctypes.c_uint64(0), opened[0], size, ctypes.byref(ctypes.c_void_p()),
                           ctypes.byref(registration)) == 0
library.gpushim_unpin(registration)
'''


def prove_what_was_registered(folder):
    """What an importer keeps goes back while it sleeps, and so does its registration, by a call of CUDA's."""
    one, other = pair(folder)
    run(other, PINS, size=LARGE)
    other.do('close 0')
    says(folder, 0, 'sleep', (other,), 'asleep, in')
    one.do('free 0')
    await_that(lambda: run(other, 'print(retained.value == context.value)') == 'True', 'its registration goes')
    says(folder, 0, 'wake', (other,), 'awake, in')
    end(one, other)


def prove_what_was_freed(folder):
    """What its program has freed and another has open is that one's still, also where no more of that is given."""
    one, other = pair(folder, (LARGE, SMALL), GPUSHIM_DEBUG_LIMBO_LIMIT='1 MiB')
    one.do('free 0')
    one.do('free 0')
    sleep_whole(folder, (one, other))
    says(folder, 0, 'wake', (one, other))
    check(has(other, 10) and has(other, 11, 'opened[1]', SMALL), 'as it was')
    other.do('close 0')
    check(has(other, 11, 'opened[0]', SMALL), 'one by one')
    end(one, other)


def prove_others_keep_it(folder):
    """One that is not told to sleep has the memory open: it stays, and is as it was."""
    one, other = pair(folder)
    third = start(folder, ())
    third.do('open ' + one.do('share 0'))
    says(folder, 0, 'sleep', (one, other), 'MiB shared stay')
    fill(third, 66, 'opened[0]')
    says(folder, 0, 'wake', (one, other))
    check(has(other, 66) and has(one, 66, 'held[0]'), 'what was written meanwhile is seen')
    says(folder, 0, 'sleep', (other, one), 'MiB shared stay')
    third.do('close 0')
    says(folder, 0, 'wake', (one, other))
    check(has(other, 66), 'also after that')
    end(one, other, third)


def prove_one_alone(folder):
    """A process that is told alone keeps what it has open; and what others have open of it stays."""
    one, other = pair(folder)
    says(folder, 0, 'sleep', (one,), 'MiB shared stay')
    fill(other, 55, 'opened[0]')
    says(folder, 0, 'sleep', (other,))
    says(folder, 0, 'wake', (other,))
    check(has(other, 55), 'the memory of one that sleeps')
    says(folder, 0, 'wake', (one,))
    check(has(one, 55, 'held[0]'), 'is its own')
    end(one, other)


def prove_who_wakes_first(folder):
    """Who has something open of one that sleeps cannot be woken before it, sleeps on, and can be afterwards."""
    one, other = pair(folder)
    sleep_whole(folder, (one, other))
    says(folder, 1, 'wake', (other,), f'process {one.pid} does not give them back', options=('--timeout', '0.3s'))
    says(folder, 1, 'sleep', (one,), 'asleep already')
    says(folder, 0, 'sleep', (other,), 'asleep, in')
    says(folder, 1, 'wake', (other,), f'process {one.pid}', options=('--timeout', '0.3s'))
    says(folder, 0, 'wake', (one,), 'awake, in')
    says(folder, 0, 'wake', (other,), 'awake, in')
    check(has(other, 10), 'as it was')
    end(one, other)


def prove_half_a_wake(folder):
    """One that was woken by half goes to sleep with the others again, and all of it."""
    one, other = pair(folder, (LARGE, SMALL))
    sleep_whole(folder, (one, other))
    says(folder, 1, 'wake', (other,), f'process {one.pid}', options=('--timeout', '0.3s'))
    says(folder, 0, 'wake', (one,))
    sleep_whole(folder, (one, other))
    run(other, FAIL, call='cuMemImportFromShareableHandle', nth=1)
    says(folder, 1, 'wake', (one, other), 'driver error 999')
    sleep_whole(folder, (one, other))
    says(folder, 0, 'wake', (one, other))
    check(has(other, 10) and has(other, 11, 'opened[1]', SMALL), 'as it was')
    end(one, other)


def prove_a_tag_that_one_lacks(folder):
    """It runs on, and is not left between the two steps."""
    one, other = pair(folder)
    run(one, "ctypes.CDLL(None).gpushim_tag(b'kv')")
    says(folder, 1, 'sleep', (one, other), f'pid {other.pid} ', 'no memory with the tag', options=('--discard', 'kv'))
    says(folder, 0, 'wake', (one,))
    says(folder, 1, 'wake', (other,), 'awake already')
    check(has(other, 10), 'as it was')
    end(one, other)


def prove_an_end_of_who_shares(folder):
    """Its memory has gone with it: what touches that fails, all else is right."""
    one, other = pair(folder)
    fill(other, 22, 'held[0]', SMALL)
    sleep_whole(folder, (one, other))
    one.end()
    says(folder, 0, 'wake', (other,), 'awake, in')
    check(run(other, READ, block='opened[0]', value=10, size=LARGE) not in ('True', 'False'), 'it cannot be read')
    check(has(other, 22, 'held[0]', SMALL), 'its own is right')
    other.do('close 0')
    sleep_whole(folder, (other,))
    says(folder, 0, 'wake', (other,), 'awake, in')
    check(has(other, 22, 'held[0]', SMALL), 'and again')
    end(other)


def prove_an_end_of_who_opened(folder):
    """Its lease ends, whether the other sleeps or not."""
    for freed in (False, True):
        one, other = pair(folder)
        if freed:
            one.do('free 0')
        sleep_whole(folder, (one, other))
        other.end()
        says(folder, 0, 'wake', (one,), 'awake, in')
        if not freed:
            check(has(one, 10, 'held[0]'), 'as it was')
            one.do('free 0')
        one.do(f'alloc {LARGE}')
        fill(one, 9, 'held[-1]')
        await_that(lambda one=one: 'limbo' not in gpushim(folder, 'who').stdout, 'nobody holds anything')
        end(one)


def prove_a_step_that_fails(folder):
    """One cannot sleep: the other does, and what that one has open stays."""
    one, other = pair(folder)
    run(other,
        'cuda.softcuda_hold(1); assert cuda.cuMemsetD8Async(held[0], ctypes.c_ubyte(1), ctypes.c_size_t(1), None) == 0')
    says(folder, 1, 'sleep', (one, other), f'pid {one.pid} (', 'MiB shared stay', 'does not end',
         options=('--timeout', '0.3s'))
    run(other, 'cuda.softcuda_hold(0)')
    check(has(other, 10), 'who is awake goes on')
    says(folder, 0, 'wake', (one,), 'awake, in')
    check(has(one, 10, 'held[0]'), 'as it was')
    end(one, other)


FAIL = '''
cuda.softcuda_last_failed.restype = ctypes.c_char_p
assert cuda.softcuda_fail(b'{call}', {nth}, 999) == 0
'''
FAILED = """
print(cuda.softcuda_last_failed().decode())
cuda.softcuda_reset()
"""


def prove_each_call_fails(folder):
    """Of the importer's, one at a time: it is awake or asleep, and the next try is right."""
    one, other = Holder(folder, SOFTCUDA_MEMORY='256M'), Holder(folder, SOFTCUDA_MEMORY='256M')
    one.do(f'alloc {SMALL}')
    other.do(f'alloc {SMALL}')
    fill(one, 3, size=SMALL)
    fill(other, 4, size=SMALL)
    other.do('open ' + one.do('share 0'))
    both = [str(holder.pid) for holder in (one, other)]
    for command in 'sleep', 'wake':
        nth, hit = 0, True
        while hit:
            nth += 1
            if command == 'wake':
                check(gpushim(folder, 'sleep', *both).returncode == 0, 'they sleep')
            run(other, FAIL, call='*', nth=nth)
            gpushim(folder, command, *both)
            hit = run(other, FAILED) not in ('', 'cuDriverGetVersion')
            run(other, FAIL, call='cuDriverGetVersion', nth=1)
            run(other, 'cuda.cuDriverGetVersion(ctypes.byref(ctypes.c_int()))')
            for holder in both:
                gpushim(folder, 'wake', holder)
            check(has(other, 3, size=SMALL) and has(other, 4, 'held[0]', SMALL) and has(one, 3, 'held[0]', SMALL),
                  f'call {nth} of {command}')
        check(nth > 5, f'{nth} calls of {command}')
    end(one, other)


# What two ranks of a program that trains have the GPU do: an all-reduce ends when both have come to it. Neither rests.
RANK = '''
import mmap, os, threading, time
words = (ctypes.c_uint64 * 512).from_buffer(mmap.mmap(os.open({path!r}, os.O_RDWR), 4096))
context = ctypes.c_void_p()
cuda.cuCtxGetCurrent(ctypes.byref(context))

def train(rank, block):
    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def reduce(unused):
        words[rank] += 1
        while words[1 - rank] < words[rank] and not words[2]:
            time.sleep(0.0005)

    stream = ctypes.c_void_p()
    assert cuda.cuCtxSetCurrent(context) == 0 and cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    for step in range(1 << 30):
        for _ in range(10 * rank + 30):
            assert cuda.cuMemsetD8Async(block, ctypes.c_ubyte(0x5a), ctypes.c_size_t(4096), stream) == 0
        assert cuda.cuLaunchHostFunc(stream, reduce, None) == 0
        if step % {often} == 0 or words[2]:
            assert cuda.cuStreamSynchronize(stream) == 0
            if words[2]:
                break

for rank in {ranks}:
    threads.append(threading.Thread(target=train, args=(rank, held[0])))
    threads[-1].start()
'''


def train(folder, often, *ranks):
    path = os.path.join(folder, 'meeting')
    with open(path, 'wb') as file:
        file.truncate(4096)
    for one, numbers in ranks:
        one.run('threads = []')
        run(one, RANK, path=path, ranks=numbers, often=often)
    return path


def steps(path):
    with open(path, 'rb') as file:
        return int.from_bytes(file.read(8), 'little')


def sleeps_while_it_trains(folder, path, *ones):
    for turn in range(5):
        before = steps(path)
        await_that(lambda before=before: steps(path) > before + 30, f'they train, before turn {turn}')
        sleep_whole(folder, ones, options=('--timeout', '100s'))
        says(folder, 0, 'wake', ones, 'awake, in')
    with open(path, 'r+b') as file:
        file.seek(16)
        file.write(b'\1')
    for one in ones:
        one.run('[thread.join() for thread in threads]')
        check(has(one, 0x5a, 'held[0]', 4096), 'as it was')
        one.end()


def prove_ranks_at_work(folder):
    """A sleep that finds one in an all-reduce which waits for the other."""
    one, other = start(folder), start(folder)
    sleeps_while_it_trains(folder, train(folder, 200, (one, (0,)), (other, (1,))), one, other)


def prove_ranks_of_one_process(folder):
    one = start(folder)
    sleeps_while_it_trains(folder, train(folder, 20, (one, (0, 1))), one)


CALLS = '''
import threading
calls = [0]
context = ctypes.c_void_p()
cuda.cuCtxGetCurrent(ctypes.byref(context))

def work():
    assert cuda.cuCtxSetCurrent(context) == 0
    while True:
        assert cuda.cuMemsetD8_v2(held[0], ctypes.c_ubyte(1), ctypes.c_size_t(1)) == 0
        calls[0] += 1

threading.Thread(target=work, daemon=True).start()
'''


def prove_a_command_that_is_killed(folder):
    """While one of them stands still for the other, which is not done: it goes on by itself."""
    one, other, asleep = start(folder), start(folder), start(folder)
    says(folder, 0, 'sleep', (asleep,))
    run(one, 'cuda.softcuda_hold(1); cuda.cuMemsetD8Async(held[0], ctypes.c_ubyte(1), ctypes.c_size_t(1), None)')
    one.run('threads = []')
    run(other, CALLS)
    calls = lambda: int(other.run('print(calls[0])'))
    await_that(lambda: calls() > 100, 'it works')
    with subprocess.Popen([GPUSHIM, 'sleep', *(str(each.pid) for each in (asleep, one, other))],
                          env=clean(folder)) as command:
        def stands_still():
            """Nobody gives it an order now."""
            command.send_signal(signal.SIGSTOP)
            before = calls()
            time.sleep(0.2)
            still = calls() == before
            command.send_signal(signal.SIGKILL if still else signal.SIGCONT)
            return still
        await_that(stands_still, 'it stands still')
    before = calls()
    await_that(lambda: calls() > before + 100, 'it goes on')
    says(folder, 0, 'wake', (asleep,), 'awake, in')
    end(one, other, asleep)


prove_each(prove_they_go_and_come, prove_named_twice, prove_both_ways, prove_a_handle_on_its_way, prove_a_name,
           prove_what_was_closed, prove_what_was_registered,
           prove_what_was_freed, prove_others_keep_it, prove_one_alone, prove_who_wakes_first, prove_half_a_wake,
           prove_a_tag_that_one_lacks, prove_an_end_of_who_shares, prove_an_end_of_who_opened, prove_a_step_that_fails,
           prove_each_call_fails, prove_ranks_at_work, prove_ranks_of_one_process,
           prove_a_command_that_is_killed, prove_a_broker_that_is_killed)
