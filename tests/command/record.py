"""gpushim run --record: what a recording has is what the program did, call by call, and what becomes of it where
the program is killed, the disk is full, descriptors are closed, or the process forks.

usage: record.py GPUSHIM LIBGPUSHIM FOLDER_OF_LIBCUDA
"""
import collections
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys

import trace as recording # which lies beside this
from alone import check, end_with_faults, faults, surroundings
from faults import scratch

gpushim, _, driver = (os.path.realpath(path) for path in sys.argv[1:4])
PYTHON = os.path.realpath(sys.executable)
MIB = 1 << 20
CALLS = (recording.ALLOC, recording.FREE, recording.ALLOC_ASYNC, recording.FREE_ASYNC, recording.EXPORTED,
         recording.OPENED, recording.CLOSED)
EVENT_BYTES, BLOCK_BYTES = 48, 64 << 10
OUT_OF_MEMORY, INVALID_VALUE = 2, 1
ENVIRONMENT = surroundings(LD_LIBRARY_PATH=driver, GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='off')

# What every program of the tests begins with: calls that note what they were and what came of them.
BEGIN = '''
import ctypes, json, os, random, sys, threading
cuda = ctypes.CDLL('libcuda.so.1')
class Handle(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_ubyte * 64)]
cuda.cuMemFree_v2.argtypes = [ctypes.c_uint64]
cuda.cuMemFreeAsync.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
cuda.cuIpcGetMemHandle.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
cuda.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, Handle, ctypes.c_uint]
cuda.cuIpcCloseMemHandle.argtypes = [ctypes.c_uint64]
context = ctypes.c_void_p()
def begin():
    assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
calls = []
def note(op, address, size, stream, result):
    calls.append([op, threading.get_native_id(), address, size, stream, result])
def alloc(size):
    at = ctypes.c_uint64()
    result = cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size))
    note(1, at.value, size, 0, result)
    return at.value
def pitch(width, height):
    at, wide = ctypes.c_uint64(), ctypes.c_size_t()
    result = cuda.cuMemAllocPitch_v2(ctypes.byref(at), ctypes.byref(wide), ctypes.c_size_t(width),
                                     ctypes.c_size_t(height), 4)
    note(1, at.value, wide.value * height, 0, result)
    return at.value
def free(at):
    note(2, at, 0, 0, cuda.cuMemFree_v2(at))
def stream():
    made = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(made), 1) == 0
    return made.value
def alloc_async(size, stream):
    at = ctypes.c_uint64()
    result = cuda.cuMemAllocAsync(ctypes.byref(at), ctypes.c_size_t(size), ctypes.c_void_p(stream))
    note(3, at.value, size, stream, result)
    return at.value
def free_async(at, stream):
    note(4, at, 0, stream, cuda.cuMemFreeAsync(at, stream))
def tell():
    print(json.dumps(calls), flush=True)
'''
# Several threads that allocate and free in all ways, and what is refused.
VARIED = BEGIN + '''
begin()
def work(seed):
    assert cuda.cuCtxSetCurrent(context) == 0
    rng, held, mine = random.Random(seed), [], stream()
    for _ in range(rounds):
        if held and rng.random() < 0.5:
            at, order = held.pop(rng.randrange(len(held)))
            free_async(at, order) if order else free(at)
        elif rng.random() < 0.3:
            held.append((alloc_async(rng.choice([512, 40000, 3 << 20]), mine), mine))
        elif rng.random() < 0.1:
            held.append((pitch(1000, 30), 0))
        else:
            held.append((alloc(rng.choice([1, 512, 65536, 1 << 20, 5 << 20])), 0))
    for at, order in held:
        free(at)
rounds = int(sys.argv[1])
first = alloc(100000)
free(first)
again = alloc(100000)
alloc(1 << 50)
free(again + 512)
free(again)
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
for thread in threads: thread.start()
work(99)
for thread in threads: thread.join()
assert cuda.cuCtxSynchronize() == 0
tell()
'''
# One shares with another of its kind.
SHARES = BEGIN + '''
begin()
handle, other = Handle(), ctypes.c_uint64()
if sys.argv[1] == 'share':
    at = alloc(3 << 20)
    note(7, at, 3 << 20, 0, cuda.cuIpcGetMemHandle(ctypes.byref(handle), at + 4096))
    print(bytes(handle).hex(), flush=True)
    sys.stdin.readline()
    free(at)
else:
    handle = Handle.from_buffer_copy(bytes.fromhex(sys.argv[2]))
    result = cuda.cuIpcOpenMemHandle_v2(ctypes.byref(other), handle, 1)
    note(8, other.value, 3 << 20, 0, result)
    note(9, other.value, 3 << 20, 0, cuda.cuIpcCloseMemHandle(other))
tell()
'''
# What is asked of the stack comes in the same line as the call.
LONGEST = 508  # of a name in ASCII; what is longer has its end
LINES = BEGIN + '''
begin()
def stack(most=20):
    frame, lines = sys._getframe(1), []
    while frame and len(lines) < most:
        code = frame.f_code
        name = getattr(code, 'co_qualname', code.co_name)
        lines.append([name.replace('\\t', '?'), code.co_filename.replace('\\n', '?'), frame.f_lineno])
        frame = frame.f_back
    return lines
def alloc(size=4096):
    at = ctypes.c_uint64()
    result = cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)); lines = stack()
    note(1, at.value, size, 0, result)
    calls[-1].append(lines)
    return at.value
class Model:
    def forward(self, depth):
        if depth:
            return self.forward(depth - 1)
        return [alloc() for _ in range(2)]
def several():
    for depth in (0, 1, 30):
        yield (lambda: Model().forward(depth))()
def work():
    assert cuda.cuCtxSetCurrent(context) == 0
    for _ in range(3):
        list(several())
        sorted([2, 1], key=lambda number: alloc())
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
exec(compile('def odd():\\n\\n\\n    return alloc()', 'a\\n\\u00e9\\u20ac\\U0001f600.py', 'exec'))
exec(compile('def ' + 'long' * 40 + '(): return alloc()', '/a' * 300 + '.py', 'exec'))
odd(); globals()['long' * 40]()
alloc()
tag = ctypes.CDLL(None).gpushim_tag
assert tag(b'a label') == 0 and tag(b'x' * 64) != 0 and tag(b'a\\tb') != 0
plain, stack = stack, lambda: [['a label', '', 0], *plain()[1:]]
alloc()
assert tag(None) == 0
stack = plain
alloc()
tell()
'''
NAMES = BEGIN + '''
begin()
tag = ctypes.CDLL(None).gpushim_tag
def one(name):
    assert tag(name.encode()) == 0
    free(alloc(4096))
one('first')
child = os.fork()
if not child:
    one('first')
    one('of the child')
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
for number in range(70000):
    one(str(number))
one('first')
calls.clear()
tell()
'''
PAIRS = BEGIN + '''
begin()
def pairs(count):
    for _ in range(count):
        free(alloc(4096))
'''
KILLED = PAIRS + 'pairs(3000)\ntell()\nsys.stdin.readline()\n'
LEAVES = PAIRS + "pairs(3000)\ntell()\nsys.stdout.flush()\n"
LIMITED = PAIRS + 'pairs(20000)\ntell()\n'
CLOSES = PAIRS + '''
pairs(500)
os.closerange(3, 256)
others = [os.open(sys.argv[1], os.O_RDWR | os.O_APPEND) for _ in range(40)]
pairs(5000)
tell()
'''
FORKS = PAIRS + '''
pairs(100)
child = os.fork()
if not child: # whose calls go to the driver, and may be refused there
    calls.clear()
    pairs(3)
    tell()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
pairs(100)
tell()
'''


