"""The pages (README.md of the project and of its folders, CHANGELOG.md, and those of .github) are true where that can
be checked:

- none is longer than its limit, no line than 120 columns, and no sentence than thirty words (a list counts by its
  items);
- every file that one names is there, and each .c file of a folder of core is named in that folder's page;
- every folder, function, type and variable that one names (gs_..., gpushim_..., GPUSHIM_...) is there;
- a function or type whose file follows in brackets, `name` (file.c), is in that file;
- every option but those of debug has its suggestion in examples/tuning;
- every link within the project leads to a file, and to a heading of it where it names one;
- tests begin with each name that a promise has, where BUILD is given, a build with all tests.

A file is named by its path from the page's folder or from the project's, and may have a * in it.

usage: check_docs.py REPOSITORY [BUILD]
"""
import json
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1]).resolve()

LINES_MOST = 110  # of the first page
COLUMNS_MOST = 120
COLUMNS_MOST_OF = {'README.md': 110}
# Words that a page may have. A folder's page within core fits on a page or so.
MOST = {'README.md': 1200}
MOST_IN_CORE = 1150
# Longer ones, and why.
LONGER = {
    'core/README.md': (2860, 'it is the page on how all of core works, and has the glossary'),
    'core/share/README.md': (4560,
                             'its first half is what users read about sharing, on one machine and on several, and '
                                  'each promise with its tests'),
}

WORDS_MOST = 30  # of a sentence

# What looks like a file of the project's, and is none.
NOT_OURS = {'cuda.h': "the vendor's", 'train.py': "a user's program",
            'rows.tsv': 'made by a run'}
SUFFIXES = 'c|h|S|cu|py|sh|txt|md|json|svg|map|build|sample|xz|supp'
FILE = re.compile(r'(?<![\w./:-])((?:\.\./)*\.?[\w*-]+(?:[./][\w*-]+)*\.(?:' + SUFFIXES + r'))\b(?![/(])')
FOLDER = re.compile(r'(?<![\w./-])((?:config|core|examples|shim|tests)/[\w/-]+)\b(?!\.)')
NAME = re.compile(r'\b((?:gs|gpushim|GS|GPUSHIM)_(?!\d)[A-Za-z0-9_]*[A-Za-z0-9])\b(?!\*)')
LINK = re.compile(r'\[[^\]]*\]\(([^)\s]+)\)')
IN_FILE = re.compile(r'`(?:struct |enum |union )?(\w+)`\s+\(([\w./-]+\.[ch])[),]')
SOURCES = ('config', 'core', 'examples', 'shim', 'tests')

faults = []


def pages():
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if f == '.github' or not f.startswith(('.', 'build'))]
        for name in names:
            if name in ('README.md', 'CHANGELOG.md') or (name.endswith('.md') and '.github' in folder):
                yield pathlib.Path(folder) / name


def of(path):
    return str(path.relative_to(ROOT))


def is_there(page, name):
    return any(any(start.glob(name)) if '*' in name else (start / name).exists()
               for start in (page.parent, ROOT))


def check_length(page, lines):
    if of(page) == 'README.md' and len(lines) > LINES_MOST:
        faults.append(f'{of(page)}: {len(lines)} lines, {LINES_MOST} at most')
    most = COLUMNS_MOST_OF.get(of(page), COLUMNS_MOST)
    faults.extend(f'{of(page)}:{number}: {len(line)} columns, {most} at most'
                  for number, line in enumerate(lines, 1) if len(line) > most)
    words = sum(len(line.split()) for line in lines)
    most = MOST.get(of(page)) or (MOST_IN_CORE if of(page).startswith('core/') else None)
    most, _ = LONGER.get(of(page), (most, None))
    if most and words > most:
        faults.append(f'{of(page)}: {words} words, {most} at most')


def check_sentences(page, text):
    """Of prose, and of the cells of tables: without code, headings, and what is made of the options."""
    text = re.sub(r'<!-- (\w+) -->.*?<!-- /\1 -->', '', text, flags=re.S)
    text = re.sub(r'^(    |#).*$', '', text, flags=re.M)
    text = re.sub(r'^\|.*$', lambda row: '\n\n' + row[0].replace('|', '\n\n'), text, flags=re.M)
    # The items of a list within a sentence, which pages for developers have, count by themselves.
    ends = r'(?<=[.:!?])\s+' if of(page).startswith(('README', 'CHANGELOG', 'examples')) else r'(?<=[.:;!?])\s+'
    text = re.sub(r'`[^`]*`', 'x', LINK.sub(lambda link: link[0][1:].split(']')[0], text))
    for paragraph in re.split(r'\n\s*\n|(?:^|\n) *- |\n\d+\. ', text):
        for sentence in re.split(ends, paragraph.replace('\n', ' ')):
            count = len(re.findall(r"[\w'./-]+", sentence))
            if count > WORDS_MOST:
                faults.append(f'{of(page)}: a sentence of {count} words, {WORDS_MOST} at most: {sentence.strip()}')


