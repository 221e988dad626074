"""gpushim ls: the names under which memory is published, when all is well and when something is wrong; and what
gpushim.h's calls say to programs that call them with what is no name.

    ls.py GPUSHIM SHIM LIBCUDA BROKER
"""
import errno
import json
import os
import pwd
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

from holder import MIB, PUBLISH, Holder, await_that, check, gpushim, prove_each, rows
import wire

BROKER = os.path.abspath(sys.argv[4])
KEPT = {'GPUSHIM_SHARE_STRATEGY': 'broker', 'GPUSHIM_SHARE_BROKER': BROKER, 'GPUSHIM_SHARE_KEEP': '1 min'}
# What a program says to publish, look up and end; each prints the result.
NAMES = PUBLISH + '''
class Named(ctypes.Structure):
    _fields_ = [('size', ctypes.c_size_t), ('handle', ctypes.c_ubyte * 64), ('offset', ctypes.c_uint64),
                ('bytes', ctypes.c_uint64), ('address', ctypes.c_uint64), ('age_ns', ctypes.c_uint64),
                ('pid', ctypes.c_uint64), ('uid', ctypes.c_uint32), ('kept', ctypes.c_uint32),
                ('uuid', ctypes.c_ubyte * 16), ('process', ctypes.c_char * 16), ('label', ctypes.c_char * 64),
                ('note_size', ctypes.c_size_t), ('note', ctypes.c_ubyte * 256)]
def look_up(name, size=None):
    named = Named(size=ctypes.sizeof(Named) if size is None else size)
    named.pid = 77 # stays where nothing is found
    return library.gpushim_lookup(name, ctypes.byref(named)), named
'''


def start(folder, **settings):
    holder = Holder(folder, **settings)
    holder.run('globals().update(ctypes=ctypes); exec(' + repr(NAMES) + ', globals())')
    return holder


def ls(folder, *arguments):
    run = gpushim(folder, 'ls', *arguments, '--json')
    return json.loads(run.stdout)['rows'] if run.stdout else None


def only(folder, name):
    found = [row for row in ls(folder) if row['name'] == name]
    check(len(found) == 1, f'one row has the name {name}: {found}')
    return found[0] if len(found) == 1 else {}


def is_result(holder, code, error):
    """The code's number is that errno, 0: none."""
    said = holder.run(f'print({code})')
    expected = 0 if error == 0 else getattr(errno, error)
    check(said == str(expected), f'{code}: {error}, not {said}')


def prove_rows(folder):
    check(ls(folder) == [], 'nobody has a name')
    publisher = start(folder)
    publisher.do(f'alloc {8 * MIB}')
    began = time.monotonic()
    is_result(publisher, 'publish(b"weights/llama:7b", held[0].value + 4096, b"bf16, \\xc3\\xa4", b"shape 3x4")', 0)
    is_result(publisher, 'publish(b"a", held[0].value, None, b"\\0\\1\\2")', 0)
    said = time.monotonic()
    row = only(folder, 'weights/llama:7b')
    least, most = said - began, time.monotonic() - began
    check(row['age_seconds'] <= most + 0.001, f'its age: {row}, at most {most}')
    await_that(lambda: time.monotonic() - said > 1.1, 'it grows older')
    least = time.monotonic() - said
    raw = gpushim(folder, 'ls', '--json').stdout
    ages = re.findall(r'"age_seconds": (\d+\.\d{3})[,}]', raw)
    check(len(ages) == 2 and all(least - 0.001 <= float(age) <= time.monotonic() - began + 0.001 for age in ages),
          f'between {least} and now, to the thousandth: {raw}')
    check({name: row[name] for name in ('uid', 'bytes', 'offset', 'label', 'note', 'note_bytes', 'kept')} ==
          {'uid': os.geteuid(), 'bytes': 8 * MIB, 'offset': 4096, 'label': 'bf16, ä',
           'note': 'shape 3x4', 'note_bytes': 9, 'kept': False}, f'all of it is told: {row}')
    check(row['publisher'].items() >= {'pid': publisher.pid, 'own_pid': publisher.pid, 'name': 'python3',
                                       'container': None,
                                       'place': None, 'user': pwd.getpwuid(os.geteuid()).pw_name}.items() and
          0 <= row['age_seconds'] < 600 and len(row['gpu']) == 32, f'and who it was: {row}')
    check((only(folder, 'a')['note'], only(folder, 'a')['note_bytes']) == (None, 3), 'bytes are no text')
    check([row['name'] for row in ls(folder)] == ['a', 'weights/llama:7b'], 'in order')
    text = gpushim(folder, 'ls')
    check(text.returncode == 0 and f'pid {publisher.pid} (python3)' in text.stdout and 'bf16, ä' in text.stdout and
          text.stdout.startswith('NAME '), f'text has a head, and who: {text}')
    one = gpushim(folder, 'ls', 'a')
    check(one.returncode == 0 and 'weights' not in one.stdout, f'one name alone: {one}')
    is_result(publisher, 'publish(b"ab", held[0].value)', 0)
    check([row['name'] for row in ls(folder, 'a')] == ['a'] and [row['name'] for row in ls(folder, 'ab')] == ['ab'],
          'and not those that begin with it')
    is_result(publisher, 'library.gpushim_unpublish(b"ab")', 0)
    return publisher


