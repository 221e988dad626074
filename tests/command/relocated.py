"""An installation that lies elsewhere than it was built for: the library starts the broker of its own tree.

    relocated.py GPUSHIM SHIM LIBCUDA LIBDIR BINDIR
"""
import contextlib
import os
import shutil
import sys
import tempfile

import holder
from holder import GPUSHIM, MIB, SHIM, Holder, await_that, check, end_with_faults

LIBDIR, BINDIR = sys.argv[4:6]


def brokers(place):
    """Those that run a program of that folder."""
    for name in os.listdir('/proc'):
        try:
            if name.isdigit() and os.readlink(f'/proc/{name}/exe').startswith(place):
                yield int(name)
        except OSError:
            pass  # it has ended, or is another user's


def prove(place, library, program, others=()):
    """`library` starts `program`, whatever lies at the places `others`, which come later."""
    for path, source in ((library, SHIM), (program, GPUSHIM), *((path, GPUSHIM) for path in others)):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copy(source, path)
    folder = os.path.join(place, 'share')
    os.mkdir(folder, 0o700)
    holder.SHIM = library
    one = Holder(folder, GPUSHIM_SHARE_STRATEGY='broker')
    one.do(f'alloc {MIB}')
    one.do('share 0')
    await_that(lambda: any(name.startswith('broker.') for name in os.listdir(folder)), f'{program} is started')
    found = [os.readlink(f'/proc/{pid}/exe') for pid in brokers(place)]
    check(found == [program], f'{found}, not {program}')
    one.end()
    for pid in brokers(place):
        with contextlib.suppress(ProcessLookupError):  # it ends by itself
            os.kill(pid, 15)
    await_that(lambda: not list(brokers(place)), f'{program} ends')  # before its folder goes


def main():
    for below in (True, False):
        with tempfile.TemporaryDirectory(prefix='gpushim-relocated-', ignore_cleanup_errors=True) as place:
            place = os.path.realpath(place)
            library = os.path.join(place, LIBDIR, 'libgpushim.so')
            program, beside = os.path.join(place, BINDIR,
                                           'gpushim-broker'), os.path.join(place, LIBDIR, 'gpushim-broker')
            if below:
                prove(place, library, program, [beside])
            else:
                prove(place, library, beside)
    end_with_faults()


main()
