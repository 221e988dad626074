"""Counts the tests of a meson log for tests/run.sh, those too that skip inside a Criterion program.

    count.py TESTLOG_JSON

Prints "PASSED FAILED SKIPPED", then a line "failed: NAME (RESULT)" for each test that failed, a line
"skipped: NAME: REASON" for each that was skipped, and last what those that failed said last.

A program that skips all of itself says why in a line that begins with "skipped: "; one that skips a
part says so by such a line too; Criterion, with CRITERION_VERBOSITY_LEVEL=1, by "[SKIP] NAME: REASON".
"""
import json
import re
import sys

GOOD = ('OK', 'EXPECTEDFAIL')
LAST_LINES = 30
FAULT = re.compile(r'\[(----|FAIL|ERR )\]')


def skips_within(said):
    """The tests that a program left out, with their reasons; not those that its filter did."""
    found = []
    for line in said.splitlines():
        line = re.sub(r'\x1b\[[0-9;]*m', '', line)
        within = re.match(r'\[(?:SKIP)\] ([\w:]+): (.*)', line)
        if within and within[2] != 'Test is disabled':
            found.append(f'{within[1]}: {within[2]}')
        elif line.startswith('skipped: '):
            found.append(line[len('skipped: '):])
    return found


def said_last(said):
    """The end, and before it what Criterion says of tests that failed, which may be far above."""
    lines = said.strip().splitlines()
    above = [line for line in lines[:-LAST_LINES] if FAULT.match(re.sub(r'\x1b\[[0-9;]*m', '', line))]
    return above[:LAST_LINES] + lines[-LAST_LINES:]


def main():
    passed, failed, skipped, last_words = 0, [], [], []
    with open(sys.argv[1], encoding='utf-8') as log:
        for line in log:
            test = json.loads(line)
            name, result = test['name'], test['result']
            said = test.get('stdout', '') + '\n' + test.get('stderr', '')
            reasons = skips_within(said)
            if result == 'SKIP':
                skipped.append(f'{name}: {"; ".join(reasons) or "no reason given"}')
                continue
            skipped += [f'{name}: {reason}' for reason in reasons]
            if result in GOOD:
                passed += 1
            else:
                failed.append(f'{name} ({result})')
                last_words += ['== ' + name, *said_last(said)]
    print(passed, len(failed), len(skipped))
    for test in failed:
        print('failed:', test)
    for test in skipped:
        print('skipped:', test)
    print(*last_words, sep='\n')


main()
