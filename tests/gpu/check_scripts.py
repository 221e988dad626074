"""Checks what decides about the programs on a GPU (compare.py, differences.py, table.py, limited.py, how
numba_suite.py compares) on logs and programs made up here: a comparison that cannot fail would
prove nothing.
"""
import collections
import fnmatch
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
GOOD = ('RESULT a 1\nRESULT b 2\nNEAR free 100 8\nTIME median step 3 ms\n', '0', 'device 0: 7\n')


def compared(folder, native, shim):
    """What compare.py makes of two logs: its exit status and the last column of its row."""
    rows = folder / 'rows'
    rows.unlink(missing_ok=True)
    for name, (said, status, logged) in (('n', native), ('s', shim)):
        (folder / name).write_text(said)
        (folder / f'{name}.status').write_text(status)
        (folder / f'{name}.err').write_text('its last words\n')
        (folder / f'{name}.gpushim').unlink(missing_ok=True)
        if logged is not None:
            (folder / f'{name}.gpushim').write_text(logged)
    run = subprocess.run([sys.executable, HERE / 'compare.py', 'it', folder / 'n',
                          folder / 's', rows], stdout=subprocess.DEVNULL, check=False)
    return run.returncode, rows.read_text().rstrip('\n').split('\t')[3]


def check(what, got, expected):
    if got != expected:
        sys.exit(f'{what}: {got}, not {expected}')


def check_compare(folder):
    said, _, logged = GOOD
    cases = (
        ('the same', GOOD, GOOD, (0, 'equal')),
        ('another outcome', GOOD, (said.replace('b 2', 'b 3'), '0', logged), (1, '1 differ')),
        ('a line less', GOOD, (said.replace('RESULT b 2\n', ''), '0', logged), (1, '1 differ')),
        ('a line more', GOOD, (said + 'RESULT c 1\n', '0', logged), (1, '1 differ')),
        ('another order', GOOD, ('RESULT b 2\nRESULT a 1\n', '0', logged), (0, 'equal')),
        ('near', GOOD, (said.replace('100', '107'), '0', logged), (0, 'equal')),
        ('not near', GOOD, (said.replace('100', '109'), '0', logged), (1, '1 differ')),
        ('a gain', (said + 'GAIN x refused\n', '0', ''), (said + 'GAIN x ok\n', '0', logged),
         (0, 'equal, and 1 more work')),
        ('no gain', GOOD, (said + 'GAIN x refused\n', '0', logged), (1, '1 differ')),
        ('a crash at the end', GOOD, (said, '139', logged), (1, '1 differ')),
        ('both crash', (said, '139', ''), (said, '139', ''), (1, 'equal, both fail')),
        ('out of time', GOOD, ('', 'out of time', ''), (1, 'out of time')),
        ('nothing said', ('', '0', ''), ('', '0', logged), (1, 'nothing to compare')),
        ('the shim had nothing to say', GOOD, (said, '0', ''), (0, 'equal')),
        ('the shim was not there', GOOD, (said, '0', None), (1, 'the library was not there')),
    )
    for what, native, shim, expected in cases:
        check(what, compared(folder, native, shim), expected)


def check_differences(folder):
    """Only what skips natively for that reason, and passes under the library, is its doing."""
    both = ('a::one passed', 'a::two passed', 'b::three skipped one device')
    only = (('c::four skipped natively refused', 'c::four passed'),)
    strange = (('d::five passed', 'd::five skipped no broker'),
               ('d::six FAILED', 'd::six passed'), ('d::seven passed', None),
               (None, 'd::eight passed'), ('d::nine skipped one device', 'd::nine passed'),
               ('d::ten skipped natively refused', 'd::ten skipped no broker'))
    fails = (('e::eleven passed', 'e::eleven FAILED'),)
    cases = [((), (0, 'equal')), (only, (0, '1 differ: what only the library does')),
             (fails, (1, '1 differ: not explained; 1 fail under the library')),
             (only + strange, (1, '1 differ: what only the library does; 6 differ: not explained'))]
    cases += [((pair,), (1, '1 differ: not explained')) for pair in strange]
    for pairs, expected in cases:
        for nth, name in enumerate(('n', 's')):
            lines = [*both, *(pair[nth] for pair in pairs if pair[nth])]
            (folder / name).write_text(''.join(f'RESULT {line}\n' for line in lines))
        run = subprocess.run([sys.executable, HERE / 'differences.py', folder / 'n', folder / 's'],
                             capture_output=True, text=True, check=False)
        check(f'differences {pairs}', (run.returncode, run.stdout.splitlines()[0]), expected)
    (folder / 's').write_text('')
    run = subprocess.run([sys.executable, HERE / 'differences.py', folder / 's', folder / 's'],
                         capture_output=True, text=True, check=False)
    check('nothing run', (run.returncode, run.stdout.strip()), (1, 'nothing was run'))


