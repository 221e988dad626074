"""README's two commands on fresh machines: examples/quickstart.sh and tests/run.sh in systems where nothing is
installed.

usage: run.py ROOT FOLDER [CASE…]

debootstrap makes the systems in FOLDER, once; each case gets a copy, and a copy of the tree. It runs in namespaces,
with a /dev of its own, as root with a container's capabilities or as a user; who is no root is told what to install,
and root does as told. Both commands are to end well, and to compile nothing twice. CASE is one of those below; all,
without.

A line for each case says what became of it; what cannot be made here is skipped, with the reason. Logs are in FOLDER.
Exit status: 1 if a case failed, 77 if none could be made.
"""
import collections
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import systems

root, folder = (os.path.abspath(path) for path in sys.argv[1:3])
Case = collections.namedtuple('Case', 'release user place umask shm capabilities words')
USER = 1000
DOCKERS = ('-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,'
           '+sys_chroot,+mknod,+audit_write,+setfcap')
CASES = {
    'debian-12': Case('bookworm', 0, '/root', 0o022, '64m', DOCKERS, []),
    'debian-13': Case('trixie', USER, '/tmp/deep', 0o077, '64m', DOCKERS, ['quick']),
    'ubuntu-24.04': Case('noble', USER, '/home/user', 0o002, '64m', DOCKERS, ['quick']),
    'debian-12-all-rights': Case('bookworm', 0, '/srv', 0o077, '2g', '+all', ['quick']),
}
# $1: the system, $2: the size of its /dev/shm, $3: packages that were fetched before; then what runs there.
ENTER = '''set -e
mount --make-rprivate /
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount -t tmpfs -o mode=755,size=1m dev "$1/dev"
for node in null zero full random urandom tty; do : >"$1/dev/$node"; mount --bind "/dev/$node" "$1/dev/$node"; done
mkdir "$1/dev/pts" "$1/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts"
ln -s pts/ptmx "$1/dev/ptmx"
ln -s /proc/self/fd "$1/dev/fd"
mount -t tmpfs -o "mode=1777,size=$2" shm "$1/dev/shm"
mount -t tmpfs -o mode=755 run "$1/run"
mount --bind "$3" "$1/var/cache/apt/archives"
root=$1; shift 3
exec chroot "$root" "$@"'''
TOLD = re.compile(r'as root, for this and for all tests: (.*)')


