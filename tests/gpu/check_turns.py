"""Checks how programs are compared step by step in turns (workloads/turns.py and what it starts) with
programs that need no GPU, and the programs themselves as far as that goes without their frameworks.

    check_turns.py [SHIM SOFTWARE_DRIVER]    with them also what the library counts
"""
import ast
import builtins
import contextlib
import io
import json
import os
import pathlib
import random
import re
import symtable
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
WORKLOADS = HERE / 'workloads'
sys.path.insert(0, str(WORKLOADS))

import turn_figures  # noqa: E402
import turn_process  # noqa: E402
import turns  # noqa: E402

MIB = 1 << 20
PATIENT_S = 200  # the machine may be busy
turns.WARM_TURNS = 1
MODES = ('cached', 'shim', 'shim_cached')

STEADY = '''import random
STEPS, FULL, TINY = 3, {'scale': 100}, {'scale': 7}
def build(device, scale):
    return lambda number: number + scale * random.random()
'''


def check(what, got, expected):
    if got != expected:
        sys.exit(f'{what}: {got!r}, not {expected!r}')


def must(condition, what):
    if not condition:
        sys.exit(f'failed: {what}')


# ---- Figures, of records made up here ----

def steps(program, mode, times, of_turn=2):
    """Steps in turns of `of_turn`, with these times."""
    return [{'kind': 'step', 'program': program, 'mode': mode, 'turn': i // of_turn, 'step': 3 + i,
             'ms': ms, 'host_ms': ms / 2, 'value': 0.0, 'did': {}}
            for i, ms in enumerate(times)]


def alone(program, mode, ms, device, framework, library=None):
    return [{'kind': 'alone', 'program': program, 'mode': mode, 'ms': ms, 'device': device},
            {'kind': 'peaks', 'program': program, 'mode': mode, 'framework': framework,
             'library': library}]


def of(records):
    figures = turn_figures.Programs()
    for record in records:
        figures.add(json.loads(json.dumps(record)))
    return figures


def made_up():
    """Ten steps each in five turns: ratios 1, 1.1, 1, 1.2, 1, 1, 1, 1, 1, 2 of one and 1 of the other."""
    return (alone('torch_x', 'cached', 9.0, 1000 * MIB, [800 * MIB, 500 * MIB]) +
            alone('torch_x', 'shim', 9.0, 900 * MIB, None, [850 * MIB, 680 * MIB]) +
            alone('torch_x', 'shim_cached', 9.0, 1000 * MIB, [700 * MIB, 500 * MIB],
                  [800 * MIB, 780 * MIB]) +
            alone('torch_x', 'uncached', 55.0, 800 * MIB, None) +
            steps('torch_x', 'cached', [10.0] * 10) +
            steps('torch_x', 'shim', [10.0, 11.0, 10.0, 12.0, 10.0, 10.0, 10.0, 10.0, 10.0, 20.0]) +
            steps('torch_x', 'shim_cached', [10.3] * 10))


def check_figures():
    figures = of(made_up())
    shim = figures.compared('torch_x')['shim']
    check('the median of steps', round(shim.time(), 6), 1.0)
    check('medians of turns', [round(turn, 6) for turn in shim.turns], [1.05, 1.1, 1.0, 1.0, 1.5])
    check('quartiles', turn_figures.spread([5.0, 1.0, 2.0, 4.0, 3.0]), (2.0, 4.0))
    check('of one turn', turn_figures.spread([1.5]), (1.5, 1.5))
    check('a row', figures.row('torch_x', 'program'), (
        'program_torch_x',
        'cached 10.00 ms, 1000 MiB of the device, 800 MiB reserved (1.60 of live); '
        'uncached 55.00 ms, 800 MiB of the device',
        'uncached 10.00 ms, 900 MiB of the device, 850 MiB reserved (1.25 of live); '
        'cached 10.30 ms, 1000 MiB of the device, 800 MiB reserved (1.60 of live)',
        'uncached 1.000 (1.000 to 1.100) times the time, 0.900 times the memory, '
        '1.062 times what is reserved, above 1; cached 1.030 (1.030 to 1.030) times the time, '
        'above 1.02, 1.000 times the memory, 1.000 times what is reserved; 10 steps in 5 turns'))
    must(not figures.any_failed(), 'nothing failed')


