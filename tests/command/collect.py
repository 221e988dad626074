"""gpushim collect: what processes have closed and keep goes back, and what others gave back is used again.

    collect.py GPUSHIM SHIM LIBCUDA
"""
import json
import os
import re
import resource
import subprocess
import tempfile

from holder import (GPUSHIM, MIB, Holder, await_that, check, clean, end_with_faults, gpushim)
import wire

# Nothing comes back by itself while a test runs.
LONG = {'GPUSHIM_DEBUG_IDLE': '60 min', 'GPUSHIM_POOL_DECAY': '60 min', 'GPUSHIM_DEBUG_GRACE': '60 min'}


def rows(folder, *arguments):
    run = gpushim(folder, *arguments, '--json')
    return json.loads(run.stdout)['rows'] if run.stdout else []


def collected(folder, pid, target=None):
    found = [row for row in rows(folder, 'collect', str(target or pid)) if row['pid'] == pid]
    return found[0] if len(found) == 1 else {}


def references(folder, pid):
    """How many blocks of the process others hold, as the process tells it."""
    return sum(holder['blocks'] for row in rows(folder, 'who') if row['pid'] == pid for holder in row['holders'])


def start(folder):
    holder = Holder(folder, **LONG)
    holder.do(f'alloc {96 * MIB}')
    await_that(lambda: any('live_bytes' in row for row in rows(folder, 'stats') if row['pid'] == holder.pid),
               'a process that holds enough can be asked')
    return holder


def prove_it_goes_back(folder):
    exporter, importer = start(folder), Holder(folder, **LONG)  # which has no memory of its own
    for i in range(3):
        exporter.do(f'alloc {(i + 2) * MIB}')
        importer.do(f'open {exporter.do(f"share {i + 1}")}')
    check(references(folder, exporter.pid) == 3, f'three are open: {rows(folder, "who")}')
    none = collected(folder, importer.pid)
    check((none.get('given_blocks'), none.get('held_blocks'), none.get('silent')) == (0, 0, None),
          f'what is open is not taken: {none}')
    importer.do('close 2')
    importer.do('close 1')
    check(references(folder, exporter.pid) == 3, 'what is closed is kept for the next open')
    row = collected(folder, importer.pid)
    check((row.get('given_blocks'), row.get('given_bytes')) == (2, 7 * MIB), f'two go back: {row}')
    await_that(lambda: references(folder, exporter.pid) == 1, 'and the exporter has them back')
    check(collected(folder, importer.pid).get('given_blocks') == 0, 'there are no more')
    importer.do(f'open {exporter.do("share 2")}')
    check(references(folder, exporter.pid) == 2, 'one is opened again')
    exporter.do('free 1')
    row = collected(folder, exporter.pid, 'all')
    check((row.get('held_blocks'), row.get('held_bytes')) == (1, 2 * MIB), f'what is freed and open is told: {row}')
    importer.do('close 0')
    ended = []

    def is_over():
        ended.append(collected(folder, exporter.pid))
        return ended[-1].get('held_blocks') == 0
    await_that(is_over, 'until it is closed')
    check(all(row['given_bytes'] == row['given_blocks'] == 0 and (row['ended_bytes'] > 0) == (row['ended_blocks'] > 0)
              for row in ended), f'whose ends it tells: {ended}')
    little = re.compile(rf'^pid {importer.pid} \(.*\): 1 closed, 64\.0 KiB, go back', re.M)
    collected(folder, importer.pid)
    exporter.do(f'alloc {MIB // 16}')
    importer.do(f'open {exporter.do("share 3")}')
    importer.do('close 1')
    text = gpushim(folder, 'collect', str(importer.pid)).stdout
    check(little.search(text), f'a part of a MiB is not none: {text}')
    text = gpushim(folder, 'collect', 'all').stdout
    check(text.count('go back to their processes') == 2 and f'pid {exporter.pid} (' in text, f'both tell it: {text}')
    return exporter, importer


