"""gpushim run: the library is in the program that it starts, and what would keep it out is said.

usage: run.py GPUSHIM LIBGPUSHIM FOLDER_OF_LIBCUDA VERSION
"""
import ctypes
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

from alone import NOBODY, as_nobody, check, end_with_faults, expect, run, surroundings

gpushim, library = (os.path.realpath(path) for path in sys.argv[1:3])
driver, version = sys.argv[3:5]

PYTHON = os.path.realpath(sys.executable)
CAPABILITIES = 'capabilities'
WARNING = 'gpushim: warning: '
# Initialises CUDA and allocates, and says what came of it.
ALLOCATES = '''import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, at = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(1 << 20)) == 0
assert cuda.cuMemFree_v2(at) == 0
print(hasattr(ctypes.CDLL(None), "gpushim_memory"))
'''
# Says what it was given.
TELLS = 'import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))'


ENVIRONMENT = {'LD_LIBRARY_PATH': driver}


class Ran:
    def __init__(self, arguments, command=gpushim, settings=None, **options):
        self.ran = run([command, 'run', *arguments], ENVIRONMENT | (settings or {}), **options)
        self.status, self.out, self.err = self.ran.returncode, self.ran.stdout, self.ran.stderr

    def expect(self, status, out=None, err=''):
        expect(self.ran, status, out, err)
        return self

    def told(self):
        """What TELLS was given."""
        try:
            return json.loads(self.out)
        except ValueError:
            check(False, f'{self.ran}')
            return [], {}


def tells(*arguments, **options):
    ran = Ran([*arguments, '--', PYTHON, '-c', TELLS], **options)
    return ran.told()[1]


def without_new_rights():
    assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS


# ---- The library ---------------------------------------------------------------------------------

def is_in_the_program():
    Ran([PYTHON, '-c', ALLOCATES]).expect(0, 'True\n')
    start = rf'\S+ gpushim\[\d+/\d+\]: info: libgpushim {re.escape(version)} starts in python\S*; .*'
    Ran(['-o', 'log=info', '--', PYTHON, '-c', ALLOCATES]).expect(0, 'True\n', start)
    Ran(['-oenable=off', '-olog=info', PYTHON, '-c', ALLOCATES]).expect(
        0, 'True\n', start.replace('starts', 'is switched off'))


def comes_first():
    beside = tells(settings={'LD_PRELOAD': 'libm.so.6  libdl.so.2:libc.so.6'})
    check(beside.get('LD_PRELOAD') == f'{library}:libm.so.6:libdl.so.2:libc.so.6',
          f'beside others: {beside.get("LD_PRELOAD")}')
    again = tells(settings={'LD_PRELOAD': f'libm.so.6:{library}'})
    check(again.get('LD_PRELOAD') == f'{library}:libm.so.6', f'again: {again.get("LD_PRELOAD")}')
    twice = tells(gpushim, 'run')
    check(twice.get('LD_PRELOAD') == library, f'twice: {twice.get("LD_PRELOAD")}')
    check(tells().get('LD_PRELOAD') == library, 'alone: it is not what is preloaded')


def another_copy(folder):
    other = os.path.join(folder, 'libgpushim.so')
    shutil.copy(library, other)
    ran = Ran(['--', PYTHON, '-c', TELLS], settings={'LD_PRELOAD': f'{other}:libm.so.6'})
    check(ran.told()[1].get('LD_PRELOAD') == f'{library}:libm.so.6', f'another copy: {ran.out}')
    ran.expect(0, None, f"{WARNING}LD_PRELOAD names '{other}'; .*'{library}' goes there instead\n")
    link = os.path.join(folder, 'linked.so')
    os.symlink(library, link)
    ran = Ran(['--', PYTHON, '-c', TELLS], settings={'LD_PRELOAD': link}).expect(0)
    check(ran.told()[1].get('LD_PRELOAD') == library, f'by another name: {ran.out}')


