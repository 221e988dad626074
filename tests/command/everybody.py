"""gpushim stats, who, trim and set: root sees the processes of all users, a user sees their own.

    everybody.py GPUSHIM SHIM LIBCUDA
"""
import json
import os
import pathlib
import re
import resource
import signal
import socket
import struct
import subprocess
import tempfile

import holder
from holder import (GPUSHIM, LIBCUDA, MIB, PATIENT_S, SHIM, Holder, await_that, check, clean, end_with_faults,
                    for_everybody)
from wire import listen

USERS = 54321, 54322  # nobody's


def rows(folder, *arguments, user=None):
    run = subprocess.run([GPUSHIM, *arguments, '--json'], env=clean(folder), capture_output=True,
                         text=True, timeout=PATIENT_S, check=False, user=user)
    told = json.loads(run.stdout or '{"rows": []}')
    return run.returncode, told.get('rows', told), run.stderr


def pids(folder, *arguments, user=None):
    return {row['pid'] for row in rows(folder, *arguments, user=user)[1] if 'reserved_bytes' in row}


def as_user(user, what):
    """Runs it in a child that is that user alone, until it is killed; what it writes into the pipe is returned."""
    ends = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            what(ends[1])
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(ends[1])
    return child, ends[0]


def end_child(child):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def prove_groups(folder):
    """Root comes to a user's socket as that user, with none of root's groups."""
    own = folder / f'gpushim-{USERS[0]}'

    def tell(pipe):
        listener = listen(str(own / ('0' * 31 + '1')))
        os.write(pipe, b'x')
        connection, _ = listener.accept()
        _, uid, gid = struct.unpack('3i', connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        groups = connection.getsockopt(socket.SOL_SOCKET, 59, 400)  # SO_PEERGROUPS
        os.write(pipe, f'{uid} {gid} {len(groups) // 4}'.encode())

    child, pipe = as_user(USERS[0], tell)
    os.read(pipe, 1)
    os.setgroups([0, 4])
    rows(folder, 'ls')
    told = os.read(pipe, 100).decode()
    os.setgroups([0])
    user, group, others = map(int, told.split())
    check(user == USERS[0] and group != 0 and others == 0, f'user, group, number of groups of who asks: {told}')
    end_child(child)
    os.close(pipe)
    os.unlink(own / ('0' * 31 + '1'))


def prove_silence(folder, expected):
    """A user's sockets that never answer, more than one user may have, cost that user alone. Each command ends;
    what it tells of others is whole."""
    own, number = folder / f'gpushim-{USERS[0]}', 600

    def be_silent(pipe):
        resource.setrlimit(resource.RLIMIT_NOFILE, (number + 64, number + 64))
        listeners = [listen(str(own / f'{i:032x}')) for i in range(number)]
        os.write(pipe, b'x' * len(listeners[:1]))
        signal.pause()

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number + 100), hard))
    child, pipe = as_user(USERS[0], be_silent)
    os.read(pipe, 1)
    status, found, error = rows(folder, 'stats')
    check(status == 0 and expected <= {row['pid'] for row in found if 'reserved_bytes' in row}, f'stats: {error}')
    check(sum(row['silent'] == 'does not answer' for row in found) > 400, f'most of them are listed: {error}')
    check(f'user {USERS[0]}: ' in error and ' more sockets are not asked: one user has 512' in error, error)
    export = subprocess.run([GPUSHIM, 'export', '--prometheus'], env=clean(folder), capture_output=True, text=True,
                            timeout=PATIENT_S, check=False)
    check(export.returncode == 0 and bool(export.stdout), export.stderr)
    told = set(re.findall(r'^gpushim_reserved_bytes\{.*pid="(\d+)"', export.stdout, re.M))
    check({str(pid) for pid in expected} <= told, f'export: {told}, not {expected}')
    for arguments in (('ls',), ('trim', 'all')):
        status, found, error = rows(folder, *arguments)
        check(status == 1 and 'more sockets are not asked' in error, f'{arguments} is not whole: {status} {error}')
    check(any(row['pid'] in expected and row['silent'] is None for row in found), f'others give back: {found}')
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    end_child(child)
    os.close(pipe)
    for i in range(number):
        (own / f'{i:032x}').unlink()


