"""gpushim export: its text is Prometheus' and says what gpushim stats says; the file is exchanged as a whole;
the server answers as HTTP wants it, and nobody who is slow keeps others out; what alerts and dashboard of
examples/monitoring name is there.

    export.py GPUSHIM SHIM LIBCUDA FOLDER_OF_EXAMPLES LIBNVIDIA_ML
"""
import contextlib
import ctypes
import os
import pathlib
import re
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time

import exposition
import monitoring
from holder import (GPUSHIM, MIB, PATIENT_S, Holder, await_that, check, clean, end_with_faults, gpushim, rows, stats_of)
from server import OWN_HOST, Server, answer
from wire import listen

# Each metric of a GPU as gpushim stats --json calls it, with the metric's own label.
OF_STATS = {('gpushim_memory_bytes', ('state', state)): f'{state}_bytes'
            for state in ('live', 'cached', 'ordered', 'retired', 'limbo')}
OF_STATS |= {('gpushim_allocations_total', ('from', 'cache')): 'allocations_from_cache',
             ('gpushim_allocations_total', ('from', 'further')): 'allocations_that_looked_further'}
OF_STATS |= {(f'gpushim_{metric}', None): name for metric, name in (
    ('reserved_bytes', 'reserved_bytes'), ('reserved_peak_bytes', 'reserved_peak_bytes'),
    ('live_peak_bytes', 'live_peak_bytes'), ('slow_calls_total', 'calls_over_1_ms'),
    ('waits_total', 'waits'), ('waits_given_up_total', 'waits_given_up'), ('wait_seconds_total', 'wait_ns'),
    ('map_seconds_total', 'map_ns'), ('pieces_made_total', 'pieces_made'),
    ('pieces_given_back_total', 'pieces_given_back'), ('refused_allocations_total', 'allocations_refused'))}
OF_WHO = {'gpushim_shared_blocks': 'blocks', 'gpushim_shared_bytes': 'bytes',
          'gpushim_freed_held_blocks': 'freed_blocks', 'gpushim_freed_held_bytes': 'freed_bytes'}


def parsed(text):
    try:
        return exposition.read(text)
    except exposition.Malformed as fault:
        check(False, f'the text is not Prometheus\': {fault}')
        return {}


def export(folder):
    run = gpushim(folder, 'export', '--prometheus')
    check(run.returncode == 0 and not run.stderr, f'it ends with {run.returncode}: {run.stderr}')
    return parsed(run.stdout)


def values(metrics, metric, **labels):
    _, samples = metrics.get(metric, (None, {}))
    return [value for key, value in samples.items() if labels.items() <= dict(key).items()]


# ---- The text ----------------------------------------------------------------------------------------

def dashed(uuid):
    return 'GPU-' + '-'.join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))


def prove_figures(folder, holder):
    metrics = export(folder)
    row = stats_of(folder, holder.pid)
    check(row.get('reserved_bytes'), f'gpushim stats has it: {row}')
    for (metric, own), name in OF_STATS.items():
        labels = {'pid': str(holder.pid), 'device': '0', 'gpu': dashed(row['uuid']),
                  'command': row['name']} | (dict([own]) if own else {})
        expected = row[name] / 1e9 if name.endswith('_ns') else row[name]
        found = values(metrics, metric, **labels)
        check(len(found) == 1 and abs(found[0] - expected) < 1e-9,
              f'{metric} {own} is {found}, and {name} of gpushim stats {expected}')
    of_gpus = {metric for metric, (_, samples) in metrics.items() if any('device' in dict(key) for key in samples)}
    check(of_gpus == {metric for metric, _ in OF_STATS}, f'all metrics of a GPU are compared: {of_gpus}')
    prove_gpu(folder, dashed(row['uuid']))
    info = [dict(key) for key in metrics['gpushim_process_info'][1] if dict(key)['pid'] == str(holder.pid)][0]
    check((info['command_line'], info['user'], info['answers']) == (row['command'], row['user'], 'yes') and
          not info.keys() & {'silent'}, f'who it is: {info}')
    who = [row for row in rows(folder, 'who') if row['pid'] == holder.pid]
    for metric, name in OF_WHO.items():
        check(values(metrics, metric, pid=str(holder.pid)) == [who[0][name]], f'{metric} is not {who[0][name]}')
    check(values(metrics, 'gpushim_up', pid=str(holder.pid)) == [1], 'who answers is up')


