"""The library outlives what is around it.

    surroundings.py PUPPET SHIM BROKER HOW...
"""
import os
import random
import resource
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from puppet import (BROKER, MIB, OUT, STAMP, Broker, Handle, Out, Puppet, around, await_that, check, cpu_s, hard_limit,
                    main,
                    one_machine, open_files, set_for_all, skip, times_logged)


# ---- Descriptor tables that are full, or have a few numbers left -----------------------------------

NUMBERS, ROOMS = 96, range(13)
SPIN_S = 0.3
SLACK = 16  # descriptors that are kept for later; one left over each time would be more


class Table:
    """A process whose numbers are few while a call is made."""

    def __init__(self):
        # The hard limit stays: above it is where the software driver keeps its memory.
        self.one = Puppet(files=NUMBERS)
        self.one.use_memory()

    def used(self):
        return len(self.one.files(below=NUMBERS))

    def with_numbers(self, room, act):
        """What `act` gives while so many are free. Nobody spins meanwhile. Allocating and freeing goes on."""
        self.one.pointer('leave_free', room)
        cpu, began = cpu_s(self.one.pid), time.monotonic()
        self.one.use_memory()
        result = act()
        self.one.use_memory()
        spent = cpu_s(self.one.pid) - cpu
        check(spent <= SPIN_S or spent <= (time.monotonic() - began) / 2, f'it spins: {spent} s')
        self.one.pointer('free_all')
        return result


def rounds(each, later):
    """`each(table, room)` for each number of free numbers, in a new process each time, or in one that has shared. No
    descriptor is left over."""
    table = Table() if later else None
    for _ in range(3 if later else 0):
        each(table, NUMBERS // 2)
    most = 0
    for again in range(4 if later else 1):
        for room in ROOMS:
            table = table if later else Table()
            each(table, room)
            used = table.used()
            most = max(most, used) if again == 0 else most
            check(used <= most + SLACK, f'{used} descriptors are left over')
            if not later:
                table.one.end()


def full_exporter(when):
    """Sharing works, or fails with an error; with numbers free it works again."""
    other = Puppet()

    def each(table, room):
        one, said = table.one, times_logged('Too many open files')
        block = one.block()
        result, handle = table.with_numbers(room, lambda: one.call('cuIpcGetMemHandle', Out(64), block))
        is_open = result == 0 and other.opens(Handle(handle))
        print(f'{room} numbers free: handle {result}, opened {is_open}')
        check(is_open or times_logged('ulimit -n'), 'why is said')
        check(result == 0 or times_logged('Too many open files') > said, 'who gives no handle says why')
        check(not times_logged('ulimit -u'), 'it is not said to lack threads')
        handle = one.handle(block)
        await_that(lambda: other.opens(handle), 'with numbers free it opens')
        one.cuMemFree(block)
        one.use_memory()
    rounds(each, when == 'later')


def full_importer(when):
    """And whoever has something open keeps it."""
    owner = Puppet()
    kept = [owner.block()]
    held, opened = owner.handle(kept[0]), {}

    def each(table, room):
        one = table.one
        if room >= NUMBERS // 2 and not opened:
            opened[one] = one.open(held)
        block = owner.block()
        handle = owner.handle(block)
        is_open = table.with_numbers(room, lambda: one.opens(handle))
        print(f'{room} numbers free: opened {is_open}')
        check(is_open or times_logged('ulimit -n'), 'why is said')
        await_that(lambda: one.opens(handle), 'with numbers free it opens')
        check(one not in opened or one.word(opened[one] + 4 * MIB - 4) == STAMP, 'what it had open stays')
        owner.cuMemFree(block)
        if opened and kept:
            owner.cuMemFree(kept.pop())
            for _ in range(4):
                owner.block(stamp=1)
    rounds(each, when == 'later')


def full_broker():
    """The broker, whose limit is set from outside."""
    set_for_all(GPUSHIM_SHARE_STRATEGY='broker', GPUSHIM_SHARE_KEEP='500ms', GPUSHIM_DEBUG_IDLE='0')
    began, broker, one = time.monotonic(), Broker(), Puppet()

    def files():
        return len(open_files(broker.pid))

    def limit(room):
        free = [number for number in range(4096) if number not in open_files(broker.pid)]
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE,
                         (hard_limit() if room is None else free[room], hard_limit()))

    def outlive(busy):
        """One shares, is killed, and what it had shared is opened: how many of three."""
        sharer = Puppet()
        handles = [sharer.handle(sharer.block()) for _ in range(3)]
        for handle in handles if busy else ():
            await_that(lambda: one.opens(handle), 'of a process that runs, whatever its broker')
        sharer.use_memory()
        time.sleep(0.02)  # the broker may have them by then
        sharer.kill()
        return sum(one.opens(handle) for handle in handles)
    before = files()
    await_that(lambda: outlive(False) == 3, 'the broker serves')
    for room in *range(6), 6, 9, 12:
        await_that(lambda: files() <= before, 'it has dropped what was shared before')
        limit(room)
        opened = outlive(True)
        print(f'{room} numbers free: {opened} of 3 were left')
        check(room or not opened, 'the broker had no numbers')
        limit(None)
    await_that(lambda: outlive(False) == 3, 'the broker serves still')
    await_that(lambda: files() <= before, 'no descriptors are left over')
    check(cpu_s(broker.pid) <= max(SPIN_S, (time.monotonic() - began) / 2), 'the broker does not spin')
    one.end()
    broker.end()


