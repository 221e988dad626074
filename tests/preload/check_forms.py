"""A hook of a call's per-thread form (_ptsz, _ptds) does what the hook of its other form does, with the
calling thread's default stream in place of the legacy one, and nothing else.

    check_forms.py FOLDER_OF_HOOKS
"""
import pathlib
import re
import sys

HOOK = re.compile(r'^GS_HOOK CUresult CUDAAPI (\w+)\([^{;]*?\)\n\{\n(.*?)^\}', re.M | re.S)
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


def main():
    bodies = {}
    for path in sorted(pathlib.Path(sys.argv[1]).glob('*.c')):
        bodies |= {found[1]: plain(found[2]) for found in HOOK.finditer(path.read_text(encoding='utf-8'))}
    forms = [name for name in bodies if name.endswith(('_ptsz', '_ptds')) and name[:-5] in bodies]
    faults = [] if len(forms) >= 60 else [f'only {len(forms)} forms were found']
    for name in forms:
        base, said = name[:-5], bodies[name].replace(name, name[:-5]).replace(*DIFFERS.get(name, ('\n', '')))
        outside = re.sub(rf'gs_real\.{base}\([^;]*', '', bodies[base])
        if as_legacy(said) != bodies[base]:
            faults.append(f'{name}: {said}\n  {base}: {bodies[base]}')
        elif said == bodies[base] and STREAM.search(outside) and name not in DIFFERS:
            faults.append(f'{name} is about the legacy stream: {said}')
    print('\n'.join(faults) or f'{len(forms)} forms are as their others')
    sys.exit(bool(faults))


main()
