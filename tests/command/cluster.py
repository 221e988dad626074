"""Memory of another machine, by the whole library under the software driver, between two folders that are two
machines of one NVLink domain, whose agents the test plays; and what gpushim cluster says and does about it.

    cluster.py GPUSHIM SHIM LIBCUDA BROKER
"""
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
HELLO, AGENT, SHARED, OPEN, OPENED, TAKE, ENDED, RECALL, MACHINE = 1, 37, 38, 40, 41, 42, 43, 44, 47
LISTING, LISTED, LOST = 1, 2, 3
CLUSTER = {'GPUSHIM_SHARE_STRATEGY': 'broker', 'GPUSHIM_SHARE_REACH': 'cluster', 'GPUSHIM_SHARE_BROKER': BROKER,
           'GPUSHIM_SHARE_KEEP': '1 min', 'GPUSHIM_LOG': 'info'}


class Agent:
    """Of a folder's broker."""
    def __init__(self, folder, number):
        await_that(lambda: [name for name in os.listdir(folder) if name.startswith('broker.')], 'a broker')
        name = [name for name in os.listdir(folder) if name.startswith('broker.')][0]
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENT_S)
        self.socket.connect(os.path.join(folder, name))
        self.say(HELLO, bytes(64))
        self.say(AGENT, bytes([number]) * 16 + bytes([1]) * 16 + b'agent'.ljust(32, b'\0') + bytes(8))

    def say(self, kind, body, request=0):
        self.socket.send(struct.pack('<IHHII', 0x67707368, wire.VERSION, kind, 16 + len(body), request) + body)

    def hear(self, kind):
        """The next message of the kind: its request and its body."""
        while True:
            message = self.socket.recv(4096)
            if not message:
                sys.exit(f'failed: the agent is hung up on, and awaits {kind}')
            _, _, got, _, request = struct.unpack_from('<IHHII', message)
            if got == kind:
                return request, message[16:]

    def say_machine(self, number, state):
        self.say(MACHINE, bytes([number]) * 16 + bytes([1]) * 16 + f'rack{number}'.encode().ljust(32, b'\0') +
                 struct.pack('<II', state, 0))

    def pass_on(self, far):
        """An open of this machine's, the second one, is asked of the other one's agent."""
        request, body = self.hear(OPEN)
        handle, lease, _, uid, gid = struct.unpack('<64sQQII', body)
        far.say(TAKE, handle + bytes([2]) * 16 + struct.pack('<QII', lease, uid, gid), 5)
        _, answer = far.hear(OPENED)
        self.say(OPENED, answer, request)
        return lease


def cluster(folder, *arguments):
    return json.loads(gpushim(folder, 'cluster', *arguments, '--json').stdout)


def peek(holder, expression):
    """What a program prints of it."""
    return holder.do('do ' + f'print({expression})'.encode().hex())


def check_share(far_folder, near_folder, domain):
    far = Holder(far_folder, SOFTCUDA_FABRIC=domain, **CLUSTER)
    near = Holder(near_folder, SOFTCUDA_FABRIC=domain, **CLUSTER)
    broker = subprocess.Popen([BROKER], env=clean(near_folder))
    far.do(f'alloc {8 * MIB}')
    far.do('do ' + b'ctypes.memset(held[0].value, 71, 100)'.hex())
    handle = far.do('share 0')
    far_agent, near_agent = Agent(far_folder, 1), Agent(near_folder, 2)
    _, shared = far_agent.hear(SHARED)
    check(shared[:64].hex() == handle, 'the agent is told of the handle')
    opener = threading.Thread(target=near.do, args=(f'open {handle}',))
    opener.start()
    lease = near_agent.pass_on(far_agent)
    opener.join()
    check(peek(near, 'ctypes.string_at(opened[0].value, 3)') == "b'GGG'", 'the other machine reads what is there')
    near.do('do ' + b'ctypes.memset(opened[0].value, 72, 100)'.hex())
    check(peek(far, 'ctypes.string_at(held[0].value, 3)') == "b'HHH'", 'and writes')
    far_agent.say_machine(2, LISTING)
    far_agent.say_machine(2, LOST)
    far.do('free 0')
    far_agent.hear(RECALL)
    (row,) = cluster(far_folder)
    machine = row['machines'][0]
    check(row['has_agent'] and machine['name'] == 'rack2' and machine['state'] == 'lost' and
          machine['freed_leases'] == 1 and machine['freed_bytes'] == 8 * MIB, f'it is held: {row}')
    (row,) = cluster(near_folder)
    check(row['opened_blocks'] == 1 and row['opened_bytes'] == 8 * MIB, f'and open on the other: {row}')
    far.do(f'alloc {8 * MIB}')
    far.do('do ' + b'ctypes.memset(held[0].value, 1, 100)'.hex())
    check(peek(near, 'ctypes.string_at(opened[0].value, 3)') == "b'HHH'", 'nobody else got it')
    near.do('close 0')
    near_agent.say(RECALL, bytes.fromhex(handle)[8:24] + bytes.fromhex(handle)[24:32])
    _, ended = near_agent.hear(ENDED)
    check(struct.unpack_from('<Q', ended, 16)[0] == lease, 'its lease ends')
    return far, near, broker, far_agent, handle


def check_forget(folder, agent):
    text = gpushim(folder, 'cluster')
    check(text.returncode == 0 and 'machine rack2' in text.stdout and 'lost' in text.stdout, f'in words: {text}')
    run = gpushim(folder, 'cluster', 'forget', 'rack9')
    check(run.returncode == 1 and "a machine 'rack9'" in run.stderr, f'no such machine: {run}')
    run = gpushim(folder, 'cluster', 'forget', 'rack2')
    check(run.returncode == 0 and 'rack2 is forgotten: 1 leases ended' in run.stdout, f'it is forgotten: {run}')
    check(cluster(folder)[0]['machines'] == [], 'it has nothing')
    agent.hear(MACHINE)


def check_wrong(folder):
    for arguments in (('forget',), ('remember', 'x'), ('forget', 'x', '--json')):
        run = gpushim(folder, 'cluster', *arguments)
        check(run.returncode == 2 and '(gpushim help cluster)' in run.stderr, f'{arguments} is refused: {run}')
    with tempfile.TemporaryDirectory(prefix='gpushim-cluster-') as other:
        run = gpushim(other, 'cluster')
        check('no broker runs here' in run.stderr, f'there is none: {run}')


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
    check(cluster(folder)[0]['shared_blocks'] == 0, 'nothing may be opened afar')
    holder.process.kill()


def main():
    with tempfile.TemporaryDirectory(prefix='gpushim-far-') as far_folder, \
            tempfile.TemporaryDirectory(prefix='gpushim-near-') as near_folder, \
            tempfile.TemporaryDirectory(prefix='gpushim-plain-') as plain, \
            tempfile.TemporaryDirectory(prefix='gpushim-domain-', dir='/dev/shm') as domain:
        far, near, broker, agent, handle = check_share(far_folder, near_folder, domain)
        check_forget(far_folder, agent)
        check_wrong(far_folder)
        check_without_channel(plain)
        for process in (far.process, near.process, broker):
            process.send_signal(signal.SIGKILL)
            process.wait()
    end_with_faults()


main()
