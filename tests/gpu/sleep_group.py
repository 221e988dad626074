"""Processes that share sleep and wake together on a GPU, by the command.

    sleep_group.py LIBRARY GPUSHIM [--gib 4] [--consumers 2] [--rounds 3] [producers] [ranks] [ranks-legacy]

LIBRARY is libgpushim.so, GPUSHIM the command. `producers`: one process shares a tensor by torch.multiprocessing, the others have it
open; all sleep in one command, in turns named in either order, and wake; then the contents are looked at by all, and what one writes the others
read. `ranks`: two processes with NCCL on two GPUs, which add up tensors before and after; `ranks-legacy` has
NCCL_CUMEM_ENABLE=0, so that NCCL shares what the library allocates. Each round says how long the command took, what it says of each
process, and how much of GPU 0 is free while they sleep. The exit status is 1 where contents are wrong or a command fails, and 77 without
PyTorch or a GPU.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import time

GIB = 1 << 30
FREE = 'import ctypes as c; d = c.CDLL("libcuda.so.1"); x = c.c_void_p(); f, t = c.c_size_t(), c.c_size_t(); ' \
       'assert not d.cuInit(0) and not d.cuDevicePrimaryCtxRetain(c.byref(x), 0) and not d.cuCtxSetCurrent(x); ' \
       'd.cuMemGetInfo_v2(c.byref(f), c.byref(t)); print(f.value >> 20)'


def tell(line):
    print(line, flush=True)


def consume(ready, orders, answers):
    """In a process of its own: has the tensor open, looks at it and writes to it when it is told."""
    import torch
    tensor = ready.get()
    own = torch.full((1 << 20,), 5, device='cuda', dtype=torch.int32)
    answers.put(os.getpid())
    for order, value in iter(orders.get, None):
        if order == 'write':
            tensor.fill_(value)
            torch.cuda.synchronize()
        answers.put(bool((tensor == value).all()) and bool((own == 5).all()))


def produce(size, consumers):
    """In a child: answers each line with whether all processes see what it says."""
    import torch
    import torch.multiprocessing
    context = torch.multiprocessing.get_context('spawn')
    ready, answers, orders = context.Queue(), context.Queue(), [context.Queue() for _ in range(consumers)]
    tensor = torch.full((size // 4,), 1, device='cuda', dtype=torch.int32)
    ones = [context.Process(target=consume, args=(ready, order, answers), daemon=True) for order in orders]
    for one in ones:
        one.start()
        ready.put(tensor)
    tell('pids ' + ' '.join(map(str, [os.getpid(), *(answers.get() for _ in ones)])))
    value, right = 1, True
    for _ in sys.stdin:
        right = bool((tensor == value).all())
        for order in orders:
            order.put(('read', value))
            right &= answers.get()
        value += 1
        tensor.fill_(value)
        torch.cuda.synchronize()
        for order in orders:
            order.put(('read', value))
            right &= answers.get()
        value += 1
        orders[0].put(('write', value))
        right &= answers.get() and bool((tensor == value).all())
        tell('right' if right else 'WRONG')
    for order in orders:
        order.put(None)


def rank(number, size, place):
    """In a child, one of two: adds up with the other one."""
    import torch
    import torch.distributed
    torch.cuda.set_device(number)
    torch.distributed.init_process_group('nccl', init_method='file://' + place, rank=number, world_size=2)
    weights = torch.full((size // 4,), number + 1, device='cuda', dtype=torch.int32)

    def is_right():
        total = torch.arange(1 << 22, device='cuda', dtype=torch.int32) * (number + 1)
        torch.distributed.all_reduce(total)
        torch.cuda.synchronize()
        return bool((total == torch.arange(1 << 22, device='cuda', dtype=torch.int32) * 3).all()) and bool((weights == number + 1).all())

    first = is_right()
    tell(f'pids {os.getpid()}')
    for _ in sys.stdin:
        tell('right' if first and is_right() else 'WRONG')
    os._exit(0)


class Group:
    def __init__(self, children, options, folder):
        self.children, self.options, self.folder = children, options, folder
        self.pids = [pid for child in children for pid in self.answer(child).split()[1:]]

    def answer(self, child):
        line = child.stdout.readline()
        if not line:
            sys.exit(child.wait() or 1)
        return line

    def told(self, command, pids):
        began = time.monotonic()
        run = subprocess.run([self.options.gpushim, command, *pids, '--timeout', '60s'], capture_output=True, text=True, check=False,
                             env={**os.environ, 'GPUSHIM_SHARE_DIR': self.folder})
        tell(f'  {command} in {time.monotonic() - began:.2f} s')
        for line in (run.stdout + run.stderr).splitlines():
            tell(f'    {line}')
        return run.returncode == 0

    def is_right(self):
        for child in self.children:
            child.stdin.write('look\n')
            child.stdin.flush()
        return [self.answer(child).strip() for child in self.children] == ['right'] * len(self.children)

    def go(self, name):
        well = True
        for number in range(self.options.rounds):
            pids = self.pids if number % 2 else self.pids[::-1]
            before = free()
            well &= self.told('sleep', pids)
            tell(f'  {name} round {number + 1}: {before} MiB were free, {free()} are while they sleep')
            well &= self.told('wake', pids)
            right = self.is_right()
            tell(f'{name} round {number + 1}: contents {"right" if right else "WRONG"}')
            well &= right
        for child in self.children:
            child.stdin.close()
            child.wait()
        return well


def free():
    """MiB of GPU 0, as a process without the library has it."""
    run = subprocess.run([sys.executable, '-c', FREE], capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(77)
    return int(run.stdout)


def child(options, folder, *arguments, **settings):
    environment = {**os.environ, 'LD_PRELOAD': os.path.abspath(options.library), 'GPUSHIM_SHARE_DIR': folder, **settings}
    return subprocess.Popen([sys.executable, __file__, 'child', *map(str, arguments)], env=environment, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('library')
    parser.add_argument('gpushim')
    parser.add_argument('cases', nargs='*', default=['producers', 'ranks', 'ranks-legacy'])
    parser.add_argument('--gib', type=float, default=4)
    parser.add_argument('--consumers', type=int, default=2)
    parser.add_argument('--rounds', type=int, default=3)
    options = parser.parse_intermixed_args()
    size, well = int(options.gib * GIB), True
    for case in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            if case == 'producers':
                children = [child(options, folder, 'produce', size, options.consumers)]
            else:
                settings = {'NCCL_CUMEM_ENABLE': '0'} if case == 'ranks-legacy' else {}
                children = [child(options, folder, 'rank', number, size, os.path.join(folder, 'store'), **settings) for number in range(2)]
            well &= Group(children, options, folder).go(case)
    sys.exit(0 if well else 1)


if __name__ == '__main__':
    if sys.argv[1:2] != ['child']:
        main()
    try:
        import torch as _
    except ImportError:
        sys.exit(77)
    if sys.argv[2] == 'produce':
        produce(int(sys.argv[3]), int(sys.argv[4]))
    else:
        rank(int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
