"""Checks on gpushim-broker as a file: what it needs of libc, how it is hardened, what it answers.

usage: check_broker.py GPUSHIM_BROKER VERSION
"""
import re
import subprocess
import sys

broker, version_text = sys.argv[1:]
faults = []


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# It starts where the library does: libc of 2.28 or older.
needs = re.findall(r' [Uw] (\S+)@GLIBC_(\d+)\.(\d+)', output('nm', '-D', broker))
if len(needs) < 20:
    faults.append(f'{len(needs)} symbols of libc were found')
for name, major, minor in needs:
    if (int(major), int(minor)) > (2, 28):
        faults.append(f'{name} is newer than glibc 2.28: it would not start in an older container; '
                      'see shim/command/meson.build')
    if re.fullmatch('v?f?scanf', name):
        faults.append(f'{name} has another name, of glibc 2.38, where it is built against that')
dynamic, segments = output('readelf', '-dW', broker), output('readelf', '-lW', broker)
for name in re.findall(r'\(NEEDED\).*\[(.*)\]', dynamic):
    if not re.match(r'(libc|libpthread|libdl|ld-linux)\b', name):  # parts of libc until 2.34
        faults.append(f'DT_NEEDED {name}: it links to libc alone')

# It reads what other users send.
if not re.search(r'FLAGS_1.*NOW', dynamic) or 'GNU_RELRO' not in segments:
    faults.append('it has no full RELRO')
if not re.search(r'FLAGS_1.*PIE', dynamic):
    faults.append('it is not position independent')
if not re.search(r'GNU_STACK.* RW +0x', segments):
    faults.append('its stack is executable')
names = {name for name, _, _ in needs}
if '__stack_chk_fail' not in names:
    faults.append('it has no stack protector')
if not any(re.fullmatch(r'__\w+_chk', name) for name in names):
    faults.append('it is built without _FORTIFY_SOURCE')

# Whoever finds it can ask it what it is.
for option, status, expected in (('--version', 0, f'gpushim-broker {re.escape(version_text)}\n'),
                                 ('--help', 0, r'usage: gpushim broker (.|\n)*--detach(.|\n)*'),
                                 ('--nonsense', 2, '')):
    run = subprocess.run([broker, option], capture_output=True, text=True, timeout=60, check=False)
    if run.returncode != status or not re.fullmatch(expected, run.stdout):
        faults.append(f'{option}: it ends with {run.returncode} and says {run.stdout!r}')
    if status and '(gpushim help broker)' not in run.stderr:
        faults.append(f'{option}: it does not say how it is used: {run.stderr!r}')

for fault in faults:
    print(f'{broker}: {fault}')
sys.exit(1 if faults else 0)
