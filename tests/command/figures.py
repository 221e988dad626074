"""gpushim stats, top and who: what they tell of processes with the library, in text and in JSON, and what
they say where there is nobody, or somebody who does not answer.

    figures.py GPUSHIM SHIM LIBCUDA
"""
import ctypes
import json
import os
import re
import signal
import struct
import subprocess
import tempfile
import time

from holder import (GPUSHIM, MIB, OWN, PATIENT_S, SHIM, Holder, await_that, check, clean,
                    gpushim, prove_each, rows, stats_of)
from wire import QUERY, REPORT, Between, Listener, listen, message, query, say, sockets

MUTE = 20
HAS_FIGURES = 200  # where in a REPORT figures begin (core/share/wire.h)


def prove_figures(folder):
    holder = Holder(folder, GPUSHIM_POOL_DECAY='60 min')
    holder.do(f'alloc {96 * MIB}')
    holder.do(f'alloc {32 * MIB}')
    await_that(lambda: stats_of(folder, holder.pid).get('reserved_bytes', 0) >= 128 * MIB,
               'a process that holds enough tells its figures')
    row = stats_of(folder, holder.pid)
    check(row.get('live_bytes') == 128 * MIB, f'live is what it has: {row}')
    check(row.get('device') == 0 and re.fullmatch('[0-9a-f]{32}', row.get('uuid', '')),
          f'the GPU is named: {row}')
    check(row.get('allocations_from_cache', 0) + row.get('allocations_that_looked_further', 0) == 2,
          f'two allocations are two: {row}')
    holder.do('free 0')
    row = stats_of(folder, holder.pid, str(holder.pid))
    check(row.get('live_bytes') == 32 * MIB, f'live follows a free: {row}')
    check(row.get('live_peak_bytes') == 128 * MIB, f'and the peak does not: {row}')
    text = gpushim(folder, 'stats', str(holder.pid)).stdout
    check(re.search(rf'^ *{holder.pid} +\S+ +0 +[\d.]+ MiB +32\.0 MiB .* python3 -c ', text, re.M),
          f'the text has it too: {text}')
    page = gpushim(folder, 'top').stdout
    check(str(holder.pid) in page and '\033' not in page, f'top is one page here: {page!r}')
    return holder


def prove_others(folder, holder):
    quiet, apart = Holder(folder), Holder(folder, library=False)
    quiet.do(f'alloc {4 * MIB}')
    apart.do(f'alloc {4 * MIB}')
    found = {row['pid']: row for row in rows(folder, 'stats')}
    check('too little' in (found.get(quiet.pid, {}).get('silent') or ''),
          f'who holds little is listed by name: {found.get(quiet.pid)}')
    check(apart.pid not in found, 'who has not the library is not listed')
    run = gpushim(folder, 'stats', str(apart.pid))
    check(run.returncode == 1 and 'has not the library' in run.stderr, f'asked for, it is said: {run}')
    handle = holder.do('share 0')
    quiet.do(f'open {handle}')
    holder.do('free 0')
    who = [row for row in rows(folder, 'who') if row['pid'] == holder.pid]
    check(len(who) == 1 and [h['pid'] for h in who[0]['holders']] == [quiet.pid],
          f'who has it open is told: {who}')
    check(who and who[0]['freed_blocks'] == 1 and who[0]['holders'][0]['freed_bytes'] == 32 * MIB,
          f'and that it is freed: {who}')
    await_that(lambda: stats_of(folder, holder.pid).get('limbo_bytes') == 32 * MIB,
               'what is freed and held is in limbo')
    quiet.stop()
    text = ''

    def is_marked():
        nonlocal text
        text = gpushim(folder, 'who', str(quiet.pid)).stdout
        return f'pid {quiet.pid} (' in text and 'which is stopped' in text
    await_that(is_marked, f'a stopped holder is marked: {text}')
    row = stats_of(folder, holder.pid)
    check([(each['pid'], each['stopped'], each['bytes']) for each in row['limbo_holders']] ==
          [(quiet.pid, True, 32 * MIB)], f'stats tell for whom it is kept: {row}')
    text = gpushim(folder, 'stats').stdout
    check(f'limbo: 32.0 MiB for pid {quiet.pid} (' in text and 'which is stopped' in text, text)
    quiet.end()
    apart.end()


