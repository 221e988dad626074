"""An allocation that is refused says where all memory is, in a line of log and in one of JSON.

    report.py TAKE SHIM LIBCUDA
"""
import json
import os
import re
import signal
import stat
import time

from taker import MIB, PLACE, Taker, await_that, check, end_with_faults

KEYS = {'time', 'pid', 'device', 'uuid', 'refused_by', 'asked_bytes', 'limit_bytes', 'total_bytes',
        'free_bytes', 'outside_bytes', 'process', 'holders', 'others', 'help'}


def reports(path):
    try:
        with open(path, encoding='ascii') as text:
            return [json.loads(line) for line in text]
    except FileNotFoundError:
        return []


def is_the_sum(report, line):
    """What is outside is what nobody here has, to the byte; and the line has the same numbers."""
    known = (report['free_bytes'] + report['process']['reserved_bytes'] + report['process']['going_bytes'] +
             report['others']['reserved_bytes'])
    check(report['outside_bytes'] == max(0, report['total_bytes'] - known), f'outside: {report}')
    found = re.search(r'this process has (\d+) MiB: (\d+) live, (\d+) cached, (\d+) retired, (\d+) in limbo.*'
                      r'; (\d+) MiB are outside of that, (\d+) of (\d+) MiB are free; the largest free piece kept here '
                      r'has (\d+) KiB', line)
    own = report['process']
    expected = [own['reserved_bytes'] + own['going_bytes'], own['live_bytes'], own['cached_bytes'],
                own['retired_bytes'] + own['ordered_bytes'], own['limbo_bytes'], report['outside_bytes'],
                report['free_bytes'], report['total_bytes'], own['largest_free_bytes'] << 10]
    check(found and [int(number) for number in found.groups()] == [number >> 20 for number in expected],
          f'{line}: {[number >> 20 for number in expected]}')


def a_report_says_it_in_both_forms():
    file = os.path.join(PLACE, 'report-%p.json')
    taker = Taker(memory='64M', GPUSHIM_POOL_OOM_REPORT=file)
    taker.must(f'alloc {40 * MIB}')
    taker.must(f'create {8 * MIB}')
    taker.refused(f'alloc {20 * MIB}')
    taker.expect(r'no 20 MiB are left on device 0; this process has 40 MiB: 40 live, 0 cached, 0 retired, '
                 r'0 in limbo; .*8 MiB are outside of that, 16 of 64 MiB are free; the largest free '
                 r'piece kept here has \d+ KiB; what would help: free memory in this process, or ask '
                 r'for less')
    file = file.replace('%p', str(taker.pid))
    check(stat.S_IMODE(os.stat(file).st_mode) == 0o600, 'it is for its owner alone')
    report = reports(file)
    check(len(report) == 1 and set(report[0]) == KEYS, f'one report with all that it has: {report}')
    report = report[0]
    expected = {'pid': taker.pid, 'device': 0, 'refused_by': 'driver', 'asked_bytes': 20 * MIB,
                'limit_bytes': None, 'total_bytes': 64 * MIB, 'free_bytes': 16 * MIB,
                'outside_bytes': 8 * MIB, 'help': ['free memory in this process, or ask for less']}
    check({key: report[key] for key in expected} == expected, f'it says: {report}')
    is_the_sum(report, taker.said()[0])
    check(abs(report['time'] - time.time()) < 3600, f'of now: {report["time"]}')
    check(re.fullmatch('GPU(-[0-9a-f]+){5}', report['uuid']), f'of which GPU: {report["uuid"]}')
    check(report['process']['reserved_bytes'] == report['process']['live_bytes'] == 40 * MIB,
          f'its own: {report["process"]}')
    check(not report['others']['asked'] and report['others']['most'] == [], 'nobody else was asked')
    taker.expect('other processes were not asked .debug.reclaim_from_peers is off.')
    taker.end()


def a_limit_is_named():
    file = os.path.join(PLACE, 'limit.json')
    taker = Taker(GPUSHIM_POOL_OOM_REPORT=file, GPUSHIM_POOL_LIMIT='64M')
    taker.must(f'alloc {40 * MIB}')
    taker.refused(f'alloc {40 * MIB}')
    report = reports(file)[0]
    check(report['refused_by'] == 'pool.limit' and report['limit_bytes'] == 64 * MIB,
          f'it says: {report}')
    check(report['help'] == ['raise pool.limit, or free memory in this process'],
          f'what would help: {report["help"]}')
    taker.end()


