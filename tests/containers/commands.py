"""gpushim in containers: each command does there what it does elsewhere, for a program that runs with the library
on the software driver; the same program is seen from the host, by its pid there and its container's name, and
from another container that has the same folder, by the pid that it has itself.

Containers are those of containers.py: with namespaces of their own of all kinds, no capability, no privilege, no
device. In each runs a shell of busybox.

usage: commands.py bwrap|runc|podman HOLDER LIBGPUSHIM LIBCUDA GPUSHIM VERSION
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import containers
import shell
from faults import await_that, check, faults

kind, holder, library, libcuda, gpushim, version = sys.argv[1:]
holder, library, libcuda, gpushim = (os.path.realpath(path) for path in (holder, library, libcuda, gpushim))
MIB = 1 << 20
KINDS = {'bwrap': containers.Bwrap, 'runc': containers.Runc, 'podman': containers.Podman}
APPLETS = ('sh', 'cat', 'mkfifo', 'rm', 'wget', 'kill')
FOLDER = '/shared/run'
COMMANDS = re.findall(r'^  ([a-z]+) ',
                      subprocess.run([gpushim, 'help'], capture_output=True, text=True, check=True).stdout, re.M)
# What a container's user sets who starts programs by gpushim run.
ENVIRONMENT = {'PATH': '/bin', 'LD_LIBRARY_PATH': '/lib', 'GPUSHIM_SHARE_DIR': FOLDER, 'SOFTCUDA_MEMORY': '1G'}


class Container:
    """One with a shell in it, and a program that the shell started."""

    def __init__(self, runtime, case, name):
        self.running = runtime.start(containers.HERE, case.shared, ENVIRONMENT, ['/bin/sh'], subprocess.PIPE,
                                     subprocess.PIPE)
        self.shell = shell.Shell(self.running.process)
        self.name = name
        self.program = shell.Driven(self.shell, 'gpushim run -o log=info -o pool.decay=1min -- /bin/holder')
        self.pid = self.program.pid
        self.blocks = 0

    def run(self, command, status=0):
        ran = self.shell.run(command)
        check(ran.returncode == status, f'in {self.name}: {ran}')
        return ran

    def rows(self, command):
        """What it says to programs."""
        ran = self.run(command + ' --json')
        try:
            told = json.loads(ran.stdout)
            return told.get('rows', told)
        except ValueError:
            check(False, f'in {self.name}, no JSON: {ran}')
            return []

    def allocate(self, size):
        check(self.program.do(f'alloc {size}') == 'done', f'no memory in {self.name}: {self.program.log()}')
        self.blocks += 1

    def keep_unused(self):
        """What a trim is to give back."""
        self.allocate(64 * MIB)
        self.program.do(f'free {self.blocks - 1}')

    def end(self):
        status = self.program.end()
        check(status == 0, f'the program in {self.name} ended with {status}')
        self.shell.end()


def only(rows, **members):
    """The one row that has these, or {} and a fault."""
    found = [row for row in rows if all(row.get(name) == value for name, value in members.items())]
    check(len(found) == 1, f'one with {members}: {rows}')
    return found[0] if found else {}


# ---- From inside -----------------------------------------------------------------------------------------

def prove_looks(one):
    """version, config, doctor."""
    said = one.run('gpushim version').stdout
    check(said == f'gpushim {version}\nlibrary /lib/libgpushim.so\n', f'version: {said!r}')
    option = only(one.rows('gpushim config')['options'], variable='GPUSHIM_SHARE_DIR')
    check((option.get('value'), option.get('origin', {}).get('variable')) == (FOLDER, 'GPUSHIM_SHARE_DIR'),
          f'config: {option}')
    for command, expected in (('gpushim doctor', {'driver': '/lib/libcuda.so.1', 'library': '/lib/libgpushim.so',
                                                  'processes': '1 use CUDA with this library'}),
                              (f'gpushim doctor {one.pid}', {'process': f'{one.pid} (holder)',
                                                             'program': '/bin/holder',
                                                             'libraries': '/lib/libgpushim.so',
                                                             'share.dir': FOLDER})):
        rows = one.rows(command)
        check(not [row for row in rows if row['state'] == 'FAIL'], f'{command}: {rows}')
        for subject, found in expected.items():
            check([row for row in rows if row['subject'] == subject and row['state'] == 'ok' and
                   found in row['found']], f'{command}: {subject}, {found}: {rows}')


def prove_running(one):
    """run: the program's words and status are its own, and the library is in it."""
    check(re.search(rf'libgpushim {re.escape(version)} starts in holder; .*; shares in {FOLDER}', one.program.log()),
          f'its log: {one.program.log()}')
    ran = one.run("gpushim run -- /bin/sh -c 'exit 7'", 7)
    check('statically linked' in ran.stderr, f'busybox is static: {ran}')
    one.run('gpushim run -- /bin/none', 127)
    said = one.run('gpushim run --print -o pool.decay=5s').stdout
    check(said == 'LD_PRELOAD=/lib/libgpushim.so\nGPUSHIM_POOL_DECAY=5s\n', f'run --print: {said!r}')


