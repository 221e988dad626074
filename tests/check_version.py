"""The version is said in one place, the top meson.build, and what else names it names that one: the public header, the
manifests, what pages show of the programs. The newest entry of CHANGELOG.md is of it, and has 60 lines at most.

    check_version.py REPOSITORY           0, or a line for each place that names another one
    check_version.py REPOSITORY --write   writes it there (`meson compile update-docs`); the changelog is for people
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
NUMBER = r'\d+\.\d+\.\d+'
CHANGELOG_LINES = 60
# Files, and what stands before the version in them.
PLACES = (
    ('shim/gpushim.h', r'#define GPUSHIM_VERSION\s+"'),
    ('examples/containers/*.yaml', r'newTag: |/libgpushim:'),
    ('examples/**/README.md', r'\b(?:lib)?gpushim[\w-]*(?: \(| |_|-)'),
    ('shim/**/README.md', r'\b(?:lib)?gpushim[\w-]*(?: \(| |_|-|\{version=")'),
)


def version_of(root):
    return re.search(rf"^  version: '({NUMBER})',$", (root / 'meson.build').read_text(encoding='utf-8'), re.M)[1]


def with_parts(text, version):
    """The header has the three numbers too, for the preprocessor."""
    for part, number in zip(('MAJOR', 'MINOR', 'PATCH'), version.split('.')):
        text = re.sub(rf'(#define GPUSHIM_VERSION_{part}) \d+', rf'\1 {number}', text)
    return text


def rewritten(text, before, version):
    return with_parts(re.sub(rf'({before}){NUMBER}', lambda found: found[1] + version, text), version)


def faults_of_places(version, write):
    named = 0
    for pattern, before in PLACES:
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text(encoding='utf-8')
            named += len(re.findall(rf'(?:{before}){NUMBER}', text))
            new = rewritten(text, before, version)
            if new != text and write:
                path.write_text(new, encoding='utf-8')
            elif new != text:
                yield (f'{path.relative_to(ROOT)}: names another version than meson.build, {version}: '
                       'meson compile update-docs')
    if not named:
        yield 'nothing names the version'


def faults_of_changelog(version):
    entries = re.split(r'^## ', (ROOT / 'CHANGELOG.md').read_text(encoding='utf-8'), flags=re.M)
    if len(entries) < 2 or not re.match(rf'{re.escape(version)}\s', entries[1]):
        yield f'CHANGELOG.md: its first entry is not of {version}'
    elif len(entries[1].splitlines()) > CHANGELOG_LINES:
        yield f'CHANGELOG.md: the entry of {version} has more than {CHANGELOG_LINES} lines'


def main():
    write = sys.argv[2:] == ['--write']
    version = version_of(ROOT)
    faults = [*faults_of_places(version, write), *faults_of_changelog(version)]
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)


if __name__ == '__main__':
    main()