def it_is_said_once_a_second():
    file = os.path.join(PLACE, 'often.json')
    begun = time.monotonic()
    taker = Taker(memory='64M', GPUSHIM_POOL_OOM_REPORT=file)
    refused = taker.numbers(f'refuse 200 {65 * MIB}')[0]
    took = time.monotonic() - begun
    check(refused == 200, f'{refused} of 200 were refused')
    check(1 <= len(taker.said()) <= took + 1, f'{len(taker.said())} lines in {took} s')
    check(len(reports(file)) == len(taker.said()), f'{len(reports(file))} reports')
    taker.end()


def it_is_not_the_gpus_memory():
    """A driver that has no addresses for it, as where `ulimit -v` bounds them."""
    file = os.path.join(PLACE, 'address-space')
    taker = Taker(memory='64M', GPUSHIM_POOL_OOM_REPORT=file,
                  SOFTCUDA_FAULTS='cuMemAddressReserve:3+:2,cuMemAlloc:*:2')
    taker.must('alloc 4096')
    taker.refused(f'alloc {20 * MIB}')
    taker.expect('the driver refused 20 MiB on device 0, which has them: address space or memory of '
                 'the host may be short; .*what would help: raise the limit of address space')
    help_first = [report['help'][:1] for report in reports(file)]
    check(help_first == [['raise the limit of address space (ulimit -v), or free memory of the host']],
          f'it says: {help_first}')
    taker.end()


def more_than_there_is_to_count():
    taker = Taker(memory='64M')
    taker.refused(f'alloc {2**64 - 1}')
    taker.expect('no 17592186044416 MiB are left on device 0; ')
    taker.end()


def what_the_driver_keeps_is_not_on_its_way_there():
    taker = Taker(memory='256M', SOFTCUDA_FAULTS='cuMemUnmap:*:999', GPUSHIM_POOL_DECAY='0')
    taker.must(f'alloc {100 * MIB}')
    taker.must('free 0')
    taker.must(f'create {150 * MIB}')
    taker.refused(f'alloc {120 * MIB}')
    lines = [line for line in taker.said() if 'this process has' in line]
    check(lines and not any('on their way' in line for line in lines), f'{lines}')
    taker.end()


def it_is_said_on_small_stacks():
    """With all that it can have: another one is asked, memory is waited for, and it is JSON as well."""
    run = os.path.join(PLACE, 'small')
    machine = {'SOFTCUDA_MACHINE': os.path.join(PLACE, 'small machine'), 'memory': '512M',
               'GPUSHIM_SHARE_DIR': run, 'GPUSHIM_DEBUG_RECLAIM_FROM_PEERS': 'on',
               'GPUSHIM_POOL_DECAY': '10 min'}
    other = Taker(**machine)
    other.must(f'alloc {160 * MIB}')
    await_that(lambda: os.path.isdir(run) and
               any(re.fullmatch('[0-9a-f]{32}', name) for name in os.listdir(run)), 'it can be asked')
    for where in 'thread', 'handler':
        file = os.path.join(PLACE, where)
        taker = Taker(**machine, GPUSHIM_POOL_OOM_REPORT=file)
        taker.must(f'alloc {20 * MIB}')
        taker.must(f'alloc {20 * MIB}')
        taker.must('free 0')
        taker.refused(f'{where} {400 * MIB}')
        taker.expect('no 400 MiB are left on device 0; ')
        check([report['others']['answered'] + report['others']['silent']
               for report in reports(file)] == [1], f'in a {where}: {reports(file)}')
        taker.end()
    other.end()


def each_is_appended():
    """Also what another process has written."""
    file = os.path.join(PLACE, 'appended.json')
    for _ in range(2):
        taker = Taker(memory='64M', GPUSHIM_POOL_OOM_REPORT=file)
        taker.refused(f'alloc {65 * MIB}')
        files = [os.readlink(f'/proc/{taker.pid}/fd/{fd}') for fd in os.listdir(f'/proc/{taker.pid}/fd')]
        check(file not in files, f'it stays open: {files}')
        taker.end()
    check(len(reports(file)) == 2, f'two reports: {reports(file)}')