def prove_figures(one):
    """stats, top, export."""
    row = only(one.rows('gpushim stats'), pid=one.pid)
    check((row.get('live_bytes'), row.get('name'), row.get('container')) == (96 * MIB, 'holder', None),
          f'stats: {row}')
    for command in 'gpushim top', f'gpushim stats {one.pid}':
        text = one.run(command).stdout
        check(re.search(rf'^ *{one.pid} +\S+ +0 +[\d.]+ MiB +96\.0 MiB .* holder', text, re.M), f'{command}: {text}')
    said = one.run('gpushim export --prometheus').stdout
    live = rf'^gpushim_memory_bytes{{.*pid="{one.pid}",command="holder",.*state="live"}} {96 * MIB}$'
    check(re.search(live, said, re.M), f'export: {said}')
    one.run('gpushim export --prometheus --textfile /tmp/metrics')
    check(re.search(live, one.run('cat /tmp/metrics; rm /tmp/metrics').stdout, re.M), 'export --textfile')
    one.run('gpushim export --prometheus --listen 127.0.0.1:0 >/tmp/served & server=$!')
    await_that(lambda: 'serves' in one.shell.run('cat /tmp/served').stdout, 'export --listen serves')
    said = one.run('read -r word url </tmp/served; wget -q -O - "$url"').stdout
    check(re.search(live, said, re.M), f'export --listen: {said}')
    one.run('kill $server; wait $server; rm /tmp/served')


def prove_orders(one):
    """trim, set."""
    one.keep_unused()
    row = only(one.rows(f'gpushim trim {one.pid}'), pid=one.pid)
    check(row.get('given_bytes', 0) >= 64 * MIB, f'trim: {row}')
    said = one.run(f'gpushim set {one.pid} pool.decay=10s').stdout
    check(said == f'pid {one.pid} (holder): pool.decay 1 min -> 10 s\n', f'set: {said!r}')


def prove_recording(one):
    """record, report."""
    said = one.run("echo 'churn 220' | gpushim record --output /tmp/trace -- /bin/holder").stdout
    check(said == 'done\n', f'record: {said!r}')
    report = one.rows('gpushim report /tmp/trace')
    row = report['devices'][0]
    check((row['allocations'], row['frees'], row['never_freed']) == (220, 220, 0), f'report: {report}')
    check('220 allocations, 220 frees' in one.run('gpushim report /tmp/trace').stdout, 'report, as text')
    one.run('gpushim report /tmp/trace --html /tmp/page.html')
    check('<html' in one.run('cat /tmp/page.html; rm /tmp/page.html').stdout, 'report --html')
    one.run('rm /tmp/trace')


def prove_sleep(one):
    """sleep, wake, swap: of programs that go on afterwards."""
    second = shell.Driven(one.shell, 'gpushim run -- /bin/holder', first=5)
    check(second.do(f'alloc {96 * MIB}') == 'done', f'no memory for a second program: {second.log()}')
    for command, expected in (('sleep', {one.pid: 'asleep'}), ('wake', {one.pid: 'awake'}),
                              (f'sleep {second.pid}', {second.pid: 'asleep'}),
                              (f'swap {one.pid} {second.pid}', {one.pid: 'asleep', second.pid: 'awake'}),
                              ('wake', {one.pid: 'awake'})):
        rows = one.rows(f'gpushim {command}' + ('' if ' ' in command else f' {one.pid}'))
        check({row['pid']: row.get('state') for row in rows} == expected, f'{command}: {rows}')
        states = {row['pid']: row['state'] for row in one.rows('gpushim stats') if row['pid'] in expected}
        check(states == {pid: {'awake': 'running'}.get(state, state) for pid, state in expected.items()},
              f'stats after {command}: {states}')
    check(second.do(f'alloc {MIB}') == 'done' and second.end() == 0, 'a second program goes on, and ends')
    one.allocate(MIB)


