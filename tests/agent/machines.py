"""Machines of one NVLink domain, for tests: each has a broker, an agent, and programs under the library and the
software driver. `separate`: each is a network namespace and a mount namespace of its own (with one path for
the folder of the sockets, that all machines have and none shares), joined by a switch that is a third
namespace; else they are folders of this machine, with numbers for machines, which takes no privilege.
"NVLink" is a folder on tmpfs that all see.

The test's arguments begin with GPUSHIM SHIM LIBCUDA AGENT BROKER.
"""
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), os.pardir))
from faults import PATIENT_S, faults, await_that, check, end_with_faults  # as others take them from here

GPUSHIM, SHIM, LIBCUDA, AGENT, BROKER = (os.path.abspath(argument) for argument in sys.argv[1:6])
MIB = 1 << 20
FABRIC_BYTES = 128 * MIB  # more than any of these tests has at a time

# Each line is a Python expression; what it is worth comes back as JSON, with the time it took.
PROGRAM = '''
import ctypes, json, os, sys, time
class Handle(ctypes.Structure): # which is passed by value
    _fields_ = [('bytes', ctypes.c_ubyte * 64)]
cuda = ctypes.CDLL('libcuda.so.1')
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
def alloc(size, byte):
    pointer = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    fill(pointer.value, byte, size)
    return pointer.value
def fill(pointer, byte, size):
    assert cuda.cuMemsetD8_v2(ctypes.c_uint64(pointer), ctypes.c_ubyte(byte), ctypes.c_size_t(size)) == 0
    assert cuda.cuCtxSynchronize() == 0
def read(pointer):
    four = (ctypes.c_ubyte * 4)()
    assert cuda.cuMemcpyDtoH_v2(four, ctypes.c_uint64(pointer), ctypes.c_size_t(4)) == 0
    return bytes(four).hex()
def free(pointer):
    return cuda.cuMemFree_v2(ctypes.c_uint64(pointer))
def share(pointer):
    handle = Handle()
    status = cuda.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(pointer))
    return bytes(handle).hex() if status == 0 else f'refused {status}'
def open_(handle):
    pointer = ctypes.c_uint64()
    status = cuda.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), Handle.from_buffer_copy(bytes.fromhex(handle)), 1)
    return pointer.value if status == 0 else f'refused {status}'
def close(pointer):
    return cuda.cuIpcCloseMemHandle(ctypes.c_uint64(pointer))
for line in sys.stdin:
    began = time.monotonic()
    worth = eval(line)
    print(json.dumps([worth, time.monotonic() - began]), flush=True)
'''


