"""gpushim by itself, for tests that need nobody to ask: it runs with nothing of the caller's, and what it wrote is
compared with patterns. Faults are collected in faults.py."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), os.pardir))
from faults import check, end_with_faults, faults  # as others take them from here

NOBODY = 65533
OURS = 'GPUSHIM_', 'LD_', 'SOFTCUDA_', 'CUDA_', 'NVML_'


def surroundings(**settings):
    """The environment without what the library and the driver go by, and with these settings; None takes one away."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    kept |= {'GPUSHIM_CONFIG': '', 'LC_ALL': 'C'} | settings
    return {name: value for name, value in kept.items() if value is not None}


def as_nobody():
    """Before a program begins, where root may do so."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def run(words, settings=None, **options):
    return subprocess.run(words, env=surroundings(**(settings or {})), check=False,
                          **{'errors': 'replace', 'timeout': 100, 'capture_output': True, 'stdin': subprocess.DEVNULL}
                          | options)


def expect(ran, status, out='', err=''):
    """Its exit status, and patterns of all that it wrote; None: anything."""
    check(ran.returncode == status and all(pattern is None or re.fullmatch(pattern, text, re.S)
                                           for pattern, text in ((out, ran.stdout), (err, ran.stderr))),
          f'{ran.args[1:]}: it ended with {ran.returncode}, not {status}, wrote {ran.stdout!r} and {ran.stderr!r}, not '
          f'{out!r} and {err!r}')
    return ran
