"""Programs that take memory of a software device as they are told, with the library or without. Faults are
collected here.

The test's arguments begin with TAKE SHIM LIBCUDA, and may go on with NVML.
"""
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), os.pardir))
from faults import await_that, check, end_with_faults  # as others take them from here

TAKE, SHIM, LIBCUDA = (os.path.abspath(argument) for argument in sys.argv[1:4])
MIB = 1 << 20
OUT = 2  # CUDA_ERROR_OUT_OF_MEMORY

folder = tempfile.TemporaryDirectory(prefix='gpushim-oom-')
PLACE = folder.name


class Taker:
    """One process. Its log is `log`, where options do not say another."""
    count = 0

    def __init__(self, *arguments, library=True, memory='256M', **options):
        Taker.count += 1
        self.log = os.path.join(PLACE, f'log-{Taker.count}')
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(('GPUSHIM_', 'SOFTCUDA_', 'LD_', 'NVML_'))}
        environment |= {'LD_LIBRARY_PATH': os.path.dirname(LIBCUDA), 'SOFTCUDA_MEMORY': memory,
                        'GPUSHIM_SHARE_DIR': os.path.join(PLACE, 'run'),
                        'GPUSHIM_LOG_TARGET': self.log, 'GPUSHIM_DEBUG_RECLAIM_FROM_PEERS': 'off',
                        'GPUSHIM_CONFIG': ''}
        environment |= {name: str(value) for name, value in options.items()}
        if library:
            environment['LD_PRELOAD'] = SHIM
        self.process = subprocess.Popen([TAKE, *arguments], env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.process.pid

    def ask(self, line):
        self.process.stdin.write(line + '\n')
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f'{line}: it ended with {self.process.wait()}')
        return answer.strip()

    def numbers(self, line):
        return [int(word) for word in self.ask(line).split()]

    def must(self, line):
        answer = self.numbers(line)
        if answer[0] != 0:
            sys.exit(f'{line} gave {answer[0]}: {self.said()}')
        return answer[1:]

    def refused(self, line):
        answer = self.numbers(line)[0]
        check(answer == OUT, f'{line} gave {answer}')

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

    def end(self):
        self.process.stdin.close()
        status = self.process.wait()
        check(status == 0, f'it ended with {status}')
        self.process.stdout.close()
