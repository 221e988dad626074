"""Compares what a program said natively and under the shim, for tests/gpu/run.sh.

    compare.py NAME NATIVE_LOG SHIM_LOG ROWS

What a program prints decides how it is compared:

    RESULT what outcome           the same both ways, in the same order
    GAIN what outcome             the outcome is "ok" under the shim; natively it may be anything,
                                  as with what the driver alone cannot do
    NEAR what value tolerance     numbers that differ by no more than the tolerance
    TIME anything                 shown beside the outcome

LOG.status holds how it ended, LOG.err what it wrote to stderr, LOG.gpushim what the shim logged.
Its first line says that the shim is there: no log means that it was not. Appends one line to ROWS:
name, native, shim, compared, with tabs between them. Says on stdout what differs. Exit status 1
unless the program ended well under the shim and everything compared is as it should be.
"""
import collections
import pathlib
import sys

SHOWN = 20


class Log:
    def __init__(self, path):
        self.path = path
        self.lines = collections.defaultdict(list)
        for line in read(path).splitlines():
            word, _, rest = line.partition(' ')
            if word in ('RESULT', 'GAIN', 'NEAR', 'TIME'):
                self.lines[word].append(rest)
        self.status = read(path + '.status').strip() or 'not started'

    def ended(self):
        if self.status == '0':
            return 'ok'
        if self.status in ('124', '137'):
            return 'TIMED OUT'
        return f'exit {self.status}' if self.status.isdigit() else self.status

    def summary(self):
        count = sum(len(self.lines[word]) for word in ('RESULT', 'GAIN', 'NEAR'))
        return ', '.join([self.ended(), f'{count} results', *self.lines['TIME']])

    def stderr(self, lines):
        return [line[:200] for line in read(self.path + '.err').splitlines()[-lines:]]


def read(path):
    try:
        return pathlib.Path(path).read_text(errors='replace')
    except OSError:
        return ''


def results(native, shim):
    """Lines that differ, as people read them."""
    keyed = [collections.OrderedDict(), collections.OrderedDict()]
    for lines, log in zip(keyed, (native, shim)):
        for line in log.lines['RESULT']:
            what, _, outcome = line.partition(' ')
            lines.setdefault(what, []).append(outcome)
    differing = []
    for what in list(keyed[0]) + [what for what in keyed[1] if what not in keyed[0]]:
        one, two = (lines.get(what, []) for lines in keyed)
        for i in range(max(len(one), len(two))):
            pair = [got[i] if i < len(got) else 'nothing' for got in (one, two)]
            if pair[0] != pair[1]:
                differing.append(f'{what}: native {pair[0]}, shim {pair[1]}')
    return differing


def nears(native, shim):
    numbers = {}
    for line in native.lines['NEAR']:
        what, value, _ = line.split()
        numbers[what] = float(value)
    differing = []
    for line in shim.lines['NEAR']:
        what, value, tolerance = line.split()
        if what in numbers and abs(float(value) - numbers[what]) > float(tolerance):
            differing.append(f'{what}: native {numbers[what]:g}, shim {value}, more than '
                             f'{tolerance} apart')
    return differing


def gains(native, shim):
    """What is not as it should be under the shim, and how many things only the shim can do."""
    wrong, gained = [], 0
    outcomes = dict(line.partition(' ')[::2] for line in native.lines['GAIN'])
    for line in shim.lines['GAIN']:
        what, _, outcome = line.partition(' ')
        if outcome != 'ok':
            wrong.append(f'{what}: shim {outcome}')
        elif outcomes.get(what) != 'ok':
            gained += 1
    return wrong, gained


def compare(native, shim):
    if not shim.status.isdigit():
        return [], shim.status
    if shim.status == '0' and not pathlib.Path(shim.path + '.gpushim').exists():
        return ['the library began no log: it was not there'], 'the library was not there'
    differing = results(native, shim) + nears(native, shim)
    wrong, gained = gains(native, shim)
    differing += wrong
    if native.status != shim.status:
        differing.append(f'the end: native {native.ended()}, shim {shim.ended()}')
    if differing:
        return differing, f'{len(differing)} differ'
    if not shim.lines['RESULT'] and not shim.lines['GAIN'] and not shim.lines['NEAR']:
        return ['it said nothing that could be compared'], 'nothing to compare'
    if shim.status != '0':
        return [], 'equal, both fail'
    return [], f'equal, and {gained} more work' if gained else 'equal'


def main():
    name, native_path, shim_path, rows = sys.argv[1:]
    native, shim = Log(native_path), Log(shim_path)
    differing, text = compare(native, shim)
    if differing:
        print(f'-- {name}')
        for line in differing[:SHOWN]:
            print('   ' + line[:160])
        if len(differing) > SHOWN:
            print(f'   and {len(differing) - SHOWN} more')
    for mode, log in (('native', native), ('under the shim', shim)):
        if log.status != '0':
            print(f'-- {name}, {mode}: {log.summary()}')
            for line in log.stderr(8):
                print('   ' + line)
    with open(rows, 'a', encoding='utf-8') as out:
        out.write('\t'.join([name, native.summary(), shim.summary(), text]) + '\n')
    return bool(differing) or shim.status != '0'


if __name__ == '__main__':
    sys.exit(main())