def command(path, program, *arguments, options=()):
    return [gpushim, 'run', '--record', path, *options, '--', PYTHON, '-c', program, *map(str, arguments)]


# What the library says of an allocation that a program means to be refused.
REFUSED = r'.*warning: no \d+ MiB are left on device 0; .*\n'


def run(words, status=0, err='', **options):
    ran = subprocess.run(words, env=ENVIRONMENT | options.pop('settings', {}), timeout=100, text=True,
                         capture_output=True, check=False, **options)
    if ran.returncode != status or not re.fullmatch(err, ran.stderr, re.S):
        faults.append(f'{words[:5]}: it ended with {ran.returncode}, not {status}, and wrote {ran.stderr!r}')
    return ran.stdout


def calls_of(text):
    try:
        return json.loads(text)
    except ValueError:
        print('\n'.join([*faults, f'a program told {text!r}']))
        sys.exit(1)


def read(path, ended=True):
    trace = recording.Trace(path)
    faults.extend(f'{path}: {wrong}' for wrong in trace.wrong[:5])
    check(trace.ended == ended and (not ended or trace.cut == 0),
          f'{path}: ended: {trace.ended}, bytes of a block cut off: {trace.cut}')
    return trace


def told(event):
    return [event.op, event.thread, event.address, event.size, event.stream, event.result]


