"""examples/containers: each file does what it is for, as far as that shows without a cluster: scripts with stand-ins
for the programs that they start, manifests by what they refer to, all with a library that is installed as they
expect it. What examples/monitoring makes of its alerts for Prometheus' operator has them all.

usage: container_files.py FOLDER_OF_EXAMPLES GPUSHIM LIBGPUSHIM FOLDER_OF_LIBCUDA
"""
import glob
import json
import os
import re
import shutil
import sys
import tempfile

import alone
from alone import check, end_with_faults, faults

examples = os.path.realpath(sys.argv[1])
gpushim, library = (os.path.realpath(path) for path in sys.argv[2:4])
driver = sys.argv[4]
skipped = []

INSTALLED = '/opt/gpushim'
# Stands in for what a script starts: writes what it was given.
STAND_IN = f'#!{sys.executable}\nimport json, os, sys\nprint(json.dumps(sys.argv))\n'
# Stands in for a kernel: writes to the connection file what it was given, and whether it has the library.
KERNEL = '''import ctypes, json, sys
ctypes.CDLL("libcuda.so.1").cuInit(0)
with open(sys.argv[-1], "w") as file:
    json.dump([sys.argv[1:], hasattr(ctypes.CDLL(None), "gpushim_memory")], file)
'''
# One of two ranks: the first shares memory that no driver shares, the other opens it. Each says whether it could.
RANK = '''import ctypes, os, sys, time
rank, folder = int(os.environ["OMPI_COMM_WORLD_RANK"]), sys.argv[1]
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
cuda = ctypes.CDLL("libcuda.so.1")
context, at, handle = ctypes.c_void_p(), ctypes.c_uint64(), Handle()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
def put(name, content):
    with open(f"{folder}/made-{rank}", "wb") as file:
        file.write(content)
    os.rename(f"{folder}/made-{rank}", f"{folder}/{name}")
def get(name):
    end = time.monotonic() + 40
    while not os.path.exists(f"{folder}/{name}") and time.monotonic() < end:
        time.sleep(0.01)
    with open(f"{folder}/{name}", "rb") as file:
        return file.read()
if rank == 0:
    assert cuda.cuMemAllocAsync(ctypes.byref(at), ctypes.c_size_t(1 << 20), None) == 0
    result = cuda.cuIpcGetMemHandle(ctypes.byref(handle), at)
    put("handle", bytes(handle))
    get("opened")
else:
    handle = Handle.from_buffer_copy(get("handle"))
    result = cuda.cuIpcOpenMemHandle_v2(ctypes.byref(at), handle, 1)
    put("opened", b"")
put(f"result-{rank}", str(result).encode()) # mpirun may cut what two ranks print at once
'''


def run(*words, **settings):
    return alone.run(words, {'PREFIX': None, 'SHARE': None} | settings)


def text_of(name):
    with open(os.path.join(examples, name), encoding='utf-8') as file:
        return file.read()


def after(words, option):
    """The values of an option that is there more than once."""
    return [value for name, value in zip(words, words[1:]) if name == option]


class Installed:
    """The library and the command in a folder as `meson install` makes it."""

    def __init__(self, folder):
        self.prefix = os.path.join(folder, 'prefix')
        self.stand_ins = os.path.join(folder, 'stand-ins')
        self.share = os.path.join(folder, 'share')
        for made in ('bin', 'lib'):
            os.makedirs(os.path.join(self.prefix, made))
        shutil.copy(gpushim, f'{self.prefix}/bin/gpushim')
        os.symlink('gpushim', f'{self.prefix}/bin/gpushim-broker')
        shutil.copy(library, f'{self.prefix}/lib/libgpushim.so')
        os.mkdir(self.stand_ins)
        os.mkdir(self.share)
        for name in ('podman', 'docker', 'apptainer', 'mpirun'):
            with open(f'{self.stand_ins}/{name}', 'w', encoding='utf-8') as file:
                file.write(STAND_IN)
            os.chmod(f'{self.stand_ins}/{name}', 0o755)

    def has(self, path):
        """Whether a path of the examples is there."""
        return path.startswith(INSTALLED + '/') and os.path.exists(self.prefix + path[len(INSTALLED):])

    def started(self, script, *arguments, **settings):
        """What a script starts: its name and arguments."""
        ran = run('sh', os.path.join(examples, script), *arguments, PREFIX=self.prefix, SHARE=self.share,
                  PATH=f'{self.stand_ins}:{os.environ["PATH"]}', **settings)
        if ran.returncode or ran.stderr:
            faults.append(f'{script} {arguments}: {ran}')
            return ['']
        words = json.loads(ran.stdout)
        return [os.path.basename(words[0]), *words[1:]]

    def spec(self):
        """Device: what it mounts, by the path inside."""
        spec = json.loads(run(f'{self.prefix}/bin/gpushim', 'cdi', 'generate', '--share-dir', self.share).stdout)
        always = spec['containerEdits']['mounts']
        return {f'{spec["kind"]}={device["name"]}':
                {mount['containerPath'] for mount in always + device['containerEdits'].get('mounts', [])}
                for device in spec['devices']}


