"""python -m gpushim kernelspec: a Jupyter kernel whose programs have the library.

Jupyter starts such a kernel through 'gpushim run', so the library is in it from its start. A kernel that runs is
left as it is: nothing is put into it, and it is not started again.
"""
from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
from typing import List

import gpushim

OURS = 'gpushim'  # in a kernel's metadata: this program made it


class Refused(Exception):
    """Why nothing was done."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog='gpushim kernelspec',
        description="Installs a Jupyter kernel of this Python that is started through 'gpushim "
        "run'. Without an option for the place: where this environment's Jupyter looks, or for this user.")
    place = made.add_mutually_exclusive_group()
    place.add_argument('--user', action='store_true', help="for this user's Jupyter")
    place.add_argument('--sys-prefix', action='store_true', help=f'for the Jupyter of this environment ({sys.prefix})')
    place.add_argument('--prefix', metavar='FOLDER', help='for the Jupyter that looks in FOLDER/share/jupyter')
    made.add_argument('--name', default='gpushim', help='what jupyter --kernel calls it (%(default)s)')
    made.add_argument('--display-name', default='Python 3 with libgpushim', help='what notebooks call it (%(default)s)')
    made.add_argument('-o', metavar='SECTION.KEY=VALUE', action='append', default=[], dest='options',
                      help="an option of the library, as for 'gpushim run'; may be given again")
    made.add_argument('--remove', action='store_true', help='removes it instead')
    return made


def user_folder() -> str:
    """Where Jupyter looks for what a user has."""
    environment = os.environ
    data = environment.get('XDG_DATA_HOME') or os.path.join(os.path.expanduser('~'), '.local', 'share')
    return environment.get('JUPYTER_DATA_DIR') or os.path.join(data, 'jupyter')


def folder_of(request: argparse.Namespace) -> str:
    if not re.fullmatch(r'[A-Za-z0-9._-]+', request.name) or request.name.strip('.') == '':
        raise Refused("--name: Jupyter allows letters, digits, '.', '_' and '-' in a kernel's name, not "
                      f"{request.name!r}")
    prefix = request.prefix
    if request.sys_prefix or (not request.user and not prefix and sys.prefix != sys.base_prefix):
        prefix = sys.prefix
    data = os.path.join(os.path.abspath(prefix), 'share', 'jupyter') if prefix else user_folder()
    return os.path.join(data, 'kernels', request.name.lower())


def is_ours(path: str) -> bool:
    """False where nothing is there; Refused where a kernel is there that this program did not make."""
    try:
        with open(path, encoding='utf-8') as file:
            found = json.load(file)
    except FileNotFoundError:
        return False
    except ValueError:
        found = None
    if not isinstance(found, dict) or OURS not in (found.get('metadata') or {}):
        raise Refused(f'{path} is a kernel that this command did not make; take another --name, or remove it')
    return True


def check_options(options: List[str]) -> List[str]:
    """The command itself says what is wrong with one."""
    words = [word for option in options for word in ('-o', option)]
    if subprocess.run([gpushim.command(), 'run', '--print', *words], stdout=subprocess.DEVNULL, check=False).returncode:
        raise Refused('no kernel is made')
    return words


def install(request: argparse.Namespace, folder: str, path: str) -> None:
    spec = {
        'argv': [gpushim.command(), 'run', *check_options(request.options), '--', sys.executable, '-m',
                 'ipykernel_launcher', '-f', '{connection_file}'],
        'display_name': request.display_name,
        'language': 'python',
        'metadata': {'debugger': True, OURS: gpushim.version()},
    }
    is_ours(path)
    os.makedirs(folder, exist_ok=True)
    made = f'{path}.{os.getpid()}'
    with open(made, 'w', encoding='utf-8') as file:
        json.dump(spec, file, indent=1)
        file.write('\n')
    os.replace(made, path)
    print(f'{path}: jupyter console --kernel {request.name.lower()}, or "{request.display_name}" in a notebook\'s list')
    if not importlib.util.find_spec('ipykernel_launcher'):
        print(f"gpushim: warning: this Python has no ipykernel, which the kernel needs: '{sys.executable} -m pip "
              "install "
              "ipykernel'", file=sys.stderr)


def remove(folder: str, path: str) -> None:
    if not is_ours(path):
        raise Refused(f'there is no kernel {path}; --user, --sys-prefix or --prefix and --name say which one')
    os.remove(path)
    try:
        os.rmdir(folder)
    except OSError:
        print(f'gpushim: warning: {folder} has other files, which stay', file=sys.stderr)
    print(f'{path}: removed; kernels that run go on')


def main(arguments: List[str]) -> int:
    request = parser().parse_args(arguments)
    try:
        folder = folder_of(request)
        path = os.path.join(folder, 'kernel.json')
        if request.remove:
            remove(folder, path)
        else:
            install(request, folder, path)
    except Refused as refused:
        print(f'gpushim: {refused}', file=sys.stderr)
        return 1
    except OSError as error:
        print(f'gpushim: {error.filename}: {error.strerror}; --user or --prefix names another place', file=sys.stderr)
        return 1
    return 0
