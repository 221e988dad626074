"""What the library says in a program's log, and when it says nothing: at the start, at an end of any
kind, to a pipe that nobody reads, where it was loaded too late.

usage: said.py LIBGPUSHIM FOLDER_OF_LIBCUDA VERSION
"""
import os
import re
import subprocess
import sys
import tempfile

library, driver, version = os.path.realpath(sys.argv[1]), sys.argv[2], sys.argv[3]
STAMP = r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z gpushim\[\d+/\d+\]: '
CALL = '''import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
ok = cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0) == 0
assert ok
'''


def run(program, preload, stderr=subprocess.PIPE, **settings):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith('GPUSHIM_') and name not in ('LD_PRELOAD', 'HOME')}
    environment.update(LD_LIBRARY_PATH=driver, XDG_CONFIG_HOME='/nonexistent', **settings)
    if preload:
        environment['LD_PRELOAD'] = library
    return subprocess.run([sys.executable, '-c', program], env=environment, timeout=60, text=True,
                          stdout=subprocess.PIPE, stderr=stderr, check=False)


def expect(what, ran, *patterns):
    """The lines of its log, a pattern each, and nothing else; it ended well."""
    lines = (ran.stderr or '').splitlines()
    if ran.returncode != 0 or len(lines) != len(patterns) or not all(
            re.fullmatch(STAMP + pattern, line) for pattern, line in zip(patterns, lines)):
        sys.exit(f'{what}: it ended with {ran.returncode} and said {lines}, not {patterns}')


def begins_with(what, ran, pattern):
    lines = ran.stderr.splitlines()
    if ran.returncode != 0 or not lines or not re.fullmatch(STAMP + pattern, lines[0]) or any(
            re.fullmatch(STAMP + pattern, line) for line in lines[1:]):
        sys.exit(f'{what}: it ended with {ran.returncode} and said {lines}, not {pattern} first')


def starts(folder):
    name = os.path.join(folder, 'some.conf')
    with open(name, 'w', encoding='utf-8') as file:
        os.fchmod(file.fileno(), 0o644)
        file.write('log = info\n')
    begins = rf'info: libgpushim {re.escape(version)} starts in python\S*; '
    expect('a start', run(CALL, True))
    begins_with('a start at info', run(CALL, True, GPUSHIM_LOG='info', GPUSHIM_CONFIG=''),
                begins + '.*; no configuration file was read')
    gpus = ', '.join(rf'1 x Software GPU {number} of \d+ MiB' for number in range(3))
    begins_with('a start with several GPUs',
                run(CALL, True, GPUSHIM_LOG='info', GPUSHIM_CONFIG='', SOFTCUDA_DEVICES='3'),
                begins + rf'driver for CUDA \d+\.\d+, {gpus}; .*')
    begins_with('a start with a file', run(CALL, True, GPUSHIM_CONFIG=name),
                begins + f'.*; configuration read from {re.escape(name)}')
    expect('a program without CUDA', run('pass', True, GPUSHIM_LOG='info'))
    expect('switched off', run(CALL, True, GPUSHIM_CONFIG=name, GPUSHIM_ENABLE='0'),
           rf'info: libgpushim {re.escape(version)} is switched off in python\S*; .*')


DRIVER = r'driver( [0-9.]+)? for CUDA \d+\.\d+(, \d+ x [^;]+ of \d+ MiB)+; '