def prove_gpu(folder, gpu):
    """What NVML says of it (tests/command/nvml.c), and what of that nobody here has; nothing is made up without it."""
    names = ('total', 'free', 'outside')
    def with_libraries(folder_of_libraries):
        run = subprocess.run([GPUSHIM, 'export', '--prometheus'], capture_output=True, text=True, timeout=PATIENT_S,
                             check=False,
                             env={**clean(folder), 'LD_LIBRARY_PATH': folder_of_libraries})
        return parsed(run.stdout)
    without = with_libraries('/nonexistent')
    check(without and not any(values(without, f'gpushim_gpu_{name}_bytes') for name in names),
          'none where there is no NVML')
    metrics = with_libraries(os.path.dirname(os.path.abspath(sys.argv[5])))
    reserved = int(sum(values(metrics, 'gpushim_reserved_bytes', gpu=gpu)))
    found = [values(metrics, f'gpushim_gpu_{name}_bytes', gpu=gpu) for name in names]
    check(found == [[1024 * MIB], [768 * MIB], [max(256 * MIB - reserved, 0)]] and 0 < reserved, f'{found}, {reserved}')


REFUSE = """
address = ctypes.c_uint64()
assert [cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 45)) for _ in range(2)] == [2, 2]
"""


def prove_refused(folder, holder):
    """Each call that found no memory counts."""
    pid = str(holder.pid)
    before = values(export(folder), 'gpushim_refused_allocations_total', pid=pid)
    holder.run(REFUSE)
    after = values(export(folder), 'gpushim_refused_allocations_total', pid=pid)
    check(before == [0] and after == [2], f'two more are refused: {before}, {after}')


def prove_freed(folder, holder, reader):
    """Freed and held by another: in limbo, and old."""
    reader.do(f'open {holder.do("share 0")}')
    holder.do('free 0')
    pid = str(holder.pid)
    await_that(lambda: values(export(folder), 'gpushim_memory_bytes', pid=pid, state='limbo') == [96 * MIB],
               'what is freed and held is in limbo')
    await_that(lambda: values(export(folder), 'gpushim_freed_held_oldest_seconds', pid=pid)[0] > 0.5,
               'and it grows old')
    metrics = export(folder)
    check(values(metrics, 'gpushim_freed_held_bytes', pid=pid) == [96 * MIB], 'as the process shares it, too')
    check(values(metrics, 'gpushim_opened_bytes', pid=str(reader.pid)) == [96 * MIB] and
          values(metrics, 'gpushim_opened_bytes', pid=pid) == [0] and
          values(metrics, 'gpushim_opened_of_ended_bytes', pid=str(reader.pid)) == [0], 'who has it open says so')
    check(values(metrics, 'gpushim_processes', answers='yes') == [2], 'two processes answer')
    quiet = Holder(folder)
    quiet.do(f'alloc {MIB}')
    metrics = export(folder)
    check(values(metrics, 'gpushim_processes', answers='not_asked')[0] >= 1 and
          values(metrics, 'gpushim_process_info', pid=str(quiet.pid), answers='not_asked') == [1] and
          not values(metrics, 'gpushim_up', pid=str(quiet.pid)), 'who has no socket is counted, and not down')
    quiet.end()


def prove_stopped(folder, holder):
    holder.stop()
    metrics, pid = export(folder), str(holder.pid)
    check(values(metrics, 'gpushim_process_stopped', pid=pid) == [1], 'who is stopped is told as that')
    check(values(metrics, 'gpushim_up', pid=pid) == [0], 'and is not up')
    check(values(metrics, 'gpushim_process_info', pid=pid, answers='no') == [1], 'and does not answer')
    check(not values(metrics, 'gpushim_reserved_bytes', pid=pid), 'it has no figures: none is made up')
    holder.process.send_signal(signal.SIGCONT)


class Mute:
    """A process that listens as those with the library do, and says nothing: this one."""
    def __init__(self, folder, name):
        self.path = os.path.join(folder, name * 32)
        self.socket = listen(self.path)

    def asked_by(self, pid):
        """How that process asks, when it does."""
        self.socket.settimeout(PATIENT_S)
        asked = self.socket.accept()[0]
        check(struct.unpack('3i', asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0] == pid, 'it asks')
        return asked

    def end(self):
        self.socket.close()
        os.unlink(self.path)


