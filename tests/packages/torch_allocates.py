"""gpushim.torch, with a stand-in for PyTorch (stand_in/torch) on the software driver: who allocates, by which stream a
free goes, what graphs keep, what is said of a full GPU, and a tensor that goes to another process.

    torch_allocates.py GPUSHIM SHIM LIBCUDA PACKAGE LIBC10
"""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'command'))
import holder  # pylint: disable=wrong-import-position
import faults  # pylint: disable=wrong-import-position
from holder import MIB, Holder, check, end_with_faults, is_true  # pylint: disable=wrong-import-position

PACKAGE, LIBC10 = sys.argv[4:6]
STAND_IN = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'stand_in')
BEGINS = '''
import gc, pickle, torch, gpushim.torch
from multiprocessing.reduction import ForkingPickler
gpushim.torch.use()
current = torch._State.current
def live():
    return gpushim.stats()['devices'][0]['live']
def read_word(address):
    there = ctypes.c_uint32()
    assert cuda.cuMemcpyDtoH_v2(ctypes.byref(there), ctypes.c_uint64(address), ctypes.c_size_t(4)) == 0
    return there.value
'''
GRAPHS = '''
graphs, stream, graph = torch.Id(7, 8), ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
def capture():
    current.functions['set_begin_allocate_to_pool'](0, graphs, None)
    assert cuda.cuStreamBeginCapture_v2(stream, 0) == 0
    made = current.malloc(1 << 20, 0, stream)
    current.raw_delete(made)
    assert cuda.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0
    current.functions['set_end_allocate_to_pool_fn'](0, graphs)
    return made
inner = capture()
'''
PROGRAM = 'import sys, torch; print(torch._State.current is not None, __name__, sys.argv)'


def prove_use(one):
    one.run(BEGINS + 'before = live(); tensor = torch.empty(1 << 18)')
    is_true(one, f'live() - before == {MIB}', 'a tensor is memory of the library')
    is_true(one, "torch._C._cuda_memoryStats(0)['allocated_bytes']['all'] == {'current': live(), "
                 "'peak': gpushim.stats()['devices'][0]['live_peak']}", "PyTorch's figures")
    is_true(one, "torch._C._cuda_memoryStats(9)['reserved_bytes']['all']['current'] == 0", 'of a GPU that is not used')
    one.run('del tensor; gc.collect()')
    is_true(one, 'live() == before', 'until it is freed')
    is_true(one, 'gpushim.torch.pool().allocator is current', 'a pool is of the same functions')
    said = one.run('try:\n    gpushim.torch.use()\nexcept RuntimeError as error:\n    print(error)')
    check("Can't swap" in said, f'twice: {said}')
    one.run('second = current.malloc(4096); current.functions["set_record_stream_fn"](second, None); '
            'current.raw_delete(second)')
    is_true(one, 'live() == before', 'what a stream was recorded of')


def prove_graphs(one):
    one.run(GRAPHS)
    is_true(one, f'live() - before == {MIB}', 'a graph keeps what it allocates')
    is_true(one, 'capture() == inner', 'for its next capture')
    one.run("for _ in range(2): current.functions['set_release_pool'](0, graphs)")
    is_true(one, 'live() == before', 'until it goes')


def prove_full(one):
    is_true(one, 'current.malloc(1 << 44) is None', 'no GPU has so much')
    one.run(f'c10 = ctypes.CDLL({LIBC10!r}); c10.c10_said.restype = ctypes.c_char_p')
    is_true(one, "c10.c10_said() == b'CUDA out of memory. Tried to allocate 17592186044416 bytes on GPU 0.'",
            'what is raised')


