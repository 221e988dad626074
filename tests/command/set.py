"""gpushim set: what changes in a process that runs, who may change it, and what is said where it cannot be.

    set.py GPUSHIM SHIM LIBCUDA
"""
import json
import os
import pathlib
import struct

from holder import GPUSHIM, MIB, Holder, await_that, check, for_everybody, gpushim, prove_each, refuses, stats_of
import wire

NOBODY = 65533


def start(folder, **settings):
    """One that can be asked, with 128 MiB."""
    holder = Holder(folder, **settings)
    holder.do(f'alloc {96 * MIB}')
    holder.do(f'alloc {32 * MIB}')
    await_that(lambda: 'live_bytes' in stats_of(folder, holder.pid), 'a process that holds enough can be asked')
    return holder


def changes(folder, holder, option, before, after, value=None):
    run = gpushim(folder, 'set', str(holder.pid), f'{option}={value or after}')
    name = option.removeprefix('general.')
    check(run.returncode == 0 and not run.stderr and
          run.stdout == f'pid {holder.pid} ({stats_of(folder, holder.pid).get("name")}): {name} {before} -> {after}\n',
          f'{option} {before} -> {after}: {run}')


def prove_every_option(folder, holder):
    """What config calls so can be set, to its smallest value and back; nothing else can."""
    for option in json.loads(gpushim(folder, 'config', '--json').stdout)['options']:
        name, value = option['name'], option['default']
        if not option['can_be_set']:
            refuses(folder, 2, ('set', str(holder.pid), f'{name}={value}'), f'{name} cannot change')
            continue
        least = 'off' if option['type'] == 'enum' else '0'
        changes(folder, holder, name, option['value'], least)
        run = gpushim(folder, 'set', str(holder.pid), f'{name}={value}', '--json')
        told = json.loads(run.stdout)['rows'][0]
        check(run.returncode == 0 and (told['pid'], told['option'], told['before'], told['after'], told['silent']) ==
              (holder.pid, name, least, value, None), f'{name} back to {value}: {run}')
        for word in option['allowed'].replace(' or ', ', ').split(', ') if option['type'] == 'enum' else ():
            changes(folder, holder, name, value, word)
            changes(folder, holder, name, word, value)
    changes(folder, holder, 'general.log', 'warning', 'warning')
    changes(folder, holder, 'pool.decay', '2 s', '90 s', ' 90000ms')
    changes(folder, holder, 'pool.cache_limit', 'unlimited', '7 %')
    changes(folder, holder, 'pool.cache_limit', '7 %', '64 MiB')
    changes(folder, holder, 'pool.cache_limit', '64 MiB', '100 %', '100%')
    run = gpushim(folder, 'set', str(holder.pid), 'pool.cache_share=0', '--json')
    check(run.returncode == 0 and 'pool.cache_share is called pool.cache_limit now' in run.stderr and
          json.loads(run.stdout)['rows'][0]['after'] == 'unlimited', f'an old name is understood, and says so: {run}')


def prove_decay(folder):
    """From never to soon, and what a limit allows."""
    for first, option in (('0', 'pool.decay=10ms'), ('60 min', 'pool.decay=10ms'), ('60 min', 'pool.cache_limit=4M'),
                          ('60 min', 'pool.cache_limit=1 %'), ('60 min', 'pool.cache_share=1'),
                          ('0', 'pool.cache_limit=0')):
        holder = start(folder, GPUSHIM_POOL_DECAY=first, SOFTCUDA_MACHINE=os.path.join(folder, 'other'))
        holder.do(f'alloc {256 * MIB}')
        holder.do('free 2')
        await_that(lambda: stats_of(folder, holder.pid).get('cached_bytes', 0) >= 256 * MIB, 'what is free is kept')
        check(gpushim(folder, 'set', str(holder.pid), option).returncode == 0, option)
        await_that(lambda: stats_of(folder, holder.pid).get('cached_bytes', 0) < 64 * MIB,
                   f'what is kept after {first} goes with {option}: {stats_of(folder, holder.pid)}')
        check(stats_of(folder, holder.pid).get('live_bytes') == 128 * MIB, 'and what lives stays')
        holder.end()


def prove_log(folder):
    log = pathlib.Path(folder, 'log')
    holder = start(folder, GPUSHIM_LOG_TARGET=str(log))
    check(': info: ' not in log.read_text(), 'no line of a level that is not wanted')
    changes(folder, holder, 'log', 'warning', 'info')
    changes(folder, holder, 'pool.decay', '2 s', '3 s')
    await_that(lambda: 'info: pool.decay is 3000000000 now, and was 2000000000, as process ' in log.read_text(),
               'from then on there are such lines')
    holder.end()


