"""Prints what is to be built for the tests of some suites, for `meson compile` and ninja.

    targets.py BUILD_FOLDER [--suite NAME]… [--no-suite NAME]…

A test counts where it is in one of the first, if there are any, and in none of the second.
"""
import json
import pathlib
import sys


def introspect(folder, what):
    return json.loads((folder / 'meson-info' / f'intro-{what}.json').read_text(encoding='utf-8'))


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    words = sys.argv[2:]
    of = {'--suite': set(), '--no-suite': set()}
    for option, name in zip(words[::2], words[1::2]):
        of[option].add(name)
    files = {target['id']: target['filename'] for target in introspect(folder, 'targets')}
    wanted = set()
    for test in introspect(folder, 'tests'):
        suites = {suite.rpartition(':')[2] for suite in test['suite']}
        if (not of['--suite'] or suites & of['--suite']) and not suites & of['--no-suite']:
            wanted.update(name for target in test['depends'] for name in files[target])
    for name in sorted(wanted):
        print(pathlib.Path(name).relative_to(folder))


if __name__ == '__main__':
    main()