def of_threads(calls):
    by_thread = collections.defaultdict(list)
    for call in calls:
        by_thread[call[1]].append(call)
    return by_thread


def check_calls(name, trace, done):
    """Thread by thread, since only a thread's own calls are in an order that it knows."""
    recorded, expected = of_threads(map(told, trace.of(*CALLS))), of_threads(done)
    check(recorded.keys() == expected.keys(), f'{name}: threads {list(recorded)}, not {list(expected)}')
    for thread, calls in expected.items():
        wrong = next((pair for pair in zip(recorded[thread], calls) if pair[0] != pair[1]), None)
        check(recorded[thread] == calls, f'{name}: thread {thread} has {len(recorded[thread])} calls, not '
              f'{len(calls)}; the first that differ: {wrong}')


# ---- What a recording has ------------------------------------------------------------------------

def is_what_was_done(folder):
    path = f'{folder}/varied'
    done = calls_of(run(command(path, VARIED, 4000), err=REFUSED))
    trace = read(path)
    check_calls('all ways', trace, done)
    check(os.stat(path).st_mode & 0o777 == 0o600, 'others may read it')
    check(len([each for each in trace.blocks if each[0] == recording.EVENTS]) > 8, f'{trace.blocks}')
    check(list(trace.devices) == [0] and trace.devices[0][0] == 1 << 30 and
          trace.devices[0][2] == 'Software GPU 0', f'devices: {trace.devices}')
    check(trace.program.startswith('python') and trace.pid > 0 and not trace.has_stacks, f'{trace.program}')
    first, again, refused = trace.of(recording.ALLOC)[:3]
    check([first.outcome, again.outcome, refused.outcome] ==
          [recording.NEW, recording.CACHED, recording.REFUSED], f'outcomes: {first} {again} {refused}')
    check(refused.result == OUT_OF_MEMORY and refused.address == 0, f'{refused}')
    check(next(e for e in trace.of(recording.FREE) if e.result).result == INVALID_VALUE, 'a wrong free')
    served = {event.outcome for event in trace.of(recording.ALLOC_ASYNC)}
    check(served <= {recording.CACHED, recording.FURTHER, recording.NEW, recording.WAITED}, f'{served}')
    return trace