# ---- Clocks that are set, and clocks that differ -----------------------------------------------------


def clock(how, program):
    """`jumps`: the time of day; `apart`: each process has a CLOCK_MONOTONIC of its own (time namespaces), a month
    apart. They share, open, close, free and wait for what was freed, take memory from each other and see each other
    end."""
    half = 96 * MIB
    one_machine()
    set_for_all(GPUSHIM_POOL_DECAY='10min')
    before = ('unshare', '--map-root-user', '--time', '--monotonic', '3000000', '--kill-child',
              '--fork') if how == 'apart' else ()
    if before and subprocess.run([*before, 'true'], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 check=False).returncode:
        skip('no time namespace can be had here')
    one, other = Puppet(program=program), Puppet(program=program, before=before)

    def monotonic(process):
        return int.from_bytes(process.call('clock_gettime', 1, Out(16))[1][:8], 'little')
    check(how == 'jumps' or monotonic(other) > monotonic(one) + 86400, 'each has its clock')
    for _ in range(20):
        block = other.block()
        handle = other.handle(block)
        found = []
        await_that(lambda: found.append(one.try_open(handle)) or found[-1][0] == 0, 'it opens')
        other.cuMemFree(block)  # while it is open; then it is opened no more
        other.use_memory()
        check(one.word(found[-1][1]) == STAMP, "a block that is open is nobody else's")
        one.close(found[-1][1])
        await_that(lambda: not one.opens(handle), 'what was freed and closed is not opened')
    other.cuMemFree(other.alloc(half))
    await_that(lambda: takes(one, half), 'what the other keeps is to be had')
    handle = other.handle(other.block())
    await_that(lambda: one.opens(handle), 'it opens')
    other.kill()
    one.use_memory()
    check(how == 'apart' or one.pointer('times_asked'), 'somebody asked for the time')


def takes(one, size):
    result, block = one.call('cuMemAlloc', OUT, size)
    if result == 0:
        one.cuMemFree(block)
    return result == 0


# ---- A thread that a filter of system calls kills ------------------------------------------------------


def killed_thread():
    """Within a call of this library: the other threads allocate, free, share and open on, or are refused, and the
    process ends. Where the driver makes the call the thread dies with the driver's lock, natively as well, and where
    the library makes it with a lock held (write, to its own pipe) with that: such are not tried."""
    owner, killed = Puppet(), 0
    theirs = owner.handle(owner.block())
    # For the first time; what the share thread calls as well is left out: it has the filter too.
    for deed, calls in (('begin', 'socket listen epoll_create1 clone3'),
                        ('open', 'socket connect sendmsg recvmsg poll epoll_ctl')):
        for call in calls.split():
            one = Puppet(threads=2)
            mine = one.block()
            one.use_memory()
            if deed == 'open':
                one.handle(mine)
            thread = one.thread(1)
            task = thread.result('gettid')
            check(thread.result('forbid', call, 0) == 0, 'there is a filter of calls')
            if deed == 'open':
                thread.tell('cuIpcOpenMemHandle', OUT, theirs, 1)
            else:
                thread.tell('cuIpcGetMemHandle', Out(64), mine)
            await_that(lambda: thread.has_answered() or not os.path.exists(f'/proc/{one.pid}/task/{task}'),
                       f'{call}: killed or done')
            killed += not thread.has_answered()
            one.use_memory()
            one.cuMemFree(mine)
            one.use_memory()
            one.result('cuIpcGetMemHandle', Out(64), one.block())
            result, opened = one.try_open(theirs)
            if result == 0:
                one.close(opened)
            one.end()
    check(killed >= 8, f'{killed} were killed')


