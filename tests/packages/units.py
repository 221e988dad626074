"""The units of broker, exporter and agent: systemd finds nothing wrong with them, they start what is installed, and the
broker's socket has the name that processes look for: what looks for a broker there starts it, and has its answer.
What the exporter's unit starts serves figures.

usage: units.py GPUSHIM GPUSHIM_BROKER GPUSHIM-BROKER.SERVICE GPUSHIM-BROKER.SOCKET GPUSHIM-EXPORTER.SERVICE
                [UNIT OF THE SYSTEM'S]...
"""
import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

gpushim, broker = (os.path.abspath(path) for path in sys.argv[1:3])
service_file, socket_file, exporter_file = sys.argv[3:6]
system_files = sys.argv[6:]
faults, skipped = [], []

ENVIRONMENT = {name: value for name, value in os.environ.items()
               if not name.startswith(('GPUSHIM_', 'LD_', 'LISTEN_', 'SYSTEMD_'))}
ENVIRONMENT.update(GPUSHIM_CONFIG='', LC_ALL='C')


def read(path):
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str
    unit.read(path, encoding='utf-8')
    return unit


def expand(text, runtime):
    """What a user's systemd makes of it."""
    with open('/proc/sys/kernel/random/boot_id', encoding='ascii') as file:
        boot = file.read().strip().replace('-', '')
    text = text.replace('%t', runtime).replace('%b', boot)
    if '%' in text:
        faults.append(f'{text}: what is the % here?')
    return text


def verify(folder):
    """systemd's own look at the units, with what is built in place of what is installed."""
    if not shutil.which('systemd-analyze'):
        skipped.append('no systemd-analyze')
        return
    for whose, paths in (('--user', (service_file, socket_file, exporter_file)), ('--system', system_files)):
        os.mkdir(f'{folder}/{whose}')
        for path in paths:
            with open(path, encoding='utf-8') as file:
                text = re.sub(r'^(ExecStart)=[^ \n]*/(\S*)', lambda match: 'ExecStart=' + (
                    f'{os.path.dirname(broker)}/{match[2]}' if match[2] != 'gpushim-agent' else broker), file.read(),
                              flags=re.M)
            with open(f'{folder}/{whose}/{os.path.basename(path)}', 'w', encoding='utf-8') as file:
                file.write(text)
        verify_all(folder, whose, paths)


def verify_all(folder, whose, paths):
    for path in paths:
        ran = subprocess.run(
            ['systemd-analyze', whose, '--man=no', 'verify', f'{folder}/{whose}/{os.path.basename(path)}'],
            env=ENVIRONMENT | {'XDG_RUNTIME_DIR': folder}, capture_output=True, text=True, timeout=60, check=False)
        if re.search(r'Failed to (?:initialize manager|lookup|set up)', ran.stderr):
            skipped.append(f'systemd-analyze does not run here: {ran.stderr.strip()}')
        elif ran.returncode or ran.stderr.strip():
            faults.append(f'systemd-analyze verify {path}: {ran.returncode}: {ran.stderr}')


def measure():
    """How much a unit leaves to what it starts, by systemd's measure: 10 is all."""
    for path, most in [(service_file, 6.5), (exporter_file, 6.5)] + [(path, 3.0) for path in system_files]:
        ran = subprocess.run(['systemd-analyze', 'security', '--offline=true', '--no-pager', path], env=ENVIRONMENT,
                             capture_output=True, text=True, timeout=60, check=False)
        level = re.search(r'Overall exposure level for \S+: ([\d.]+)', ran.stdout)
        if not level:
            skipped.append(f'systemd-analyze measures nothing here: {ran.stderr.strip()}')
        elif float(level[1]) > most:
            faults.append(f'{path}: an exposure of {level[1]}, more than {most}')


def rows_of_broker(environment):
    ran = subprocess.run([gpushim, 'doctor', '--json'], env=environment, capture_output=True, text=True,
                         timeout=60, check=False)
    return [row['found'] for row in json.loads(ran.stdout)['rows'] if row['subject'] == 'broker']


def await_socket(path, process):
    """Until it listens: where it does not, the program that is to make it ends, or the test's time does."""
    while process.poll() is None:
        with open('/proc/net/unix', encoding='utf-8', errors='replace') as file:
            if any(line.split()[-1] == path and line.split()[3] == '00010000' for line in file):
                return True
        time.sleep(0.01)
    return False


def activate(runtime, service, address):
    """As systemd would: the socket is there, and the broker is started when somebody connects."""
    if not shutil.which('systemd-socket-activate'):
        skipped.append('no systemd-socket-activate')
        return
    name, _, value = expand(service['Service']['Environment'], runtime).partition('=')
    environment = ENVIRONMENT | {name: value}
    folder = os.path.dirname(address)
    os.mkdir(folder, int(socket['Socket']['DirectoryMode'], 8))
    before = rows_of_broker(environment)
    if any('one answers' in row for row in before):
        faults.append(f'a broker answers before there is one: {before}')
    with subprocess.Popen(['systemd-socket-activate', '--seqpacket', '-E', name, '-l', address, broker],
                          env=environment, stderr=subprocess.PIPE, text=True) as activator:
        try:
            if not await_socket(address, activator):
                faults.append(f'no socket: {activator.stderr.read()}')
                return
            after = rows_of_broker(environment)
            if not any(re.search(rf'one answers, process {activator.pid}\b', row)
                       for row in after):
                faults.append(f'no broker answers in {folder}: {after}')
        finally:
            activator.send_signal(signal.SIGTERM)
        if activator.wait(timeout=60) != 0:
            faults.append(f'the broker ends with {activator.returncode}: {activator.stderr.read()}')


def serve(folder):
    """What the exporter's unit starts, at a port that is free."""
    words = read(exporter_file)['Service']['ExecStart'].split()
    if os.path.basename(words[0]) != 'gpushim' or words[-1] != '127.0.0.1:9465':
        faults.append(f'{exporter_file} starts {words}')
    with subprocess.Popen([gpushim, *words[1:-1], '127.0.0.1:0'], stdout=subprocess.PIPE, text=True,
                          env=ENVIRONMENT | {'GPUSHIM_SHARE_DIR': folder}) as exporter:
        try:
            line = exporter.stdout.readline()
            with urllib.request.urlopen(line.split()[-1], timeout=60) as page:
                if 'gpushim_build_info' not in page.read().decode():
                    faults.append(f'{line}: no figures')
        finally:
            exporter.send_signal(signal.SIGTERM)
        if exporter.wait(timeout=60) != 0:
            faults.append(f'the exporter ends with {exporter.returncode}')


service, socket = read(service_file), read(socket_file)
if os.path.basename(service['Service']['ExecStart']) != 'gpushim-broker':
    faults.append(f'{service_file} starts {service["Service"]["ExecStart"]}')
with tempfile.TemporaryDirectory(prefix='gpushim-units-', ignore_cleanup_errors=True) as temporary:
    verify(temporary)
    if shutil.which('systemd-analyze'):
        measure()
    serve(temporary)
    activate(temporary, service, expand(socket['Socket']['ListenSequentialPacket'], temporary))
for each in faults:
    print(each)
if not faults and skipped:
    print('skipped:', '; '.join(skipped))
    sys.exit(77)
sys.exit(1 if faults else 0)
