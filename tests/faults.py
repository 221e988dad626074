"""For tests that are programs: faults are collected, and printed at the end."""
import sys
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


def end_with_faults(skipped=None):
    """`skipped`: why nothing was proved, if all is well."""
    for fault in faults:
        print(fault)
    if skipped and not faults:
        print('skipped:', skipped)
    sys.exit(1 if faults else 77 if skipped else 0)
