"""The software driver itself. What any driver answers the conformance suite asks of it natively; here is what it does
beyond that: memory that vanishes under work, orders from the environment, and machines of several processes.

    driver.py PUPPET SHIM BROKER vanished|orders|devices|machine
"""
import os
import random
import signal
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from puppet import (BLOCK, INVALID_VALUE, MIB, OUT, OUT4, OUT_OF_MEMORY, Out, Puppet, check, main, one_machine,
                    set_for_all)

ILLEGAL_ADDRESS = 700
ENDS_WITH = 125  # where the environment has something that cannot be understood
PINNED = struct.pack('4I16x', 1, 1, 1, 0)  # of device 0, and has descriptors
READ, READ_AND_WRITE = 1, 3


class Process(Puppet):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.pointer('load_kernels')

    def map(self):
        block = self.cuMemAddressReserve(OUT, BLOCK, 0, 0, 0)
        self.cuMemMap(block, BLOCK, 0, self.cuMemCreate(OUT, BLOCK, PINNED, 0), 0)
        self.allow(block, READ_AND_WRITE)
        return block

    def allow(self, block, flags):
        self.cuMemSetAccess(block, BLOCK, struct.pack('3I', 1, 0, flags), 1)

    def fill(self, block):
        self.pointer('launch_fill', block, 1, 0, BLOCK // 4)

    def faults(self, what):
        """For good, and in that context alone."""
        for call, *arguments in ('cuCtxSynchronize',), ('cuMemAlloc', OUT, 512), ('cuCtxSynchronize',):
            check(self.result(call, *arguments) == ILLEGAL_ADDRESS, f'{what}: {call}')
        self.set_context(self.cuDevicePrimaryCtxRetain(OUT, 1))
        self.alloc(512)


def creates(process):
    return process.result('cuMemCreate', OUT, BLOCK, PINNED, 0)


# ---- What is ordered, or asked
# ----------------------------------------------------------------------------------------


def vanished():
    one = Process()
    block = one.alloc()
    one.cuMemFree(block)
    one.fill(block)
    one.faults('freed')

    one = Process()
    block = one.map()
    one.hold(1)
    one.fill(block)
    one.cuMemUnmap(block, BLOCK)  # which does not wait
    one.hold(0)
    one.faults('unmapped')

    one = Process()
    block, target = one.map(), one.alloc()
    one.fill(block)
    one.cuCtxSynchronize()
    one.allow(block, READ)
    check(one.result('cuMemcpyHtoD', block, bytes(4), 4) == INVALID_VALUE, 'it is written')
    one.cuMemcpyDtoD(target, block, BLOCK)
    check(one.word(target) == 1, 'it is not read')
    one.fill(block)
    one.faults('for reading')

    one = Process()
    one.hold(1)
    one.fill(one.alloc())
    one.end()  # which waits for no work


def orders():
    for rules, wanted in (('cuMemCreate:3:2', [0, 0, 2, 0]), ('cuMemCreate:2+:999', [0, 999, 999, 999]),
                          ('cuMemFree:*:1;cuMemCreate:*:700', [700] * 4)):
        one = Puppet(SOFTCUDA_FAULTS=rules)
        got = [creates(one) for _ in wanted]
        check(got == wanted, f'{rules}: {got}')
    one = Puppet(SOFTCUDA_FAULTS='cuMemCreate:kill:2')
    check(creates(one) == 0, 'the first goes')
    one.tell('cuMemCreate', OUT, BLOCK, PINNED, 0)
    check(one.process.wait() == -signal.SIGKILL, 'and the second kills')
    for name, value in (('FAULTS', 'cuNoSuchCall:1:1'), ('FAULTS', 'cuMemCreate:0:1'), ('MEMORY', 'lots'),
                        ('WITHOUT', 'nonsense')):
        one = Puppet(begin=False, **{'SOFTCUDA_' + name: value})
        one.tell('cuInit', 0)
        check(one.process.wait() == ENDS_WITH, f'{name}={value} is taken')


def devices():
    """Those that are visible are chosen by their numbers, and are who they are."""
    def uuids(**settings):
        one = Puppet(begin=False, **settings)
        one.cuInit(0)
        return [one.cuDeviceGetUuid(Out(16), i) for i in range(one.cuDeviceGetCount(OUT4))]
    there = uuids(SOFTCUDA_DEVICES=3)
    check(len(set(there)) == 3, 'three of them')
    check(uuids(SOFTCUDA_DEVICES=3, CUDA_VISIBLE_DEVICES='2,0,7,1') == [there[2], there[0]], 'two of them')
    none = Puppet(begin=False, CUDA_VISIBLE_DEVICES='')
    check(none.result('cuInit', 0) == 100, 'none of them')
    check(Puppet(SOFTCUDA_MEMORY='96M').cuMemGetInfo(OUT, OUT)[1] == 96 * MIB, 'its memory')


def machine():
    """Its memory is one; who is killed, or stands still wherever it is, keeps nobody from it."""
    one_machine('96M')
    one, other = Puppet(), Puppet()
    one.alloc(64 * MIB)
    check(other.result('cuMemAlloc', OUT, 64 * MIB) == OUT_OF_MEMORY, 'it is there once')
    one.kill()
    other.cuMemFree(other.alloc(64 * MIB))
    for i in range(20):
        one = Process()
        one.tell('work', i)
        time.sleep(random.Random(i).random() / 100)
        one.stop()
        other.cuMemFree(other.alloc(16 * MIB))
        one.kill()
    check(other.cuMemGetInfo(OUT, OUT) == [96 * MIB, 96 * MIB], 'all is back')


set_for_all(LD_PRELOAD=None)
main(globals())
