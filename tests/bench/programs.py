"""Traces of allocations of programs that were not recorded: made from the shapes of their layers.

usage: programs.py NAME

Writes the trace (see trace.h) to stdout. Each program has a seed of its own, so its trace is the
same each time. A tensor is allocated where a framework without a cache would allocate it, and freed
where its last name goes; what backward needs of forward is kept until then.

    unet      segmentation, bf16, training: images of changing size
    detect    Faster R-CNN with a feature pyramid, training: four images of changing size, as many
              proposals as come out
    translate T5-base, training on batches of one bucket of lengths each, then beam search
    experts   a transformer of mixtures of 8 experts, training: as many tokens an expert as it gets
    lstm      speech to text: cuDNN's LSTM over sequences of changing length, an attention decoder
              step by step, training
    serve     a language model that answers: requests come and end at any time, their caches of keys
              and values grow by 64 tokens
"""
import random
import sys


class Tensor:
    """Device memory; freed when nothing names it any more."""
    next = 0x7f0000000000
    silent = True

    def __init__(self, size):
        self.size, self.address = size, Tensor.next
        Tensor.next += (size + 511) // 512 * 512
        if not Tensor.silent:
            print('a', size, f'{self.address:x}')

    def __del__(self):
        if not Tensor.silent:
            print('f', 0, f'{self.address:x}')


class Value:
    """A result of a layer, which may outlive its memory: what backward asks for is its size."""

    made = 0

    def __init__(self, size):
        self.data = Tensor(size)
        self.size = size
        Value.made += 1
        self.key = Value.made


class Weight:
    def __init__(self, size):
        self.data = Tensor(size)
        self.grad = None
        self.states = []


class Model:
    """What its layers did since the last backward, and their weights: those of `shapes` are there
    from the start, as in a program that builds its model first; others by their first use."""
    shapes = {}

    def __init__(self, training=True):
        self.weights, self.tape, self.training = {}, [], training
        for name, size in Model.shapes.items():
            self.weight(name, size)

    def weight(self, name, size):
        if name not in self.weights:
            self.weights[name] = Weight(size)
            Model.shapes[name] = size
        return self.weights[name]

    def layer(self, inputs, size, weights=(), keeps=(), workspace=0, extra=()):
        """`keeps` are values that backward reads; `extra` sizes of what it reads besides."""
        scratch = Tensor(workspace) if workspace else None
        out = Value(size)
        del scratch
        if self.training:
            kept = [value.data for value in keeps] + [Tensor(more) for more in extra]
            read = [(value.key, value.size) for value in inputs]
            self.tape.append((out.key, read, weights, kept, workspace))
        return out

    # What most layers are.
    def linear(self, x, rows, fan_in, fan_out, name, width=2):
        w = self.weight(name, fan_in * fan_out * width)
        return self.layer([x], rows * fan_out * width, [w], [x])

    def norm(self, x, features, name, rows):
        w = self.weight(name, features * 4)
        return self.layer([x], x.size, [w, self.weight(name + '.b', features * 4)], [x],
                          extra=(rows * 4, rows * 4))

    def act(self, x):
        return self.layer([x], x.size, keeps=[x])

    def add(self, x, y):
        return self.layer([x, y], x.size)

    def backward(self, loss):
        grads = {loss.key: Tensor(loss.size)}
        while self.tape:
            out, inputs, weights, kept, workspace = self.tape.pop()
            grad = grads.pop(out, None)
            if grad is None:
                continue
            for key, size in inputs:
                scratch = Tensor(workspace) if workspace else None
                mine = Tensor(size)
                del scratch
                grads[key] = Tensor(size) if key in grads else mine
                del mine
            for weight in weights:
                scratch = Tensor(workspace) if workspace else None
                mine = Tensor(weight.data.size)
                del scratch
                weight.grad = weight.grad or mine
                del mine
            del grad, kept

    def step(self, states, temporaries):
        """The optimizer over all weights at once, and no gradients afterwards."""
        used = [weight for weight in self.weights.values() if weight.grad]
        for weight in used:
            while len(weight.states) < states:
                weight.states.append(Tensor(weight.data.size))
        for _ in range(temporaries):
            [Tensor(weight.data.size) for weight in used]
        for weight in used:
            weight.grad = None


def pick(items):
    return items[int(random.random() * len(items))]


def between(low, high):
    return low + int(random.random() * (high - low + 1))


