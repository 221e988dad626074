"""The table of entry points against the driver's headers, which are cuda.h and all beside it that
declare functions of the driver's: every function that the vendor declares and that returns, takes,
frees or describes device memory is in it, or in the list of what is passed on and why; every variant (_v2, _ptsz, ...)
of a call in the table is in it as well; and the version that a row says is the vendor's. A hook whose prototype is not
the vendor's does not compile.

Every function that the headers declare is a row, or a name that is known to need none
(shim/known_names.txt): what is neither ends single-stream mode when it is looked up.

Each row says whether the call stops at the gate of a process that sleeps. What only asks goes on, and nothing else
does; what is given memory that may be away is a row.

And of what can submit GPU work: each function that takes a stream, or copies, fills or launches, is
a row whose hook tells of it (shim/hooks/submit.h), and which tests/conformance/submits_cases.h has, or it is
in the list of what submits no work on memory of ours.

usage: check_table.py SHIM_FOLDER SUBMITS_C COMPILE_COMMANDS_JSON [INCLUDE_FOLDER]
(lookup.c's command finds cuda.h, unless there is INCLUDE_FOLDER)
"""
import glob
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

shim, submits, commands = sys.argv[1:4]
shim = os.path.realpath(shim)
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
    CUgraphMem_attribute | CUstreamBatchMemOpParams | CUDA_FABRIC_COPY\w* | CUeglFrame\w* )\b""", re.X)
MEMORY_NAME = re.compile(r"""^cu(
    Mem | \w*Cpy | Pointer | \w*Bind(Mem|Addr)$ | ExternalMemory\w*Mapped | Ipc\w*Mem | Multicast | Checkpoint |
    TensorMap | \w*MemPool | \w*PeerAccess$ | (Green)?CtxDestroy | CtxDetach | \w*CtxCreate | CtxFromGreenCtx |
    DevicePrimaryCtx | StreamDestroy | Stream\w*(Rec|C)apture |
    ThreadExchangeStreamCapture | GetProcAddress | GetExportTable )""", re.X)
# Of those, what only looks at devices.
NO_MEMORY = {'cuDeviceCanAccessPeer', 'cuStreamIsCapturing', 'cuStreamIsCapturing_ptsz'}


# What may be work: by its parameters, or by its name where it has no stream.
WORK_TYPE = re.compile(r'\b(CUstream|CUlaunchConfig|CUDA_LAUNCH_PARAMS\w*)\b')
WORK_NAME = re.compile(r'^cu(Memcpy|Memset|Launch)')
# What goes on in a process that sleeps: what only asks, by its name, or says what is to be from now on.
ABOUT = re.compile('Pointer[GS]etAttribute|MemGetAddressRange|MemGetAccess|CtxGetLimit')  # an address, or the stacks
ASKING = {'ASKS', 'BOUND', 'SETS', 'FINDS', 'LEADS'}
GOES_ON = re.compile(r'TotalMem|Get(?!\w*(MemHandle|ForAddressRange)$)|Set(Attribute|MemPool)$|OpenEventHandle$')
# What would have to stop: it is given memory that the library may have put away.
STOPS_TYPE = re.compile(r'\bCU(memGenericAllocationHandle (?!mc|\*)|arrayMapInfo\b)')
STOPS_NAME = re.compile(r'^cuTex(ObjectCreate|RefSetAddress(?!Mode))')
# What tells of it.
TELLS = {'gs_submits', 'gs_submits_if', 'gs_submits_at'}


# Of the headers that the vendor's want: types alone, so that they are needed nowhere.
OTHER_APIS = {
    'EGL/egl.h': 'typedef int EGLint;',
    'EGL/eglext.h': 'typedef void *EGLImageKHR, *EGLStreamKHR, *EGLSyncKHR;',
    'GL/gl.h': 'typedef unsigned int GLuint, GLenum;',
    'vdpau/vdpau.h': 'typedef unsigned int VdpDevice, VdpVideoSurface, VdpOutputSurface;'
                     'typedef int VdpGetProcAddress(void);',
}
others = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
for other, text in OTHER_APIS.items():
    os.makedirs(os.path.join(others.name, os.path.dirname(other)), exist_ok=True)
    with open(os.path.join(others.name, other), 'w') as file:
        guard = re.sub(r'\W', '_', other)
        file.write(f'#ifndef {guard}\n#define {guard}\n{text}\n#endif\n')
ALL_OF_THEM = ''.join(f'#include <{other}>\n' for other in OTHER_APIS)


def compiled(source, *options):
    return subprocess.run([*compiler, '-I', shim, '-I', os.path.dirname(shim), '-I', others.name,
                           *options, '-x', 'c', '-'],
                          input=source, text=True, capture_output=True, cwd=folder)


def preprocessed(header):
    run = compiled('#define __CUDA_API_VERSION_INTERNAL\n#include "cuda.h"\n'
                   f'{ALL_OF_THEM}#include "{header}"\nint version = CUDA_VERSION;\n', '-E', '-P')
    if run.returncode:
        sys.exit(f'{header} was not read: {run.stderr}')
    return run.stdout


def drivers_headers():
    """cuda.h, and what else in its folder declares functions of the driver's."""
    where = compiled('#include "cuda.h"\n', '-E').stdout
    where = os.path.dirname(re.search(r'^# \d+ "(.*/cuda\.h)"', where, re.M)[1])
    found = []
    for path in sorted(glob.glob(os.path.join(where, '*.h'))):
        with open(path, errors='replace') as text:
            if not path.endswith('Typedefs.h') and                                                 \
                    re.search(r'\bCUresult\s+CUDAAPI\s+cu[A-Z]', text.read()):
                found.append(os.path.basename(path))
    return where, found


