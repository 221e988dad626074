"""Programs that take memory of a software device as they are told, with the library or without. Faults are
collected here.

The test's arguments begin with TAKE SHIM LIBCUDA, and may go on with NVML. TAKE is a puppet (tests/puppet.c) that is
linked with the driver, and with NVML, so that its direct calls meet what is exported before those.

    alloc|async|pitch|managed|create BYTES   result
    thread|handler BYTES                     result of alloc in a thread whose stack is the smallest that there is (16
    KiB), in a
                                             signal's handler on one of 8 KiB
    refuse TIMES BYTES                       how many of so many allocations failed
    free N                                   result, of the N-th block that there is
    info | info32                            result, free, total
    total | total32                          result and total: of a direct call, of one that was looked up, and of one
    by
                                             cuGetProcAddress
    where SYMBOL | nvml_where SYMBOL         the file whose function a look-up of it gives
    nvml [N] | nvml_v2 | nvml_direct         result, total, free, used, of the N-th device or the first: of functions
    that were
                                             looked up, and of a direct call
    nvml_reserved                            result, and what nvml_v2 has as the driver's own
"""
import os
import re
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), os.pardir))
from faults import await_that, check, end_with_faults  # as others take them from here
from puppet import BROKER as LIBCUDA
from puppet import ERRNO, OUT, OUT4, SHIM, Out, Puppet

MIB = 1 << 20
OUT_OF_MEMORY = 2
PROP = struct.pack('4i16x', 1, 0, 1, 0)

folder = tempfile.TemporaryDirectory(prefix='gpushim-oom-', ignore_cleanup_errors=True)
PLACE = folder.name


