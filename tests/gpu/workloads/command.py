"""The command on a real GPU: PyTorch is started by `gpushim run` and shares memory with a second
process; doctor, top, stats, who, set, trim and export look at both. Then it is recorded,
reported and replayed, and refused memory beyond a limit and on a full GPU.

    command.py GPUSHIM [VARIABLE=VALUE for the programs]...

Prints what each command says, then one "RESULT check outcome" line each.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

SECONDS = 60
MIB = 1 << 20

CONSUMER = """
import sys, pickle, torch
from multiprocessing.reduction import ForkingPickler
rebuild = pickle.loads(bytes.fromhex(sys.stdin.readline()))
print('opened', int(rebuild[0]), flush=True)
sys.stdin.readline()
"""

PRODUCER = """
import sys, io, subprocess, torch, torch.multiprocessing
from multiprocessing.reduction import ForkingPickler
tensor = torch.full((64 << 20,), 7, dtype=torch.int32, device='cuda')
dropped = torch.zeros(100 << 20, dtype=torch.uint8, device='cuda')
del dropped
torch.cuda.synchronize()
consumer = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)
data = io.BytesIO()
ForkingPickler(data).dump(tensor)
consumer.stdin.write(data.getvalue().hex() + '\\n')
consumer.stdin.flush()
print(consumer.stdout.readline().strip(), consumer.pid, flush=True)
sys.stdin.readline()
torch.cuda.empty_cache()
print('emptied', flush=True)
sys.stdin.readline()
consumer.stdin.write('\\n')
consumer.stdin.flush()
consumer.wait()
"""

# No cache of its own: the calls are the program's. The peak is three blocks of 100, 200 and 400 MiB.
RECORDED = """
import torch
def hold():
    return [torch.empty(size << 20, dtype=torch.uint8, device='cuda') for size in (100, 200, 400)]
kept = hold()
del kept
for _ in range(50):
    torch.empty(30 << 20, dtype=torch.uint8, device='cuda').fill_(1)
torch.cuda.synchronize()
"""

# What memory there is, and what becomes of an allocation of ARGUMENT MiB.
REFUSED = """
import sys, torch
free, total = torch.cuda.mem_get_info()
print(free, total, torch.cuda.get_device_properties(0).total_memory, flush=True)
try:
    torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device='cuda')
    print('had')
except RuntimeError as error:
    print('refused', error)
torch.empty(64 << 20, dtype=torch.uint8, device='cuda').fill_(1)
torch.cuda.synchronize()
"""

# How those who made these formats read them.
VIZ = """
import pickle, sys
from torch.cuda import _memory_viz
with open(sys.argv[1], 'rb') as file:
    snapshot = pickle.load(file)
