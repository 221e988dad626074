"""What the folders promise, read from the objects and from the tree.

    check_layers.py LIBGS_CORE.A FOLDER...

A call, or an include, goes from a folder of core to a lower one, or stays: not up, not to one beside it,
but through the callbacks that exceptions.txt lists. Within a folder, and in the shim, whose objects are in
the FOLDERs, no more than six files are one circle of calls. Files, functions and structs stay short, and what a comment names is there. Where a limit is
wrong for a case, exceptions.txt has a line for it, with the reason; a line that nothing needs any more
fails as well.
"""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = pathlib.Path(__file__).with_name('exceptions.txt')
RANK = {'base': 0, 'gpu': 1, 'pool': 2, 'share': 3, 'regcache': 3, 'process': 4, 'api': 5}
FILE_LINES = {'core': 600, 'shim': 600, 'config': 600, 'tests': 800}
FUNCTION_LINES, STRUCT_FIELDS, CIRCLE_FILES = 60, 30, 6


def sources(*folders):
    for folder in folders:
        yield from sorted(path for path in (ROOT / folder).rglob('*.[ch]'))


def name_of(path):
    return str(path.relative_to(ROOT))


def without_comments(text):
    """The same lines, and nothing in comments and strings."""
    blank = lambda match: re.sub(r'[^\n]', ' ', match.group(0))
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


# ---- Calls and includes ------------------------------------------------------------------------

def members(*objects):
    """What each object, or each of an archive, defines, and what it refers to."""
    output = subprocess.run(['nm', *objects], check=True, capture_output=True, text=True).stdout
    defined, used, member = {}, {}, None
    for line in output.splitlines():
        heading = re.fullmatch(r'(?:.*/)?([a-z]+)_?(\w*)\.[cS]\.o:', line)
        symbol = re.fullmatch(r'\s*[0-9a-f]*\s+(\w) (\S+)', line)
        if heading:
            member = f'{heading[1]}/{heading[2]}'
            defined[member], used[member] = set(), set()
        elif symbol and symbol[1] == 'U':
            used[member].add(symbol[2])
        elif symbol and symbol[1] in 'TDBRVWC':
            defined[member].add(symbol[2])
    return defined, used


def goes_down(source, target):
    """Whether one folder may use another."""
    return source == target or RANK[target] < RANK[source]


def references(*objects, least):
    """Which file refers to which, by which symbols."""
    defined, used = members(*objects)
    where = {symbol: member for member, symbols in defined.items() for symbol in symbols}
    edges = collections.defaultdict(lambda: collections.defaultdict(set))
    for member, symbols in used.items():
        for symbol in symbols & where.keys():
            if where[symbol] != member:
                edges[member][where[symbol]].add(symbol)
    if len(defined) < least:
        sys.exit(f'{len(defined)} objects are in {objects}: not what is to be read')
    return edges


def calls(edges):
    for member, targets in edges.items():
        for target, symbols in targets.items():
            if not goes_down(member.split('/')[0], target.split('/')[0]):
                yield f'call {member} {target}', f'{sorted(symbols)} is called up, or across'


def circle_of(start, edges, inside):
    """The files that start reaches and that reach it."""
    def reached(first, step):
        seen, left = set(), [first]
        while left:
            member = left.pop()
            for other in step(member):
                if inside(other) and other not in seen:
                    seen.add(other)
                    left.append(other)
        return seen

    back = collections.defaultdict(set)
    for member, targets in edges.items():
        for target in targets:
            back[target].add(member)
    return reached(start, lambda m: edges.get(m, ())) & reached(start, lambda m: back[m])


def circles(name, edges, prefix=''):
    largest = max((circle_of(member, edges, lambda other: other.startswith(prefix))
                   for member in edges if member.startswith(prefix)), key=len, default=set())
    if len(largest) > CIRCLE_FILES:
        yield f'circle {name}', f'{len(largest)} files call each other in a circle'


def includes():
    for path in sources('core'):
        folder = path.relative_to(ROOT).parts[1]
        for target in re.findall(r'#include "core/(\w+)/', path.read_text()):
            if not goes_down(folder, target):
                yield f'include {name_of(path)} {target}', 'includes up, or across'
    for path in sources('core', 'config'):
        for target in re.findall(r'#include "(shim|config|tests)/', path.read_text()):
            if not (target == 'config' and path.relative_to(ROOT).parts[0] == 'config'):
                yield f'include {name_of(path)} {target}', 'core and config know of nothing above'


