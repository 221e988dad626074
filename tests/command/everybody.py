"""gpushim stats, who, trim, set and collect as root, who sees the processes of all users, and as a user, who
sees his own.

    everybody.py GPUSHIM SHIM LIBCUDA
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import holder
from holder import GPUSHIM, LIBCUDA, MIB, PATIENT_S, SHIM, Holder, await_that, check, clean, end_with_faults

USERS = 54321, 54322  # nobody's


def rows(folder, *arguments, user=None):
    run = subprocess.run([GPUSHIM, *arguments, '--json'], env=clean(folder), capture_output=True,
                         text=True, timeout=PATIENT_S, check=False, user=user)
    return run.returncode, json.loads(run.stdout) if run.stdout else [], run.stderr


def pids(folder, *arguments, user=None):
    return {row['pid'] for row in rows(folder, *arguments, user=user)[1] if 'reserved_bytes' in row}


def main():
    if os.geteuid() != 0:
        print('only root can be several users')
        sys.exit(77)
    python = '/usr/bin/python3'  # this one may be root's alone
    if not os.access(python, os.X_OK):
        print(f'no {python}, which other users may run')
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix='gpushim-everybody-') as place:
        os.chmod(place, 0o755)
        # What is built here may lie where the other users cannot look.
        files = {name: shutil.copy(name, place) for name in (GPUSHIM, SHIM, LIBCUDA)}
        holder.SHIM, holder.LIBCUDA = files[SHIM], files[LIBCUDA]
        globals()['GPUSHIM'] = files[GPUSHIM]
        folder = pathlib.Path(place) / 'all'
        folder.mkdir()
        os.chmod(folder, 0o1777)
        holders = [Holder(folder, user=user, python=python) for user in (*USERS, None)]
        for one in holders:
            one.do(f'alloc {96 * MIB}')
        expected = {one.pid for one in holders}
        await_that(lambda: pids(folder, 'stats') == expected, 'root sees the processes of all users')
        seen = pids(folder, 'stats', user=USERS[0])
        check(seen == {holders[0].pid}, f'a user sees his own: {seen}, of {expected}')
        status, found, _ = rows(folder, 'who', str(holders[1].pid))
        check(status == 0 and [row['pid'] for row in found] == [holders[1].pid],
              f'root may ask who shares with one of them: {found}')
        holders[0].do('free 0')
        status, given, error = rows(folder, 'trim', str(holders[0].pid))
        check(status == 0 and sum(row['given_bytes'] for row in given) >= 64 * MIB,
              f'root may trim it: {given} {error}')
        status, given, error = rows(folder, 'trim', str(holders[0].pid), user=USERS[1])
        check(status == 1 and 'belongs to another user' in error, f'another user may not: {given} {error}')
        for arguments in (('set', str(holders[0].pid), 'pool.decay=3s'), ('collect', str(holders[0].pid))):
            status, told, error = rows(folder, *arguments)
            told = told[0] if isinstance(told, list) and told else told
            check(status == 0 and told['pid'] == holders[0].pid and told['silent'] is None,
                  f'root may {arguments}: {told} {error}')
            status, told, error = rows(folder, *arguments, user=USERS[1])
            check(status == 1 and not told and 'belongs to another user' in error,
                  f'another user may not: {told} {error}')
        status, told, _ = rows(folder, 'collect', 'all')
        check(status == 0 and {row['pid'] for row in told} == expected, f'root has all of them collect: {told}')
        owners = {name.stat().st_uid for name in folder.glob('gpushim-*')}
        check(owners == {*USERS, 0}, f'and nothing of root is in their folders: {owners}')
        for one in holders:
            one.end()
    end_with_faults()


main()