def tells_what_it_is(folder):
    """The one line: version, driver and GPUs, where it shares, what is set."""
    begins = rf'info: libgpushim {re.escape(version)} starts in python\S*; '
    log = {'GPUSHIM_LOG': 'info', 'GPUSHIM_CONFIG': ''}
    begins_with('all that it tells', run(CALL, True, GPUSHIM_SHARE_DIR=folder, GPUSHIM_POOL_DECAY='3s', **log),
                begins + DRIVER + rf'shares in {re.escape(folder)}, embedded; options set: log = info, '
                rf'pool\.decay = 3 s, share\.dir = {re.escape(folder)}; no configuration file was read')
    begins_with('where nothing is shared', run(CALL, True, GPUSHIM_SHARE_ENABLE='off', **log),
                begins + DRIVER + 'shares nothing; options set: .*')
    begins_with('with a broker', run(CALL, True, GPUSHIM_SHARE_STRATEGY='broker', **log),
                begins + DRIVER + r'shares in \S.*, broker; options set: .*')
    without = CALL.split('ok =')[0] + 'cuda.cuInit(0)\ncuda.cuMemFree_v2(ctypes.c_uint64(4096))'
    for form, rest in ('cuCtxCreate_v2', '0, 0'), ('cuCtxCreate_v3', 'None, 0, 0, 0'), ('cuCtxCreate_v4', 'None, 0, 0'):
        made = CALL.split('ok =')[0] + f'cuda.cuInit(0)\ncuda.{form}(ctypes.byref(ctypes.c_void_p()), {rest})'
        begins_with(f'a start by {form}', run(made, True, **log), begins + DRIVER + '.*')
    expect('without a context', run(without, True, **log), begins + 'no context was made; shares .*')
    begins_with('from several threads', run(CALL.split('ok =')[0] + '''cuda.cuInit(0)
import threading
call = lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
for thread in [threading.Thread(target=call) for _ in range(4)]: thread.start()
''', True, **log), begins + '.*')


# With memory of its own, and children that end by _exit before it: one that shares its memory meanwhile
# (subprocess uses vfork, and finds no such program), and one that was forked.
USES = CALL.replace('ctypes.c_void_p()', 'context').replace('cuda =', 'context = ctypes.c_void_p()\ncuda =') + '''
import os, subprocess, sys, threading
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 20)) == 0
try:
    subprocess.run(['/nonexistent'])
    sys.exit(9)
except FileNotFoundError:
    pass
if os.fork() == 0:
    os._exit(0)
os.wait()
libc = ctypes.CDLL(None)
'''
FIGURES = (r'info: device 0: 0 allocations from memory that was there, 1 that .*',)


def ends():
    """However it ends, its figures are said, once, and its status is its own."""
    for end, status in (('os._exit(3)', 3), ('libc._Exit(4)', 4), ('libc.quick_exit(5)', 5), ('sys.exit(6)', 6),
                        ('threading.Thread(target=os._exit, args=[7]).start(); threading.Event().wait()', 7),
                        ('libc._exit(0x108)', 8), ('import atexit; atexit.register(os._exit, 9)', 9)):
        ran = run(USES + end, True, GPUSHIM_LOG='info', GPUSHIM_CONFIG='')
        patterns = ('info: libgpushim .*', *FIGURES)
        lines = ran.stderr.splitlines()
        if ran.returncode != status or len(lines) != len(patterns) or not all(
                re.fullmatch(STAMP + pattern, line)
                for pattern, line in zip(patterns, lines)):
            sys.exit(f'{end}: it ended with {ran.returncode} and said {lines}')
        ran = run(USES + end, True)
        if ran.returncode != status or ran.stderr:
            sys.exit(f'{end}, without a log: it ended with {ran.returncode} and said {ran.stderr}')
    ran = run('import os; os._exit(3)', True, GPUSHIM_LOG='info')
    if ran.returncode != 3 or ran.stderr:
        sys.exit(f'_exit without CUDA: it ended with {ran.returncode} and said {ran.stderr}')


def nobody_reads():
    """A program as most are, to which SIGPIPE is the end, with a stderr that is a dead pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    program = 'import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n' + CALL
    ran = run(program, True, stderr=writer, GPUSHIM_COLOUR='red')  # no option: a warning
    os.close(writer)
    expect('a log that nobody reads', ran)


def too_late():
    load = f'import ctypes\nfor i in range(2): ctypes.CDLL({library!r})\n'
    late = 'warning: loaded when the program had begun .*: start the program with ' \
           f'LD_PRELOAD={re.escape(library)}'
    expect('loaded by dlopen', run(load, False), late)
    expect('loaded by dlopen for all', run(load.replace(')\n', ', mode=ctypes.RTLD_GLOBAL)\n'),
                                           False), late)
    expect('loaded by dlopen, with CUDA there', run(CALL + load, False), late)
    expect('loaded by dlopen, log off', run(load, False, GPUSHIM_LOG='off'))
    expect('loaded by dlopen, switched off', run(load, False, GPUSHIM_ENABLE='0'))
    expect('preloaded, and loaded again', run(load, True))
    expect('preloaded, and found', run('import ctypes; ctypes.CDLL(None).gpushim_memory', True))


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
    starts(made)
    tells_what_it_is(made)
ends()
nobody_reads()
too_late()
