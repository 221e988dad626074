"""What the folders promise, read from the objects and from the tree.

    check_layers.py LIBGS_CORE.A FOLDER...

A call, or an include, goes from a folder of core to a lower one, or stays: not up, not to one beside it,
but through the callbacks that exceptions.txt lists, and core/README.md's list as well. The tests of a
layer (tests/unit/LAYER) include no more than it may. Within a folder, and in the shim, whose objects are in
the FOLDERs, no more than six files are one circle of calls. Of core/share, whose protocol has no sockets,
the SYSTEM files alone refer to what meets the kernel. Files, functions and structs stay short, and what a
comment names is there. Where a limit is wrong for a case, exceptions.txt has a line for it, with the reason;
a line that nothing needs any more fails as well.
"""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = pathlib.Path(__file__).with_name('exceptions.txt')
INCLUDE = re.compile(r'^ *# *include *["<]([^">]*)', re.M)
RANK = {'base': 0, 'record': 1, 'gpu': 1, 'pool': 2, 'share': 3, 'regcache': 3, 'process': 4, 'api': 5}
FILE_LINES = {'core': 600, 'shim': 600, 'config': 600, 'tests': 810}
FUNCTION_LINES, STRUCT_FIELDS, CIRCLE_FILES, CALLBACKS = 60, 30, 6, 11
# Of core/share: what they have, core/share/README.md says.
SYSTEM = set("""alive conn directory discard folder instance loop memory socket start_broker watch""".split())
# Functions of libc's, as patterns. What some names have at their end (open64, __read_chk) is not theirs.
KERNEL = re.compile('_*(' + '|'.join(r"""
    socket(pair)? bind listen accept4? connect shutdown send(to|m?msg)? recv(from|m?msg)? [gs]etsockopt
    get(sock|peer)name open(at)? creat close(_range|from)? p?(read|write)v? dup[23]? pipe2? fcntl ioctl f?lockf?
    lseek f?truncate fsync eventfd signalfd timerfd_\w+ memfd_\w+ inotify_\w+ p?poll p?select epoll_\w+
    [fl]?x?stat(at|x|fs|vfs)? f?access(at)? (sym|un|read)?link(at)? rename(at2?)? mkdir(at)? rmdir f?chmod(at)?
    [fl]?chown(at)? utimensat f?dopendir opendir readdir(_r)? closedir scandir realpath getcwd mks?temp
    f(d|re)?open fclose fread fwrite fflush f?gets f?puts f?putc getline getdelim v?[fd]?printf v?fscanf perror
    mmap munmap mremap mprotect m?advise mlock shm_\w+ v?fork clone exec\w+ posix_spawn\w* system popen
    wait(pid|id)? kill tgkill raise abort _?exit get(p|pp|t|pg|u|eu|g|eg)id getgroups [gs]etrlimit prlimit
    getrusage prctl getauxval sysconf (secure_)?getenv setenv getrandom getentropy syscall sched_\w+ sigaction
    signal sig\w+mask clock_\w+ gettimeofday time timer_\w+ nanosleep u?sleep alarm setitimer pthread_\w+ sem_\w+
    """.split()) + ')(64)?(_2|_chk)?')


def sources(*folders):
    for folder in folders:
        yield from sorted(path for path in (ROOT / folder).rglob('*.[ch]'))


def name_of(path):
    return str(path.relative_to(ROOT))


def without_comments(text):
    """The lines, with nothing in comments and strings."""
    blank = lambda match: re.sub(r'[^\n]', ' ', match.group(0))
    quoted = r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'"""
    return re.sub(rf'/\*.*?\*/|//[^\n]*|{quoted}', blank, text, flags=re.S)


# ---- Calls and includes ------------------------------------------------------------------------

def members(*objects):
    """What each object, or each of an archive, defines, and what it refers to."""
    output = subprocess.run(['nm', '-A', *objects], check=True, capture_output=True, text=True).stdout
    defined, used = collections.defaultdict(set), collections.defaultdict(set)
    for line in output.splitlines():
        place, symbol, kind = re.fullmatch(r'(.*?): *(?:[0-9a-f]+)? +(\w) (.*)', line).group(1, 3, 2)
        folder, name = re.search(r'(?:^|[/:])([a-z]+)_?(\w*)\.[cS]\.o$', place).groups()
        if kind in 'Uwv':
            used[f'{folder}/{name}'].add(symbol)
        elif kind in 'TDBRVWCu':
            defined[f'{folder}/{name}'].add(symbol)
    return defined, used


