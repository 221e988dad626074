"""What a checkpoint by the driver (cuCheckpointProcess*, which cuda-checkpoint is a command for) does to a process
that holds memory of cuMemCreate.

    checkpoint.py [LIBRARY [ROW...]]

The library adds POSIX descriptors to what a program makes by itself (debug.user_vmm), and its pools have them. This
asks whether they stand in the way of a checkpoint where nothing was ever exported: a program of this file's own holds
such memory, is locked and checkpointed, restored and unlocked, and looks at its memory again. Rows:

    plain                as most programs ask for it: no handle type
    descriptors          with POSIX descriptors as handle type, never exported
    exported             with them, and one was exported and closed again: for comparison
    kept                 the same, and not closed
    allocated            memory of cuMemAlloc
    opened               the same, which another process has open by cuIpcOpenMemHandle

each natively; then, where LIBRARY (libgpushim.so) is named, plain, allocated and opened under it, and plain with
GPUSHIM_DEBUG_USER_VMM=off; or of all these the rows that are named. One line a row, then what follows for the default.
Where there is no driver with these calls (570 and later) or no GPU it says so, and the exit status is 77. Prints
facts and asserts nothing: 0 when all rows were asked.
"""
import ctypes
import os
import subprocess
import sys
import tempfile

PIECE = 2 << 20
WORD = 0x5ca1ab1e
PATIENT_S = 60
DESCRIPTORS = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
ROWS = ('plain', 'descriptors', 'exported', 'kept', 'allocated', 'opened')
UNDER = (('plain', {}), ('plain', {'GPUSHIM_DEBUG_USER_VMM': 'off'}), ('allocated', {}), ('opened', {}))
CALLS = {'checkpoint': ('Lock', 'Checkpoint'), 'restore': ('Restore', 'Unlock')}


class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [('type', ctypes.c_int), ('types', ctypes.c_int), ('location', ctypes.c_int * 2),
                ('windows', ctypes.c_void_p), ('flags', ctypes.c_ubyte * 8)]


def must(cuda, call, *arguments):
    result = getattr(cuda, call)(*arguments)
    if result != 0:
        sys.exit(f'{call}: error {result}')


def mapped(cuda, row):
    """A piece that the program makes and maps by itself."""
    base, made = ctypes.c_uint64(), ctypes.c_ulonglong()
    types = DESCRIPTORS if row != 'plain' else 0
    size, none = ctypes.c_size_t(PIECE), ctypes.c_size_t(0)
    must(cuda, 'cuMemAddressReserve', ctypes.byref(base), size, none, ctypes.c_uint64(0), ctypes.c_ulonglong(0))
    must(cuda, 'cuMemCreate', ctypes.byref(made), size, ctypes.byref(Properties(1, types, (1, 0))), ctypes.c_ulonglong(0))
    must(cuda, 'cuMemMap', base, size, none, made, ctypes.c_ulonglong(0))
    must(cuda, 'cuMemSetAccess', base, size, (ctypes.c_int * 3)(1, 0, 3), ctypes.c_size_t(1))
    if row in ('exported', 'kept'):
        descriptor = ctypes.c_int()
        must(cuda, 'cuMemExportToShareableHandle', ctypes.byref(descriptor), made, DESCRIPTORS, ctypes.c_ulonglong(0))
        if row == 'exported':
            os.close(descriptor.value)
    must(cuda, 'cuMemRelease', made)
    return base


class Handle(ctypes.Structure):  # passed by value
    _fields_ = [('bytes', ctypes.c_ubyte * 64)]


def started():
    cuda, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p()
    must(cuda, 'cuInit', 0)
    must(cuda, 'cuDevicePrimaryCtxRetain', ctypes.byref(context), 0)
    must(cuda, 'cuCtxSetCurrent', context)
    return cuda


def open_and_wait():
    """The other process: opens what the first line is the handle of, and keeps it until the input ends."""
    cuda, base = started(), ctypes.c_uint64()
    handle = Handle((ctypes.c_ubyte * 64)(*bytes.fromhex(sys.stdin.readline().strip())))
    must(cuda, 'cuIpcOpenMemHandle_v2', ctypes.byref(base), handle, ctypes.c_uint(1))
    print('open', flush=True)
    sys.stdin.read()