def prove_labels(folder):
    """Two sockets of one process, whose name has what labels must not have as it is."""
    libc = ctypes.CDLL(None)
    libc.prctl(15, b'a"b\\c')  # PR_SET_NAME
    mutes = [Mute(folder, 'a'), Mute(folder, 'b')]
    metrics = export(folder)
    for mute in mutes:
        found = values(metrics, 'gpushim_up', pid=str(os.getpid()), command='a"b\\c',
                       socket=os.path.basename(mute.path))
        check(found == [0], f'who says nothing is not up: {metrics.get("gpushim_up")}')
        mute.end()
    check(values(metrics, 'gpushim_processes', answers='no') == [2], 'both are counted')


# ---- The file ----------------------------------------------------------------------------------------

def prove_file(folder):
    with tempfile.TemporaryDirectory(prefix='gpushim-export-', ignore_cleanup_errors=True) as around:
        place = os.path.join(around, 'place')  # beside which nobody else has files
        os.mkdir(place)
        path = os.path.join(place, 'gpushim.prom')
        command = f'umask 077; exec {GPUSHIM} export --prometheus --textfile {path}'
        subprocess.run(command, shell=True, env=clean(folder), check=True, timeout=PATIENT_S)
        check(stat.S_IMODE(os.stat(path).st_mode) == 0o644, 'node_exporter, another user, may read it')
        first = os.stat(path).st_ino
        held = open(path, encoding='utf-8')
        with subprocess.Popen('i=0; while [ $i -lt 20 ]; do i=$((i + 1)); '
                              f'{GPUSHIM} export --prometheus --textfile={path} || exit 1; done', shell=True,
                              env=clean(folder)) as writer:
            while writer.poll() is None:
                check('gpushim_build_info' in parsed(pathlib.Path(path).read_text(encoding='utf-8')),
                      'a reader never sees half of it')
        check(writer.returncode == 0 and os.stat(path).st_ino != first, 'it is another file each time')
        check('gpushim_build_info' in parsed(held.read()), 'who has the old one open reads that')
        held.close()
        check(os.listdir(place) == ['gpushim.prom'], f'nothing is left beside it: {os.listdir(place)}')
        for bad, why in ((os.path.join(place, 'not', 'there.prom'), 'No such file'), (place, 'directory')):
            run = gpushim(folder, 'export', '--prometheus', '--textfile', bad)
            check(run.returncode == 1 and why in run.stderr and '; ' in run.stderr,
                  f'{bad} is refused, with the way out: {run}')
        other = os.path.join(place, 'other.prom')
        pathlib.Path(other).write_text('# HELP other_metric of another program\n', encoding='utf-8')
        run = gpushim(folder, 'export', '--prometheus', '--textfile', other)
        check(run.returncode == 1 and 'did not make' in run.stderr and 'other_metric' in
              pathlib.Path(other).read_text(encoding='utf-8'), f"another's file stays: {run}")
        check(os.listdir(around) == ['place'], f'nothing is left of that either: {os.listdir(around)}')
        prove_told_to_end(folder, place)
        prove_no_memory(folder, place)


def prove_told_to_end(folder, place):
    """While it waits for one that says nothing: it ends by that signal, and nothing is left beside the file."""
    before, mute = sorted(os.listdir(place)), Mute(folder, 'd')
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it may be ignored here, as under nohup
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with subprocess.Popen([GPUSHIM, 'export', '--prometheus', '--textfile', os.path.join(place, 'gpushim.prom')],
                              env=clean(folder)) as writer:
            caught = 1 << (number - 1)
            await_that(lambda writer=writer, caught=caught: sorted(os.listdir(place)) != before and
                       caught & int(re.search(r'SigCgt:\s*(\w+)',
                                              pathlib.Path(f'/proc/{writer.pid}/status').read_text(encoding='utf-8'))[
                                                  1], 16),
                       'it writes, and goes by the signal')
            writer.send_signal(number)
        check((writer.returncode, sorted(os.listdir(place))) == (-number, before),
              f'{number}: {writer.returncode}, {os.listdir(place)}')
    mute.end()


def prove_no_memory(folder, place):
    """Whenever memory ends, nothing is left beside the file: with as little as the program starts with, and more."""
    before, said = sorted(os.listdir(place)), set()
    for mib in range(2, 64):
        run = subprocess.run([GPUSHIM, 'export', '--prometheus', '--textfile', os.path.join(place, 'gpushim.prom')],
                             env=clean(folder), capture_output=True, text=True, check=False, timeout=PATIENT_S,
                             preexec_fn=lambda most=mib << 20: resource.setrlimit(resource.RLIMIT_AS, (most, most)))
        said.add(run.stderr)
        check(sorted(os.listdir(place)) == before, f'with {mib} MiB: {os.listdir(place)}')
        if run.returncode == 0:
            break
    check('gpushim: there is no memory left\n' in said and run.returncode == 0, f'it is that which ends it: {said}')


