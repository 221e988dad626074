"""gpushim sleep, wake and swap: what a process then has of the GPU, what is said, and who may.

    sleep.py GPUSHIM SHIM LIBCUDA
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import time

from holder import (GPUSHIM, MIB, OWN, SHIM, Holder, await_that, check, clean, for_everybody, gpushim, prove_each, rows,
                    stats_of)
from sleepers import LIVE, fill, has, run, says

NOBODY = 65533
HELD = '''
cuda.softcuda_hold(1)
assert cuda.cuMemsetD8Async(held[-1], ctypes.c_ubyte(0x5a), ctypes.c_size_t(1), None) == 0
'''

def answers(folder, one):
    return 'live_bytes' in stats_of(folder, one.pid)


def can_be_asked(folder, one):
    await_that(lambda: 'awake already' in gpushim(folder, 'wake', str(one.pid)).stderr, 'it can be asked')


def state(folder, one):
    return stats_of(folder, one.pid)['state']


def start(folder, **settings):
    """One that can be asked, with 100 MiB that have contents."""
    one = Holder(folder, **{'SOFTCUDA_MEMORY': '256M', 'GPUSHIM_DEBUG_RECLAIM_FROM_PEERS': 'on', **settings})
    one.do(f'alloc {LIVE}')
    fill(one, 0x5a, 'held[-1]')
    await_that(lambda: answers(folder, one), 'a process that holds enough can be asked')
    return one


def is_right(one, when):
    check(has(one, 0x5a, 'held[-1]'), f'the contents are right {when}')


def prove_it(folder):
    one = start(folder)
    pid = str(one.pid)
    says(folder, 1, ('wake', pid), pid, 'awake already')
    says(folder, 0, ('sleep', pid), f'pid {pid} (', 'asleep, in ', '100.0 MiB kept on the host')
    says(folder, 1, ('sleep', pid), pid, 'asleep already')
    says(folder, 0, ('wake', pid), f'pid {pid} (', 'awake, in ')
    is_right(one, 'after the wake')
    told = json.loads(says(folder, 0, ('sleep', pid, '--json')).stdout)['rows'][0]
    check(told['state'] == 'asleep' and told['pid'] == one.pid and told['kept_bytes'] == LIVE and
          told['away_bytes'] >= LIVE and told['shared_bytes'] == 0 and told['silent'] is None, f'as JSON: {told}')
    told = json.loads(says(folder, 0, ('wake', pid, '--json')).stdout)['rows'][0]
    check(told['state'] == 'awake' and told['away_bytes'] == 0, f'as JSON: {told}')
    is_right(one, 'after the second wake')
    told = json.loads(says(folder, 1, ('sleep', '4194304', str(os.getpid()), pid, '--json'), '4194304').stdout)['rows']
    check([(row['pid'], (row['silent'] or '').split(',')[0]) for row in told] == [
        (4194304, 'is not there'), (os.getpid(), 'has not the library: gpushim run starts programs with it'),
        (one.pid, '')],
          f'a row for each: {told}')
    says(folder, 0, ('wake', pid), 'awake')
    one.end()


def prove_it_is_told(folder):
    """By the commands that tell of a process, and the figures of what the GPU holds are without what is away."""
    one = start(folder)
    pid = str(one.pid)
    told = {'stats': lambda: stats_of(folder, one.pid, pid), 'who': lambda: rows(folder, 'who')[0]}
    metrics = lambda: {line.split('{')[0]: float(line.split()[-1])
                       for line in gpushim(folder, 'export', '--prometheus').stdout.splitlines()
                       if f'pid="{pid}"' in line and 'state=' not in line}
    before = told['stats']()
    check(before['state'] == 'running' and before['away_bytes'] == 0, f'awake: {before}')
    check(metrics()['gpushim_asleep_seconds'] == 0, 'awake, by the metrics')
    says(folder, 0, ('sleep', pid), 'asleep')
    for name, row in told.items():
        check(row()['away_bytes'] >= LIVE, f'{name} tells the bytes')
        await_that(lambda row=row: row()['asleep_seconds'] > 0, f'{name} tells since when')
        check(re.search('asleep(:| for) .* off the GPU', gpushim(folder, name).stdout), f'{name} says it')
    asleep = told['stats']()
    check(asleep['state'] == 'asleep' and asleep['live_bytes'] == before['live_bytes'], f'it has as much: {asleep}')
    check(asleep['reserved_bytes'] <= before['reserved_bytes'] - LIVE, f'the GPU holds less: {asleep}')
    check(metrics()['gpushim_away_bytes'] >= LIVE and metrics()['gpushim_asleep_seconds'] >= 1, 'by the metrics')
    check(f'gpushim wake {pid}' in gpushim(folder, 'doctor', pid).stdout, 'doctor has the way out')
    found = [row for row in json.loads(gpushim(folder, 'doctor', '--json').stdout)['rows']
             if row['subject'] == 'asleep']
    check([(row['state'], row['remedy']) for row in found] == [('ok', None)],
          f'where nobody asks about it that is well: {found}')
    says(folder, 0, ('wake', pid), 'awake')
    check(told['stats']()['reserved_bytes'] >= LIVE and told['who']()['asleep_seconds'] == 0, 'and it is back')
    one.end()


def prove_it_of_own_memory(folder):
    """One that has nothing but what it made and mapped itself is asked, and sleeps for others, all the same."""
    log = os.path.join(folder, 'log')
    one = Holder(folder, SOFTCUDA_MEMORY='256M', GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on', GPUSHIM_SLEEP_AFTER='1 ms',
                 GPUSHIM_SLEEP_WAKE='use', GPUSHIM_LOG='debug')
    run(one, f'import os; os.dup2(os.open("{log}", os.O_WRONLY | os.O_CREAT, 0o600), 2)')
    run(one, OWN.format(size=LIVE))
    fill(one, 0x5a, 'held[-1]')
    can_be_asked(folder, one)
    says(folder, 0, ('sleep', str(one.pid)), '100.0 MiB off the GPU, 100.0 MiB kept on the host')
    says(folder, 0, ('wake', str(one.pid)), 'awake')
    is_right(one, 'after the wake')
    other = start(folder)
    check(tries(other, LIVE), 'it sleeps for who finds the GPU full')
    check(state(folder, one) == 'asleep', 'as it is told')
    await_that(lambda: re.search('the GPU full: 1[0-9][0-9] MiB that lay idle were given back',
                                 pathlib.Path(log).read_text(encoding='utf-8')), 'and how much it gave')
    other.end()
    is_right(one, 'and its next call wakes it')
    one.end()


SECOND_GPU = '''
second = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(second), 1) == 0 and cuda.cuCtxSetCurrent(second) == 0
'''
TWO_GPUS = {'SOFTCUDA_MEMORY': '256M', 'SOFTCUDA_DEVICES': '2', 'GPUSHIM_DEBUG_RECLAIM_FROM_PEERS': 'on'}


def prove_a_wake_on_two_gpus(folder):
    """The GPU that is full is the one that others are asked for, though it has memory on another as well."""
    one = Holder(folder, **TWO_GPUS)
    one.do(f'alloc {64 * MIB}')
    fill(one, 0x5a, 'held[-1]', 64 * MIB)
    run(one, SECOND_GPU)
    one.do(f'alloc {150 * MIB}')
    fill(one, 0x5b, 'held[-1]', 150 * MIB)
    can_be_asked(folder, one)
    says(folder, 0, ('sleep', str(one.pid)), 'asleep')
    other = Holder(folder, GPUSHIM_SLEEP_AFTER='1 ms', GPUSHIM_SLEEP_WAKE='use', **TWO_GPUS)
    run(other, SECOND_GPU)
    other.do(f'alloc {150 * MIB}')
    can_be_asked(folder, other)
    says(folder, 0, ('wake', str(one.pid)), 'awake')
    check(state(folder, other) == 'asleep', 'the other one gave way')
    check(has(one, 0x5a, 'held[-2]', 64 * MIB) and has(one, 0x5b, 'held[-1]', 150 * MIB), 'its contents are right')
    one.end()
    other.end()


def prove_own_memory_of_another_gpu(folder):
    """Nobody sleeps for a GPU on which it has nothing."""
    one = Holder(folder, GPUSHIM_SLEEP_AFTER='1 ms', **TWO_GPUS)
    run(one, OWN.format(size=LIVE))
    run(one, SECOND_GPU)
    run(one, 'p = ctypes.c_uint64(); assert cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(512)) == 0')
    run(one, 'assert cuda.cuMemFree_v2(p) == 0 and cuda.cuCtxSynchronize() == 0')
    can_be_asked(folder, one)
    other = Holder(folder, **TWO_GPUS)
    run(other, SECOND_GPU)
    other.do(f'alloc {200 * MIB}')
    check(not tries(other, LIVE), 'the second GPU is full')
    check(state(folder, one) == 'running', 'who has nothing there does not sleep for it')
    one.end()
    other.end()


def prove_who_fills_the_gpu_is_named(folder):
    """Beside a wake that does not come, with what would help: not what only one that is awake can do."""
    log = os.path.join(folder, 'log')
    one = start(folder, GPUSHIM_LOG_TARGET=log)
    one.do(f'alloc {60 * MIB}')
    says(folder, 0, ('sleep', str(one.pid)), 'asleep')
    other = Holder(folder, SOFTCUDA_MEMORY='256M', GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on')
    other.do(f'alloc {120 * MIB}')
    can_be_asked(folder, other)
    says(folder, 1, ('wake', str(one.pid), '--timeout', '0.1s'), 'has no room for 1')
    said = pathlib.Path(log).read_text(encoding='utf-8')
    check('this process sleeps, and has 0 MiB;' in said and f'process {other.pid} ' in said and
          'put other processes to sleep (gpushim sleep PID)' in said and 'free memory in this' not in said, said)
    other.end()
    says(folder, 0, ('wake', str(one.pid)), 'awake')
    check(has(one, 0x5a, 'held[-2]'), 'the contents are right after the wake')
    one.end()


def prove_one_that_holds_little(folder):
    """It puts itself to sleep, and another process wakes it."""
    one = Holder(folder, SOFTCUDA_MEMORY='256M', GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on')
    one.do(f'alloc {MIB}')
    fill(one, 0x5a, 'held[-1]', MIB)
    run(one, 'assert ctypes.CDLL(None).gpushim_sleep((ctypes.c_uint64 * 4)(32, 10 ** 10, 0, 0), None) == 0')
    says(folder, 0, ('wake', str(one.pid)), 'awake')
    check(has(one, 0x5a, 'held[-1]', MIB), 'its contents are right')
    one.end()


def prove_a_group(folder):
    """All that a control group has, and those below it; what has no socket is nobody's mistake."""
    first, second, other = (start(folder, SOFTCUDA_MEMORY='1G') for _ in range(3))
    small = Holder(folder)
    group = os.path.join(folder, 'group')
    os.makedirs(os.path.join(group, 'below'))
    for path, pids in ((group, (first.pid, small.pid, os.getpid())), (os.path.join(group, 'below'), (second.pid,))):
        with open(os.path.join(path, 'cgroup.procs'), 'w', encoding='utf-8') as file:
            file.write(''.join(f'{pid}\n' for pid in pids))
    ran = says(folder, 0, ('sleep', group), f'pid {first.pid} (', f'pid {second.pid} (')
    check(ran.stdout.count('asleep') == 2 and str(other.pid) not in ran.stdout, f'these two alone sleep: {ran.stdout}')
    told = json.loads(says(folder, 0, ('wake', group, '--json')).stdout)['rows']
    check(sorted(one['pid'] for one in told) == sorted((first.pid, second.pid)), f'and wake: {told}')
    is_right(first, 'in the group')
    is_right(second, 'below it')
    says(folder, 1, ('wake', group), 'awake already')
    says(folder, 1, ('sleep', folder), 'is no control group', 'cgroup.procs: No such file')
    check(state(folder, first) != 'asleep', 'what lies below such a folder is not meant')
    with open(os.path.join(group, 'below', 'cgroup.procs'), 'w', encoding='utf-8') as file:
        file.write(f'{small.pid}\n')
    says(folder, 1, ('sleep', os.path.join(group, 'below')), 'no process in it')
    deep, here = os.path.join(folder, 'deep'), os.getcwd()
    os.mkdir(deep)
    os.chdir(deep)  # paths are longer than a path may be
    for level in range(25):
        with open('cgroup.procs', 'w', encoding='utf-8') as file:
            file.write(f'{second.pid}\n' if level == 24 else '')
        if level < 24:
            os.mkdir('x' * 200)
            os.chdir('x' * 200)
    os.chdir(here)
    says(folder, 0, ('sleep', deep), f'pid {second.pid} (', 'asleep')
    says(folder, 0, ('wake', deep), 'awake')
    for one in (first, second, other, small):
        one.end()