def headings(path):
    """The anchors of a page, as they are made of its headings."""
    text = re.sub(r'^```.*?^```', '', path.read_text(encoding='utf-8'), flags=re.M | re.S)
    titles = re.findall(r'^#+ +(.+?)\s*$', text, flags=re.M)
    return {re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-') for title in titles}


def check_links(page, where, line):
    for target in LINK.findall(line):
        if re.match(r'[a-z]+:', target):
            continue
        path, _, anchor = target.partition('#')
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            faults.append(f'{where}: a link to {path}, which is not there')
        elif anchor and (file.suffix != '.md' or anchor not in headings(file)):
            faults.append(f'{where}: a link to #{anchor}, a heading that {of(file)} has not')


def check_names(page, where, line, known):
    line = LINK.sub(' ', line)
    for name in FILE.findall(line):
        if name not in NOT_OURS and not is_there(page, name):
            faults.append(f'{where}: names {name}, which is not there')
    for name in FOLDER.findall(line):
        if not (ROOT / name).exists():
            faults.append(f'{where}: names {name}, which is not there')
    for name in NAME.findall(line):
        if name not in known:
            faults.append(f'{where}: names {name}, which is in no source')


def check_places(page, text):
    for name, file in IN_FILE.findall(text):
        paths = [path for path in (page.parent / file, ROOT / file) if path.exists()]
        if paths and not re.search(rf'\b{name}\b', paths[0].read_text(encoding='utf-8')):
            faults.append(f'{of(page)}: says that {name} is in {file}, and it is not')


def names_of_tests():
    """None where there is no build to ask."""
    if len(sys.argv) < 3:
        return None
    tests = json.loads((pathlib.Path(sys.argv[2]) / 'meson-info' / 'intro-tests.json').read_text(encoding='utf-8'))
    return [test['name'] for test in tests]


def check_promises(page, text, tests):
    """What follows a promise as its suites, or stands in the second column of a table of them; in brackets, and by
    `(on a GPU)`, it says what is no test."""
    told = [re.sub(r'\s+', ' ', found) for found in re.findall(r'^ *- suites: ((?:.+)(?:\n {4}.+)*)', text, re.M)]
    for table in re.findall(r'(?:^\|.*\n)+', text, re.M):
        rows = [row.split('|') for row in table.splitlines()]
        if rows[0][2].strip() == 'proved by':
            told += [row[2] for row in rows[2:]]
    for names in told:
        names = map(str.strip, re.sub(r'`|[^,]*\([^)]*\)', '', names).split(','))
        faults.extend(f'{of(page)}: no test begins with {name}' for name in names
                      if name and not any(test.startswith(name) for test in tests))


def names_of_sources():
    """The options' variables are in no source as such: they are in the table made of the options."""
    paths = [ROOT / 'config' / 'README.md']
    for folder in SOURCES:
        paths += [path for path in (ROOT / folder).rglob('*') if path.suffix in ('.c', '.h', '.sh')]
    known = set()
    for path in paths:
        if path.exists():
            known.update(re.findall(r'\w+', path.read_text(encoding='utf-8')))
    return known


def check_tuning():
    """What is suggested for each option that is promised: those of debug are not."""
    page, options = (ROOT / name / 'README.md' for name in ('examples/tuning', 'config'))
    if options.exists():
        text = page.read_text(encoding='utf-8')
        faults.extend(f'{of(page)}: says nothing of {name}' for name in
                      re.findall(r'^- `((?!debug)\w+\.\w+)`, `GPUSHIM_', options.read_text(encoding='utf-8'), re.M)
                      if f'`{name}' not in text)


def check_folders():
    for folder in sorted((ROOT / 'core').iterdir()):
        sources = sorted(folder.glob('*.c')) if folder.is_dir() else []
        page = folder / 'README.md'
        if sources and not page.exists():
            faults.append(f'{of(folder)}: has no README.md')
            continue
        said = re.findall(r'[\w.-]+', page.read_text(encoding='utf-8')) if sources else []
        faults.extend(f'{of(page)}: does not name {source.name}' for source in sources
                      if source.name not in said)


def main():
    known = names_of_sources()
    tests = names_of_tests()
    count = 0
    for page in sorted(pages()):
        lines = page.read_text(encoding='utf-8').splitlines()
        count += 1
        check_length(page, lines)
        check_places(page, '\n'.join(lines))
        check_sentences(page, '\n'.join(lines))
        if tests:
            check_promises(page, '\n'.join(lines) + '\n', tests)
        for number, line in enumerate(lines, 1):
            where = f'{of(page)}:{number}'
            check_links(page, where, line)
            check_names(page, where, line, known)
    check_folders()
    check_tuning()
    for fault in faults:
        print(fault)
    if not count:
        sys.exit(f'{ROOT} has no page')
    sys.exit(1 if faults else 0)


main()
