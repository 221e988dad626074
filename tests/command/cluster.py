"""Memory of another machine, by the whole library under the software driver, between two folders that are two
machines of one NVLink domain, whose agents the test plays; and what gpushim cluster says and does about it.

    cluster.py GPUSHIM SHIM LIBCUDA BROKER
"""
import atexit
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading

from holder import MIB, Holder, PATIENT_S, await_that, check, clean, end_with_faults, gpushim
import wire

BROKER = os.path.abspath(sys.argv[4])
HELLO, OPEN, GRANT, CLOSE, RECALL, SHARE = (
    wire.NUMBER[name] for name in ('HELLO', 'OPEN', 'GRANT', 'CLOSE', 'RECALL', 'SHARE'))
CLUSTER = {'GPUSHIM_SHARE_STRATEGY': 'broker', 'GPUSHIM_SHARE_REACH': 'cluster', 'GPUSHIM_SHARE_BROKER': BROKER,
           'GPUSHIM_SHARE_KEEP': '1 min', 'GPUSHIM_LOG': 'info'}


class Agent:
    """Of a folder's broker."""
    def __init__(self, folder):
        await_that(lambda: wire.brokers(folder), 'a broker')
        name, = wire.brokers(folder)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENT_S)
        self.socket.connect(os.path.join(folder, name))
        self.say(HELLO, bytes(72) + struct.pack('<II', 1, 0))

    def say(self, kind, body, request=0):
        self.socket.send(wire.message(kind, body, request=request))

    def hear(self, kind):
        """The next message of the kind: its request and its body."""
        while True:
            message = self.socket.recv(4096)
            if not message:
                sys.exit(f'failed: the agent is hung up on, and awaits {kind}')
            _, _, got, _, request = struct.unpack_from('<IHHII', message)
            if got == kind:
                return request, message[16:]

    def pass_on(self, far):
        """An open of this machine's is asked of the other one's agent."""
        request, body = self.hear(OPEN)
        lease, = struct.unpack_from('<Q', body, 80)
        far.say(OPEN, body[:80] + bytes(16), 5)
        _, answer = far.hear(GRANT)
        self.say(GRANT, answer, request)
        return lease

    def answer(self, machines, ask):
        """What `ask` says while this one tells of these machines; of one that is to be forgotten, that it had one
        lease."""
        asking = threading.Thread(target=self.tell, args=(machines,))
        asking.start()
        said = ask()
        asking.join()
        return said

    def tell(self, machines):
        for index in range(max(len(machines), 1)):
            request, body = self.hear(wire.QUERY)
            client, forget = struct.unpack_from('<Q16x64s', body, 16)
            if name := forget.rstrip(b'\0'):
                found = sum(row[1] == name for row in machines)
                self.say(wire.REPORT, told(client, found, bytes(16), b'', 0, found, 0, 0, 0), request)
                return
            self.say(wire.REPORT, told(client, len(machines), *machines[index]) if machines else
                     told(client, 0, bytes(16), b'', 0, 0, 0, 0, 0), request)


def told(client, machines, machine, name, state, *sums):
    return wire.machine(client, 0, 0, 4, 2, 200, machines, state, machine, name, *sums, 5_250_000_000, 5_000_000_000,
                        b'no room')


def cluster(folder, *arguments):
    return json.loads(gpushim(folder, 'cluster', *arguments, '--json').stdout)['rows']


def peek(holder, expression):
    """What a program prints of it."""
    return holder.run(f'print({expression})')


def check_share(far_folder, near_folder, domain):
    far = Holder(far_folder, SOFTCUDA_FABRIC=domain, **CLUSTER)
    near = Holder(near_folder, SOFTCUDA_FABRIC=domain, **CLUSTER)
    broker = subprocess.Popen([BROKER], env=clean(near_folder))
    atexit.register(broker.kill) # it holds this program's stderr, which somebody reads to its end
    far.do(f'alloc {8 * MIB}')
    far.run('ctypes.memset(held[0].value, 71, 100)')
    handle = far.do('share 0')
    far_agent, near_agent = Agent(far_folder), Agent(near_folder)
    _, shared = far_agent.hear(SHARE)
    check(shared[:64].hex() == handle, 'the agent is told of the handle')
    importer = threading.Thread(target=near.do, args=(f'open {handle}',))
    importer.start()
    lease = near_agent.pass_on(far_agent)
    importer.join()
    check(peek(near, 'ctypes.string_at(opened[0].value, 3)') == "b'GGG'", 'the other machine reads what is there')
    near.run('ctypes.memset(opened[0].value, 72, 100)')
    check(peek(far, 'ctypes.string_at(held[0].value, 3)') == "b'HHH'", 'and writes')
    far.do('free 0')
    far_agent.hear(RECALL)
    (row,) = far_agent.answer([], lambda: cluster(far_folder))
    check(row['has_agent'] and row['agent_pid'] == os.getpid() and row['shared_blocks'] == 1, f'its broker says: {row}')
    (row,) = near_agent.answer([], lambda: cluster(near_folder))
    check(row['opened_blocks'] == 1 and row['opened_bytes'] == 8 * MIB, f'and open on the other: {row}')
    far.do(f'alloc {8 * MIB}')
    far.run('ctypes.memset(held[0].value, 1, 100)')
    check(peek(near, 'ctypes.string_at(opened[0].value, 3)') == "b'HHH'", 'nobody else got it')
    near.do('close 0')
    near_agent.say(RECALL, bytes.fromhex(handle)[24:32] + bytes.fromhex(handle)[8:24] + bytes(8))
    _, ended = near_agent.hear(CLOSE)
    check(struct.unpack_from('<Q', ended, 24)[0] == lease, 'its lease ends')
    return far, near, broker, far_agent, handle


