"""For tests of gpushim sleep: what a process has in its memory, and what the commands say."""
from holder import MIB, check, gpushim

LIVE = 100 * MIB  # of several pieces

FILL = ('assert cuda.cuMemsetD8_v2({block}, ctypes.c_ubyte({value}), ctypes.c_size_t({size})) == 0 and '
        'cuda.cuCtxSynchronize() == 0')
READ = '''
host = (ctypes.c_ubyte * {size})()
status = cuda.cuMemcpyDtoH_v2(host, {block}, ctypes.c_size_t({size}))
print(bytes(host) == bytes([{value}]) * {size} if status == 0 else status)
'''


def run(one, code, **values):
    return one.run(code.format(**values) if values else code)


def fill(one, value, block, size=LIVE):
    run(one, FILL, block=block, value=value, size=size)


def has(one, value, block, size=LIVE):
    return run(one, READ, block=block, value=value, size=size) == 'True'


def says(folder, status, arguments, *words):
    ran = gpushim(folder, *arguments)
    check(ran.returncode == status and all(word in ran.stdout + ran.stderr for word in words)
          and bool(ran.stderr) == bool(status),
          f'{arguments} ends with {status} and {words}: {ran}')
    return ran
