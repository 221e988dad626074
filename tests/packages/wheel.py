"""The wheel that examples/packages/build.sh makes: its files are as it lists them, they need no newer glibc than its
tag says, and in a fresh environment, installed without a network, the command, gpushim.stats() and the Jupyter kernel
do what they are for; removed, it leaves nothing.

Where pip can fetch them, a real Jupyter starts the kernel, and mypy finds each function typed, and rightly.

usage: wheel.py SOURCE BUILD VERSION RESOLVE_LIBRARY FOLDER_OF_LIBCUDA
"""
import base64
import csv
import hashlib
import json
import os
import re
import select
import signal
import sys
import tarfile
import tempfile
import zipfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import faults
from faults import check, end_with_faults

source, build, version, resolve, driver = sys.argv[1:]
skipped = []
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if not name.startswith(('GPUSHIM_', 'LD_', 'MESON', 'PYTHON', 'JUPYTER', 'XDG_', 'VIRTUAL_ENV'))}
ENVIRONMENT.update(LC_ALL='C.UTF-8', GPUSHIM_CONFIG='', LD_LIBRARY_PATH=driver)
MIB = 1 << 20
# What stats() says before CUDA is used, and with a mebibyte.
ALLOCATES = '''import ctypes, gpushim, json
try:
    before = gpushim.stats()
except gpushim.NotLoaded as error:
    before = str(error)
cuda = ctypes.CDLL("libcuda.so.1")
context, at = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(1 << 20)) == 0
try:
    print(json.dumps([before, gpushim.stats()]))
except gpushim.NotLoaded as error:
    print(json.dumps([before, str(error)]))
'''
# Shares it, and asks who keeps what is shared until one answers; or this test's time is over.
SHARES = ALLOCATES + '''
import os, subprocess
assert cuda.cuIpcGetMemHandle(ctypes.create_string_buffer(64), at) == 0
del os.environ["LD_PRELOAD"]
found = ""
while "one answers" not in found and "FAIL" not in found:
    ran = subprocess.run([gpushim.command(), "doctor", "--json"], stdout=subprocess.PIPE, text=True)
    found = json.dumps([row for row in json.loads(ran.stdout)["rows"] if row["subject"] == "broker"])
print(found)
'''
# Stands in for ipykernel: writes to the connection file what it was given, and whether it has the library.
KERNEL = '''import gpushim, json, sys
with open(sys.argv[-1], "w") as file:
    json.dump([sys.argv[1:], gpushim.loaded()], file)
'''
# A real Jupyter: the kernel says what it has, and again when it was started anew.
JUPYTER = '''import jupyter_client.manager
manager, client = jupyter_client.manager.start_new_kernel(kernel_name="gpushim", startup_timeout=300)
for turn in range(2):
    client.execute_interactive("import gpushim; print(gpushim.loaded())", timeout=300,
                               output_hook=lambda message: print(message["content"].get("text", ""), end=""))
    if not turn:
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=300)
client.stop_channels()
manager.shutdown_kernel(now=True)
'''


def call(*words, settings=None, **options):
    return faults.call(words, ENVIRONMENT | (settings or {}), timeout=900, **options)


def expect(ran, status, out='', err=''):
    """Its exit status, and patterns of all that it wrote."""
    check(ran.returncode == status and re.fullmatch(out, ran.stdout, re.S) and re.fullmatch(err, ran.stderr, re.S),
          f'{ran.args}: it ended with {ran.returncode}, not {status}, wrote {ran.stdout!r} and {ran.stderr!r}, not '
          f'{out!r} and {err!r}')
    return ran


def end():
    end_with_faults('; '.join(skipped))


# ---- The file -------------------------------------------------------------------------------------------


def build_wheel(folder):
    ran = call('sh', f'{source}/examples/packages/build.sh', 'wheel', folder,
               settings={'GPUSHIM_BUILD': build, 'GPUSHIM_HOMEPAGE': 'https://forge.invalid/libgpushim'})
    if ran.returncode:
        (skipped if ran.returncode == 77 else faults.faults).append(f'build.sh: {ran.stdout}{ran.stderr}')
        end()
    path = ran.stdout.splitlines()[-1]
    with tarfile.open(f'{folder}/gpushim-{version}.tar.gz') as sources:
        names = {name.partition('/')[2] for name in sources.getnames()}
    check({'pyproject.toml', 'hatch_build.py', 'LICENSE', 'gpushim/py.typed', 'gpushim/_built.py'} <= names and
          not any('bin/' in name for name in names), f'its sources: {names}')
    check(os.path.basename(path) == f'gpushim-{version}-py3-none-manylinux_2_28_{os.uname().machine}.whl', path)
    return path


