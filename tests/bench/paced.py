"""A longer trace of a recorded one's steps, in another order, at the pace at which a GPU's program takes them.

usage: paced.py TRACE --step MILLISECONDS --steps N [--sizes] > NEW.trace

Played at full speed a trace says what calls cost, and the making of chunks is most of the time. What of a program's
time that takes, and what the library makes of it (pool: more is kept for what costs time), shows only at the
program's own pace and over many steps:

    SOFTCUDA_FAULTS='cuMemCreate:delay:100,…' sh tests/with.sh shim --software build/tests/bench/replay NEW.trace
        --timing --kernel 30 --loops 1

A step is what lies between two moments at which the fewest blocks are live, but those that live for longer than
three tenths of the trace: these are allocated first, and stay. --sizes scales each step to another size, by
random, as where no two batches are alike. The same arguments give the same trace.
"""
import argparse
import lzma
import random
import sys

SEED = 5
LONG = 0.3  # of the trace: who lives for longer stays
SHORTEST = 200  # calls of a step
BETWEEN_US = 5  # two that stay
SMALLEST = 0.034  # of the largest step, by --sizes


def calls_of(path):
    """[(is an allocation, bytes, number of the block)]"""
    blocks, calls = {}, []
    with (lzma.open if path.endswith('.xz') else open)(path, 'rt') as trace:
        for line in trace:
            if line.strip() and not line.startswith('#'):
                _, op, size, address = line.split()
                if op == 'a':
                    blocks[address] = len(calls)
                calls.append((op == 'a', int(size), blocks[address] if op == 'a' else blocks.pop(address)))
    return calls


def steps_of(calls):
    """(those that stay, [calls of a step])"""
    born = {block: i for i, (new, _, block) in enumerate(calls) if new}
    ended = {block: i for i, (new, _, block) in enumerate(calls) if not new}
    stay = {block for block, i in born.items() if ended.get(block, len(calls)) - i > LONG * len(calls)}
    first = min(max((born[block] for block in stay), default=0), len(calls) // 2)
    last = min((ended.get(block, len(calls)) for block in stay), default=len(calls))
    live, counts = 0, []
    for new, _, block in calls[:last]:
        live += 0 if block in stay else 1 if new else -1
        counts.append(live)
    fewest = min(counts[first + 1:-10], default=0)
    cuts = []
    for i in range(first + 1, last):
        if counts[i] == fewest and (not cuts or i - cuts[-1] > SHORTEST):
            cuts.append(i)
    steps = [calls[begin + 1:end + 1] for begin, end in zip(cuts, cuts[1:])]
    return ([size for new, size, block in calls if new and block in stay],
            [step for step in steps if {b for new, _, b in step if new} == {b for new, _, b in step if not new}])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('trace')
    parser.add_argument('--step', type=float, required=True, help='milliseconds of a step, on an average')
    parser.add_argument('--steps', type=int, required=True)
    parser.add_argument('--sizes', action='store_true')
    options = parser.parse_args()
    stay, steps = steps_of(calls_of(options.trace))
    if not steps:
        sys.exit(f'paced.py: {options.trace}: no step begins and ends with the same blocks')
    chance, us, block = random.Random(SEED), 0.0, 0
    for size in stay:
        block += 1
        print(int(us), 'a', size, f'{block << 12:x}')
        us += BETWEEN_US
    each = options.step * 1000 * len(steps) / sum(map(len, steps))
    largest = max(steps, key=lambda step: sum(size for _, size, _ in step))
    for _ in range(options.steps):
        step, part, names = chance.choice(steps), 1.0, {}
        if options.sizes:
            step, part = largest, chance.uniform(SMALLEST, 1)
        for new, size, old in step:
            if new:
                block += 1
                names[old] = block
            print(int(us), 'a' if new else 'f', max(512, int(size * part)) if new else 0, f'{names[old] << 12:x}')
            us += each


if __name__ == '__main__':
    main()