def check_forget(folder, agent):
    machines = [(b'r' * 16, b'rack2', 3, 1, 8 * MIB, 1, 8 * MIB)]
    text = agent.answer(machines, lambda: gpushim(folder, 'cluster'))
    check(text.returncode == 0 and 'machine rack2' in text.stdout and 'lost' in text.stdout and
          'has 5.0 s left' in text.stdout and 'directory, WRONG: no room' in text.stdout, f'in words: {text}')
    run = agent.answer(machines, lambda: gpushim(folder, 'cluster', 'forget', 'rack9'))
    check(run.returncode == 1 and "a machine 'rack9'" in run.stderr, f'no such machine: {run}')
    run = agent.answer(machines, lambda: gpushim(folder, 'cluster', 'forget', 'rack2'))
    check(run.returncode == 0 and 'rack2 is forgotten: 1 leases ended' in run.stdout, f'it is forgotten: {run}')
    agent.socket.close()
    await_that(lambda: not cluster(folder)[0]['has_agent'], 'it has ended')
    run = gpushim(folder, 'cluster', 'forget', 'rack2')
    check(run.returncode == 1 and 'gpushim-agent' in run.stderr, f'nobody is there who knows of machines: {run}')


def check_wrong(folder):
    with tempfile.TemporaryDirectory(prefix='gpushim-cluster-', ignore_cleanup_errors=True) as other:
        run = gpushim(other, 'cluster')
        check(run.returncode == 0 and not run.stderr and run.stdout.startswith('no broker runs here'),
              f'that there is none is no fault: {run}')


MACHINES = [(b'm' * 16, b'one', 2, 3, 30, 1, 10), (b'n' * 16, b'two', 3, 5, 50, 2, 20),
            (b'o' * 16, b'three', 1, 7, 70, 0, 0)]


def broker_at(path, silent=None):
    """By hand: three machines have something of it, and of `silent` it says nothing."""
    def answer(kind, text):
        index, = struct.unpack_from('<I', text.ljust(20), 16)
        if kind != wire.QUERY:
            return b''
        return None if index == silent else wire.message(wire.REPORT, told(0, 3, *MACHINES[index]))
    return wire.Listener(path, answer)


def check_told(folder, name):
    broker = broker_at(os.path.join(folder, name))
    run = gpushim(folder, 'cluster', '--json')
    (row,) = json.loads(run.stdout)['rows']
    check(run.returncode == 0
          and (row['has_agent'], row['agent_pid'], row['shared_blocks'], row['opened_blocks'], row['opened_bytes']) ==
          (False, 0, 4, 2, 200), f'a broker in numbers: {run}')
    found = [tuple(machine[word]
                   for word in ('name', 'state', 'leases', 'bytes', 'freed_leases', 'freed_bytes', 'age_seconds'))
             for machine in row['machines']]
    check(found == [('one', 'there', 3, 30, 1, 10, 5.25), ('two', 'lost', 5, 50, 2, 20, 5.25),
                    ('three', 'comes back', 7, 70, 0, 0, 5.25)],
          f'each machine in numbers: {found}')
    text = gpushim(folder, 'cluster').stdout
    check('no agent; 4 blocks may be opened on other machines; 2 of other machines, 200 bytes, are open here; 3 '
          'machines' in text and
          text.count('  machine ') == 3 and 'two (' in text and ': 5 leases, 50 bytes, ' in text
          and 'freed blocks 2, 20 bytes' in text,
          f'and in words: {text}')
    broker.end()
    for silent in (0, 1):
        broker = broker_at(os.path.join(folder, name), silent)
        for form in ((), ('--json',)):
            run = gpushim(folder, 'cluster', *form)
            check(run.returncode == 1 and f'the broker, process {os.getpid()}: ' in run.stderr and
                  (not form or isinstance(json.loads(run.stdout)['rows'], list)),
                  f'one that says no more, {form}: {run}')
        broker.end()


def check_without_channel(folder):
    """One line, and all as before."""
    log = os.path.join(folder, 'log')
    holder = Holder(folder, GPUSHIM_LOG_TARGET=log, **CLUSTER)
    holder.do(f'alloc {8 * MIB}')
    handle = holder.do('share 0')
    with open(log, encoding='utf-8') as file:
        text = file.read()
    check(len(handle) == 128 and text.count('stays on this machine') == 1 and '(driver error 800)' in text,
          f'it says so once: {text}')
    await_that(lambda: cluster(folder), 'its broker')
    check(cluster(folder)[0]['shared_blocks'] == 0, 'nothing may be opened on other machines')
    holder.process.kill()


def main():
    with tempfile.TemporaryDirectory(prefix='gpushim-far-', ignore_cleanup_errors=True) as far_folder, \
            tempfile.TemporaryDirectory(prefix='gpushim-near-', ignore_cleanup_errors=True) as near_folder, \
            tempfile.TemporaryDirectory(prefix='gpushim-plain-', ignore_cleanup_errors=True) as plain, \
            tempfile.TemporaryDirectory(prefix='gpushim-domain-', dir='/dev/shm', ignore_cleanup_errors=True) as domain:
        far, near, broker, agent, handle = check_share(far_folder, near_folder, domain)
        check_forget(far_folder, agent)
        check_wrong(far_folder)
        with tempfile.TemporaryDirectory(prefix='gpushim-told-', ignore_cleanup_errors=True) as told:
            check_told(told, wire.brokers(far_folder)[0])
        check_without_channel(plain)
        for row in cluster(far_folder):
            os.kill(row['pid'], signal.SIGKILL)  # what another machine has would keep it for ever
        for process in (far.process, near.process, broker):
            process.send_signal(signal.SIGKILL)
            process.wait()
    end_with_faults()


main()
