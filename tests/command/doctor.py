"""gpushim doctor: each thing that stands in the way of the library is a row, with the way out.

usage: doctor.py GPUSHIM LIBGPUSHIM FOLDER_OF_LIBCUDA LIBNVIDIA_ML OLD_LIBCUDA [STATIC_PROGRAM]

Every case is asked for as text and as JSON, and both must have the same rows.
"""
import contextlib
import ctypes
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios

from alone import check, end_with_faults, expect, faults, run, surroundings
import wire  # which, as the next, is found by the one before
from faults import await_that

gpushim, library, driver, nvml, old_driver = (os.path.realpath(path) for path in sys.argv[1:6])
static_program = sys.argv[6] if len(sys.argv) > 6 else None

NOBODY = 65533
libc = ctypes.CDLL(None)
WAIT_S = 60
ENVIRONMENT = surroundings()
# Says that it is ready, and ends with its standard input.
USES_CUDA = '''import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, at, handle = ctypes.c_void_p(), ctypes.c_uint64(), (ctypes.c_char * 64)()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(1 << 20)) == 0
assert cuda.cuIpcGetMemHandle(handle, at) == 0
print("ready", flush=True)
sys.stdin.read()
'''
NO_CUDA = 'import sys; print("ready", flush=True); sys.stdin.read()'


class Asked:
    """The rows of one case: (state, subject, found, remedy)."""

    def __init__(self, what, *arguments, settings=None, **options):
        self.what = what
        usual = 'GPUSHIM_SHARE_DIR' in (settings or {}) and settings['GPUSHIM_SHARE_DIR'] is None
        self.others = ('process', 'sockets', 'broker') if usual else 'process'
        environment = ENVIRONMENT | {'LD_LIBRARY_PATH': driver, 'GPUSHIM_SHARE_DIR': folder}
        environment |= settings or {}
        environment = {name: value for name, value in environment.items() if value is not None}

        def ask(*more):
            return subprocess.run([gpushim, 'doctor', *arguments, *more], env=environment, text=True,
                                  timeout=300, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  check=False, **options)
        text, self.ran = ask('--all'), ask('--json')
        self.check_screen(ask())
        try:
            listed = json.loads(self.ran.stdout)['rows']
        except ValueError as error:
            faults.append(f'{what}: no JSON ({error}): {self.ran.stdout!r} {self.ran.stderr!r}')
            listed = []
        for row in listed:
            check(set(row) == {'subject', 'state', 'found', 'remedy'}, f'{what}: {row}')
        self.rows = [(row['state'], row['subject'], row['found'], row['remedy']) for row in listed]
        for state, subject, found, remedy in self.rows:
            if state not in ('ok', 'warn', 'FAIL') or not found or (remedy is None) != (state == 'ok'):
                faults.append(f'{what}: {subject}: {state}, {found!r}, {remedy!r}')
        failed = any(row[0] == 'FAIL' for row in self.rows)
        check(self.ran.returncode == (1 if failed else 0),
              f'{what}: it ends with {self.ran.returncode}, and has {self.rows}')
        self.compare(read_text(what, text.stdout))

    def check_screen(self, ran):
        """Without --all it is a screen with the sum last, and what fails is there."""
        self.screen = ran.stdout
        lines = ran.stdout.splitlines()
        fails = sum(line.startswith('FAIL ') for line in lines)
        if len(lines) > 30 or any(len(line) > 100 for line in lines):
            faults.append(f'{self.what}: {len(lines)} lines, {max(map(len, lines))} columns: {ran.stdout}')
        total = re.match(r'(\d+) FAIL, \d+ warn, \d+ ok: ', lines[-1]) if lines else None
        if not total or ran.returncode != (int(total[1]) > 0):
            faults.append(f'{self.what}: no sum at the end: {ran}')
        elif int(total[1]) != fails and (int(total[1]) < fails or any(line.startswith('ok ') for line in lines)):
            faults.append(f'{self.what}: what fails is not told first: {ran}')

    def compare(self, rows):
        """Both ways say the same; what others do on the machine meanwhile is apart."""
        def own(rows):
            return sorted(row[:2] for row in rows if not row[1].startswith(self.others))
        check(own(rows) == own(self.rows), f'{self.what}: as text {own(rows)}, as JSON {own(self.rows)}')

    def has(self, state, subject, found, remedy=None):
        """A row of that subject has that state, and matches."""
        for row in self.rows:
            if (row[:2] == (state, subject) and re.search(found, row[2], re.S)
                    and (remedy is None or re.search(remedy, row[3] or ''))):
                return self
        near = [row for row in self.rows if row[1] == subject] or self.rows
        faults.append(f'{self.what}: no row ({state}, {subject}, {found!r}, {remedy!r}) in {near}')
        return self

    def lacks(self, subject, state=None):
        """There is no such row."""
        for row in self.rows:
            check(row[1] != subject or state not in (None, row[0]), f'{self.what}: it has {row}')
        return self


