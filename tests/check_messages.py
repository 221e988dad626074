"""Every warning and error that the library and the agent log, and the command says, has its entry in the page of
troubleshooting: words of the message, as they are in the source, begin an item of a list there, between backticks. No
entry is of a message that is gone.

usage: check_messages.py REPOSITORY
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
PAGE = ROOT / 'examples' / 'troubleshooting' / 'README.md'
CALL = re.compile(
    r'\b(gs_log_line|gs_log|AGENT_LOG|PEER_LOG|say_line|'
    r'(gs_say_unreachable|gs_say_not_exported|gs_complain|command_complain))\s*\(')
LEVEL = re.compile(r'GS_LOG_(WARNING|ERROR)')  # the calls of the inner brackets have one of their own
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
REASON = re.compile(r'\[GS_REFUSED_\w+\] =\s*((?:"[^"]*"\s*)+)')
STRINGS = re.compile(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+')  # those side by side are one
DIFFERS = re.compile(r'%[-+#0-9.*]*(?:ll|l|z)?[a-zA-Z]')
LEAST = 8  # characters of a part that tells one message from another


def arguments(text, start):
    """The text between the brackets that open at `start`."""
    depth, at = 0, start
    while True:
        if text[at] == '"':
            at = STRING.match(text, at).end() - 1
        depth += {'(': 1, ')': -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at]
        at += 1


def messages():
    """(file, format) of each."""
    for folder in ('core', 'config', 'shim'):
        for path in sorted((ROOT / folder).rglob('*.c')):
            text = path.read_text(encoding='utf-8')
            for call in CALL.finditer(text):
                said = arguments(text, call.end() - 1)
                if call[2] or LEVEL.search(said):
                    yield path, ''.join(STRING.findall(said))
            for reason in REASON.finditer(text):
                yield path, ''.join(STRING.findall(reason[1]))


def is_told(message, entries):
    """An entry is a part of the message, where it says `...` for what differs."""
    parts = [part for part in DIFFERS.split(message) if part.strip()]
    text = '%'.join(parts)
    return not parts or all(len(part.strip()) < LEAST for part in parts) or any(entry.search(text) for entry in entries)


def said():
    """All strings of the sources, of which some are parts of messages, without what differs."""
    for folder in ('core', 'config', 'shim'):
        for path in sorted((ROOT / folder).rglob('*.[ch]')):
            for string in STRINGS.findall(path.read_text(encoding='utf-8')):
                yield DIFFERS.sub('', ''.join(STRING.findall(string)))


def main():
    page = re.sub(r'\n {2,}', ' ', PAGE.read_text(encoding='utf-8').partition('\n## Messages')[2])
    rows = [re.match(r'(?:`[^`]*`(?:, | / | )?)*', row)[0] for row in re.findall(r'^- (`.*)', page, flags=re.M)]
    entries = [re.compile('.*'.join(re.escape(part) for part in re.split(r' ?\.\.\. ?', entry)))
               for row in rows for entry in re.findall(r'`([^`]{%d,})`' % LEAST, row)]
    found = list(messages())
    faults = [f'{path.relative_to(ROOT)}: "{message}" is not in {PAGE.relative_to(ROOT)}' for path, message in found
              if not is_told(message, entries)]
    strings = '\n'.join(said())
    faults += [f'{PAGE.relative_to(ROOT)}: {entry.pattern} is in no source' for entry in entries
               if not entry.search(strings)]
    for fault in faults:
        print(fault)
    if len(found) < 50:
        sys.exit(f'only {len(found)} messages were found')
    sys.exit(1 if faults else 0)


main()
