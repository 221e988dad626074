"""A test program that is killed leaves no process behind, of other users neither, and no broker.

    killed.py PROGRAM [--filter TESTS]

Whatever it starts has a word of its environment, but for brokers that the library starts: these are
told by the folder that is named after the test's process. Where another user's environment cannot be read (root
without CAP_SYS_PTRACE, as in docker), its processes are told by who started them, while that one runs.
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

WORD = f'GPUSHIM_KILLED_TEST={os.getpid()}'
PATIENCE = 120  # seconds
WANTED = 4  # the runner, a test and processes of the test's


def environment(pid):
    try:
        return pathlib.Path(f'/proc/{pid}/environ').read_bytes().decode(errors='replace').split('\0')
    except OSError:
        return []  # it has ended, or is nobody's that was started here


def birth(pid):
    """What started it, and when; a pid alone may be another process's by now."""
    try:
        words = pathlib.Path(f'/proc/{pid}/stat').read_text(encoding='utf-8', errors='replace').rpartition(')')[2].split()
        return (int(words[1]), words[19]) if words[0] not in 'ZX' else None
    except OSError:
        return None


def folders(pids):
    return re.compile('GPUSHIM_SHARE_DIR=/tmp/gpushim-test-(%s)-' % '|'.join(map(str, pids)))


def running(tests):
    """Those of the program, and the brokers of the tests. tests: when those that were ever seen were started."""
    words_of = {int(entry): environment(entry) for entry in os.listdir('/proc') if entry.isdigit()}
    births = {pid: birth(pid) for pid in words_of}
    mine = {pid for pid, words in words_of.items() if WORD in words}
    mine |= {pid for pid, started in tests.items() if births.get(pid) and births[pid][1] == started}
    while True:
        more = {pid for pid, born in births.items() if born and born[0] in mine} - mine
        if not more:
            break
        mine |= more
    tests.update((pid, births[pid][1]) for pid in mine if births[pid])
    of_test = folders(tests)
    brokers = {pid for pid, words in words_of.items()
               if pid not in mine and any(of_test.match(word) for word in words)}
    return mine, brokers


def main():
    program = subprocess.Popen(sys.argv[1:], env=dict(os.environ, **dict([WORD.split('=')])),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with_broker = os.environ.get('SIDE_STRATEGY') == 'broker'
    ever, until = {program.pid: (birth(program.pid) or (0, ''))[1]}, time.monotonic() + PATIENCE
    while True:
        mine, brokers = running(ever)
        if len(mine) >= WANTED and (brokers or not with_broker):
            break
        if program.poll() == 0 and os.geteuid() != 0:
            print('skipped: only root can be two users')
            return 77
        if program.poll() is not None or time.monotonic() > until:
            raise SystemExit(f'it has started too little: {len(mine)} processes')
    program.send_signal(signal.SIGKILL)
    program.wait()
    until = time.monotonic() + PATIENCE
    while True:
        mine, brokers = running(ever)
        if not mine and not brokers:
            break
        if time.monotonic() > until:
            raise SystemExit(f'left behind: {mine | brokers}')
        time.sleep(0.05)
    print(f'ok: of {len(ever)} processes none is left')
    return 0


if __name__ == '__main__':
    sys.exit(main())
