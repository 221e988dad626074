"""The Python package as it lies in the source tree, on the software driver: what one process publishes another opens,
with its type and shape, and has for as long as anything uses it; what is attached is an array, too; its structs are
those of gpushim.h.

    python.py GPUSHIM SHIM LIBCUDA PACKAGE LAYOUT
"""
import ctypes
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'command'))
import holder  # pylint: disable=wrong-import-position
import faults  # pylint: disable=wrong-import-position
import trace as trace_reader  # pylint: disable=wrong-import-position
from holder import MIB, Holder, await_that, check, end_with_faults, is_true  # pylint: disable=wrong-import-position

PACKAGE, LAYOUT = sys.argv[4:6]
# What a framework's array says of itself.
PUBLISHES = '''
import gpushim
class Tensor:
    def __init__(self, address, typestr, shape, strides=None):
        self.__cuda_array_interface__ = {'shape': shape, 'typestr': typestr, 'data': (address, False),
                                         'strides': strides, 'version': 3}
gpushim.publish('weights', Tensor(held[0].value + 4096, '<f4', (3, 5)), label='v1')
gpushim.publish('bytes', held[0].value, note=b'\\x00')
cuda.cuMemsetD8_v2(held[0], 7, ctypes.c_size_t(%d))
cuda.cuMemsetD8_v2(ctypes.c_uint64(held[0].value + 4096), 9, ctypes.c_size_t(60))
cuda.cuCtxSynchronize()  # a fill is only submitted when it returns
''' % MIB
OPENS = '''
import gc, gpushim
from gpushim import _dlpack
def copied(address, count):
    there = (ctypes.c_ubyte * count)()
    assert cuda.cuMemcpyDtoH_v2(there, ctypes.c_uint64(address), ctypes.c_size_t(count)) == 0
    return bytes(there)
'''


def raises(one, statement, error, words=''):
    said = one.run(f'''
try:
    {statement}
    print('nothing')
except Exception as error:
    print(type(error).__name__, error)
''')
    check(said.startswith(error) and words in said, f'{statement} raises {said}, not {error} {words}')


def held(folder, publisher):
    return [h for row in json.loads(holder.gpushim(folder, 'who', '--json').stdout)['rows']
            if row['pid'] == publisher.pid for h in row['holders']]


def start(folder, path):
    one = Holder(folder, PYTHONPATH=path)
    one.do(f'alloc {MIB}')
    return one


def prove_layout():
    sys.path.insert(0, scratch)
    from gpushim import _structs  # pylint: disable=import-outside-toplevel
    structs = {'memory': _structs.Memory, 'registration_counts': _structs.RegistrationCounts, 'named': _structs.Named,
               'publication': _structs.Publication, 'external': _structs.External,
               'asleep': _structs.Asleep, 'sleep_how': _structs.SleepHow}
    lines = subprocess.run([LAYOUT], capture_output=True, text=True, check=True).stdout.splitlines()
    check(len(lines) == len(structs), f'{lines}')
    for line in lines:
        name, size, *fields = line.split()
        struct = structs[name]
        check(ctypes.sizeof(struct) == int(size), f'{name} is of {size} bytes')
        for field in fields:
            field, _, at = field.partition('=')
            check(getattr(struct, field).offset == int(at), f'{name}.{field} lies at {at}')


def prove_opening(folder, publisher, importer):
    publisher.run(PUBLISHES)
    importer.run(OPENS + "memory = gpushim.open('weights'); array = memory.array()")
    is_true(importer, "(array.shape, array.dtype, array.nbytes) == ((3, 5), 'float32', 60)", 'its type and shape')
    is_true(importer, 'copied(array.address, 60) == b"\\x09" * 60', 'and what is in it')
    is_true(importer,
            "array.__cuda_array_interface__ == {'shape': (3, 5), 'typestr': '<f4', 'data': (array.address, False), "
                    "'strides': None, 'stream': None, 'version': 3}", 'by the array interface')
    is_true(importer, 'array.__dlpack_device__() == (2, 0)', 'memory of a GPU')
    found = "gpushim.lookup('weights')"
    is_true(importer, f"({found}.pid, {found}.label, {found}.array) == ({publisher.pid}, 'v1', "
                    "{'dtype': 'float32', 'shape': [3, 5]})", 'what look-up tells')
    is_true(importer, "gpushim.open('bytes').array().shape == (%d,)" % MIB, 'an address is bytes')
    is_true(publisher, "gpushim.open('weights').array().address == held[0].value + 4096", 'its own is not opened')
    raises(importer, "gpushim.open('nobody')", 'KeyError', 'nobody')
    raises(importer, "gpushim.publish('x', array)", 'OSError')
    raises(publisher, "gpushim.publish('x', Tensor(held[0].value, '<f4', (3, 5), (4, 12)))", 'ValueError', 'gaps')
    raises(publisher, "gpushim.publish('x', Tensor(held[0].value, '<f4', (3, 5), (24, 4)))", 'ValueError', 'gaps')
    raises(publisher, "gpushim.publish('', held[0].value)", 'OSError')
    raises(publisher, "gpushim.publish('x\\0y', held[0].value)", 'ValueError', 'zero')
    raises(publisher, "gpushim.publish('x', held[0].value, label='v\\0w')", 'ValueError', 'zero')
    raises(importer, "gpushim.open('weights\\0x')", 'ValueError', 'zero')
    raises(publisher, "gpushim.sleep(-1)", 'ValueError')
    raises(publisher, "gpushim.sleep(discard='kv\\0x')", 'ValueError', 'zero')
    raises(publisher, "gpushim.wake(-0.5)", 'ValueError')
    raises(importer, "memory.array('float32', (1 << 20,))", 'ValueError')
    raises(importer, "memory.array('float31')", 'TypeError', 'float31')
    raises(importer, "memory.array('bfloat16').__cuda_array_interface__", 'AttributeError', 'bfloat16')
    raises(importer, 'array.__dlpack__(copy=True)', 'BufferError')