def engines(installed):
    spec = installed.spec()
    for engine, gpu in (('podman', ['--device', 'nvidia.com/gpu=all']), ('docker', ['--gpus', 'all'])):
        words = installed.started(f'{engine}.sh', 'cdi', 'image', 'program', '-x')
        check(words == [engine, 'run', '--rm', *gpu, '--device', 'libgpushim.dev/shim=all', 'image', 'program', '-x']
              and words[-4] in spec, f'{engine} by CDI: {words}, {spec}')
        words = installed.started(f'{engine}.sh', 'plain', 'image', 'program', '-x')
        mounts, env = after(words, '-v'), dict(each.split('=', 1) for each in after(words, '-e'))
        check(words[0] == engine and words[-3:] == ['image', 'program', '-x'], f'{engine} without CDI: {words}')
        check(f'{installed.prefix}:{INSTALLED}:ro' in mounts and installed.has(env['LD_PRELOAD']) and
              f'{installed.share}:{env["GPUSHIM_SHARE_DIR"]}' in mounts, f'{engine} mounts {mounts}, sets {env}')
        ran = run('sh', f'{examples}/{engine}.sh', 'nonsense', 'image')
        check(ran.returncode == 2 and "not 'nonsense'" in ran.stderr, f'{engine}: {ran}')
    words = installed.started('podman.sh', 'run', 'image', 'program', '-x')
    device, (entry,) = after(words, '--device')[-1], after(words, '--entrypoint')
    check(entry in spec.get(device, ()) and device.endswith('-run') and
          words[-5:] == ['image', 'run', '--', 'program', '-x'], f'podman, gpushim run: {words}, {spec}')


def launchers(installed):
    words = installed.started('apptainer.sh', 'image', 'program')
    env = dict(each.split('=', 1) for each in after(words, '--env'))
    check(words[:3] == ['apptainer', 'exec', '--nv'] and words[-2:] == ['image', 'program'] and
          after(words, '--bind') == [f'{installed.prefix}:{INSTALLED}:ro', installed.share] and
          installed.has(env['LD_PRELOAD']) and env['GPUSHIM_SHARE_DIR'] == installed.share, f'apptainer: {words}')
    words = installed.started('mpirun.sh', '-np', '2', 'program')
    check(words == ['mpirun', '-x', f'LD_PRELOAD={installed.prefix}/lib/libgpushim.so', '-np', '2', 'program'],
          f'mpirun: {words}')
    prolog = os.path.join(examples, 'slurm-task-prolog.sh')
    ran = run('/bin/sh', prolog, PREFIX=installed.prefix, PATH='', LD_PRELOAD='libm.so.6')
    check(ran.returncode == 0 and not ran.stderr and
          ran.stdout == f'export LD_PRELOAD={installed.prefix}/lib/libgpushim.so:libm.so.6\n', f'the prolog: {ran}')
    ran = run('/bin/sh', prolog, PREFIX='/nowhere', PATH='')
    check(ran.returncode == 0 and not ran.stdout, f'the prolog where no library is: {ran}')


