"""Text of others in what the commands and the log say: programs, containers, labels, paths, command lines,
recordings and machines whose names have every byte in them. Nothing of it comes to a terminal as anything but
text, and each is told as what it was; in JSON it is what it was.

    hostile_text.py GPUSHIM SHIM LIBCUDA BROKER
"""
import contextlib
import ctypes
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import unicodedata

import holder
from holder import GPUSHIM, LIBCUDA, MIB, PATIENT_S, PUBLISH, SHIM, Holder, await_that, check, clean, prove_each
import trace_file as trace
import wire

BROKER = os.path.abspath(holder.sys.argv[4])
# What acts on a terminal or is not seen, as it comes in UTF-8, and what is no UTF-8.
ACTING = ['\x85\u009b31m', '\u202e\u2066x', '\u2028\u2029', '\u200b\ufeff', '\U000e0041', '\u061c\u00ad']
NAMES = [bytes(range(at, min(at + 14, 256))) for at in range(1, 256, 14)] + [text.encode() for text in ACTING]
HELLO = wire.NUMBER['HELLO']


def faults_of(text):
    """What of a line may not be there."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        return f'no UTF-8: {error}'
    bad = sorted({hex(ord(c)) for c in decoded if c != '\n' and unicodedata.category(c) in ('Cc', 'Cf', 'Zl', 'Zp')})
    return ' '.join(bad)


def run(folder, *arguments, env=None, **more):
    done = subprocess.run([GPUSHIM, *arguments], env={**clean(folder), **(env or {})}, capture_output=True,
                          timeout=PATIENT_S, check=False, stdin=subprocess.DEVNULL, **more)
    for name, text in (('output', done.stdout), ('errors', done.stderr)):
        check(not faults_of(text), f'{arguments}: {name}: {faults_of(text)}: {text[:300]}')
    return done


def shown(name):
    """The name as a line has it, by rules of this test's own."""
    text = ''
    for c in name.decode(errors='surrogateescape'):
        code = ord(c)
        if 0xdc80 <= code <= 0xdcff:
            text += f'\\x{code - 0xdc00:02x}'
        elif unicodedata.category(c) in ('Cc', 'Cf', 'Zl', 'Zp'):
            text += f'\\x{code:02x}' if code < 0x80 else f'\\u{code:04x}' if code < 0x10000 else f'\\U{code:08x}'
        else:
            text += c
    return text.encode()


def in_json(name):
    return name.decode(errors='replace')


def tell(folder, name, *arguments, as_it_was=True, **more):
    """As text with the name in it as it is to be shown, and as JSON with it as it was, or as it is shown."""
    done = run(folder, *arguments, **more)
    check(shown(name) in done.stdout + done.stderr, f'{arguments}: {shown(name)} is not in {done.stdout + done.stderr}')
    if arguments[0] in ('top', 'trim'):  # the one has no JSON, the other has told already what it gave
        return
    done = run(folder, *arguments, '--json', **more)

    def texts(value):
        if isinstance(value, str):
            yield value
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from texts(each)
    found = list(texts(json.loads(done.stdout)))
    there = in_json(name) if as_it_was else shown(name).decode()
    check(any(there in text for text in found), f'{arguments} --json: no {there!r} in {found}')


def rename(one, name):
    """What the library tells of its program, and what the kernel does."""
    one.run(f'''
import ctypes, struct
libc = ctypes.CDLL(None)
keep = globals().setdefault("keep", [])
keep.append(ctypes.create_string_buffer({name!r}))
ctypes.c_void_p.in_dll(libc, "program_invocation_short_name").value = ctypes.addressof(keep[-1])
libc.prctl(15, {name!r}, 0, 0, 0)
''')


def check_completion(folder, command):
    """What a shell is told: a tab is before what a candidate is about."""
    done = subprocess.run([GPUSHIM, '--complete', 'gpushim', command, ''], env=clean(folder), capture_output=True,
                          check=False)
    check(done.stdout and not faults_of(done.stdout.replace(b'\t', b'')), f'{command}: {done.stdout[:300]}')