BUSY = """
import threading
global waits, hold, on_stream
waits, hold = threading.Event(), threading.Event()
on_stream = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: (waits.set(), hold.wait()))
assert cuda.cuLaunchHostFunc(None, on_stream, None) == 0
waits.wait()
"""


def prove_held_behind_work(folder):
    """What is freed and held is in limbo while the GPU's work before the free goes on, and not in limbo where nobody
    holds it: the holders that are told add up to the figure beside them."""
    holder, importer = Holder(folder), Holder(folder)
    for size in (16, 8, 64):
        holder.do(f'alloc {size * MIB}')
    importer.do('open ' + holder.do('share 0'))
    holder.run(BUSY)
    for _ in range(2):
        holder.do('free 0')
    row = {}

    def is_told():
        nonlocal row
        row = stats_of(folder, holder.pid)
        return row.get('limbo_holders')
    await_that(is_told, f'the holder is told: {row}')
    check([each['bytes'] for each in row['limbo_holders']] == [16 * MIB], f'of the one block: {row}')
    check(row['limbo_bytes'] == 16 * MIB and row['retired_bytes'] >= 8 * MIB, f'and the figure is its own: {row}')
    check(row['live_bytes'] == 64 * MIB
          and sum(row[f'{state}_bytes'] for state in ('live', 'cached', 'ordered', 'retired',
          'limbo')) == row['reserved_bytes'], f'all of it is counted once: {row}')
    importer.do('close 0')
    holder.run('hold.set()')
    importer.end()
    await_that(lambda: stats_of(folder, holder.pid).get('limbo_bytes') == 0, 'nobody holds it any more')
    holder.end()


def prove_own(folder):
    """Of who has memory that it made itself, and no other, it is not said that it has had none."""
    holder = Holder(folder)
    holder.run(OWN.format(size=128 * MIB))
    await_that(lambda: ('what it makes by cuMemCreate is not counted'
                        in (stats_of(folder, holder.pid).get('silent') or '')),
               'own memory is not counted, and that is said')
    holder.end()


def prove_elsewhere(folder):
    """Of who has no socket here it is said why, and nothing that is not known."""
    with tempfile.TemporaryDirectory(prefix='gpushim-elsewhere-', ignore_cleanup_errors=True) as other:
        file = os.path.join(other, 'conf')
        with open(file, 'w', encoding='utf-8') as conf:
            conf.write(f'[share]\ndir = {other}\n')
        holder, importer = Holder(folder,
                                  GPUSHIM_SHARE_DIR=other), Holder(folder, GPUSHIM_SHARE_DIR=None, GPUSHIM_CONFIG=file)
        alone = Holder(folder, GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='off')
        small, plain = Holder(folder), Holder(folder, GPUSHIM_SHARE_DIR='')
        holder.do(f'alloc {96 * MIB}')
        importer.do('open ' + holder.do('share 0'))
        alone.do(f'alloc {96 * MIB}')
        for one in (small, plain):
            one.do(f'alloc {MIB}')
        for one, word in ((holder, f'GPUSHIM_SHARE_DIR={other}'), (importer, f'GPUSHIM_SHARE_DIR={other}'),
                          (plain, "with GPUSHIM_SHARE_DIR='', for none is set there"),
                          (alone, 'debug.reclaim_from_peers is off'),
                          (small, 'holds too little')):
            row = stats_of(folder, one.pid)
            check(word in (row.get('silent') or ''), f'{word}: {row}')
            check(one is small or 'too little' not in (row.get('silent') or ''), f'and not that it holds little: {row}')
            told = gpushim(folder, 'export', '--prometheus').stdout
            check(re.search(rf'^gpushim_process_info.*pid="{one.pid}".*answers="not_asked"', told, re.M),
                  f'export: {word}')
        check(f'GPUSHIM_SHARE_DIR={other}' in gpushim(folder, 'top').stdout, 'top, too')
        check(stats_of(other, holder.pid).get('live_bytes') == 96 * MIB, 'it is asked there')
        for one in (holder, importer, alone, small, plain):
            one.end()


