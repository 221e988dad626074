"""Makes ELF files that have functions, for tests of what reads them."""
import struct

SECTION, SYMBOL = struct.Struct('=IIQQQQIIQQ'), struct.Struct('=IBBHQQ')
SYMTAB, STRTAB, DYNSYM = 2, 3, 11
HEAD = 64 + 56 + 3 * 64


def library(functions, kind=SYMTAB, base=4096):
    """Of functions (name, place in the file, size), which is mapped as a whole from `base` on."""
    names, offsets = b'\0', {}
    for name, _, _ in functions:
        if name not in offsets:
            offsets[name] = len(names)
            names += name.encode() + b'\0'
    symbols = bytes(24) + b''.join(SYMBOL.pack(offsets[name], 0x12, 0, 1, base + place, size)
                                   for name, place, size in functions)
    return (b'\x7fELF\x02\x01\x01' + bytes(9) +
            struct.pack('=HHIQQQIHHHHHH', 3, 62, 1, 0, 64, 120, 0, 64, 56, 1, 64, 3, 0) +
            struct.pack('=IIQQQQQQ', 1, 5, 0, base, base, 1 << 40, 1 << 40, 4096) + bytes(64) +
            SECTION.pack(0, kind, 0, 0, HEAD, len(symbols), 2, 0, 8, 24) +
            SECTION.pack(0, STRTAB, 0, 0, HEAD + len(symbols), len(names), 0, 0, 1, 0) + symbols + names)
