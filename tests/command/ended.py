"""gpushim stats, of processes that have ended: their last figures, which a broker keeps, in text and in JSON,
whichever way they ended in order; nothing of one that was killed; and nothing once the broker has ended.

    ended.py GPUSHIM SHIM LIBCUDA
"""
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import tempfile

from holder import GPUSHIM, MIB, PATIENT_S, Holder, await_that, check, clean, end_with_faults, gpushim
from wire import ABOUT_ENDED, NUMBER, OUT_OF_PLACE, is_refused, message, query, say

# What the program does, and the status that it has then.
ENDS = {'exit': ('sys.exit(2)', 2), '_exit': ('import os; os._exit(3)', 3),
        'quick_exit': ('ctypes.CDLL(None).quick_exit(4)', 4)}


def rows(folder, *arguments):
    run = gpushim(folder, *arguments, '--json')
    check(run.returncode == 0, f'{arguments} --json ends with {run.returncode}: {run.stderr}')
    return json.loads(run.stdout)['rows'] if run.stdout else []


def ended(folder):
    return [row for row in rows(folder, 'stats') if row['state'] == 'ended']


def await_left(folder, pid):
    """What it shares is with the broker: then it has a connection to that."""
    def is_left():
        return re.search(rf'pid {pid} \(.*: [1-9]\d* blocks left here', gpushim(folder, 'who').stdout)
    await_that(is_left, f'process {pid} leaves what it shares with the broker')


def sharer(folder, size):
    holder = Holder(folder, GPUSHIM_SHARE_STRATEGY='broker', GPUSHIM_SHARE_KEEP='100s')
    holder.do(f'alloc {size}')
    holder.do('share 0')
    await_left(folder, holder.pid)
    return holder


def end(holder, how):
    does, expected = ENDS[how]
    holder.process.stdin.write(f'do {does.encode().hex()}\n')
    holder.process.stdin.close()
    status = holder.process.wait(timeout=PATIENT_S)
    check(status == expected, f'{how}: the status is its own: {status}')


def prove_an_end(folder, how):
    holder = sharer(folder, 96 * MIB)
    live = [row for row in rows(folder, 'stats', str(holder.pid)) if row['pid'] == holder.pid]
    check(len(live) == 1 and live[0]['state'] == 'running' and 'ended_seconds' not in live[0],
          f'while it runs it has not ended: {live}')
    end(holder, how)
    await_that(lambda: any(row['pid'] == holder.pid for row in ended(folder)), f'{how}: it is listed as ended')
    row = [row for row in ended(folder) if row['pid'] == holder.pid]
    check(len(row) == 1 and row[0]['live_bytes'] == 96 * MIB and row[0]['device'] == 0 and
          row[0]['name'].startswith('python') and row[0]['own_pid'] == holder.pid and not row[0]['stopped'] and
          row[0]['uuid'] == live[0]['uuid'] and 0 <= row[0]['ended_seconds'] <= 2 * PATIENT_S,
          f'{how}: with its last figures: {row}')
    return holder.pid


def prove_a_stopped_broker(folder, broker):
    """Nobody's end waits for it. What was said by then it reads when it goes on."""
    holder = sharer(folder, 96 * MIB)
    broker.send_signal(signal.SIGSTOP)
    end(holder, 'exit')
    broker.send_signal(signal.SIGCONT)
    await_that(lambda: any(row['pid'] == holder.pid for row in ended(folder)), 'it is listed then')
    return holder.pid


def prove_text(folder, pids):
    text = gpushim(folder, 'stats').stdout
    for pid in pids:
        check(len(re.findall(rf'^ *{pid} +\? +0 +[\d.]+ MiB +96\.0 MiB .* python\S* \(ended \d+ s ago\)$', text, re.M)) == 1,
              f'the text has process {pid} once: {text}')
    told = [int(pid) for pid in re.findall(r'^ *(\d+) .*\(ended', text, re.M)]
    check(told == list(reversed(pids)), f'the last one to end comes first: {told}, of {pids}')
    text = gpushim(folder, 'stats', str(pids[0])).stdout
    check(text.count('ended') == 1 and str(pids[0]) in text, f'one that was named alone: {text}')
    check('(ended ' in gpushim(folder, 'top').stdout, 'the page has them')
    exported = gpushim(folder, 'export', '--prometheus').stdout
    check('gpushim_up' in exported and not any(f'pid="{pid}"' in exported for pid in pids),
          f'what is exported has not: {exported}')


