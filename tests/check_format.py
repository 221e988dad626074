"""C is as .clang-format says, and lines of C, Python and shell are short.

    check_format.py REPOSITORY BUILD

The limits are in LIMITS, with the reasons of those above 100. Of C, tables for which clang-format is off and longer
macros have none. clang-format has to be of the version below, whose output differs from one to the next: that of PATH,
or the one that tests/run.sh has put into BUILD. Without it the exit status is 77.
"""
import pathlib
import shutil
import subprocess
import sys

VERSION = '21.1.8'
COLUMNS = 100
# Others than that, of a suffix or of C in a folder, and why.
LIMITS = {
    '.py': (120, 'one check a line, with what it says: two lines each are harder to read'),
    '.sh': (120, 'a command with its arguments is one line, as it would be typed'),
    'core/share': (130, 'text there was not wrapped yet'),
    'shim/command': (130, 'as there'),
    'tests/unit/share': (130, 'as there'),
}
C = ('.c', '.h')
FOLDERS = ('config', 'core', 'examples', 'shim', 'tests')


def sources(root, *suffixes):
    for folder in FOLDERS:
        yield from sorted(path for path in (root / folder).rglob('*')
                          if path.suffix in suffixes and 'build' not in path.relative_to(root).parts)


def limit_of(name, suffix):
    """Of the longest folder that has one."""
    if suffix in LIMITS:
        return LIMITS[suffix][0]
    folders = [folder for folder in LIMITS if name.startswith(f'{folder}/')]
    return LIMITS[max(folders, key=len)][0] if folders else COLUMNS


def long_lines(path, name):
    limit, off = limit_of(name, path.suffix), False
    for number, line in enumerate(path.read_text(encoding='utf-8').splitlines(), 1):
        off = 'clang-format off' in line or (off and 'clang-format on' not in line)
        of_macro = path.suffix in C and line.endswith('\\')
        if len(line) > limit and not off and not of_macro:
            yield number, len(line)


def clang_format(build):
    for path in (build / 'clang-format' / 'clang_format' / 'data' / 'bin' / 'clang-format',
                 shutil.which('clang-format')):
        if path and pathlib.Path(path).exists():
            said = subprocess.run([path, '--version'], capture_output=True, text=True, check=False).stdout
            if f' {VERSION}' in said:
                return path
    return None


def main():
    root, build = (pathlib.Path(name).resolve() for name in sys.argv[1:3])
    paths = list(sources(root, *C))
    long = [f'{name}:{number}: {columns} columns, {limit_of(name, path.suffix)} at most'
            for path, name in ((path, str(path.relative_to(root))) for path in sources(root, *C, '.py', '.sh'))
            for number, columns in long_lines(path, name)]
    if long:
        sys.exit('\n'.join(long))
    tool = clang_format(build)
    if not tool:
        print(f'skipped: no clang-format {VERSION} here: pip install clang-format=={VERSION}')
        return 77
    wrong = 0
    for at in range(0, len(paths), 64):
        wrong |= subprocess.run([tool, '--dry-run', '--Werror', *paths[at:at + 64]], check=False).returncode
    if wrong:
        print(f'clang-format -i FILE… mends that (version {VERSION})')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
