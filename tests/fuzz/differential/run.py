"""Programs of the differential fuzzer, two ways each, compared line by line:

    run.py [--seconds N] [--seeds A-B] [--left SIDE] [--right SIDE] [--steps N] [--jobs N]

A SIDE is native or shim, and :software or :gpu, such as shim:gpu; the default is native:software
against shim:software. Where there is no build folder, all is taken from the bundle that
tests/gpu/bundle.sh made. A seed that differs is tried with fewer steps until none can be left out; the steps that
remain and both sides' lines are printed, and the exit status is 1. One that crashes or hangs is such
a difference. What the limits in shim/README.md name is not compared: the program prints ~N in its
place, and the words of the limit at its end, which that page must have.
"""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BUILD = pathlib.Path(os.environ.get('GPUSHIM_BUILD', ROOT / 'build'))
BUNDLE = ROOT / '.bundle'
SHOWN = 40  # steps of a program that could not be made shorter in time
HANGS = 90  # seconds; a program ends itself after 60


def of_bundle(mode, software):
    result = dict(os.environ)
    if software:
        result['LD_LIBRARY_PATH'] = str(BUNDLE / 'softcuda')
    if mode == 'shim':
        result['LD_PRELOAD'] = str(BUNDLE / 'libgpushim.so')
    return result


def of_build(mode, software):
    """What tests/with.sh runs a program under."""
    command = ['sh', str(ROOT / 'tests/with.sh'), mode] + (['--software'] if software else [])
    clean = {name: value for name, value in os.environ.items()
             if name != 'LD_PRELOAD' and (name != 'LD_LIBRARY_PATH' or not software)}
    text = subprocess.run(command + ['env', '-0'], env=clean, check=True, capture_output=True,
                          text=True).stdout
    return dict(line.split('=', 1) for line in text.split('\0') if '=' in line)


def environment(side, scratch):
    mode, _, driver = side.partition(':')
    make = of_build if BUILD.exists() else of_bundle
    result = make(mode, driver != 'gpu')
    result['GPUSHIM_SHARE_DIR'] = str(scratch)
    if driver != 'gpu':
        # Each process has devices of its own: memory of one's is no use to another's.
        result.update(SOFTCUDA_MEMORY='4G', SOFTCUDA_WITHOUT='sync_memops',
                      GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='off')
        # Which GPUs may be used (tests/gpu/several.sh) says nothing of the software driver's devices.
        result.pop('CUDA_VISIBLE_DEVICES', None)
    return result


