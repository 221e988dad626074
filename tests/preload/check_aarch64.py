"""Cross-compiles what is particular to aarch64 and looks at it: the dlsym there must leave by a
branch to what the resolver gave, with the link register that it came with.

usage: check_aarch64.py SOURCE OUTPUT CUDA_ARGS...
"""
import re
import shutil
import subprocess
import sys

source, output, *arguments = sys.argv[1:]
compiler = 'aarch64-linux-gnu-gcc'
if not shutil.which(compiler):
    print(f'skipped: {compiler} is not installed')
    sys.exit(77)

objects = []
for name in ['dlsym_aarch64.S', 'elf_symbols.c', 'leave.c', 'names.c', 'resolve.c', 'run_aarch64.S']:
    objects.append(f'{output}-{name}.o')
    subprocess.run([compiler, '-std=gnu11', '-D_GNU_SOURCE', '-O2', '-fPIC',
                    '-fno-stack-protector', '-Wall', '-Wextra', '-Werror', '-Wno-unused-parameter',
                    '-fvisibility=hidden',
                    '-DGS_VERSION="0"', '-I', f'{source}/../..', *arguments, '-c',
                    f'{source}/{name}', '-o', objects[-1]], check=True)
# gs_lookup_answer, gs_lookup_newer, gs_shim_too_late, gs_shim_leaves and gs_state, which is hidden and so has to be
# there, are all that these take from the rest of the library, and environ and getauxval, which no sanitizer
# intercepts, all that they take from libc.
objects.append(f'{output}-state.o')
subprocess.run([compiler, '-fPIC', '-c', '-x', 'c', '-', '-o', objects[-1]], input='int gs_state;',
               text=True, check=True)
library = f'{output}.so'
subprocess.run([compiler, '-shared', '-nostdlib', '-o', library, *objects, '-Wl,-z,text',
                '-Wl,--unresolved-symbols=ignore-all', '-Wl,--fatal-warnings'], check=True)
undefined = subprocess.run(['aarch64-linux-gnu-nm', '-u', library], check=True,
                           capture_output=True, text=True).stdout.split()
foreign = [n for n in undefined if n not in ('w', 'U', '_r_debug', 'gs_lookup_answer', 'gs_lookup_newer',
                                            'gs_shim_too_late', 'gs_shim_leaves', 'getauxval', 'environ')]
if foreign:
    sys.exit(f'dlsym\'s way calls out of the library: {foreign}')
code = subprocess.run(['aarch64-linux-gnu-objdump', '-d', '--no-show-raw-insn', objects[0]],
                      check=True, capture_output=True, text=True).stdout
for name in ['dlsym', 'dlvsym', 'dlopen']:
    body = re.search(rf'<{name}>:\n(.*?)(\n\n|\Z)', code, re.S)
    if not body or not re.search(r'ldp\s+x29, x30.*br\s+x16', body[1], re.S):
        sys.exit(f'{name} does not leave by br x16 with the caller\'s link register')
segments = subprocess.run(['aarch64-linux-gnu-readelf', '-lW', library], check=True,
                          capture_output=True, text=True).stdout
if not re.search(r'GNU_STACK.* RW +0x', segments):
    sys.exit('the stack is executable')
print('dlsym and dlvsym of aarch64 compile, link and leave by a jump')