def prove_sending(one, other):
    one.run('''
tensor = torch.Parameter(torch.empty(1024), requires_grad=False)
cuda.cuMemsetD32_v2(ctypes.c_uint64(tensor.storage.address), 77, ctypes.c_size_t(1024))
cuda.cuCtxSynchronize()  # a fill is only submitted when it returns, and the stand-in's stream waits for nothing
part = torch.Tensor(tensor.storage, 8, (4, 2), (2, 1), True)
''')
    sent = one.run('print(bytes(ForkingPickler.dumps([tensor, part])).hex())')
    is_true(one, 'torch.cuda.awaited == [0, 0]', 'who receives it finds the work done')
    other.run(BEGINS.replace('gpushim.torch.use()\n', '').replace('current = torch._State.current\n', '') +
       f"got, part = pickle.loads(bytes.fromhex('{sent}'))")
    is_true(other, 'type(got) is torch.Parameter and not got.requires_grad and got.shape == (1024,)', 'a parameter')
    is_true(other, '(type(part), part.offset, part.shape, part.strides, part.requires_grad) == '
                   '(torch.Tensor, 8, (4, 2), (2, 1), True)', 'a part of it')
    is_true(other, 'read_word(got.storage.address) == 77 == read_word(part.storage.address + 32)', 'is the same memory')
    one.run('del tensor, part; gc.collect()')
    is_true(other, 'read_word(got.storage.address) == 77', 'as long as it is used there')
    other.run('del got, part; gc.collect()')
    said = one.run('inner = torch.empty(8); inner.requires_grad, inner.is_leaf = True, False\n'
                   'try:\n    ForkingPickler.dumps(inner)\nexcept RuntimeError as error:\n    print(error)')
    check('PyTorch has to pickle' in said, f'what has a history: {said}')


def prove_program(folder, path):
    script = os.path.join(folder, 'script.py')
    with open(script, 'w', encoding='utf-8') as file:
        file.write(PROGRAM)
    environment = {**holder.clean(folder), 'PYTHONPATH': f'{path}:{STAND_IN}:{folder}', 'LD_PRELOAD': holder.SHIM}
    for words in ((script,), ('-m', 'script')):
        ran = subprocess.run([sys.executable, '-m', 'gpushim.torch', *words, 'a', '-b'], env=environment,
                             capture_output=True,
                             text=True, check=False)
        check(ran.returncode == 0 and ran.stdout.startswith("True __main__ ['") and
              ran.stdout.endswith("', 'a', '-b']\n"), f'{words}: {ran}')
    for words, settings, said in (((), {}, 'usage:'),
                                  ((script,), {'LD_PRELOAD': ''}, 'gpushim.NotLoaded: libgpushim is not')):
        ran = subprocess.run([sys.executable, '-m', 'gpushim.torch', *words], env={**environment, **settings},
                             capture_output=True, text=True, check=False)
        check(ran.returncode == 1 and said in ran.stderr, f'{words}: {ran}')


with faults.scratch('gpushim-torch-') as scratch:
    shutil.copytree(os.path.join(PACKAGE, 'gpushim'), os.path.join(scratch, 'gpushim'))
    shutil.copytree(STAND_IN, os.path.join(scratch, 'stand_in'))
    STAND_IN = os.path.join(scratch, 'stand_in')
    os.mkdir(os.path.join(STAND_IN, 'torch', 'lib'))
    LIBC10 = shutil.copy(LIBC10, os.path.join(STAND_IN, 'torch', 'lib', 'libc10.so'))
    with open(os.path.join(scratch, 'gpushim', '_built.py'), 'w', encoding='utf-8') as built:
        built.write("VERSION = '0'\n")
    place = os.path.join(scratch, 'share')
    os.mkdir(place, 0o700)
    sender, receiver = (Holder(place, PYTHONPATH=f'{scratch}:{STAND_IN}') for _ in range(2))
    for each in (sender, receiver):
        each.do(f'alloc {MIB}')
    prove_use(sender)
    prove_graphs(sender)
    prove_full(sender)
    prove_sending(sender, receiver)
    prove_program(place, scratch)
    sender.end()
    receiver.end()
end_with_faults()