def prove_wrong(folder, holder):
    little, apart = Holder(folder), Holder(folder, library=False)
    little.do(f'alloc {MIB}')
    apart.do(f'alloc {MIB}')
    for pid, word in ((little.pid, 'holds less than 64 MiB'), (apart.pid, 'has not the library')):
        for more in ((), ('--json',)):
            run = gpushim(folder, 'collect', str(pid), *more)
            check(run.returncode == 1 and word in run.stderr, f'{word}: {run}')
    little.end()
    apart.end()
    run = gpushim(folder, 'collect', str(little.pid))
    check(run.returncode == 1 and 'there is none' in run.stderr, f'one that has ended: {run}')
    holder.stop()
    run = gpushim(folder, 'collect', 'all')
    check(run.returncode == 1 and f'pid {holder.pid} (' in run.stderr and 'does not answer' in run.stderr,
          f'one that is stopped is named: {run}')
    check(run.stdout.count('go back to their processes') == 1, f'and the other collects: {run}')
    holder.process.send_signal(18)  # SIGCONT
    with tempfile.TemporaryDirectory(prefix='gpushim-collect-') as other:
        run = gpushim(other, 'collect', 'all')
        check(run.returncode == 0 and not run.stdout, f'nobody is there: {run}')


def prove_answers(folder):
    """What each says is told of it: of who hangs up, who refuses a value, and many. No broker is told."""
    holder, me = start(folder), str(os.getpid())
    [path] = wire.sockets(folder)
    with wire.Between(folder, path, {wire.ORDER: None}):
        run = gpushim(folder, 'collect', me)
        check(run.returncode == 1 and re.search(rf'^gpushim: pid {me} \(.*\): hangs up$', run.stderr, re.M) and
              'go back' not in run.stdout, f'one that hangs up is said to: {run}')
        run = gpushim(folder, 'collect', me, '--json')
        [row] = json.loads(run.stdout)['rows']
        check(run.returncode == 1 and row['silent'] and 'given_blocks' not in row, f'in JSON too: {run}')
    with wire.Between(folder, path, {wire.ORDER: wire.done(1, 2, 3, 4, 5, 6)}):
        told = collected(folder, os.getpid())
        check([told[f'{what}_{of}'] for what in ('given', 'ended', 'held') for of in ('blocks', 'bytes')] == [1, 2, 3, 4, 5, 6],
              f'each number is told as what it is: {told}')
        text = gpushim(folder, 'collect', me).stdout
        check('1 closed, 2 bytes, go back to their processes; 3 freed, 4 bytes, are held no more; 5 freed, 6 bytes, are still' in
              text, f'in text, too: {text}')
    for outcome, word in ((1, 'does not change pool.decay while it runs'), (2, 'does not take this value for pool.decay')):
        with wire.Between(folder, path, {wire.ORDER: wire.done(5, 6, outcome=outcome)}):
            run = gpushim(folder, 'set', me, 'pool.decay=3 s')
            check(run.returncode == 1 and not run.stdout and word in run.stderr, f'a set that is refused: {run}')
            run = gpushim(folder, 'set', me, 'pool.decay=3 s', '--json')
            [row] = json.loads(run.stdout)['rows']
            check(run.returncode == 1 and word in row['silent'] and 'before' not in row, f'in JSON too: {run}')
    few = {'preexec_fn': lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))}
    with wire.Between(folder, path, count=40):
        run = subprocess.run([GPUSHIM, 'collect', 'all', '--json'], env=clean(folder), capture_output=True, text=True,
                             check=False, **few)
        pids = [row['own_pid'] for row in json.loads(run.stdout)['rows'] if not row['silent']]
        check(run.returncode == 0 and pids == [holder.pid] * 41, f'each of many is told with few descriptors: {run}')
    with subprocess.Popen([GPUSHIM, 'broker'], env=clean(folder)) as broker:
        await_that(lambda: any(name.startswith('broker') and not name.endswith('.new') for name in os.listdir(folder)),
                   'a broker listens')
        run = gpushim(folder, 'collect', 'all', '--json')
        check(run.returncode == 0 and [row['pid'] for row in json.loads(run.stdout)['rows']] == [holder.pid],
              f'a broker is not told: {run}')
        broker.terminate()
    holder.end()


def prove_hostile(folder):
    for path in wire.sockets(folder):
        for text in (wire.message(wire.ORDER, b'x'), wire.done()):
            check(wire.is_refused(wire.say(path, text), wire.OUT_OF_PLACE), f'{text} is refused')
        answers = wire.say(path, *[wire.order(wire.COLLECT)] * 50)
        check([kind for kind, _ in answers] == [wire.DONE] * 50, f'each of many is answered: {len(answers)}')


def main():
    with tempfile.TemporaryDirectory(prefix='gpushim-collect-') as folder:
        os.chmod(folder, 0o700)
        exporter, importer = prove_it_goes_back(folder)
        prove_hostile(folder)
        prove_wrong(folder, importer)
        exporter.end()
        importer.end()
    with tempfile.TemporaryDirectory(prefix='gpushim-collect-') as folder:
        os.chmod(folder, 0o700)
        prove_answers(folder)
    end_with_faults()


main()