def open_mpi(installed, folder):
    """By the real one, where it is: two ranks on this machine."""
    if 'Open MPI' not in (run('mpirun', '--version').stdout if shutil.which('mpirun') else ''):
        skipped.append('two ranks: no mpirun of Open MPI')
        return
    settings = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1', 'OMPI_MCA_plm': 'isolated',
                'OMPI_MCA_rmaps_base_oversubscribe': '1', 'OMPI_MCA_oob_tcp_if_include': 'lo',
                'LD_LIBRARY_PATH': driver, 'GPUSHIM_SHARE_DIR': installed.share}
    for script, expected in ((('sh', f'{examples}/mpirun.sh'), ['0', '0']),
                             (('mpirun',), ['1', '1'])): # without the library: INVALID_VALUE
        talk = tempfile.mkdtemp(dir=folder)
        ran = run(*script, '-np', '2', sys.executable, '-c', RANK, talk, PREFIX=installed.prefix, **settings)
        files = [os.path.join(talk, f'result-{rank}') for rank in range(2)]
        results = [open(file, encoding='utf-8').read() for file in files if os.path.exists(file)]
        check(ran.returncode == 0 and results == expected, f'Open MPI: {results}, {ran}')


def kernel(installed, folder):
    argv = json.loads(text_of('jupyter/kernel.json'))['argv']
    check(installed.has(argv[0]) and argv[-1] == '{connection_file}', f'the kernel: {argv}')
    with open(f'{folder}/ipykernel_launcher.py', 'w', encoding='utf-8') as file:
        file.write(KERNEL)
    connection = os.path.join(folder, 'connection file')
    argv = [installed.prefix + argv[0][len(INSTALLED):], *argv[1:-1], connection]
    argv[argv.index('python3')] = os.path.realpath(sys.executable)
    ran = run(*argv, PYTHONPATH=folder, LD_LIBRARY_PATH=driver, GPUSHIM_SHARE_DIR=installed.share)
    told = None
    if os.path.exists(connection):
        with open(connection, encoding='utf-8') as file:
            told = json.load(file)
    check(ran.returncode == 0 and told == [['-f', connection], True], f'the kernel: {ran}, {told}')


def drop_in(installed, folder):
    text = text_of('systemd-gpushim.conf')
    env = dict(re.findall(r'^Environment=(\w+)=(.*)$', text, re.M))
    made = re.findall(r'^RuntimeDirectory=(.*)$', text, re.M)
    check(installed.has(env.get('LD_PRELOAD', '')) and env.get('GPUSHIM_SHARE_DIR') == f'/run/{made[0]}',
          f'the drop-in sets {env}, makes {made}')
    if not shutil.which('systemd-analyze'):
        skipped.append('the drop-in is not read by systemd: no systemd-analyze')
        return
    os.makedirs(f'{folder}/probe.service.d')
    shutil.copy(f'{examples}/systemd-gpushim.conf', f'{folder}/probe.service.d/gpushim.conf')
    with open(f'{folder}/probe.service', 'w', encoding='utf-8') as file:
        file.write('[Service]\nExecStart=/bin/true\n')
    ran = run('systemd-analyze', 'verify', '--man=no', f'{folder}/probe.service')
    check('gpushim.conf' not in ran.stdout + ran.stderr, f'systemd says of the drop-in: {ran.stdout}{ran.stderr}')


# ---- Kubernetes ------------------------------------------------------------------------------------------

CLAIMED = '/run/nvidia-dra/local-ipc'  # which a claim's driver mounts, kubernetes-claim.yaml


def faults_of_container(installed, container, volumes):
    mounts = {mount['mountPath']: mount for mount in container.get('volumeMounts', [])}
    env = {each['name']: each['value'] for each in container.get('env', [])}
    if not {mount['name'] for mount in mounts.values()} <= set(volumes):
        yield f'mounts {mounts} of {volumes}'
    if any(not isinstance(value, str) for value in env.values()):
        yield f'sets what is no text: {env}' # as Kubernetes refuses it
    words = container.get('command', []) + [env.get('LD_PRELOAD', '')]
    for path in [word for word in words if word.startswith(INSTALLED)]:
        if not installed.has(path) or volumes and not mounts[INSTALLED].get('readOnly'):
            yield f'{path} is not there, or may be written to: {mounts}'
    if env.get('GPUSHIM_SHARE_DIR') == CLAIMED:
        if not container['resources']['claims']:
            yield f'{CLAIMED} comes with no claim'
    elif 'GPUSHIM_SHARE_DIR' in env:
        mount = mounts.get(env['GPUSHIM_SHARE_DIR'])
        if not mount or mount.get('readOnly'):
            yield f'{env["GPUSHIM_SHARE_DIR"]} is no folder to write to: {mounts}'