def prove_names(folder):
    owner, importer, quiet, sleeper = (Holder(folder, GPUSHIM_POOL_DECAY='60 min',
                                              GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on')
                                       for _ in range(4))
    owner.do(f'alloc {96 * MIB}')
    owner.do(f'alloc {2 * MIB}')
    handle = owner.do('share 1')
    rename(quiet, b'quiet')
    quiet.do(f'alloc {MIB}')
    sleeper.do(f'alloc {MIB}')
    sleeper.do('share 0')
    for name in NAMES:
        for one in (owner, importer, quiet, sleeper):
            rename(one, name)
        importer.do(f'open {handle}')
        pid = str(owner.pid)
        owner.do(f'alloc {96 * MIB}')
        owner.do('free 2')
        for arguments in (('stats',), ('stats', pid), ('stats', str(quiet.pid)), ('top',), ('who',),
                          ('who', str(importer.pid)),
                          ('trim', pid), ('set', pid, 'pool.decay=60 min'),
                          ('sleep', str(sleeper.pid)), ('wake', str(sleeper.pid))):
            tell(folder, name, *arguments)
        run(folder, 'swap', str(sleeper.pid), pid)
        run(folder, 'wake', str(sleeper.pid))
        check_completion(folder, 'stats')
        label = shown(name).replace(b'\\', b'\\\\').replace(b'"', b'\\"')
        done = run(folder, 'export', '--prometheus')
        check(b'command="' + label + b'"' in done.stdout, f'{label} is no label of {done.stdout[:500]}')
        importer.do('close 0')
        run(folder, 'trim', 'all')
    for one in (owner, importer, quiet, sleeper):
        one.end()


def prove_machines(folder):
    """Of a broker, and of what the agent left."""
    one = Holder(folder, GPUSHIM_SHARE_STRATEGY='broker', GPUSHIM_SHARE_BROKER=BROKER)
    one.do(f'alloc {MIB}')
    one.do('share 0')
    await_that(lambda: wire.brokers(folder), 'a broker')
    real, = wire.brokers(folder)
    one.end()
    path = os.path.join(folder, real)
    pids = [row['pid'] for row in json.loads(run(folder, 'cluster', '--json').stdout)['rows']]
    check(len(pids) < 2, f'brokers: {pids}')
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 15)
    await_that(lambda: b'pid' not in run(folder, 'cluster').stdout, 'the real one is gone')
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    now = []
    refuses = wire.message(wire.REFUSE, struct.pack('<II', wire.OUT_OF_PLACE, 0))

    def answer(kind, _):
        if kind == HELLO:
            return b''
        return wire.message(wire.REPORT, wire.machine(0, 1, 4711, 1, 1, 1, 1, 2, b'm' * 16, now[0], *[1] * 6, now[0])) \
            if kind == wire.QUERY else refuses
    fake = wire.Listener(path, answer)
    for name in NAMES:
        now[:] = [name]
        tell(folder, name, 'cluster')
        done = run(folder, 'cluster')
        check(b'directory, WRONG: ' + shown(name) in done.stdout, f'cluster: {shown(name)} is not in {done.stdout}')
    fake.end()


def prove_labels(folder):
    one = Holder(folder)
    one.do(f'alloc {MIB}')
    for name in NAMES:
        label = bytes(c for c in name if c >= 32 and c != 127)  # others are none
        rename(one, name)
        one.run(PUBLISH + f'assert publish(b"a", held[0].value, {label!r}, {name!r}) == 0')
        tell(folder, label, 'ls')
        tell(folder, name, 'ls')
        tell(folder, name, 'ls', 'a')
        check_completion(folder, 'ls')
    one.end()


