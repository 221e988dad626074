"""Makes a wheel of what was installed in a folder: a package of Python's alone that brings library and command along.

    wheel.py INSTALLED SOURCE TAG RESULT_FOLDER

INSTALLED has bin/gpushim and lib/libgpushim.so, stripped. Prints the wheel's path. The same files make the same
wheel: their time is SOURCE_DATE_EPOCH. examples/packages/build.sh runs this.
"""
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import time
import zipfile

installed, source, tag, result = sys.argv[1:]
HERE = pathlib.Path(__file__).resolve().parent
INSTALLED, SOURCE = pathlib.Path(installed), pathlib.Path(source)
VERSION = re.search(r"^  version: '(.*)',$", (SOURCE / 'meson.build').read_text(), re.M)[1]
NAME = f'gpushim-{VERSION}'
INFO = f'{NAME}.dist-info'
# No file of a zip is older.
TIME = time.gmtime(max(int(os.environ.get('SOURCE_DATE_EPOCH', time.time())), 315532800))[:6]

METADATA = f'''Metadata-Version: 2.1
Name: gpushim
Version: {VERSION}
Summary: CUDA programs share GPU memory that they did not allocate for it
License: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.8
Classifier: Environment :: GPU :: NVIDIA CUDA
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/markdown

'''
WHEEL = f'''Wheel-Version: 1.0
Generator: libgpushim
Root-Is-Purelib: false
Tag: {tag}
'''
COMMANDS = '''[console_scripts]
gpushim = gpushim.__main__:main
'''


def program(path):
    """Its bytes, if it starts where the tag says it does."""
    oldest = tuple(int(number) for number in re.search(r'manylinux_(\d+)_(\d+)_', tag).groups())
    symbols = subprocess.run(['nm', '-D', path], check=True, capture_output=True, text=True).stdout
    needed = re.findall(r' [Uw] (\S+)@GLIBC_(\d+)\.(\d+)', symbols)
    newer = [name for name, *version in needed if tuple(int(number) for number in version) > oldest]
    if newer or not needed:
        sys.exit(f'{path} needs a newer glibc than {tag} says: {newer}')
    return path.read_bytes()


def built():
    return f'"""Of the build: made by wheel.py from meson.build."""\nVERSION = {VERSION!r}\n'


def files():
    """(path in the wheel, its bytes, whether it is run)."""
    for path in sorted((HERE / 'gpushim').glob('*.py')):
        yield f'gpushim/{path.name}', path.read_bytes(), False
    yield 'gpushim/py.typed', b'', False
    yield 'gpushim/_built.py', built().encode(), False
    yield 'gpushim/bin/gpushim', program(INSTALLED / 'bin' / 'gpushim'), True
    yield 'gpushim/bin/gpushim-broker', (HERE / 'gpushim-broker').read_bytes(), True
    yield 'gpushim/bin/libgpushim.so', program(INSTALLED / 'lib' / 'libgpushim.so'), True
    yield f'{INFO}/METADATA', (METADATA + (HERE / 'README.md').read_text()).encode(), False
    yield f'{INFO}/WHEEL', WHEEL.encode(), False
    yield f'{INFO}/entry_points.txt', COMMANDS.encode(), False
    yield f'{INFO}/LICENSE', (SOURCE / 'LICENSE').read_bytes(), False


def write(wheel, name, content, is_run):
    entry = zipfile.ZipInfo(name, TIME)
    entry.external_attr = (0o100755 if is_run else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, content)


record = []
made = pathlib.Path(result) / f'{NAME}-{tag}.whl'
with zipfile.ZipFile(made, 'w') as archive:
    for place, data, executable in files():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()
        record.append(f'{place},sha256={digest},{len(data)}\n')
        write(archive, place, data, executable)
    record.append(f'{INFO}/RECORD,,\n')
    write(archive, f'{INFO}/RECORD', ''.join(record), False)
print(made)
