"""The table of entry points against cuda.h: every function that the vendor declares and that
returns, takes, frees or describes device memory is in it, or in the list of what is passed on and
why; every variant (_v2, _ptsz, ...) of a call in the table is in it as well; and the version that a
row says is the vendor's. A hook whose prototype is not the vendor's does not compile.

usage: check_table.py ENTRY_POINTS_H PASS_THROUGH_TXT COMPILE_COMMANDS_JSON [INCLUDE_FOLDER]
(lookup.c's command finds cuda.h, unless there is INCLUDE_FOLDER)
"""
import json
import os
import re
import shlex
import subprocess
import sys

table, passed_list, commands = sys.argv[1:4]
with open(commands) as text:
    command, folder = next((c['command'], c['directory']) for c in json.load(text)
                           if c['file'].endswith('preload/lookup.c'))
compiler = shlex.split(command)
compiler = compiler[:compiler.index('-MD')]
if len(sys.argv) > 4:
    compiler += ['-I', sys.argv[4]]  # searched before the -isystem folders that it has

# What a function is about, by the types of its parameters or else by its name.
MEMORY_TYPE = re.compile(r"""\b(
    CUdeviceptr\w* | CUmemGenericAllocationHandle | CUmemoryPool | CUipcMemHandle |
    CUDA_(MEMCPY|MEMSET|MEM_ALLOC|BATCH_MEM_OP)\w* | CUDA_RESOURCE_DESC | CUmem(Location|cpy)\w* |
    CUmemAccessDesc | CUarrayMapInfo | CUmemDecompressParams | CUgraphNodeParams |
    CUgraphMem_attribute | CUstreamBatchMemOpParams | CUDA_FABRIC_COPY\w* )\b""", re.X)
MEMORY_NAME = re.compile(r"""^cu(
    Mem | \w*Cpy | Pointer | \w*Bind(Mem|Addr)$ | ExternalMemory\w*Mapped | Ipc\w*Mem | Multicast | Checkpoint | TensorMap | \w*MemPool | \w*PeerAccess$ |
    (Green)?CtxDestroy | CtxDetach | GreenCtxCreate | CtxFromGreenCtx | DevicePrimaryCtx | StreamDestroy | Stream\w*(Rec|C)apture |
    ThreadExchangeStreamCapture | GetProcAddress | GetExportTable )""", re.X)
# Of those, what only looks at devices.
NO_MEMORY = {'cuDeviceCanAccessPeer', 'cuStreamIsCapturing', 'cuStreamIsCapturing_ptsz'}


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
declared = dict(re.findall(
    r'\bCUresult\s+(cu[A-Z]\w*)\s*\(((?:[^()]|\([^()]*\))*)\)\s*(?:__attribute__.*?)?;', header))
passed = {}
with open(passed_list) as text:
    for line in text:
        if line.strip() and not line.startswith('#'):
            name, _, reason = line.strip().partition(' ')
            passed[name] = reason.strip()
since = {}
for name, version, suffix in re.findall(r'\bPFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\b', typedefs):
    since.setdefault((name, suffix), set()).add(int(version))

faults = []
if len(declared) < 500 or len(rows) < 40:
    faults.append(f'{len(declared)} declarations, {len(rows)} rows: they were not read')
families = {base(name) for name in rows}
for name in sorted(set(declared) - set(rows)):
    if name + '!' in passed or base(name) in passed and base(name) not in families:
        continue
    if base(name) in families:
        faults.append(f'{name} is declared by CUDA {cuda_version} and not in the table')
    elif name not in NO_MEMORY and (MEMORY_TYPE.search(declared[name]) or MEMORY_NAME.match(name)):
        faults.append(f'{name} of CUDA {cuda_version} has to do with device memory: it belongs in '
                      'shim/entry_points.h or, with the reason, in shim/pass_through.txt')
for name, reason in passed.items():
    if not reason:
        faults.append(f'{name} is passed on without a reason')
    if name in rows:
        faults.append(f'{name} is passed on and in the table')
for name, version in rows.items():
    suffix = next((s for s in ('_ptsz', '_ptds') if name.endswith(s)), '')
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
print(f'{len(rows)} rows and {len(passed)} passed on, against cuda.h of {cuda_version}')
sys.exit(1 if faults else 0)