def prove_clocks(folder):
    """Which of two is the newer one, in time namespaces whose clocks are days apart; and the end of the older one."""
    ahead, behind = (('unshare', '--time', '--monotonic', seconds) for seconds in ('1000000', '-100'))
    if not shutil.which('unshare') or subprocess.run([*ahead, 'true'], stderr=subprocess.DEVNULL,
                                                     check=False).returncode:
        return
    holders = [start(folder, before=before) for before in (ahead, behind, ())]
    for holder in holders:
        holder.do(f'alloc {MIB}')
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)):
        for at in order:
            is_result(holders[at], f'publish(b"clock", held[0].value, b"of {at}")', 0)
            for asks in holders:
                said = asks.run('it = look_up(b"clock"); print(it[0], it[1].label.decode(), it[1].age_ns < 10**11)')
                check(said == f'0 of {at} True', f'the last one to publish it is found, {order}: {said}, not of {at}')
        found = [row for row in ls(folder) if row['name'] == 'clock']
        check([row['label'] for row in found] == [f'of {order[-1]}'], f'and has ended the others, {order}: {found}')
    for ends, has in ((0, 1), (1, 0), (2, 0)):
        is_result(holders[has], 'publish(b"clock", held[0].value)', 0)
        is_result(holders[ends], 'library.gpushim_unpublish(b"clock")', 0)
        check(not [row for row in ls(folder) if row['name'] == 'clock'], f'{ends} ends what {has} has published')
    for holder in holders:
        holder.end()


def prove_hostile(folder):
    """By hand: what has other fields than it may, and another's to say."""
    for path in wire.sockets(folder):
        for text in (wire.message(wire.QUERY, bytes(103)), wire.query(about=wire.ABOUT_NAME, name=b'x' * 64),
                     wire.query(about=8), wire.message(wire.REPORT, bytes(552)), wire.order(wire.UNNAME)):
            check(wire.is_refused(wire.say(path, text), wire.OUT_OF_PLACE), f'{text} is refused')
        answers = wire.say(path, *[wire.query(about=wire.ABOUT_NAME, name=b'a')] * 50)
        check([kind for kind, _ in answers] == [wire.REPORT] * 50, f'each of many is answered: {len(answers)}')


def prove_merged(folder, publisher):
    """What several have of one name is one row, and kept if one of them says so."""
    [path] = wire.sockets(folder)
    told = []

    def kept_behind_the_first(answer):
        told.append(answer)
        return answer[:-4] + struct.pack('<I', len(told) > 3 and answer[16:20] == b'\1\0\0\0')
    with wire.Between(folder, path, {wire.QUERY: kept_behind_the_first}, count=3):
        found = [(row['name'], row['kept']) for row in ls(folder)]
        check(found == [('a', True), ('weights/llama:7b', True)], f'what one keeps is kept: {found}')


def prove_wrong(folder, publisher):
    none = gpushim(folder, 'ls', 'nobody')
    check(none.returncode == 1 and 'nobody whom this user may ask has the name nobody' in none.stderr and
          "'gpushim ls' has those there are" in none.stderr, f'{none}')
    check(gpushim(folder, 'ls', 'nobody', '--json').returncode == 1, 'as JSON, too')
    check(gpushim('/nonexistent/folder', 'ls').returncode == 1, 'no folder can be had')
    publisher.stop()
    run = gpushim(folder, 'ls')
    check(run.returncode == 1 and f'process {publisher.pid} does not answer: its names are not listed' in run.stderr,
          f'who is stopped is named: {run}')
    publisher.process.send_signal(signal.SIGCONT)
    await_that(lambda: gpushim(folder, 'ls').returncode == 0, 'and answers when it goes on')
    listener = wire.Listener(os.path.join(folder, 'f' * 32),
                             lambda *_: wire.message(wire.REFUSE, bytes(8), wire.VERSION + 1))
    run = gpushim(folder, 'ls')
    check(run.returncode == 1 and 'is of another version' in run.stderr and 'weights/llama:7b' in run.stdout,
          f'who has another version is named, and the others listed: {run}')
    listener.end()