# ---- segmentation ---------------------------------------------------------------------------

def conv(m, x, images, height, width, fan_in, fan_out, name, size=3):
    """Convolution, batch norm, ReLU in place; cuDNN's workspace grows with what it reads."""
    w = m.weight(name, fan_in * fan_out * size * size * 2)
    workspace = 0 if size == 1 else min(x.size // 2, 256 << 20)
    y = m.layer([x], images * height * width * fan_out * 2, [w], [x], workspace)
    return m.norm(y, fan_out, name + '.norm', fan_out)


def unet(steps=24):
    m = Model()
    for _ in range(steps):
        images, h, w = 4, 32 * between(8, 20), 32 * between(8, 20)
        x = Value(images * h * w * 3 * 2)
        skips, fan = [], 3
        for level, out in enumerate((64, 128, 256, 512, 1024)):
            for i in 'ab':
                x = conv(m, x, images, h >> level, w >> level, fan, out, f'down{level}{i}')
                fan = out
            if level < 4:
                skips.append(x)
                x = m.layer([x], x.size // 4, keeps=[x], extra=(x.size // 4,))
        for level, out in reversed(list(enumerate((64, 128, 256, 512)))):
            hw = (h >> level) * (w >> level)
            up = m.layer([x], images * hw * out * 2, [m.weight(f'up{level}', fan * out * 4 * 2)],
                         [x])
            x = m.layer([skips.pop(), up], 2 * up.size)
            del up
            fan = 2 * out
            for i in 'ab':
                x = conv(m, x, images, h >> level, w >> level, fan, out, f'join{level}{i}')
                fan = out
        x = m.linear(x, images * h * w, 64, 21, 'head')
        labels = Value(images * h * w * 8)
        x = m.layer([x], x.size * 2, keeps=[x])  # log-softmax, in single precision
        x = m.layer([x], 4, keeps=[x, labels])
        del labels
        m.backward(x)
        del x
        m.step(1, 0)


# ---- detection ------------------------------------------------------------------------------

def bottleneck(m, x, images, h, w, fan_in, fan, stride, name):
    y = conv(m, x, images, h * stride, w * stride, fan_in, fan, name + 'a', 1)
    y = conv(m, y, images, h, w, fan, fan, name + 'b')
    y = conv(m, y, images, h, w, fan, 4 * fan, name + 'c', 1)
    if fan_in != 4 * fan:
        x = conv(m, x, images, h, w, fan_in, 4 * fan, name + 'd', 1)
    return m.add(x, y)


def proposals(anchors, levels):
    """Boxes decoded, sorted, clipped, the small ones dropped, and those that overlap; the sizes are
    of what came out."""
    kept = []
    for count in levels:
        scores = Tensor(count * 4)
        order, top = Tensor(count * 8), min(count, 2000)
        boxes = Tensor(top * 16)
        del scores, order
        mask = Tensor(top)
        left = between(top // 2, top)
        index, boxes = Tensor(left * 8), Tensor(left * 16)
        del mask, index
        overlaps = Tensor(left * ((left + 63) // 64) * 8)
        left = between(left // 8, left // 2) + 1
        kept.append((left, Tensor(left * 16)))
        del overlaps, boxes
    count = sum(left for left, _ in kept)
    joined = Tensor(count * 16)
    del kept
    quality = Tensor(anchors * between(4, 30) * 4)
    matches = Tensor(anchors * 8)
    del quality, matches
    return min(count, 1000), joined


def detect(steps=18):
    m = Model()
    for _ in range(steps):
        h, w = pick((480, 544, 608, 672, 736, 800)), 32 * between(20, 41)
        images, fan = 4, 64
        x = Value(images * h * w * 3 * 2)
        x = conv(m, x, images, h // 2, w // 2, 3, 64, 'stem', 7)
        x = m.layer([x], x.size // 4, keeps=[x], extra=(x.size // 2,))
        levels = []
        for stage, blocks in enumerate((3, 4, 6, 3)):
            scale = 4 << stage
            for block in range(blocks):
                x = bottleneck(m, x, images, h // scale, w // scale, fan, 64 << stage,
                               2 if stage and not block else 1, f'res{stage}.{block}')
                fan = 256 << stage
            levels.append((x, fan, (h // scale) * (w // scale)))
        features, above = [], None
        for x, fan, places in reversed(levels):
            x = m.linear(x, images * places, fan, 256, f'lateral{fan}')
            if above:
                x = m.add(x, m.layer([above], x.size))
            above = x
            features.append((m.layer([x], x.size, [m.weight(f'fpn{fan}', 256 * 256 * 9 * 2)], [x],
                                     x.size // 2), places))
        del x, above, levels
        heads = []
        for feature, places in features:
            y = m.layer([feature], feature.size, [m.weight('rpn', 256 * 256 * 9 * 2)], [feature],
                        feature.size // 2)
            heads.append(m.linear(y, images * places, 256, 15, 'rpn.out'))
        del y, feature
        found, boxes = 0, []
        for _ in range(images):
            count, some = proposals(sum(3 * places for _, places in features),
                                    [3 * places for _, places in features])
            found += count
            boxes.append(some)
        rois = min(found, images * between(128, 512))
        pooled = m.layer([feature for feature, _ in features], rois * 256 * 49 * 2,
                         keeps=[], extra=(rois * 20,))
        del features, boxes
        y = m.act(m.linear(pooled, rois, 256 * 49, 1024, 'fc1'))
        y = m.act(m.linear(y, rois, 1024, 1024, 'fc2'))
        classes = m.linear(y, rois, 1024, 91, 'classes')
        deltas = m.linear(y, rois, 1024, 91 * 4, 'deltas')
        del pooled, y
        loss = m.layer([classes, deltas] + heads, 4, keeps=[classes, deltas])
        del classes, deltas, heads
        m.backward(loss)
        del loss
        m.step(1, 0)


# ---- translation ----------------------------------------------------------------------------

def attention(m, x, memory, rows, batch, length, seen, name):
    """12 heads of 64; scores and their softmax are there at once."""
    q = m.linear(x, rows, 768, 768, name + '.q')
    k = m.linear(memory, memory.size // 1536, 768, 768, name + '.k')
    v = m.linear(memory, memory.size // 1536, 768, 768, name + '.v')
    scores = m.layer([q, k], batch * 12 * length * seen * 2, keeps=[q, k])
    scores = m.layer([scores], scores.size * 2, keeps=[])  # single precision
    scores = m.layer([scores], scores.size // 2, keeps=[], extra=(scores.size // 2,))
    y = m.layer([scores, v], rows * 1536, keeps=[scores, v])
    del q, k, v, scores
    return m.linear(y, rows, 768, 768, name + '.o')


def block(m, x, memory, batch, length, seen, name):
    rows = batch * length
    y = m.norm(x, 768, name + '.n1', rows)
    x = m.add(x, attention(m, y, y, rows, batch, length, length, name + '.self'))
    if memory:
        y = m.norm(x, 768, name + '.n2', rows)
        x = m.add(x, attention(m, y, memory, rows, batch, length, seen, name + '.cross'))
    y = m.norm(x, 768, name + '.n3', rows)
    y = m.act(m.linear(y, rows, 768, 3072, name + '.in'))
    return m.add(x, m.linear(y, rows, 3072, 768, name + '.out'))


def embed(m, rows, name):
    tokens = Value(rows * 8)
    return m.layer([], rows * 1536, [m.weight(name, 32128 * 768 * 2)], [tokens])


def beam_search(m, batch, source, layers):
    m.training = False
    beams = batch * 4
    memory = embed(m, batch * source, 'shared')
    for i in range(layers):
        memory = block(m, memory, None, batch, source, source, f'enc{i}')
    memory = Value(beams * source * 1536)  # once more for each beam
    caches = [Value(beams * source * 1536) for _ in range(2 * layers)]
    selfs = [None] * (2 * layers)
    scores = Value(beams * 4)
    for length in range(1, between(source // 2, source)):
        x = embed(m, beams, 'shared')
        for i in range(layers):
            y = m.norm(x, 768, f'dec{i}.n1', beams)
            for j in (2 * i, 2 * i + 1):
                new = m.linear(y, beams, 768, 768, f'dec{i}.self.k')
                selfs[j] = Value(beams * length * 1536)  # joined
                del new
            y = m.linear(y, beams, 768, 768, f'dec{i}.self.q')
            y = m.layer([y], beams * 12 * length * 2)
            y = m.layer([y], beams * 1536)
            x = m.add(x, y)
            y = m.layer([x], beams * 12 * source * 2)
            y = m.layer([y], beams * 1536)
            x = m.add(x, y)
            y = m.act(m.linear(x, beams, 768, 3072, f'dec{i}.in'))
            x = m.add(x, m.linear(y, beams, 3072, 768, f'dec{i}.out'))
        y = m.linear(x, beams, 768, 32128, 'head')
        y = m.layer([y], beams * 32128 * 4)
        y = m.layer([y], y.size)  # and what each beam had
        best, index = Value(batch * 8 * 4), Value(batch * 8 * 8)
        del x, y
        for j in range(2 * layers):
            selfs[j] = Value(selfs[j].size)  # in the beams' new order
        scores = Value(beams * 4)
        del best, index
    del caches, selfs, memory, scores
    m.training = True


def translate(steps=12, layers=6):
    m = Model()
    for step in range(steps):
        source = pick((32, 64, 96, 128, 192, 256, 384))
        target = source * between(80, 120) // 100
        batch = max(4096 // source, 4)
        memory = embed(m, batch * source, 'shared')
        for i in range(layers):
            memory = block(m, memory, None, batch, source, source, f'enc{i}')
        x = embed(m, batch * target, 'shared')
        for i in range(layers):
            x = block(m, x, memory, batch, target, source, f'dec{i}')
        del memory
        x = m.linear(x, batch * target, 768, 32128, 'head')
        x = m.layer([x], x.size * 2, keeps=[])
        x = m.layer([x], 4, keeps=[x])
        m.backward(x)
        del x
        m.step(2, 1)
        if step % 6 == 5:
            beam_search(m, 8, pick((24, 32, 48)), layers)


# ---- routing to experts ---------------------------------------------------------------------

def moe(m, x, tokens, width, inner, name):
    """Two of eight experts a token; some get many more than others."""
    gates = m.linear(x, tokens, width, 8, name + '.gate')
    gates = m.layer([gates], tokens * 8 * 4, keeps=[])
    gates = m.layer([gates], tokens * 2 * 4, keeps=[gates], extra=(tokens * 2 * 8,))
    share = [random.random() ** 2 + 0.05 for _ in range(8)]
    total, left, outs = sum(share), 2 * tokens, []
    for expert in range(8):
        count = left if expert == 7 else min(int(2 * tokens * share[expert] / total), left)
        left -= count
        if not count:
            continue
        y = m.layer([x], count * width * 2, extra=(count * 8,))  # gathered
        up = m.linear(y, count, width, inner, f'{name}.{expert}.up')
        gate = m.act(m.linear(y, count, width, inner, f'{name}.{expert}.gate'))
        y = m.layer([up, gate], up.size, keeps=[up, gate])
        del up, gate
        y = m.linear(y, count, inner, width, f'{name}.{expert}.down')
        outs.append(m.layer([y, gates], y.size, keeps=[y, gates]))
    return m.layer(outs, tokens * width * 2)


def experts(steps=14, layers=6):
    m, width = Model(), 768
    for _ in range(steps):
        batch, length = 8, pick((256, 320, 384, 512))
        tokens = batch * length
        x = m.layer([], tokens * width * 2, [m.weight('embed', 32000 * width * 2)],
                    [Value(tokens * 8)])
        for i in range(layers):
            y = m.norm(x, width, f'{i}.n1', tokens)
            qkv = m.linear(y, tokens, width, 3 * width, f'{i}.qkv')
            # Flash attention: its output and a number for each head's row.
            y = m.layer([qkv], tokens * width * 2, keeps=[qkv], extra=(tokens * 12 * 4,))
            del qkv
            x = m.add(x, m.linear(y, tokens, width, width, f'{i}.o'))
            y = m.norm(x, width, f'{i}.n2', tokens)
            x = m.add(x, moe(m, y, tokens, width, 2048, f'{i}.moe'))
        x = m.linear(m.norm(x, width, 'n', tokens), tokens, width, 32000, 'head')
        del y
        x = m.layer([x], x.size * 2, keeps=[])
        x = m.layer([x], 4, keeps=[x])
        m.backward(x)
        del x
        m.step(2, 1)


# ---- recurrent ------------------------------------------------------------------------------

def lstm(steps=16):
    m, hidden, batch = Model(), 512, 32
    for _ in range(steps):
        frames, letters = between(120, 700), between(15, 70)
        x = Value(batch * frames * 80 * 4)
        fan = 80
        for i in range(4):  # both directions; cuDNN keeps gates and cells of every step
            w = m.weight(f'lstm{i}', 2 * 4 * hidden * (fan + hidden) * 4)
            x = m.layer([x], batch * frames * 2 * hidden * 4, [w], [x],
                        workspace=batch * 16 * hidden * 4 + (1 << 20),
                        extra=(batch * frames * 2 * hidden * 6 * 4,))
            fan = 2 * hidden
            if i < 2:  # every other frame, and its neighbour beside it
                frames //= 2
                x = m.layer([x], batch * frames * 2 * fan * 4)
                fan *= 2
        memory = m.linear(x, batch * frames, fan, hidden, 'keys', 4)
        del x
        state = cell = Value(batch * hidden * 4)
        losses = []
        for _ in range(letters):
            x = m.layer([], batch * hidden * 4, [m.weight('letters', 60 * hidden * 4)],
                        [Value(batch * 8)])
            scores = m.layer([state, memory], batch * frames * 4, keeps=[state, memory])
            scores = m.layer([scores], scores.size, keeps=[scores])
            seen = m.layer([scores, memory], batch * hidden * 4, keeps=[scores, memory])
            x = m.layer([x, seen], 2 * seen.size)
            gates = m.linear(x, batch, 2 * hidden, 4 * hidden, 'cell.in', 4)
            more = m.linear(state, batch, hidden, 4 * hidden, 'cell.hidden', 4)
            cell = m.layer([gates, more, cell], batch * hidden * 4, keeps=[cell],
                           extra=(gates.size,))
            del gates, more
            state = m.layer([cell], cell.size, keeps=[cell])
            x = m.linear(state, batch, hidden, 60, 'out', 4)
            losses.append(m.layer([x], 4, keeps=[x]))
        del memory, state, cell, scores, seen, x
        loss = m.layer(losses, 4)
        del losses
        m.backward(loss)
        del loss
        m.step(2, 1)


# ---- serving --------------------------------------------------------------------------------

class Request:
    def __init__(self, layers):
        self.tokens = between(20, 200) * pick((1, 1, 1, 2, 8))
        self.end = self.tokens + between(10, 120) * pick((1, 1, 3, 5))
        self.caches = [None] * layers

    def cache(self, i, tokens):
        """Keys and values of 8 heads of 128: room for the next 64, and what is there copied."""
        size = (tokens + 63) // 64 * 64 * 8 * 128 * 2
        if not self.caches[i] or self.caches[i][0].size < size:
            self.caches[i] = Value(size), Value(size)


def answer(m, requests, rows, layers, width):
    """All tokens of one request that has just come, or the next one of each that is there."""
    x = m.layer([], rows * width * 2)
    for i in range(layers):
        y = m.layer([x], x.size)
        y = m.linear(y, rows, width, width + 2048, f'{i}.qkv')
        for request in requests:
            request.cache(i, request.tokens)
        y = m.layer([y], rows * width * 2)
        x = m.add(x, m.linear(y, rows, width, width, f'{i}.o'))
        y = m.linear(x, rows, width, 2 * 5632, f'{i}.up')
        y = m.layer([y], y.size // 2)
        x = m.add(x, m.linear(y, rows, 5632, width, f'{i}.down'))
    y = m.layer([x], len(requests) * width * 2)
    y = m.linear(y, len(requests), width, 32000, 'head')
    y = m.layer([y], 2 * y.size)
    for request in requests:
        request.tokens += 1


def serve(steps=260, layers=12, width=2048):
    m = Model(False)
    requests, waiting = [], 1.0
    for step in range(steps):
        waiting += 0.6 if step // 60 % 2 else 0.2  # they come in waves
        while waiting >= 1 and len(requests) < 48:
            waiting -= 1
            come = Request(layers)
            answer(m, [come], come.tokens, layers, width)
            requests.append(come)
            del come
        if requests:
            answer(m, requests, len(requests), layers, width)
        requests = [r for r in requests if r.tokens < r.end and random.random() > 0.002]


PROGRAMS = {function.__name__: function
            for function in (unet, detect, translate, experts, lstm, serve)}

if __name__ == '__main__':
    if len(sys.argv) != 2 or sys.argv[1] not in PROGRAMS:
        sys.exit(__doc__)
    program = PROGRAMS[sys.argv[1]]
    for silent in True, False:
        random.seed(list(PROGRAMS).index(sys.argv[1]) + 1)
        Tensor.silent = silent
        program(1) if silent else program()
    Tensor.silent = True