def opened_elsewhere(cuda, base):
    """Another process has it open, and ends with this one's."""
    handle = Handle()
    must(cuda, 'cuIpcGetMemHandle', ctypes.byref(handle), base)
    other = subprocess.Popen([sys.executable, __file__, '--open'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    other.stdin.write(bytes(handle.bytes).hex() + '\n')
    other.stdin.flush()
    if other.stdout.readline().strip() != 'open':
        sys.exit('the other process did not open it')
    return other


def hold(row):
    """The program: has a piece, writes to it, and looks at it as often as it is told to."""
    cuda = started()
    base, word = ctypes.c_uint64(), ctypes.c_uint32()
    if row in ('allocated', 'opened'):
        must(cuda, 'cuMemAlloc_v2', ctypes.byref(base), ctypes.c_size_t(PIECE))
        other = opened_elsewhere(cuda, base) if row == 'opened' else None
    else:
        base = mapped(cuda, row)
    must(cuda, 'cuMemsetD32_v2', base, ctypes.c_uint(WORD), ctypes.c_size_t(PIECE // 4))
    must(cuda, 'cuCtxSynchronize')
    print('ready', flush=True)
    for _ in sys.stdin:
        must(cuda, 'cuMemcpyDtoH_v2', ctypes.byref(word), ctypes.c_uint64(base.value + PIECE - 4), ctypes.c_size_t(4))
        print('the same' if word.value == WORD else f'0x{word.value:x} in its place', flush=True)
    if row == 'opened':
        other.kill()


def call(what, pid):
    """The driver's calls of `what` on that process, from this one."""
    cuda = ctypes.CDLL('libcuda.so.1')
    must(cuda, 'cuInit', 0)
    for name in CALLS[what]:
        must(cuda, f'cuCheckpointProcess{name}', ctypes.c_int(pid), ctypes.c_void_p())


def without_library():
    return {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}


def told(what, pid):
    """Empty where it went well, else what it said. In a process of its own: it may wait for ever."""
    try:
        run = subprocess.run([sys.executable, __file__, '--call', what, str(pid)], capture_output=True, text=True,
                             timeout=PATIENT_S, check=False, env=without_library())
    except subprocess.TimeoutExpired:
        return f'no answer in {PATIENT_S} s'
    said = ' '.join((run.stdout + run.stderr).split())
    return '' if run.returncode == 0 else said or f'exit status {run.returncode}'


def ask(row, settings, errors):
    """What became of one program, in words; None: it holds nothing, for the reason in `errors`."""
    with subprocess.Popen([sys.executable, __file__, '--hold', row], env=without_library() | settings, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as program:
        try:
            if program.stdout.readline().strip() != 'ready':
                return None
            for what in CALLS:
                said = told(what, program.pid)
                if said:
                    return f'{what} failed: {said}'
            program.stdin.write('look\n')
            program.stdin.flush()
            return f'checkpointed and restored; its memory: {program.stdout.readline().strip() or "it ended"}'
        finally:
            program.kill()


def skip(why):
    print(f'skipped: {why}')
    return 77


def main():
    rows = [(row, row, {}) for row in ROWS]
    if len(sys.argv) > 1:
        library = {'LD_PRELOAD': os.path.abspath(sys.argv[1])}
        rows += [(' '.join([row, 'under the library', *(f'{name}={value}' for name, value in more.items())]), row,
                  library | more) for row, more in UNDER]
    rows = [row for row in rows if row[1] in sys.argv[2:] or len(sys.argv) < 3]
    try:
        getattr(ctypes.CDLL('libcuda.so.1'), 'cuCheckpointProcessLock')
    except (OSError, AttributeError) as error:
        return skip(f'no driver that makes checkpoints: {error}')
    found = {}
    for name, row, settings in rows:
        with tempfile.TemporaryFile('w+') as errors:
            found[name] = ask(row, settings, errors)
            errors.seek(0)
            if found[name] is None:
                said = errors.read().strip().splitlines()
                return skip(f'the program holds no memory: {said[-1] if said else "it ended"}')
        print(f'{name:<12} {found[name]}', flush=True)
    if 'plain' in found and 'descriptors' in found:
        print('descriptors that nobody asked for make ' +
              ('no difference' if found['plain'] == found['descriptors'] else
               'a difference: debug.user_vmm is to be off by default'))
    return 0


if __name__ == '__main__':
    if sys.argv[1:2] == ['--hold']:
        hold(sys.argv[2])
    elif sys.argv[1:2] == ['--open']:
        open_and_wait()
    elif sys.argv[1:2] == ['--call']:
        call(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main())
