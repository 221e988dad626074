"""The options' documentation is made from their rows: where a file is not what they say, it is said in which line,
and an update makes it so, and no other.

usage: document.py DOCUMENT SAMPLE README
"""
import pathlib
import subprocess
import sys
import tempfile

document, *files = sys.argv[1:]
faults = []


def run(how, *paths):
    return subprocess.run([document, how, *paths], capture_output=True, text=True, check=False)


def prove(changed, line):
    """So many lines down in that one of the files something is written otherwise."""
    with tempfile.TemporaryDirectory(prefix='gpushim-document-') as folder:
        texts = [pathlib.Path(file).read_text(encoding='utf-8') for file in files]
        paths = [pathlib.Path(folder, pathlib.Path(file).name) for file in files]
        for path, text in zip(paths, texts):
            path.write_text(text, encoding='utf-8')
        rows = texts[changed].split('\n')
        rows[line - 1] += ' and more'
        paths[changed].write_text('\n'.join(rows), encoding='utf-8')
        checked = run('check', *paths)
        if (checked.returncode != 1 or checked.stderr.count('\n') != 1 or
                not checked.stderr.startswith(f'{paths[changed]}:{line}: ')):
            faults.append(f'line {line} of {files[changed]}: {checked}')
        updated = run('update', *paths)
        if updated.returncode != 0 or updated.stdout != f'updated {paths[changed]}\n':
            faults.append(f'an update of {files[changed]}: {updated}')
        for path, text in zip(paths, texts):
            if path.read_text(encoding='utf-8') != text:
                faults.append(f'{path} is not what it was before')


prove(0, 1)
prove(0, 7)
prove(1, pathlib.Path(files[1]).read_text(encoding='utf-8').split('\n').index('<!-- options -->') + 3)
for fault in faults:
    print(fault)
sys.exit(1 if faults else 0)
