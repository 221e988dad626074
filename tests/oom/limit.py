"""A process that pool.limit bounds gets no more than that, is told of no more, and says why.

    limit.py TAKE SHIM LIBCUDA NVML

NVML is a stand-in, which says that 256 MiB of 1 GiB are used.
"""
import os
import subprocess
import sys

from taker import LIBCUDA, MIB, SHIM, Taker, check, end_with_faults

NVML = sys.argv[4]


def what_is_beyond_is_refused():
    taker = Taker(GPUSHIM_POOL_LIMIT='64M')
    for _ in range(4):
        taker.must(f'alloc {16 * MIB}')
    for how in 'alloc', 'async', 'pitch':
        taker.refused(f'{how} {2 * MIB}')
    taker.expect(r'2 MiB more would be beyond pool\.limit \(64 MiB\) on device 0; this process has '
                 r'64 MiB: 64 live, 0 cached, .*what would help: raise pool\.limit, or free')
    taker.must('free 0')
    taker.must(f'alloc {16 * MIB}')
    taker.refused('alloc 512')
    taker.end()


def what_is_idle_is_given_back_first():
    """Of other sizes, none of which fits into what lies there."""
    taker = Taker(GPUSHIM_POOL_LIMIT='64M', GPUSHIM_POOL_DECAY='10 min')
    for _ in range(7):
        taker.must(f'alloc {8 * MIB}')
    for _ in range(7):
        taker.must('free 0')
    taker.must(f'alloc {60 * MIB}')
    check(taker.said() == [], f'nothing was refused: {taker.said()}')
    taker.refused(f'alloc {6 * MIB}')
    taker.end()


def what_no_limit_allows_is_refused():
    taker = Taker(GPUSHIM_POOL_LIMIT='64M')
    taker.refused(f'alloc {65 * MIB}')
    taker.expect(r'65 MiB more would be beyond pool\.limit \(64 MiB\)')
    taker.end()


def it_need_not_be_whole_pages():
    taker = Taker(GPUSHIM_POOL_LIMIT='65M')
    taker.must(f'alloc {62 * MIB}')
    taker.refused(f'alloc {3 * MIB}')
    taker.expect(r'3 MiB more would be beyond pool\.limit \(65 MiB\)')
    taker.must(f'alloc {2 * MIB}')
    taker.end()


def it_may_be_a_share_of_the_device():
    taker = Taker(GPUSHIM_POOL_LIMIT='25 %')
    check(taker.must('info')[1] == 64 * MIB, 'a quarter of 256 MiB')
    taker.must(f'alloc {62 * MIB}')
    taker.refused(f'alloc {4 * MIB}')
    taker.must(f'alloc {2 * MIB}')
    taker.end()


def memory_that_is_not_the_pools_is_not_bounded():
    taker = Taker(GPUSHIM_POOL_LIMIT='64M')
    taker.must(f'create {96 * MIB}')
    taker.must(f'managed {32 * MIB}')
    taker.must(f'alloc {64 * MIB}')
    taker.end()


def a_full_device_is_no_limit():
    taker = Taker(GPUSHIM_POOL_LIMIT='128M', GPUSHIM_POOL_DECAY='10 min')
    taker.must(f'create {192 * MIB}')
    taker.refused(f'alloc {96 * MIB}')
    taker.expect(r'no 96 MiB are left on device 0; ')
    taker.end()


def it_is_told_of_no_more_than_that():
    taker = Taker(GPUSHIM_POOL_LIMIT='64M', GPUSHIM_POOL_DECAY='10 min')
    check(taker.must('info') == [64 * MIB] * 2, f'at first: {taker.must("info")}')
    check(taker.must('total') == [64 * MIB] * 3, f'of the device: {taker.must("total")}')
    check(taker.must('info32') == [64 * MIB] * 2, f'in 32 bits: {taker.must("info32")}')
    check(taker.must('total32') == [64 * MIB], f'in 32 bits: {taker.must("total32")}')
    taker.must(f'alloc {24 * MIB}')
    taker.must(f'alloc {8 * MIB}')
    check(taker.must('info') == [32 * MIB, 64 * MIB], f'with 32: {taker.must("info")}')
    taker.must('free 0')
    check(taker.must('info') == [56 * MIB, 64 * MIB], f'with 8: {taker.must("info")}')
    taker.must(f'create {240 * MIB}')
    left = taker.must('info')[0]
    check(left <= 16 * MIB, f'what the device has left, if that is less: {left}')
    taker.end()


def a_limit_beyond_the_device_changes_no_figure():
    bounded, plain = Taker(GPUSHIM_POOL_LIMIT='1T'), Taker()
    for line in 'info', 'total', 'info32', 'total32':
        check(bounded.must(line) == plain.must(line), f'{line}: {bounded.must(line)}')
    bounded.end()
    plain.end()


def what_is_beyond_32_bits_is_not_cut():
    """Of 6 GiB, 5 are this process's: the old forms tell the most that fits, as without a limit."""
    bounded, plain = Taker(GPUSHIM_POOL_LIMIT='5G', memory='6G'), Taker(memory='6G')
    check(bounded.must('info') == [5 << 30, 5 << 30], f'{bounded.must("info")}')
    for line in 'info32', 'total32':
        check(bounded.must(line) == plain.must(line), f'{line}: {bounded.must(line)}, not {plain.must(line)}')
    bounded.end()
    plain.end()