# ---- Turns ----

def options_of(folder, **settings):
    (folder / 'logs').mkdir(exist_ok=True)
    settings = {'modes': MODES, 'once': (), 'shim': None, 'seconds': 1e6, 'patience': PATIENT_S,
                'cores': None, 'keep': str(folder / 'kept'), 'rows': str(folder / 'rows'),
                'rows_as': 'program', 'logs': folder / 'logs', 'device': 'cpu', 'tiny': True,
                'folder': folder, **settings}
    return turns.argparse.Namespace(**settings)


class Short(turns.Run):
    """A run in which each program has its five turns and no time for more."""

    def left(self):
        return PATIENT_S

    def measure(self, programs):
        self.load(programs)
        for program in programs:
            program.measure(until=0)
            self.tell(program.name)


def run_of(folder, programs, **settings):
    """(rows by program, records, what was printed) of the programs, {name: source}."""
    for name in ('kept', 'rows'):
        (folder / name).unlink(missing_ok=True)
    for name, source in programs.items():
        (folder / f'{name}.py').write_text(source)
    run = Short(options_of(folder, **settings))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        run.measure([turns.Program(folder / f'{name}.py', run) for name in programs])
    run.kept.close()
    rows = [line.split('\t') for line in (folder / 'rows').read_text().splitlines()]
    records = [json.loads(line) for line in (folder / 'kept').read_text().splitlines()]
    must(all(len(row) == 4 for row in rows), 'a row is four cells')
    return {row[0]: row[3] for row in rows}, records, said.getvalue()


def taken(records, mode, program='plain_steady'):
    return [(record['turn'], record['step'], record['value']) for record in records
            if record['kind'] == 'step' and (record['program'], record['mode']) == (program, mode)]


def check_turns(folder):
    rows, records, said = run_of(folder, {'plain_steady': STEADY})
    first = taken(records, 'cached')
    check('its numbers', [step for _, step, _ in first], list(range(9)))
    check('its turns, of which the first does not count', [turn for turn, _, _ in first],
          [None] * 4 + list(range(5)))
    for _, number, value in first:
        random.seed(turn_process.SEED + number)
        check(f'numbers of step {number}', value, number + 7 * random.random())
    for mode in MODES[1:]:
        check(f'steps of {mode}', taken(records, mode), first)
    orders = [record['order'] for record in records if record['kind'] == 'turn']
    check('who begins', [order[0] for order in orders], [*MODES, *MODES][:5])
    order_taken = [record['mode'] for record in records if record['kind'] == 'step' and
                   record['turn'] is not None]
    check('who steps when', order_taken, [mode for order in orders for mode in order])
    must('9 steps' not in rows['program_plain_steady'] and
         rows['program_plain_steady'].endswith('; 5 steps in 5 turns'), rows)
    must(said.strip().endswith(rows['program_plain_steady']), f'the row is printed: {said}')


# ---- The programs ----

def undefined(path):
    """Names that nothing in the file binds."""
    top = symtable.symtable(path.read_text(encoding='utf-8'), str(path), 'exec')
    bound = {symbol.get_name() for symbol in top.get_symbols()
             if symbol.is_assigned() or symbol.is_imported()}
    bound |= {*dir(builtins), '__file__', '__name__', '__doc__'}
    tables, unknown = [top], set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        unknown |= {symbol.get_name() for symbol in table.get_symbols()
                    if symbol.is_referenced() and symbol.get_name() not in bound and
                    (table is top or symbol.is_global())}
    return sorted(unknown)


