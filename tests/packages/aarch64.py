"""Library and command built for aarch64: they need no newer libc than on x86_64, export what the library here
exports, say what they are, and the look-up test holds with them. All of it runs under qemu.

usage: aarch64.py SOURCE CUDA_INCLUDE VERSION LIBGPUSHIM CASE...
"""
import os
import re
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import faults
from faults import check, end_with_faults, skip

source, cuda, version, native = sys.argv[1:5]
cases = sys.argv[5:]
COMPILER, ROOT = 'aarch64-linux-gnu-gcc', '/usr/aarch64-linux-gnu'
QEMU = shutil.which('qemu-aarch64') or shutil.which('qemu-aarch64-static')
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if not name.startswith(('GPUSHIM_', 'LD_', 'MESON', 'QEMU_'))
               and name not in ('CC', 'CFLAGS', 'LDFLAGS')}
ENVIRONMENT.update(LC_ALL='C.UTF-8', GPUSHIM_CONFIG='')
NEWEST = (2, 28)


def call(*words):
    return faults.call(words, ENVIRONMENT, timeout=900)


def run(*words, **settings):
    """Words of aarch64, under the emulator."""
    given = [part for name, value in settings.items() for part in ('-E', f'{name}={value}')]
    return call(QEMU, '-L', ROOT, *given, *words)


def must(*words):
    ran = call(*words)
    if ran.returncode:
        print(f'{" ".join(words)} ends with {ran.returncode}: {ran.stdout[-3000:]}{ran.stderr[-3000:]}')
        sys.exit(1)


# ---- The files ------------------------------------------------------------------------------------------


def exports(nm, path):
    return set(re.findall(r'^[0-9a-f]+ [TDBVWi] (\S+)$', call(nm, '-D', '--defined-only', path).stdout, re.M))


def check_needs(path, libraries):
    """libc alone, of 2.28 or older: what is newer keeps every program of an older container from starting."""
    needed = re.findall(r'\(NEEDED\).*\[(.*)\]', call('readelf', '-dW', path).stdout)
    check(needed and all(re.match(libraries, name) for name in needed), f'{path} needs {needed}')
    versions = re.findall(r' [Uw] (\S+)@GLIBC_(\d+)\.(\d+)', call('aarch64-linux-gnu-nm', '-D', path).stdout)
    check(len(versions) > 20, f'{path}: {len(versions)} symbols of libc')
    for name, major, minor in versions:
        check((int(major), int(minor)) <= NEWEST, f'{path}: {name} is of glibc {major}.{minor}')


def check_files(library, command):
    check_needs(library, r'libc\.so\.6$')
    check_needs(command, r'(libc|libpthread|libdl|ld-linux-aarch64)\.so')
    here, there = exports('nm', native), exports('aarch64-linux-gnu-nm', library)
    check(len(here) > 40 and here == there, f'exported here or there alone: {sorted(here ^ there)}')
    segments = call('readelf', '-lW', library).stdout
    check(re.search(r'GNU_STACK.* RW +0x', segments), 'the stack is executable')


# ---- Under the emulator ---------------------------------------------------------------------------------


def check_program(library, command):
    ran = run(library)
    check(ran.returncode == 0 and ran.stdout.startswith(f'libgpushim {version}\n') and 'LD_PRELOAD=' in ran.stdout,
          f'the library as a program: {ran}')
    ran = run(command, 'version')
    check(ran.returncode == 0 and ran.stdout.startswith(f'gpushim {version}\n') and not ran.stderr,
          f'gpushim version: {ran}')
    ran = run(command, 'config', GPUSHIM_POOL_DECAY='7s')
    check(ran.returncode == 0 and re.search(r'^decay = 7 s ', ran.stdout, re.M), f'gpushim config: {ran}')


def build_lookup(folder):
    """The look-up test with its small driver (tests/preload/meson.build)."""
    tests = f'{source}/tests'
    compiler = (COMPILER, '-std=gnu11', '-D_GNU_SOURCE', '-O1', '-isystem', cuda)
    must(*compiler, '-shared', '-fPIC', '-Wl,-soname,libcuda.so.1', '-Wl,-Bsymbolic-functions',
         f'{tests}/preload/stub_libcuda.c', '-o', f'{folder}/libcuda.so.1', '-ldl')
    must(*compiler, '-shared', '-fPIC', f'{tests}/preload/ctor_lookup.c', '-o', f'{folder}/ctor_lookup.so', '-ldl')
    must(*compiler, f'{tests}/preload/lookup.c', '-o', f'{folder}/lookup', '-ldl', '-lpthread')


def check_lookup(folder, library):
    words = (f'{folder}/libcuda.so.1', f'{folder}/ctor_lookup.so')
    ran = run(f'{folder}/lookup', 'handle', *words)
    check(ran.returncode != 0, 'the look-up test passes without the library')
    for case in cases:
        ran = run(f'{folder}/lookup', case, *words, LD_PRELOAD=library)
        check(ran.returncode == 0, f'look-up, {case}, ends with {ran.returncode}: {ran.stdout}{ran.stderr}')
    for case in ('native', 'absent'):
        ran = run(f'{folder}/lookup', case, *words, LD_PRELOAD=library, GPUSHIM_ENABLE='0')
        check(ran.returncode == 0, f'look-up, off, {case}, ends with {ran.returncode}: {ran.stdout}{ran.stderr}')


for program, found in ((COMPILER, shutil.which(COMPILER)), ('qemu-aarch64', QEMU), ('meson', shutil.which('meson')),
                       (f"{ROOT}'s libc", os.path.exists(f'{ROOT}/include/stdlib.h'))):
    if not found:
        skip(f'no {program} here')
with tempfile.TemporaryDirectory(prefix='gpushim-aarch64-', ignore_cleanup_errors=True) as temporary:
    build = f'{temporary}/build'
    must('meson', 'setup', build, source, f'--cross-file={source}/tests/packages/aarch64.ini', '-Dtests=false',
         '-Dexamples=false', '-Dwerror=true', f'-Dcuda={os.path.dirname(cuda)}')
    must('meson', 'compile', '-C', build)
    built = f'{build}/shim/libgpushim.so', f'{build}/shim/command/gpushim'
    check_files(*built)
    check_program(*built)
    build_lookup(temporary)
    check_lookup(temporary, built[0])
end_with_faults()
