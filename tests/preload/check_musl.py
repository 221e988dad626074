"""A program linked with musl starts and looks up names with the shim preloaded, as it does without:
a container's LD_PRELOAD reaches such programs, too. (The shim does not serve CUDA programs there.)

usage: check_musl.py SOURCE OUTPUT LIBGPUSHIM
"""
import os
import shutil
import subprocess
import sys

source, output, library = sys.argv[1:]
if not shutil.which('musl-gcc'):
    print('skipped: musl-gcc is not installed')
    sys.exit(77)
subprocess.run(['musl-gcc', '-O1', '-o', output, source], check=True)


def run(preload):
    environment = dict(os.environ, LD_PRELOAD=preload)
    result = subprocess.run([output], env=environment, capture_output=True, text=True, timeout=60)
    return result.returncode, result.stdout, result.stderr


native, shimmed = run(''), run(os.path.realpath(library))
if native[0] != 0 or 'getenv 1' not in native[1]:
    sys.exit(f'without the shim: {native}')
if native != shimmed:
    sys.exit(f'without: {native}\nwith:    {shimmed}')
print(native[1], end='')