def check_record(path):
    info = f'gpushim-{version}.dist-info'
    with zipfile.ZipFile(path) as wheel:
        rows = list(csv.reader(wheel.read(f'{info}/RECORD').decode().splitlines()))
        check(sorted(name for name, _, _ in rows) == sorted(wheel.namelist()), f'RECORD lists {rows}')
        check('gpushim/py.typed' in wheel.namelist(), f'it is typed: {wheel.namelist()}')
        for name, digest, size in rows:
            content = wheel.read(name)
            made = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()
            expected = ('', '') if name == f'{info}/RECORD' else (f'sha256={made}', str(len(content)))
            check((digest, size) == expected, f'RECORD: {name}: {digest}, {size}')
        text = wheel.read(f'{info}/WHEEL').decode()
        check(f'\nTag: {"-".join(os.path.basename(path)[:-4].split("-")[2:])}\n' in text, f'WHEEL: {text}')
        text = wheel.read(f'{info}/METADATA').decode()
        check(f'\nVersion: {version}\n' in text and 'Requires-Dist' not in text, f'METADATA: {text}')
        check('\nMaintainer: libgpushim maintainers\n' in text and
              '\nProject-URL: Homepage, https://forge.invalid/libgpushim\n' in text, f'METADATA: {text}')


def check_programs(folder, python):
    """As what is installed by meson: needs, exports, hardening, glibc 2.28."""
    at = call(python, '-c', 'import gpushim; print(gpushim.command()); print(gpushim.library())').stdout.splitlines()
    os.mkdir(f'{folder}/named')
    os.symlink(at[0], f'{folder}/named/gpushim-broker')
    for words in (('check_broker.py', f'{folder}/named/gpushim-broker', version),
                  ('check_library.py', at[1], resolve, f'{source}/shim/entry_points.h',
                   f'{source}/shim/gpushim.h', version)):
        ran = call(sys.executable, f'{source}/tests/preload/{words[0]}', *words[1:])
        check(ran.returncode == 0, f'{words[0]}: {ran.stdout}{ran.stderr}')
    return at


# ---- In an environment ----------------------------------------------------------------------------------


def install(folder, path):
    ran = call(sys.executable, '-m', 'venv', folder)
    if ran.returncode:
        skipped.append(f'no environment can be made here (Debian: python3-venv): {ran.stdout}{ran.stderr}')
        end()
    python = f'{folder}/bin/python'
    ran = call(python, '-m', 'pip', 'install', '--no-index', '--no-deps', path)
    check(ran.returncode == 0, f'pip install: {ran.stdout}{ran.stderr}')
    if faults.faults:
        end()
    return python


def check_command(python, library):
    for words in ((python, '-m', 'gpushim'), (os.path.dirname(python) + '/gpushim',)):
        expect(call(*words, 'version'), 0, rf'gpushim {re.escape(version)}\nlibrary '
               rf'{re.escape(os.path.realpath(library))}\n')
        expect(call(*words, 'run', '--', 'sh', '-c', 'exit 7'), 7)
    expect(call(python, '-m', 'gpushim', 'run', '--', 'no-such-program'), 127, '', 'gpushim: .*PATH.*')
    expect(call(python, '-m', 'gpushim', 'nonsense'), 2, '',
           r"gpushim: there is no command 'nonsense' \(gpushim help\)\n")
    os.rename(os.path.dirname(library) + '/gpushim', os.path.dirname(library) + '/away')
    expect(call(python, '-m', 'gpushim', 'version'), 126, '',
           'gpushim: .*/bin/gpushim cannot be started: No such file.*')
    os.rename(os.path.dirname(library) + '/away', os.path.dirname(library) + '/gpushim')


