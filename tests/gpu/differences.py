"""Compares the conformance suite natively and under the shim, for tests/gpu/run.sh.

    differences.py NATIVE SHIM

Each file has a line "RESULT suite::test outcome" for each test: passed, FAILED, or skipped and why.
Tests of what only the library does skip natively, and their reason begins with the word "natively" or says
that a function is the library's: that such a one passes under the library is as it should be. Any other difference has
another cause, and nothing explains it here. The first line of what this prints is a word on all; then come the
tests that differ and are not explained, with both outcomes. Exit status 1 where there are any, or
where a test failed under the library, or none was run.
"""
import sys

ONLY_OURS = ('skipped natively', "skipped the function is the library's")

def outcomes(path):
    found = {}
    with open(path, encoding='utf-8', errors='replace') as log:
        for line in log:
            word, _, rest = line.rstrip('\n').partition(' ')
            if word == 'RESULT':
                name, _, outcome = rest.partition(' ')
                found[name] = outcome
    return found


def main():
    native, shim = (outcomes(path) for path in sys.argv[1:3])
    explained, strange = 0, []
    for name in sorted(set(native) | set(shim)):
        one, two = native.get(name, 'not run'), shim.get(name, 'not run')
        if one == two:
            continue
        if one.startswith(ONLY_OURS) and two == 'passed':
            explained += 1
        else:
            strange.append(f'{name}: native {one}, shim {two}')
    failed = sum(outcome == 'FAILED' for outcome in shim.values())
    words = []
    if explained:
        words.append(f'{explained} differ: what only the library does')
    if strange:
        words.append(f'{len(strange)} differ: not explained')
    if failed:
        words.append(f'{failed} fail under the library')
    if not shim:
        words.append('nothing was run')
    print('; '.join(words) or 'equal')
    print(*strange, sep='\n')
    return bool(strange or failed or not shim)


if __name__ == '__main__':
    sys.exit(main())
