"""What cuda-checkpoint does to a process that holds memory of cuMemCreate.

    checkpoint.py [CUDA_CHECKPOINT]

The library adds POSIX descriptors to what a program makes by itself (share.own_vmm). This asks whether they
stand in the way of a checkpoint where nothing was ever exported: a program of this file's own holds such memory,
is checkpointed (cuda-checkpoint --toggle --pid), restored, and looks at its memory again. Rows:

    plain                as most programs ask for it: no handle type
    descriptors          with POSIX descriptors as handle type, never exported
    exported             with them, and one was exported and closed again: for comparison

each natively, no library anywhere. One line a row, then what follows for the default. Where there is no
cuda-checkpoint (PATH, or the argument), no driver or no GPU it says so, and the exit status is 77. Prints facts and
asserts nothing: 0 when all rows were asked.
"""
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile

PIECE = 2 << 20
WORD = 0x5ca1ab1e
PATIENT_S = 60
DESCRIPTORS = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
ROWS = ('plain', 'descriptors', 'exported')


class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [('type', ctypes.c_int), ('types', ctypes.c_int), ('location', ctypes.c_int * 2),
                ('windows', ctypes.c_void_p), ('flags', ctypes.c_ubyte * 8)]


def must(cuda, call, *arguments):
    result = getattr(cuda, call)(*arguments)
    if result != 0:
        sys.exit(f'{call}: error {result}')


def hold(row):
    """The program: maps a piece, writes to it, and looks at it as often as it is told to."""
    cuda = ctypes.CDLL('libcuda.so.1')
    context, base, made, word = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_ulonglong(), ctypes.c_uint32()
    types = DESCRIPTORS if row != 'plain' else 0
    size, none = ctypes.c_size_t(PIECE), ctypes.c_size_t(0)
    must(cuda, 'cuInit', 0)
    must(cuda, 'cuDevicePrimaryCtxRetain', ctypes.byref(context), 0)
    must(cuda, 'cuCtxSetCurrent', context)
    must(cuda, 'cuMemAddressReserve', ctypes.byref(base), size, none, ctypes.c_uint64(0), ctypes.c_ulonglong(0))
    must(cuda, 'cuMemCreate', ctypes.byref(made), size, ctypes.byref(Properties(1, types, (1, 0))), ctypes.c_ulonglong(0))
    must(cuda, 'cuMemMap', base, size, none, made, ctypes.c_ulonglong(0))
    must(cuda, 'cuMemSetAccess', base, size, (ctypes.c_int * 3)(1, 0, 3), ctypes.c_size_t(1))
    if row == 'exported':
        descriptor = ctypes.c_int()
        must(cuda, 'cuMemExportToShareableHandle', ctypes.byref(descriptor), made, DESCRIPTORS, ctypes.c_ulonglong(0))
        os.close(descriptor.value)
    must(cuda, 'cuMemRelease', made)
    must(cuda, 'cuMemsetD32_v2', base, ctypes.c_uint(WORD), ctypes.c_size_t(PIECE // 4))
    must(cuda, 'cuCtxSynchronize')
    print('ready', flush=True)
    for _ in sys.stdin:
        must(cuda, 'cuMemcpyDtoH_v2', ctypes.byref(word), ctypes.c_uint64(base.value + PIECE - 4), ctypes.c_size_t(4))
        print('the same' if word.value == WORD else f'0x{word.value:x} in its place', flush=True)


def toggle(checkpoint, pid):
    """Empty where it went well, else what it said."""
    try:
        run = subprocess.run([checkpoint, '--toggle', '--pid', str(pid)], capture_output=True, text=True,
                             timeout=PATIENT_S, check=False)
    except subprocess.TimeoutExpired:
        return f'no answer in {PATIENT_S} s'
    said = ' '.join((run.stdout + run.stderr).split())
    return '' if run.returncode == 0 else said or f'exit status {run.returncode}'


def ask(checkpoint, row, errors):
    """What became of one program, in words; None: it holds nothing, for the reason in `errors`."""
    env = {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}
    with subprocess.Popen([sys.executable, __file__, '--hold', row], env=env, text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=errors) as program:
        try:
            if program.stdout.readline().strip() != 'ready':
                return None
            for what in ('checkpoint', 'restore'):
                said = toggle(checkpoint, program.pid)
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
    checkpoint = sys.argv[1] if len(sys.argv) > 1 else shutil.which('cuda-checkpoint')
    if not checkpoint or not shutil.which(checkpoint):
        return skip('no cuda-checkpoint here (github.com/NVIDIA/cuda-checkpoint); name it as the argument')
    found = {}
    for row in ROWS:
        with tempfile.TemporaryFile('w+') as errors:
            found[row] = ask(checkpoint, row, errors)
            errors.seek(0)
            if found[row] is None:
                said = errors.read().strip().splitlines()
                return skip(f'the program holds no memory: {said[-1] if said else "it ended"}')
        print(f'{row:<12} {found[row]}', flush=True)
    if found['plain'] != found['descriptors']:
        print('descriptors that nobody asked for make a difference: share.own_vmm is to be off by default')
    else:
        print('descriptors that were never exported make no difference')
    return 0


if __name__ == '__main__':
    if sys.argv[1:2] == ['--hold']:
        hold(sys.argv[2])
    else:
        sys.exit(main())
