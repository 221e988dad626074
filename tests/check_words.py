"""Words that this project does not use any more are in no name, comment, message or page: RETIRED has them, and what is
said in their place. A process is it, a user is they; a comment does not begin with what it does not name.

    check_words.py REPOSITORY

What is left out, and why, is in APART (whole files) and ELSEWHERE (a word in a folder).
"""
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1]).resolve()


def word(*words):
    """As a whole word, or as a part of a name between underlines or hyphens."""
    return r'(?<![a-z])(?:' + '|'.join(words) + r')(?![a-z])'


# A word as it is called here, what it looks like, and what is said in its place.
RETIRED = {
    'he': (word('he', 'him', 'his', 'himself', 'she', 'her', 'hers', 'herself'), 'it of a process, they of a user'),
    'the same': (r'^\s*(?:/\*+|\*|//|#|""")\s*the same(?:[.,;:]| (?:of|for|in|as|where|with|without|until|when|by|but|'
                 r'through|from|on|at|to|because|while)\b)', 'what it is the same as, by its name'),
    'chunk': (word('chunks?'), 'piece'),
    'strip': (word('strips?'), 'pieces, side by side'),
    'purge': (r'(?<!-)' + word('purge', 'purges', 'purged', 'purging'), 'trim, and the trimmer'),
    'excess': (word('excess'), 'surplus'),
    'felt': (word('felt', 'strandable'), 'there is one target'),
    'plea': (word('pleas?'), 'a request to reclaim'),
    'astray': (word('astray', 'adrift', 'parted'), 'what a connection or an attachment is'),
    'afar': (word('afar'), 'cluster'),
    'borrow': (word('borrows?'), 'import'),
    'take up': (word('take_up', 'takes_up', 'taken_up'), 'resume'),
    'told line': (word('told_line'), 'sent'),
    'lone_stream': (word('lone_stream'), 'single_stream'),
    'own_vmm': (word('own_vmm'), 'user_vmm'),
}

FOLDERS = ('.github', 'config', 'core', 'examples', 'shim', 'tests')
SUFFIXES = ('.c', '.h', '.cu', '.md', '.py', '.sh', '.txt', '.build', '.sample')

# Files that are not looked at: they have the words as what they are.
APART = {
    'tests/check_words.py': 'has the list',
    'tests/check_scripts.py': 'has words that the check is to find',
}

# What a word is in a file or folder besides what it was here.
IN_SHARE = 'not yet: of the time before this list, and in names that all others call it by'
OF_SHARE = "core/share's names, which it calls"
OF_MODEL = 'its model of core/share has its words'
NOT_YET = 'not yet'
ELSEWHERE = {
    'chunk': {'core/share': IN_SHARE, 'core/api': OF_SHARE, 'core/process': OF_SHARE,
              'core/README.md': 'says so of core/share', 'shim/agent': OF_SHARE, 'shim/command': OF_SHARE,
              'tests/agent': OF_SHARE, 'tests/fuzz': OF_SHARE, 'tests/mutants': OF_SHARE, 'tests/share': OF_SHARE,
              'tests/simulation': OF_MODEL, 'tests/unit': OF_SHARE, 'tests/command': OF_SHARE,
              'tests/gpu/workloads': "PyTorch's", 'examples': NOT_YET},
    'strip': {'core/share': IN_SHARE, 'core/api': OF_SHARE, 'core/process': OF_SHARE, 'core/README.md': OF_SHARE,
              'examples': "Python's", 'shim/lookup': "meson's", 'tests': OF_SHARE + "; Python's, and binutils'"},
    'purge': {'core/share': IN_SHARE, 'core/process': OF_SHARE, 'tests/fuzz': OF_SHARE, 'tests/unit/share': OF_SHARE,
              'examples/packages': "dpkg's"},
    'plea': {'core/share': IN_SHARE, 'core/README.md': OF_SHARE, 'tests/mutants': OF_SHARE,
             'tests/unit/share': OF_SHARE},
    'astray': {'core/share': IN_SHARE, 'tests/mutants': OF_SHARE, 'tests/simulation': OF_MODEL,
               'tests/unit/process': OF_SHARE},
    'lone_stream': {'config': "the option's old name, which is understood", 'tests/command': 'the old name',
                    'tests/preload': 'the old name'},
    'own_vmm': {'config': "the option's old name, which is understood", 'tests/command': 'the old name',
                'tests/gpu': 'a part is called so', 'tests/README.md': 'that part', 'tests/preload': 'the old name'},
}


def is_in(name, places):
    return any(name == place or name.startswith(f'{place}/') for place in places)


def files():
    yield from sorted(ROOT.glob('*.md'))
    for folder in FOLDERS:
        for path, folders, names in os.walk(ROOT / folder):
            folders[:] = sorted(name for name in folders if not name.startswith(('.', 'build', '__')))
            yield from (pathlib.Path(path) / name for name in sorted(names) if name.endswith(SUFFIXES))


def faults():
    patterns = {name: re.compile(pattern, re.I) for name, (pattern, _) in RETIRED.items()}
    for path in files():
        name = str(path.relative_to(ROOT))
        if name in APART:
            continue
        wanted = {key: pattern for key, pattern in patterns.items() if not is_in(name, ELSEWHERE.get(key, ()))}
        for number, line in enumerate(path.read_text(encoding='utf-8').splitlines(), 1):
            for key, pattern in wanted.items():
                found = pattern.search(line)
                if found:
                    yield f'{name}:{number}: {found[0].strip()!r} is retired: {RETIRED[key][1]}'


def main():
    found = list(faults())
    print('\n'.join(found) or 'ok')
    sys.exit(1 if found else 0)


main()
