"""gpushim cdi: the specification is one that container engines take, what is wrong is said, and containers made
by it alone have the library, share, and keep an LD_PRELOAD of their own. bwrap makes the containers by the
specification's mounts and variables; podman reads it itself, and then only that is tried.

usage: cdi.py PUPPET LIBGPUSHIM BROKER bwrap|podman GPUSHIM LIBCUDA VERSION
"""
import ctypes
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, 'containers'))
sys.dont_write_bytecode = True
import containers  # pylint: disable=wrong-import-position
import pair  # pylint: disable=wrong-import-position
from alone import as_nobody, check, end_with_faults, expect, run

# Users of containers run copies: what is built may be its builder's alone.
copies = tempfile.TemporaryDirectory(prefix='gpushim-cdi-', dir='/tmp', ignore_cleanup_errors=True)
gpushim, library = f'{copies.name}/command/gpushim', f'{copies.name}/libgpushim.so'
kind, program, libcuda, version = sys.argv[4:]
libcuda = os.path.realpath(libcuda)

os.mkdir(f'{copies.name}/command')
for source, copy in (program, gpushim), (sys.argv[2], library):
    shutil.copyfile(source, copy)
for path in copies.name, gpushim, library:
    os.chmod(path, 0o755)
INSIDE = '/opt/gpushim'


def generate(*arguments, program=gpushim, **options):
    return run([program, 'cdi', *arguments], encoding='utf-8', errors='surrogateescape', **options)


# ---- What it writes --------------------------------------------------------------------------------------

def mount(outside, inside, mode):
    return {'hostPath': outside, 'containerPath': INSIDE + inside, 'options': [mode, 'nosuid', 'nodev', 'bind']}


def expected(folder=None):
    """The specification, as it has to be."""
    def device(name, *env):
        env = [*env, f'GPUSHIM_SHARE_BROKER={INSIDE}/bin/gpushim-broker',
               *[f'GPUSHIM_SHARE_DIR={INSIDE}/share'] * bool(folder)]
        return {'name': name,
                'containerEdits': {'env': env} | ({'mounts': [mount(folder, '/share', 'rw')]} if folder else {})}
    return {'cdiVersion': '0.5.0', 'kind': 'libgpushim.dev/shim',
            'devices': [device('all', f'LD_PRELOAD={INSIDE}/lib/libgpushim.so'), device('all-run')],
            'containerEdits': {'mounts': [mount(library, '/lib/libgpushim.so', 'ro'),
                                          mount(gpushim, '/bin/gpushim', 'ro'),
                                          mount(gpushim, '/bin/gpushim-broker', 'ro')]}}


def edits_of(spec, name):
    """What a container with this device gets: environment, {path inside: (path outside, options)}."""
    device, = [device['containerEdits'] for device in spec['devices'] if device['name'] == name]
    mounts = spec['containerEdits']['mounts'] + device.get('mounts', [])
    return (dict(setting.split('=', 1) for setting in device['env']),
            {mount['containerPath']: (mount['hostPath'], mount['options']) for mount in mounts})


def is_right(folder):
    odd = os.path.join(folder, 'a "folder"=\\ \u00fc')
    os.mkdir(odd)
    for arguments, shared in (([], None), (['--share-dir', odd], odd), (['--share-dir', '.'], folder)):
        spec = json.loads(expect(generate('generate', *arguments, cwd=folder), 0, '.*', '').stdout)
        check(spec == expected(shared), f'{arguments}: {spec}')


