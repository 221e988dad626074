"""What is to be built for tests, from what Meson knows.

    targets.py BUILD_FOLDER [--suite NAME | --no-suite NAME]…

prints it for the tests that `meson test` would run with these options, for ninja. tests/mutants/mutants.py
asks for single tests.
"""
import json
import pathlib
import sys


def introspect(folder, what):
    return json.loads((folder / 'meson-info' / f'intro-{what}.json').read_text(encoding='utf-8'))


def of_tests(folder):
    """For each test its files, relative to the folder, and what Meson knows of it."""
    files = {target['id']: [str(pathlib.Path(name).relative_to(folder)) for name in target['filename']]
             for target in introspect(folder, 'targets')}
    return [({name for target in test['depends'] for name in files[target]}, test)
            for test in introspect(folder, 'tests')]


def main():
    options = list(zip(sys.argv[2::2], sys.argv[3::2]))
    wanted = {name for option, name in options if option == '--suite'}
    unwanted = {name for option, name in options if option == '--no-suite'}
    needed = set()
    for files, test in of_tests(pathlib.Path(sys.argv[1]).resolve()):
        suites = {suite.rpartition(':')[2] for suite in test['suite']}
        if not suites & unwanted and (not wanted or suites & wanted):
            needed |= files
    print('\n'.join(sorted(needed)))


if __name__ == '__main__':
    main()
