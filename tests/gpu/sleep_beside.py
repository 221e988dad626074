"""A PyTorch process sleeps and wakes by command, as seen by others; and torch_memory_saver with as much memory.

    sleep_beside.py SHIM GPUSHIM [--gib 8,60] [--rounds 3]

For each size: how long `gpushim sleep` takes; how long another process, which has a context already, then takes to
allocate as much; how long it is from `gpushim wake` to the end of the program's next step; and what stays on the GPU.
torch_memory_saver, where Python has it, keeps the contents on the host as well; it moves what its user marks, in one
process that does nothing else meanwhile. (The driver's checkpoint is in sleep.py.)
"""
import argparse
import ctypes
import os
import subprocess
import sys
import time

from driver import Driver

GIB = 1 << 30


def ready(words='ready'):
    print(words, flush=True)


# ---- Processes -----------------------------------------------------------------------------------


def program(size):
    """A model that is trained, beside memory that is only kept."""
    import torch

    torch.manual_seed(1)
    kept = [torch.full((GIB // 4,), number, dtype=torch.int32, device='cuda') for number in range(size // GIB)]
    model = torch.nn.Sequential(torch.nn.Linear(2048, 8192), torch.nn.GELU(), torch.nn.Linear(8192, 2048)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)

    def step():
        x = torch.randn(256, 2048, device='cuda')
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    step()
    ready()
    for line in sys.stdin:
        if line.strip() == 'step':
            ready(f'stepped {step():.6f}')
        else:
            ready('right' if all(int(block.min()) == int(block.max()) == number for number, block in enumerate(kept))
                  else 'WRONG')


def taker(size):
    driver, block = Driver(), ctypes.c_uint64()
    ready()
    for _ in sys.stdin:
        while driver.call('cuMemAlloc_v2', ctypes.byref(block), size) != 0:
            time.sleep(0.005)
        ready('has it')
        driver.free(block)


def saver(size, rounds):
    import torch
    from torch_memory_saver import torch_memory_saver as saver_of

    saver_of.hook_mode = 'torch'
    with saver_of.region(enable_cpu_backup=True):
        kept = torch.full((size // 4,), 7, dtype=torch.int32, device='cuda')
    torch.cuda.synchronize()
    for number in range(rounds):
        began = time.monotonic()
        saver_of.pause()
        paused = time.monotonic()
        saver_of.resume()
        torch.cuda.synchronize()
        end = time.monotonic()
        right = int(kept.min()) == int(kept.max()) == 7
        print(f'torch_memory_saver {size >> 30} GiB round {number + 1}: out {rate(size, paused - began)}; '
              f'back {rate(size, end - paused)}; contents {"right" if right else "WRONG"}', flush=True)
    os._exit(0)  # its allocator ends the process with an error when the interpreter frees the pool


# ---- Measuring -----------------------------------------------------------------------------------


def rate(size, seconds):
    return f'{seconds * 1000:.0f} ms, {size / seconds / 1e9:.1f} GB/s'


class Child:
    def __init__(self, role, size, environment):
        self.process = subprocess.Popen([sys.executable, __file__, role, str(size)], env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.hear()

    def tell(self, line):
        self.process.stdin.write(line + '\n')
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline().strip()
        if not line:
            sys.exit('a process has ended')
        return line

    def ask(self, line):
        self.tell(line)
        return self.hear()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def used():
    import pynvml

    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0), version=pynvml.nvmlMemory_v2).used >> 20


def by_command(options, size, plain):
    nothing = used()
    other = Child('taker', size, plain)
    before = used()
    one = Child('program', size, {**plain, 'LD_PRELOAD': options.shim})

    def order(what):
        done = subprocess.run([options.gpushim, what, str(one.process.pid)], env=plain, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f'gpushim {what}: {done.stdout}')
    one.ask('step')
    print(f'a context takes {before - nothing} MiB; the program has {used() - before} MiB', flush=True)
    for number in range(options.rounds):
        began = time.monotonic()
        order('sleep')
        asleep = time.monotonic()
        left = used() - before
        looked = time.monotonic()
        other.ask('allocate')
        had = time.monotonic()
        time.sleep(0.1)  # until it is free again
        one.tell('step')
        time.sleep(0.05)  # which waits at the gate
        woken = time.monotonic()
        order('wake')
        awake = time.monotonic()
        one.hear()
        stepped = time.monotonic()
        right = one.ask('look')
        print(f'gpushim {size >> 30} GiB round {number + 1}: sleep {rate(size, asleep - began)}; {left} MiB are left; '
              'another has as much '
              f'{(had - looked) * 1000:.0f} ms after that; wake {rate(size, awake - woken)}; to the end of the next '
              'step '
              f'{(stepped - woken) * 1000:.0f} ms; contents {right}', flush=True)
        if right != 'right':
            sys.exit(1)
    one.end()
    other.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('shim', type=os.path.abspath)
    parser.add_argument('gpushim', type=os.path.abspath)
    parser.add_argument('--gib', default='8,60')
    parser.add_argument('--rounds', type=int, default=3)
    options = parser.parse_args()
    plain = {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}
    for gib in options.gib.split(','):
        by_command(options, int(gib) * GIB, plain)
    size = int(options.gib.split(',')[0]) * GIB
    done = subprocess.run([sys.executable, __file__, 'saver', str(size), str(options.rounds)], env=plain,
                          stderr=subprocess.PIPE,
                          text=True, check=False)
    if done.returncode != 0:
        print(f'torch_memory_saver: not measured: {done.stderr.strip()[-100:]}')


ROLES = {'program': program, 'taker': taker, 'saver': saver}
if sys.argv[1:2] and sys.argv[1] in ROLES:
    ROLES[sys.argv[1]](*map(int, sys.argv[2:]))
else:
    main()