# ---- Sizes -------------------------------------------------------------------------------------

def long_files():
    for path in sources('core', 'shim', 'config', 'tests'):
        limit = FILE_LINES[path.relative_to(ROOT).parts[0]]
        lines = len(path.read_text().splitlines())
        if lines > limit:
            yield f'file {name_of(path)}', f'{lines} lines, {limit} are enough'


def long_functions():
    for path in sources('core', 'shim', 'config'):
        begin = name = None
        for number, line in enumerate(without_comments(path.read_text()).splitlines()):
            head = re.match(r'[A-Za-z_].*?(\w+)\(', line)
            if head:
                name = head[1]
            if line.startswith('{'):
                begin = number
            elif line.startswith('}') and begin is not None:
                if number - begin - 1 > FUNCTION_LINES:
                    yield f'function {name_of(path)} {name}', f'{number - begin - 1} lines'
                begin = None


def body_of(text, start):
    """What is between the brace at start and its own end."""
    depth = 0
    for i in range(start, len(text)):
        depth += {'{': 1, '}': -1}.get(text[i], 0)
        if depth == 0:
            return text[start + 1:i]
    return ''


def fields(body):
    """Declarators of a struct's body; those of what is nested in it count too."""
    flat = re.sub(r'\([^()]*\)', '', re.sub(r'\[[^\]]*\]', '', re.sub(r'[{}]', ';', body)))
    return sum(declaration.count(',') + 1 for declaration in flat.split(';')
               if len(declaration.split()) > 1)


def structs(path):
    text = without_comments(path.read_text())
    for match in re.finditer(r'^struct (\w+) \{', text, re.M):
        yield match[1], body_of(text, match.end() - 1)


def large_structs():
    for path in sources('core', 'shim', 'config'):
        for name, body in structs(path):
            if fields(body) > STRUCT_FIELDS:
                yield f'struct {name}', f'{fields(body)} fields, {STRUCT_FIELDS} are enough'


def callbacks():
    """Fields by which something below can call something above."""
    for path in sources('core'):
        text = without_comments(path.read_text())
        kinds = re.findall(r'^typedef [^;]*?\b(\w+)\([^;]*\);', text, re.M)
        for name, body in structs(path):
            for field in re.findall(r'\(\*(\w+)\)\s*\(', body):
                yield f'callback {name}.{field}', 'is not listed'
            for kind in kinds:
                for field in re.findall(rf'\b{kind} \*(\w+);', body):
                    yield f'callback {name}.{field}', 'is not listed'


# ---- Comments ----------------------------------------------------------------------------------

def named_files():
    for path in sources('core', 'shim', 'config', 'tests'):
        for comment in re.findall(r'/\*.*?\*/', path.read_text(), flags=re.S):
            for name in re.findall(r'\b(?:core|shim|config|tests|examples)/[\w/]+\.(?:c|h|py|sh)\b',
                                   comment):
                if not (ROOT / name).exists():
                    yield f'name {name_of(path)} {name}', 'a comment names a file that is not there'


def exceptions():
    table = {}
    for line in TABLE.read_text().splitlines():
        if line and not line.startswith('#'):
            key, _, reason = line.partition(': ')
            if not reason:
                sys.exit(f'exceptions.txt: no reason is given: {line}')
            table[key] = reason
    return table


def main():
    edges = references(sys.argv[1], least=60)
    shim = references(*(path for folder in sys.argv[2:] for path in pathlib.Path(folder).glob('*.o')),
                      least=30)
    found = [fault for folder in RANK for fault in circles(f'core/{folder}', edges, folder + '/')]
    for check in (calls(edges), circles('shim', shim), includes(), long_files(), long_functions(),
                  large_structs(), callbacks(), named_files()):
        found += check
    table = exceptions()
    faults = [f'{key}: {what}' for key, what in found if key not in table]
    faults += [f'exceptions.txt: not needed any more: {key}' for key in table
               if key not in dict(found)]
    print('\n'.join(faults) or
          f'ok: {len(edges)} files of core, {len(shim)} of the shim, {len(table)} exceptions')
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