page = _memory_viz.trace_plot(snapshot)
text = _memory_viz.segsum(snapshot)
print(len(page), len(snapshot['segments']), sum(len(trace) for trace in snapshot['device_traces']))
print(_memory_viz.trace(snapshot)[:400])
"""

gpushim = sys.argv[1]
wrong = 0


def said(*arguments):
    done = subprocess.run([gpushim, *arguments], capture_output=True, text=True, timeout=SECONDS)
    print(f'$ gpushim {" ".join(arguments)}  # {done.returncode}\n{done.stdout}{done.stderr}')
    return done


def check(name, holds, detail=''):
    global wrong
    wrong += not holds
    print(f'RESULT {name} {"ok" if holds else "WRONG " + str(detail)}', flush=True)


def main():
    doctor = said('doctor')
    check('doctor', doctor.returncode == 0 and '\n0 FAIL, ' in doctor.stdout)
    check('doctor-gpu', 'no GPU' not in doctor.stdout)
    said('version')
    environment = dict(os.environ, PYTORCH_NO_CUDA_MEMORY_CACHING='0')
    started = time.time()
    program = subprocess.Popen([gpushim, 'run', '--', sys.executable, '-c', PRODUCER, CONSUMER],
                               env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)
    words = program.stdout.readline().split()
    check('shared', words[:2] == ['opened', '7'], words)
    print(f'after {time.time() - started:.1f} s')
    holder = int(words[2]) if len(words) > 2 else 0
    check('doctor-pid', said('doctor', str(program.pid)).returncode == 0)
    said('top')
    said('stats')
    rows = json.loads(said('stats', '--json').stdout)['rows']
    mine = [row for row in rows if row['pid'] == program.pid]
    check('stats', len(mine) == 1 and mine[0].get('reserved_bytes', 0) >= 256 * MIB, rows)
    check('stats-holder', any(row['pid'] == holder for row in rows), rows)
    said('who')
    who = said('who', str(program.pid))
    check('who', str(holder) in who.stdout)
    changed = said('set', str(program.pid), 'pool.decay=10s')
    check('set', changed.returncode == 0 and '-> 10 s' in changed.stdout)
    program.stdin.write('\n')
    program.stdin.flush()
    program.stdout.readline()
    check('trim', said('trim', str(program.pid)).returncode == 0)
    said('stats')
    exported = said('export', '--prometheus')
    check('export', f'pid="{program.pid}"' in exported.stdout)
    program.stdin.write('\n')
    program.stdin.flush()
    check('ends', program.wait(SECONDS) == 0, program.returncode)


def python(arguments, code, *words, **variables):
    """A Python program under `gpushim ARGUMENTS`, without PyTorch's own cache."""
    environment = dict(os.environ, PYTORCH_NO_CUDA_MEMORY_CACHING='1', **variables)
    done = subprocess.run([gpushim, *arguments, '--', sys.executable, '-c', code, *words],
                          env=environment, capture_output=True, text=True, timeout=SECONDS)
    print(f'$ gpushim {" ".join(arguments)}  # {done.returncode}\n{done.stdout}{done.stderr}')
    return done


def record(folder):
    """A recording of PyTorch, what it comes to, and as others read it."""
    trace = f'{folder}/trace'
    check('record', python(['record', '--output', trace, '--record-stacks', '12'], RECORDED).returncode == 0)
    text = said('report', trace)
    check('report', text.returncode == 0 and 'held at the peak' in text.stdout)
    report = json.loads(said('report', trace, '--json').stdout)
    peak = max(gpu['live_peak_bytes'] for gpu in report['devices'])
    check('report-peak', 700 * MIB <= peak < 800 * MIB, peak)
    files = {name: f'{folder}/{name}' for name in ('html', 'memory-viz')}
    for name, path in files.items():
        check(f'report-{name}', said('report', trace, f'--{name}', path).returncode == 0 and
              os.path.getsize(path) > 1000)
    read = subprocess.run([sys.executable, '-c', VIZ, files['memory-viz']], capture_output=True,
                          text=True, timeout=SECONDS)
    print(read.stdout, read.stderr)
    check('memory-viz-read', read.returncode == 0)


def refused(folder):
    """Beyond a limit, and beyond what the GPU has."""
    report = f'{folder}/refused'
    limit = 4096 * MIB
    done = python(['run', '-o', 'pool.limit=4GiB', '-o', f'pool.oom_report={report}'], REFUSED, '5000')
    lines = done.stdout.splitlines()
    words = [int(word) for word in lines[0].split()] if lines else [0, 0, 0]
    check('limit-told', words[1] == limit and words[2] == limit and words[0] <= limit, words)
    check('limit-refused', done.returncode == 0 and 'refused' in done.stdout, done.stdout)
    check('limit-said', 'pool.limit' in done.stderr, done.stderr)
    with open(report, encoding='utf-8') as file:
        rows = [json.loads(line) for line in file]
    print(json.dumps(rows[-1], indent=1) if rows else 'no rows')
    check('limit-report', len(rows) >= 1)
    done = python(['run'], REFUSED, str(1 << 20))
    check('full-refused', done.returncode == 0 and 'refused' in done.stdout, done.stdout)
    check('full-said', 'MiB' in done.stderr or 'GiB' in done.stderr, done.stderr)


main()
with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
    record(scratch)
    refused(scratch)
sys.exit(wrong != 0)
