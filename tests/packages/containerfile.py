"""examples/packages/Containerfile: built with podman on a fresh Debian, its image has the command and the library,
which work, and its --target files has these alone.

The Debian is made by debootstrap, the compilers come from its archive: needs root and a network. The CUDA headers are
those that this build uses.

usage: containerfile.py SOURCE CUDA_INCLUDE VERSION
"""
import os
import re
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import faults
from faults import check, end_with_faults, skip

source, cuda_include, version = sys.argv[1:]
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if not name.startswith(('GPUSHIM_', 'LD_', 'MESON'))} | {'LC_ALL': 'C.UTF-8'}
ENVIRONMENT['PATH'] += ':/usr/sbin:/sbin'
BASE = 'localhost/gpushim-base'


def call(*words, **options):
    return faults.call(words, ENVIRONMENT, timeout=1500, **options)


class Podman:
    """With a store of its own, which goes with its folder."""
    def __init__(self, folder):
        self.words = ['podman', '--root', f'{folder}/store', '--runroot', f'{folder}/runroot',
                      '--storage-driver', 'vfs', '--cgroup-manager', 'cgroupfs']
        if shutil.which('runc'):
            self.words += ['--runtime', shutil.which('runc')]

    def __call__(self, *words):
        return call(*self.words, *words)

    def build(self, tag, *options):
        # Nothing of it is kept between the two: each is built as a user builds it.
        return self('build', '--isolation', 'chroot', '--network', 'host', '--layers=false',
                    '--build-arg', f'BASE={BASE}', '--volume', f'{cuda_include}:/usr/local/cuda/include:ro',
                    '-f', f'{source}/examples/packages/Containerfile', '-t', tag, *options, source)


def base_system(podman, folder):
    ran = call('debootstrap', '--variant=minbase', 'bookworm', f'{folder}/base')
    if ran.returncode:
        skip(f'debootstrap: {" ".join(ran.stdout.splitlines()[-1:])}{ran.stderr}')
    ran = call('tar', '-C', f'{folder}/base', '-cf', f'{folder}/base.tar', '.')
    check(ran.returncode == 0, ran.stderr)
    ran = podman('import', f'{folder}/base.tar', BASE)
    if ran.returncode:
        skip(f'podman keeps no image here: {ran.stderr}')


def prove_image(podman, folder):
    ran = podman.build('localhost/gpushim')
    check(ran.returncode == 0, f'build ends with {ran.returncode}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}')
    if ran.returncode:
        return

    def inside(*words):
        # Where this runs in a container itself, podman's own limits may be above what is allowed.
        return podman('run', '--rm', '--network', 'none', '--ulimit', 'nofile=1024:1024', '--ulimit',
                      'nproc=1024:1024', 'localhost/gpushim', *words)
    ran = inside('version')
    check(ran.stdout == f'gpushim {version}\nlibrary /opt/gpushim/lib/libgpushim.so\n', f'{ran}')
    ran = inside()
    check(re.search(r'^warn +driver +no GPU', ran.stdout, re.M) and
          re.search(r'^ok +library +/opt/gpushim/lib/libgpushim.so', ran.stdout, re.M), f'it begins with doctor: {ran}')
    ran = inside('run', '--', 'sh', '-c', 'echo $LD_PRELOAD')
    check(ran.stdout == '/opt/gpushim/lib/libgpushim.so\n', f'{ran}')


def prove_files(podman, folder):
    ran = podman.build('localhost/gpushim-files', '--target', 'files')
    check(ran.returncode == 0, f'--target files ends with {ran.returncode}: {ran.stderr[-2000:]}')
    ran = podman('save', '--format', 'oci-archive', '-o', f'{folder}/files.tar', 'localhost/gpushim-files')
    check(ran.returncode == 0, ran.stderr)
    os.mkdir(f'{folder}/files')
    call('tar', '-C', f'{folder}/files', '-xf', f'{folder}/files.tar')
    found = set()
    for blob in os.listdir(f'{folder}/files/blobs/sha256'):
        listed = call('tar', '-tf', f'{folder}/files/blobs/sha256/{blob}')
        if listed.returncode == 0:
            found |= {name.strip('/') for name in listed.stdout.split()}
    check({'opt/gpushim/bin/gpushim', 'opt/gpushim/lib/libgpushim.so'} <= found, f'files: {sorted(found)}')
    check(all(name.startswith('opt') or name == '.' for name in found), f'what else is there: {sorted(found)[:20]}')


def main():
    if os.geteuid() != 0:
        skip('needs root')
    for program in ('podman', 'debootstrap'):
        if not shutil.which(program, path=ENVIRONMENT['PATH']):
            skip(f'no {program} here')
    folder = tempfile.mkdtemp(prefix='gpushim-containerfile-')
    podman = Podman(folder)
    try:
        base_system(podman, folder)
        prove_image(podman, folder)
        if not faults.faults:
            prove_files(podman, folder)
    finally:
        podman('rmi', '--all', '--force')  # not "system reset": that takes the user's own networks along
        shutil.rmtree(folder, ignore_errors=True)
    end_with_faults()


main()