# Takes it as a framework does: the capsule's name is another from then on, and its deleter is called later.
TAKES = '''
name = ctypes.pythonapi.PyCapsule_SetName
name.argtypes = (ctypes.py_object, ctypes.c_char_p)
used = b'used_dltensor'
capsule = array.__dlpack__()
address = _dlpack._pointer(id(capsule), b'dltensor')
managed = _dlpack._Managed.from_address(address)
tensor = managed.tensor
assert (tensor.data, tensor.device_type, tensor.device_id, tensor.ndim) == (array.address, 2, 0, 2)
assert (tensor.code, tensor.bits, tensor.lanes, tensor.shape[0], tensor.shape[1]) == (2, 32, 1, 3, 5)
assert not tensor.strides and tensor.byte_offset == 0
assert name(capsule, used) == 0
del capsule
'''


def prove_lease(folder, publisher, importer):
    """It is had as long as anything uses it, and then given back."""
    await_that(lambda: [row['pid'] for row in held(folder, publisher)] == [importer.pid], 'it has it open')
    importer.run(TAKES + 'del memory, array; gc.collect()')
    publisher.do('free 0')
    is_true(importer, "copied(tensor.data, 60) == b'\\x09' * 60", 'a framework that took it keeps it')
    check([row['freed_blocks'] for row in held(folder, publisher)] == [1],
          f'though it is freed: {held(folder, publisher)}')
    importer.run('ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)(address); del managed, tensor; gc.collect()')
    await_that(lambda: not any(row['blocks'] for row in held(folder, publisher)), 'it is given back when that is done')
    raises(importer, "gpushim.open('weights')", 'KeyError')


def prove_untaken(folder, publisher, importer):
    publisher.do(f'alloc {MIB}')
    publisher.run(PUBLISHES)
    importer.run("memory = gpushim.open('weights'); array = memory.array(); capsule = array.__dlpack__()")
    is_true(importer, 'len(_dlpack._given) == 1', 'a capsule keeps its array')
    importer.run('del capsule')
    is_true(importer, 'not _dlpack._given', 'which nobody took')
    importer.run('memory.close(); memory.close()')
    raises(importer, 'array.__dlpack__()', 'ValueError', 'closed')
    raises(importer, 'array.__cuda_array_interface__', 'ValueError', 'closed')
    await_that(lambda: not any(row['blocks'] for row in held(folder, publisher)), 'closed at once')
    importer.run(f'''
with gpushim.open(bytes.fromhex('{publisher.do("share 0")}'), device=0, nbytes={MIB}) as memory:
    print(copied(memory.address, 3))
    inner = memory
''')
    is_true(importer, 'inner.closed', 'a handle, in a block')
    publisher.run("gpushim.unpublish('weights')")
    raises(importer, "gpushim.lookup('weights')", 'KeyError')
    raises(publisher, "gpushim.unpublish('weights')", 'KeyError')


ATTACHES = '''
import os, threading
ended = threading.Event()
file = os.memfd_create('weights', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(file, 8192)
os.pwrite(file, b'abc', 4096)
memory = gpushim.attach(file, 8192, kind='memfd', label='a file', deleter=ended.set)
array = memory.array('uint8', (4096,), 4096)
'''

ATTACH_AT_ONCE = '''
External, met = gpushim.memory._structs.External, threading.Barrier(2)
sized, memories, ends = External.sized, [], [threading.Event(), threading.Event()]
External.sized = lambda **fields: met.wait() * 0 or sized(**fields)
def attach(ended):
    file = os.memfd_create('weights', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, 8192)
    memories.append(gpushim.attach(file, 8192, kind='memfd', deleter=ended.set))
threads = [threading.Thread(target=attach, args=(ended,)) for ended in ends]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
External.sized = sized
'''