class Program:
    def __init__(self, machine, stderr=None, **settings):
        self.process = machine.start([sys.executable, '-c', PROGRAM], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=stderr, text=True,
                                     **{**machine.sharing(), **settings})
        self.pid = self.process.pid
        self.took_s = 0

    def say(self, line):
        self.process.stdin.write(line + '\n')
        self.process.stdin.flush()

    def hear(self):
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit('\n'.join(['failed: a program of this test has ended', *faults]))
        worth, self.took_s = json.loads(answer)
        return worth

    def do(self, line):
        self.say(line)
        return self.hear()

    def opens(self, handle, what='it opens within a while'):
        """The pointer, once the directory has it."""
        got = []
        await_that(lambda: got.append(self.do(f'open_({handle!r})')) or isinstance(got[-1], int), what)
        return got[-1]

    def end(self):
        self.process.kill()
        self.process.wait()


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class Net:
    """A switch; machines plug into it. All of it goes with its processes."""

    def __init__(self):
        self.anchors = []
        self.switch = self.anchor()
        self.inside(self.switch, 'ip', 'link', 'add', 'br0', 'type', 'bridge')
        self.inside(self.switch, 'ip', 'addr', 'add', '10.77.0.254/24', 'dev', 'br0')
        self.inside(self.switch, 'ip', 'link', 'set', 'br0', 'up')
        self.inside(self.switch, 'ip', 'link', 'set', 'lo', 'up')

    def anchor(self):
        """A process that keeps namespaces; what it is started in are its own when it has said so."""
        process = subprocess.Popen(['unshare', '--net', '--mount', '--propagation', 'private', 'sh', '-c',
                                    'echo; exec cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.anchors.append(process)
        if not process.stdout.readline():
            raise OSError('no namespaces')
        return process.pid

    def inside(self, anchor, *command):
        run('nsenter', '-t', str(anchor), '-n', '-m', *command)

    def plug(self, anchor, number):
        self.inside(self.switch, 'ip', 'link', 'add', f'v{number}', 'type', 'veth', 'peer', 'name', 'eth0',
                    'netns', str(anchor))
        self.inside(self.switch, 'ip', 'link', 'set', f'v{number}', 'master', 'br0', 'up')
        self.inside(anchor, 'ip', 'addr', 'add', f'10.77.0.{number}/24', 'dev', 'eth0')
        self.inside(anchor, 'ip', 'link', 'set', 'eth0', 'up')
        self.inside(anchor, 'ip', 'link', 'set', 'lo', 'up')

    def pull(self, number, out=True):
        """The cable of this one, out or in again."""
        self.inside(self.switch, 'ip', 'link', 'set', f'v{number}', 'down' if out else 'up')

    def end(self):
        for process in self.anchors:
            process.kill()
            process.wait()


def cannot_separate():
    """Why there can be no namespaces; '': there can."""
    if os.geteuid() != 0:
        return 'namespaces and their links take root'
    for program in ('ip', 'nsenter', 'unshare'):
        if not shutil.which(program):
            return f'there is no {program}'
    net = None
    try:
        net = Net()
        net.plug(net.anchor(), 1)
    except (OSError, subprocess.CalledProcessError) as error:
        return f'no network namespaces here: {getattr(error, "stderr", None) or error}'
    finally:
        if net:
            net.end()
    return ''


class Machine:
    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number
        self.id, self.boot = f'{number:032x}', f'{number + 0xb0:032x}'
        self.broker = self.agent = None
        self.skew = None  # (library, seconds): its time of day is so much later
        self.anchor = None
        self.address = '127.0.0.1'
        self.share = os.path.join(cluster.folder, f'share{number}')
        if cluster.net:
            self.anchor = cluster.net.anchor()
            cluster.net.plug(self.anchor, number)
            self.address = f'10.77.0.{number}'
            self.share = os.path.join(cluster.folder, 'share')
        os.makedirs(self.share, mode=0o700, exist_ok=True)
        if cluster.net:
            cluster.net.inside(self.anchor, 'mount', '-t', 'tmpfs', '-o', 'mode=0700', 'none', self.share)
        self.log = open(os.path.join(cluster.folder, f'agent{number}.log'), 'a+', encoding='utf-8')

    def environment(self):
        plain = {name: value for name, value in os.environ.items()
                 if not name.startswith(('GPUSHIM_', 'SOFTCUDA_')) and name != 'LD_PRELOAD'}
        return {**plain, **self.cluster.settings, 'GPUSHIM_SHARE_DIR': self.share, 'GPUSHIM_CONFIG': '',
                'ASAN_OPTIONS': plain.get('ASAN_OPTIONS', '') + ':verify_asan_link_order=0'}

    def sharing(self):
        return {'GPUSHIM_SHARE_STRATEGY': 'broker', 'GPUSHIM_SHARE_BROKER': BROKER,
                'GPUSHIM_SHARE_REACH': 'cluster', 'SOFTCUDA_FABRIC': self.cluster.fabric,
                'SOFTCUDA_MACHINE': os.path.join(self.cluster.folder, f'machine{self.number}'),
                'LD_LIBRARY_PATH': os.path.dirname(LIBCUDA), 'LD_PRELOAD': SHIM}

    def start(self, command, stdin=None, stdout=None, stderr=None, text=None, **settings):
        inside = ['nsenter', '-t', str(self.anchor), '-n', '-m'] if self.anchor else []
        environment = {**self.environment(), **settings}
        if self.skew:
            library, seconds = self.skew
            environment['LD_PRELOAD'] = ':'.join([library, *filter(None, [environment.get('LD_PRELOAD')])])
            environment['SKEW_S'] = str(seconds)
        if inside:  # the library is for the program alone
            kept = {name: environment.pop(name) for name in ('LD_PRELOAD', 'LD_LIBRARY_PATH') if name in environment}
            inside += ['env', *(f'{name}={value}' for name, value in kept.items())]
        return subprocess.Popen(inside + command, env=environment, stdin=stdin, stdout=stdout, stderr=stderr, text=text)

    def start_broker(self):
        self.broker = self.start([BROKER], stderr=self.log)
        return self

    def start_agent(self, *options):
        self.agent = self.start([AGENT, '--directory', self.cluster.directory, '--listen', self.address,
                                 '--machine-id', self.id, '--boot-id', self.boot, '--name', f'm{self.number}',
                                 '--debug', '--lease', str(self.cluster.lease_s), *self.cluster.agent_options,
                                 *options], stderr=self.log)
        return self

    def another_broker(self):
        """In the place of this one, which is killed; the agent has found it."""
        joined = self.said().count('joined the broker')
        self.kill('broker')
        self.start_broker()
        self.await_word('joined the broker', joined + 1)

    def said(self):
        self.log.flush()
        with open(self.log.name, encoding='utf-8') as file:
            return file.read()

    def await_word(self, word, count=1):
        return await_that(lambda: self.said().count(word) >= count, f'machine {self.number} says {word!r}: '
                          f'{self.said()[-2000:]}') or sys.exit('\n'.join(['failed:', *faults]))

    def gpushim(self, *arguments):
        process = self.start([GPUSHIM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = process.communicate(timeout=PATIENT_S)
        return process.returncode, out, err

    def limbo(self):
        """Bytes that are freed here and held by others."""
        _, out, _ = self.gpushim('who', '--json')
        return sum(row.get('freed_bytes', 0) for row in (json.loads(out)['rows'] if out else []))

    def remove(self, name):
        """A file of the folder of the sockets."""
        check(self.start(['rm', os.path.join(self.share, name)]).wait() == 0, f'{name} is removed')

    def kill(self, what, how=signal.SIGKILL):
        process = getattr(self, what)
        if process:
            process.send_signal(signal.SIGCONT)
            process.send_signal(how)
            process.wait()
        setattr(self, what, None)


def memory_folder():
    """Where files are memory that all machines reach."""
    room = os.statvfs('/dev/shm')
    if room.f_bavail * room.f_frsize < FABRIC_BYTES:
        skip(f'less than {FABRIC_BYTES // MIB} MiB are free in /dev/shm; docker run --shm-size=1g gives a container '
             'more')
    return '/dev/shm'


class Cluster:
    def __init__(self, machines, separate=False, lease_s=3, etcd=0, certificate=None):
        """`certificate`: the files of one and of its key, with which etcd's members speak TLS to agents."""
        self.fabric = tempfile.mkdtemp(prefix='gpushim-fabric-', dir=memory_folder())
        self.folder = tempfile.mkdtemp(prefix='gpushim-cluster-')
        self.lease_s = lease_s
        self.net = Net() if separate else None
        self.members, self.agent_options = [], []
        self.certificate = certificate
        self.settings = {}  # of all machines' brokers, agents and programs: environment
        os.mkdir(os.path.join(self.folder, 'directory'), mode=0o700)
        self.directory = f'folder:{self.folder}/directory'
        if etcd:
            self.start_etcd(etcd)
        self.machines = [Machine(self, number) for number in range(1, machines + 1)]

    def start_etcd(self, count):
        """Members on the switch, each with ports of its own."""
        host = '10.77.0.254' if self.net else '127.0.0.1'
        free = free_ports(2 * count)
        ports = list(zip(free[:count], free[count:]))
        peers = ','.join(f'e{i}=http://{host}:{peer}' for i, (_, peer) in enumerate(ports))
        scheme = 'https' if self.certificate else 'http'
        more = ['--cert-file', self.certificate[0], '--key-file', self.certificate[1]] if self.certificate else []
        self.etcd_commands = []
        for i, (client, peer) in enumerate(ports):
            self.etcd_commands.append(
                ['etcd', '--name', f'e{i}', '--data-dir', f'{self.folder}/etcd{i}', '--listen-client-urls',
                 f'{scheme}://{host}:{client}', '--advertise-client-urls', f'{scheme}://{host}:{client}', *more,
                 '--listen-peer-urls', f'http://{host}:{peer}', '--initial-advertise-peer-urls',
                 f'http://{host}:{peer}', '--initial-cluster', peers, '--logger', 'zap', '--log-level', 'error'])
            self.members.append(self.start_member(i))
        self.directory = ','.join(f'{scheme}://{host}:{client}' for client, _ in ports)

    def start_member(self, index):
        inside = ['nsenter', '-t', str(self.net.switch), '-n'] if self.net else []
        with open(f'{self.folder}/etcd{index}.log', 'a', encoding='utf-8') as log:
            return subprocess.Popen(inside + self.etcd_commands[index], stdout=log, stderr=log)

    def start(self):
        """A broker and an agent on each, which have found each other and the directory."""
        for machine in self.machines:
            machine.start_broker().start_agent()
        for machine in self.machines:
            machine.await_word('joined the broker')
            machine.await_word('the directory answers')
        return self.machines

    def end(self):
        for machine in self.machines:
            if '-v' in sys.argv:
                print(machine.said())
            machine.kill('agent')
            machine.kill('broker')
            machine.log.close()
        for member in self.members:
            member.kill()
            member.wait()
        if self.net:
            self.net.end()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.fabric, ignore_errors=True)


def free_ports(count):
    """Of those that the kernel gives nobody by itself: who connects meanwhile would have them before a member of etcd
    is there, or while it is not."""
    with open('/proc/sys/net/ipv4/ip_local_port_range', encoding='ascii') as file:
        end = max(int(file.read().split()[0]), 20000)
    ports = set()
    while len(ports) < count:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(('127.0.0.1', random.randrange(10000, end)))
            ports.add(probe.getsockname()[1])
    return list(ports)


def cluster_of(machines, words):
    """As the test's further arguments say; or the test ends, and says why it cannot be."""
    if 'separate' in words and (reason := cannot_separate()):
        skip(reason)
    if 'etcd' in words and not shutil.which('etcd'):
        skip('there is no etcd (Debian: etcd-server)')
    cluster = Cluster(machines, separate='separate' in words, etcd=3 if 'etcd' in words else 0)
    for library in (os.path.abspath(word[5:]) for word in words if word.startswith('skew:')):
        for machine in cluster.machines:  # 20 s between two of them, and 10 s between one and its directory
            machine.skew = library, 10 if machine.number % 2 else -10
    return cluster


def with_machines(test, count, words=(), **settings):
    """test(cluster, machines, a, b): a and b are programs of the first two machines. What fails ends all of it."""
    cluster = cluster_of(count, words)
    cluster.settings = settings
    try:
        machines = cluster.start()
        a, b = Program(machines[0]), Program(machines[1])
        test(cluster, machines, a, b)
        a.end()
        b.end()
        end_with_faults()
    finally:
        cluster.end()


def skip(reason):
    print(f'skipped: {reason}')
    sys.exit(77)