class Taker(Puppet):
    """One process. Its log is `log`, where options do not say another. With an argument it does not begin with CUDA:
    only NVML may be asked."""
    count = 0

    def __init__(self, *arguments, library=True, memory='256M', **options):
        Taker.count += 1
        self.log, self.blocks, self.has_context = os.path.join(PLACE, f'log-{Taker.count}'), [], not arguments
        others = {name: None for name in os.environ if name.startswith(('GPUSHIM_', 'SOFTCUDA_', 'LD_', 'NVML_'))}
        super().__init__(begin=not arguments, **others | {
            'LD_PRELOAD': SHIM if library else None, 'LD_LIBRARY_PATH': os.path.dirname(LIBCUDA),
            'SOFTCUDA_MEMORY': memory,
            'GPUSHIM_SHARE_DIR': os.path.join(PLACE, 'run'), 'GPUSHIM_LOG_TARGET': self.log,
            'GPUSHIM_DEBUG_RECLAIM_FROM_PEERS': 'off'} | options)

    def take(self, name, *arguments):
        result, outs = self.call(name, *arguments)
        check(name != 'cuMemAlloc' or self.errno == ERRNO, 'it leaves errno alone')
        if result == 0 and name != 'cuMemCreate':
            self.blocks.append(outs[0] if isinstance(outs, list) else outs)
        return [result]

    def take_small(self, size, in_thread):
        result, block = self.call('alloc_on_small_stack', OUT, size, in_thread)
        self.blocks += [block] if result == 0 else []
        return [result]

    def look_up(self, symbol, library='libcuda.so.1'):
        found = self.pointer('dlsym', self.pointer('dlopen', library, 2), symbol)
        check(found, f'there is {symbol}')
        return hex(found)

    def file_of(self, symbol, library='libcuda.so.1'):
        name = int.from_bytes(self.call('dladdr', int(self.look_up(symbol, library), 16), Out(32))[1][:8], 'little')
        return self.call('strncpy', Out(512), name, 511)[1].partition(b'\0')[0].decode()

    def free(self, number):
        return [self.result('cuMemFree', self.blocks.pop(number)) if number < len(self.blocks) else 1]

    def totals(self):
        by_address = self.cuGetProcAddress_v2('cuDeviceTotalMem', OUT, 3020, 0, OUT)[0]
        calls = 'cuDeviceTotalMem_v2', self.look_up('cuDeviceTotalMem_v2'), hex(by_address)
        answers = [self.call(call, OUT, 0) for call in calls]
        return [max(result for result, _ in answers), *(total for _, total in answers)]

    def flat(self, name, *arguments):
        result, outs = self.call(name, *arguments)
        return [result, *(outs if isinstance(outs, list) else [outs])]

    def nvml_device(self, number):
        """The first one's also before anything of CUDA is called."""
        uuid = bytes(16)
        if self.has_context:
            result, found = self.call('cuDeviceGetUuid', Out(16), number)
            uuid = found if result == 0 else uuid
        digits = uuid.hex()
        name = 'GPU-' + '-'.join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        check(self.result('nvmlInit_v2') == 0, 'NVML begins')
        result, device = self.call('nvmlDeviceGetHandleByUUID', name, OUT)
        check(result == 0, f'NVML has {name}')
        return device

    def nvml(self, number=0, direct=False):
        name = 'nvmlDeviceGetMemoryInfo'
        result, memory = self.call('nvml_direct' if direct else self.look_up(name, 'libnvidia-ml.so.1'),
                                   self.nvml_device(number), Out(24))
        return [result, *struct.unpack('3Q', memory)]

    def nvml_v2(self, *fields):
        memory = Out(struct.pack('I36x', 40 | 2 << 24))
        result, memory = self.call(self.look_up('nvmlDeviceGetMemoryInfo_v2', 'libnvidia-ml.so.1'), self.nvml_device(0),
                                   memory)
        memory = struct.unpack('I4x4Q', memory)
        return [result, *(memory[field] for field in fields)]

    def numbers(self, line):
        how, *words = line.split()
        words = [int(word) for word in words]
        size = words[-1] if words else 0
        return {'alloc': lambda: self.take('cuMemAlloc', OUT, size),
                'async': lambda: self.take('cuMemAllocAsync', OUT, size, 0),
                'managed': lambda: self.take('cuMemAllocManaged', OUT, size, 1),
                'pitch': lambda: self.take('cuMemAllocPitch_v2', OUT, OUT, 1024, size // 1024, 4),
                'create': lambda: self.take('cuMemCreate', OUT, size, PROP, 0),
                'thread': lambda: self.take_small(size, 1), 'handler': lambda: self.take_small(size, 0),
                'refuse': lambda: [sum(self.take('cuMemAlloc', OUT, size) == [OUT_OF_MEMORY] for _ in range(words[0]))],
                'free': lambda: self.free(size),
                'info': lambda: self.flat('cuMemGetInfo_v2', OUT, OUT),
                'info32': lambda: self.flat(self.look_up('cuMemGetInfo'), OUT4, OUT4),
                'total': self.totals,
                'total32': lambda: self.flat(self.look_up('cuDeviceTotalMem'), OUT4, 0),
                'nvml': lambda: self.nvml(size), 'nvml_direct': lambda: self.nvml(direct=True),
                'nvml_v2': lambda: self.nvml_v2(1, 3, 4), 'nvml_reserved': lambda: self.nvml_v2(2)}[how]()

    def ask(self, line):
        how, symbol = line.split()
        return self.file_of(symbol, 'libnvidia-ml.so.1' if how == 'nvml_where' else 'libcuda.so.1')

    def must(self, line):
        answer = self.numbers(line)
        if answer[0] != 0:
            sys.exit(f'{line} gave {answer[0]}: {self.said()}')
        return answer[1:]

    def refused(self, line):
        answer = self.numbers(line)[0]
        check(answer == OUT_OF_MEMORY, f'{line} gave {answer}')

    def said(self):
        """The warnings, each a line."""
        try:
            with open(self.log, encoding='ascii') as text:
                return [line.rstrip('\n') for line in text if ': warning: ' in line]
        except FileNotFoundError:
            return []

    def expect(self, pattern):
        said = self.said()
        check(any(re.search(pattern, line) for line in said), f'no line has {pattern!r}: {said}')