def none_listed(ran):
    """Nor is there one that ends just then."""
    return ran.returncode == 0 and json.loads(ran.stdout)['rows'] == []


def prove_broker(one):
    """broker, cluster, and help; cdi, by which others are given what is here."""
    check(one.rows('gpushim cluster') == [], 'no broker yet')
    one.run('gpushim broker --detach')
    row = only(one.rows('gpushim who'), broker=True)
    (told,) = one.rows('gpushim cluster')
    check(told['pid'] == row.get('pid') and told['has_agent'] is False, f'cluster: {told}, {row}')
    one.run(f'kill {row.get("pid")}')
    await_that(lambda: none_listed(one.shell.run('gpushim cluster --json')), 'the broker ends')
    for name in COMMANDS:
        check(one.run(f'gpushim help {name}').stdout.startswith(f'usage: gpushim {name} '), f'help {name}')
    made = json.loads(one.run('gpushim cdi generate').stdout)
    check(made['containerEdits']['mounts'][0]['hostPath'] == '/lib/libgpushim.so', f'cdi: {made}')


# ---- From elsewhere --------------------------------------------------------------------------------------

def prove_sharing(one, other):
    """who: in the container of who shares, and of who holds, whose pids the other does not see."""
    check(other.program.do('open ' + one.program.do('share 0')) == 'done', 'the other container opens it')
    row = only(one.rows('gpushim who'), pid=one.pid)
    held = only(row.get('holders', []), own_pid=other.pid)
    check((row.get('blocks'), row.get('bytes')) == (1, 96 * MIB) and
          (held.get('pid'), held.get('name'), held.get('blocks')) == (None, 'holder', 1), f'who: {row}')
    row = only(other.rows('gpushim who'), own_pid=one.pid, blocks=1)
    held = only(row.get('holders', []), own_pid=other.pid)
    check((row.get('pid'), held.get('pid')) == (None, other.pid), f'who, from the other: {row}')
    said = one.run(f'gpushim who {one.pid}').stdout
    check(f'held by pid {other.pid} of another PID namespace (holder): 1 blocks' in said, f'who: {said}')


def prove_names(one, other):
    """ls, in both; what one publishes the other finds and opens."""
    check(one.program.do('publish weights') == 'done', 'a name in a container')
    row = only(one.rows('gpushim ls'), name='weights')
    check((row.get('bytes'), row.get('publisher', {}).get('pid')) == (96 * MIB, one.pid), f'ls: {row}')
    row = only(other.rows('gpushim ls'), name='weights')
    check((row.get('publisher', {}).get('pid'), row.get('publisher', {}).get('own_pid')) == (None, one.pid),
          f'ls, from the other: {row}')
    check(other.program.do('open ' + other.program.do('lookup weights')) == 'done', 'the other container opens it')
    other.program.do('close 1')
    check(other.program.do('unpublish weights') == 'done', 'and ends the name')
    check(one.rows('gpushim ls') == [], 'which is gone')
    one.run('gpushim ls weights', 1)


def prove_the_other_sees(one, other):
    row = only(other.rows('gpushim stats'), own_pid=one.pid, live_bytes=96 * MIB)
    check((row.get('pid'), row.get('name')) == (None, 'holder'), f'stats, from the other: {row}')
    text = other.run('gpushim top').stdout
    check(re.search(rf'^ *\({one.pid}\) +\? +0 +[\d.]+ MiB +96\.0 MiB .* holder', text, re.M),
          f'top, from the other: {text}')
    one.keep_unused()
    given = only(other.rows('gpushim trim all'), own_pid=one.pid, pid=None).get('given_bytes', 0)
    check(given >= 64 * MIB, f'trim all, from the other: {given}')


