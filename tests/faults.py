"""For tests that are programs: faults are collected, and printed at the end."""
import subprocess
import sys
import tempfile
import time

PATIENT_S = 60
faults = []


def check(condition, what):
    if not condition:
        faults.append(what)


def holds(condition):
    """A row that is not there yet, or not there any more, is no answer."""
    try:
        return condition()
    except LookupError:
        return False


def await_that(condition, what):
    deadline = time.monotonic() + PATIENT_S
    while not holds(condition):
        if time.monotonic() > deadline:
            faults.append(what)
            return False
        time.sleep(0.01)
    return True


def call(words, environment, **options):
    """What became of a command that may fail, with its text."""
    return subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors='replace', check=False, **options)


def scratch(prefix):
    """A folder that goes, whatever still ends in it, for what runs with Python 3.9 too: that one may complain."""
    return tempfile.TemporaryDirectory(prefix=prefix, **({'ignore_cleanup_errors': True} if sys.version_info >= (3, 10)
                                                         else {}))


def skip(why):
    """Nothing can be proved here."""
    print('skipped:', why)
    sys.exit(77)


def end_with_faults(skipped=None):
    """`skipped`: why nothing was proved, if all is well."""
    for fault in faults:
        print(fault)
    if skipped and not faults:
        print('skipped:', skipped)
    sys.exit(1 if faults else 77 if skipped else 0)