def prove_nobody(folder):
    """Who has no processes is told that there are none."""
    nobody = 54399
    for env in (clean(folder), {name: value for name, value in clean(folder).items() if name != 'GPUSHIM_SHARE_DIR'}):
        for command in ('who', 'ls'):
            run = subprocess.run([GPUSHIM, command], env=env, capture_output=True, text=True, timeout=PATIENT_S,
                                 check=False, user=nobody, group=nobody)
            check((run.returncode, run.stdout, run.stderr) == (0, '', ''), f'{command} of nobody: {run}')
    with tempfile.TemporaryDirectory() as other:
        run = subprocess.run([GPUSHIM, 'who'], env=clean(other + '/none'), capture_output=True, text=True, check=False)
        check(run.returncode == 1 and '/none' in run.stderr, f'a folder that was named and is not there: {run}')


def main():
    if os.geteuid() != 0:
        end_with_faults('only root can be several users')
    python = '/usr/bin/python3'  # this one may be root's alone
    if not os.access(python, os.X_OK):
        end_with_faults(f'no {python}, which other users may run')
    with tempfile.TemporaryDirectory(prefix='gpushim-everybody-') as place:
        os.chmod(place, 0o755)
        files = {name: for_everybody(place, name) for name in (GPUSHIM, SHIM, LIBCUDA)}
        holder.SHIM, holder.LIBCUDA = files[SHIM], files[LIBCUDA]
        globals()['GPUSHIM'] = files[GPUSHIM]
        folder = pathlib.Path(place) / 'all'
        folder.mkdir()
        os.chmod(folder, 0o1777)
        holders = [Holder(folder, user=user, python=python, GPUSHIM_POOL_DECAY='60 min') for user in (*USERS, None)]
        for one in holders:
            one.do(f'alloc {96 * MIB}')
        expected = {one.pid for one in holders}
        await_that(lambda: pids(folder, 'stats') == expected, 'root sees the processes of all users')
        seen = pids(folder, 'stats', user=USERS[0])
        check(seen == {holders[0].pid}, f'a user sees their own: {seen}, of {expected}')
        status, found, _ = rows(folder, 'who', str(holders[1].pid))
        check(status == 0 and [row['pid'] for row in found] == [holders[1].pid],
              f'root may ask who shares with one of them: {found}')
        holders[0].do('free 0')
        status, given, error = rows(folder, 'trim', str(holders[0].pid))
        check(status == 0 and sum(row['given_bytes'] for row in given) >= 64 * MIB,
              f'root may trim it: {given} {error}')
        status, given, error = rows(folder, 'trim', str(holders[0].pid), user=USERS[1])
        check(status == 1 and 'belongs to another user' in error, f'another user may not: {given} {error}')
        arguments = ('set', str(holders[0].pid), 'pool.decay=3s')
        status, told, error = rows(folder, *arguments)
        check(status == 0 and told[0]['pid'] == holders[0].pid and told[0]['silent'] is None,
              f'root may {arguments}: {told} {error}')
        status, told, error = rows(folder, *arguments, user=USERS[1])
        check(status == 1 and 'belongs to another user' in error and told[0]['silent'] in error, f'another user may not: {told} {error}')
        owners = {name.stat().st_uid for name in folder.glob('gpushim-*')}
        check(owners == {*USERS, 0}, f'and nothing of root is in their folders: {owners}')
        holders[1].user = USERS[1]
        prove_nobody(folder)
        prove_groups(folder)
        holders[1].do(f'alloc {96 * MIB}')
        holders[1].do('free 1')
        prove_silence(folder, expected - {holders[0].pid})
        for one in holders:
            one.end()
    end_with_faults()


main()