def on_the_host(case, *arguments):
    env = {name: value for name, value in os.environ.items() if not name.startswith(('GPUSHIM_', 'LD_'))}
    env.update(GPUSHIM_SHARE_DIR=os.path.join(case.shared, 'run'), GPUSHIM_CONFIG='')
    ran = subprocess.run([gpushim, *arguments, '--json'], env=env, capture_output=True, text=True,
                         timeout=shell.PATIENT_S, check=False)
    check(ran.returncode == 0, f'on the host: {ran}')
    return json.loads(ran.stdout)['rows'] if ran.stdout else []


def inner_pid(pid):
    """What a process of this host is called in its own PID namespace."""
    with open(f'/proc/{pid}/status', encoding='ascii', errors='replace') as file:
        return int(re.search(r'^NSpid:.*?(\d+)$', file.read(), re.M)[1])


def group_of(pid):
    with open(f'/proc/{pid}/cgroup', encoding='ascii', errors='replace') as file:
        return file.readline().strip()


def prove_the_host_sees(case, one, other):
    """By pids of the host's, which lead to the right processes, and by the containers' names."""
    found = {}
    rows = [row for row in on_the_host(case, 'stats') if 'not known' not in (row['silent'] or '')] # of others
    for row in rows:
        check(row['pid'] and inner_pid(row['pid']) == row['own_pid'] and row['name'] == 'holder', f'stats: {row}')
        if row['pid']:
            group = group_of(row['pid'])
            expected = None if group == group_of('self') else group.rsplit('/', 1)[-1]
            check(row['container'] == expected, f'its container is {expected}: {row}')
            found[os.readlink(f'/proc/{row["pid"]}/ns/pid')] = row
    check(len(found) == 2 and {row['own_pid'] for row in found.values()} == {one.pid, other.pid},
          f'both are seen from the host: {found}')
    sharer = only(found.values(), live_bytes=96 * MIB)
    held = only(on_the_host(case, 'who'), blocks=1).get('holders', [])
    check([row['pid'] for row in held] == [row['pid'] for row in found.values() if row is not sharer],
          f'who, from the host: {held}, {found}')
    one.keep_unused()
    given = only(on_the_host(case, 'trim', str(sharer.get('pid'))), pid=sharer.get('pid')).get('given_bytes', 0)
    check(given >= 64 * MIB, f'trim, from the host: {given}')
    for command, state in (('sleep', 'asleep'), ('wake', 'awake')):
        row = only(on_the_host(case, command, str(sharer.get('pid'))), pid=sharer.get('pid'))
        check(row.get('state') == state, f'{command}, from the host: {row}')


# ---- All of it -------------------------------------------------------------------------------------------

def prove(runtime, folder, mode):
    case = containers.Case(runtime, folder, f'commands-{mode:o}')
    if mode == 0o1777:
        os.chown(os.path.join(case.shared, 'run'), os.geteuid(), -1)
    os.chmod(os.path.join(case.shared, 'run'), mode)
    one = other = None
    try:
        one = Container(runtime, case, 'the first')
        one.allocate(96 * MIB)
        other = Container(runtime, case, 'the second')
        prove_sharing(one, other)
        prove_names(one, other)
        prove_the_other_sees(one, other)
        prove_the_host_sees(case, one, other)
        other.program.do('close 0')
        for part in (prove_looks, prove_running, prove_figures, prove_orders, prove_recording, prove_sleep,
                     prove_broker):
            part(one)
        other.end()
        one.end()
    except shell.Ended as ended:
        faults.append(f'{case.kind}: {ended}')
    finally:
        for container in one, other:
            if container:
                container.running.remove()


def make_root(root):
    containers.make_root(root, holder, library, libcuda, gpushim)
    for name in APPLETS:
        os.symlink('busybox', f'{root}/bin/{name}')


def main():
    if not shutil.which(kind):
        print(f'skipped: no {kind} here')
        return 77
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix='gpushim-commands-', dir='/tmp', ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        try:
            make_root(f'{folder}/root')
            runtime = KINDS[kind](f'{folder}/root', folder)
            containers.try_out(runtime, folder)
        except containers.Skip as skip:
            print(f'skipped: {skip}')
            return 77
        # The folder for everybody, as the pages recommend it, and one that is this user's.
        for mode in 0o1777, 0o755:
            prove(runtime, folder, mode)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