def prove_paths(place):
    """Of folders, programs, libraries and files."""
    python = os.path.realpath(holder.sys.executable)
    for name in (b'a\x1b[2J\n', b'\x9b\xff', '\u009b31m\u202e'.encode(), bytes(range(1, 32))):
        folder = os.path.join(os.fsencode(place), b'd' + name)
        os.mkdir(folder, 0o700)
        told = shown(name)[:8]  # what is quoted ends somewhere
        text = os.fsdecode(folder)
        run(place, 'doctor', '--all', env={'GPUSHIM_SHARE_DIR': text})
        for arguments in (('run', text), ('run', '--print', '-o', f'share.dir={text}'), ('report', text),
                          ('export', '--prometheus', '--textfile', f'{text}/no/x'),
                          ('export', '--prometheus', '--listen', text),
                          (text,), ('who', text), ('set', '1', f'{text}=1'), ('set', '1', f'pool.decay={text}'),
                          ('trim', text),
                          ('stats', '--watch', text), ('cluster', 'forget', text), ('config', '--check', text),
                          ('ls', text),
                          ('sleep', text), ('wake', text), ('swap', text, text), ('doctor', text), ('help', text),
                          ('top', text),
                          ('broker', text), ('cdi', 'generate', '--output', text),
                          ('cdi', 'generate', '--share-dir', f'{text}/no'),
                          ('sleep', '--timeout', text, '1'), ('stats', f'--{text}'),
                          ('run', '-o', f'{text}=1', 'x'), ('run', f'--no-{text}', 'x'), ('run', f'--{text}'),
                          ('record', '--output', text, '--', text)):
            done = run(place, *arguments)
            check(told in done.stdout + done.stderr, f'{arguments}: no {told} in {done}')
        run(place, 'config', env={'GPUSHIM_CONFIG': text, f'GPUSHIM_{text[-3:]}': text, 'XDG_CONFIG_HOME': text})
        library = os.path.join(folder, b'libgpushim.so')
        shutil.copy(SHIM, library)
        copy = os.path.join(folder, b'gpushim')
        shutil.copy(GPUSHIM, copy)
        done = subprocess.run([copy, 'version'], env=clean(place), capture_output=True, check=False)
        check(not faults_of(done.stdout + done.stderr) and told in done.stdout, f'version: {done}')
        # A process by that command line, with the library of that folder, and CUDA without it.
        env = {**clean(place), 'LD_LIBRARY_PATH': os.path.dirname(LIBCUDA), 'GPUSHIM_LOG': 'off'}
        code = 'import ctypes, sys; ctypes.CDLL("libcuda.so.1"); print(flush=True); sys.stdin.read()'
        for preload in (b'', library):
            with subprocess.Popen([folder, '-c', code, name], executable=python, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE,
                                  env={**env, **({'LD_PRELOAD': os.fsdecode(preload)} if preload else {})}) as one:
                one.stdout.readline()
                # command lines are as they are shown
                tell(place, name, 'doctor', '--all', str(one.pid), as_it_was=False)
                if not preload:
                    tell(place, name, 'doctor', '--all', as_it_was=False)
                one.stdin.close()


def prove_recordings(place):
    path = os.path.join(place, 'trace')
    for name in NAMES:
        made = trace.call(1000, trace.ALLOC, 0x7f0000000000, 4096, outcome=trace.CACHED, frames=(0x401000,))
        module = name.replace(b'\n', b'').replace(b'/', b'') + b'mod.so'
        modules = b'00400000-00500000 r-xp 00000000 fe:01 42   /tmp/' + module + b'\n'
        trace.write(path, trace.header(program=b'a' + name, stacks=True), trace.devices((0, 1 << 30, b'GPU' + name)),
                    trace.block(trace.MODULES, modules), trace.block(trace.EVENTS, made), trace.block(trace.END))
        done = run(place, 'report', path)
        for told in (b'program     a' + shown(name), b'GPU' + shown(name), shown(module)):
            check(told in done.stdout, f'{told} is not in {done.stdout}')
        done = run(place, 'report', path, '--json')
        check(in_json(b'a' + name) in str(json.loads(done.stdout)) or
              json.loads(done.stdout)['program'] == in_json(b'a' + name), f'{done.stdout[:300]}')
        run(place, 'report', path, '--against', path)
        done = run(place, 'report', path, '--against', os.fsdecode(b'/no/' + name))
        check(shown(name) in done.stderr, f'--against: no {shown(name)} in {done}')
        snapshot = os.path.join(place, 'snapshot')
        done = run(place, 'report', path, '--memory-viz', snapshot)
        check(done.returncode == 0, f'--memory-viz: {done}')
        with open(snapshot, 'rb') as file:
            told = str(pickle.load(file))
        # What is no UTF-8 cannot be in it, and is a question mark.
        as_it_is = repr(in_json(module)) if not faults_of(module).startswith('no UTF-8') else "'?'"
        check(f"'filename': {as_it_is}" in told, f'{module} is not in {told[:600]}')
        os.unlink(snapshot)
        page = os.path.join(place, 'page')
        done = run(place, 'report', path, '--html', page)
        check(done.returncode == 0, f'--html: {done}')
        with open(page, 'rb') as file:
            text = file.read()
        check(not faults_of(text.replace(b'\t', b'')), f'--html: {faults_of(text)}')
        os.unlink(page)