def writes_the_file(folder):
    path = os.path.join(folder, 'shim.json')
    os.symlink('nowhere', path)
    expect(generate('generate', '--output', path), 1, '', r'.* cannot be written: it is a symbolic link; .*\n')
    os.remove(path)
    with open(path, 'w', encoding='utf-8') as file:
        file.write('{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": []}\n')
    expect(generate('generate', '--output', path), 1, '',
           r'.* cannot be written: a file is there that this command did not make; .*\n')
    os.remove(path)
    for _ in range(2): # its own it replaces
        expect(generate('generate', '--output', path), 0, '.*', '')
    ran = generate('generate', '--output', path, umask=0o077)
    expect(ran, 0, rf'{path}: --device libgpushim\.dev/shim=all, or =all-run .*/etc/cdi and /var/run/cdi\n', '')
    with open(path, encoding='utf-8') as file:
        check(json.load(file) == expected(), 'the file is another')
    check(stat.S_IMODE(os.lstat(path).st_mode) == 0o644, f'its mode is {os.lstat(path).st_mode:o}')
    expect(generate('generate', '--output', 'here.yaml', cwd=folder), 0, r'here\.yaml: .*', '')
    expect(generate('generate', '--output', f'{folder}/none/shim.json'), 1, '',
           r'gpushim: \S+/none/shim\.json. cannot be written: No such file or directory; make its folder first .*\n')
    os.mkdir(f'{folder}/folder.json')
    expect(generate('generate', '--output', f'{folder}/folder.json'), 1, '',
           r'.* cannot be written: Is a directory; .*\n')
    check(sorted(os.listdir(folder)) == ['folder.json', 'here.yaml', 'shim.json'], f'left: {os.listdir(folder)}')
    if os.geteuid() == 0:
        as_root = os.path.join(folder, 'folder.json') + '/shim.json'
        subprocess.run(['chmod', '755', folder], check=True)
        ran = generate('generate', '--output', as_root, program=copied(folder), preexec_fn=as_nobody)
        expect(ran, 1, '', r'.* Permission denied; do this as a user who may write there, .*\n')


def copied(folder, with_library=True):
    """The program, and its library, where anybody can start them."""
    home = tempfile.mkdtemp(dir=folder)
    os.chmod(home, 0o755)
    os.mkdir(f'{home}/bin')
    shutil.copy(gpushim, f'{home}/bin/gpushim')
    if with_library:
        shutil.copy(library, f'{home}/bin/libgpushim.so')
    return f'{home}/bin/gpushim'


def says_what_is_wrong(folder):
    alone = copied(folder, with_library=False)
    ran = expect(generate('generate', program=alone), 1, '', 'gpushim: there is no libgpushim.so .*')
    check(f'  {os.path.dirname(os.path.dirname(alone))}/lib/libgpushim.so: No such file or directory\n' in ran.stderr,
          f'{ran.stderr}')
    expect(generate('generate', '--share-dir', ''), 1, '', r"gpushim: --share-dir: '' cannot be used: No such .*\n")
    expect(generate('generate', '--share-dir', f'{folder}/none'), 1, '',
           r"gpushim: --share-dir: '\S+/none' cannot be used: No such .*; make it first, .*install -d -m 1777\n")
    expect(generate('generate', '--share-dir', gpushim), 1, '', r".*/gpushim' is no folder; name one\n")
    strange = os.fsencode(folder) + b'/\xff'
    os.mkdir(strange)
    expect(generate('generate', '--share-dir', strange), 1, '', r'.* is no UTF-8, .*; use another\n')


# ---- Containers that are made by it ----------------------------------------------------------------------

class Device(containers.Bwrap):
    """A container whose image has no file of the library's, and that gets a device's mounts and variables."""

    def __init__(self, root, folder):
        super().__init__(root, folder)
        self.env, self.mounts = {}, {}

    def with_device(self, text, name):
        self.env, self.mounts = edits_of(json.loads(text), name)
        for inside, (outside, _) in self.mounts.items():
            point = self.root + inside # which engines make
            os.makedirs(os.path.dirname(point), exist_ok=True)
            if os.path.isdir(outside):
                os.makedirs(point, exist_ok=True)
            else:
                open(point, 'a', encoding='utf-8').close()
        subprocess.run(['chmod', '-R', 'a+rX', self.root + '/opt'], check=True)

    def command(self, user, shared, env, argv):
        """The device's variables replace those of the image."""
        command = super().command(user, shared, env | self.env, argv)
        binds = []
        for inside, (outside, options) in self.mounts.items():
            binds += ['--ro-bind' if 'ro' in options else '--bind', outside, inside]
        at = command.index('--setenv')
        return command[:at] + binds + command[at:]


class PodmanDevice(containers.Podman):
    """Podman reads the specification where all engines do. That is /run/cdi, in a mount namespace of this
    test's own, with a /run of its own: nobody else sees it, nor what stays there."""

    def __init__(self, root, folder):
        super().__init__(root, folder)
        if ctypes.CDLL(None).unshare(0x20000): # CLONE_NEWNS
            raise containers.Skip('no mount namespace can be made')
        for words in (['--make-rprivate', '/'], ['-t', 'tmpfs', 'tmpfs', '/run']):
            ran = subprocess.run(['mount', *words], capture_output=True, text=True, timeout=60, check=False)
            if ran.returncode:
                raise containers.Skip(ran.stderr.strip())
        os.makedirs('/run/cdi')

    def with_device(self, text, name):
        with open('/run/cdi/libgpushim.json', 'w', encoding='utf-8') as file:
            file.write(text)
        self.options = ('--device', f'{json.loads(text)["kind"]}={name}')


