"""The table of tests/gpu/run.sh: prints the rows of its files, or puts them into a page, which is
tests/bench/README.md.

    table.py ROWS…                 for a terminal
    table.py --readme FILE ROWS…   in FILE, between "<!-- programs -->" and "<!-- /programs -->"

A row is a line: name, native, shim, compared, with tabs between them. Of rows with the same name
the last one counts, so a part that was run again replaces what it said before. Several runs on
several machines make one table: that of the page is made of all their rows. There, rows of one kind
that came out alike make one line, and times of runs side by side, which say nothing, are left out.
"""
import pathlib
import re
import sys

HEAD = ('program', 'native', 'under the library', 'compared')

# What the page calls the rows, in its order; what is not here keeps its name and comes last. What
# a pattern captures is filled in; rows of the same pattern make one line where they can.
TITLES = (
    ('conformance', 'conformance suite'),
    ('two_gpu', 'conformance suite on two GPUs'),
    ('cudart_(.*)', 'runtime API program, cudart {}'),
    ('share_(driver|runtime) (.)', '`examples/share`, {} API, story {}'),
    ('stress', 'stress program: memory with two owners'),
    ('single', 'programs that begin with one stream and go on with several: memory with two owners'),
    ('chaos_catches', 'chaos program, a library made wrong'),
    ('chaos_(.*)', 'chaos program: {}'),
    ('differential', 'programs made from seeds'),
    ('registration', 'registrations: dma-buf, cuFile, UCX'),
    ('numba', "numba-cuda's own test suite"),
    ('torch_(gpt|resnet|gnn|decode)_(.*)', 'PyTorch steps: {}; {}'),
    ('torch_graph_full', 'PyTorch `CUDAGraph` on a GPU of which less than a tenth is free'),
    ('torch_graph_(.*)', 'PyTorch `CUDAGraph`: {}'),
    ('torch_pool_(.*)', '`gpushim.torch` beside PyTorch\'s own cache: {}'),
    ('torch_stats_(.*)', 'PyTorch `memory_stats` and `mem_get_info`: {}'),
    ('torch_compile', 'PyTorch `torch.compile`'),
    ('torch_fork', 'PyTorch `DataLoader` workers and other forks'),
    ('torch_share', 'PyTorch `torch.multiprocessing`'),
    ('torch_share_expandable', 'the same, expandable segments'),
    ('own_ucx', 'UCX `cuda_ipc` over memory that a program maps itself'),
    ('own_torch', 'PyTorch expandable segments opened by CuPy and numba'),
    ('own_saver', 'torch_memory_saver, pause and resume while another has it open'),
    ('weights', '`examples/weights` with PyTorch'),
    ('named', 'names of memory that a program maps itself (tests/share/own.py)'),
    ('pieces', 'one handle of 1 to 2,000 pieces that a program maps itself (tests/share/own.py)'),
    ('torch_kill', 'PyTorch producers and consumers, killed and leaving early'),
    ('torch_kill_broker', 'the same, `share.strategy = broker`'),
    ('command', '`gpushim` doctor, run, top, stats, who, trim, export with PyTorch'),
    ('memory_(?:torch_)?(.*)', 'PyTorch {}: median step and peak device memory'),
    ('program_torch_(.*)', 'PyTorch program `{}`'),
    ('program_jax_(.*)', 'JAX program `{}`, its pool against none'),
    ('program_cupy_(.*)', 'CuPy program `{}`, its pool against none'),
    ('cupy_ipc', 'CuPy IPC, default and async pool'),
    ('cupy_(.*)', 'CuPy pools: {}'),
    ('jax_(.*)', 'JAX allocators: {}'),
    ('nccl_(.*)', 'NCCL all-reduce on two GPUs, `NCCL_CUMEM_ENABLE` {}'),
    ('peer_(.*)', 'copies and kernels between two GPUs: {}'),
    ('sanitizer_(.*)', 'compute-sanitizer over {}'),
)
COUNT = re.compile(r'ok, (\d+) results')


def read_rows(paths):
    rows = {}
    for path in paths:
        for line in pathlib.Path(path).read_text(encoding='utf-8').splitlines():
            cells = line.split('\t')
            if len(cells) == len(HEAD):
                rows[cells[0]] = cells
    return list(rows.values())


def kind_of(name):
    """Where it stands in the page, and what its pattern captured."""
    for i, (pattern, _) in enumerate(TITLES):
        match = re.fullmatch(pattern, name)
        if match:
            return i, match.groups()
    return len(TITLES), (name,)


def in_short(cell):
    """Without the times and peaks of a single run."""
    match = COUNT.match(cell)
    return match.group(0) if match else cell


def together(rows):
    """Lines of the page: rows of one kind that are all ok and compared alike are one."""
    lines = {}
    for row in sorted(rows, key=lambda row: kind_of(row[0])[0]):
        kind, captured = kind_of(row[0])
        native, shim = in_short(row[1]), in_short(row[2])
        alike = COUNT.match(native) and COUNT.match(shim)
        line = lines.setdefault((kind, row[3] if alike else row[0]), [])
        line.append((captured, native, shim, row[3]))
    return [(kind, line) for (kind, _), line in lines.items()]


def as_line(kind, line):
    captured = [', '.join(dict.fromkeys(part.replace('_', ' ') for part in parts))
                for parts in zip(*(row[0] for row in line))]
    title = TITLES[kind][1] if kind < len(TITLES) else '{}'
    cells = [title.format(*captured)]
    for i in (1, 2):
        if len(line) > 1:
            total = sum(int(COUNT.match(row[i]).group(1)) for row in line)
            cells.append(f'ok, {total} results in {len(line)} runs')
        else:
            cells.append(line[0][i])
    return (*cells, line[0][3])


def as_text(rows):
    widths = [max(len(row[i]) for row in (HEAD, *rows)) for i in range(len(HEAD))]
    return '\n'.join('  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
                     for row in (HEAD, *rows))


def as_markdown(rows):
    lines = [HEAD, ('---',) * len(HEAD), *(as_line(*line) for line in together(rows))]
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