def where_it_is_off_nothing_more_is_hooked():
    names = 'cuDeviceTotalMem_v2', 'cuDeviceTotalMem', 'cuMemGetInfo'
    off, on = Taker(), Taker(GPUSHIM_POOL_LIMIT='64M')
    native = Taker(library=False)
    for name in names:
        check(os.path.realpath(off.ask(f'where {name}')) == os.path.realpath(LIBCUDA),
              f'{name} without a limit is of {off.ask(f"where {name}")}')
        check(os.path.realpath(on.ask(f'where {name}')) == os.path.realpath(SHIM),
              f'{name} with one is of {on.ask(f"where {name}")}')
    for line in 'info', 'total', 'info32', 'total32':
        check(off.must(line) == native.must(line), f'{line} without a limit: {off.must(line)}')
    for taker in off, on, native:
        taker.end()


def nvml_tells_of_no_more_either():
    taker = Taker(GPUSHIM_POOL_LIMIT='64M', GPUSHIM_POOL_DECAY='10 min', memory='1G')
    for line in 'nvml', 'nvml_direct', 'nvml_v2':
        check(taker.must(line) == [64 * MIB, 64 * MIB, 0], f'{line} at first: {taker.must(line)}')
    taker.must(f'alloc {24 * MIB}')
    for line in 'nvml', 'nvml_direct', 'nvml_v2':
        check(taker.must(line) == [64 * MIB, 40 * MIB, 24 * MIB], f'{line}: {taker.must(line)}')
    taker.end()
    taker = Taker(GPUSHIM_POOL_LIMIT='64M', memory='1G')
    check(taker.must('nvml_reserved') == [0], f'nothing is the driver\'s of it: {taker.must("nvml_reserved")}')
    taker.end()
    taker = Taker(memory='1G')
    check(taker.must('nvml_reserved') == [16 * MIB], f'without a limit: {taker.must("nvml_reserved")}')
    taker.end()
    taker = Taker(GPUSHIM_POOL_LIMIT='900M', memory='1G')
    check(taker.must('nvml') == [900 * MIB, 768 * MIB, 132 * MIB],
          f'what the device has left, if that is less: {taker.must("nvml")}')
    taker.end()


def each_device_has_its_bound():
    taker = Taker(GPUSHIM_POOL_LIMIT='64M', memory='1G', SOFTCUDA_DEVICES='2')
    taker.must(f'alloc {24 * MIB}')
    check([taker.must(f'nvml {device}')[1] for device in (0, 1)] == [40 * MIB, 64 * MIB],
          f'what the first has is not the second\'s: {[taker.must(f"nvml {device}") for device in (0, 1)]}')
    taker.end()


def nvml_is_bounded_before_cuda_begins():
    for limit, bytes_ in ('64M', 64 * MIB), ('25%', 256 * MIB):
        taker = Taker('no CUDA', GPUSHIM_POOL_LIMIT=limit)
        for line in 'nvml', 'nvml_direct', 'nvml_v2':
            check(taker.must(line) == [bytes_, bytes_, 0], f'{line} of {limit}: {taker.must(line)}')
        taker.end()


# A program that has no libcuda, as monitors and Python before its first import of a framework.
MONITOR = """
import ctypes, sys
nvml = ctypes.CDLL(sys.argv[1])
device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetHandleByUUID(b'GPU-' + b'0' * 36, ctypes.byref(device))
print(nvml.nvmlDeviceGetMemoryInfo(device, memory), *memory)
"""


def nvml_is_bounded_in_a_process_without_libcuda():
    for limit, total, enable in ('64M', 64, 'on'), ('25%', 256, 'on'), ('0', 1024, 'on'), ('64M', 1024, 'off'):
        environment = dict(os.environ, LD_PRELOAD=SHIM, GPUSHIM_POOL_LIMIT=limit, GPUSHIM_ENABLE=enable,
                           GPUSHIM_CONFIG='')
        said = subprocess.run([sys.executable, '-c', MONITOR, os.path.abspath(NVML)], env=environment, text=True,
                              stdout=subprocess.PIPE, check=True).stdout
        left = min(total, 768)
        check(said.split() == [str(number) for number in (0, total * MIB, left * MIB, (total - left) * MIB)],
              f'of {limit}, {enable}: {said}')


def nvml_is_left_alone_where_there_is_no_limit():
    names = 'nvmlDeviceGetMemoryInfo', 'nvmlDeviceGetMemoryInfo_v2'
    for options in {}, {'GPUSHIM_ENABLE': 'off', 'GPUSHIM_POOL_LIMIT': '64M'}:
        for arguments in (), ('no CUDA',):
            taker = Taker(*arguments, **options)
            for name in names:
                check(os.path.realpath(taker.ask(f'nvml_where {name}')) == os.path.realpath(NVML),
                      f'{name} is of {taker.ask(f"nvml_where {name}")}')
            for line, used in ('nvml', 256), ('nvml_direct', 256), ('nvml_v2', 240):
                check(taker.must(line) == [1024 * MIB, 768 * MIB, used * MIB],
                      f'{line}: {taker.must(line)}')
            taker.end()
    taker = Taker(GPUSHIM_POOL_LIMIT='64M')
    for name in names:
        check(os.path.realpath(taker.ask(f'nvml_where {name}')) == os.path.realpath(SHIM),
              f'{name} with a limit is of {taker.ask(f"nvml_where {name}")}')
    taker.end()


for test in [value for name, value in sorted(globals().items())
             if callable(value) and getattr(value, '__module__', '') == '__main__']:
    test()
end_with_faults()