def goes_down(source, target):
    """Whether one folder may use another."""
    return source == target or RANK[target] < RANK[source]


def references(objects, expected):
    """Which file refers to which, by which symbols. Each of those expected defines something: else
    it was not read (link-time optimisation, without the compiler's plugin for nm)."""
    defined, used = members(*objects)
    unread = sorted(set(expected) - defined.keys())
    if unread or not defined:
        sys.exit(f'nothing is known of {unread} in {objects}')
    where = {symbol: member for member, symbols in defined.items() for symbol in symbols}
    edges = collections.defaultdict(lambda: collections.defaultdict(set))
    for member, symbols in used.items():
        for symbol in symbols & where.keys():
            if where[symbol] != member:
                edges[member][where[symbol]].add(symbol)
    return edges


def of_core():
    """As their objects are called: folder/file."""
    return [f'{path.parent.name}/{path.stem}' for path in sources('core') if path.suffix == '.c']


def of_shim(*folders):
    """The objects. Which files a folder's library is made of, the build alone knows."""
    found = [sorted(pathlib.Path(folder).glob('*.o')) for folder in folders]
    if not all(found):
        sys.exit(f'{folders}: one has no objects')
    return sum(found, [])


def calls(edges):
    for member, targets in edges.items():
        for target, symbols in targets.items():
            if not goes_down(member.split('/')[0], target.split('/')[0]):
                yield f'call {member} {target}', f'{sorted(symbols)} is called up, or across'


def kernel(objects):
    """What only system files of core/share may refer to; and those of these that do not."""
    defined, used = members(*objects)
    for member in sorted(defined.keys() | used.keys()):
        folder, name = member.split('/')
        asked = sorted(filter(KERNEL.fullmatch, used.get(member, ())))
        if folder == 'share' and asked and name not in SYSTEM:
            yield f'kernel core/{member}.c', f'{asked} meet the kernel, as system files alone do'
        elif folder == 'share' and not asked and name in SYSTEM:
            yield f'kernel core/{member}.c', 'is called a system file, and nothing of it meets the kernel'


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
    for path in sources('core', 'config'):
        place = path.relative_to(ROOT).parts
        for target in INCLUDE.findall(path.read_text()):
            top, folder = (target.split('/') + [''])[:2]
            if top == '..':
                yield f'include {name_of(path)} {target}', 'is not named by its path from the root'
            elif top in ('core', 'shim', 'config', 'tests') and top != place[0]:
                if (place[0], top, folder) != ('config', 'core', 'base'):
                    yield f'include {name_of(path)} {top}', 'core and config know of nothing above'
            elif top == 'core' and not goes_down(place[1], folder):
                yield f'include {name_of(path)} {folder}', 'includes up, or across'


def includes_of_tests():
    """Headers of core, of its tests, of config and the shim, in the tests of one layer. What lies beside
    their folders (tests/unit/fixture.h: a whole core, as its user has it) is there for all of them."""
    for path in sources('tests/unit'):
        layer = path.relative_to(ROOT / 'tests' / 'unit').parts[0]
        for target in INCLUDE.findall(path.read_text()) if layer != path.name else ():
            of = re.match(r'(?:core|tests/unit)/(\w+)/|(config|shim)/|(\.\.)/', target)
            of = of and (of[1] or of[2] or of[3])
            if of and of != layer and not (of in RANK and layer in RANK and goes_down(layer, of)):
                yield f'include {name_of(path)} {of}', f'a test of {layer} includes up, or across'


# ---- Sizes -------------------------------------------------------------------------------------

def long_files():
    for path in sources('core', 'shim', 'config', 'tests'):
        limit = FILE_LINES[path.relative_to(ROOT).parts[0]]
        lines = len(path.read_text().splitlines())
        if lines > limit:
            yield f'file {name_of(path)}', f'{lines} lines, {limit} are enough'


