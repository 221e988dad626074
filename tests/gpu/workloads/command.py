"""The command on a real GPU: PyTorch is started by `gpushim run` and shares memory with a second
process; doctor, top, stats, who, trim and export look at both.

    command.py GPUSHIM [VARIABLE=VALUE for the programs]...

Prints what each command says, then one "RESULT check outcome" line each.
"""
import json
import os
import subprocess
import sys
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
    check('doctor', doctor.returncode == 0 and 'FAIL' not in doctor.stdout)
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
    rows = json.loads(said('stats', '--json').stdout)
    mine = [row for row in rows if row['pid'] == program.pid]
    check('stats', len(mine) == 1 and mine[0].get('reserved_bytes', 0) >= 256 * MIB, rows)
    check('stats-holder', any(row['pid'] == holder for row in rows), rows)
    said('who')
    who = said('who', str(program.pid))
    check('who', str(holder) in who.stdout)
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


main()
sys.exit(wrong != 0)