def installed(folder):
    """The places beside the program, and what it says where the library is in none."""
    machine = os.uname().machine
    places = [f'lib/{machine}-linux-gnu', 'lib64', 'lib', 'bin']
    os.mkdir(os.path.join(folder, 'bin'))
    program = os.path.join(folder, 'bin', 'gpushim')
    shutil.copy(gpushim, program)
    linked = os.path.join(folder, 'called')
    os.symlink(program, linked)
    none = Ran(['--', PYTHON], command=program).expect(
        1, '', 'gpushim: there is no libgpushim.so .*')
    for place in ['', *places]:
        path = os.path.join(folder, place, 'libgpushim.so')
        check(f'  {path}: No such file' in none.err, f'{path} is not among: {none.err}')
    for place in places:
        os.makedirs(os.path.join(folder, place), exist_ok=True)
        path = os.path.join(folder, place, 'libgpushim.so')
        shutil.copy(library, path)
        Ran(['--print'], command=linked).expect(0, f'LD_PRELOAD={re.escape(path)}\n')
        with open(path, 'w', encoding='ascii') as file:
            file.write('no library')
        Ran(['--print'], command=linked).expect(1, '', f'.*  {re.escape(path)}: Exec format error.*')
        os.unlink(path)


def cannot_be_preloaded(folder):
    for name in 'a b', 'a:b':
        place = os.path.join(folder, name)
        os.mkdir(place)
        for file in gpushim, library:
            shutil.copy(file, place)
        Ran(['--', 'true'], command=os.path.join(place, 'gpushim')).expect(
            1, '', f"gpushim: the library's path is '{place}/libgpushim.so', and .* install .*\n")


# ---- Options -------------------------------------------------------------------------------------

def options():
    given = tells('-o', 'pool.decay=5 s', '-olog=debug', '-o', 'general.log=error', '-o',
                  'share.dir=', '-o', 'share.enable=off', '-o', 'debug.single_stream=off', '-o',
                  'debug.reclaim_from_peers=off',
                  settings={'GPUSHIM_POOL_DECAY': '1 s', 'GPUSHIM_POOL_FREE': 'native'})
    expected = {'POOL_DECAY': '5 s', 'LOG': 'error', 'SHARE_DIR': '', 'SHARE_ENABLE': 'off',
                'CONFIG': '', 'DEBUG_SINGLE_STREAM': 'off', 'DEBUG_RECLAIM_FROM_PEERS': 'off', 'POOL_FREE': 'native'}
    check({name[8:]: value for name, value in given.items() if name.startswith('GPUSHIM_')}
          == expected, f'options: {given}')
    for old, given in (('pool.' 'lone_stream=off', {'DEBUG_SINGLE_STREAM': 'off'}),
                       ('pool.cache_share=5', {'POOL_CACHE_LIMIT': '5 %'})):
        ran = Ran(['-o', old, '--print']).expect(0,
                                                 'LD_PRELOAD=.*\n'
                                                 + ''.join(f'GPUSHIM_{n}={v}\n' for n, v in given.items()),
                                                 '.*is called .* now.*\n')
        check(f"{old.split('=')[0]} is called " in ran.err, f'an old name is understood, and says so: {ran.err}')
    check(tells('-o', 'log_target=/a=b=c').get('GPUSHIM_LOG_TARGET') == '/a=b=c', 'a value with equals signs')
    check(tells('-o', 'enable=off', '-o', 'enable=on').get('GPUSHIM_ENABLE') == 'on', 'the last counts')


def wrong_options(folder):
    started = os.path.join(folder, 'started')
    program = ['--', 'touch', started]
    for arguments, said in (
            (['-o', 'pool.decy=5 s'], r'.*"pool.decy"; did you mean pool.decay\?\n'),
            (['-o', 'small_limit=5'], r'.*"small_limit"; did you mean debug.small_limit\?\n'),
            (['-o', 'share.decay=5 s'], r'.*"share.decay"; did you mean pool.decay\?\n'),
            (['-o', 'GPUSHIM_LOG=info'], r'.*"GPUSHIM_LOG"; did you mean log\?\n'),
            (['-o', 'xyzzy=1'], r".*no option has the name \"xyzzy\"; 'gpushim config' lists them\n"),
            (['-o', 'a\x1b\n=1'], r'.*no option has the name "a\\x1b\\x0a"; .*'),
            (['-o', 'pool.decay=5'], r'.*pool.decay = "5" does not end in a unit .*; '
                                     r'allowed: a time from 0 to 60 min\n'),
            (['-o', 'log=loud'], r'.*log = "loud" is none of the words; allowed: off, error, .*\n'),
            (['-o', 'pool.decay'], r'.*"pool.decay" has no value; write pool.decay=VALUE\n'),
            (['-o', 'log=info', '-o', '=1'], r'.*no option has the name ""; .*')):
        Ran(arguments + program).expect(2, '', 'gpushim: ' + said)
    check(not os.path.exists(started), 'something was started in spite of a wrong option')


