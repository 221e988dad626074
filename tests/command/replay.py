"""gpushim replay: it makes a trace's calls again with the library and without, and says what keeps it from it.

usage: replay.py GPUSHIM FOLDER_OF_LIBCUDA KILLED_AT_THE_END
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile

import trace_file as t

gpushim, driver, killed = (os.path.realpath(path) for path in sys.argv[1:4])
environment = {name: value for name, value in os.environ.items()
               if not name.startswith(('GPUSHIM_', 'LD_', 'SOFTCUDA_')) and name != 'CUDA_VISIBLE_DEVICES'}
# Traces have calls that are to be refused, which the library would report.
environment.update(GPUSHIM_CONFIG='', GPUSHIM_POOL_NEIGHBOURS='off', GPUSHIM_LOG='error', LC_ALL='C',
                   LD_LIBRARY_PATH=driver)
BASE, MIB = 0x7f0000000000, 1 << 20
faults = []


def check(right, what):
    if not right:
        faults.append(what)


def run(*arguments, **settings):
    return subprocess.run([gpushim, 'replay', *arguments], env=environment | settings, errors='replace',
                          timeout=100, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, check=False)


def expect(arguments, status, out='', err='', **settings):
    ran = run(*arguments, **settings)
    if (ran.returncode != status or not re.fullmatch(out, ran.stdout, re.S)
            or not re.fullmatch(err, ran.stderr, re.S)):
        faults.append(f'{arguments} {settings}: it ended with {ran.returncode}, not {status}, wrote {ran.stdout!r} '
                      f'and {ran.stderr!r}, not {out!r} and {err!r}')
    return ran.stdout


def rows_of(*arguments, **settings):
    out = expect([*arguments, '--json'], 0, '.*', **settings)
    try:
        return json.loads(out)
    except ValueError:
        faults.append(f'{arguments}: {out!r} is no JSON')
        return None


def sample(path):
    """Of both kinds of calls, on four streams, with what a program may do besides."""
    truth, chance = t.Truth(), random.Random(3)
    truth.add(t.call, t.CHUNK_MADE, BASE, 64 * MIB)
    for step in range(600):
        address = BASE + chance.randrange(60) * MIB
        stream = chance.choice([0, 1, 0x5500, 0x5600])
        if address in truth.live:
            truth.free(address, op=chance.choice([t.FREE, t.FREE_ASYNC]), stream=stream)
        else:
            truth.alloc(address, chance.choice([1, 700, 5000, MIB]), op=t.ALLOC_ASYNC, stream=stream)
    truth.add(t.call, t.ALLOC, 0, 1 << 50, outcome=t.REFUSED, result=t.OUT_OF_MEMORY)
    truth.add(t.call, t.FREE, BASE - MIB)
    truth.add(t.figures, truth.now)
    t.write(path, t.header(), t.block(t.EVENTS, b''.join(truth.events)), t.block(t.END))
    return truth


def replays(path, truth):
    rows = rows_of(path)
    check(rows['recorded'] == {'allocations': truth.allocations, 'frees': truth.frees + 1, 'refused': 1,
                               'in_calls_ns': rows['recorded']['in_calls_ns']}, f'recorded: {rows["recorded"]}')
    for name in 'native', 'library':
        row = rows[name]
        check((row['allocations']['count'], row['frees']['count'], row['refused'], row['failed_frees']) ==
              (truth.allocations + 1, truth.frees, 1, 0), f'{name}: {row}')
        for kind in 'allocations', 'frees':
            times = row[kind]
            check(0 < times['median_ns'] <= times['p99_ns'] <= times['slowest_ns'] <= times['sum_ns'], f'{name}: {times}')
        check(truth.peak <= row['reserved_peak_bytes'] <= 1 << 30, f'{name}: {truth.peak} live, and {row}')
    expect([path], 0, rf'recorded: {truth.allocations} allocations, .* native +library\nallocations +{truth.allocations + 1}'
                      rf' +{truth.allocations + 1}\n.*\nfrees +{truth.frees} +{truth.frees}\n.*memory of the driver at '
                      r'most +[\d.]+ +[\d.]+ MiB\n')


def options(path):
    """They are the library's run's, and the strongest; what switches it off leaves nothing to compare."""
    starts = r'\S+ gpushim\[[\d/]+\]: info: libgpushim \S+ starts in gpushim; .*\n'
    expect([path, '-o', 'log=info', '-opool.decay=5 s'], 0, '.*', f'.*{starts}.*', GPUSHIM_LOG='off')
    nothing = "gpushim: the run with the library had nothing of it: 'gpushim doctor' says why, .*\n"
    expect([path, '-o', 'enable=off'], 1, '', nothing)
    expect([path], 1, '', nothing, GPUSHIM_ENABLE='off')
    expect([path, '-o', 'pool.decy=5 s'], 2, '', '.*"pool.decy"; did you mean pool.decay.*\n')
    expect([path, '-o', 'pool.decay=5'], 2, '', '.*does not end in a unit.*\n')
    expect([path, '-o'], 2, '', 'gpushim: -o: SECTION.KEY=VALUE is missing after it\nusage: .*')


def memory(folder):
    """A machine with less memory refuses the same to both; several GPUs are several."""
    large = t.Truth()
    for number in range(3):
        large.alloc(BASE + number * 64 * MIB, 40 * MIB)
    path = t.write(f'{folder}/large', t.header(), t.block(t.EVENTS, b''.join(large.events)), t.block(t.END))
    rows = rows_of(path, SOFTCUDA_MEMORY='100M')
    check((rows['native']['refused'], rows['library']['refused']) == (1, 1), f'little memory: {rows}')
    second = t.Truth(device=1)
    second.alloc(BASE * 2, MIB)
    path = t.write(f'{folder}/two', t.header(), t.block(t.EVENTS, b''.join(large.events + second.events)),
                   t.block(t.END))
    rows = rows_of(path)
    check(min(rows[name]['reserved_peak_bytes'] for name in ('native', 'library')) >= 121 * MIB, f'two GPUs: {rows}')
    expect([path], 1, '', 'gpushim: the run without the library: the trace has GPU 1, and the last one here is 0; '
                          'replay it where there are as many\n', SOFTCUDA_DEVICES='1')


def streams(folder):
    """More than are told apart: a device that comes last has one in any case, and others share."""
    calls = [t.call(1000 + i, t.ALLOC_ASYNC, BASE + i * 4096, 4096, stream=0x5500 + i, took=0, outcome=t.CACHED)
             for i in range(1024)]
    calls += [t.call(9000 + i, t.ALLOC_ASYNC, BASE * 2 + i * 4096, 4096, device=device, stream=7, took=0,
                     outcome=t.CACHED) for i, device in enumerate((1, 0, 1))]
    path = t.write(f'{folder}/streams', t.header(), t.block(t.EVENTS, b''.join(calls)), t.block(t.END))
    for name in 'native', 'library':
        row = rows_of(path)[name]
        check((row['allocations']['count'], row['refused']) == (1027, 0), f'1,026 streams, {name}: {row}')


def is_wrong(folder, path):
    with open(f'{folder}/libcuda.so.1', 'wb') as file:
        file.write(b'no library')
    expect([path], 1, '', 'gpushim: the run without the library: there is no driver here .*\n', LD_LIBRARY_PATH=folder)
    expect([path], 1, '', '.*without the library: cuInit fails with 999, CUDA_ERROR_UNKNOWN\n',
           SOFTCUDA_FAULTS='cuInit:*:999')
    expect([path], 1, '', r'.*the run without the library was killed by signal 9 \(Killed\)\n',
           SOFTCUDA_FAULTS='cuMemAllocAsync:kill:3')
    expect([path], 1, '', r'.*the run without the library was killed by signal 9 \(Killed\)\n', LD_PRELOAD=killed)
    expect([path], 1, '', '.*without the library: cuStreamCreate fails with 2, .*\n',
           SOFTCUDA_FAULTS='cuStreamCreate:*:2')
    rows = rows_of(path, SOFTCUDA_FAULTS='cuMemFreeAsync:2:1')
    check(rows['native']['failed_frees'] == 1, f'a free that fails: {rows}')
    bad = t.write(f'{folder}/bad', t.header() + b'x' * 30)
    expect([bad], 1, '', "gpushim: '.*bad' is damaged: the block at byte 104 does not begin as one; .*\n")
    nothing = t.write(f'{folder}/nothing', t.header())
    expect([nothing], 1, '', "gpushim: '.*nothing' has no allocation to make again\n")
    expect([f'{folder}/none'], 1, '', '.* cannot be read: No such file or directory\n')
    expect([], 2, '', 'gpushim: replay: the FILE to replay is missing\nusage: .*')
    expect([path, path], 2, '', 'gpushim: replay does not know .*\nusage: .*')
    expect([path, '--nothing'], 2, '', "gpushim: replay does not know '--nothing'\nusage: .*")
    expect(['--help'], 0, 'usage: gpushim replay .*')
    with open('/dev/full', 'wb') as full:
        ran = subprocess.run([gpushim, 'replay', path], stdout=full, stderr=subprocess.DEVNULL, env=environment,
                             timeout=100, check=False)
        check(ran.returncode == 1, f'to a full disk: {ran.returncode}')


with tempfile.TemporaryDirectory(prefix='gpushim-replay-') as scratch:
    recorded = f'{scratch}/trace'
    try:
        replays(recorded, sample(recorded))
        options(recorded)
        memory(scratch)
        streams(scratch)
        is_wrong(scratch, recorded)
    except (KeyError, TypeError) as error:
        faults.append(repr(error))
for each in faults:
    print(each)
sys.exit(1 if faults else 0)