def prove_containers(folder):
    """The last part of a control group's path; and no row without one."""
    one = Holder(folder)
    one.do(f'alloc {96 * MIB}')
    made = os.path.join(folder, 'cgroup')
    for name in NAMES:
        name = name.replace(b'\n', b'').replace(b'/', b'')
        with open(made, 'wb') as file:
            file.write(b'0::/machine/' + name + b'\n')
        for arguments in ('stats', 'who', f'doctor --all {one.pid}', 'export --prometheus'):
            done = subprocess.run(['unshare', '-m', 'sh', '-c',
                                   f'mount --bind "$0" /proc/{one.pid}/cgroup && exec "$1" {arguments}',
                                   made, GPUSHIM], env=clean(folder), capture_output=True, timeout=PATIENT_S,
                                  check=False)
            if b'mount' in done.stderr or b'unshare' in done.stderr:
                print('skipped: containers, which take a mount namespace')
                one.end()
                return
            told = shown(name)
            if 'export' in arguments:
                told = told.replace(b'\\', b'\\\\').replace(b'"', b'\\"')
            check(not faults_of(done.stdout + done.stderr), f'{arguments}: {faults_of(done.stdout)}')
            check(arguments == 'who' or told in done.stdout, f'{arguments}: {told} is not in {done.stdout}')
    one.end()


TOLD_OF = 3  # are named at most of who holds what was freed, and of the others; once a second
REFUSED = '''
time.sleep(1.05)
assert cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 23)) != 0
'''


def prove_log(folder):
    """What the library says of its peers, at debug level, and where memory runs out."""
    log, reports = os.path.join(folder, 'log'), os.path.join(folder, 'reports')
    one = Holder(folder, GPUSHIM_LOG='debug', GPUSHIM_LOG_TARGET=log, GPUSHIM_POOL_LIMIT=str(8 * MIB),
                 GPUSHIM_POOL_OOM_REPORT=reports, GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on', GPUSHIM_POOL_DECAY='60 min')
    one.run('import time')
    others = [Holder(folder, GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on') for _ in range(TOLD_OF)]
    for other in others:
        other.do(f'alloc {96 * MIB}')
    for at in range(0, len(NAMES), TOLD_OF):
        importers = [Holder(folder) for _ in range(TOLD_OF)]
        for name, other, importer in zip(NAMES[at:at + TOLD_OF], others, importers):
            rename(other, name)
            rename(importer, name)
            one.do(f'alloc {MIB}')
            importer.do('open ' + one.do('share 0'))
            one.do('free 0')
        one.run(REFUSED)
        for importer in importers:
            importer.end()
    with open(log, 'rb') as file:
        text = file.read()
    check(not faults_of(text), f'the log: {faults_of(text)}')
    with open(reports, 'rb') as file:
        lines = file.read().splitlines()
    check(not any(faults_of(line) for line in lines), f'reports: {[faults_of(line) for line in lines]}')
    told = [json.loads(line) for line in lines]
    held = {(who['pid'], who['held_bytes'] >> 20, who['held_ns'] // 10**9) for one in told
            for who in one['holders']['most']}
    said = {tuple(map(int, numbers))
            for numbers in re.findall(rb'process (\d+) \(.*?\) has (\d+) MiB for (\d+) s', text)}
    check(said and said <= held and all(seconds >= 1 for _, _, seconds in said),
          f'who holds what, for how long: {said}, {held}')
    for name in NAMES:
        check(shown(name) in text, f'{shown(name)} is not in the log')
        check(any(in_json(name) in (who['name'] for who in one['holders']['most']) for one in told),
              f'{name} holds nothing')
        check(any(in_json(name) in (who['name'] for who in one['others']['most']) for one in told),
              f'{name} has nothing')
    for each in (one, *others):
        each.end()


ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what is left ends with this test
prove_each(prove_names, prove_labels, prove_paths, prove_recordings, prove_containers, prove_log, prove_machines)