def check_table(folder):
    some = [folder / 'some.tsv', folder / 'more.tsv']
    some[0].write_text('numba\t9 ok\t8 ok\t1 differ\nnew\tok\tok\tequal\n')
    some[1].write_text('numba\t9 ok\t9 ok\tequal test by test\n')
    said = subprocess.run([sys.executable, HERE / 'table.py', *some], check=True, capture_output=True, text=True).stdout
    check('the table', [re.split('  +', line) for line in said.splitlines()],
          [['program', 'native', 'under the library', 'compared'], ['numba', '9 ok', '9 ok', 'equal test by test'],
           ['new', 'ok', 'ok', 'equal']])


def check_limited(folder):
    for what, seconds, script, expected in (
            ('a status', 20, 'exit 7', 7), ('a signal', 20, 'kill -11 $$', 139),
            ('a hang', 0.2, 'sleep 60', 124), ('what it left', 20, 'sleep 60 & exit 0', 0)):
        run = subprocess.run([sys.executable, HERE / 'limited.py', str(seconds), folder / 'stacks',
                              'sh', '-c', script], stderr=subprocess.DEVNULL, timeout=50,
                             check=False)
        check(what, run.returncode, expected)


def check_numba(folder):
    spec = importlib.util.spec_from_file_location('suite', HERE / 'workloads' / 'numba_suite.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    options = module.argparse.Namespace(seconds=9, logs=str(folder), shim='', rows=None)
    suite = module.Suite(options)
    suite.seen = {mode: collections.defaultdict(set) for mode in module.MODES}
    tests = {'same': ('ok', 'ok'), 'both_fail': ('failing', 'failing'), 'worse': ('ok', 'failing'),
             'unsteady': ('ok failing', 'ok'), 'lost': ('ok', ''), 'late': ('ok', 'failing')}
    for test, outcomes in tests.items():
        suite.module_of[test] = 'late_module' if test == 'late' else 'module'
        for mode, outcome in zip(module.MODES, outcomes):
            suite.seen[mode][test].update(outcome.split())
            if not outcome:
                del suite.seen[mode][test]
    suite.left_out.add('late_module')
    check('numba', suite.differing(), (['lost', 'worse'], ['unsteady']))
    check('numba natively', suite.count('native'), '4 ok, 0 skipped, 1 failing')
    check('numba under the shim', suite.count('shim'), '2 ok, 0 skipped, 2 failing')


def check_groups(_):
    """What run.sh names of the conformance tests is there, and each test that is skipped says why: it
    takes those that do not for left out."""
    script = (HERE / 'run.sh').read_text()
    quiet = ''.join(re.findall(r'^quiet=[\'"](?:\$quiet)?(.*)[\'"]$', script, re.MULTILINE))
    patterns = [f'{suite}/{name}*' for suite, names in re.findall(r'(\w+)/(?:@\()?([\w|]*)\)?\*', quiet)
                for name in names.split('|')]
    text = ''.join(file.read_text() for file in (HERE.parent / 'conformance').glob('*.c'))
    tests = ['/'.join(found) for found in re.findall(r'^Test\((\w+), (\w+)', text, re.MULTILINE)]
    check('patterns that are there', len(patterns) > 12, True)
    check('tests that run.sh names and that are not there',
          [pattern for pattern in patterns if not fnmatch.filter(tests, pattern)], [])
    check('tests skipped without a word', text.count('cr_skip()'), 0)


with tempfile.TemporaryDirectory() as name:
    for case in (check_groups, check_compare, check_differences, check_table, check_limited, check_numba):
        case(pathlib.Path(name))