def long_functions():
    for path in sources('core', 'shim', 'config'):
        head, begin = '', None
        for number, line in enumerate(without_comments(path.read_text()).splitlines()):
            if line.startswith('{'):
                begin = number
            elif line.startswith('}') and begin is not None:
                if number - begin - 1 > FUNCTION_LINES:
                    name = re.search(r'(\w+)\(', re.sub(r'__attribute__\(\(.*?\)\) *', '', head))
                    yield f'function {name_of(path)} {name and name[1]}', f'{number - begin - 1} lines'
                begin = None
            if begin is None:
                head = '' if re.match(r'[#}]|.*;\s*$', line) else f'{head} {line}'


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
    flat = re.sub(r'[{}]', ';', re.sub(r'\[[^\]]*\]', '', body))
    flat = re.sub(r'\(\*(\w+)\)\s*\(', r'\1 (', flat) # of a pointer to a function: its name
    while re.search(r'\([^()]*\)', flat):
        flat = re.sub(r'\([^()]*\)', '', flat)
    return sum(declaration.count(',') + 1 for declaration in flat.split(';')
               if len(re.findall(r'\w+', declaration)) > 1)


def structs(path):
    """Each with its name, or that of what is made of it where it has none."""
    text = without_comments(path.read_text())
    for match in re.finditer(r'^(?:typedef |static )?(?:struct|union)(?: (\w+))? +\{', text, re.M):
        body = body_of(text, match.end() - 1)
        after = re.match(r'\s*(\w*)', text[match.end() + len(body) + 1:])
        yield match[1] or after[1], body


def large_structs():
    for path in sources('core', 'shim', 'config'):
        for name, body in structs(path):
            if fields(body) > STRUCT_FIELDS:
                yield f'struct {name}', f'{fields(body)} fields, {STRUCT_FIELDS} are enough'


def callbacks():
    """Fields by which something below can call something above."""
    text = {path: without_comments(path.read_text()) for path in sources('core')}
    kinds = {kind for of in text.values() for kind in
             re.findall(r'^typedef [^;{]*?\b(\w+)\([^;]*\);', of, re.M)}
    pointers = {kind for of in text.values() for kind in
                re.findall(r'^typedef [^;{]*?\(\*(\w+)\)\s*\([^;]*\);', of, re.M)}
    field = '|'.join([r'\(\*(?:const )?(\w+)(?:\[[^]]*\])*\)\s*\(',
                      rf'\b(?:{"|".join(kinds or "-")}) \*(?:const )?(\w+)(?:\[[^]]*\])*;',
                      rf'\b(?:{"|".join(pointers or "-")}) (?:const )?(\w+)(?:\[[^]]*\])*;'])
    for path in text:
        for name, body in structs(path):
            for found in re.findall(field, body):
                yield f'callback {name}.{"".join(found)}', 'is not listed'


def told(table):
    """core/README.md's list of callbacks, and those of exceptions.txt by which calls go up."""
    page, text = 'core/README.md', (ROOT / 'core/README.md').read_text()
    listed = {f'callback {struct}.{field}'
              for names, struct in re.findall(r'^(?:\||-) (`.*?) of `struct (\w+)` \(', text, re.M)
              for field in re.findall(r'`(\w+)`', names)}
    for key in sorted(listed ^ {key for key in table if key.startswith('callback ')}):
        yield key, f'{page} has it, exceptions.txt not, or the other way round'
    if len(listed) > CALLBACKS:
        yield page, f'{len(listed)} callbacks, {CALLBACKS} are enough'


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
            if key in table:
                sys.exit(f'exceptions.txt: twice: {key}')
            table[key] = reason
    return table


def main():
    edges = references([sys.argv[1]], of_core())
    shim = references(of_shim(*sys.argv[2:]), [])
    found = [fault for folder in RANK for fault in circles(f'core/{folder}', edges, folder + '/')]
    for check in (calls(edges), kernel([sys.argv[1]]), circles('shim', shim), includes(),
                  includes_of_tests(), long_files(), long_functions(), large_structs(), callbacks(),
                  named_files()):
        found += check
    table = exceptions()
    stands = {re.sub('^question ', 'callback ', key) for key in table}
    faults = [f'{key}: {what}' for key, what in found if key not in stands]
    faults += [f'exceptions.txt: not needed any more: {key}' for key in sorted(stands - dict(found).keys())]
    faults += [f'{key}: {what}' for key, what in told(table)]
    print('\n'.join(faults) or
          f'ok: {len(edges)} files of core, {len(shim)} of the shim, {len(table)} exceptions')
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
