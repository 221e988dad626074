"""What the tests of processes with one device know of the page by which these ask each other
(core/share/page.h)."""
import pathlib
import re
import sys

PAGE = 'memory-3'
ASKER_BYTE = 4096  # of its locks: who asks, and
FIRST_BYTE = 4097  # one for each process that listens
PATIENT_S = 30


def check(condition, what):
    if not condition:
        sys.exit(f'failed: {what}')


def count_listeners(folder):
    """How many processes can be asked: each has a lock of its own in the page."""
    try:
        inode = (folder / PAGE).stat().st_ino
    except FileNotFoundError:
        return 0
    locks = re.findall(rf'OFDLCK .* WRITE .*:{inode} (\d+) ', pathlib.Path('/proc/locks').read_text())
    return sum(int(byte) >= FIRST_BYTE for byte in locks)