def said(ran):
    """The lines of JSON that a program printed."""
    check(ran.returncode == 0 and not ran.stderr, f'{ran.args[3:]}: {ran}')
    try:
        return [json.loads(line) for line in ran.stdout.splitlines() if line]
    except ValueError:
        check(False, f'no JSON: {ran}')
        return []


def check_stats(python):
    for (before, now), in said(call(python, '-m', 'gpushim', 'run', '--', python, '-c', ALLOCATES)), :
        check('does nothing there' in before, f'before CUDA is used: {before}')
        memory = now['devices'].get('0', {}) if list(now['devices']) == ['0'] else {}
        check(memory.get('live') == MIB and memory['reserved'] == memory['reserved_peak'] >= memory['live'] +
              memory['cached'] and memory['misses'] == 1 == sum(memory['took']) and len(memory['took']) == 24 and
              memory['map_ns'] > 0 and re.fullmatch('(?!0{32})[0-9a-f]{32}', memory['uuid']), f'stats: {now}')
        check(now['registrations']['hits'] == now['registrations']['bytes'] == 0, f'stats: {now}')
    for (before, now), in said(call(python, '-c', ALLOCATES)), :
        check('not in this process' in before == now and 'LD_PRELOAD=' in now, f'without the library: {now}')
    for (_, now), in said(call(python, '-m', 'gpushim', 'run', '-o', 'enable=off', '--', python, '-c', ALLOCATES)), :
        check('does nothing there' in now, f'switched off: {now}')
    ran = call(python, '-c', 'import gpushim; print(gpushim.version(), gpushim.__version__, gpushim.loaded())')
    expect(ran, 0, f'{re.escape(version)} {re.escape(version)} False\n')


def check_broker(python, folder):
    """The library finds the broker that came with it."""
    os.mkdir(folder, 0o700)
    lines = said(call(python, '-m', 'gpushim', 'run', '-o', 'share.strategy=broker', '-o', f'share.dir={folder}', '--',
                      python, '-c', SHARES))
    pids = [int(pid) for pid in re.findall(r'one answers, process (\d+)', str(lines[-1:]))]
    check(len(pids) == 1, f'the broker: {lines}')
    for pid in pids:
        program = os.readlink(f'/proc/{pid}/exe')
        check(program.endswith('/gpushim/bin/gpushim'), f'the broker is {program}')
        end_process(pid)


def end_process(pid):
    """Another's child, so there is no waiting for it."""
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGTERM)
    check(select.select([descriptor], [], [], 60)[0], f'process {pid} does not end')
    os.close(descriptor)


# ---- Jupyter --------------------------------------------------------------------------------------------


def read(path):
    with open(path, encoding='utf-8') as file:
        return json.load(file)


def check_kernel_starts(path, folder):
    """As Jupyter would: argv, with the connection file's name in it."""
    with open(f'{folder}/ipykernel_launcher.py', 'w', encoding='utf-8') as file:
        file.write(KERNEL)
    connection = f'{folder}/connection file.json'
    argv = [word.replace('{connection_file}', connection) for word in read(path)['argv']]
    expect(call(*argv, settings={'PYTHONPATH': folder}), 0)
    check(os.path.exists(connection) and read(connection) == [['-f', connection], True], f'the kernel {argv}')


def check_places(python, folder):
    words = (python, '-m', 'gpushim', 'kernelspec')
    root = os.path.dirname(os.path.dirname(python))
    for arguments, settings, at in ((('--prefix', f'{folder}/a'), {}, f'{folder}/a/share/jupyter'),
                                    ((), {}, f'{root}/share/jupyter'),
                                    (('--sys-prefix',), {}, f'{root}/share/jupyter'),
                                    (('--user',), {'HOME': folder}, f'{folder}/.local/share/jupyter'),
                                    (('--user',), {'XDG_DATA_HOME': f'{folder}/b'}, f'{folder}/b/jupyter'),
                                    (('--user',), {'JUPYTER_DATA_DIR': f'{folder}/c'}, f'{folder}/c')):
        path = f'{at}/kernels/mine/kernel.json'
        said_where = re.escape(path) + ': .*'
        for _ in range(2):
            expect(call(*words, *arguments, '--name', 'Mine', settings=settings), 0, said_where, '.*no ipykernel.*')
        check(os.path.exists(path), f'{arguments}, {settings}: no {path}')
        expect(call(*words, *arguments, '--name', 'mine', '--remove', settings=settings), 0, said_where)
        check(not os.path.exists(os.path.dirname(path)), f'{path} is there still')
        expect(call(*words, *arguments, '--name', 'mine', '--remove', settings=settings), 1, '',
               'gpushim: there is no kernel .*')