def read_text(what, text):
    rows = []
    for line in text.splitlines():
        row = re.fullmatch(r'(ok|warn|FAIL) {2,4}(\S.{16,}?) (\S.*)', line)
        if row:
            rows.append([row[1], row[2].rstrip(), row[3], None])
        elif rows and re.fullmatch(r' {24}-> \S.*', line) and not rows[-1][3]:
            rows[-1][3] = line[27:]
        elif re.match(r'\d+ FAIL, \d+ warn, \d+ ok: ', line):
            break
        else:
            faults.append(f'{what}: the line {line!r}')
    return [tuple(row) for row in rows]


class Program:
    """A program that runs until it is left."""

    def __init__(self, code=USES_CUDA, preload=None, command=None, settings=None, **options):
        environment = ENVIRONMENT | {'LD_LIBRARY_PATH': driver, 'GPUSHIM_SHARE_DIR': folder}
        environment |= settings or {}
        if preload:
            environment['LD_PRELOAD'] = preload
        self.child = subprocess.Popen(command or [sys.executable, '-c', code], env=environment,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, **options)
        self.pid = self.child.pid

    def __enter__(self):
        if self.child.stdout.readline() != 'ready\n':
            sys.exit(f'a program does not run: {self.child.communicate()}')
        return self

    def __exit__(self, *_):
        self.child.send_signal(signal.SIGCONT)
        self.child.communicate(timeout=WAIT_S)


def has_libcuda():
    try:
        ctypes.CDLL('libcuda.so.1')
    except OSError:
        return False
    return True


# ---- The driver ---------------------------------------------------------------------------------

def good_case():
    """Nothing is wrong, whatever else runs on this machine."""
    asked = Asked('the good case')
    for subject in ('driver', 'GPU 0', 'GPU 1', 'folder', 'sockets', 'library', 'LD_PRELOAD', 'processes'):
        check(any(row[1] == subject for row in asked.rows), f'the good case: no row about {subject}')
    for row in asked.rows:
        check(row[0] != 'FAIL' or row[1].startswith('process '), f'the good case: {row}')
    asked.has('ok', 'driver', r'^CUDA \d+\.\d+, from .*libcuda\.so\.1$')
    asked.has('ok', 'GPU 0',
              r'^Software GPU 0, 1\.0 GiB: .*; an unknown part \(no NVML\) is free, GPU-\w{8}(-\w{4}){3}-\w{12}$')
    asked.has('ok', 'GPU 1', r'^Software GPU 1, 1\.0 GiB: all of the library, and GPUDirect RDMA; .*, GPU-')
    told = [line for line in asked.screen.splitlines() if line.startswith('ok    GPU 1 ')]  # others may have the lines
    check(all('1.0 GiB: all of the library, and GPUDirect RDMA; ' in line for line in told), f'not cut: {told}')
    asked.has('ok', 'library', re.escape(library) + '$')
    asked.has('ok', 'LD_PRELOAD', 'not set')


def no_driver():
    if has_libcuda() or os.path.exists('/dev/nvidia0') or os.path.exists('/proc/driver/nvidia'):
        return
    asked = Asked('no driver', settings={'LD_LIBRARY_PATH': scratch})
    asked.has('warn', 'driver', 'no GPU .* no libcuda: libcuda.so.1: cannot open', 'no GPU')
    asked.has('ok', 'library', r'libgpushim\.so$').lacks('driver', 'FAIL').lacks('GPU 0')


