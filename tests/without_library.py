"""Runs each test of this build that is to run under the library with an LD_PRELOAD that leads nowhere,
of which the dynamic linker only warns. Each has to fail: else it would prove nothing of the library.

usage: without_library.py BUILD_FOLDER
"""
import json
import os
import subprocess
import sys

build = sys.argv[1]


def outcome(test):
    """How it ends without the library."""
    environment = dict(os.environ, **test['env'])
    environment['LD_PRELOAD'] = environment['LD_PRELOAD'].replace('/libgpushim', '/nowhere/libgpushim')
    try:
        return subprocess.run(test['cmd'], env=environment, cwd=test['workdir'] or build, timeout=60,
                              stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode
    except subprocess.TimeoutExpired:
        return 'still running'


listed = subprocess.run(['meson', 'introspect', '--tests', build], check=True, capture_output=True,
                        text=True).stdout
# Where the library is switched off, the driver alone is what is to be seen.
tests = [test for test in json.loads(listed) if '/libgpushim' in test['env'].get('LD_PRELOAD', '')
         and test['env'].get('GPUSHIM_ENABLE') != '0']
if len(tests) < 20:
    sys.exit(f'only {len(tests)} tests run under the library')
wrong = [f'{test["name"]}: {ended}' for test in tests
         if (ended := outcome(test)) in (0, 77, 'still running')]
print(f'{len(tests)} tests run under the library, {len(wrong)} of them pass without', *wrong, sep='\n')
sys.exit(1 if wrong else 0)