def declarations(text):
    return dict(re.findall(
        r'\bCUresult\s+(cu[A-Z]\w*)\s*\(((?:[^()]|\([^()]*\))*)\)\s*(?:__attribute__.*?)?;', text))


def listed(name):
    """The names of a list, each with the reason why."""
    with open(os.path.join(shim, name)) as text:
        lines = [line.strip().partition(' ') for line in text
                 if line.strip() and not line.startswith('#')]
    return {name: reason.strip() for name, _, reason in lines}


def in_list(symbol, names):
    return symbol + '!' in names or base(symbol) in names


def bodies(path):
    """The functions that a file defines, what makes hooks from rows, and what is in them."""
    with open(path) as text:
        code = re.sub(r'/\*.*?\*/', '', text.read(), flags=re.S)
    found = {}
    for head, body in re.findall(r'^([A-Za-z_][^;{}]*?\))\n\{\n(.*?)^\}', code, re.M | re.S):
        head = re.sub(r'__attribute__\(\(.*?\)\)', '', head, flags=re.S)
        found[re.search(r'(\w+)\(', head)[1]] = body
    found |= dict(re.findall(r'^#define (GS_MAKE_\w+)\(.*?\)((?:.*\\\n)*.*\n)', code, re.M))
    return found


def tellers():
    """The functions of the shim that tell of work, themselves or by one of their file or of a
    header."""
    headers, all_tell = {}, set()
    for path in glob.glob(os.path.join(shim, '**/*.h'), recursive=True):
        headers |= bodies(path)
    for path in glob.glob(os.path.join(shim, '**/*.c'), recursive=True):
        functions = headers | bodies(path)
        tell, before = set(TELLS), 0
        while len(tell) != before:
            before = len(tell)
            calls = re.compile(rf'\b({"|".join(tell)})\(')
            tell |= {name for name, body in functions.items() if calls.search(body)}
        all_tell |= tell
    return all_tell


def base(symbol):
    return re.sub(r'(_v\d+)?(_ptsz|_ptds)?$', '', symbol)


with open(os.path.join(shim, 'entry_points.h')) as text:
    text = text.read()
