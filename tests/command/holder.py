"""Processes for tests of gpushim's commands: one that allocates and frees what it is told, under the software
driver, and gpushim itself in a clean environment. Faults are collected here.

The test's arguments begin with GPUSHIM SHIM LIBCUDA.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), os.pardir))
from faults import PATIENT_S, await_that, check, end_with_faults  # as others take them from here

os.umask(0o022)  # other users look at some of what is made here
GPUSHIM, SHIM, LIBCUDA = (os.path.abspath(argument) for argument in sys.argv[1:4])
MIB = 1 << 20

# A program of the test's own: allocates and frees what its input says, and answers each line.
HOLDER = '''
import ctypes, sys
class Handle(ctypes.Structure): # which is passed by value
    _fields_ = [('bytes', ctypes.c_ubyte * 64)]
cuda = ctypes.CDLL('libcuda.so.1')
context, handle = ctypes.c_void_p(), Handle()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
held, opened = [], []
for line in sys.stdin:
    word, value = line.split()
    if word == 'alloc':
        held.append(ctypes.c_uint64())
        assert cuda.cuMemAlloc_v2(ctypes.byref(held[-1]), ctypes.c_size_t(int(value))) == 0
    elif word == 'free':
        assert cuda.cuMemFree_v2(held.pop(int(value))) == 0
    elif word == 'share':
        status = cuda.cuIpcGetMemHandle(ctypes.byref(handle), held[int(value)])
        print(bytes(handle).hex() if status == 0 else f'refused {status}')
    elif word == 'open':
        pointer = ctypes.c_uint64()
        handle = Handle.from_buffer_copy(bytes.fromhex(value))
        status = cuda.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), handle, 1)
        assert status == 0, status
        opened.append(pointer)
    elif word == 'close':
        assert cuda.cuIpcCloseMemHandle(opened.pop(int(value))) == 0
    elif word == 'do': # Python, as hexadecimal digits
        exec(bytes.fromhex(value))
    print('done', flush=True)
'''

# For what it does (do): the result of publishing memory.
PUBLISH = '''
library = ctypes.CDLL(None)
class Publication(ctypes.Structure):
    _fields_ = [('size', ctypes.c_size_t), ('address', ctypes.c_uint64), ('label', ctypes.c_char_p),
                ('note', ctypes.c_char_p), ('note_size', ctypes.c_size_t)]
def publish(name, address, label=None, note=b'', size=None, note_size=None):
    it = Publication(ctypes.sizeof(Publication) if size is None else size, address, label, note,
                     len(note or b'') if note_size is None else note_size)
    return library.gpushim_publish(name, ctypes.byref(it))
'''
# Memory of so many bytes that it makes and maps itself.
OWN = '''
import struct
prop = ctypes.create_string_buffer(struct.pack("<iiii", 1, 0, 1, 0) + bytes(16))
access = ctypes.create_string_buffer(struct.pack("<iii", 1, 0, 3))
size, own, base, none = ctypes.c_size_t({size}), ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t(0)
assert cuda.cuMemCreate(ctypes.byref(own), size, prop, ctypes.c_uint64(0)) == 0
assert cuda.cuMemAddressReserve(ctypes.byref(base), size, none, none, none) == 0
assert cuda.cuMemMap(base, size, none, own, none) == 0
assert cuda.cuMemSetAccess(base, size, access, ctypes.c_size_t(1)) == 0
held.append(base)
'''


def for_everybody(folder, program):
    """A copy that other users may run, too: what is built may lie where they cannot look."""
    copy = shutil.copy(program, folder)
    os.chmod(copy, 0o755)
    return copy


def clean(folder):
    plain = {name: value for name, value in os.environ.items()
             if not name.startswith(('GPUSHIM_', 'SOFTCUDA_')) and name != 'LD_PRELOAD'}
    return {**plain, 'GPUSHIM_SHARE_DIR': str(folder), 'GPUSHIM_CONFIG': '',
            'ASAN_OPTIONS': plain.get('ASAN_OPTIONS', '') + ':verify_asan_link_order=0'}


class Holder:
    def __init__(self, folder, library=True, python=sys.executable, user=None, before=(), **settings):
        env = {**clean(folder), **settings, 'LD_LIBRARY_PATH': os.path.dirname(LIBCUDA),
               'SOFTCUDA_MACHINE': os.path.join(folder, f'machine{user or ""}')}
        env = {name: value for name, value in env.items() if value is not None}
        if library:
            env['LD_PRELOAD'] = SHIM
        self.process = subprocess.Popen([*before, python, '-c', HOLDER], env=env, text=True, user=user,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.process.pid

    def do(self, line):
        self.process.stdin.write(line + '\n')
        self.process.stdin.flush()
        said = ''
        while (answer := self.process.stdout.readline().strip()) != 'done':
            if not answer:
                sys.exit(f'failed: {line!r} ends the program of this test')
            said = answer
        return said

    def run(self, code):
        """Python that it does; what that prints last."""
        return self.do('do ' + code.strip().encode().hex())

    def stop(self):
        """All of its threads stand still when this returns."""
        def states():
            for thread in os.listdir(f'/proc/{self.pid}/task'):
                with open(f'/proc/{self.pid}/task/{thread}/stat', encoding='utf-8') as file:
                    yield file.read().rpartition(')')[2].split()[0]
        self.process.send_signal(signal.SIGSTOP)
        await_that(lambda: set(states()) == {'T'}, 'it stops')

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


def gpushim(folder, *arguments, command=GPUSHIM):
    return subprocess.run([command, *arguments], env=clean(folder), capture_output=True, text=True,
                          timeout=PATIENT_S, check=False)


def rows(folder, *arguments):
    """What a command tells programs, all being well."""
    run = gpushim(folder, *arguments, '--json')
    check(run.returncode == 0, f'{arguments} --json ends with {run.returncode}: {run.stderr}')
    told = json.loads(run.stdout)
    return told.get('rows', told)


def is_true(one, expression, what):
    """In a holder."""
    said = one.run(f'print(bool({expression}))')
    check(said == 'True', f'{what}: {expression} is {said}')


def refuses(folder, status, arguments, *words):
    """The command does not do it, and says why on standard error alone."""
    run = gpushim(folder, *arguments)
    check(run.returncode == status and not run.stdout and all(word in run.stderr for word in words),
          f'{arguments} ends with {status} and {words}: {run}')


def stats_of(folder, pid, *arguments):
    """Its row; {}: there is none, or several."""
    found = [row for row in rows(folder, 'stats', *arguments) if row['pid'] == pid]
    return found[0] if len(found) == 1 else {}


def prove_each(*proofs):
    """In a folder each; and the end of the test."""
    for proof in proofs:
        with tempfile.TemporaryDirectory(prefix='gpushim-', ignore_cleanup_errors=True) as folder:
            proof(folder)
    end_with_faults()