def calls_that_are_the_drivers_are_reported_too():
    taker = Taker(memory='64M')
    taker.must(f'alloc {16 * MIB}')
    taker.refused(f'create {60 * MIB}')
    taker.expect('no 60 MiB are left on device 0; this process has 16 MiB')
    taker.end()
    taker = Taker(memory='64M')
    taker.refused(f'async {70 * MIB}')
    taker.expect('no 70 MiB are left on device 0; ')
    taker.end()


def a_long_path_is_not_cut():
    file = os.path.join(PLACE, 'f' * 200, 'o' * 200, 'r' * 200)
    os.makedirs(os.path.dirname(file))
    taker = Taker(memory='64M', GPUSHIM_POOL_OOM_REPORT=file)
    taker.refused(f'alloc {65 * MIB}')
    taker.end()
    check(len(reports(file)) == 1, 'one report')


def a_file_that_cannot_be_written_is_named():
    taker = Taker(memory='64M', GPUSHIM_POOL_OOM_REPORT=os.path.join(PLACE, 'none', 'x'))
    taker.refused(f'alloc {65 * MIB}')
    taker.expect(r'no 65 MiB are left')
    taker.expect(r'report of pool\.oom_report cannot be written to .*/none/x \(No such file')
    taker.end()


def other_processes_are_named():
    """They share a device; one of them is stopped then, and is not waited for."""
    machine = {'SOFTCUDA_MACHINE': os.path.join(PLACE, 'machine'), 'GPUSHIM_DEBUG_RECLAIM_FROM_PEERS': 'on',
               'GPUSHIM_POOL_DECAY': '10 min', 'memory': '512M'}
    file = os.path.join(PLACE, 'others.json')
    run = os.path.join(PLACE, 'run')
    others = [Taker(**machine) for _ in range(2)]
    for other in others:
        other.must(f'alloc {160 * MIB}')
    await_that(lambda: os.path.isdir(run) and
               sum(bool(re.fullmatch('[0-9a-f]{32}', name)) for name in os.listdir(run)) >= 2,
               'both can be asked')
    taker = Taker(**machine, GPUSHIM_POOL_OOM_REPORT=file)
    taker.must(f'alloc {32 * MIB}')

    def both_said():
        taker.refused(f'alloc {400 * MIB}')
        return any(report['others']['answered'] == 2 for report in reports(file))
    await_that(both_said, 'both say what they have')
    lines = [line for line in taker.said() if ' MiB are left on device' in line]
    check(len(lines) == len(reports(file)), f'a line for each: {lines}')
    for report, line in zip(reports(file), lines):
        is_the_sum(report, line)
    found = [report for report in reports(file) if report['others']['answered'] == 2][-1:]
    for report in found:
        most = {one['pid']: one for one in report['others']['most']}
        check(set(most) == {other.pid for other in others}, f'who: {report["others"]}')
        check(all(one['live_bytes'] == 160 * MIB and one['name'] == 'take' for one in most.values()),
              f'with what: {most}')
        check(report['others']['reserved_bytes'] >= 320 * MIB and report['outside_bytes'] < 32 * MIB,
              f'in all: {report}')
        check(any('gpushim sleep PID' in help for help in report['help']), f'what would help: {report["help"]}')
    taker.expect(r'2 other processes of this user have 3\d\d MiB, \d+ of them cached: '
                 rf'process ({others[0].pid}|{others[1].pid}) \(take\) 1\d\d, process')
    os.kill(others[0].pid, signal.SIGSTOP)
    os.waitid(os.P_PID, others[0].pid, os.WSTOPPED)

    def one_is_silent():
        taker.refused(f'alloc {400 * MIB}')
        return any(report['others']['silent'] == 1 for report in reports(file))
    await_that(one_is_silent, 'the stopped one is counted')
    os.kill(others[0].pid, signal.SIGCONT)
    for one in taker, *others:
        one.end()


for test in [value for name, value in sorted(globals().items())
             if callable(value) and getattr(value, '__module__', '') == '__main__' and
             name not in ('reports', 'is_the_sum')]:
    test()
end_with_faults()
