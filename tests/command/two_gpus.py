"""Commands about a process that has two GPUs of different state; what a command that watches keeps open; and
exit statuses, which --json does not change.

    two_gpus.py GPUSHIM SHIM LIBCUDA
"""
import json
import os
import re
import subprocess

from holder import GPUSHIM, MIB, Holder, await_that, check, clean, gpushim, prove_each, rows

ON = '''
import threading, time
contexts = [context, ctypes.c_void_p()]
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(contexts[1]), 1) == 0
def on(device):
    assert cuda.cuCtxSetCurrent(contexts[device]) == 0
def turn():
    pointer = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)) == 0
    assert cuda.cuMemFree_v2(pointer) == 0
def work():
    on(1)
    while True:
        turn()
        time.sleep(0.002)
'''


def start(folder):
    one = Holder(folder, SOFTCUDA_DEVICES='2', GPUSHIM_POOL_DECAY='60 min', GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on')
    one.run(f'globals().update(ctypes=ctypes, cuda=cuda, context=context); exec({ON!r}, globals())')
    return one


def of(folder, one):
    """The rows of its devices."""
    return {row['device']: row for row in rows(folder, 'stats') if row['pid'] == one.pid and 'device' in row}


def kept(found, device):
    return sum(found.get(device, {}).get(f'{state}_bytes', 0) for state in ('cached', 'retired'))


def prove_trim(folder):
    """The first GPU keeps nothing, the second one does; and the other way round."""
    for idle, device in ((0, 1), (1, 0)):
        one = start(folder)
        one.run(f'on({idle})')
        one.do(f'alloc {2 * MIB}')
        one.run(f'on({device})')
        one.do(f'alloc {96 * MIB}')
        one.do(f'alloc {128 * MIB}')
        one.do('free 2')
        await_that(lambda: kept(of(folder, one), device) >= 128 * MIB, 'it keeps that')
        check(sorted(of(folder, one)) == [0, 1], f'both are listed: {of(folder, one)}')
        sums = {row['device']: row['given_bytes'] for row in rows(folder, 'trim', str(one.pid))}
        check(sums.get(device, 0) >= 128 * MIB and sums.get(idle, 0) < 128 * MIB,
              f'of GPU {device}, not {idle}: {sums}')
        check(kept(of(folder, one), device) < 128 * MIB, f'and it is gone: {of(folder, one)}')
        told = gpushim(folder, 'export', '--prometheus').stdout
        lives = {int(number): int(value) for number, value in re.findall(
            rf'^gpushim_memory_bytes{{gpu="[^"]*",device="(\d)",pid="{one.pid}",.*state="live"}} (\d+)$', told, re.M)}
        check(lives == {idle: 2 * MIB, device: 96 * MIB}, f'export tells them apart: {lives}')
        check(len(re.findall(rf'^gpushim_up{{.*pid="{one.pid}"', told, re.M)) == 1, f'and it is one process: {told}')
        sizes = [row.get('reserved_bytes', 0) for row in rows(folder, 'stats')]
        check(len(sizes) >= 2 and sizes == sorted(sizes, reverse=True), f'who has most comes first: {sizes}')
        one.run(f'on({idle})')
        one.do('free 0')
        gpushim(folder, 'trim', str(one.pid))
        await_that(lambda: of(folder, one).get(idle, {}).get('reserved_bytes') == 0,
                   'a GPU that it had memory of is listed')
        one.end()


def prove_rates(folder):
    """Work on the second GPU alone is none of the first's. What watches keeps no descriptor from one look to
    the next."""
    one = start(folder)
    one.run('on(0)')
    for _ in range(20):
        one.do(f'alloc {4 * MIB}')
    one.run('for _ in range(30000): turn()')  # more calls than there are on the second meanwhile
    one.run('threading.Thread(target=work, daemon=True).start()')
    await_that(lambda: of(folder, one).get(1, {}).get('allocations_from_cache', 0) > 50, 'it works on the second GPU')
    watching = subprocess.Popen([GPUSHIM, 'stats', str(one.pid), '--watch', '0.2s'], env=clean(folder),
                                stdout=subprocess.PIPE, text=True)
    rates, open_files = {0: [], 1: []}, []
    while len(rates[0]) < 6:
        row = re.fullmatch(rf' *{one.pid} \S+ +([01])(?: +[\d.]+(?: [KMGT]iB| bytes)?){{5}} +(?:-|[\d.]+(?: '
                           r'[KMGT]iB)?) +(-?\d+)(/s)? .*\n', watching.stdout.readline())
        if row and row[3]:
            rates[int(row[1])].append(int(row[2]))
            open_files.append(len(os.listdir(f'/proc/{watching.pid}/fd')))
    check(set(rates[0]) == {0}, f'nothing is done on the first: {rates}')
    check(0 < max(rates[1]) < 5000, f'and something on the second: {rates}')
    # It may be at its next look already, and have some for that: not so at each of the last rows.
    check(min(open_files[-4:]) <= min(open_files) + 2, f'descriptors from look to look: {open_files}')
    watching.stdout.close()
    watching.kill()
    watching.wait()
    one.end()


def prove_statuses(folder):
    one = start(folder)
    version = gpushim(folder, 'version').stdout.split()[1]
    one.do(f'alloc {96 * MIB}')
    pid = str(one.pid)
    await_that(lambda: of(folder, one), 'it answers')
    cases = [(('stats',), 0), (('stats', pid), 0), (('stats', '1'), 1), (('who',), 0), (('who', pid), 0),
             (('who', '1'), 1),
             (('who', '0x10'), 2), (('trim', pid), 0), (('trim', '1'), 1), (('trim', 'all'), 0),
             (('set', pid, 'pool.decay=3 s'), 0),
             (('set', '1', 'pool.decay=3 s'), 1), (('ls',), 0), (('ls', 'nobody'), 1), (('doctor', '4194304'), 1),
             (('version',), 0), (('config',), 0), (('report', '/dev/null'), 1), (('stats', 'x'), 2),
             (('ls', 'a', 'b'), 2)]
    stopped = [(('trim', pid), 1), (('trim', 'all'), 1), (('set', pid, 'pool.decay=3 s'), 1),
               (('ls',), 1), (('stats', pid), 0), (('who', pid), 0)]
    for some in (cases, stopped):
        for arguments, status in some:
            for form in ((), ('--json',)):
                run = gpushim(folder, *arguments, *form)
                check(run.returncode == status, f'{arguments} {form} ends with {run.returncode}, not {status}: {run}')
                told = json.loads(run.stdout) if form and run.stdout else {'version': version,
                                                                           'time': '2026-11-23T21:04:48Z'}
                check(told['version'] == version and re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ', told['time']),
                      f'{arguments}: its version and the time: {run.stdout}')
                if some is stopped and arguments[0] in ('trim', 'set'):
                    said = json.loads(run.stdout)['rows'] if form else []
                    check([row['silent'] for row in said] == ['does not answer, as it is stopped'] * len(form) and
                          (form or 'does not answer, as it is stopped' in run.stdout + run.stderr),
                          f'{arguments} {form} says why: {run}')
        one.stop()
    one.end()


prove_each(prove_trim, prove_rates, prove_statuses)
