"""The commands as root, who sees the processes of all users and may order them, and as a user, who sees and orders
their own.

    everybody.py GPUSHIM SHIM LIBCUDA
"""
import ctypes
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
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a test that fails leaves none behind
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


def said(folder, *arguments, user=None):
    """What people are told."""
    return subprocess.run([GPUSHIM, *arguments], env=clean(folder), capture_output=True, text=True, timeout=PATIENT_S,
                          check=False, user=user, group=user, extra_groups=() if user else None)


def may_trace():
    """Whether root has the right to look at what others have loaded: in a container it may have not."""
    status = pathlib.Path('/proc/self/status').read_text(encoding='ascii')
    return bool(int(re.search('^CapEff:(.*)$', status, re.M)[1], 16) >> 19 & 1)  # CAP_SYS_PTRACE


def prove_looks(folder, one, other):
    """Root is told of a user's process by each command that asks; another user is told nothing but that it is there."""
    pid = str(one.pid)
    for command in (('top',), ('top', pid), ('stats', pid)):
        check(re.search(rf'^ *{pid} .* 96\.0 MiB ', said(folder, *command).stdout, re.M), f'root, {command}')
        check(not re.search(rf'^ *{pid} .* 96\.0 MiB ', said(folder, *command, user=other).stdout, re.M),
              f'another user, {command}')
    live = f'gpushim_memory_bytes{{.*pid="{pid}".*state="live"}} {96 * MIB}\n'
    check(re.search(live, said(folder, 'export', '--prometheus').stdout), 'root, export')
    check(not re.search(live, said(folder, 'export', '--prometheus', user=other).stdout), 'another user, export')
    ran = said(folder, 'doctor', pid)
    looked = 'ok' if may_trace() else 'warn'
    check(ran.returncode == 0 and re.search(f'^{looked} +libraries ', ran.stdout, re.M), f'root, doctor: {ran}')
    ran = said(folder, 'doctor', pid, user=other)
    check(not re.search('^ok +libraries ', ran.stdout, re.M) and ran.stdout, f'another user, doctor: {ran}')


def prove_orders(folder, one, other):
    """Root may give each order; another user is refused, and it goes on as it was."""
    pid = str(one.pid)
    one.do('free 0')
    for arguments, right in ((('trim', pid), lambda row: row['given_bytes'] >= 64 * MIB),
                             (('set', pid, 'pool.decay=3s'), lambda row: row['silent'] is None),
                             (('sleep', pid), lambda row: row['state'] == 'asleep'),
                             (('wake', pid), lambda row: row['state'] == 'awake')):
        status, told, error = rows(folder, *arguments, user=other)
        check(status == 1 and 'belongs to another user' in error and not any(row.get('state') for row in told),
              f'another user may not {arguments}: {status} {told} {error}')
        status, told, error = rows(folder, *arguments)
        check(status == 0 and [row['pid'] for row in told] == [one.pid] and right(told[0]),
              f'root may {arguments}: {told} {error}')
    one.do(f'alloc {MIB}')


def prove_recordings(folder, one):
    """What a user records is theirs: another cannot read it, root can, and what root makes of it is root's alone."""
    place = folder / 'recorded'
    place.mkdir()
    os.chown(place, one, one)
    recorded = subprocess.run([GPUSHIM, 'record', '--output', str(place / 'trace'), '--', '/usr/bin/python3', '-c',
                               holder.HOLDER], input=f'alloc {MIB}\n', user=one, group=one, extra_groups=(), text=True,
                              capture_output=True, timeout=PATIENT_S, check=False,
                              env={**clean(folder), 'LD_LIBRARY_PATH': os.path.dirname(holder.LIBCUDA)})
    check(recorded.returncode == 0, f'it records: {recorded}')
    ran = said(folder, 'report', str(place / 'trace'), user=USERS[1])
    check(ran.returncode == 1 and 'Permission denied' in ran.stderr, f'another user reads it: {ran}')
    ran = said(folder, 'report', str(place / 'trace'), '--html', str(place / 'page.html'))
    check(ran.returncode == 0 and (place / 'page.html').stat().st_mode & 0o777 == 0o600, f'root: {ran}')


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
        for command, said in (('who', 'no process that .* shares GPU memory.*'),
                              ('ls', 'no name that .* is published')):
            run = subprocess.run([GPUSHIM, command], env=env, capture_output=True, text=True, timeout=PATIENT_S,
                                 check=False, user=nobody, group=nobody)
            check(run.returncode == 0 and re.fullmatch(said + '\n', run.stdout) and not run.stderr,
                  f'{command} of nobody: {run}')
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as other:
        run = subprocess.run([GPUSHIM, 'who'], env=clean(other + '/none'), capture_output=True, text=True, check=False)
        check(run.returncode == 1 and '/none' in run.stderr, f'a folder that was named and is not there: {run}')


def main():
    if os.geteuid() != 0:
        end_with_faults('only root can be several users')
    python = '/usr/bin/python3'  # this one may be root's alone
    if not os.access(python, os.X_OK):
        end_with_faults(f'no {python}, which other users may run')
    with tempfile.TemporaryDirectory(prefix='gpushim-everybody-', ignore_cleanup_errors=True) as place:
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
        prove_looks(folder, holders[0], USERS[1])
        prove_orders(folder, holders[0], USERS[1])
        prove_recordings(folder, USERS[0])
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