def prove_a_file(folder):
    one = start(folder)
    pid = str(one.pid)
    place = os.path.join(folder, 'contents')
    os.mkdir(place)
    says(folder, 1, ('sleep', pid, '--to', os.path.join(folder, 'nowhere')), 'nowhere')
    says(folder, 0, ('sleep', pid, '--to', place), 'asleep')
    check(not os.listdir(place), 'the file has no name')
    links = [os.readlink(f'/proc/{pid}/map_files/{name}') for name in os.listdir(f'/proc/{pid}/map_files')] \
        if os.geteuid() == 0 else [place]
    check(any(link.startswith(place) for link in links), 'and is there')
    says(folder, 0, ('wake', pid), 'awake')
    is_right(one, 'from the file')
    one.end()


def prove_a_swap(folder):
    """Of 256 MiB two have room, and three have not."""
    first = start(folder)
    says(folder, 0, ('sleep', str(first.pid)), 'asleep')
    second, third = start(folder), start(folder)
    says(folder, 1, ('wake', str(first.pid), '--timeout', '0.1s'), 'GPU 0', 'no room')
    told = json.loads(says(folder, 0, ('swap', str(second.pid), str(first.pid), '--json')).stdout)['rows']
    check([(row['pid'], row['state']) for row in told] == [(second.pid, 'asleep'), (first.pid, 'awake')],
          f'as JSON: {told}')
    is_right(first, 'after a swap')
    says(folder, 0, ('sleep', str(first.pid), str(third.pid)), f'pid {first.pid} (', f'pid {third.pid} (')
    says(folder, 1, ('swap', str(first.pid), str(second.pid)), 'asleep already')
    says(folder, 2, ('swap', str(second.pid), str(second.pid)), f'both are {second.pid}')
    says(folder, 0, ('wake', str(second.pid), str(third.pid)), 'awake')
    is_right(second, 'after the others slept')
    is_right(third, 'as the last')
    for one in (first, second, third):
        one.end()


