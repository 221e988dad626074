"""Two containers share GPU memory through one mounted folder (containers.py). The broker runs on the host, in a third
container, or is started by the process that shares, inside its own. Exit status 77 where such containers cannot be
made here.

    sharing.py PUPPET SHIM BROKER bwrap|runc|podman LIBCUDA
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

os.umask(0o022)  # users of containers look at what is made here
sys.dont_write_bytecode = True
from containers import HERE, OTHER, TIMEOUT, Bwrap, Case, Podman, Runc, Running, Skip, make_root, try_out
from pair import (EBUSY, ENOENT, SIZE, STAY, WAIT_NS, Inside, attached, both, comes_back, is_kept, mapped, share,
                  share_and_end, stamped)
from puppet import BROKER, PUPPET, SHIM, STAMP, await_that, check, main, skip

SOON_S = 30  # debug.timeout: who has ended is not waited for
BROKERED = {'GPUSHIM_SHARE_STRATEGY': 'broker', 'GPUSHIM_SHARE_KEEP': '60 s'}
INSTALLED = {**BROKERED, 'GPUSHIM_SHARE_BROKER': 'installed'}
ON_DEMAND = {**BROKERED, 'GPUSHIM_SHARE_BROKER': '/bin/gpushim-broker'}


# ---- Two containers ----------------------------------------------------------------------------------------------


def prove_kinds(runtime, folder):
    with Case(runtime, folder, 'same user') as case:
        share_and_end(*both(case))
    print('the same user in two containers: shared')
    with Case(runtime, folder, 'own') as case:
        giver, taker = both(case)
        block = mapped(giver)
        address = share(giver, taker, block)
        giver.cuMemUnmap(block, SIZE)
        comes_back(giver)
        check(taker.word(address + 4) == STAMP, 'it is not kept')
    print('what a program maps itself: shared, and kept when that is unmapped')
    with Case(runtime, folder, 'external') as case:
        giver, taker = both(case)
        block = attached(giver)
        share(giver, taker, block)
        check(giver.result('gpushim_detach', block, WAIT_NS) == EBUSY, 'it ended while it is open')
        taker.running.kill()
        await_that(lambda: giver.result('gpushim_detach', block, 0) == ENOENT, 'it ends')
    print('what it attaches: shared, and detached when the container that has it open is killed')


def freed_while_open(giver, taker):
    block = giver.alloc(SIZE)
    share(giver, taker, block)
    giver.cuMemFree(block)
    is_kept(giver)


def prove_kills(runtime, folder):
    with Case(runtime, folder, 'killed') as case:
        giver, taker = both(case)
        freed_while_open(giver, taker)
        taker.running.kill()
        comes_back(giver)
        giver.end()
        case.make_older()
        share_and_end(Inside(case, 'next giver'), Inside(case, 'next taker'))
    print('a container that has it open is killed: the memory stayed until then and came back')
    print('its socket, unseen for more than an hour, is taken away by the next')
    for name, settings in (('embedded', {}), ('broker', ON_DEMAND)):
        with Case(runtime, folder, f'killed inside, {name}') as case:
            giver, taker = Inside(case, 'giver',
                                  settings=settings), Inside(case, 'taker', settings=settings, behind=' & ' + STAY)
            freed_while_open(giver, taker)
            taker.tell('raise', signal.SIGKILL)
            comes_back(giver)
            check(taker.running.process.poll() is None, 'the container of the killed process ended')
        with Case(runtime, folder, f'first process killed, {name}') as case:
            giver, taker = Inside(case, 'giver',
                                  settings=settings), Inside(case, 'taker', settings=settings, behind=' & ' + STAY)
            freed_while_open(giver, taker)
            taker.running.kill()
            comes_back(giver)
        print(f'{name}: killed inside its container, or with its first process: memory came back')


def prove_users(runtime, folder):
    if os.geteuid() != 0:
        print('another user: not tried, it takes root to start one')
        return
    with Case(runtime, folder, 'other user') as case:
        giver, taker = Inside(case, 'giver'), Inside(case, 'taker', user=OTHER)
        block = giver.alloc(SIZE)
        check(taker.try_open(stamped(giver, block))[0] != 0, "another user's memory was opened")
        giver.cuMemFree(block)
        comes_back(giver)
        giver.end()
        taker.end()
        said = case.log('giver') + case.log('taker')
        check("another process's memory cannot be opened" in said or 'was refused' in said, 'the log does not say why')
    print('another user: refused, and the log says why')
    uids = {'GPUSHIM_SHARE_UIDS': f'{HERE} {runtime.others_look}'}
    with Case(runtime, folder, 'listed user') as case:
        share_and_end(Inside(case, 'giver', settings=uids), Inside(case, 'taker', user=OTHER, settings=uids))
    print(f'another user whom share.uids names ({runtime.others_look} as seen inside): shared')


# ---- A broker ----------------------------------------------------------------------------------------------------


def on_the_host(case, *arguments):
    """How the broker is started there, by the user who is user 0 inside; and its environment."""
    outside = str(case.runtime.outside(HERE))
    command = [BROKER, *arguments]
    if os.geteuid() == 0 and outside != '0':
        command = ['setpriv', '--reuid', outside, '--regid', outside, '--clear-groups'] + command
    return command, {'PATH': os.environ['PATH'], 'GPUSHIM_CONFIG': '', 'GPUSHIM_LOG': 'debug',
                     'GPUSHIM_SHARE_DIR': os.path.join(case.shared, 'run'), **BROKERED}


def start_on_the_host(case):
    command, env = on_the_host(case)
    case.logs['broker'] = os.path.join(case.shared, 'broker.log')
    with open(case.logs['broker'], 'wb') as output:
        case.running.append(Running(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output,
                                                     stderr=subprocess.STDOUT)))


def has_a_block(case):
    """Whether the broker, wherever it runs, has what the giver shared."""
    command, env = on_the_host(case, 'ps')
    said = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=TIMEOUT, check=False).stdout
    return re.search(r'from pid .*: 1 blocks left here', said)


def left_by(case, giver):
    """The handle of what it leaves with the broker."""
    handle = stamped(giver, giver.alloc(SIZE))
    await_that(lambda: has_a_block(case), "the giver's block is left with the broker")
    return handle


def listens(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        return caller.connect_ex(path) == 0


def prove_broker(runtime, folder):
    contained = lambda case: case.start('broker', HERE, BROKERED, ['/bin/gpushim-broker'])
    for name, start, is_killed in (('on the host', start_on_the_host, False),
                                   ('on the host, giver killed', start_on_the_host, True),
                                   ('in a container', contained, True)):
        with Case(runtime, folder, 'broker ' + name) as case:
            start(case)
            await_that(lambda case=case: os.path.exists(case.broker_socket()), "the broker's start")
            giver, taker = both(case, settings=INSTALLED)
            handle = left_by(case, giver)
            if is_killed:
                giver.running.kill()
            else:
                giver.end()
            check(taker.opens(handle), 'it cannot be opened')
            taker.end()
        print(f'a broker {name}: serves what a container shared that has ended')


def prove_a_broker_within(runtime, folder):
    """The giver starts the broker in its own container, and ends; then all of that container is killed, the broker in
    it too."""
    with Case(runtime, folder, 'broker on demand') as case:
        giver, taker = Inside(case, 'giver', settings=ON_DEMAND,
                              behind='; ' + STAY), Inside(case, 'taker', settings=ON_DEMAND)
        handle = left_by(case, giver)
        giver.leave()
        check(taker.opens(handle), 'it cannot be opened')
        giver.running.kill()
        await_that(lambda: not listens(case.broker_socket()), 'nobody listens any more')
        late, began = Inside(case, 'late', settings=ON_DEMAND), time.monotonic()
        check(late.try_open(handle)[0] != 0, 'it was opened, with no broker there')
        check(time.monotonic() - began < SOON_S, 'who has ended is waited for')
        late.end()
        check('has ended, or uses another directory' in case.log('late'), 'who comes too late is not told why')
    print('a broker that a process starts in its container: serves until that is killed')


def prove(kind, libcuda):
    if not shutil.which(kind.name):
        skip(f'no {kind.name} here')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix='gpushim-containers-', dir='/tmp', ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        try:
            make_root(f'{folder}/root', PUPPET, SHIM, libcuda, BROKER)
            runtime = kind(f'{folder}/root', folder)
            try_out(runtime, folder)
        except Skip as why:
            skip(why)
        for part in prove_kinds, prove_kills, prove_users, prove_broker, prove_a_broker_within:
            part(runtime, folder)


bwrap, runc, podman = (lambda libcuda, kind=kind: prove(kind, libcuda) for kind in (Bwrap, Runc, Podman))
if __name__ == '__main__':
    main(globals())