def printed():
    Ran(['--print', '-o', 'pool.decay=5 s', '-o', 'log=info']).expect(
        0, f'LD_PRELOAD={re.escape(library)}\nGPUSHIM_LOG=info\nGPUSHIM_POOL_DECAY=5 s\n')
    Ran(['--print', '--', PYTHON, '-c', TELLS]).expect(0, f'LD_PRELOAD={re.escape(library)}\n')
    Ran(['--print', '--', 'no-such-program']).expect(127, '', 'gpushim: .*PATH.*\n')


# ---- Starting ------------------------------------------------------------------------------------

def passes_through():
    Ran(['sh', '-c', 'exit 42']).expect(42, '')
    Ran(['--', 'sh', '-c', 'kill -TERM $$']).expect(-signal.SIGTERM, '')
    Ran(['--', 'sh', '-c', 'kill -KILL $$']).expect(-signal.SIGKILL, '')
    arguments = ['', 'a b', '-o', '--help', '--print', '--']
    given = Ran(['--', PYTHON, '-c', TELLS, *arguments]).told()[0]
    check(given == arguments, f'arguments: {given}')
    started = subprocess.Popen([gpushim, 'run', '--', 'cat'], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, env=surroundings(**ENVIRONMENT))
    started.stdin.write(b'x')
    started.stdin.flush()
    check(started.stdout.read(1) == b'x', 'cat does not answer')  # it is cat by now
    started.send_signal(signal.SIGTERM)
    check(started.wait(60) == -signal.SIGTERM, f'by a signal from outside: {started.returncode}')
    started.stdin.close()
    started.stdout.close()


def made(path, text, mode=0o755):
    with open(path, 'wb') as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    os.chmod(path, mode)
    return path


def is_found(folder):
    """PATH as execvp has it: the first that may be executed, in the order of the folders."""
    first, second = os.path.join(folder, 'first'), os.path.join(folder, 'second')
    for path in first, second:
        os.mkdir(path)
    settings = {'PATH': f'{folder}/none:{first}:{second}:{os.environ["PATH"]}'}
    made(f'{first}/said', '#!/bin/sh\necho first\n', 0o644)
    Ran(['said'], settings=settings).expect(
        126, '', f"gpushim: '{first}/said' may not be executed, or .*chmod.*\n")
    made(f'{second}/said', '#!/bin/sh\necho second\n')
    Ran(['said'], settings=settings).expect(0, 'second\n')
    os.chmod(f'{first}/said', 0o755)
    Ran(['said'], settings=settings).expect(0, 'first\n')
    os.unlink(f'{first}/said')
    os.mkdir(f'{first}/said')
    Ran(['said'], settings=settings).expect(0, 'second\n')
    Ran(['said'], settings={'PATH': ''}, cwd=second).expect(0, 'second\n')
    Ran(['said'], settings={'PATH': f'{folder}/none:{second}'}).expect(0, 'second\n')  # in the last of them
    made(f'{second}/text', 'echo of PATH\n')  # which the shell runs, by its place
    os.mkdir(f'{folder}/here')
    made(f'{folder}/here/text', 'echo of the folder\n')
    Ran(['text'], settings=settings, cwd=f'{folder}/here').expect(0, 'of PATH\n')
    # Without PATH it is in the system's folders, and not in this one.
    Ran(['said'], settings={'PATH': None}, cwd=second).expect(
        127, '', "gpushim: 'said' is not found in PATH; .*\n")
    Ran(['./said'], settings={'PATH': first}, cwd=second).expect(0, 'second\n')
    Ran(['no-such-program'], settings=settings).expect(
        127, '', "gpushim: 'no-such-program' is not found in PATH; .*\n")
    Ran([f'{folder}/none']).expect(127, '', f"gpushim: '{folder}/none' is not found; .*\n")
    Ran(['']).expect(127, '', "gpushim: '' is not found in PATH; .*\n")
    Ran([folder]).expect(126, '', f"gpushim: '{folder}' may not be executed, or is a folder; .*\n")
    Ran([made(f'{folder}/plain', 'exit 3\n', 0o644)]).expect(
        126, '', f"gpushim: '{folder}/plain' may not be executed, or .*\n")


