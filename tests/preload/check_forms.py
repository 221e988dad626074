"""A call's per-thread form (_ptsz, _ptds) is as its other form, with the calling thread's default stream in place of
the legacy one, and nothing else: the rows of both say so, and both hooks are made from them.

    check_forms.py ENTRY_POINTS_H
"""
import pathlib
import re
import sys

ROW = re.compile(r'\bROW\((\w+),[\s\\]+\d+, +(\w+), +(\w+), +(\w+)([^()]*)\)')
FORMS = {'LEGACY': 'THREAD', 'STREAM': 'PTSZ', 'PLAIN': 'PLAIN'}


def main():
    table = pathlib.Path(sys.argv[1]).read_text(encoding='utf-8')
    rows = {name: (what, gate, how, re.sub(r'[\\\s]+', ' ', rest)) for name, what, gate, how,
            rest in ROW.findall(table)}
    forms = [name for name in rows if name.endswith(('_ptsz', '_ptds')) and name[:-5] in rows]
    faults = []
    for name in forms:
        what, gate, how, rest = rows[name[:-5]]
        if rows[name] != (what, gate, FORMS.get(how), rest):
            faults.append(f'{name}: {rows[name]}, {name[:-5]}: {rows[name[:-5]]}')
    if len(forms) < 60:
        faults.append(f'only {len(forms)} forms were found')
    print('\n'.join(faults) or f'{len(forms)} forms are as their others')
    sys.exit(bool(faults))


main()
