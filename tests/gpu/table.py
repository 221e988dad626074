"""The table of tests/gpu/run.sh: prints the rows of its files.

    table.py ROWS…

A row is a line: name, native, shim, compared, with tabs between them. Of rows with the same name
the last one counts, so a part that was run again replaces what it said before. Several runs on
several machines make one table.
"""
import pathlib
import sys

HEAD = ('program', 'native', 'under the library', 'compared')


def read_rows(paths):
    rows = {}
    for path in paths:
        for line in pathlib.Path(path).read_text(encoding='utf-8').splitlines():
            cells = line.split('\t')
            if len(cells) == len(HEAD):
                rows[cells[0]] = cells
    return list(rows.values())


def main():
    rows = read_rows(sys.argv[1:])
    if not rows:
        sys.exit('table: no rows')
    widths = [max(len(row[i]) for row in (HEAD, *rows)) for i in range(len(HEAD))]
    for row in (HEAD, *rows):
        print('  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


if __name__ == '__main__':
    main()
