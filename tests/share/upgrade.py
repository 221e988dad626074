"""This version beside a build whose protocol is a higher one, as while a machine is upgraded: nothing is shared between
the two, both go on, and each side says which versions there are and what to do.

    upgrade.py PUPPET SHIM BROKER HOW NEWER_SHIM NEWER_GPUSHIM GPUSHIM
"""
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from puppet import BROKER, Puppet, around, await_that, check, main, set_for_all, start, times_logged

ROOT = pathlib.Path(__file__).parents[2]
HERE = int(re.search(r'#define GS_WIRE_VERSION (\d+)', (ROOT / 'core/share/wire.h').read_text(encoding='utf-8'))[1])
TO_COME = int(re.search(r'#define GS_WIRE_VERSION (\d+)',
                        (ROOT / 'tests/share/newer_wire.h').read_text(encoding='utf-8'))[1])


def words(there, here):
    return f'has another version of this library (protocol {there}, here {here})'


def command(gpushim, *arguments):
    ran = subprocess.run([gpushim, *arguments], env=around.environment({'LD_PRELOAD': None}), capture_output=True,
                         text=True, timeout=60, check=False)
    return ran.stdout + ran.stderr


def handles(newer, _, gpushim):
    """Who opens is refused, whichever is the newer one, and says why; handles of one's own version open as before."""
    older = [Puppet(), Puppet()]
    later = [Puppet(LD_PRELOAD=newer), Puppet(LD_PRELOAD=newer)]
    old, new = (one[0].handle(one[0].block()) for one in (older, later))
    check(not later[1].opens(old), 'a newer one has opened a handle of an older one')
    check(not older[1].opens(new), 'an older one has opened a handle of a newer one')
    for there, here in ((HERE, TO_COME), (TO_COME, HERE)):
        check(times_logged(words(there, here) + '; use the same for both') == 1,
              f'protocol {here} says why, and what to do')
    check(older[1].opens(old) and later[1].opens(new), 'handles of one version open')
    check(older[0].process.poll() is None and later[0].process.poll() is None, 'both run')
    said = command(gpushim, 'stats')
    check(f'is of another version of this library (protocol {TO_COME}, here {HERE}); its own gpushim lists it' in said,
          said)


def brokers(newer, newer_gpushim, _):
    """The broker of one, and processes of the other: memory is shared by who allocated it, and the log says so."""
    set_for_all(GPUSHIM_SHARE_STRATEGY='broker')

    def is_there():
        return any(name.startswith('broker') for name in os.listdir(around.folder))
    for broker, shim, there, here in ((BROKER, newer, HERE, TO_COME), (newer_gpushim, None, TO_COME, HERE)):
        process = start([broker, 'broker'] if broker != BROKER else [broker], around.environment({'LD_PRELOAD': None}))
        await_that(is_there, 'the broker listens')
        one, other = (Puppet(**({'LD_PRELOAD': shim} if shim else {})) for _ in range(2))
        handle = one.handle(one.block())
        await_that(lambda here=here, there=there: times_logged('the broker ' + words(there, here)), 'it says why')
        check('; use the same for both' in around.said(), 'it says what to do')
        check(other.opens(handle), 'it is shared by its own process')
        one.end()
        other.end()
        Puppet.all.remove(one)
        Puppet.all.remove(other)
        process.terminate()
        process.wait()
        await_that(lambda: not is_there(), 'the broker ends')


main(globals())
