"""The Python package, and lines of Python in recordings, with other Pythons than this machine's: their tests in fresh
systems of releases that have one each. Where a release's libc is older than that which the software driver was built
with, this machine's takes its place.

usage: pythons.py SOURCE GPUSHIM SHIM LIBCUDA LAYOUT LIBC10 [RELEASE...]
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import systems
from faults import check, end_with_faults, faults

source, *built = sys.argv[1:7]
gpushim, shim, libcuda, layout, c10 = (f'/tested/{os.path.basename(path)}' for path in built)
VERSIONS = {'bullseye': '3.9', 'jammy': '3.10', 'bookworm': '3.11', 'noble': '3.12', 'trixie': '3.13',
            'forky': '3.14'}
LIBC = ('ld-linux-x86-64.so.2', 'libc.so.6', 'libdl.so.2', 'libm.so.6', 'libpthread.so.0', 'librt.so.1', 'libutil.so.1')
ENTER = '''mount -t proc proc "$1/proc" || mount --rbind /proc "$1/proc" || exit 125
mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm" || exit 125
root=$1; shift
exec chroot "$root" "$@"'''
# Each with what it is called with.
TESTS = (('packages/python.py', gpushim, shim, libcuda, '/tested/wheel', layout),
         ('packages/torch_allocates.py', gpushim, shim, libcuda, '/tested/wheel', c10),
         ('command/record.py', gpushim, shim, '/tested'))


def run(root, *words):
    return subprocess.run(['unshare', '--mount', '--pid', '--fork', 'sh', '-c', ENTER, 'sh', root, *words],
                          env={'PATH': '/usr/bin:/bin:/usr/sbin:/sbin', 'LC_ALL': 'C.UTF-8', 'GPUSHIM_CONFIG': ''},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, errors='replace', timeout=900,
                          check=False)


def number(text):
    found = re.search(r'(\d+)\.(\d+)\s', text + ' ')
    return (int(found[1]), int(found[2])) if found else (0, 0)


def renew_libc(root):
    """With this machine's, if that is newer. False: it cannot be."""
    place = '/lib/x86_64-linux-gnu'
    if number(run(root, 'ldd', '--version').stdout) >= number(os.confstr('CS_GNU_LIBC_VERSION')):
        return True
    if not all(os.path.exists(f'{place}/{name}') for name in LIBC):
        return False
    for name in LIBC:
        shutil.copy(f'{place}/{name}', f'{root}{place}/{name}')
    return True


def prove(release, root):
    """Why it is not; None: it is."""
    python = f'python{VERSIONS[release]}'
    why = systems.make(release, root, os.path.dirname(root), include=python)
    if why or not renew_libc(root):
        return why or 'its libc is older, and this machine has none of that form'
    for folder in ('packages', 'command'):
        shutil.copytree(f'{source}/tests/{folder}', f'{root}/tested/tests/{folder}')
    for name in ('faults.py', 'shell.py'):
        shutil.copy(f'{source}/tests/{name}', f'{root}/tested/tests')
    shutil.copytree(f'{source}/examples/packages/wheel', f'{root}/tested/wheel')
    for path in built:
        shutil.copy(path, f'{root}/tested')
    for test, *arguments in TESTS:
        ran = run(root, python, f'/tested/tests/{test}', *arguments)
        check(ran.returncode == 0, f'{python}, {test}: {ran.returncode}: {ran.stdout}{ran.stderr}')
    return None


skipped = []
with tempfile.TemporaryDirectory(prefix='gpushim-pythons-', ignore_cleanup_errors=True) as temporary:
    for each in sys.argv[7:]:
        reason = prove(each, f'{temporary}/{each}')
        if reason:
            skipped.append(f'Python {VERSIONS[each]}: {reason}')
        else:
            print(f'Python {VERSIONS[each]}: tried', flush=True)
end_with_faults('; '.join(skipped) if skipped and not faults else None)