# ---- The server --------------------------------------------------------------------------------------

def head_of(size):
    """A request of so many bytes."""
    begin, end = b'GET / HTTP/1.1\r\nA: ', b'\r\n\r\n'
    return begin + (size - len(begin) - len(end)) * b'a' + end


def prove_http(server, holder):
    status, headers, body = server.get()
    check(status == 200 and headers['content-type'] == 'text/plain; version=0.0.4; charset=utf-8', f'{headers}')
    check(int(headers['content-length']) == len(body), 'as long as it says')
    check(values(parsed(body.decode()), 'gpushim_up', pid=str(holder.pid)) == [1], 'it has the figures')
    for _ in range(3):
        once = server.get()[2]
        check(once.count(b'gpushim_build_info{') == 1, f'each time as much: {once}')
    for request, expected in ((b'GET /metrics?a=b HTTP/1.0\n\n', 200), (b'GET http://x/metrics HTTP/1.1\r\n\r\n', 404),
                              (b'GET / HTTP/1.1\r\n\r\n', 404), (b'GET /metric HTTP/1.1\r\n\r\n', 404),
                              (b'GET /metrics/ HTTP/1.1\r\n\r\n', 404), (b'nonsense\r\n\r\n', 400),
                              (b'GET /metrics\r\n\r\n', 400), (b'GET /metrics HTTP/2.0\r\n\r\n', 400),
                              (b'GET /metrics HTTP/1.1 x\r\n\r\n', 400), (b'\0 / HTTP/1.1\r\n\r\n', 400),
                              (b' / HTTP/1.1\r\n\r\n', 400), (b'\r\n\r\n', 400), (head_of(8192), 404),
                              (head_of(8193), 0),
                              (b'GET /' + 100000 * b'a', 0)):
        check(server.ask(request)[0] == expected, f'{request[:60]!r} is answered with {expected}')
    for method in ('HEAD', 'POST', 'OPTIONS', 'get', 'GETS', 'X' * 15):
        status, headers, _ = server.get(method=method)
        check(status == 405 and headers.get('allow') == 'get', f'{method}: {status} {headers}')
    own = socket.gethostname()
    for host, expected in (('', 200), ('127.0.0.1:9465', 200), ('[::1]:9465', 200), ('LocalHost', 200), (own, 200),
                           (f'{own}:1', 200), ('x', 403), ('127.0.0.1.example.com', 403),
                           ('localhost.example.com:80', 403),
                           ('metrics.example.com', 403), ('[', 403), (500 * 'x', 403)):
        status, _, body = server.get(host=host)
        check(status == expected and (status == 200 or b'--host' in body), f'asked as {host!r}: {status} {body}')
    connection = server.connect()
    for byte in b'GET / HTTP/1.1\r\n\r\n':
        connection.sendall(bytes([byte]))
    check(answer(connection)[0] == 404, 'a request may come byte by byte')


def prove_slow(server):
    """More of them than there are places: good ones are served at any time, and in the end all are gone."""
    slow = [server.send(b'GET /metrics HTTP/1.1\r\nX: ') for _ in range(40)]
    slow += [server.connect() for _ in range(20)]
    check(server.get()[0] == 200, 'one is served beside those that send nothing')
    slow += [server.send(b'GET / HTTP/1.1\r\n\r\n') for _ in range(30)]  # they never read
    slow += [server.connect() for _ in range(80)]
    for _ in range(5):
        check(server.get()[0] == 200, 'one is served where all places were taken')
    talker = server.connect()  # who goes on and on behind the answer
    talker.sendall(b'GET / HTTP/1.1\r\n\r\n')
    with contextlib.suppress(ConnectionError):
        while True:
            talker.sendall(b'a')
            time.sleep(0.01)
    check(answer(slow[0])[0] == 0, 'who sends half a request is dropped')
    await_that(lambda: not server.places(), 'so are those who send nothing or read nothing')
    for connection in slow:
        connection.close()


def prove_places(server):
    """Where all places are taken by who sends nothing, the one that has been there longest makes room."""
    waiting = []
    for _ in range(64):
        waiting.append(server.connect())
        await_that(lambda: len(server.places()) >= len(waiting), 'it has a place')
    check(server.get('/')[0] == 404 and len(server.places()) < 65, 'one more is served')
    waiting[-1].sendall(b'GET / HTTP/1.1\r\n\r\n')
    check(answer(waiting.pop())[0] == 404, 'who came last still has its place')
    check(answer(waiting.pop(0))[0] == 0, 'who came first has none')
    for connection in waiting:
        connection.close()
    await_that(lambda: not server.places(), 'all are gone')


