"""A POSIX shell that was started elsewhere, in a container or in another root, with its standard input and output
for this test: commands go in one by one, and what each wrote and its exit status come back. Programs that run on
beside them are driven through two pipes (tests/holder.c).

The shell needs cat and mkfifo, and a folder to write to.
"""
import itertools
import os
import selectors
import time

PATIENT_S = 60


class Ended(Exception):
    """The shell did not answer; or what was awaited in it did not happen."""


class Result:
    """What became of a command."""

    def __init__(self, command, returncode, stdout, stderr):
        self.args, self.returncode, self.stdout, self.stderr = command, returncode, stdout, stderr

    def __repr__(self):
        return f'{self.args!r} ended with {self.returncode}, wrote {self.stdout!r} and {self.stderr!r}'


class Shell:
    """`process` has pipes for stdin and stdout; `folder`, as the shell sees it, takes files of a moment."""
    numbers = itertools.count()

    def __init__(self, process, folder='/tmp'):
        self.process, self.folder = process, folder
        self.said = f'{folder}/said-{os.getpid()}-{next(self.numbers)}'
        self.heard = b''
        os.set_blocking(process.stdout.fileno(), False)

    def _tell(self, text):
        try:
            self.process.stdin.write(text.encode())
            self.process.stdin.flush()
        except OSError as error:
            raise Ended(f'the shell is gone ({error}): {self.heard.decode(errors="replace")}') from error

    def _hear_until(self, end):
        """What was written before `end`."""
        deadline = time.monotonic() + PATIENT_S
        heard, at = self.heard, -1
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while (at := heard.find(end, max(0, at))) < 0:
                at = len(heard) - len(end)
                left = deadline - time.monotonic()
                got = os.read(self.process.stdout.fileno(), 65536) if left > 0 and selector.select(left) else b''
                if not got:
                    why = 'ended' if left > 0 else f'did not answer within {PATIENT_S} s'
                    raise Ended(f'the shell {why}: {heard.decode(errors="replace")}')
                heard += got
        self.heard = heard[at + len(end):]
        return heard[:at]

    def run(self, command):
        """`command` is a line of shell, or several."""
        mark = f'#{os.getpid()}.{next(self.numbers)}#'
        self._tell(f'{{ {command}\n}} 2>{self.said} </dev/null\necho "{mark}$?"\ncat {self.said}\necho "{mark}"\n')
        written, _, rest = self._hear_until(f'{mark}\n'.encode()).decode(errors='replace').partition(mark)
        status, _, complained = rest.partition('\n')
        return Result(command, int(status), written, complained)

    def end(self):
        """The shell's own end: its input's."""
        self._tell(f'rm {self.said}\n')
        self.process.stdin.close()
        return self.process.wait(PATIENT_S)


class Driven:
    """A program that runs beside the shell's commands and answers a line for each that it is given."""

    def __init__(self, shell, command, first=3):
        """Of the shell's descriptors 3 to 6, `first` and the one behind it are the program's."""
        self.shell, self.first = shell, first
        self.named = f'{shell.folder}/driven-{first}'
        ran = shell.run(f'mkfifo {self.named}.in {self.named}.out && '
                        f'{{ {command} <{self.named}.in >{self.named}.out 2>{self.named}.log '
                        f'3>&- 4>&- 5>&- 6>&- & }} && '
                        f'exec {first}>{self.named}.in {first + 1}<{self.named}.out && echo $!')
        if ran.returncode:
            raise Ended(repr(ran))
        self.pid = int(ran.stdout)

    def do(self, line):
        ran = self.shell.run(f'echo "{line}" >&{self.first} && read -r answer <&{self.first + 1} && echo "$answer"')
        if ran.returncode:
            raise Ended(f'{line!r} ends the program: {ran}, {self.log()}')
        return ran.stdout.strip()

    def log(self):
        return self.shell.run(f'cat {self.named}.log').stdout

    def end(self):
        """Its exit status, once its input has ended."""
        ran = self.shell.run(f'exec {self.first}>&- {self.first + 1}<&-; wait {self.pid}; echo $?; rm {self.named}.*')
        return int(ran.stdout.split()[0])
