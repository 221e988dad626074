"""Many exports, and many opens by several machines, with a real etcd: what that costs etcd, and how long it takes.

usage: many.py GPUSHIM SHIM LIBCUDA AGENT BROKER [machines:N] [exports:N] [opens:N]
"""
import os
import statistics
import sys

sys.path.insert(0, os.path.dirname(__file__))
from etcd import exports_there
from machines import Program, await_that, check, cluster_of, end_with_faults


def costs(pid):
    with open(f'/proc/{pid}/status', encoding='ascii') as status:
        kib = next(int(line.split()[1]) for line in status if line.startswith('VmRSS'))
    return kib, len(os.listdir(f'/proc/{pid}/fd'))


def main():
    words = dict(word.split(':') for word in sys.argv[6:] if ':' in word)
    count, exports, opens = (int(words.get(name, least)) for name, least in
                             (('machines', 3), ('exports', 1000), ('opens', 10000)))
    cluster = cluster_of(count, ['etcd'])
    try:
        first = cluster.start()[0]
        before = costs(first.agent.pid)
        sharer = Program(first, GPUSHIM_DEBUG_MAX_CLIENTS='1024')
        handles = sharer.do(f'[share(alloc(65536, i % 251)) for i in range({exports})]')
        check(all(len(handle) == 128 for handle in handles), 'all are shared')
        await_that(lambda: exports_there(cluster)[0] == exports, 'all are in the directory')
        print(f'exports: {exports}, writes of etcd: {exports_there(cluster)[1]}')
        # Nothing stays mapped: each open goes to the other machine.
        readers = [Program(machine, GPUSHIM_DEBUG_IDLE='0') for machine in cluster.machines[1:]]
        each = opens // len(readers)
        _, revision = exports_there(cluster)
        for reader in readers:
            reader.do('globals().update(time=__import__("time"), pass_=lambda h: (time.monotonic(), open_(h), '
                      'time.monotonic()))')
            reader.say('[(lambda a, p, b: [b - a, read(p) if k % 100 == 0 and not isinstance(p, str) else None, p if '
                       f'isinstance(p, str) else close(p)])(*pass_(h)) for k in range({each}) for h in '
                       f'[{handles!r}[k % {exports}]]]')
        rows = [row for reader in readers for row in reader.hear()]
        check(all(row[2] == 0 for row in rows), f'all open and close: {[row for row in rows if row[2] != 0][:3]}')
        _, after = exports_there(cluster)
        times = sorted(row[0] for row in rows)
        print(f'opens: {len(rows)}, far: median {statistics.median(times) * 1e6:.0f} us, '
              f'99 % {times[len(times) * 99 // 100] * 1e6:.0f} us; writes of etcd: {after - revision}')
        check(after - revision <= len(rows) / 100, f'opens write nothing to etcd: {after - revision}')
        again = Program(cluster.machines[1])
        pointer = again.do(f'open_({handles[0]!r})')
        again.do(f'close({pointer})')
        took = again.do(f'[(lambda a, p, b: (close(p), b - a)[1])(time.monotonic(), open_({handles[0]!r}), '
                        'time.monotonic()) for _ in range(1000)]')
        print(f'reopens of what is still mapped: median {statistics.median(took) * 1e6:.2f} us')
        kib, descriptors = costs(first.agent.pid)
        print(f'the exporter\'s agent: {before[0]} KiB and {before[1]} descriptors before, {kib} and {descriptors} '
              'after')
        sharer.end()
        for reader in readers + [again]:
            reader.end()
        end_with_faults()
    finally:
        cluster.end()


main()
