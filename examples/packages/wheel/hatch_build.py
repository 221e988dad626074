"""What a wheel has besides Python: the library and the command, if GPUSHIM_INSTALLED names a folder where they are
installed (bin/gpushim, lib/libgpushim.so), for the platform GPUSHIM_TAG. Without, it is a wheel of Python alone, which
finds the command that is installed. examples/packages/build.sh sets both."""
import os
import re
import subprocess

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def check_libc(path, tag):
    """It starts where the tag says that it does."""
    oldest = tuple(int(number) for number in re.search(r'manylinux_(\d+)_(\d+)_', tag).groups())
    symbols = subprocess.run(['nm', '-D', path], check=True, capture_output=True, text=True).stdout
    needed = re.findall(r' [Uw] (\S+)@GLIBC_(\d+)\.(\d+)', symbols)
    newer = [name for name, *version in needed if tuple(int(number) for number in version) > oldest]
    if newer or not needed:
        raise RuntimeError(f'{path} needs a newer glibc than {tag} says: {newer}')


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version, build_data):
        installed, tag = os.environ.get('GPUSHIM_INSTALLED'), os.environ.get('GPUSHIM_TAG')
        if not installed:
            return
        brought = {os.path.join(installed, 'bin', 'gpushim'): 'gpushim/bin/gpushim',
                   os.path.join(installed, 'lib', 'libgpushim.so'): 'gpushim/bin/libgpushim.so'}
        for path in brought:
            check_libc(path, tag)
        brought[os.path.join(self.root, 'gpushim-broker')] = 'gpushim/bin/gpushim-broker'
        build_data['force_include'] = brought
        build_data['pure_python'] = False
        build_data['tag'] = tag