# What an image sets, and nothing of the library's. ("": not what containers.environment has.)
IMAGE = {'GPUSHIM_SHARE_DIR': '/nowhere', 'LD_PRELOAD': '/lib/libimage.so'}
BEGINS = f'libgpushim {version} starts in puppet'


def make_case(runtime, folder, kind, device):
    case = containers.Case(runtime, folder, kind)
    run = os.path.join(case.shared, 'run')
    text = generate('generate', '--share-dir', run).stdout
    runtime.with_device(text, device)
    return case


def said(case, *argv):
    """What a program says in such a container."""
    running = case.start('say', containers.HERE, IMAGE, list(argv))
    status = running.wait()
    check(status == 0, f'{argv} in a container: {status}, {case.log("say")}')
    return case.log('say')


def begin_both(case, command):
    """Two of the device's containers share, and the library is in both."""
    with case:
        pair.share_and_end(*pair.both(case, settings=IMAGE, command=command))
        check(all(BEGINS in case.log(role) for role in ('giver', 'taker')), f'{case.kind}: the library is not in both')


def share(runtime, folder):
    case = make_case(runtime, folder, 'all', 'all')
    begin_both(case, ())
    log = json.loads(said(case, f'{INSIDE}/bin/gpushim', 'version', '--json').splitlines()[-1])
    check(log.pop('time', None) and log == {'version': version, 'library': f'{INSIDE}/lib/libgpushim.so'},
          f'inside: {log}')
    check(f'gpushim-broker {version}' in said(case, f'{INSIDE}/bin/gpushim-broker', '--version'), 'no broker')


def keep_what_the_image_has(runtime, folder):
    command = [f'{INSIDE}/bin/gpushim', 'run', '--']
    case = make_case(runtime, folder, 'run', 'all-run')
    log = said(case, *command, '/bin/busybox', 'env')
    check(f'LD_PRELOAD={INSIDE}/lib/libgpushim.so:/lib/libimage.so\n' in log, f'LD_PRELOAD is not kept: {log}')
    begin_both(make_case(runtime, folder, 'run-pair', 'all-run'), command)


def start_a_broker(runtime, folder):
    """The device names its program, so that `broker` needs nothing of the image."""
    with make_case(runtime, folder, 'broker', 'all') as case:
        giver = pair.Inside(case, 'giver', settings=IMAGE | {'GPUSHIM_SHARE_STRATEGY': 'broker'})
        giver.handle(giver.alloc(pair.SIZE))
        pair.await_that(lambda: os.path.exists(case.broker_socket()), "the broker's start")
        giver.leave()


def in_containers(folder, engine):
    """Why none could be made; None: all was tried."""
    if not shutil.which(engine.name):
        return f'no {engine.name}'
    root = os.path.join(folder, 'root')
    try:
        containers.make_root(root, pair.PUPPET, library, libcuda, gpushim)
        os.unlink(f'{root}/bin/gpushim')
        image, = [path for path in containers.libraries(gpushim, libcuda) if '/libdl.so.2' in path]
        os.rename(f'{root}/lib/libgpushim.so', f'{folder}/unused')
        shutil.copy(image, f'{root}/lib/libimage.so')
        runtime = engine(root, folder)
        containers.try_out(runtime, folder)
        for play in (share, keep_what_the_image_has, start_a_broker):
            play(runtime, folder)
    except containers.Skip as skip:
        return str(skip)
    return None


def in_a_folder(play):
    with tempfile.TemporaryDirectory(prefix='gpushim-cdi-', dir='/tmp', ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        return play(folder)


if kind == 'podman':
    skipped = in_a_folder(lambda folder: in_containers(folder, PodmanDevice))
else:
    in_a_folder(is_right)
    in_a_folder(writes_the_file)
    in_a_folder(says_what_is_wrong)
    skipped = in_a_folder(lambda folder: in_containers(folder, Device))
end_with_faults(f'containers by the specification: {skipped}' if skipped else None)