def faults_of_pod(installed, spec, seen):
    volumes = {volume['name']: volume for volume in spec.get('volumes', [])}
    for container in spec['containers'] + spec.get('initContainers', []):
        yield from faults_of_container(installed, container, volumes)
    for container in spec['containers']:
        user = (spec.get('securityContext', {}) | container.get('securityContext', {})).get('runAsUser')
        folder = volumes.get('sockets', {}).get('hostPath', {}).get('path')
        seen.append((user, folder))


def manifests(installed):
    try:
        import yaml # pylint: disable=import-outside-toplevel
    except ImportError:
        skipped.append('the manifests: no PyYAML')
        return
    seen, kinds = [], []
    for path in sorted(glob.glob(f'{examples}/*.yaml')):
        with open(path, encoding='utf-8') as file:
            objects = list(yaml.safe_load_all(file))
        if os.path.basename(path) == 'kubernetes-policy.yaml':
            continue # tests/containers/kubernetes.py has what it makes of pods
        for each in objects:
            if each['kind'] not in ('DaemonSet', 'Pod'):
                continue # nothing of it runs; tests/containers/kubernetes.py renders it all
            kinds.append(each['kind'])
            if each['kind'] == 'DaemonSet':
                template = each['spec']['template']
                check(each['spec']['selector']['matchLabels'] == template['metadata']['labels'], f'{path}: labels')
                spec = template['spec']
            else:
                spec = each['spec']
            faults.extend(f'{path}: {fault}' for fault in faults_of_pod(installed, spec, seen))
    check(sorted(kinds) == ['DaemonSet'] * 2 + ['Pod'] * 5, f'the manifests are {kinds}')
    # All run as one user; those on a folder of the node (two pods, the broker, the exporter) name the same.
    check({user for user, _ in seen} == {1000}, f'users: {seen}')
    check([folder for _, folder in seen if folder] == ['/run/gpushim'] * 4, f'folders: {seen}')


RULE = ['apiVersion: monitoring.coreos.com/v1', 'kind: PrometheusRule', 'metadata: {name: gpushim}', 'spec:']


def alerts_as_a_rule(installed):
    """The command of examples/monitoring, as it stands, with a kubectl that writes what it is given."""
    page, alerts = (text_of(f'../monitoring/{name}') for name in ('README.md', 'alerts.yml'))
    command = re.search(r'^    (sed -e .*\\\n.*\| kubectl apply .*)$', page, re.M)[1]
    with open(f'{installed.stand_ins}/kubectl', 'w', encoding='utf-8') as file:
        file.write('#!/bin/sh\nexec cat\n')
    os.chmod(f'{installed.stand_ins}/kubectl', 0o755)
    ran = run('sh', '-c', f'cd "$0" && {command}', os.path.dirname(os.path.dirname(examples)),
              PATH=f'{installed.stand_ins}:{os.environ["PATH"]}')
    check(ran.stdout.splitlines() == RULE + [f'  {line}' for line in alerts.splitlines()], f'the rule: {ran}')


def names():
    """Every variable is an option's, and every script one that a shell can read."""
    known = {option['variable'] for option in json.loads(run(gpushim, 'config', '--json').stdout)['options']}
    files = [path for path in glob.glob(f'{examples}/**/*', recursive=True) if os.path.isfile(path)]
    check(len(files) >= 11, f'the files are {files}')
    for path in files:
        name = os.path.relpath(path, examples)
        for variable in re.findall(r'\bGPUSHIM_\w+', text_of(name)):
            check(variable in known, f'{name}: there is no {variable}')
        check(name == 'README.md' or name in text_of('README.md'), f'README.md does not name {name}')
        if name.endswith('.sh'):
            check(run('sh', '-n', path).returncode == 0, f'{name} is no script')


with tempfile.TemporaryDirectory(prefix='gpushim-files-', dir='/tmp', ignore_cleanup_errors=True) as scratch:
    at = Installed(scratch)
    names()
    engines(at)
    launchers(at)
    open_mpi(at, scratch)
    kernel(at, scratch)
    drop_in(at, scratch)
    manifests(at)
    alerts_as_a_rule(at)
for line in skipped:
    print('skipped:', line)
end_with_faults()