def check_kernel(python, folder):
    words = (python, '-m', 'gpushim', 'kernelspec', '--prefix', folder)
    path = f'{folder}/share/jupyter/kernels/gpushim/kernel.json'
    expect(call(*words, '--display-name', 'with it', '-o', 'pool.decay=3s'), 0, '.*--kernel gpushim, .*"with it".*',
           '.*')
    spec = read(path)
    check(spec['display_name'] == 'with it' and spec['language'] == 'python' and
          spec['argv'][1:5] == ['run', '-o', 'pool.decay=3s', '--'] and spec['argv'][-1] == '{connection_file}',
          f'{spec}')
    check_kernel_starts(path, folder)
    expect(call(*words, '-o', 'pool.decy=3s'), 1, '', '.*did you mean pool.decay.*no kernel is made\n')
    check(read(path) == spec, 'a kernel was made with an option that is not there')
    for name in ('a/b', '..', 'a b', ''):
        expect(call(*words, '--name', name), 1, '', "gpushim: --name: Jupyter allows .*\n")
    expect(call(*words, '--user'), 2, '', 'usage: .*not allowed with argument.*')
    with open(path, 'w', encoding='utf-8') as file:
        json.dump({'argv': ['python3'], 'display_name': "another's", 'language': 'python'}, file)
    for more in ((), ('--remove',)):
        expect(call(*words, *more), 1, '', f'gpushim: {re.escape(path)} is a kernel that this command did not make; .*')
    check(read(path)['display_name'] == "another's", "another's kernel was replaced")
    expect(call(*words[:-1], '/proc/none'), 1, '', 'gpushim: /proc/none.*: .*another place\n')


def check_jupyter(python):
    ran = call(python, '-m', 'pip', 'install', '--disable-pip-version-check', 'jupyter-client', 'ipykernel')
    if ran.returncode:
        skipped.append(f'a real Jupyter: pip has no jupyter-client and ipykernel here: {ran.stderr.strip()[-200:]}')
        return
    expect(call(python, '-m', 'gpushim', 'kernelspec'), 0, '.*', '')
    expect(call(python, '-c', JUPYTER), 0, 'True\nTrue\n', '.*')
    expect(call(python, '-m', 'gpushim', 'kernelspec', '--remove'), 0, '.*', '')


def check_types(python):
    ran = call(python, '-m', 'pip', 'install', '--disable-pip-version-check', 'mypy')
    if ran.returncode:
        skipped.append(f'its types: pip has no mypy here: {ran.stderr.strip()[-200:]}')
        return
    expect(call(python, '-m', 'mypy', '--strict', '--ignore-missing-imports', '--cache-dir', '/dev/null', '-p',
                'gpushim'), 0,
           'Success: .*')


def check_removal(python, folder):
    expect(call(python, '-m', 'pip', 'uninstall', '-y', 'gpushim'), 0, '.*', '.*')
    left = [os.path.join(place, name) for place, folders, names in os.walk(folder) for name in folders + names
            if 'gpushim' in name]
    check(not left, f'after removal there is still: {left}')


with tempfile.TemporaryDirectory(prefix='gpushim-wheel-', ignore_cleanup_errors=True) as temporary:
    file_name = build_wheel(temporary)
    check_record(file_name)
    interpreter = install(f'{temporary}/environment', file_name)
    _, library_path = check_programs(temporary, interpreter)
    check_command(interpreter, library_path)
    check_stats(interpreter)
    check_broker(interpreter, f'{temporary}/shared')
    for part in (check_places, check_kernel):
        os.mkdir(f'{temporary}/{part.__name__}')
        part(interpreter, f'{temporary}/{part.__name__}')
    check_jupyter(interpreter)
    check_types(interpreter)
    check_removal(interpreter, f'{temporary}/environment')
end()