def prove_many_holders(folder):
    """Those who hold most of what is freed, and how many more there are."""
    holder, importers = Holder(folder), [Holder(folder) for _ in range(6)]
    for i in range(6):
        holder.do(f'alloc {(i + 1) * 4 * MIB}')
    handles = [holder.do(f'share {i}') for i in range(6)]
    for importer, handle in zip((importers[i] for i in (3, 0, 5, 1, 4, 2)), (handles[i] for i in (3, 0, 5, 1, 4, 2))):
        importer.do(f'open {handle}')
    check('limbo_holders' not in stats_of(folder, holder.pid), 'what lives is in no limbo')
    for _ in range(6):
        holder.do('free 0')
    row = stats_of(folder, holder.pid)
    check([(each['pid'], each['bytes']) for each in row['limbo_holders']] ==
          [(importers[i].pid, (i + 1) * 4 * MIB) for i in (5, 4, 3, 2)], f'the first four: {row}')
    check(row['limbo_holders_in_all'] == 6, f'of six: {row}')
    check('limbo: and for 2 more (gpushim who)' in gpushim(folder, 'stats').stdout, 'in text, too')
    for each in (holder, *importers):
        each.end()


def prove_silence(folder, holder):
    holder.stop()
    row = stats_of(folder, holder.pid)
    check(row.get('stopped') is True and row.get('silent') == 'does not answer',
          f'who is stopped is listed as that: {row}')
    holder.process.send_signal(signal.SIGCONT)
    with tempfile.TemporaryDirectory(prefix='gpushim-figures-', ignore_cleanup_errors=True) as other:
        run = gpushim(other, 'who')
        check(run.returncode == 0 and run.stdout.startswith('no process that this user may see shares'),
              f'nobody shares in an empty folder: {run}')
        run = gpushim(other, 'stats', '1')
        check(run.returncode == 1 and not run.stdout and run.stderr.count('\n') == 1, f'one line of it: {run}')
        run = gpushim(other, 'who', '1')
        check(run.returncode == 1 and 'shares nothing' in run.stderr, f'not process 1 either: {run}')


def prove_many_silent(folder, holder):
    """Who listens and never answers keeps a list, or a scrape of 10 s, for as long as one of them does."""
    listeners = [listen(os.path.join(folder, f'{i:032x}')) for i in range(MUTE)]
    began = time.monotonic()
    found = rows(folder, 'stats')
    took = time.monotonic() - began
    mute = [row for row in found if row['pid'] == os.getpid()]
    check(len(mute) == MUTE and all(row['silent'] == 'does not answer' for row in mute),
          f'each of them is listed as that: {mute}')
    check([row for row in found if row['pid'] == holder.pid and row['live_bytes'] == 32 * MIB],
          'and the others as ever')
    check(took < 2 * MUTE, f'one after the other is waited for: {took} s')  # 2 s each
    for i, listener in enumerate(listeners):
        listener.close()
        os.unlink(os.path.join(folder, f'{i:032x}'))


def prove_without_end(folder, holder):
    """Who answers each question with figures of one more GPU is believed up to a number of them."""
    path, size = os.path.join(folder, 'f' * 32), len(say(sockets(folder)[0], query())[0][1])
    answer = message(REPORT, (struct.pack('<QQ', 1, 0) + bytes(HAS_FIGURES - 32) +
                              struct.pack('<II20Q', 1, 0, *[1] * 20)).ljust(size, b'\0'))
    listener = Listener(path, lambda *_: answer)
    found = rows(folder, 'stats')
    told = [row['device'] for row in found if row['pid'] == os.getpid()]
    check(told == list(range(len(told))) and 1 < len(told) < 10000, f'it has an end: {len(told)}')
    check([row for row in found if row['pid'] == holder.pid and row['live_bytes'] == 32 * MIB],
          'and the others are as ever')
    listener.end()