def prove_one_order_at_a_time(folder):
    """What comes while it is at another one is not taken for done, also where that takes longer than others wait for an
    answer."""
    one = start(folder, GPUSHIM_DEBUG_TIMEOUT='100 ms')
    pid = str(one.pid)
    threads = lambda: len(os.listdir(f'/proc/{pid}/task'))
    before = threads()
    run(one, HELD)
    with subprocess.Popen([GPUSHIM, 'sleep', pid], env=clean(folder), stdout=subprocess.DEVNULL) as first:
        await_that(lambda: threads() > before, 'it begins')
        says(folder, 1, ('wake', pid), pid, 'another order')
        time.sleep(1)
        run(one, 'cuda.softcuda_hold(0)')
    check(first.returncode == 0 and state(folder, one) == 'asleep', 'the first order is done')
    says(folder, 0, ('wake', pid), 'awake, in')
    is_right(one, 'after both')
    one.end()


ENDS_NEVER = '''
libc, key = ctypes.CDLL(None), ctypes.c_uint()
address = lambda name: ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
assert libc.pthread_key_create(ctypes.byref(key), libc.pause) == 0
listener = (ctypes.c_uint64 * 5)(40, 0, 0, address('pthread_setspecific'), key.value)
assert libc.gpushim_listen(listener) == 0
'''


