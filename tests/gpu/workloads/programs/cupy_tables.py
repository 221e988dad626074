"""Tables in CuPy: rows are filtered, sorted, joined and summed by groups; how many rows are left is
known when they are counted. Many temporary arrays, of other sizes each time.
"""

import random

import cupy

STEPS = 24
FULL = {"rows": (4_000_000, 24_000_000), "groups": 200_000}
TINY = {"rows": (1000, 4000), "groups": 50}


def build(device, rows, groups):
    prices = cupy.random.random_sample(groups)

    def step(number):
        count = random.randint(*rows)
        group = cupy.random.randint(0, groups, count)
        amount = cupy.random.random_sample(count)
        kept = cupy.nonzero(amount > random.uniform(0.2, 0.8))[0]
        group, amount = group[kept], amount[kept]
        order = cupy.argsort(group)
        group, amount = group[order], amount[order]
        begins = cupy.nonzero(cupy.diff(group, prepend=group[:1] - 1))[0]
        sums = cupy.diff(cupy.concatenate([cupy.zeros(1), cupy.cumsum(amount)])
                         [cupy.append(begins, len(group))])
        value = sums * prices[group[begins]]
        best = cupy.sort(value)[-len(value) // 10:]
        weights = cupy.bincount(group, weights=amount, minlength=groups)
        return float(best.sum() + weights.max())

    return step
