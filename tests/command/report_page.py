"""The page of gpushim report in a browser: it draws itself without a fault and without a network, and what it
adds up agrees with the trace. Skipped where there is no chromium.

usage: report_page.py GPUSHIM
"""
import glob
import html
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

import trace_file as t
from alone import check, end_with_faults, surroundings

gpushim = os.path.realpath(sys.argv[1])
browser = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')
BASE, MIB = 0x7f0000000000, 1 << 20
MANY = 100_000  # events


def many(path):
    """Pieces with blocks of many sizes in them and across them, freed in any order; a few of another GPU."""
    truth, other, chance = t.Truth(), t.Truth(device=2), random.Random(5)
    pieces = 40
    for piece in range(pieces):
        truth.add(t.call, t.PIECE_MADE, BASE + piece * 32 * MIB, 32 * MIB, took=20000)
    truth.alloc(0x600000000000, 5 * MIB, outcome=t.DRIVER)
    while len(truth.events) < MANY:
        address = BASE + MIB // 2 + chance.randrange(pieces * 32 - 1) * MIB
        if address in truth.live:
            truth.free(address)
        elif chance.random() < .4:
            truth.alloc(address, chance.choice([512, 4096, 100_000, MIB]), frames=[0x1000 + address % 7])
        if len(truth.events) % 50 == 0:
            truth.add(t.figures, truth.now, 7 * MIB, 2 * MIB, MIB)
    for number in range(5):
        other.alloc(BASE * 2 + number * MIB, MIB)
    parts = [t.block(t.EVENTS, b''.join(truth.events[i:i + 1000])) for i in range(0, len(truth.events), 1000)]
    t.write(path, t.header(b'<b>&amp;"', True), t.devices((0, 80 << 30, b'A GPU')), *parts,
            t.block(t.EVENTS, b''.join(other.events), thread=2))
    return truth, len(truth.events) + len(other.events)


def open_page(folder, page):
    """The page's elements once it has drawn itself, what the browser logged, and what it fetched."""
    log = f'{folder}/net.json'
    ran = subprocess.run([browser, '--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
                          f'--user-data-dir={folder}/profile', '--host-resolver-rules=MAP * ~NOTFOUND',
                          '--enable-logging=stderr', '--v=0', f'--log-net-log={log}', '--no-first-run',
                          '--disable-background-networking', '--disable-component-update', '--disable-sync',
                          '--window-size=1160,1500', '--dump-dom', f'file://{page}'],
                         env=surroundings() | {'HOME': folder}, capture_output=True, text=True, errors='replace',
                         timeout=240, check=False)
    fetched = set()
    for path in glob.glob(log):
        with open(path, encoding='utf-8') as file:
            fetched = set(re.findall(r'"url":"([^"]*)"', file.read()))
    check(ran.returncode == 0, f'the browser ended with {ran.returncode}: {ran.stderr[-500:]}')
    return ran.stdout, [line for line in ran.stderr.splitlines() if ':CONSOLE' in line], fetched


def value(dom, name):
    found = re.search(rf'<(?:dd|output)[^>]* id="{name}"([^>]*)>', dom) or re.search(
        rf'<(?:dd|output) id="{name}"([^>]*)>', dom)
    number = found and re.search(r'data-value="(\d+)"', found[1])
    return int(number[1]) if number else None


def agrees(dom, truth, events):
    expected = {'total-allocations': truth.allocations + 5, 'total-frees': truth.frees, 'total-refused': 0,
                'total-events': events, 'peak-live': truth.peak, 'peak-reserved': 40 * 32 * MIB,
                'peak-cached': 7 * MIB, 'peak-retired': 2 * MIB, 'peak-limbo': MIB,
                'never-freed': len(truth.live),
                # What the script added up by itself of the blocks that are there at the peak.
                'map-live': truth.peak, 'map-pieces': 40, 'map-reserved': 40 * 32 * MIB, 'map-outside': 5 * MIB}
    found = {name: value(dom, name) for name in expected}
    check(found == expected, f'the page has {found}, not {expected}')
    check('drawn by gpushim report' in dom, 'the page did not come to its end')
    paths = re.findall(r'<path [^>]*d="M([^"]*)"', dom)
    check(len(paths) == 6 and all(path.count('L') <= 2002 for path in paths), f'{len(paths)} layers are drawn')
    check(html.escape('<b>&amp;"', quote=False) in dom, 'the program\'s name is not as it is')
    missing = re.search(r'<p class="warning" id="missing">([^<]*)<', dom)
    check(missing and 'has no end' in missing[1], 'it does not say that the file has no end')
    check(dom.count('<option ') == 2, 'the GPUs are not offered')


def titles(dom):
    """What the flame graph's parts say of themselves, in its order."""
    flame = re.search(r'<svg id="flame".*?</svg>', dom, re.S)
    return [html.unescape(title) for title in re.findall(r'<title>([^<]*)</title>', flame[0] if flame else '')]