table = re.findall(r'\bROW\((\w+),[\s\\]+(\d+), +(\w+), +(\w+), +(\w+)\b', text)
rows = {name: int(version) for name, version, *_ in table}
libraries = re.findall(r'\bROW\((\w+),[\s\\]+([A-Z]\w+), +(\w+), +(\w+), +(\w+)\b', text)
with open(os.path.join(shim, 'known_names.txt')) as text:
    version, *known = (line.rstrip('\n') for line in text if not line.startswith('#'))
known_cuda = int(version.removeprefix('CUDA '))
where, headers = drivers_headers()
cuda_version = int(re.search(r'int version =\s+(\d+)', preprocessed('cuda.h'))[1])
declared, typedefs, pointed = {}, '', set()
for header in headers:
    declared |= declarations(preprocessed(header))
    pointers = header.removesuffix('.h') + 'Typedefs.h'
    if os.path.exists(os.path.join(where, pointers)):
        typedefs += preprocessed(pointers)
for pointers in glob.glob(os.path.join(where, '*Typedefs.h')):  # of headers that lie elsewhere, too
    with open(pointers, errors='replace') as text:
        pointed |= set(re.findall(r'\bPFN_(cu[A-Z]\w*?)(?:_v\d+)', text.read()))
newer = declarations(preprocessed('cuda_exact.h'))  # with the rows that this cuda.h has not
passed, no_work = listed('pass_through.txt'), listed('no_work.txt')
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
for name in sorted(set(declared) - set(rows) - set(known)):
    faults.append(f'{name} of CUDA {cuda_version} is no row of shim/entry_points.h, and not in '
                  'shim/known_names.txt: what does it do?')
if known != sorted(set(known)):
    faults.append('shim/known_names.txt: each name once, in order')
for name in known:
    if name in rows:
        faults.append(f'{name} is in shim/known_names.txt and in the table')
    elif cuda_version == known_cuda and name not in declared and base(name) not in pointed:
        faults.append(f'{name} of shim/known_names.txt is in no header of CUDA {cuda_version}')
    if base(name) not in known and base(name) not in rows:
        faults.append(f'{name} is known and {base(name)} is not, by which look-ups know it')
if cuda_version > known_cuda:
    faults.append(f'the headers are of CUDA {cuda_version}: the '
                  'CUDA of shim/known_names.txt is that when all their functions are known')
for name, reason in passed.items():
    if not reason:
        faults.append(f'{name} is passed on without a reason')
    if name in rows:
        faults.append(f'{name} is passed on and in the table')
for name, version in rows.items():
    suffix = next((s for s in ('_ptsz', '_ptds') if name.endswith(s)), '')
    if version > cuda_version or name in newer and name not in declared:
        continue  # newer than the headers at hand
    if name not in declared:
        faults.append(f'{name} is not declared by CUDA {cuda_version}')
    elif version not in since.get((base(name), suffix), ()):
        faults.append(f'{name}: the table says {version}, the vendor '
                      f'{sorted(since.get((base(name), suffix), ()))}')

if len(libraries) < 15:
    faults.append(f'{len(libraries)} rows of other libraries: they were not read')
for name, library, *columns in libraries:
    if columns != (['BOUND', 'GOES', 'BY_HAND'] if library == 'NVML' else ['REGISTERS', 'STOPS', 'BY_HAND']):
        faults.append(f'{name} of {library}: {columns}')
for name, _, what, stops, _ in table:
    if stops != ('ABOUT' if ABOUT.search(base(name)) else 'GOES' if GOES_ON.search(base(name)) and what in ASKING
                 else 'STOPS'):
        faults.append(f'{name} {what} and {stops} at the gate of a process that sleeps')
    if (what in ASKING) != bool(GOES_ON.search(base(name))) and what != 'ROOM':
        faults.append(f'{name} {what}: by its name it does not')
for name in sorted(set(declared) - set(rows)):
    if name + '!' not in passed and (STOPS_TYPE.search(declared[name]) or STOPS_NAME.match(name)):
        faults.append(f'{name} of CUDA {cuda_version} has to stop at the gate of a process that sleeps: it '
                      'belongs in shim/entry_points.h')

with open(submits) as text:
    tried = set(re.findall(r'^ +(?:COPY|CASE|LAX)\((cu\w+),', text.read(), re.M))
