"""C is as .clang-format says, and its lines are short.

    check_format.py REPOSITORY BUILD

A line has 100 columns at most; one with text or a remark and a directive 130, those of a longer macro have no limit. clang-format has to be of the version below, whose output
differs from one to the next: that of PATH, or the one that tests/run.sh has put into BUILD. Without it the exit status is 77.
"""
import pathlib
import shutil
import subprocess
import sys

VERSION = '21.1.8'
COLUMNS, WITH_TEXT = 100, 130
FOLDERS = ('config', 'core', 'examples', 'shim', 'tests')


def sources(root):
    for folder in FOLDERS:
        yield from sorted(path for path in (root / folder).rglob('*') if path.suffix in ('.c', '.h'))


def is_long(line):
    has_text = '"' in line or '/*' in line or line.lstrip().startswith(('*', '#'))
    return not line.endswith('\\') and len(line) > (WITH_TEXT if has_text else COLUMNS)


def long_lines(path):
    """Tables, for which clang-format is off, have rows of any length."""
    off = False
    for number, line in enumerate(path.read_text(encoding='utf-8').splitlines(), 1):
        off = 'clang-format off' in line or (off and 'clang-format on' not in line)
        if not off and is_long(line):
            yield number, len(line)


def clang_format(build):
    for path in (build / 'clang-format' / 'clang_format' / 'data' / 'bin' / 'clang-format', shutil.which('clang-format')):
        if path and pathlib.Path(path).exists():
            said = subprocess.run([path, '--version'], capture_output=True, text=True, check=False).stdout
            if f' {VERSION}' in said:
                return path
    return None


def main():
    root, build = (pathlib.Path(name).resolve() for name in sys.argv[1:3])
    paths = list(sources(root))
    long = [f'{path.relative_to(root)}:{number}: {columns} columns' for path in paths for number, columns in long_lines(path)]
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