class System:
    """A copy of a fresh one."""
    def __init__(self, name, case):
        self.case, self.path = case, f'{folder}/{name}'
        self.log = f'{folder}/{name}.log'
        self.archives = f'{folder}/archives-{case.release}'
        os.makedirs(f'{self.archives}/partial', exist_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)
        subprocess.run(['cp', '-a', '--reflink=auto', f'{folder}/{case.release}', self.path], check=True)
        settle(self.path, case.release)
        if case.user:
            self.run(0, ['useradd', '-m', '-u', str(case.user), '-s', '/bin/sh', 'user'], '/')
        os.makedirs(self.path + case.place, exist_ok=True)
        self.tree = f'{case.place}/libgpushim'
        tree = self.path + self.tree
        os.mkdir(tree)
        copy_tree(tree, case.umask)
        subprocess.run(['chown', '-R', f'{case.user}:{case.user}', self.path + case.place], check=True)

    def run(self, user, words, place):
        """What it printed, which is in the log too."""
        case = self.case
        rights = [f'--bounding-set={case.capabilities}', '--inh-caps=-all'] if user == case.user else []
        if user:
            rights += [f'--reuid={user}', f'--regid={user}', '--clear-groups']
        inside = ['setpriv', *rights] if rights else []
        inside += ['sh', '-c', f'umask {case.umask:o}; cd {place} && exec "$@"', 'sh', *words]
        settings = {name: value for name, value in os.environ.items()
                    if name.lower().endswith('_proxy') or name.startswith('PIP_') and 'FIND_LINKS' not in name}
        settings.update(PATH='/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', TERM='dumb',
                        HOME='/home/user' if user else '/root')
        ran = subprocess.run(['unshare', '--mount', '--pid', '--ipc', '--fork', '--kill-child', 'sh', '-c', ENTER, 'sh',
                              self.path, case.shm, self.archives, *inside], env=settings, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace', check=False)
        with open(self.log, 'a', encoding='utf-8') as file:
            file.write(f'$ {" ".join(words)}\n{ran.stdout}')
        return ran.stdout

    def objects(self):
        """What was compiled, and when."""
        return {path: os.stat(path).st_mtime_ns
                for path in glob.glob(f'{self.path}{self.tree}/build/**/*.o', recursive=True)}


def copy_tree(tree, umask):
    give = subprocess.Popen(['tar', '-C', root, '-cf', '-', '--exclude=./build*', '--exclude=./.git',
                             '--exclude=./.cache', '.'], stdout=subprocess.PIPE)
    subprocess.run(['tar', '-C', tree, '--no-same-permissions', '--no-same-owner', '-xf', '-'], stdin=give.stdout,
                   umask=umask, check=True)
    if give.wait():
        sys.exit('the tree cannot be copied')


def settle(path, release):
    """How this machine reaches archives is how the system does."""
    said = subprocess.run(['apt-config', 'dump'], capture_output=True, text=True, check=False).stdout
    with open(f'{path}/etc/apt/apt.conf.d/80host', 'w', encoding='utf-8') as file:
        file.writelines(line + '\n' for line in said.splitlines()
                        if re.match(r'Acquire::(http|https|Check-|Retries)', line) and 'User-Agent' not in line)
    with open(f'{path}/etc/apt/sources.list', encoding='utf-8') as file:
        main = file.readline()
    with open(f'{path}/etc/apt/sources.list', 'w', encoding='utf-8') as file:
        file.write(main + main.replace(f' {release} ', f' {release}-updates '))
    for source in ('/etc/resolv.conf', '/etc/hosts', '/etc/pip.conf'):
        if os.path.exists(source):
            shutil.copy(source, path + source)
    shutil.copytree('/usr/local/share/ca-certificates', f'{path}/usr/local/share/ca-certificates', dirs_exist_ok=True)


def play(name, case):
    """What is wrong; None: nothing."""
    system = System(name, case)
    start, tests = ['sh', 'examples/quickstart.sh'], ['sh', 'tests/run.sh', *case.words]
    said = system.run(case.user, start, system.tree)
    if case.user:
        told = TOLD.search(said)
        if not told:
            return 'quickstart.sh does not tell a user what root is to install'
        system.run(0, ['sh', '-c', told[1]], '/')
        said = system.run(case.user, start, system.tree)
    if said.splitlines()[-1:] != ['quickstart: ok']:
        return f'quickstart.sh: {said.splitlines()[-1:]}'
    before = system.objects()
    said = system.run(case.user, tests, system.tree)
    last = (said.splitlines() or [''])[-1]
    if not re.fullmatch(r'[1-9]\d* passed, 0 failed, \d+ skipped', last):
        return '; '.join(line for line in said.splitlines() if line.startswith('failed: ')) + f' {last}'
    bare = re.search(r'^  skipped: .*no reason given', said, re.M)
    if bare:
        return f'without a reason:{bare[0]}'
    after = system.objects()
    twice = [path for path, when in before.items() if after.get(path) != when]
    return f'compiled twice: {len(twice)} of {len(before)}, {twice[:3]}' if twice or not before else None


def prepare(release):
    """Why there is no such system; None: there is."""
    if os.path.exists(f'{folder}/{release}'):
        return None
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        why = systems.make(release, f'{scratch}/system', scratch)
        if not why:
            os.rename(f'{scratch}/system', f'{folder}/{release}')
    return why


def main():
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o755)
    wrong = proved = 0
    for name in sys.argv[3:] or CASES:
        case = CASES[name]
        why = prepare(case.release)
        if why:
            print(f'skipped: {name}: {why}')
            continue
        if os.path.exists(f'{folder}/{name}.log'):
            os.unlink(f'{folder}/{name}.log')
        why = play(name, case)
        print(f'{name}: {f"failed, {why} (log: {folder}/{name}.log)" if why else "ok"}', flush=True)
        wrong, proved = wrong + bool(why), proved + (not why)
        if not why:
            shutil.rmtree(f'{folder}/{name}')
    sys.exit(1 if wrong else 0 if proved else 77)


main()
