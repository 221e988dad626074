"""Writes a text file as a string of C, while the project is built.

usage: embed.py NAME FILE
"""
import sys


def escaped(byte):
    return chr(byte) if 0x20 <= byte < 0x7f and byte not in b'"\\?' else f'\\{byte:03o}'


with open(sys.argv[2], 'rb') as file:
    lines = [''.join(map(escaped, line)) for line in file]
print(f'static const char {sys.argv[1]}[] =', *(f'    "{line}"' for line in lines), ';', sep='\n')
