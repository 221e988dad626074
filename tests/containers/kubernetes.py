"""The manifests of examples/containers against Kubernetes' own schemas, and what the admission policy makes of pods:
manifests.py, in an environment that has what it needs. That is made here of PyPI's packages, and removed.

usage: kubernetes.py FOLDER_OF_EXAMPLES
"""
import os
import subprocess
import sys
import tempfile

PACKAGES = ('kubernetes-validate==1.37.0', 'cel-python==0.5.0', 'PyYAML')


def made_at(folder):
    """Why it could not be made; None: it is there."""
    for words in ([sys.executable, '-m', 'venv', folder],
                  [f'{folder}/bin/python', '-m', 'pip', 'install', '-q', '--disable-pip-version-check', '--no-input',
                   '--only-binary=:all:', *PACKAGES]):
        ran = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900,
                             check=False)
        if ran.returncode:
            said = (ran.stdout + ran.stderr).strip().splitlines()
            return f'{" ".join(words[1:4])}: {said[-1] if said else ran.returncode}'
    return None


with tempfile.TemporaryDirectory(prefix='gpushim-kubernetes-', ignore_cleanup_errors=True) as temporary:
    why = made_at(temporary)
    if why:
        print(f'skipped: the schemas of Kubernetes cannot be had here: {why}')
        sys.exit(77)
    checks = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'manifests.py')
    ran = subprocess.run([f'{temporary}/bin/python', '-B', checks, sys.argv[1]], stdin=subprocess.DEVNULL, timeout=900,
                         check=False)
    sys.exit(ran.returncode)
