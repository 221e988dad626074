"""What embed makes of a file is a string of C with the file's bytes, whatever they are and however it ends; and a
file that is not there ends the build.

usage: embed.py EMBED
"""
import pathlib
import re
import subprocess
import sys
import tempfile

EMBED = sys.argv[1]
EVERY = bytes(range(256))
TEXTS = [EVERY, b'\x017\x0177\xff0\n', b'what??/\nis "this"\\\n', b'no line ends here', b'\n\n']

faults = []


def compiled(text):
    """The bytes of a definition of C, as a compiler reads them."""
    head, _, lines = text.partition('=')
    if head != 'static const char page[] ' or not lines.endswith(';\n') or '??' in lines:
        return f'no definition of page, or a trigraph: {text}'
    found = re.findall(r'^ *"((?:[^"\\\n]|\\.)*)"(?:;?)$', lines.removesuffix(';\n'), re.M)
    read = b''
    for escape, plain in [part for line in found for part in re.findall(r'\\([0-7]{1,3}|.)|(.)', line)]:
        if escape and escape[0] in '01234567':
            read += bytes([int(escape, 8) & 255])
        else:
            read += {'n': b'\n'}.get(escape, escape.encode()) + plain.encode()
    return read


with tempfile.TemporaryDirectory(prefix='gpushim-embed-') as folder:
    file = pathlib.Path(folder, 'file')
    for content in TEXTS:
        file.write_bytes(content)
        said = subprocess.run([EMBED, 'page', file], check=True, capture_output=True).stdout.decode('ascii')
        if any(c not in '\n' + ''.join(map(chr, range(32, 127))) for c in said):
            faults.append(f'{content!r}: not printable: {said!r}')
        if compiled(said) != content:
            faults.append(f'{content!r} becomes {compiled(said)!r}')
    for arguments in ([EMBED, 'page', f'{folder}/none'], [EMBED, 'page'], [EMBED]):
        run = subprocess.run(arguments, capture_output=True)
        if run.returncode == 0 or run.stdout or not run.stderr:
            faults.append(f'{arguments[1:]}: {run}')

for fault in faults:
    print(fault)
sys.exit(1 if faults else 0)
