"""The table of entry points against cuda.h: every variant (_v2, _ptsz, ...) that the vendor
declares of a call in the table is in it as well, and the version that a row says is the vendor's. A
hook whose prototype is not the vendor's does not compile.

usage: check_table.py ENTRY_POINTS_H COMPILE_COMMANDS_JSON   (lookup.c's command finds cuda.h)
"""
import json
import os
import re
import shlex
import subprocess
import sys

table, commands = sys.argv[1:]
with open(commands) as text:
    command, folder = next((c['command'], c['directory']) for c in json.load(text)
                           if c['file'].endswith('preload/lookup.c'))
compiler = shlex.split(command)
compiler = compiler[:compiler.index('-MD')]

# CUDA 2's forms with 32-bit addresses; the table says why they are not in it.
NOT_OURS = {'cuMemAlloc', 'cuMemAllocPitch', 'cuMemFree', 'cuMemGetInfo', 'cuMemGetAddressRange'}


def preprocessed(header):
    source = ('#define __CUDA_API_VERSION_INTERNAL\n'
              f'#include <{header}>\nint version = CUDA_VERSION;\n')
    run = subprocess.run([*compiler, '-E', '-P', '-x', 'c', '-'], input=source, check=True,
                         text=True, capture_output=True, cwd=folder)
    return run.stdout


def base(symbol):
    return re.sub(r'(_v\d+)?(_ptsz|_ptds)?$', '', symbol)


with open(table) as text:
    rows = re.findall(r'^ +GS_ENTRY\((\w+), +\w+, +(\d+)\)', text.read(), re.M)
rows = {name: int(version) for name, version in rows}
header, typedefs = preprocessed('cuda.h'), preprocessed('cudaTypedefs.h')
cuda_version = int(re.search(r'int version =\s+(\d+)', header)[1])
declared = set(re.findall(r'\bCUresult\s+(cu[A-Z]\w*)\s*\(', header))
since = {}
for name, version, suffix in re.findall(r'\bPFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\b', typedefs):
    since.setdefault((name, suffix), set()).add(int(version))

faults = []
if len(declared) < 500 or len(rows) < 40:
    faults.append(f'{len(declared)} declarations, {len(rows)} rows: they were not read')
families = {base(name) for name in rows}
for name in sorted(declared - set(rows) - NOT_OURS):
    if base(name) in families:
        faults.append(f'{name} is declared by CUDA {cuda_version} and not in the table')
for name, version in rows.items():
    suffix = '_ptsz' if name.endswith('_ptsz') else ''
    if version > cuda_version:
        continue  # newer than the headers at hand
    if name not in declared:
        faults.append(f'{name} is not declared by CUDA {cuda_version}')
    elif version not in since.get((base(name), suffix), ()):
        faults.append(f'{name}: the table says {version}, the vendor '
                      f'{sorted(since.get((base(name), suffix), ()))}')

def compiles(parameters):
    """Whether a cuMemAlloc_v2 hook with these parameters does."""
    source = ('#include "hook.h"\n'
              f'GS_HOOK CUresult CUDAAPI cuMemAlloc_v2({parameters}) {{ return CUDA_SUCCESS; }}\n')
    shim = os.path.dirname(os.path.realpath(table))
    run = subprocess.run([*compiler, '-I', shim, '-fsyntax-only', '-x', 'c', '-'], input=source,
                         text=True, capture_output=True, cwd=folder)
    return run.returncode == 0


if not compiles('CUdeviceptr *dptr, size_t bytesize'):
    faults.append('a right hook does not compile')
if compiles('CUdeviceptr *dptr, unsigned int bytesize'):
    faults.append('a hook with a wrong prototype compiles')
for fault in faults:
    print(fault)
print(f'{len(rows)} rows against cuda.h of {cuda_version}')
sys.exit(1 if faults else 0)
