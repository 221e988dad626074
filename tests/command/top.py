"""gpushim top at a terminal: it fits 80x24, 60x12 and 200x50, those that have most come first, keys sort, q and signals
end it and leave the terminal as it was; colours and characters only where they are wanted.

    top.py GPUSHIM SHIM LIBCUDA LIBNVIDIA_ML
"""
import fcntl
import os
import pty
import pwd
import re
import select
import signal
import struct
import sys
import termios
import time

from holder import GPUSHIM, MIB, PATIENT_S, Holder, await_that, check, clean, gpushim, prove_each, rows, stats_of

NVML = os.path.dirname(os.path.abspath(sys.argv[4]))


class Page:
    """gpushim top, at a terminal of its own."""
    def __init__(self, folder, columns, lines, *arguments, nvml=True, **settings):
        self.columns, self.lines, self.got = columns, lines, ''
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            env = {**clean(folder), 'TERM': 'xterm', 'LC_ALL': 'C.UTF-8', **settings}
            env['LD_LIBRARY_PATH'] = NVML if nvml else '/nonexistent'
            env.pop('NO_COLOR', None) if 'NO_COLOR' not in settings else None
            os.kill(os.getpid(), signal.SIGSTOP)  # until the terminal has its size
            os.execve(GPUSHIM, [GPUSHIM, 'top', '--watch', '0.1', *arguments], env)
        os.waitpid(self.pid, os.WUNTRACED)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack('HHHH', lines, columns, 0, 0))
        self.before = termios.tcgetattr(self.terminal)
        os.kill(self.pid, signal.SIGCONT)

    def read(self):
        if select.select([self.terminal], [], [], 0.05)[0]:
            try:
                self.got += os.read(self.terminal, 65536).decode(errors='replace')
            except OSError:  # it has ended
                return False
        return True

    def frame(self):
        """The lines of the next whole page, without what is no text."""
        self.got = ''
        end = time.monotonic() + PATIENT_S
        while self.got.count('\033[J') < 2 and time.monotonic() < end and self.read():
            pass
        page = self.got.partition('\033[J')[2].partition('\033[J')[0]
        return re.sub('\033\\[[0-9;?]*[a-zA-Z]', '', page).replace('\r', '').split('\n')

    def type(self, key):
        os.write(self.terminal, key.encode())

    def end(self, how='q'):
        if how == 'q':
            self.type('q')
        else:
            os.kill(self.pid, how)
        while self.read():
            pass
        check(self.got.endswith('\033[?25h\033[?1049l'), f'{how}: cursor and screen come back: {self.got[-40:]!r}')
        _, status = os.waitpid(self.pid, 0)
        os.close(self.terminal)
        check(status == 0, f'{how}: it ends well: {status}')


def pids_of(lines):
    return [int(line.split()[0]) for line in lines if re.match(r' *\d+ +(\S+ +)?0 +[\d.]+ ', line)]


def prove_it_fits(folder, holders, columns, lines):
    page = Page(folder, columns, lines)
    got = page.frame()
    check(len(got) <= lines and all(len(line) <= columns for line in got),
          f'{columns}x{lines}: {len(got)} lines, {max(map(len, got))} columns: {got}')
    shown = pids_of(got)
    check(shown == holders[:len(shown)] and len(shown) >= min(len(holders), lines - 6), f'the largest first: {got}')
    check(got[2].rstrip().endswith(' COMMAND') and 'python3' in got[3] and (columns < 100 or ' WAITS ' in got[2]),
          f'columns go before the command does: {got[2:4]}')
    check(got[1].startswith('GPU 0 [') and 'of 1.0 GiB: yours' in got[1], f'a bar: {got[1]}')
    bar = got[1].partition('[')[2].partition(']')[0]
    check(len(bar) >= 10 and set(bar) <= set('█▒·') and bar[0] == '█', f'its parts: {bar}')
    check(any('limbo: 16.0 MiB for pid ' in line for line in got), f'who holds what is freed: {got}')
    left = re.fullmatch(r'(\d+) more lines?', got[-1])
    check(left or len(shown) == len(holders), f'it says where there is more: {got[-1]}')
    page.end()