def bad_drivers():
    old = os.path.join(scratch, 'old')
    os.mkdir(old)
    shutil.copy(old_driver, os.path.join(old, 'libcuda.so.1'))
    for settings, state, found, remedy in (
            ({'SOFTCUDA_FAULTS': 'cuInit:*:304'}, 'FAIL', r'device files .*CUDA_ERROR_OPERATING_SYSTEM, 304',
             'gpus all'),
            ({'SOFTCUDA_FAULTS': 'cuInit:*:999'}, 'FAIL', 'nvidia-uvm', 'modprobe'),
            ({'SOFTCUDA_FAULTS': 'cuInit:*:3'}, 'FAIL', r'cuInit gives .*, 3\)', 'nvidia-smi'),
            ({'SOFTCUDA_FAULTS': 'cuInit:kill:1'}, 'FAIL', 'ended the process by signal 9', 'again'),
            ({'SOFTCUDA_FAULTS': 'cuDriverGetVersion:*:1'}, 'warn', 'does not tell its version', 'again'),
            ({'CUDA_VISIBLE_DEVICES': '7'}, 'warn', "CUDA_VISIBLE_DEVICES is '7'", 'unset'),
            ({'SOFTCUDA_DEVICES': '0'}, 'FAIL' if os.path.exists('/dev/nvidia0') else 'warn', 'no GPU that it can use',
             'gpus all'),
            ({'LD_LIBRARY_PATH': old}, 'warn', r'CUDA 10\.2, .* before 12\.5', '12.5'),
            ({'LD_LIBRARY_PATH': old, 'OLD_DRIVER_TALKS': '1'}, 'FAIL', r'has no cu\w+: the library steps aside',
             'CUDA 11'),
            ({'LD_LIBRARY_PATH': old, 'OLD_DRIVER_VERSION': '12050'}, 'ok', r'^CUDA 12\.5, from ', None)):
        asked = Asked(str(settings), settings=settings)
        asked.has(state, 'driver', found, remedy).has('ok', 'library', r'libgpushim\.so$')
        if 'cuDriver' not in str(settings):
            asked.lacks('GPU 0')


def abilities():
    for settings, state, found in (
            ({'SOFTCUDA_WITHOUT': 'vmm'}, 'FAIL', 'cannot make memory that is shared'),
            ({'SOFTCUDA_WITHOUT': 'posix_fd'}, 'FAIL', 'cannot make memory that is shared by descriptor'),
            ({'SOFTCUDA_WITHOUT': 'rdma'}, 'ok', 'all of the library; no GPUDirect RDMA; '),
            ({'SOFTCUDA_MEMORY': '1M'}, 'warn', 'it is full now'),
            # Reported, and then refused.
            ({'SOFTCUDA_FAULTS': 'cuMemExportToShareableHandle:*:801'}, 'FAIL', 'cuMemExportToShareableHandle')):
        Asked(str(settings), settings=settings).has(state, 'GPU 0', found)


def management():
    """By NVML: free memory, and a part of a GPU."""
    settings = {'LD_LIBRARY_PATH': os.path.dirname(nvml) + ':' + driver}
    Asked('NVML', settings=settings).has('ok', 'GPU 0', r' 1\.0 GiB: all of the library, .*; 768\.0 MiB is free, GPU-')
    Asked('MIG', settings=settings | {'NVML_MIG': 'part'}).has('ok', 'GPU 1', '; 768.* is free, MIG-')