def prove_a_thread_that_does_not_end(folder):
    """At the end of a thread the driver's code runs, and the program's: nobody waits for that of an order's."""
    one = start(folder, GPUSHIM_POOL_DECAY='0')
    pid = str(one.pid)
    one.do(f'alloc {16 * MIB}')
    one.do('free 1')
    run(one, ENDS_NEVER)
    for _ in range(2):
        says(folder, 0, ('sleep', pid), 'asleep, in')
        says(folder, 0, ('wake', pid), 'awake, in')
    one.end()


def prove_who_asks_late(folder):
    """What came of a later order is not told as what came of the first."""
    one = start(folder)
    pid = str(one.pid)
    threads = lambda: len(os.listdir(f'/proc/{pid}/task'))
    before = threads()
    run(one, HELD)
    with subprocess.Popen([GPUSHIM, 'sleep', pid], env=clean(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as first:
        await_that(lambda: threads() > before, 'it begins')
        first.send_signal(signal.SIGSTOP)
        run(one, 'cuda.softcuda_hold(0)')
        await_that(lambda: state(folder, one) == 'asleep', 'it sleeps')
        await_that(lambda: gpushim(folder, 'wake', pid).returncode == 0, 'it is woken')
        first.send_signal(signal.SIGCONT)
        told = first.communicate()
    check(first.returncode == 1 and 'another order' in told[1], f'the first hears nothing of the second: {told}')
    is_right(one, 'after both')
    one.end()


def prove_a_stopped_process(folder):
    """It is told in a moment that it does not answer, and does nothing when it goes on."""
    one = start(folder)
    one.stop()
    begun = time.monotonic()
    says(folder, 1, ('sleep', str(one.pid)), f'pid {one.pid} ', 'stopped')
    took = time.monotonic() - begun
    check(took < 30, f'which takes {took} s')  # as long as a sleep may take
    os.kill(one.pid, signal.SIGCONT)
    is_right(one, 'as it goes on')
    check(state(folder, one) == 'running', 'it does not sleep')
    says(folder, 0, ('sleep', str(one.pid)), 'asleep, in')
    one.stop()
    says(folder, 1, ('wake', str(one.pid)), f'pid {one.pid} ', 'stopped')
    os.kill(one.pid, signal.SIGCONT)
    check(state(folder, one) == 'asleep', 'it sleeps on')
    says(folder, 0, ('wake', str(one.pid)), 'awake, in')
    is_right(one, 'after the wake')
    one.end()


def prove_a_tag(folder):
    """What bears it is not kept."""
    one = start(folder)
    run(one, """
library, spare = ctypes.CDLL(None), ctypes.c_uint64()
assert library.gpushim_tag(b"kv") == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(spare), ctypes.c_size_t(50 << 20)) == 0
assert library.gpushim_tag(None) == 0
""")
    says(folder, 1, ('sleep', str(one.pid), '--discard', 'kw'), "no memory with the tag 'kw'")
    says(folder, 2, ('sleep', str(one.pid), '--discard', 'k' * 64), '--discard')
    says(folder, 0, ('sleep', str(one.pid), '--discard', 'kv'), '150.0 MiB off the GPU, 100.0 MiB kept on the host')
    says(folder, 0, ('wake', str(one.pid)), 'awake')
    is_right(one, 'what bears no tag')
    one.end()


def tries(one, size):
    """Whether it gets so much."""
    return run(one, f'print(cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t({size})))') == '0'


def prove_by_itself(folder):
    """A program that makes no call sleeps for one that finds the GPU full, and its next call wakes it."""
    settings = {'GPUSHIM_SLEEP_AFTER': '1 ms', 'GPUSHIM_SLEEP_WAKE': 'use'}
    first = start(folder, **settings)
    check(state(folder, first) == 'running', 'nobody needs it')
    second = start(folder, **settings)
    check({state(folder, first), state(folder, second)} == {'running'}, 'there is room for two')
    third = start(folder, **settings)
    check(state(folder, third) == 'running', 'the third has its memory')
    for turn in range(3):
        for one in (first, second, third):
            is_right(one, f'in turn {turn}')
    check('asleep' in (state(folder, one) for one in (first, second, third)), 'one of them sleeps at any time')
    for one in (first, second, third):
        one.end()


WATCH = '''
import threading, time
took, state = [], ctypes.create_string_buffer((1024).to_bytes(8, 'little'), 1024)
def watch():
    assert cuda.cuCtxSetCurrent(context) == 0
    since = 0
    while not since:
        time.sleep(0.001)
        assert ctypes.CDLL(None).gpushim_asleep(state) == 0
        since = int.from_bytes(state[8:16], 'little')
    assert cuda.cuMemsetD8_v2(held[-1], ctypes.c_ubyte(0x5a), ctypes.c_size_t(1)) == 0
    took.append(time.monotonic_ns() - since)
watcher = threading.Thread(target=watch)
watcher.start()
'''
TAKE = '''
more = ctypes.c_uint64()
assert cuda.cuMemAlloc_v2(ctypes.byref(more), ctypes.c_size_t(100 << 20)) == 0 and cuda.cuMemFree_v2(more) == 0
'''


def prove_who_asked_has_it_first(folder):
    """Who went to sleep for another does not take the memory back at once, though it is used again then."""
    one = start(folder, GPUSHIM_SLEEP_AFTER='1 ms', GPUSHIM_SLEEP_WAKE='use')
    other = start(folder)
    run(one, WATCH)
    run(other, TAKE)
    check(float(run(one, 'watcher.join(); print(took[0])')) >= 0.25e9, 'it is a moment later that it wakes')
    is_right(one, 'as it was')
    one.end()
    other.end()


def prove_who_does_not_sleep(folder):
    """One that has not been idle for so long, and one that nobody told to."""
    for settings in ({'GPUSHIM_SLEEP_AFTER': '60 min'}, {}):
        one, other = start(folder, **settings), start(folder)
        check(not tries(other, LIVE), f'with {settings} it does not sleep')
        is_right(one, 'though another found the GPU full')
        check(state(folder, one) == 'running', 'nor is it told to')
        one.end()
        other.end()


BUSY = '''
import threading
calls, ends = [0], []
def work():
    assert cuda.cuCtxSetCurrent(context) == 0
    while not ends:
        assert cuda.cuMemsetD8_v2(held[-1], ctypes.c_ubyte(0x5a), ctypes.c_size_t(1)) == 0
        calls[0] += 1
worker = threading.Thread(target=work)
worker.start()
'''


def prove_who_calls_is_not_idle(folder):
    """Though it has run for longer than that, by a clock of its own: no time goes by where nothing looks at that."""
    one = start(folder, before=('env', f'LD_PRELOAD={SHIM}:{os.environ["STILL_CLOCK"]}'),
                GPUSHIM_SLEEP_AFTER='50 ms', GPUSHIM_SLEEP_WAKE='use')
    other = start(folder)
    run(one, BUSY)
    await_that(lambda: int(run(one, 'print(calls[0])')) > 200000, 'it has called for 0.2 s by that clock')
    check(not tries(other, LIVE), 'who calls all the time does not sleep')
    run(one, 'ends.append(1); worker.join()')
    one.end()
    other.end()


def prove_what_stays(folder):
    """What another has open, and no longer than that."""
    one, other = start(folder), Holder(folder, SOFTCUDA_MEMORY='256M', GPUSHIM_DEBUG_IDLE='60 min')
    other.do('open ' + one.do('share 0'))
    says(folder, 0, ('sleep', str(one.pid)), 'MiB shared stay')
    says(folder, 0, ('wake', str(one.pid)), 'awake')
    is_right(one, 'where it stayed')
    for turn in range(2):
        other.do('close 0')
        told = says(folder, 0, ('sleep', str(one.pid)), '100.0 MiB kept on the host')
        check('stay' not in told.stdout, f'what is closed does not stay, in turn {turn}: {told}')
        says(folder, 0, ('wake', str(one.pid)), 'awake')
        is_right(one, 'after what was closed went with it')
        other.do('open ' + one.do('share 0'))
    one.end()
    other.end()


def prove_the_stream_is_named(folder):
    """Of a host function that does not end; 1 is the default stream by its own name (CU_STREAM_LEGACY). None is where
    all streams wait."""
    one = start(folder)
    run(one, '''
import threading
goes = threading.Event()
stops = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda unused: goes.wait())
''')
    for stream in ('ctypes.c_void_p()', 'ctypes.c_void_p(); assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0'):
        run(one, f'goes.clear(); stream = {stream}; assert cuda.cuLaunchHostFunc(stream, stops, None) == 0')
        named = one.run('print(stream.value or 1)')
        says(folder, 1, ('sleep', str(one.pid), '--timeout', '0.3s'), 'does not end',
             f'went to stream {int(named):#x}\n')
        run(one, 'goes.set(); assert cuda.cuCtxSynchronize() == 0')
        says(folder, 0, ('sleep', str(one.pid)), 'asleep')
        says(folder, 0, ('wake', str(one.pid)), 'awake')
    run(one, '''
event, context = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuEventCreate(ctypes.byref(event), 0) == 0 and cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0
goes.clear()
assert cuda.cuLaunchHostFunc(stream, stops, None) == 0 and cuda.cuCtxWaitEvent(context, event) == 0
''')
    says(folder, 1, ('sleep', str(one.pid), '--timeout', '0.3s'), 'an event or a value\n')
    run(one, 'goes.set(); assert cuda.cuCtxSynchronize() == 0')
    is_right(one, 'when it went late')
    one.end()


def prove_what_is_wrong(folder):
    one = start(folder, GPUSHIM_SHARE_UIDS=str(NOBODY))
    says(folder, 1, ('sleep', str(os.getpid())), str(os.getpid()))
    if os.geteuid() == 0:
        os.chmod(folder, 0o777)
        command = for_everybody(folder, GPUSHIM)
        other = subprocess.run([command, 'sleep', str(one.pid)], env=clean(folder), capture_output=True, text=True,
                               user=NOBODY, group=NOBODY, extra_groups=(), check=False)
        check(other.returncode == 1 and 'asleep' not in other.stdout, f'another user may not: {other}')
        is_right(one, 'when another user had it sleep')
    one.end()


prove_each(prove_it, prove_it_of_own_memory, prove_a_wake_on_two_gpus, prove_own_memory_of_another_gpu,
           prove_who_fills_the_gpu_is_named, prove_one_that_holds_little, prove_it_is_told, prove_a_group, prove_a_file,
           prove_a_swap, prove_one_order_at_a_time, prove_a_thread_that_does_not_end, prove_who_asks_late,
           prove_a_stopped_process, prove_a_tag, prove_by_itself, prove_who_asked_has_it_first,
           prove_who_does_not_sleep, prove_who_calls_is_not_idle, prove_what_stays, prove_the_stream_is_named,
           prove_what_is_wrong)
