"""The picture of latency.py: for each mix what share of the calls took longer than what, natively and
under the library, both axes in powers of ten.
"""
import math
from xml.sax.saxutils import escape

from run import NATIVE, SHIM, TEXT

WIDTH, HEIGHT = 380, 230  # of one mix's field
LEFT, TOP, RIGHT, BOTTOM = 62, 34, 22, 40  # around it
MARKS = ((50, '50 %'), (90, '90'), (99, '99'), (99.9, '99.9'), (99.99, '99.99'), (99.999, '99.999'))
FIRST = -math.log10(0.5)


def rarity(share):
    """Where a share of slower calls is: the number of its zeros behind the point."""
    return -math.log10(share)


def curve(histogram):
    """(rarity, nanoseconds): the last point is the slowest call, drawn where one of as many is."""
    total = sum(count for _, count in histogram)
    points, below = [], 0
    for begin, count in histogram:
        below += count
        slower = max(total - below, 0.5) / total
        if rarity(slower) >= FIRST:
            points.append((rarity(slower), max(begin, 1)))
    return points


def unit(ns):
    for name, factor in (('s', 1e9), ('ms', 1e6), ('us', 1e3)):
        if ns >= factor:
            return f'{ns / factor:.0f} {name}'
    return f'{ns:.0f} ns'


class Field:
    """One mix's field: where a point of it is in the picture."""

    def __init__(self, left, top, curves):
        self.left, self.top = left, top
        points = [point for each in curves for point in each]
        self.last = max(math.ceil(2 * max(x for x, _ in points)) / 2, 1)
        self.low = math.floor(math.log10(min(y for _, y in points)))
        self.high = max(math.ceil(math.log10(max(y for _, y in points))), self.low + 1)

    def x(self, rare):
        return self.left + WIDTH * (rare - FIRST) / (self.last - FIRST)

    def y(self, ns):
        return self.top + HEIGHT * (1 - (math.log10(ns) - self.low) / (self.high - self.low))

    def axes(self, title):
        yield (f'<text x="{self.left}" y="{self.top - 10}" font-size="14" font-weight="bold">'
               f'{escape(title)}</text>')
        yield (f'<rect x="{self.left}" y="{self.top}" width="{WIDTH}" height="{HEIGHT}" fill="none" '
               f'stroke="{TEXT}" stroke-opacity=".5"/>')
        for power in range(self.low, self.high + 1):
            y = self.y(10 ** power)
            yield (f'<line x1="{self.left}" x2="{self.left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" '
                   f'stroke="{TEXT}" stroke-opacity=".25"/>')
            yield (f'<text x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end" font-size="11">'
                   f'{unit(10 ** power)}</text>')
        for percent, name in MARKS:
            rare = rarity(1 - percent / 100)
            if rare > self.last:
                break
            x = self.x(rare)
            yield (f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self.top}" y2="{self.top + HEIGHT}" '
                   f'stroke="{TEXT}" stroke-opacity=".25"/>')
            yield (f'<text x="{x:.1f}" y="{self.top + HEIGHT + 15}" text-anchor="middle" '
                   f'font-size="11">{name}</text>')

    def line(self, points, colour):
        path = ' '.join(f'{self.x(rare):.1f},{self.y(ns):.1f}' for rare, ns in points)
        return (f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
                'stroke-linejoin="round"/>')


def draw(said):
    mixes = said['mixes']
    columns = min(2, max(1, len(mixes)))
    wide, high = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    width, height = columns * wide, 36 + math.ceil(len(mixes) / columns) * high + 22
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           f'width="{width}" height="{height}" font-family="sans-serif" font-size="13" '
           f'fill="{TEXT}" role="img">',
           '<title>How long allocations and frees take: the native driver and libgpushim</title>',
           f'<rect x="{LEFT}" y="12" width="12" height="12" fill="{NATIVE}"/>',
           f'<text x="{LEFT + 18}" y="23">native driver</text>',
           f'<rect x="{LEFT + 120}" y="12" width="12" height="12" fill="{SHIM}"/>',
           f'<text x="{LEFT + 138}" y="23">under libgpushim</text>']
    for index, (mix, ways) in enumerate(mixes.items()):
        curves = [curve(ways[way]['histogram']) for way in ('native', 'shim')]
        field = Field(LEFT + index % columns * wide, 36 + TOP + index // columns * high, curves)
        out += field.axes(mix)
        out += [field.line(points, colour) for points, colour in zip(curves, (NATIVE, SHIM))]
    order = ', in stream order' if said['async'] else ''
    out.append(f'<text x="{LEFT}" y="{height - 10}" font-size="11">'
               f'{escape(said["machine"]["gpu"] + order)}: so many percent of the allocations and '
               'frees took at most so long; lower is better</text>')
    out.append('</svg>')
    return '\n'.join(out) + '\n'