def scripts(folder):
    Ran([made(f'{folder}/shell', 'echo $1; exit 3\n'), 'a b']).expect(3, 'a b\n')
    Ran([made(f'{folder}/empty', '')]).expect(0, '')
    for name, line in (('python', f'#! {PYTHON} -E'), ('env', '#!/usr/bin/env python3'),
                       ('split', '#!/usr/bin/env -S A=b python3 -E')):
        script = made(f'{folder}/{name}', f'{line}\n{TELLS}\n')
        ran = Ran([script, 'x']).expect(0)
        arguments, environment = ran.told()
        check(arguments == ['x'] and environment.get('LD_PRELOAD') == library, f'{ran.ran}')
    for name, line, shown in (('gone', '#!/no/such/thing -x\n', '/no/such/thing'),
                              ('dos', '#!/bin/sh\r\n', r'/bin/sh\\x0d')):
        Ran([made(f'{folder}/{name}', line)]).expect(
            126, '', f"gpushim: '.*/{name}' cannot be started: .*\"{shown}\", which is not there .*\n")


# ---- What keeps it out ---------------------------------------------------------------------------

def statically_linked(folder):
    source = made(f'{folder}/static.c', 'int main(void) { return 3; }\n', 0o644)
    tried = 0
    for way in '-static', '-static-pie':
        program = f'{folder}/program{way}'
        if not shutil.which('cc') or subprocess.run(['cc', way, '-o', program, source], check=False,
                                                    stderr=subprocess.DEVNULL).returncode != 0:
            continue
        tried += 1
        Ran([program]).expect(3, '', f'{WARNING}{program} is statically linked: .*\n')
        for line in (f'#!{program}', f'#!/usr/bin/env {program}', f'#!/usr/bin/env {program} \t'):
            script = made(f'{folder}/by{way}', line + '\n')
            Ran([script]).expect(3, '', f'{WARNING}{program}, which runs {script}, is statically .*\n')
    return tried


def programs_interpreter(program):
    """Where the file says who starts it: the place of the header, and its name."""
    start, size, count = struct.unpack_from('<Q14xHH', program, 32)
    for at in range(start, start + size * count, size):
        kind, _, offset, _, _, length = struct.unpack_from('<IIQQQQ', program, at)
        if kind == 3:
            return at, program[offset:offset + length - 1].decode()
    return None


def crafted(folder):
    """Copies of a program that say that they are of another machine, or started by another libc's
    linker, which here is glibc's under such a name, or none."""
    with open(shutil.which('true'), 'rb') as file:
        native = bytearray(file.read())
    at, linker = programs_interpreter(native)
    for name, said in (('ld-musl-x86_64.so.1', "is built for musl's libc: .*"),
                       ('linker64', 'is started by another dynamic linker than glibc.*')):
        path = f'{folder}/{name}'
        program = bytearray(native) + path.encode() + b'\0'
        struct.pack_into('<Q', program, at + 8, len(native))
        struct.pack_into('<Q', program, at + 32, len(path) + 1)
        file = made(f'{folder}/by-{name}', bytes(program))
        warning = f'{WARNING}{file} {said}\n'
        Ran([file]).expect(126, '', f'{warning}gpushim: .*cannot be started: .*is not there.*\n')
        os.symlink(linker, path)
        Ran([file]).expect(0, '', warning)
    other = f'{WARNING}.* is built for another architecture than the library here: .*\n'
    for name, at, changed in (('machine', 18, b'\xed\xfe'), ('bits', 4, b'\1'), ('order', 5, b'\2')):
        program = bytearray(native)
        program[at:at + len(changed)] = changed
        Ran(['--print', made(f'{folder}/{name}', bytes(program))]).expect(0, None, other)
    Ran([f'{folder}/machine']).expect(126, '', other + 'gpushim: .*Exec format error; .*\n')
    Ran([linker, shutil.which('true')]).expect(0, '')  # no interpreter, and not static either
    for size in range(0, 1024, 13):  # cut short: whatever comes of it, it is no crash
        status = Ran(['--print', made(f'{folder}/cut', bytes(native[:size]))]).status
        check(status == 0, f'the first {size} bytes of a program: {status}')


