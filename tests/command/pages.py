"""The manual pages: nothing is wrong with how they are written, gpushim(1) has every command and every option
that the program tells (--help), and gpushim.conf(5) every option of the configuration.

usage: pages.py GPUSHIM GPUSHIM.1 GPUSHIM.CONF.5 OTHER_PAGE...
"""
import json
import os
import re
import shutil
import sys

import alone
from alone import check, end_with_faults, faults

command, commands_page, options_page = sys.argv[1:4]
SETTINGS = {name: None for name in os.environ
            if name.startswith(('MAN', 'LC_', 'LANG'))} | {'LC_ALL': 'C.UTF-8', 'MANWIDTH': '100'}


def run(*words, **settings):
    return alone.run(words, SETTINGS | settings)


def seen(text):
    """What a reader sees: no requests of roff, no fonts, on one line."""
    text = re.sub(r'^\.\\".*\n', '', text, flags=re.M)
    text = re.sub(r'^\.(?:SS|SH|BI?|IR?|BR|RB|RI|TP|br|PP|nf|fi|RS|RE) ?', '', text, flags=re.M)
    for roff, seen in ((r'\(aq', "'"), (r'\(ti', '~'), (r'\-', '-'), (r'\&', ''), (r'\e', '\\')):
        text = text.replace(roff, seen)
    return ' '.join(re.sub(r'\\f.', '', text).split())


def plain(path):
    """What is seen of a whole page."""
    with open(path, encoding='utf-8') as file:
        text = file.read()
    check('@' not in text, f'{path}: something is not filled in: {re.findall("@.*@", text)}')
    return seen(text)


def check_commands():
    page = plain(commands_page)
    with open(commands_page, encoding='utf-8') as file:
        sections = dict(re.findall(r'^\.SS ([\w-]+)(.*?)(?=^\.S[SH] )', file.read(), re.M | re.S))
    told = re.findall(r'^  ([a-z][a-z-]*) ', run(command, '--help').stdout, re.M)
    check(len(told) >= 4 and 'config' in told, f'gpushim --help tells these commands: {told}')
    for name in told:
        if name not in sections:
            faults.append(f'{commands_page}: has no section .SS {name}')
            continue
        told_of_it = run(command, 'help', name).stdout
        blocks = [seen(block) for block in re.split(r'^\.[PT]P$', sections[name], flags=re.M)]
        text, _, options = told_of_it.partition('\nOptions:\n')
        for paragraph in text.partition('\n')[2].split('\n\n'):
            paragraph = ' '.join(paragraph.split())
            if paragraph not in blocks and not blocks[0].endswith(' ' + paragraph):
                faults.append(f'{commands_page}: {name} has not the paragraph: {paragraph}')
        for option in re.findall(r'^  -.*\n(?:   .*\n)*', options.partition('\n\n')[0] + '\n', re.M):
            option = ' '.join(option.split())
            if option not in blocks and not re.match('-h, ', option):
                faults.append(f'{commands_page}: {name} has no {option}, which its help tells')
        check('Example, ' in sections[name], f'{commands_page}: {name} has no example')
    for name in set(sections) - set(told):
        faults.append(f'{commands_page}: there is no command {name}')
    for status in '012':
        if f' {status} ' not in page[page.index('EXIT STATUS'):]:
            faults.append(f'{commands_page}: does not say what exit status {status} is')


def check_options():
    page = plain(options_page)
    options = json.loads(run(command, 'config', '--json').stdout)['options']
    check(len(options) >= 30, f'{len(options)} options')
    for option in options:
        entry = ' '.join(f'{option["key"]} = {option["default"]}'.split() + option['help'].split() +
                         ['Allowed:', option['allowed'], 'Variable:', option['variable']])
        check(entry in page, f'{options_page}: does not say: {entry}')
    for name in {option['section'] for option in options}:
        check(f'[{name}]' in page, f'{options_page}: has no section {name}')


def check_fonts(path):
    """Whatever is bold or italic ends, and is not begun twice."""
    with open(path, encoding='utf-8') as file:
        for line in file:
            fonts = re.findall(r'\\f(.)', line)
            if any((font == 'R') != (nth % 2 == 1) for nth, font in enumerate(fonts)) or len(fonts) % 2:
                faults.append(f'{path}: fonts that do not end: {line}')


def check_files():
    """Each file that is read stands there, once."""
    with open(options_page, encoding='utf-8') as file:
        named = re.findall(r'^\.TP\n\\fI(.*)\\fR$', file.read(), re.M)
    named = [name.replace(r'\(ti', '~').replace(r'\-', '-') for name in named]
    told = run(command, 'config', '--json', GPUSHIM_CONFIG=None, HOME='/home/some', XDG_CONFIG_HOME='').stdout
    read = [file['path'] for file in json.loads(told)['files']]
    if named != [name.replace('/home/some', '~') for name in read]:
        faults.append(f'{options_page}: names the files {named}, where {read} are read')


def check_form(pages):
    """True: a program that formats such pages was there."""
    checks = []
    if shutil.which('man') and re.match(r'man \d', run('man', '--version').stdout): # else one that only says sorry
        checks.append(['man', '--warnings', '-E', 'UTF-8', '-l'])
    if shutil.which('mandoc'):
        checks.append(['mandoc', '-T', 'lint', '-W', 'warning'])
    for words in checks:
        for page in pages:
            ran = run(*words, page)
            said = ran.stdout + ran.stderr if words[0] == 'mandoc' else ran.stderr
            if ran.returncode or said:
                faults.append(f'{words[0]} says of {page}: {said}')
            elif words[0] == 'man' and not all(
                    heading in ran.stdout for heading in ('NAME', 'DESCRIPTION', 'SEE ALSO')):
                faults.append(f'{page} is not shown whole: {ran.stdout}')
    return bool(checks)


check_commands()
check_options()
for each in sys.argv[2:]:
    check_fonts(each)
check_files()
formatted = check_form(sys.argv[2:])
end_with_faults(None if formatted
                else 'neither man nor mandoc is installed, which would say whether the pages are well formed')