# ---- What happens to the processes that share ----------------------------------------------------------


KEPT = 64 * MIB  # of a GPU of 128 MiB: what cannot be had twice


def stops(seed):
    """Each of them is stopped and goes on at random instants: all goes on. (Who is stopped for long: share/blocks.py,
    and unit/share/pressure.c.)"""
    one_machine()
    set_for_all(GPUSHIM_POOL_DECAY='10min', GPUSHIM_SHARE_STRATEGY='broker', GPUSHIM_SHARE_BROKER=BROKER,
                GPUSHIM_SHARE_KEEP='0')
    broker, me = Broker(), Puppet()
    exporter, importer, keeper = (Puppet() for _ in range(3))
    over, chance = threading.Event(), random.Random(int(seed))

    def stop_at_random():
        while not over.is_set():
            process = chance.choice((exporter, importer, keeper, broker)).process
            time.sleep(chance.random() * 0.003)
            process.send_signal(19)
            time.sleep(chance.random() * 0.02)
            process.send_signal(18)
    stopper = threading.Thread(target=stop_at_random, daemon=True)
    stopper.start()
    for count in range(150):
        block = exporter.block()
        handle = exporter.handle(block)
        await_that(lambda: importer.opens(handle), 'a block is opened')
        exporter.cuMemFree(block)
        exporter.use_memory()
        if count % 50 == 0:
            await_that(lambda: takes(keeper, KEPT), 'it keeps some, though who has it may be stopped when it is asked')
            await_that(lambda: takes(me, KEPT), 'what another keeps is given')
    over.set()
    stopper.join()
    for process in me, exporter, importer, keeper, broker:
        process.end()


def daemon():
    """It forks twice and closes all descriptors before it calls the driver."""
    me, other = Puppet(), Puppet(begin=False)
    check(other.result('be_daemon') == 0, 'it is a daemon')
    for first, last in (0, other.channels[0] - 1), (other.channels[0] + 1, 2**32 - 1):
        other.result('close_range', first, last, 0)
    other.begin()
    handle = other.handle(other.block())
    await_that(lambda: me.opens(handle), 'it shares')


def closes():
    """A thread closes all descriptors of the library at a random moment while another shares, and has files of its own
    under their numbers: that one allocates and frees on, and the process ends. (That such files stay as they are cannot
    be had where a number is closed between two system calls of another thread.)"""
    numbers = 64
    for seed in range(1, 13):
        chance = random.Random(seed)
        one = Puppet(files=numbers, threads=2)
        one.use_memory()
        one.thread(1).tell('share_on', 30)
        time.sleep(chance.random() * 0.003)
        one.result('close_range', max(one.channels) + 1, numbers - 1, 0)
        for _ in range(8):
            file = one.result('memfd_create', 'own', 1)
            check(file >= 0, 'it has files')
            # or closed behind us: see above
            check(one.result('write', file, b'own', 3) == 3 or one.errno in (9, 22), 'it is written')
        one.thread(1).answer()
        one.use_memory()
        one.end()


def full_disk():
    """The folder lies on a file system that is full."""
    mount = ('unshare', '--mount', '--propagation', 'private', 'sh', '-c',
             f'mount -t tmpfs -o size=4k,nr_inodes=3,mode=0700 none {around.folder} && shift && exec "$@"', '-', '-')
    if subprocess.run([*mount, 'true'], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
        skip('no file system can be mounted here')
    one = Puppet(before=mount)
    within = ('nsenter', '--target', str(one.pid), '--mount')
    inside = f'/proc/{one.pid}/root{around.folder}'
    for name in 'full0', 'full1':  # the folder is the first of three
        with open(f'{inside}/{name}', 'wb', buffering=0) as file:
            try:
                while file.write(b' ' * 128):
                    pass
            except OSError:
                pass
    block = one.block()
    one.use_memory()
    result, handle = one.call('cuIpcGetMemHandle', Out(64), block)
    other = Puppet(before=within)
    print(f'a handle on a full disk: {result}')
    if result == 0:
        check(other.opens(Handle(handle)), 'another process opens it')
    else:
        check(times_logged('No space left on device'), 'why is said')
    os.unlink(f'{inside}/full1')
    one.use_memory()
    one.cuMemFree(block)
    check(other.opens(one.handle(one.block())), 'another process opens what is shared on a disk with room')


set_for_all(GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on', GPUSHIM_DEBUG_TIMEOUT='500ms', GPUSHIM_DEBUG_GRACE='0')
main(globals())
