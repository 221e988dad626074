"""The table of tests/gpu/run.sh: prints the rows of its files, or puts them into the README.

    table.py ROWS…                 for a terminal
    table.py --readme FILE ROWS…   in FILE, between "<!-- programs -->" and "<!-- /programs -->"

A row is a line: name, native, shim, compared, with tabs between them. Of rows with the same name
the last one counts, so a part that was run again replaces what it said before. Several runs on
several machines make one table: the README's is made of all their rows.
"""
import pathlib
import re
import sys

HEAD = ('program', 'native', 'under the library', 'compared')

# What the README calls the rows, in its order; what is not here keeps its name and comes last.
TITLES = (
    ('conformance', 'conformance suite'),
    ('two_gpu', 'conformance suite on two GPUs: reach, pools, info, contexts, vmm'),
    ('cudart_static', 'runtime API program, static cudart'),
    ('cudart_shared', 'runtime API program, shared cudart'),
    ('share_driver .*', '`examples/share`, driver API, story {}'),
    ('share_runtime .*', '`examples/share`, runtime API, story {}'),
    ('numba', "numba-cuda's own test suite"),
    ('torch_share', 'PyTorch `torch.multiprocessing`'),
    ('torch_share_expandable', 'the same, expandable segments'),
    ('torch_kill', 'PyTorch producers and consumers, killed and leaving early'),
    ('torch_kill_broker', 'the same, with `share.strategy = broker`'),
    ('torch_(gpt|resnet|gnn|decode)_(.*)', 'PyTorch {}, {}'),
    ('torch_graph_(.*)', 'PyTorch `CUDAGraph`, {}'),
    ('torch_stats_(.*)', 'PyTorch `memory_stats` and `mem_get_info`, {}'),
    ('torch_compile', 'PyTorch `torch.compile`'),
    ('torch_fork', 'PyTorch `DataLoader` workers and other forks'),
    ('memory_(.*)', 'PyTorch {}: time of a step and peak memory'),
    ('cupy_ipc', 'CuPy IPC, default and async pool'),
    ('cupy_(.*)', 'CuPy, {} pool'),
    ('jax_(.*)', 'JAX, {} allocator'),
    ('nccl_(.*)', 'NCCL all-reduce on two GPUs, `NCCL_CUMEM_ENABLE={}`'),
    ('peer_(.*)', 'copies and kernels between two GPUs, {}'),
    ('sanitizer_(.*)', 'compute-sanitizer over {}'),
)


def read_rows(paths):
    rows = {}
    for path in paths:
        for line in pathlib.Path(path).read_text(encoding='utf-8').splitlines():
            cells = line.split('\t')
            if len(cells) == len(HEAD):
                rows[cells[0]] = cells
    return list(rows.values())


def title_of(name):
    """Where it stands in the README, and what it is called there."""
    for i, (pattern, title) in enumerate(TITLES):
        match = re.fullmatch(pattern, name)
        if match:
            parts = match.groups() or (name.rpartition(' ')[2],)
            return i, title.format(*(part.replace('_', ' ') for part in parts))
    return len(TITLES), name


def as_text(rows):
    widths = [max(len(row[i]) for row in (HEAD, *rows)) for i in range(len(HEAD))]
    return '\n'.join('  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
                     for row in (HEAD, *rows))


def as_markdown(rows):
    placed = sorted(rows, key=lambda row: title_of(row[0])[0])
    lines = [HEAD, ('---',) * len(HEAD)]
    lines += [(title_of(row[0])[1], *row[1:]) for row in placed]
    return '\n'.join('| ' + ' | '.join(cell.replace('|', '\\|') for cell in line) + ' |'
                     for line in lines)


def into_readme(path, rows):
    text = path.read_text(encoding='utf-8')
    head, begin, rest = text.partition('<!-- programs -->')
    _, end, tail = rest.partition('<!-- /programs -->')
    if not begin or not end:
        sys.exit(f'table: {path} has no "<!-- programs -->" … "<!-- /programs -->"')
    path.write_text(f'{head}{begin}\n{as_markdown(rows)}\n{end}{tail}', encoding='utf-8')


def main():
    args = sys.argv[1:]
    readme = pathlib.Path(args[1]) if args[:1] == ['--readme'] and len(args) > 2 else None
    rows = read_rows(args[2:] if readme else args)
    if not rows:
        sys.exit('table: no rows')
    if readme:
        into_readme(readme, rows)
    else:
        print(as_text(rows))


if __name__ == '__main__':
    main()