def prove_wrong(folder, holder):
    pid = str(holder.pid)
    refuses(folder, 2, ('set', pid, 'pool.deacy=1s'), 'no option has the name', 'did you mean pool.decay')
    refuses(folder, 2, ('set', pid, 'pool.decay=61min'), 'is too large', 'from 0 to 60 min')
    refuses(folder, 2, ('set', pid, 'pool.decay=soon'), 'is not a time')
    refuses(folder, 2, ('set', pid, 'log=loud'), 'off, error, warning, info or debug')
    refuses(folder, 2, ('set', pid, 'pool.decay'), 'has no value')
    little, apart = Holder(folder), Holder(folder, library=False)
    little.do(f'alloc {MIB}')
    apart.do(f'alloc {MIB}')
    refuses(folder, 1, ('set', str(little.pid), 'log=info'), 'holds less than 64 MiB')
    refuses(folder, 1, ('set', str(apart.pid), 'log=info'), 'has not the library')
    little.end()
    refuses(folder, 1, ('set', str(little.pid), 'log=info'), 'is not there')
    apart.end()
    holder.stop()
    refuses(folder, 1, ('set', pid, 'log=info'), 'does not answer')
    holder.process.send_signal(18)  # SIGCONT


def prove_hostile(folder, holder):
    """By hand: what makes no sense is refused in words or hung up on, and changes nothing."""
    [path] = wire.sockets(folder)
    for name, value, outcome in ((b'no.such', 1, 1), (b'', 1, 1), (b'pool.decay\0x', 1 << 63, 2),
                                 (b'log', 5, 2), (b'pool.cache_limit', (1 << 63) + 101, 2)):
        answers = wire.say(path, wire.order(wire.SET, value, name))
        check(answers == [(wire.DONE, wire.done(outcome=outcome)[16:])], f'{name} gets {outcome}: {answers}')
    for text in (wire.order(wire.SET, 1, b'x' * 256), wire.order(5), wire.order(wire.SLEEP, verb=99),
                 wire.message(wire.ORDER, b'x'), wire.done(), b'garbage', wire.message(99)):
        check(wire.is_refused(wire.say(path, text), wire.OUT_OF_PLACE), f'{text} is refused')
    many = wire.say(path, *[wire.order(wire.SET, 2000000000, b'pool.decay')] * 50)
    check(len(many) == 50, f'each of many is answered: {len(many)}')
    changes(folder, holder, 'pool.decay', '2 s', '2 s')
    changes(folder, holder, 'log', 'warning', 'warning')


def prove_answers(folder):
    """Who hangs up and who refuses a value is said to."""
    holder, me = start(folder), str(os.getpid())
    [path] = wire.sockets(folder)
    for answer, word in ((None, 'has ended, or closed the connection'),
                         (wire.done(5, 6, outcome=1), 'does not change pool.decay while it runs'),
                         (wire.done(5, 6, outcome=2), 'does not take this value for pool.decay')):
        with wire.Between(folder, path, {wire.ORDER: answer}):
            run = gpushim(folder, 'set', me, 'pool.decay=3 s')
            check(run.returncode == 1 and not run.stdout and word in run.stderr, f'{word}: {run}')
            run = gpushim(folder, 'set', me, 'pool.decay=3 s', '--json')
            [row] = json.loads(run.stdout)['rows']
            check(run.returncode == 1 and word in row['silent'] and 'before' not in row, f'in JSON too: {run}')
    holder.end()


def as_nobody(do):
    """What `do` returns in a process of another user, as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, repr(do()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        return file.read()


def prove_other_users(folder):
    """Who may open what a process shares may not set anything there; and root may, of anybody's."""
    os.chmod(folder, 0o755)
    holder = start(folder, GPUSHIM_SHARE_UIDS=str(NOBODY))
    [path] = wire.sockets(folder)
    refused = f'[({wire.REFUSE}, {struct.pack("<II", wire.OTHER_USER, 0)!r})]'
    for text in (wire.order(wire.SET, 4, b'log'), wire.order(wire.SLEEP, verb=1)):
        check(as_nobody(lambda text=text: wire.say(path, text)) == refused, f'{text} of another user is refused')
    changes(folder, holder, 'log', 'warning', 'warning')
    command = for_everybody(folder, GPUSHIM)
    run = as_nobody(lambda: gpushim(folder, 'set', str(holder.pid), 'log=debug', command=command).stderr)
    check('another user' in run or 'Permission' in run, f'and the command says so: {run}')
    changes(folder, holder, 'log', 'warning', 'warning')
    holder.end()


def prove_one(folder):
    holder = start(folder)
    prove_every_option(folder, holder)
    changes(folder, holder, 'pool.decay', '90 s', '2 s')
    prove_wrong(folder, holder)
    prove_hostile(folder, holder)
    holder.end()


# Only root can be two users.
prove_each(prove_one, prove_decay, prove_log, prove_answers, *[prove_other_users] * (os.geteuid() == 0))
