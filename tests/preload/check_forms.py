"""A hook of a call's per-thread form (_ptsz, _ptds) does what the hook of its other form does, with the
calling thread's default stream in place of the legacy one, and nothing else: the rows of both say so, and
hooks by hand are compared.

    check_forms.py FOLDER_OF_HOOKS
"""
import pathlib
import re
import sys

HOOK = re.compile(r'^GS_HOOK CUresult CUDAAPI (\w+)\([^{;]*?\)\n\{\n(.*?)^\}', re.M | re.S)
ROW = re.compile(r'\bROW\((\w+),[\s\\]+\d+, +(\w+), +(\w+), +(\w+)([^()]*)\)')
FORMS = {'LEGACY': 'THREAD', 'STREAM': 'PTSZ', 'PLAIN': 'PLAIN', 'BY_HAND': 'BY_HAND'}
# One function for both, which is told which it is; an argument that has another name there.
DIFFERS = {'cuLaunchKernelEx_ptsz': (', true)', ', false)'),
           'cuGraphLaunch_ptsz': ('hGraphExec', 'hGraph'), 'cuGraphUpload_ptsz': ('hGraphExec', 'hGraph')}
STREAM = re.compile(r'\b(?:hS|s)tream\b|, NULL\)')


def plain(body):
    return re.sub(r'\(\s', '(', re.sub(r'\s+', ' ', body)).strip()


def as_legacy(body):
    """What the form with the thread's stream would do with the legacy one. The stream that the driver is given
    is the program's own, in both."""
    if order := re.match(r'CUstream order = gs_per_thread\((\w+)\); ', body):
        body = re.sub(r'\border\b', order[1], body[order.end():])
    return re.sub(r'gs_per_thread\((\w+)\)', r'\1', body).replace('CU_STREAM_PER_THREAD', 'NULL')


def forms_of_rows(path):
    """How many there are, and what is wrong with them."""
    rows = {name: (what, gate, how, plain(rest.replace('\\', ' ')))
            for name, what, gate, how, rest in ROW.findall(path.read_text(encoding='utf-8'))}
    forms = [name for name in rows if name.endswith(('_ptsz', '_ptds')) and name[:-5] in rows]
    return len(forms), [f'{name}: {rows[name]}, {name[:-5]}: {rows[name[:-5]]}' for name in forms
                        if rows[name] != (*rows[name[:-5]][:2], FORMS.get(rows[name[:-5]][2]), rows[name[:-5]][3])]


def main():
    bodies = {}
    for path in sorted(pathlib.Path(sys.argv[1]).glob('*.c')):
        bodies |= {found[1]: plain(found[2]) for found in HOOK.finditer(path.read_text(encoding='utf-8'))}
    count, faults = forms_of_rows(pathlib.Path(sys.argv[1]).parent / 'entry_points.h')
    forms = [name for name in bodies if name.endswith(('_ptsz', '_ptds')) and name[:-5] in bodies]
    if count < 60:
        faults.append(f'only {count} forms were found')
    for name in forms:
        base, said = name[:-5], bodies[name].replace(name, name[:-5]).replace(*DIFFERS.get(name, ('\n', '')))
        outside = re.sub(rf'gs_real\.{base}\([^;]*', '', bodies[base])
        if as_legacy(said) != bodies[base]:
            faults.append(f'{name}: {said}\n  {base}: {bodies[base]}')
        elif said == bodies[base] and STREAM.search(outside) and name not in DIFFERS:
            faults.append(f'{name} is about the legacy stream: {said}')
    print('\n'.join(faults) or f'{count} forms are as their others, {len(forms)} of them by hand')
    sys.exit(bool(faults))


main()
