"""Checks on libgpushim.so as a file: what it exports, needs and can be loaded by.

usage: check_library.py LIBGPUSHIM LIBGPUSHIM_RESOLVE ENTRY_POINTS_H GPUSHIM_H VERSION
"""
import re
import subprocess
import sys

library, resolve, table, public, version_text = sys.argv[1:]
faults = []


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


# Exports: the table, gpushim.h, the look-ups, two ends of a process, what the driver opens its events by, and nothing
# else.
exports, needs = set(), []
for line in lines('nm', '-D', library):
    fields = line.split()
    kind, name = fields[-2], fields[-1]
    if kind in 'UwvV' and len(fields) == 2:
        needs.append((kind, name))
    else:
        exports.add(name.split('@')[0])
        if '@' in name:
            faults.append(f'{name} is exported with a version: one elsewhere wins then')
with open(table) as text:
    rows = re.findall(r'^ +ROW\((\w+),', text.read(), re.M)
if len(rows) < 40 or len(rows) != len(set(rows)):
    faults.append(f'{table}: {len(rows)} rows, {len(set(rows))} different')
with open(public) as text:
    functions = re.findall(r'^GPUSHIM_API [\w ]+[ *](gpushim_\w+)\(', text.read(), re.M)
if len(functions) < 5:
    faults.append(f'{public}: {functions}')
expected = set(rows) | set(functions) | {'dlsym', 'dlvsym', 'dlopen', '_exit', '_Exit', 'shm_open'}
for name in sorted(expected - exports):
    faults.append(f'{name} is in the table and not exported')
for name in sorted(exports - expected):
    faults.append(f'{name} is exported and not in the table')

# Each of what it needs is looked up in every process that starts, with CUDA or without: some 590 instructions.
NEEDS_MOST = 136 # with what a compiler asks for that guards stacks
if len(needs) > NEEDS_MOST:
    faults.append(f'{len(needs)} functions of libc are needed, {NEEDS_MOST} at most: use one that is needed already')

# What it needs: libc alone, of 2.28 or older.
for kind, name in needs:
    version = re.search(r'@GLIBC_(\d+)\.(\d+)', name)
    if version and (int(version[1]), int(version[2])) > (2, 28):
        faults.append(f'{name} is newer than glibc 2.28: no program of an older container would '
                      'start; add it to shim/lookup/old_libc.c and its list in shim/meson.build')
    if re.match('v?f?scanf@', name):
        faults.append(f'{name} has another name, of glibc 2.38, where it is built against that')
    if name.startswith('posix_fallocate64'):
        faults.append(f"{name} is not in musl's libc, whose programs would not start")
    if kind == 'U' and (name.startswith(('__register_atfork', '_r_debug', '_dl_'))):
        faults.append(f'{name} is glibc\'s alone and has to be weak')
    if kind == 'U' and re.match(r'dl(v?sym|m?open|close|addr|info|error)\b', name):
        faults.append(f'{name} is in libdl where that still is a library of its own: see '
                      'shim/lookup/lookup.c for how to get at it')
dynamic = '\n'.join(lines('readelf', '-dW', library))
for name in re.findall(r'\(NEEDED\).*\[(.*)\]', dynamic):
    if name != 'libc.so.6':
        faults.append(f'DT_NEEDED {name}: what is loaded into programs links to libc alone')
if 'TEXTREL' in dynamic:
    faults.append('it has text relocations')
segments = '\n'.join(lines('readelf', '-lW', library))
if not re.search(r'GNU_STACK.* RW +0x', segments):
    faults.append('its stack is executable')

# Hooks begin plainly: UCX patches the first bytes of what dlsym gives it.
code = '\n'.join(lines('objdump', '-d', '--no-show-raw-insn', library))
code = code.replace('@@Base>:', '>:') # as it writes the names of a stripped one
starts = dict(re.findall(r'<(dlv?sym|dlopen|_[eE]xit|shm_open|cu[A-Z]\w*|ibv_\w+|gdr_\w+|nvml\w+|gpushim_\w+)>:\n '
                         r'+\w+:\s+(.*)', code))
for name in sorted(expected - set(starts)):
    faults.append(f'{name}: no code found')
for name, instruction in starts.items():
    if instruction.startswith('endbr'):
        faults.append(f'{name} begins with {instruction}')
    if (re.match('cuMem(Alloc|Free)', name) and
            not re.match(r'mov +(\$0x0,%eax|x0, x0)', instruction)):
        faults.append(f'{name} begins with {instruction}: see shim/lookup/patchable.h')

# Run as a program it says what it is.
run = subprocess.run([library], capture_output=True, text=True, check=False)
if run.returncode != 0 or not run.stdout.startswith(f'libgpushim {version_text}\n') or \
        'LD_PRELOAD=' not in run.stdout:
    faults.append(f'run as a program it ends with {run.returncode} and says: {run.stdout!r}')

# dlsym's way for foreign names, where no libc or sanitizer may be ready: no calls out of it, but
# for ours, and for getauxval, which needs no libc that is ready and is intercepted by nothing.
archive = '\n'.join(lines('nm', resolve))
if 'getauxval' not in archive:
    faults.append(f'{resolve} was not read')
defined = set(re.findall(r' [TtDdBbRr] (\w+)', archive))
for name in sorted(set(re.findall(r' [Uw] (\w+)', archive)) - defined):
    if name not in ('_DYNAMIC', '_GLOBAL_OFFSET_TABLE_', '_r_debug', 'getauxval',
                    'environ', 'gs_lookup_answer', 'gs_lookup_newer',
                    'gs_shim_too_late', 'gs_shim_leaves', 'gs_state'):
        faults.append(f'{resolve} refers to {name}: dlsym runs before that is ready')

for fault in faults:
    print(f'{library}: {fault}')
versions = [v for _, n in needs for v in re.findall(r'@GLIBC_(\d+)\.(\d+)', n)]
highest = max((tuple(map(int, v)) for v in versions), default=None)
print(f'{len(exports)} exports, highest glibc version needed {highest}')
sys.exit(1 if faults else 0)