def prove_keys(folder, holders):
    page = Page(folder, 100, 50)

    def sorted_by(key, expected):
        page.type(key)
        await_that(lambda: pids_of(page.frame()) == expected, f'sorted by {key}: {page.frame()}')
    sorted_by('p', sorted(holders))
    sorted_by('m', holders)
    sorted_by('c', sorted(holders))  # all have one command
    page.type('x')
    check(pids_of(page.frame()) == sorted(holders), 'no key')
    held = termios.tcgetattr(page.terminal)[3]
    check(not held & (termios.ICANON | termios.ECHO), 'keys are not shown')
    page.type('q')

    def has_ended():
        page.read()  # what nobody reads would hold it up
        return os.waitid(os.P_PID, page.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    await_that(has_ended, 'it ends')
    check(termios.tcgetattr(page.terminal) == page.before, 'the terminal is as it was')
    while page.read() and '\033[?1049l' not in page.got:
        pass
    os.waitpid(page.pid, 0)
    os.close(page.terminal)
    page = Page(folder, 80, 24)
    page.frame()
    os.kill(page.pid, signal.SIGTSTP)  # which the kernel does not stop, as no shell is there to let it go on
    page.got = ''
    await_that(lambda: page.read() and '\033[?25h\033[?1049l\033[?1049h\033[?25l' in page.got,
               f'a shell has its screen and cursor meanwhile: {page.got!r}')
    check(pids_of(page.frame()) == holders, 'and it goes on')
    page.end()
    for how in (signal.SIGTERM, signal.SIGINT):
        page = Page(folder, 80, 24)
        page.frame()
        page.end(how)


def prove_filters(folder, holders):
    """A text that is typed, in pids, commands and users; a GPU; the head says which, and all come back."""
    page = Page(folder, 120, 50)

    def shows(keys, expected, head):
        for key in keys:
            page.type(key)
        await_that(lambda: (got := page.frame()) and pids_of(got) == expected and re.search(head, got[0]),
                   f'{keys!r} shows {expected} and {head}: {page.frame()}')
    user = pwd.getpwuid(os.getuid()).pw_name
    shows(f'/{holders[4]}', [holders[4]], f" with '{holders[4]}_ by memory")
    shows('\n', [holders[4]], f" with '{holders[4]}' by memory")
    shows('p', [holders[4]], ' by pid; ')
    shows('m/PYTHON3', holders, " with 'PYTHON3_ ")
    shows('\r', holders, " with 'PYTHON3' ")
    shows('/qp', [], " with 'qp_ ")  # keys are text
    shows('\177\b', holders, " with '_ ")
    shows(f'{user}é', [], f" with '{user}é_ ")
    shows('\177', holders, f" with '{user}_ ")
    shows(user[:1] * 99, [], f" with '{user}{user[0]}+_ ")  # as much as there is room for
    check(any('no such process' in line for line in page.frame()), 'it says that none is such')
    shows('\033', holders, r'\d by memory')
    shows('g', holders, r'\d of GPU 0 by memory')
    shows('g', holders, r'\d by memory')
    page.end()


def prove_plain(folder):
    page = Page(folder, 80, 24, LC_ALL='C', NO_COLOR='1')
    got = page.frame()
    check('\033[3' not in page.got and '\033[7' not in page.got, 'no colours where they are not wanted')
    check(all(ord(c) < 128 for line in got for c in line) and '[#' in got[1], f'no other characters: {got}')
    page.end()
    page = Page(folder, 80, 24)
    page.frame()
    check('\033[32m' in page.got and '\033[7m' in page.got, 'else there are')
    page.end()
    page = Page(folder, 80, 24, nvml=False)
    got = page.frame()
    check(got[1].startswith('GPU 0: its size is not known (no NVML); yours 864.0 MiB'), f'without NVML: {got[1]}')
    page.end()


def prove_wide(folder):
    """Characters of two columns and of none, and terminals that hardly have room for any."""
    programs = [os.path.join(folder, name) for name in (80 * '日', 80 * 'e\u0301')]
    for program in programs:
        os.symlink(sys.executable, program)
    both = [Holder(folder, python=program) for program in programs]
    for holder in both:
        holder.do(f'alloc {72 * MIB}')
        await_that(lambda: 'live_bytes' in stats_of(folder, holder.pid), 'one with a wide title is listed')
    for holder, shown in zip(both, ('?', 'e')):
        page = Page(folder, 80, 24, str(holder.pid), LC_ALL='C')
        got = page.frame()
        check(re.search(f' [{shown}]{{3,}}\\.\\.\\.$', got[3]) and all(len(line) <= 80 for line in got),
              f'a ? for each column: {got}')
        page.end()
    for command in ('stats', 'who'):
        said = [gpushim(folder, command, str(holder.pid)).stdout for holder in both]
        check('日...' in said[0] and 'e\u0301 -c ' in said[1] and '\\x' not in said[0],
              f'{command}: a line is cut between characters: {said}')
    for holder in both:
        holder.end()
    page = Page(folder, 10, 2)
    got = page.frame()
    check(len(got) == 2 and all(len(line) <= 10 for line in got), f'a small terminal: {got}')
    page.end()


def prove_refusal(folder):
    """Why there is no page is said where it stays."""
    page = Page(folder, 80, 24, GPUSHIM_SHARE_DIR='/' + 200 * 'x')
    while page.read():
        pass
    _, status = os.waitpid(page.pid, 0)
    os.close(page.terminal)
    check(os.waitstatus_to_exitcode(status) == 1 and 'too long' in page.got and '\033' not in page.got, f'{page.got!r}')


def prove_one(folder, pid):
    page = Page(folder, 80, 24, str(pid))
    check(pids_of(page.frame()) == [pid], 'one process alone')
    page.end()


def prove_who_sleeps(folder, pid):
    """With what is off the GPU, and for how long."""
    ran = gpushim(folder, 'sleep', str(pid))
    check(ran.returncode == 0, f'it sleeps: {ran}')
    page = Page(folder, 80, 24, str(pid))
    check(any(re.search(r'^ +asleep: \d+\.0 MiB off the GPU for ', line) for line in page.frame()),
          f'it is told: {page.got}')
    page.end()
    ran = gpushim(folder, 'wake', str(pid))
    check(ran.returncode == 0, f'it wakes: {ran}')


def prove_page(folder):
    holders = [Holder(folder) for _ in range(9)]
    for i, holder in enumerate(holders):
        holder.do(f'alloc {16 * MIB}')
        holder.do(f'alloc {(64 + 4 * i) * MIB}')
    importer = Holder(folder)
    importer.do('open ' + holders[-1].do('share 0'))
    holders[-1].do('free 0')

    def told():
        return [row['pid'] for row in rows(folder, 'stats') if 'device' in row]
    order = [holder.pid for holder in reversed(holders)]
    await_that(lambda: told() == order, 'all are listed')
    for columns, lines in ((80, 24), (60, 12), (200, 50)):
        prove_it_fits(folder, order, columns, lines)
    prove_keys(folder, order)
    prove_filters(folder, order)
    prove_plain(folder)
    prove_wide(folder)
    prove_one(folder, order[3])
    prove_who_sleeps(folder, order[3])
    prove_refusal(folder)
    for holder in (*holders, importer):
        holder.end()


prove_each(prove_page)