def of_musl(folder):
    if shutil.which('musl-gcc'):
        source = made(f'{folder}/musl.c', 'int main(void) { return 3; }\n', 0o644)
        subprocess.run(['musl-gcc', '-o', f'{folder}/musl', source], check=True)
        Ran([f'{folder}/musl']).expect(3, '', f"{WARNING}{folder}/musl is built for musl's libc: .*\n")


def may_get_new_rights():
    with open('/proc/self/status', encoding='ascii') as file:
        return not re.search(r'^NoNewPrivs:\s*1', file.read(), re.M)


def with_other_rights(folder):
    """A copy of env, in whose output is to be seen whether the dynamic linker took LD_PRELOAD away.
    Who owns a program gets no other rights by it, nor who can get none."""
    command, program = (shutil.copy(path, folder) for path in (gpushim, shutil.which('env')))
    own_library = shutil.copy(library, folder)
    kept, dropped = f'.*LD_PRELOAD={re.escape(own_library)}\n.*', '((?!LD_PRELOAD).)*'
    said = f'{WARNING}{program} (is set-%s|has file capabilities): .*\n'

    def expect(what, way=None, caller=None):
        ran = Ran([program], command=command, preexec_fn=caller)
        if way and not os.statvfs(folder).f_flag & os.ST_NOSUID and (may_get_new_rights()
                                                                     or what == CAPABILITIES):
            ran.expect(0, dropped, said % way)
        else:
            ran.expect(0, kept)

    try:
        os.chown(program, NOBODY, NOBODY)
        subprocess.run([command, 'version'], preexec_fn=as_nobody, check=True,
                       stdout=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return  # it takes root to change who a file belongs to, and who runs it
    os.mkdir(f'{folder}/closed', 0o700)
    hidden = made(f'{folder}/closed/program', '#!/bin/sh\n')
    Ran([hidden], command=command,
        preexec_fn=as_nobody).expect(126, '', f"gpushim: '{hidden}' may not be executed, or .*\n")
    Ran([f'{folder}/none'], command=command, preexec_fn=as_nobody).expect(127, '', '.* is not found; .*\n')
    for owner, mode, way, caller in (
            (NOBODY, 0o4755, 'user-id', None), (NOBODY, 0o2755, 'group-id', None),
            (NOBODY, 0o2745, None, None), (0, 0o6755, None, None), (0, 0o4755, 'user-id', as_nobody),
            (0, 0o2755, 'group-id', as_nobody), (NOBODY, 0o6755, None, as_nobody),
            (NOBODY, 0o6755, None, without_new_rights)):
        os.chown(program, owner, owner)
        os.chmod(program, mode)
        expect(f'of {owner}, {mode:o}, {caller}', way, caller)
    os.chmod(program, 0o755)
    if shutil.which('setcap') and subprocess.run(['setcap', 'cap_chown=ep', program], check=False,
                                                 stderr=subprocess.DEVNULL).returncode == 0:
        expect('capabilities, root')
        expect(CAPABILITIES, 'user-id', as_nobody)


def in_a_folder(test):
    """In one whose neighbours are this test's: the library is looked for there, too."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as around:
        folder = os.path.join(os.path.realpath(around), 'folder')
        os.mkdir(folder)
        for each in around, folder:
            os.chmod(each, 0o755)
        return test(folder)


is_in_the_program()
comes_first()
options()
printed()
passes_through()
for each in (another_copy, installed, cannot_be_preloaded, wrong_options, is_found, scripts, crafted,
             of_musl, with_other_rights):
    in_a_folder(each)
if not in_a_folder(statically_linked):
    print('not tried: a static program, as there is no cc that makes one')
end_with_faults()