def prove_attaching(importer):
    importer.run(ATTACHES)
    is_true(importer, "copied(array.address, 3) == b'abc'", 'a memfd is memory of CUDA')
    is_true(importer, 'array.__dlpack_device__() == (3, 0)', 'of the host')
    is_true(importer, "not __import__('importlib.util').util.find_spec('numpy') or "
                    "bytes(__import__('numpy').from_dlpack(array)[:3]) == b'abc'", 'numpy takes it')
    is_true(importer, 'not ended.is_set()', 'while it is attached')
    importer.run('del array; memory.close(); del memory; gc.collect(); ended.wait(60)')
    is_true(importer, 'ended.is_set()', 'its deleter is called at its end')
    importer.run(ATTACH_AT_ONCE)
    is_true(importer, 'len(gpushim.memory._deleters) == 2', 'two threads attach at once')
    importer.run('for each in memories: each.close()')
    is_true(importer, 'all(ended.wait(60) for ended in ends)', 'and each deleter is called')
    raises(importer, "gpushim.attach(file, 100, kind='memfd')", 'OSError')
    is_true(importer, "gpushim.stats()['devices'][0]['live'] >= 0 and gpushim.stats()['devices'][0]['uuid']", 'stats')


def prove_sleep(folder, path):
    """What bears the tag is not kept; all else is as it was."""
    one = start(folder, path)
    one.run(OPENS + "cuda.cuMemsetD8_v2(held[0], 7, ctypes.c_size_t(60)); tag = gpushim.tag('kv'); tag.__enter__()")
    one.do(f'alloc {8 * MIB}')
    one.run("tag.__exit__(None, None, None); told = gpushim.sleep(timeout=30, discard='kv')")
    is_true(one, f"told['since_ns'] > 0 and told['away'] >= told['copied'] + {8 * MIB} and told['copied'] >= {MIB}",
            'it sleeps')
    raises(one, 'gpushim.sleep()', 'BlockingIOError', 'asleep already')
    is_true(one, "gpushim.wake(timeout=30)['since_ns'] == 0", 'it wakes')
    raises(one, 'gpushim.wake()', 'BlockingIOError', 'awake already')
    is_true(one, 'copied(held[0].value, 60) == b"\\x07" * 60', 'and what is in it')
    one.end()


TAGS = '''
import gpushim
def alloc():
    at = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(4096)) == 0
alloc()
with gpushim.tag('outer'):
    alloc()
    with gpushim.tag('inner'):
        alloc()
    alloc()
    for wrong in 'x' * 64, 'out\\0er':
        try:
            with gpushim.tag(wrong):
                alloc()
        except ValueError as error:
            print(error)
    try:
        with gpushim.tag('raises'):
            raise KeyError
    except KeyError:
        alloc()
alloc()
'''


def prove_tags(folder, path):
    """Labels are of the block that they are for, whatever ends it."""
    recording = os.path.join(folder, 'tags.trace')
    environment = {**holder.clean(folder), 'PYTHONPATH': path, 'LD_PRELOAD': holder.SHIM, 'GPUSHIM_RECORD': recording,
                   'LD_LIBRARY_PATH': os.path.dirname(holder.LIBCUDA)}
    ran = subprocess.run([sys.executable, '-c', holder.HOLDER.partition('held, opened')[0] + TAGS], env=environment,
                         capture_output=True, text=True, check=False)
    check(ran.returncode == 0 and ran.stdout.count('is longer than 63 bytes') == 2, f'tags: {ran}')
    trace = trace_reader.Trace(recording)
    labels = [''.join(name for name, _, _ in trace.named(event)) for event in trace.of(trace_reader.ALLOC)]
    check(labels == ['', 'outer', 'inner', 'outer', 'outer', ''] and not trace.wrong,
          f'labels: {labels}, {trace.wrong}')


def prove_not_loaded(path):
    ran = subprocess.run([sys.executable, '-c', "import gpushim\nwith gpushim.tag('x' * 64): print(1)"],
                         capture_output=True,
                         text=True, env={**holder.clean(path), 'PYTHONPATH': path}, check=False)
    check(ran.stdout == '1\n', f'a label without the library: {ran}')
    ran = subprocess.run([sys.executable, '-c', "import gpushim; gpushim.publish('x', 1)"], capture_output=True,
                         text=True,
                         env={**holder.clean(path), 'PYTHONPATH': path}, check=False)
    check('gpushim.NotLoaded: libgpushim is not in this process' in ran.stderr, f'without the library: {ran}')


with faults.scratch('gpushim-python-') as scratch:
    shutil.copytree(os.path.join(PACKAGE, 'gpushim'), os.path.join(scratch, 'gpushim'))
    with open(os.path.join(scratch, 'gpushim', '_built.py'), 'w', encoding='utf-8') as built:
        built.write("VERSION = '0'\n")
    place = os.path.join(scratch, 'share')
    os.mkdir(place, 0o700)
    prove_layout()
    prove_not_loaded(scratch)
    prove_tags(place, scratch)
    prove_sleep(place, scratch)
    one, other = start(place, scratch), start(place, scratch)
    prove_opening(place, one, other)
    prove_lease(place, one, other)
    prove_untaken(place, one, other)
    prove_attaching(other)
    one.end()
    other.end()
end_with_faults()