def prove_waiting(server, mute):
    """While processes are asked, which a silent one makes last, who comes waits; all who asked meanwhile have one
    text."""
    first = server.send(b'GET /metrics HTTP/1.1\r\n\r\n')
    with mute.asked_by(server.process.pid):
        os.kill(server.process.pid, signal.SIGSTOP)
        others = [server.send(b'GET /metrics HTTP/1.1\r\n\r\n') for _ in range(3)]
        rest = server.send(b'GET / HTTP/1.1\r\n\r\n')
        os.kill(server.process.pid, signal.SIGCONT)
    status, _, text = answer(first)
    check(status == 200 and text, 'who asked first is answered')
    told = [answer(each) for each in others]
    check(all(status == 200 for status, _, _ in told) and answer(rest)[0] == 404, f'and all others: {told}')
    check(len({same for _, _, same in told}) == 1 and text != told[0][2], 'with what was asked for them together')


def prove_start(folder, server):
    run = gpushim(folder, 'export', '--prometheus', '--listen', f'127.0.0.1:{server.port}')
    check(run.returncode == 1 and 'Address already in use' in run.stderr and 'name another port' in run.stderr,
          f'an address in use is said with the way out: {run}')
    run = gpushim(folder, 'export', '--prometheus', '--listen', '203.0.113.7:9465')
    check(run.returncode == 1 and 'ip address' in run.stderr, f'and one that is another machine\'s: {run}')
    for host, expected in ((':0', '127.0.0.1'), ('localhost:0', '127.0.0.1'), (f'{OWN_HOST}:0', OWN_HOST)):
        other = Server(folder, host)
        check(other.host == expected, f'{host} is this machine alone: {other.host}')
        check(other.get('/')[0] == 404, 'it serves')
        idle = other.connect()
        check(other.get('/')[0] == 404, 'beside one that waits')
        other.end(signal.SIGINT)
        idle.close()
    again = Server(folder, f'{OWN_HOST}:{other.port}')  # at once, though the kernel has connections of before
    check(again.get('/')[0] == 404, 'and again at the same address')
    again.end()
    named = Server(folder, ':0', '--host', 'a.example.com', '--host=metrics.example.com')
    check([named.get(host=host)[0] for host in ('a.example.com', 'METRICS.example.com:80', 'example.com')] ==
          [200, 200, 403], 'by names that it was given, too')
    named.end()
    if socket.has_ipv6 and os.path.exists('/proc/net/if_inet6') and \
            'lo' in pathlib.Path('/proc/net/if_inet6').read_text(encoding='utf-8'):
        other = Server(folder, '[::1]:0')
        check(other.host == '::1' and other.get()[0] == 200, 'IPv6 too')
        other.end()


def prove_examples(folder, examples):
    there = set(export(folder))
    for name, expressions in monitoring.expressions(examples).items():
        check(len(expressions) >= 5, f'{name} has expressions: {expressions}')
        for expression in expressions:
            named = set(re.findall(r'\bgpushim_\w+', expression))
            check((named or expression.startswith('up{')) and named <= there,
                  f'{name}: {expression} names what is not there: {named - there}')


def main():
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what is left ends with this test
    with tempfile.TemporaryDirectory(prefix='gpushim-export-', ignore_cleanup_errors=True) as folder:
        check(values(export(folder), 'gpushim_processes', answers='yes') == [0], 'nobody is there yet')
        holder, reader = Holder(folder), Holder(folder)
        for each in (holder, reader):
            each.do(f'alloc {96 * MIB}')
            each.do(f'alloc {32 * MIB}')
        holder.do('share 0')
        pid = str(holder.pid)
        await_that(lambda: values(export(folder), 'gpushim_shared_blocks', pid=pid) == [1], 'it shares a block')
        prove_figures(folder, holder)
        prove_refused(folder, holder)
        prove_stopped(folder, reader)
        prove_freed(folder, holder, reader)
        prove_labels(folder)
        prove_file(folder)
        server = Server(folder)
        prove_http(server, holder)
        mute = Mute(folder, 'c')
        prove_waiting(server, mute)
        mute.end()
        prove_start(folder, server)
        prove_places(server)
        prove_slow(server)
        prove_examples(folder, sys.argv[4])
        server.end()
        holder.end()
        reader.end()
    end_with_faults()


main()