def narrow():
    """Where a terminal is narrower than a screen, lines are as long as that."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 72, 0, 0))
    subprocess.run([gpushim, 'doctor'], env=ENVIRONMENT | {'LD_LIBRARY_PATH': driver, 'GPUSHIM_SHARE_DIR': folder},
                   stdout=its, timeout=WAIT_S, check=False)
    os.close(its)
    said = b''
    with contextlib.suppress(OSError):  # its end
        while part := os.read(ours, 65536):
            said += part
    os.close(ours)
    told = said.decode().split('\r\n')
    check(len(told) > 8 and all(len(line) <= 72 for line in told[:-2]), f'a narrow terminal: {told}')


# ---- The folder ---------------------------------------------------------------------------------

def folders():
    """What is said of each folder; none is left behind in it."""
    def made(name, mode=0o700):
        path = os.path.join(scratch, name)
        os.mkdir(path)
        os.chmod(path, mode)
        return path
    open_to_all, foreign, link = made('all', 0o1777), made('foreign', 0o700 if os.geteuid() == 0
                                                           else 0o500), os.path.join(scratch, 'link')
    os.symlink(folder, link)
    if os.geteuid() == 0:
        os.chown(foreign, NOBODY, NOBODY)
    for path, state, found, remedy in (
            (folder, 'ok', f'^a process here puts its socket up in {re.escape(folder)}$', None),
            (os.path.join(scratch, 'absent'), 'ok', '^a process here puts its socket up in', None),
            (open_to_all, 'ok', f'up in {re.escape(open_to_all)}/gpushim-{os.geteuid()}$', None),
            (link, 'FAIL', 'no socket can be put up: .* symbolic link', 'GPUSHIM_SHARE_DIR'),
            (foreign, 'FAIL', f'belongs to user {NOBODY}|no socket can be made in', 'of this user'),
            ('/' + 'x' * 200, 'FAIL', 'no absolute path of at most', 'GPUSHIM_SHARE_DIR')):
        asked = Asked(path, settings={'GPUSHIM_SHARE_DIR': path})
        asked.has(state, 'folder', found, remedy).has('ok', 'library', '.')
        if state == 'ok':
            asked.lacks('folder', 'FAIL').lacks('folder', 'warn')
    left = [name for path in ('absent', 'all', f'all/gpushim-{os.geteuid()}')
            for name in os.listdir(os.path.join(scratch, path))]
    check(left == [f'gpushim-{os.geteuid()}'], f'{left} were left behind')
    Asked('no sharing', settings={'GPUSHIM_SHARE_ENABLE': '0'}).has('warn', 'folder', 'switched off', 'share.enable')


def sockets():
    """Each who does not answer has a row, which says no more than is known of it; a broker's is of brokers."""
    other = wire.message(wire.REFUSE, bytes(8), 6)
    listeners = [wire.Listener(os.path.join(folder, name), lambda *_: other)
                 for name in (*(f'{i:032x}' for i in range(40)), 'broker.a')]
    listeners.append(wire.Listener(os.path.join(folder, 'f' * 32), lambda *_: b''))
    asked, who = Asked('who does not answer'), rf'pid {os.getpid()}\b[^,]* \([^)]*\)'
    for subject, found, remedy in (
            ('sockets', rf'^{who} is of another version .*protocol 6', 'run the same version'),
            ('broker', rf'^{who} is of another version', 'run the same version'),
            ('sockets', rf'^{who} does not answer$', '^ask again')):
        asked.has('warn', subject, found, remedy)
    silent = [row[1] for row in asked.rows if row[0] == 'warn' and row[1] in ('sockets', 'broker')]
    if (silent.count('sockets'), silent.count('broker')) != (41, 1):
        faults.append(f'a row for each: {asked.rows}')
    for listener in listeners:
        listener.end()


def brokers():
    settings = {'GPUSHIM_SHARE_STRATEGY': 'broker'}
    Asked('a broker to be started', settings=settings).has('ok', 'sockets',
                                                           '0 of them brokers: the first that shares starts one')
    with subprocess.Popen([gpushim, 'broker'], env=ENVIRONMENT | {'GPUSHIM_SHARE_DIR': folder}) as runs:
        await_that(lambda: wire.brokers(folder), 'a broker')
        Asked('a broker', settings=settings).has('ok', 'sockets', '^1 processes answer .*, 1 of them brokers$').has(
            'ok', 'broker', f'one answers, process {runs.pid}$')
        runs.send_signal(signal.SIGSTOP)
        await_that(lambda: state_of(runs.pid) == 'T', 'a stop')
        Asked('a stopped broker', settings=settings).has('warn', 'broker',
                                                         rf'^pid {runs.pid}\b.* does not answer, as it is stopped$',
                                                         'CONT')
        runs.send_signal(signal.SIGCONT)
        runs.terminate()


def deny_sockets():
    """A filter of system calls that refuses socket(2), and lets the rest pass."""
    number = {'x86_64': 41, 'aarch64': 198}[os.uname().machine]
    code = b''.join(struct.pack('=HBBI', *line) for line in (
        (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 13), (0x06, 0, 0, 0x7fff0000)))
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack('@HP', 4, ctypes.addressof(buffer))
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program, 0, 0) != 0:
        os._exit(99)


