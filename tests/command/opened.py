"""gpushim who and stats, of memory that a process has open of others: whose it is, how much, and that its owner has
ended, which ends nothing of it.

    opened.py GPUSHIM SHIM LIBCUDA
"""
import json
import re
import resource
import shutil
import subprocess

from holder import GPUSHIM, MIB, Holder, await_that, check, clean, gpushim, prove_each, rows, stats_of

LONG = {'GPUSHIM_DEBUG_IDLE': '60 min', 'GPUSHIM_POOL_DECAY': '60 min', 'GPUSHIM_DEBUG_GRACE': '60 min'}
NOW = {'GPUSHIM_DEBUG_IDLE': '0', 'GPUSHIM_DEBUG_GRACE': '0'}  # what is closed or freed goes at once
BROKER = {**LONG, 'GPUSHIM_SHARE_STRATEGY': 'broker', 'GPUSHIM_SHARE_BROKER': GPUSHIM + '-broker'}


def opened(folder, importer):
    """Nothing where it cannot be asked yet."""
    return sorted((owner['pid'], owner['ended'], owner['blocks'], owner['bytes'])
                  for row in rows(folder, 'who') if row['pid'] == importer.pid for owner in row['opened_from'])


def figures(folder, importer):
    row = stats_of(folder, importer.pid)
    return row['opened_bytes'], row['opened_of_ended_bytes']


def shared(holder, *sizes):
    """The handles of blocks of these sizes."""
    handles = []
    for size in sizes:
        holder.do(f'alloc {size}')
        handles.append(holder.do('share ' + holder.run('print(len(held) - 1)')))
    return handles


def prove_ended_owners(folder):
    lasting, leaving = Holder(folder, **LONG), Holder(folder, **LONG)
    others = [Holder(folder, **LONG) for _ in range(4)]  # more than there are clients
    importer = Holder(folder, **NOW)
    of_lasting, of_leaving = shared(lasting, 3 * MIB), shared(leaving, 5 * MIB, 6 * MIB, 7 * MIB)
    for handle in (*of_lasting, *of_leaving):
        importer.do(f'open {handle}')
    importer.do('close 3')
    for other in others:
        handle, = shared(other, MIB)
        importer.do(f'open {handle}')
    await_that(lambda: sum(size == MIB for _, _, _, size in opened(folder, importer)) == len(others), 'it has of many')
    run = subprocess.run([GPUSHIM, 'who', '--json'], env=clean(folder), capture_output=True, text=True, check=False,
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10)))
    check(len(json.loads(run.stdout)['rows']) == 3 + len(others), f'a descriptor is had for one at a time: {run}')
    for _ in others:
        importer.do('close 3')
    for other in others:
        other.end()
    await_that(lambda: opened(folder, importer) == sorted([(lasting.pid, False, 1, 3 * MIB),
                                                         (leaving.pid, False, 2, 11 * MIB)]),
               'it has of two who run what it has not closed')
    mapped, of_ended = figures(folder, importer)
    check(mapped >= 14 * MIB and of_ended == 0, f'of them all: {mapped}, {of_ended}')
    text = gpushim(folder, 'stats').stdout
    check('has ended' not in gpushim(folder, 'who').stdout + text, 'nobody has ended')
    check(re.search(rf'^{importer.pid} .*no memory by cuMemAlloc and the like, and has {mapped / MIB:.1f} MiB of '
                    r'others open$', text, re.M),
          f'that is all it has: {text}')
    leaving.end()
    await_that(lambda: (leaving.pid, True, 2, 11 * MIB) in opened(folder, importer),
               'one has ended, and leaves it that')
    after, of_ended = figures(folder, importer)
    check(after == mapped and 11 * MIB <= of_ended <= mapped - 3 * MIB, f'it is in the figures: {after}, {of_ended}')
    text = gpushim(folder, 'who').stdout
    check(f'has open of pid {leaving.pid}, which has ended: 2 blocks, 11.0 MiB; mapped' in text and
          f'has open of pid {lasting.pid}: 1 blocks, 3.0 MiB; mapped' in text, text)
    check(f'opened: {of_ended / (1 << 20):.1f} MiB of processes that have ended' in gpushim(folder, 'stats').stdout,
          'in text')
    text = gpushim(folder, 'who', str(importer.pid)).stdout
    check(re.search(rf'^process pid {lasting.pid} .*\n(?:  .*\n)*  held by pid {importer.pid} ', text, re.M),
          f'by the number of who holds it: {text}')
    text = gpushim(folder, 'who', str(leaving.pid)).stdout
    check(f'pid {importer.pid} ' in text and f'pid {lasting.pid} (' not in text, f'by the number of the ended: {text}')
    for _ in range(2):
        importer.do('close 1')
    await_that(lambda: opened(folder, importer) == [(lasting.pid, False, 1, 3 * MIB)], 'closed, it is no more')
    check(figures(folder, importer)[1] == 0, 'nor in the figures')
    importer.end()
    lasting.end()


def prove_at_a_broker(folder):
    """Which has what its process left: who opens it there knows that much of its owner."""
    owner = Holder(folder, **BROKER)
    handle, = shared(owner, MIB)
    await_that(lambda: any(row['broker'] and row['blocks'] for row in rows(folder, 'who')),
               'it is left with the broker')
    text = gpushim(folder, 'who').stdout
    check(re.search(rf'^  from pid {owner.pid} \(.*: 1 blocks left here$', text, re.M), f'who tells by whom: {text}')
    early, late = Holder(folder, **NOW), Holder(folder, **NOW)
    early.do(f'open {handle}')
    owner.end()
    await_that(lambda: opened(folder, early) == [(owner.pid, True, 1, MIB)], 'who had it open knows whose it is')
    late.do(f'open {handle}')
    await_that(lambda: opened(folder, late), 'it can be asked soon')
    row, = (row for row in rows(folder, 'who') if row['pid'] == late.pid)
    check([(entry['pid'], entry['own_pid'], entry['ended']) for entry in row['opened_from']] == [(None, None, True)],
          f'who opens it of the broker knows that its owner has ended: {row}')
    check('has open of a process that is not known here, which has ended' in gpushim(folder, 'who').stdout, 'in text')
    for each in (early, late):
        each.end()


def prove_another_namespace(folder):
    """Numbers of another PID namespace are no processes of here."""
    apart = ('unshare', '--pid', '--fork', '--kill-child')
    if not shutil.which('unshare') or subprocess.run([*apart, 'true'], stderr=subprocess.DEVNULL,
                                                     check=False).returncode:
        print('no PID namespace can be made here')
        return
    owner = Holder(folder, before=apart, **LONG)
    first = owner.run('import os; print(os.readlink("/proc/self"))')
    importer = Holder(folder, before=('nsenter', f'--pid=/proc/{first}/ns/pid', '--'), **NOW)
    handle, = shared(owner, 3 * MIB)
    importer.do(f'open {handle}')
    await_that(lambda: any(row['opened_from'] for row in rows(folder, 'who')), 'it can be asked soon')
    found = [entry for row in rows(folder, 'who') for entry in row['opened_from']]
    check([(entry['pid'], entry['own_pid'], entry['bytes']) for entry in found] == [(None, 1, 3 * MIB)],
          f'it is the first there: {found}')
    check('has open of pid 1 of its PID namespace: 1 blocks' in gpushim(folder, 'who').stdout, 'in text')
    for each in (importer, owner):
        each.end()


prove_each(prove_ended_owners, prove_at_a_broker, prove_another_namespace)