def pieces_are_right(trace):
    """Every block lies in a piece that is there; figures follow them."""
    pieces, end, last, then = {}, 0, None, 0
    for event in trace.events:
        if event.op == recording.IS_FIGURES:
            last, then = event.figures, sum(pieces.values())
        if event.op == recording.PIECE_MADE:
            pieces[event.address] = event.size
        elif event.op == recording.PIECE_GONE:
            check(pieces.pop(event.address, 0) == event.size, f'a piece goes that was not there: {event}')
    made = [(e.address, e.address + e.size) for e in trace.of(recording.PIECE_MADE)]
    for event in trace.of(recording.ALLOC, recording.ALLOC_ASYNC):
        check(event.result or any(low <= event.address < high for low, high in made), f'in no piece: {event}')
        end = max(end, event.time_ns + event.took_ns)
    figures = trace.of(recording.IS_FIGURES)
    check(len(figures) >= 2 and last[0] == 0, f'the last figures: {last}')
    left = sum(pieces.values()) # what goes just then counts as gone, or not
    check(last and left <= sum(last) <= then, f'{last} of {then} bytes, and {left} afterwards')
    check(any(event.figures[0] > 0 for event in figures), 'nothing was ever live')
    check(len(figures) <= 2 + 2 * (end // 1000000 + 1), f'{len(figures)} figures in {end} ns')


def shares(folder):
    own, others = f'{folder}/shares', f'{folder}/opens'
    settings = {'GPUSHIM_SHARE_DIR': f'{folder}/sockets'}
    os.mkdir(f'{folder}/sockets', 0o700)
    with subprocess.Popen(command(own, SHARES, 'share'), env=ENVIRONMENT | settings, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sharer:
        handle = sharer.stdout.readline().strip()
        opened = calls_of(run(command(others, SHARES, 'open', handle), settings=settings))
        done = calls_of(sharer.communicate('\n', timeout=60)[0])
    check_calls('a sharer', read(own), done)
    check_calls('an importer', read(others), opened)
    check([call[5] for call in opened] == [0, 0], f'opened: {opened}')


def has_stacks(folder):
    path = f'{folder}/stacks'
    done = calls_of(run(command(path, VARIED, 300, options=['--record-stacks', '12']), err=REFUSED))
    trace = read(path)
    check_calls('with stacks', trace, done)
    ranges = [[int(part, 16) for part in line.split()[0].split('-')] for line in ''.join(trace.modules).splitlines()]
    kinds = [each[0] for each in trace.blocks]
    first = kinds.index(recording.MODULES) if recording.MODULES in kinds else len(kinds)
    earlier = {each[1] for each in trace.blocks[:first] if each[0] == recording.EVENTS}
    check(trace.has_stacks and ranges and first < len(kinds), f'{trace.blocks[:3]}')
    check(not trace.blocks[first:] or trace.blocks[first][1] not in earlier,
          f'the thread that wrote them had events before: {trace.blocks[:4]}')
    lengths = collections.Counter(len(event.addresses()) for event in trace.of(*CALLS))
    check(max(lengths) <= 12 and min(lengths) >= 1 and max(lengths) > 2, f'frames: {lengths}')
    outside = [frame for event in trace.events for frame in event.addresses()
               if not any(low <= frame < high for low, high in ranges)]
    check(not outside, f'frames in no module: {list(map(hex, outside[:5]))}')
    ours = [line for line in ''.join(trace.modules).splitlines() if line.endswith('libgpushim.so')]
    low, high = (int(part, 16) for part in ours[0].split()[0].split('-'))
    check(not any(low <= event.addresses()[0] < high for event in trace.of(*CALLS)),
          'the first frame is the library itself')


def has_one_frame(folder):
    path = f'{folder}/one-frame'
    done = calls_of(run(command(path, VARIED, 50, options=['--record-stacks', '1']), err=REFUSED))
    trace = read(path)
    check_calls('with one frame', trace, done)
    check({(len(event.addresses()), len(trace.named(event))) for event in trace.of(*CALLS)} == {(1, 1)},
          'each call has one address, and one line')


def has_lines(folder):
    """Of Python, as it tells them itself, in the threads and versions that there are; with a label before them."""
    for number, python in enumerate(dict.fromkeys(map(os.path.realpath, (PYTHON, '/usr/bin/python3')))):
        path = f'{folder}/lines{number}'
        if not os.path.exists(python):
            continue
        made = command(path, LINES, options=['--record-stacks', '20'])
        made[made.index(PYTHON)] = python
        done = calls_of(run(made))
        trace = read(path)
        check_calls('with lines', trace, [call[:6] for call in done])
        expected = {(call[1], call[2]): call[6] for call in done if call[0] == recording.ALLOC}
        check(len(expected) > 70 and {len(lines) for lines in expected.values()} > {2, 20}, f'{python}: {expected}')
        for event in trace.of(recording.ALLOC):
            said, lines = trace.named(event), expected.get((event.thread, event.address))
            if said != [(name, file[-LONGEST:], number) for name, file, number in lines]:
                faults.append(f'{python}: {said}, not {lines}')
                break
    done = calls_of(run(command(f'{folder}/labels', LINES)))
    trace = read(f'{folder}/labels')
    labels = {tuple(trace.named(event)) for event in trace.of(*CALLS)}
    check(labels == {(), (('a label', '', 0),)}, f'without stacks there are labels: {labels}')


def has_room_for_names(folder):
    """65,535 of them; what comes later has none, and is recorded all the same. A forked child tells all anew."""
    calls_of(run(command(f'{folder}/names-%p', NAMES)))
    paths = sorted(pathlib.Path(folder).glob('names-*'))
    check(len(paths) == 2, f'{paths}')
    counts = []
    for path in paths:
        trace = read(path)
        said = [trace.named(event)[0][0] for event in trace.of(recording.ALLOC)]
        known = {name for name in said if name != '?'}
        check(said[0] == 'first' and known == {name for name, _, _ in trace.names.values()},
              f'{len(said)}, {len(known)}')
        counts.append((len(said), len(known) > 60000))
    check(sorted(counts) == [(2, False), (70002, True)], f'{counts}')


# Memory of the second GPU, freed with the first one current; and stream-ordered memory of the default stream by its
# other name.
DEVICES = BEGIN + """
begin()
second = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(second), 1) == 0
assert cuda.cuCtxSetCurrent(second) == 0
at = alloc(1 << 20)
assert cuda.cuCtxSetCurrent(context) == 0
free(at)
at = alloc_async(1 << 20, 1)
free_async(at, 1)
assert cuda.cuCtxSynchronize() == 0
tell()
"""


def tells_devices_and_streams(folder):
    path = f'{folder}/devices'
    calls_of(run(command(path, DEVICES), settings={'SOFTCUDA_DEVICES': '2'}))
    found = [(event.op, event.device, event.stream) for event in read(path).of(*CALLS)]
    check(found == [(recording.ALLOC, 1, 0), (recording.FREE, 1, 0), (recording.ALLOC_ASYNC, 0, 0),
                    (recording.FREE_ASYNC, 0, 0)], f'device and stream of each: {found}')


# ---- When things go wrong ------------------------------------------------------------------------

def killed(folder):
    path = f'{folder}/killed'
    with subprocess.Popen(command(path, KILLED), env=ENVIRONMENT, text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as process:
        done = calls_of(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    trace = read(path, ended=False)
    recorded = [told(event) for event in trace.of(*CALLS)]
    lost = len(done) - len(recorded)
    check(recorded == done[:len(recorded)], 'what was written before it was killed is not what it did')
    check(0 <= lost <= BLOCK_BYTES // EVENT_BYTES, f'{lost} calls of {len(done)} are lost')


def leaves(folder):
    """An end without exit handlers is one in order."""
    for end in ('os._exit(0)', 'ctypes.CDLL(None).quick_exit(0)'):
        path = f'{folder}/leaves-{end[0]}'
        done = calls_of(run(command(path, LEAVES + end)))
        check_calls(end, read(path), done)


def disk_is_full(folder):
    path, most = f'{folder}/limited', 300000
    done = calls_of(run(command(path, LIMITED), err=r'.*warning: the recording ends: .*File too large.*\n',
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))))
    trace = read(path, ended=False)
    recorded = [told(event) for event in trace.of(*CALLS)]
    check(len(done) == 40000 and recorded == done[:len(recorded)], f'{len(done)} calls')
    check(most - BLOCK_BYTES < os.path.getsize(path) <= most and trace.cut == 0,
          f'{os.path.getsize(path)} bytes, {trace.cut} of a block that is not whole')


def descriptors_are_closed(folder):
    path, other = f'{folder}/closes', f'{folder}/other'
    pathlib.Path(other).touch()
    done = calls_of(run(command(path, CLOSES, other)))
    check_calls('descriptors closed', read(path), done)
    check(os.path.getsize(other) == 0, "it was written to the program's own file")


def forks(folder):
    path = f'{folder}/forks'
    _, own = map(calls_of, run(command(path, FORKS)).splitlines())
    check_calls('a parent', read(path), own)
    child, own = map(calls_of, run(command(f'{path}-%p', FORKS)).splitlines())
    files = {int(name.split('-')[1]): f'{folder}/{name}' for name in os.listdir(folder)
             if name.startswith('forks-')}
    check(set(files) == {own[0][1], child[0][1]}, f'{files}, not of {own[0][1]} and {child[0][1]}')
    check_calls('a parent, %p', read(files[own[0][1]]), own)
    check_calls('a child', read(files[child[0][1]]), child)


def what_is_there_stays(folder):
    path, precious = f'{folder}/again', f'{folder}/precious'
    says = r'.*warning: nothing is recorded to \S+: {}.*\n'
    for pairs in 500, 10: # the second is shorter
        done = calls_of(run(command(path, PAIRS + f'pairs({pairs})\ntell()')))
        check_calls('again', read(path), done)
    pathlib.Path(precious).write_text('years of work')
    run(command(precious, PAIRS + 'pairs(10)'), err=says.format('there is a file already that is no recording'))
    check(pathlib.Path(precious).read_text() == 'years of work', 'it was written over')
    os.symlink(path, f'{folder}/link')
    run(command(f'{folder}/link', PAIRS + 'pairs(10)'), err=says.format('it is a symbolic link'))
    run(command(f'{folder}/none/x', PAIRS + 'pairs(10)'), err=says.format('No such file or directory'))
    os.mkfifo(f'{folder}/pipe')
    run(command(f'{folder}/pipe', PAIRS + 'pairs(10)'), err=says.format('it is no regular file'))
    with subprocess.Popen(command(path, KILLED), env=ENVIRONMENT, text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as first:
        done = calls_of(first.stdout.readline())
        run(command(path, PAIRS + 'pairs(10)'), err=says.format('another process records there'))
        first.communicate('\n', timeout=60)
    check_calls('the first of two', read(path), done)


def by_its_commands(folder):
    done = calls_of(run([gpushim, 'record', '--output', 'here', '--', PYTHON, '-c', PAIRS + 'pairs(5)\ntell()'],
                        cwd=folder,
                        err=f'gpushim: next: gpushim report {folder}/here\n'))
    check_calls('gpushim record', read(f'{folder}/here'), done)
    printed = run([gpushim, 'run', '--print', '--record', 'x-%p', '--record-stacks', '3'], cwd=folder)
    check(f'GPUSHIM_RECORD={folder}/x-%p\nGPUSHIM_RECORD_STACKS=3\n' in printed, f'{printed}')
    run([gpushim, 'run', '--record=', PYTHON], 2, "gpushim: --record: the file's name is missing\n")
    run([gpushim, 'run', '--record-stacks', '65', PYTHON], 2, '.*record_stacks = "65" .*allowed: .*\n')
    alone = os.path.join(folder, 'alone')
    os.mkdir(alone)
    said = subprocess.run([gpushim, 'record', PYTHON, '-c', PAIRS + 'pairs(2)\ntell()'], cwd=alone, env=ENVIRONMENT,
                          capture_output=True, text=True, timeout=60, check=True)
    name, = os.listdir(alone)
    check(re.fullmatch(os.path.basename(PYTHON) + r'-\d+\.trace', name), f'its name where nobody gives one: {name}')
    check(said.stderr == f'gpushim: next: gpushim report {alone}/{name}\n', f'{said.stderr}')
    check_calls('gpushim record, by default', read(f'{alone}/{name}'), calls_of(said.stdout))
    run([gpushim, 'record', 'sh', '-c', 'exit 7'], 7,
        r'gpushim: nothing is recorded: .*\(there is no new /sh-\d+\.trace\)\n', cwd='/')
    for name in ('here', 'text'):
        pathlib.Path(folder, 'text').write_text('of another', encoding='ascii')
        program = [PYTHON, '-c', PAIRS + 'pairs(2)'] if name == 'text' else ['true']
        said = subprocess.run([gpushim, 'record', '--output', name, *program], cwd=folder, env=ENVIRONMENT,
                              capture_output=True, text=True, timeout=60, check=True)
        check(re.search(f'nothing is recorded: .*no new {folder}/{name}', said.stderr) and 'next' not in said.stderr,
              f'what lies there is of another: {said}')
    stays_beside(folder)


BESIDE = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'heard\\n')) # print() may be under way
signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
print('begun', flush=True)
while True: # no pause(), which a signal of just before it does not end
    time.sleep(0.01)
"""


def stays_beside(folder):
    """What gpushim record is sent the program gets; its end is the program's, and its line the last."""
    with subprocess.Popen([gpushim, 'record', '--output', 'beside-%p', PYTHON, '-c', PAIRS + 'pairs(2)' + BESIDE],
                          cwd=folder,
                          env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as beside:
        check(beside.stdout.readline() == 'begun\n', 'it begins')
        for _ in range(2):
            beside.send_signal(signal.SIGUSR1)
            check(beside.stdout.readline() == 'heard\n', 'the program has the signal')
        beside.send_signal(signal.SIGTERM)
        rest = beside.stdout.read()
    program, = (name for name in os.listdir(folder) if name.startswith('beside-'))
    check(rest == f'gpushim: next: gpushim report {folder}/{program}\n' and beside.returncode == -signal.SIGKILL,
          f'{rest!r}, {beside.returncode}')
    run([gpushim, 'record', '--output', 'none', 'sh', '-c', 'exit 7'], 7,
        f'gpushim: nothing is recorded: .*{folder}/none.*\n',
        cwd=folder)
    with open(f'{folder}/script', 'w', encoding='ascii', opener=lambda path,
              flags: os.open(path, flags, 0o755)) as script:
        script.write('#!/none\n')
    run([gpushim, 'record', '--output', 'none', './script'], 126, "gpushim: './script' cannot be started: [^\n]*\n",
        cwd=folder)


with scratch('gpushim-') as place:
    place = os.path.realpath(place)
    pieces_are_right(is_what_was_done(place))
    for proof in (shares, has_stacks, has_one_frame, has_lines, has_room_for_names, tells_devices_and_streams, killed,
                  leaves, disk_is_full,
                  descriptors_are_closed, forks, what_is_there_stays,
                  by_its_commands):
        proof(place)
end_with_faults()