def flames(folder):
    """Who called, from the outermost on: labels, lines of scripts; functions where there are none. One that is chosen
    is alone with what leads to it."""
    names = b'1 5 inner\t/srv/a.py\n2 9 outer\t/srv/a.py\n3 0 optimizer\t\n4 7 other\t/srv/a.py\n'
    # sizes and times as the text has them
    stacks = [(8 * MIB, [1, 2]), (2 * MIB, [4, 2]), (4 * MIB, [3, 1, 2]), (1000 << 10, [])]
    events = [t.call(1000 * i, t.ALLOC, BASE + i * 16 * MIB, size, took=999_600,
                     frames=[t.NAMED | name for name in named] + [0x20, 0x10])
              for i, (size, named) in enumerate(stacks)]
    t.write(f'{folder}/named', t.header(stacks=True), t.block(t.NAMES, names), t.block(t.EVENTS, b''.join(events)),
            t.block(t.END))
    subprocess.run([gpushim, 'report', f'{folder}/named', '--html', f'{folder}/named.html'], env=surroundings(),
                   check=True)
    dom, said, _ = open_page(folder, f'{folder}/named.html')
    outer, inner = 'outer (/srv/a.py:9)', 'inner (/srv/a.py:5)'
    found = titles(dom)
    check(found == ['all: 15.0 MiB in 4 blocks', f'{outer}: 10.0 MiB in 2 blocks', f'{inner}: 8.0 MiB in 1 block',
                    'other (/srv/a.py:7): 2.0 MiB in 1 block', 'label optimizer: 4.0 MiB in 1 block',
                    f'{outer}: 4.0 MiB in 1 block',
                    f'{inner}: 4.0 MiB in 1 block', '0x10: 1.0 MiB in 1 block', '0x20: 1.0 MiB in 1 block'],
          f'flames: {found}')
    check('<td class="who">inner (/srv/a.py:5) \u2190 outer (/srv/a.py:9)</td>' in dom,
          'of a script its lines alone are told')
    check('<td class="number">1.00 ms</td>' in dom, 'three figures of what is nearly a millisecond')
    check('<path id="leak"' in dom and not said, f'what is never freed is not drawn: {said}')
    with open(f'{folder}/named.html', encoding='utf-8') as file:
        page = file.read()
    with open(f'{folder}/chosen.html', 'w', encoding='utf-8') as file:
        file.write(page.replace("put('state',",
                                "element('flame').children[4].dispatchEvent(new Event('click')); put('state',", 1))
    found = titles(open_page(folder, f'{folder}/chosen.html')[0])
    check(found == ['all: 15.0 MiB in 4 blocks', 'label optimizer: 4.0 MiB in 1 block', f'{outer}: 4.0 MiB in 1 block',
                    f'{inner}: 4.0 MiB in 1 block'], f'one is chosen: {found}')


def is_accessible(dom):
    check('<html lang="en">' in dom and '<main>' in dom and dom.count('<h1>') == 1, 'language, main part or title lack')
    for kind in 'input', 'select':
        for name in re.findall(rf'<{kind} [^>]*?id="([^"]*)"', dom):
            check(f'<label for="{name}">' in dom, f'{name} has no label')
    for tag in re.findall(r'<(?:svg|canvas) [^>]*>', dom):
        check('role="img"' in tag and 'aria-label' in tag, f'a drawing has no name: {tag[:80]}')
    check(all('<caption>' in table for table in re.findall(r'<table.*?</table>', dom, re.S)), 'a table has no caption')


def main():
    with tempfile.TemporaryDirectory(prefix='gpushim-page-', dir='/tmp', ignore_cleanup_errors=True) as folder:
        truth, events = many(f'{folder}/trace')
        ran = subprocess.run([gpushim, 'report', f'{folder}/trace', '--html', f'{folder}/page.html'],
                             env=surroundings(), capture_output=True, text=True, timeout=60, check=False)
        check(ran.returncode == 0, f'gpushim report: {ran}')
        dom, said, fetched = open_page(folder, f'{folder}/page.html')
        agrees(dom, truth, events)
        is_accessible(dom)
        flames(folder)
        check(not said, f'the browser says: {said}')
        away = [url for url in fetched if not url.startswith(('file:', 'data:', 'chrome', 'about:'))]
        # Some browsers look for updates of their own; the page is what counts.
        away = [url for url in away if not re.match(r'https?://([\w.-]+\.)?(google|googleapis|gstatic)\.com/', url)]
        check(not away, f'the page fetches {away}')
        # The page forbids itself any: one that would is stopped, and the browser says so.
        with open(f'{folder}/page.html', encoding='utf-8') as file:
            page = file.read()
        with open(f'{folder}/bad.html', 'w', encoding='utf-8') as file:
            file.write(page.replace("'use strict';", "'use strict'; fetch('http://example.invalid/x').catch(() => 0);",
                                    1))
        _, said, _ = open_page(folder, f'{folder}/bad.html')
        check(any('Content Security Policy' in line for line in said), f'a page that fetches is not noticed: {said}')


if not browser:
    end_with_faults('there is no chromium here, in which to open the page')
main()
end_with_faults()