def prove_refusals(publisher):
    """Each result of gpushim.h, and nothing changed."""
    for code in ('publish(None, held[0].value)', 'publish(b"", held[0].value)', 'publish(b"a b", held[0].value)',
                 'publish(b"x" * 64, held[0].value)', 'publish(b"x", held[0].value, b"l" * 64)',
                 'publish(b"x", held[0].value, b"\\x1b[2J")', 'publish(b"x", held[0].value, None, b"n" * 257)',
                 'publish(b"x", held[0].value, None, None, note_size=1)',
                 'publish(b"x", held[0].value, size=8)', 'library.gpushim_publish(b"x", None)',
                 'look_up(None)[0]', 'look_up(b"a b")[0]', 'look_up(b"a", 8)[0]', 'library.gpushim_lookup(b"a", None)',
                 'library.gpushim_unpublish(None)', 'library.gpushim_unpublish(b"")'):
        is_result(publisher, code, 'EINVAL')
    is_result(publisher, 'publish(b"x", 4096)', 'ENODEV')
    is_result(publisher, 'publish(b"x" * 63, held[0].value, b"l" * 63, b"n" * 256)', 0)
    is_result(publisher, 'library.gpushim_unpublish(b"x" * 63)', 0)
    is_result(publisher, 'library.gpushim_unpublish(b"x" * 63)', 'ENOENT')
    is_result(publisher, 'look_up(b"x")[0]', 'ENOENT')
    check(publisher.run('print(look_up(b"x")[1].pid)') == '77', 'nothing is changed where nothing is found')
    check(publisher.run('print(look_up(b"a")[1].address - held[0].value)') == '0', 'its own address')
    publisher.do(f'alloc {4 * MIB}')
    is_result(publisher, 'publish(b"freed", held[1].value)', 0)
    publisher.run('address = held[1].value')
    publisher.do('free 1')
    is_result(publisher, 'look_up(b"freed")[0]', 'ENOENT')
    is_result(publisher, 'publish(b"freed", address)', 'EFAULT')


def prove_reader(folder, publisher):
    reader = start(folder)
    # A fill is only submitted when it returns.
    publisher.run('assert cuda.cuMemsetD8_v2(held[0], 9, ctypes.c_size_t(8 << 20)) == 0; '
                  'assert cuda.cuCtxSynchronize() == 0')
    reader.do('open ' + reader.run('print(bytes(look_up(b"a")[1].handle).hex())'))
    said = reader.run('byte = ctypes.c_ubyte(0); '
                      'assert cuda.cuMemcpyDtoH_v2(ctypes.byref(byte), opened[0], ctypes.c_size_t(1)) == 0; '
                      'print(byte.value)')
    check(said == '9', f'what is found can be opened: {said}')
    is_result(reader, 'publish(b"b", opened[0].value)', 'EFAULT')
    is_result(reader, 'library.gpushim_unpublish(b"a")', 0)
    check([row['name'] for row in ls(folder)] == ['weights/llama:7b'], 'any process of the user ends a name')
    reader.end()


def prove_without(folder):
    """Switched off, and in a forked child."""
    off = start(folder, GPUSHIM_ENABLE='0')
    off.do(f'alloc {MIB}')
    is_result(off, 'publish(b"x", held[0].value)', 'ENODEV')
    is_result(off, 'look_up(b"x")[0]', 'ENODEV')
    is_result(off, 'library.gpushim_unpublish(b"x")', 'ENODEV')
    off.end()
    alone = start(folder, GPUSHIM_SHARE_ENABLE='off')
    alone.do(f'alloc {MIB}')
    is_result(alone, 'publish(b"x", held[0].value)', 'ENOTSUP')
    alone.run('import os; child = os.fork()\nif child == 0: os._exit(look_up(b"x")[0])')
    check(alone.run('print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))') == str(errno.ENODEV), 'a forked child')
    alone.end()


def prove_kept(folder):
    publisher = start(folder, **KEPT)
    publisher.do(f'alloc {8 * MIB}')
    is_result(publisher, 'publish(b"w", held[0].value, b"v1")', 0)
    check(only(folder, 'w')['kept'] and only(folder, 'w')['publisher']['pid'] == publisher.pid,
          'what a broker has too is one row, of the process')
    publisher.end()
    row = only(folder, 'w')
    check(row.get('kept') and row['label'] == 'v1' and row['publisher']['own_pid'] == publisher.pid,
          f'it outlives its process: {row}')
    text = gpushim(folder, 'ls')
    check(' kept ' in text.stdout, f'text says so: {text}')
    second = start(folder, **KEPT)
    second.do('open ' + second.run('print(bytes(look_up(b"w")[1].handle).hex())'))
    second.do(f'alloc {8 * MIB}')
    is_result(second, 'publish(b"w", held[0].value, b"v2")', 0)
    check(only(folder, 'w')['label'] == 'v2', 'published anew there is one')
    second.end()
    check(only(folder, 'w')['label'] == 'v2', 'and the old one does not come back')
    for row in rows(folder, 'who'):
        if row['broker']:
            os.kill(row['pid'], signal.SIGKILL)


def prove_names(folder):
    publisher = prove_rows(folder)
    prove_hostile(folder)
    prove_merged(folder, publisher)
    prove_wrong(folder, publisher)
    prove_refusals(publisher)
    prove_reader(folder, publisher)
    prove_without(folder)
    publisher.end()
    check(ls(folder) == [], 'they end with their process')


prove_each(prove_names, prove_clocks, prove_kept)