telling = tellers()
does = {name: (what, gate, how) for name, _, what, gate, how in table}


def tells_of(name):
    """What tells of it, if anything does: the hook, or what makes it."""
    what, _, how = does.get(name, ('', '', 'BY_HAND'))
    return name if how == 'BY_HAND' else 'GS_MAKE_' + what


work = 0
for name, parameters in sorted({**newer, **declared}.items()):
    if not WORK_TYPE.search(parameters) and not WORK_NAME.match(name) or name + '!' in passed:
        continue
    if in_list(name, no_work):
        if tells_of(name) in telling:
            faults.append(f'{name} is in shim/no_work.txt, and its hook tells of work')
        continue
    work += 1
    if name not in rows:
        faults.append(f'{name} of CUDA {cuda_version} may submit work: it belongs in '
                      'shim/entry_points.h or, with the reason, in shim/no_work.txt')
    elif tells_of(name) not in telling:
        faults.append(f'the hook of {name} does not tell of the work (shim/hooks/submit.h)')
    if name not in tried:
        faults.append(f'{os.path.basename(submits)} does not have {name}')
if work < 100:
    faults.append(f'{work} functions submit work: they were not read')
for name, reason in no_work.items():
    if not reason:
        faults.append(f'{name} is said to be no work without a reason')


def compiles(parameters):
    """Whether a cuMemAlloc_v2 hook with these parameters does."""
    return compiled('#include "shim/hooks/hook.h"\nGS_HOOK CUresult CUDAAPI '
                    f'cuMemAlloc_v2({parameters}) {{ return CUDA_SUCCESS; }}\n',
                    '-fsyntax-only').returncode == 0


def interop_fault():
    """Whether cuda_interop.h says what the vendor's headers do, as far as they are there."""
    own = {name: name in declared for name in newer if re.match('cu(EGL|GL|VDPAU)', name)}
    fields = {'plane': 'frame', 'width': 'width', 'height': 'height', 'depth': 'depth',
              'pitch': 'pitch', 'plane_count': 'planeCount', 'channels': 'numChannels',
              'frame_type': 'frameType', 'color_format': 'eglColorFormat', 'format': 'cuFormat'}
    source = '#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n#include <stddef.h>\n'
    source += ALL_OF_THEM + ''.join(f'#include <{header}>\n' for header in headers)
    source += ''.join(f'#define {name} own_{name}\n' for name in own)
    source += '#include "cuda_interop.h"\n' + ''.join(f'#undef {name}\n' for name in own)
    if 'cudaEGL.h' in headers:
        source += ''.join('_Static_assert(offsetof(struct gs_egl_frame, %s) == '
                          'offsetof(CUeglFrame, %s), "%s");\n' % (a, b, b)
                          for a, b in fields.items())
        source += '_Static_assert(sizeof(struct gs_egl_frame) == sizeof(CUeglFrame), "frame");\n'
        source += '_Static_assert(GS_EGL_FRAME_TYPE_PITCH == CU_EGL_FRAME_TYPE_PITCH, "type");\n'
    source += ''.join(f'_Static_assert(__builtin_types_compatible_p(__typeof__({name}), '
                      f'__typeof__(own_{name})), "{name}");\n'
                      for name, theirs in own.items() if theirs and name.startswith('cuGL'))
    run = compiled(source, '-fsyntax-only')
    return run.stderr if run.returncode else None


if interop_fault():
    faults.append(f'shim/cuda_interop.h is not as the vendor\'s: {interop_fault()}')
if not compiles('CUdeviceptr *dptr, size_t bytesize'):
    faults.append('a right hook does not compile')
if compiles('CUdeviceptr *dptr, unsigned int bytesize'):
    faults.append('a hook with a wrong prototype compiles')
for fault in faults:
    print(fault)
print(f'{len(rows)} rows, {len(passed)} passed on, {work} that submit work, against '
      f'{", ".join(headers)} of {cuda_version}')
sys.exit(1 if faults else 0)