def filters():
    asked = Asked('a filter of system calls', preexec_fn=deny_sockets)
    asked.has('FAIL', 'folder', 'no socket can be put up: .*Permission denied', 'GPUSHIM_SHARE_DIR')


# ---- LD_PRELOAD and processes -------------------------------------------------------------------

def changed_copy(path, find, put):
    """A copy of the library that differs."""
    with open(library, 'rb') as file:
        data = file.read()
    assert find in data and len(find) == len(put)
    with open(path, 'wb') as file:
        file.write(data.replace(find, put, 1))
    return path


def preloads():
    place, gone = os.path.join(scratch, 'other'), os.path.join(scratch, 'gone/libgpushim.so')
    os.mkdir(place)
    machine = struct.pack('<HH', 3, 0x3e if os.uname().machine == 'x86_64' else 0xb7)
    foreign = changed_copy(os.path.join(place, 'libgpushim.so.1'), machine, struct.pack('<HH', 3, 0xf3))
    text, copy, linked = (os.path.join(place, f'libgpushim{end}') for end in ('.so.2', '.so', '-linked.so'))
    with open(text, 'w', encoding='utf-8') as file:
        file.write('no library, whatever it is called: ' + 'x' * 64)
    shutil.copy(library, copy)
    os.symlink(library, linked)
    has = 'has the library, ' + re.escape(library)
    for value, state, found, remedy in (
            (library, 'ok', has, None), (f'{library}:{library}', 'ok', has, None),
            (f'{library}:{linked}', 'ok', has, None),
            (gone, 'FAIL', re.escape(gone) + ' is not there', re.escape(library)),
            (f'{library}:/nonexistent/liba.so:/nonexistent/libb.so', 'warn', '^/nonexistent/liba.so is not there',
             'take it out'),
            (f'{library}:/nonexistent/liba.so:/nonexistent/libb.so', 'warn', '^/nonexistent/libb.so is not there',
             'take it out'),
            ('/nonexistent/liba.so', 'ok', 'does not have the library', None),
            (foreign, 'FAIL', 'another architecture', re.escape(library)), (text, 'FAIL', 'no ELF file', None),
            (f'{library} {copy}', 'ok', 'has the library, ' + re.escape(copy), None),
            ('libgpushim.so', 'warn', 'only the dynamic linker knows', 'whole path')):
        asked = Asked(value, settings={'LD_PRELOAD': value}).has(state, 'LD_PRELOAD', found, remedy)
        if found == has:
            asked.lacks('LD_PRELOAD', 'FAIL')
    many = Asked('more than a screen', settings={'LD_PRELOAD': ':'.join(f'{gone}{i}/libgpushim.so' for i in range(12))})
    check(sum(row[0] == 'FAIL' for row in many.rows) >= 12, f'twelve that are not there: {many.rows}')


def processes():
    copy = os.path.join(scratch, 'copy')
    os.mkdir(copy)
    same = shutil.copy(library, os.path.join(copy, 'libgpushim.so'))
    later = shutil.copy(library, os.path.join(copy, 'libgpushim.so.1'))
    with (Program() as without, Program(preload=library) as with_it, Program(preload=same) as has_same,
          Program(NO_CUDA) as none, Program(preload=later) as has_old, Program(preload=f'{library}:{same}') as has_two):
        os.replace(shutil.copy(library, later + '.new'), later)
        asked = Asked('processes')
        asked.has('warn', f'process {without.pid}', 'python.* uses CUDA without the library',
                  'LD_PRELOAD=' + re.escape(library))
        asked.has('warn', f'process {has_old.pid}', r'has the library, \S+/libgpushim\.so\.1 \(deleted\)',
                  'start it again')
        asked.has('FAIL', f'process {has_two.pid}', 'two copies', 'one of them')
        for program in (with_it, has_same, none):
            asked.lacks(f'process {program.pid}')
        asked.has('ok', 'processes', r'^(?!0 |1 )\d+ use CUDA with this library')
        one_process(without, with_it, none, has_two)