def prove_watching(folder, holder):
    watching = subprocess.Popen([GPUSHIM, 'stats', '--watch', '0.2s', '--json'], env=clean(folder),
                                stdout=subprocess.PIPE, text=True)
    for _ in range(3):
        row = [row for row in json.loads(watching.stdout.readline())['rows'] if row['pid'] == holder.pid]
        check(len(row) == 1 and 'live_bytes' in row[0], f'each line has it: {row}')
    watching.stdout.close()
    check(watching.wait(timeout=PATIENT_S) == -signal.SIGPIPE, 'it ends when nobody reads any more')


def prove_watching_one(folder):
    """Until it ends."""
    holder = Holder(folder)
    holder.do(f'alloc {96 * MIB}')
    watching = subprocess.Popen([GPUSHIM, 'stats', '--watch', '0.1s', str(holder.pid)], env=clean(folder), text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    check(watching.stdout.readline().lstrip().startswith('PID'), 'one process is watched')
    holder.end()
    said = watching.communicate(timeout=PATIENT_S)[1]
    check(watching.returncode == 1 and f'process {holder.pid} is not there' in said, f'and that it ends: {said!r}')


def prove_counts_begun_anew(folder, holder):
    """Of a process that is another program since the last look there is no rate."""
    path, hits = os.path.join(folder, sockets(folder)[0]), iter(range(10**6, 0, -1000))

    def fewer(answer):  # live allocations of the first device
        at = HAS_FIGURES + 8 + 8 * 8
        return answer[:at] + struct.pack('<Q', next(hits)) + answer[at + 8:]
    with Between(folder, path, {QUERY: fewer}):
        watching = subprocess.Popen([GPUSHIM, 'stats', str(os.getpid()), '--watch', '0.1s'], env=clean(folder),
                                    stdout=subprocess.PIPE, text=True)
        told = [watching.stdout.readline() for _ in range(6)][1::2]
        watching.stdout.close()
        watching.wait(timeout=PATIENT_S)
    calls = [re.search(r' (\d{4,})(/s)? +\d+(?:/s)? +\d+ python', line) for line in told]
    check(all(match and match[2] is None and 0 < int(match[1]) < 10**7 for match in calls),
          f'its calls are counted: {told}')


def prove_trimming(folder, holder):
    holder.do(f'alloc {256 * MIB}')
    holder.do('free 1')
    await_that(lambda: stats_of(folder, holder.pid).get('cached_bytes', 0) >= 256 * MIB,
               'what is freed is kept')
    text = gpushim(folder, 'trim', str(holder.pid)).stdout
    given = re.fullmatch(rf'pid {holder.pid} \(.*\): gave (\d+)\.\d MiB of GPU 0 back\n', text)
    check(given and int(given[1]) >= 256, f'it is given back when asked for: {text!r}')
    row = stats_of(folder, holder.pid)
    check(row.get('reserved_bytes', MIB << 20) < 256 * MIB and row.get('live_bytes') == 32 * MIB,
          f'and what lives stays: {row}')
    told = [row for row in rows(folder, 'trim', 'all') if row['pid'] == holder.pid]
    check(all(row['silent'] is None for row in told), f'nothing is left to give: {told}')
    text = gpushim(folder, 'trim', str(holder.pid)).stdout
    check(text == 'no process that was asked keeps memory that it does not use\n', f'which is said: {text!r}')
    run = gpushim(folder, 'trim', '1')
    check(run.returncode == 1 and re.search('process 1 (has not the library|belongs to another user)', run.stderr),
          f'process 1 gives nothing: {run}')


def prove_version(folder):
    said = gpushim(folder, 'version').stdout
    check(re.fullmatch(r'gpushim \d+\.\d+\.\d+\nlibrary ' + re.escape(os.path.realpath(SHIM)) + '\n', said),
          f'its version, and where the library is: {said!r}')
    check(rows(folder, 'version').get('library') == os.path.realpath(SHIM), 'the same for programs')


def prove_one(folder):
    holder = prove_figures(folder)
    for proof in (prove_watching, prove_counts_begun_anew, prove_trimming, prove_silence, prove_many_silent,
                  prove_without_end, prove_others):
        proof(folder, holder)
    holder.end()


ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what is left ends with this test
prove_each(prove_one, prove_held_behind_work, prove_own, prove_elsewhere, prove_many_holders, prove_version,
           prove_watching_one)
