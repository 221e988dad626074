"""Every command of the pages for users is run, or stands with the test that runs it, or why none can.

Commands of the library (`gpushim ...`) are run as they stand, by a shell, beside two processes that share memory: what
pages write for something (PID, PROGRAM) is filled in, and programs of others are stand-ins that end well. A line has to
be understood, and to do what it says: its exit status is 0, or 1 where a command found something to say. Scripts have
to be run by a test of the build, or by a file of tests.

    page_commands.py PUPPET SHIM BROKER all ROOT BUILD GPUSHIM
    page_commands.py PUPPET SHIM BROKER sessions ROOT BUILD    what pages show of the examples is what these say, but
                                                               for numbers, and users
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from puppet import MIB, Puppet, around, check, main, set_for_all

FIRST = re.compile(r"(?:[A-Z_]+=(?:'[^']*'|\S+) "
                   r")*(?:gpushim|gpushim-broker|sh|python3?|meson|podman|docker|apt-get|dpkg|pip|"
                   r'systemctl|loginctl|kubectl|mpirun|srun|install|torchrun|promtool|jupyter|kill) ')
# Programs of others, which a line starts under the library.
STAND_INS = ('python', 'python3', 'torchrun', 'vllm', 'srun', 'mpirun', 'train', 'program', 'server')
# Words that stand for something. The first process is A; both sleep and wake in turns.
WORDS = ((r'4711 4712 4713|PID\.\.\.|PID\|CGROUP\.\.\.', '{both}'), (r'\bA B\b', '{both}'),
         (r'\b4711\b|\bPID\b|\bB\b', '{one}'),
         (r'-- PROGRAM|\bPROGRAM$', '-- program'), (r'\./(program|server)', r'\1'), (r'MODEL', 'model'),
         (r'\bFILE\b', '{file}'),
         (r'127\.0\.0\.1:\d+', '127.0.0.1:0'), (r'/var/lib/prometheus/node-exporter|/etc/cdi|/run/gpushim', '{folder}'),
         (r'/opt/gpushim/bin/', ''))
# Why a command of the library is not run as it stands, or not at all.
NOT_RUN = ((r'gpushim (COMMAND|cdi|run|record|report|export|sleep|wake|swap|set|config|ls|broker|cluster|cluster '
            r'forget)$',
            'names the command'),
           (r'python3? -m gpushim', 'the wheel: tests/packages/wheel.py, tests/packages/python.py'),
           (r'gpushim report', 'tests/command/report.py, as there is no recording here'),)
# Commands of others: what they are about, and the file of tests that runs the like; or '' and why none does.
OTHERS = (
    (r'meson (setup|test|install|compile)', 'tests/run.sh'),
    (r'podman (build|run|images)', 'tests/packages/containerfile.py'),
    (r'dpkg (-i|--purge)', 'tests/packages/packages.py'), (r'apt-get install', 'tests/lib.sh'),
    (r'pip install', 'tests/packages/wheel.py'),
    (r'kubectl (apply|delete|kustomize)', 'tests/containers/kubernetes.py'),
    (r'kubectl exec', ''),  # there is no cluster
    (r'systemctl|loginctl', 'tests/packages/units.py'),  # by what they start; no systemd runs here
    (r'promtool', 'tests/command/prometheus.py'), (r'jupyter kernelspec', 'tests/command/container_files.py'),
    (r'mpirun|srun', 'tests/command/container_files.py'), (r'install -d', 'tests/command/container_files.py'),
    (r'torchrun', 'tests/gpu/run.sh'), (r'kill -', ''),  # of the system
)


def commands(root):
    """(page and line, command), each once."""
    seen = set()
    for page in [root / 'README.md', *sorted((root / 'examples').rglob('README.md'))]:
        for number, line in enumerate(page.read_text(encoding='utf-8').splitlines(), 1):
            found = re.findall(r'`([^`]+)`', line)
            if line.startswith('    '):
                found = [re.sub(r'^(?:\$ )?(.*?)(?: {2,}#.*)?$', r'\1', line.strip())]
            for text in found:
                if FIRST.match(text) and text not in seen and not text.endswith('\\') and 'gpushim 1.' not in text:
                    seen.add(text)
                    yield f'{page.relative_to(root)}:{number}', text


class Pages:
    def __init__(self, root, build, gpushim):
        self.root, self.faults, self.ran, self.said = root, [], 0, ''
        self.tests = json.loads((build / 'meson-info' / 'intro-tests.json').read_text(encoding='utf-8'))
        self.text = {path: path.read_text(encoding='utf-8') for path in (root / 'tests').rglob('*')
                     if path.suffix in ('.py', '.sh', '.build') and path.name != os.path.basename(__file__)}
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=around.folder))
        (self.folder / 'bin').mkdir()
        for name in STAND_INS:
            (self.folder / 'bin' / name).write_text('#!/bin/sh\nexit 0\n')
            (self.folder / 'bin' / name).chmod(0o755)
        (self.folder / 'bin' / 'gpushim').symlink_to(gpushim)
        (self.folder / 'gpushim.conf').write_text('[pool]\ndecay = 5 s\n')
        self.processes = [Puppet(), Puppet()]
        self.processes[1].open(self.processes[0].handle(self.processes[0].alloc(80 * MIB)))
        self.processes[1].alloc(80 * MIB)

    def filled_in(self, text):
        one, two = (str(process.pid) for process in self.processes)
        for word, means in WORDS:
            text = re.sub(word, means, text)
        return text.format(one=one, both=f'{one} {two}', file=self.folder / 'gpushim.conf', folder=self.folder)

    def run(self, where, text):
        line = self.filled_in(text.replace('{', '{{').replace('}', '}}'))
        environment = around.environment({'LD_PRELOAD': None, 'PATH': f'{self.folder}/bin:{os.environ["PATH"]}',
                                          'TERM': 'dumb'})
        lasts = re.search(r'gpushim (top|export .*--listen|broker)', line)
        ran = subprocess.run(['timeout', '-s', 'TERM', '2' if lasts else '40', 'sh', '-c', line], env=environment,
                             cwd=self.folder, text=True,
                             stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
        self.ran += 1
        self.said += ran.stdout
        well = ran.returncode in (0, 1) or (lasts and ran.returncode == 124)
        if not well or '(gpushim help' in ran.stderr:
            self.faults.append(f'{where}: {text}: {line} ends with {ran.returncode}: {ran.stdout}{ran.stderr}')

    def of_script(self, where, text):
        """A test of the build runs it, or a file of tests; a part of tests/gpu is there."""
        script = re.search(r'\b(?:sh|python3) ([\w./-]+\.(?:sh|py))', text)
        path = script and next((place / script[1] for place in (self.root, self.root / 'examples/containers')
                                if (place / script[1]).exists()), None)
        if not path:
            self.faults.append(f'{where}: {text}: there is no such script')
        elif path.parts[-2] == 'gpu' or path.parent.name == 'tests' or 'fuzz' in path.parts:
            part = re.search(r'run\.sh (\w+)$', text)
            if part and path.parts[-2] == 'gpu' and f'part_{part[1]}()' not in path.read_text(encoding='utf-8'):
                self.faults.append(f'{where}: {text}: there is no such part')
        elif not any(path.name in ' '.join(test['cmd']) for test in self.tests) and \
                not any(path.name in said for said in self.text.values()):
            self.faults.append(f'{where}: {text}: no test runs it')

    def look_at(self, where, text):
        if any(re.match(what, text) for what, _ in NOT_RUN):
            return
        if re.match(r'(?:[A-Z_]+=\S+ )*(?:sh|python3) [\w./-]+\.(?:sh|py)\b', text):
            self.of_script(where, text)
        elif re.search(r'\bgpushim(?:-broker)? ',
                       text) and not re.match(r'kubectl|podman|docker|systemctl|jupyter|mpirun -x', text):
            self.run(where, text)
        else:
            for what, file in OTHERS:
                if re.match(what, text):
                    if file and self.root / file not in self.text:
                        self.faults.append(f'{where}: {text}: there is no {file}')
                    return
            self.faults.append(f'{where}: {text}: nothing is known of it (tests/page_commands.py)')


def all(root, build, gpushim):  # pylint: disable=redefined-builtin
    set_for_all(GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on')  # who sleeps has a socket
    pages = Pages(pathlib.Path(root), pathlib.Path(build), os.path.realpath(gpushim))
    found = list(commands(pages.root))
    for where, text in found:
        pages.look_at(where, text)
    print(f'{len(found)} commands, {pages.ran} of them run here')
    check(len(found) > 80 and pages.ran > 30, 'few commands were found')
    check(': asleep, in ' in pages.said and ': awake, in ' in pages.said, f'nobody slept and woke: {pages.said}')
    check(not pages.faults, '\n'.join(pages.faults))



# The page, the first line of what it shows, and the script that says so.
SESSIONS = (
    ('README.md', 'first: loaded llama', 'weights/weights.sh --software'),
    ('examples/restart/README.md', 'first: loaded llama', 'weights/weights.sh --software'),
    ('examples/restart/README.md', 'loader: loaded the weights', 'restart/restart.sh broker --software'),
    ('examples/sleep/README.md', 'apple: apple has a model', 'sleep/sleep.sh --software 150'),
)


def plain(line):
    return re.sub(r'\d+(?:\.\d+)?', '0', re.sub(r'^(llama) \S+ ', r'\1 USER ', ' '.join(line.split())))


def sessions(root, build):
    said = {}
    environment = {**os.environ, 'GPUSHIM_BUILD': build, 'GPUSHIM_SHARE_KEEP': '60 s'}
    for page, first, words in SESSIONS:
        script, *options = words.split()
        if words not in said:
            ran = subprocess.run(['sh', f'{root}/examples/{script}', *options], env=environment, text=True, timeout=180,
                                 stdin=subprocess.DEVNULL, capture_output=True, check=False)
            check(ran.returncode == 0, f'{words} ends with {ran.returncode}: {ran.stdout}{ran.stderr}')
            said[words] = [plain(line) for line in ran.stdout.splitlines()]
        text = pathlib.Path(root, page).read_text(encoding='utf-8')
        session = re.search(rf'(?:^    .*\n)*^    {first}.*\n(?:    .*\n)*', text, re.M)[0]
        shown = [plain(line) for line in session.splitlines()]
        lines = iter(said[words])
        missing = [line for line in shown if line not in lines]
        check(not missing, f'{page} shows what {words} does not say so, or not then: {missing}; it says {said[words]}')


main(globals())