class Side:
    def __init__(self, name, program, scratch):
        self.name = name
        self.program = program
        self.environment = environment(name, scratch)
        self.gpu = name.endswith(':gpu')

    def run(self, seed, options, only=None):
        """The lines of the program, and how it ended where it did not end well."""
        command = [str(self.program), str(seed)] + options + (['--only', only] if only else [])
        environment = dict(self.environment)
        if self.gpu and '--devices' not in options:
            # The driver makes all devices ready that are visible, which takes it half a second each.
            visible = os.environ.get('CUDA_VISIBLE_DEVICES', '0')
            environment['CUDA_VISIBLE_DEVICES'] = visible.split(',')[0]
        # A preload is the program's, not that of what starts it.
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, errors='replace')
        try:
            out, err = process.communicate(timeout=HANGS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        lines = out.splitlines()
        if process.returncode:
            lines.append(f'ended by {process.returncode}')
        return lines, err


def options_of(seed, arguments):
    """Two devices in half of them where there are."""
    options = ['--steps', str(arguments.steps)]
    if arguments.devices > 1 and seed % 4 >= 2:
        options += ['--devices', '2']
    return options


def both(left, right, seed, options, only=None):
    """At the same time: what each prints, and says."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(right.run, seed, options, only)
        return left.run(seed, options, only), other.result()


def first_difference(left, right):
    for number, (one, other) in enumerate(zip(left, right)):
        if one != other:
            return number
    return None if len(left) == len(right) else min(len(left), len(right))


def ranges(steps):
    """Such as 0-5,9."""
    parts = []
    for step in steps:
        if parts and step == parts[-1][1] + 1:
            parts[-1][1] = step
        else:
            parts.append([step, step])
    return ','.join(f'{a}-{b}' if a < b else f'{a}' for a, b in parts)


def shrink(seed, options, left, right, steps, deadline):
    """The fewest steps that still differ: pieces are left out, smaller ones each time."""
    def differs(kept):
        (a, _), (b, _) = both(left, right, seed, options, ranges(kept) or '999999')
        return first_difference(a, b) is not None

    if differs([]):
        return []
    size = max(1, len(steps) // 2)
    while time.monotonic() < deadline:
        shorter = False
        for start in range(len(steps) - size, -size, -size):
            rest = steps[:max(start, 0)] + steps[start + size:]
            if len(rest) < len(steps) and time.monotonic() < deadline and differs(rest):
                steps = rest
                shorter = True
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return steps


def step_of(line):
    word = line.split(' ', 1)[0]
    return int(word) if word.isdigit() else None


def report(seed, options, left, right, names, errors):
    number = first_difference(left, right)
    print(f'seed {seed} ({" ".join(options)}):')
    before = [line for line in left[:number] if step_of(line) is not None]
    if len(before) > SHOWN:
        print(f'    ({len(before) - SHOWN} steps before these)')
    for line in before[-SHOWN:]:
        print(f'    {line}')
    for name, lines in zip(names, (left, right)):
        line = lines[number] if number < len(lines) else 'nothing'
        print(f'  {name + ":":18} {line}')
        if number + 1 < len(lines) and lines[number + 1].startswith('ended by'):
            print(f'  {"":18} {lines[number + 1]}')
    for line in errors.splitlines()[-5:]:
        print(f'  said: {line}')


def one(seed, arguments, left, right):
    """Whether both sides agree on a seed; what differs is told."""
    options = options_of(seed, arguments)
    (a, said_a), (b, said_b) = both(left, right, seed, options)
    number, firsts = first_difference(a, b), (a, b)
    if number is None:
        if len(a) < 3 or a[-1].startswith('ended by'):
            return f'seed {seed} does not run on either side: {(a or ["nothing"])[-1]}', said_a
        return None
    last = max((step_of(line) or 0 for line in a[:number + 1] + b[:number + 1]),
               default=arguments.steps)
    steps = list(range(min(last + 2, arguments.steps)))
    if not arguments.whole:
        steps = shrink(seed, options, left, right, steps, time.monotonic() + arguments.shrink)
        only = ranges(steps) or '999999'
        options += ['--only', only]
        (a, said_a), (b, said_b) = both(left, right, seed, options_of(seed, arguments), only)
        if first_difference(a, b) is None:
            first = [lines[number] if number < len(lines) else 'nothing' for lines in firsts]
            return (f'seed {seed} differed, and does not any more:\n  {first[0]}\n  {first[1]}',
                    said_a + said_b)
    return seed, options, a, b, said_a + said_b


def check_limits(lines):
    """Each limit's words are in the page of limits, which may not be on a GPU machine."""
    page = ROOT / 'shim' / 'README.md'
    text = ' '.join(page.read_text().split()) if page.exists() else None
    for line in lines:
        if line.startswith('~') and text is not None and line.split(' ', 1)[1] not in text:
            raise SystemExit(f'{page} does not name this limit: {line}')


def seeds_of(text):
    first, _, last = text.partition('-')
    return int(first), int(last or first)


def compare(arguments, left, right):
    first, last = seeds_of(arguments.seeds)
    until = time.monotonic() + arguments.seconds if arguments.seconds else None
    made, bad = 0, 0
    check_limits(left.run(first, options_of(first, arguments), '999999')[0])
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = set()
        seed = first
        while waiting or (seed <= last and (until is None or time.monotonic() < until)):
            while (len(waiting) < arguments.jobs and seed <= last and
                   (until is None or time.monotonic() < until) and bad < arguments.most):
                waiting.add(pool.submit(one, seed, arguments, left, right))
                seed += 1
            if not waiting:
                break
            done, waiting = concurrent.futures.wait(
                waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for result in (future.result() for future in done):
                made += 1
                if result is None:
                    continue
                bad += 1
                if len(result) == 2:
                    print(*result, sep='\n')
                else:
                    report(*result[:4], (left.name, right.name), result[4])
                sys.stdout.flush()
    print(f'differential: {made} programs of {arguments.steps} steps, {bad} differ')
    return 1 if bad or not made else 0


def gpus():
    listed = subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True, check=True).stdout
    return sum(line.startswith('GPU') for line in listed.splitlines())


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seconds', type=float)
    parser.add_argument('--seeds', default='1-1000000')
    parser.add_argument('--left', default='native:software')
    parser.add_argument('--right', default='shim:software')
    parser.add_argument('--steps', type=int, help='300 each, on a GPU 200')
    parser.add_argument('--devices', type=int,
                        help='2, on a GPU machine as many of them as there are')
    parser.add_argument('--jobs', type=int, help='programs at once: 1, on a GPU 4, as more wait '
                        'for each other when they start CUDA')
    parser.add_argument('--most', type=int, default=5, help='differing seeds, then it ends')
    parser.add_argument('--shrink', type=float, default=60, help='seconds for each')
    parser.add_argument('--whole', action='store_true', help='shrinks nothing')
    parser.add_argument('--program', type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.gpu = ':gpu' in arguments.left + arguments.right
    arguments.steps = arguments.steps or (200 if arguments.gpu else 300)
    arguments.devices = arguments.devices or (min(2, gpus()) if arguments.gpu else 2)
    arguments.jobs = arguments.jobs or (min(4, os.cpu_count()) if arguments.gpu else 1)
    program = arguments.program or (BUILD / 'tests/fuzz/differential/differential'
                                    if BUILD.exists() else BUNDLE / 'differential')
    with tempfile.TemporaryDirectory(prefix='differential-') as folder:
        scratch = pathlib.Path(folder) / 'share'
        scratch.mkdir(mode=0o700)
        return compare(arguments, Side(arguments.left, program, scratch), Side(arguments.right, program, scratch))


if __name__ == '__main__':
    sys.exit(main())