def prove_others(folder):
    """Who is killed, and who has no broker, leaves nothing; neither does a forked child for its parent."""
    killed, alone = sharer(folder, 64 * MIB), Holder(folder)
    killed.do('do ' + 'import os; os.waitpid(os.fork() or sys.exit(0), 0)'.encode().hex())
    alone.do(f'alloc {64 * MIB}')
    alone.process.stdin.close()
    check(alone.process.wait(timeout=PATIENT_S) == 0, 'it ends')
    killed.end()
    await_that(lambda: not any(holder['pid'] == killed.pid for row in rows(folder, 'who') for holder in row['holders']),
               'the broker has seen the end of it')
    found = {row['pid'] for row in ended(folder)}
    check(not found & {killed.pid, alone.pid}, f'nothing is left by {killed.pid} and {alone.pid}: {found}')
    run = gpushim(folder, 'stats', str(killed.pid))
    check(run.returncode == 1 and f'process {killed.pid}: there is none' in run.stderr, f'asked for, it is said: {run}')


def broker_path(folder):
    return [str(path) for path in pathlib.Path(folder).iterdir() if path.name.startswith('broker')][0]


def prove_malformed(folder):
    """By hand: who has not said whom he shares with leaves nothing."""
    before = ended(folder)
    figures = bytes(152)
    for number, zero in ((0, 0), (16, 0), (0, 1)):
        answers = say(broker_path(folder), message(NUMBER['FAREWELL'], struct.pack('<II', number, zero) + figures))
        check(is_refused(answers, OUT_OF_PLACE), f'it is refused: {answers}')
    answers = say(broker_path(folder), message(NUMBER['FAREWELL'], struct.pack('<II', 0, 0)))
    check(is_refused(answers, OUT_OF_PLACE), f'one that is too short is refused: {answers}')
    answers = say(broker_path(folder), *(query(number, device, ABOUT_ENDED)
                                         for number in (0, 2**32 - 1) for device in (0, 2**32 - 1)))
    check(len(answers) == 4, f'whatever is asked for is answered: {answers}')
    check([row['pid'] for row in ended(folder)] == [row['pid'] for row in before], 'what was there stays')


def prove_another_namespace(folder):
    """A broker of another PID namespace has the number that the process itself told."""
    apart = ['unshare', '--pid', '--fork', '--kill-child']
    if not shutil.which('unshare') or subprocess.run([*apart, 'true'], stderr=subprocess.DEVNULL, check=False).returncode:
        print('no PID namespace can be made here')
        return
    broker = subprocess.Popen([*apart, GPUSHIM, 'broker'], env=clean(folder))
    await_that(lambda: any(name.startswith('broker') for name in os.listdir(folder)), 'the broker listens')
    holder = Holder(folder, GPUSHIM_SHARE_STRATEGY='broker', GPUSHIM_SHARE_KEEP='100s')
    holder.do(f'alloc {96 * MIB}')
    holder.do('share 0')
    await_that(lambda: re.search(r'[1-9]\d* blocks left here', gpushim(folder, 'who').stdout), 'it leaves what it shares')
    end(holder, 'exit')
    await_that(lambda: ended(folder), 'it is listed as ended')
    row = [row for row in rows(folder, 'stats', str(holder.pid)) if row['state'] == 'ended']
    check(len(row) == 1 and row[0]['own_pid'] == holder.pid and row[0]['pid'] != holder.pid,
          f'it is found by its own number: {row}')
    broker.kill()
    broker.wait()


def main():
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what is left ends with this test
    with tempfile.TemporaryDirectory(prefix='gpushim-ended-') as folder:
        os.chmod(folder, 0o700)
        broker = subprocess.Popen([GPUSHIM, 'broker'], env=clean(folder))
        await_that(lambda: any(name.startswith('broker') for name in os.listdir(folder)), 'the broker listens')
        check(not ended(folder), 'nobody has ended yet')
        pids = [prove_an_end(folder, how) for how in ENDS]
        pids.append(prove_a_stopped_broker(folder, broker))
        prove_text(folder, pids)
        prove_others(folder)
        prove_malformed(folder)
        broker.send_signal(signal.SIGTERM)
        check(broker.wait(timeout=PATIENT_S) == 0, 'the broker ends')
        check(not ended(folder), 'and with it what it kept')
    with tempfile.TemporaryDirectory(prefix='gpushim-ended-') as folder:
        os.chmod(folder, 0o700)
        prove_another_namespace(folder)
    end_with_faults()


main()