def check_programs():
    files = sorted(WORKLOADS.rglob('*.py'))
    must(len(files) > 30, 'the files are found')
    for path in files:
        compile(path.read_text(encoding='utf-8'), str(path), 'exec')
        check(f'{path.name}: names that it has from nowhere', undefined(path), [])
    programs = [path for path in (WORKLOADS / 'programs').glob('*.py')
                if path.stem not in ('layers', 'ranks')]
    for path in programs:
        tree = ast.parse(path.read_text(encoding='utf-8'))
        must(ast.get_docstring(tree), f'{path.name} says what it is')
        must(path.stem.partition('_')[0] in turns.MODES, f'{path.name} is of a framework')
        names = {target.id for node in tree.body if isinstance(node, ast.Assign)
                 for target in node.targets if isinstance(target, ast.Name)}
        must({'STEPS', 'FULL', 'TINY'} <= names, f'{path.name} has STEPS, FULL and TINY')
        builds = [node for node in tree.body if isinstance(node, ast.FunctionDef) and
                  node.name == 'build']
        must(builds and builds[0].args.args[0].arg == 'device', f'{path.name} has build(device, …)')
    parts = (HERE / 'run.sh').read_text(encoding='utf-8').partition('part_torch_memory()')[2]
    for path in programs:
        check(f'run.sh has {path.stem}', re.findall(r'\w+', parts).count(path.stem), 1)


# ---- What the library counts ----

BEGINS = '''import ctypes
STEPS, FULL, TINY = 2, {}, {}
def must(error):
    if error:
        raise OSError(f'CUDA error {error}')
def begun():
    cuda, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    return cuda
'''
ALLOCATES = BEGINS + '''
def build(device):
    cuda = begun()
    def step(number):
        blocks = []
        for i in range(5):
            blocks.append(ctypes.c_uint64())
            must(cuda.cuMemAlloc_v2(ctypes.byref(blocks[-1]), ctypes.c_size_t(3 << 20)))
        for block in blocks:
            must(cuda.cuMemFree_v2(block))
        return number
    return step
'''
# Without the library the stand-in for PyTorch has no allocator.
ORDERED = BEGINS + '''
import torch
def build(device):
    begun()
    return lambda number: len([torch.empty(1 << 18) for _ in range(5) if torch._State.current])
'''


def check_counted(folder, shim, driver):
    os.environ['LD_LIBRARY_PATH'] = f'{driver}:{os.environ.get("LD_LIBRARY_PATH", "")}'
    rows, records, _ = run_of(folder, {'plain_allocates': ALLOCATES}, modes=('cached', 'library'),
                              shim=shim)
    must(rows['program_plain_allocates'].endswith('; 5 steps in 5 turns'), rows)
    counted = [record['did'] for record in records
               if record['kind'] == 'step' and record['mode'] == 'library']
    check('allocations of each step', [did['allocations'] for did in counted], [5] * 8)
    must(counted[0]['made'] > 0 and counted[0]['further'] > 0, f'the first makes pieces: {counted[0]}')
    check('natively', [record['did'] for record in records
                       if record['kind'] == 'step' and record['mode'] == 'cached'], [{}] * 8)
    peaks = [record['library'] for record in records if record['kind'] == 'peaks' and
             record['mode'] == 'library']
    must(15 * MIB <= peaks[-1][0] <= 64 * MIB and peaks[-1][1] == 15 * MIB, f'its peaks: {peaks}')


def check_ordered(folder, shim):
    """PyTorch allocates from the library: each tensor is an allocation of its."""
    os.environ['PYTHONPATH'] = str(HERE.parent / 'packages/stand_in')
    _, records, _ = run_of(folder, {'torch_ordered': ORDERED}, modes=('cached', 'ordered'), shim=shim)
    did = {mode: [(record['value'], record['did'].get('allocations')) for record in records
                  if record['kind'] == 'step' and record['mode'] == mode] for mode in ('cached', 'ordered')}
    check('allocations of each step', did, {'cached': [(0, None)] * 8, 'ordered': [(5, 5)] * 8})


def main():
    with_library = sys.argv[1:3]
    check_figures()
    check_programs()
    turns.GRACE_S = PATIENT_S
    with tempfile.TemporaryDirectory() as name:
        check_turns(pathlib.Path(name))
    if with_library:
        with tempfile.TemporaryDirectory() as name:
            check_counted(pathlib.Path(name), *with_library)
        with tempfile.TemporaryDirectory() as name:
            check_ordered(pathlib.Path(name), with_library[0])


if __name__ == '__main__':
    main()