def one_process(without, with_it, none, has_two):
    def ask(what, program):
        return Asked(what, str(program.pid)).has('ok', 'process', f'^{program.pid} .*python').lacks('driver')
    ask('a process without it', without).has(
        'FAIL', 'libraries', 'uses CUDA without the library', re.escape(library))
    asked = ask('a process without CUDA', none).has('warn', 'libraries', 'it has no libcuda')
    asked.lacks('socket')
    check('0 FAIL, 1 warn, ' in asked.screen and asked.screen.endswith('may keep it from working\n'),
          f'the sum is of that process: {asked.screen}')
    ask('a process with two', has_two).has('FAIL', 'libraries', 'two copies')
    asked = ask('a process with it', with_it)
    asked.has('ok', 'libraries', re.escape(library) + ' and libcuda').has('ok', 'socket', 'answers')
    asked.has('ok', 'program', 'python')
    asked.has('ok', 'LD_PRELOAD', 'has the library').has('ok', 'share.dir', 'as here')
    check(not any(row[0] != 'ok' for row in asked.rows), f'a process with it: {asked.rows}')
    asked = Asked('another folder', str(with_it.pid), settings={'GPUSHIM_SHARE_DIR': scratch})
    asked.has('warn', 'share.dir', 'here ' + re.escape(scratch), 'same folder')
    asked.has('ok', 'socket', 'it has none .* has another folder')


def state_of(pid):
    with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
        return file.read().rsplit(')', 1)[1].split()[0]


def odd_processes():
    settings = {'GPUSHIM_ENABLE': 'off', 'LD_PRELOAD': '/nonexistent/libgpushim.so'}
    with Program(NO_CUDA, settings=settings) as program:
        os.kill(program.pid, signal.SIGSTOP)
        await_that(lambda: state_of(program.pid) == 'T', 'a stop')
        asked = Asked('an odd process', str(program.pid))
        asked.has('warn', 'process', 'is stopped', 'CONT')
        asked.has('FAIL', 'LD_PRELOAD', '/nonexistent/libgpushim.so is not there')
        asked.has('warn', 'enable', 'it is off', 'GPUSHIM_ENABLE')
    with Program(NO_CUDA, settings={'GPUSHIM_ENABLE': 'OFF', 'LD_PRELOAD': './libgpushim.so'},
                 cwd=os.path.join(scratch, 'copy')) as program:
        asked = Asked('off in capitals', str(program.pid))
        asked.has('warn', 'enable', 'it is off', 'GPUSHIM_ENABLE')
        asked.has('ok', 'LD_PRELOAD', 'has the library, ./libgpushim.so').lacks('LD_PRELOAD', 'FAIL')
    with Program(NO_CUDA, settings={'LD_PRELOAD_OLD': '/nonexistent/liba.so'}) as program:
        Asked('a variable that begins so', str(program.pid)).lacks('LD_PRELOAD')
    if static_program:
        with Program(command=[static_program], preload=library) as program:
            asked = Asked('a static program', str(program.pid))
            asked.has('FAIL', 'program', 'statically linked', 'libc.so')
    if os.geteuid() != 0:
        asked = Asked('of another user', '1')
        if not os.access('/proc/1/environ', os.R_OK):
            asked.has('warn', 'libraries', 'may not be looked at', 'root')
    with subprocess.Popen([sys.executable, '-c', '']) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        Asked('one that has ended', str(ended.pid)).has('FAIL', 'process', 'has ended', 'parent')
    Asked('no process', str(ended.pid)).has('FAIL', 'process', f'there is no process {ended.pid}', 'ps')


def quiet():
    for arguments, status, out in ((['4194304'], 1, r'FAIL  process .*\n +-> .*\n'), ([], 0, '')):
        expect(run([gpushim, 'doctor', '--quiet', *arguments],
                   {'LD_LIBRARY_PATH': driver, 'GPUSHIM_SHARE_DIR': folder}), status, out)


def moved():
    """The command without its library."""
    global gpushim
    here, away = gpushim, os.path.join(scratch, 'bin/gpushim')
    os.mkdir(os.path.dirname(away))
    gpushim = shutil.copy(here, away)
    Asked('no library').has('FAIL', 'library', 'no libgpushim.so', 'same package')
    gpushim = here


with tempfile.TemporaryDirectory(prefix='gpushim-doctor-', ignore_cleanup_errors=True) as scratch:
    folder = os.path.join(scratch, 'run')
    os.mkdir(folder, 0o700)
    for case in (good_case, no_driver, bad_drivers, abilities, management, narrow, folders, sockets, brokers,
                 filters, preloads, processes, odd_processes, quiet, moved):
        case()
end_with_faults()
