"""What completes a command line of gpushim in bash, zsh and fish: its commands, their options and what those take, as
the program tells them. A shell that is not installed is named and passed over.

usage: completion.py GPUSHIM SHIM LIBCUDA FOLDER_OF_COMPLETIONS
"""
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from alone import check, end_with_faults, run, surroundings
from holder import PUBLISH, Holder

command, folder = os.path.realpath(sys.argv[1]), os.path.realpath(sys.argv[4])
LIMIT = 60
environment = surroundings(PATH=f'{os.path.dirname(command)}:{os.environ["PATH"]}', TERM='dumb', ZDOTDIR=None,
                           LC_ALL=os.environ.get('LC_ALL'))
commands = set(re.findall(r'^  ([a-z][a-z-]*) ', run([command, '--help']).stdout, re.M))
check({'who', 'config'} <= commands, f'gpushim --help tells {commands}')


def output(*words):
    ran = subprocess.run(words, env=environment, text=True, capture_output=True, timeout=LIMIT,
                         check=False, cwd=scratch)
    check(not ran.returncode and not ran.stderr, f'{words}: {ran.returncode}, {ran.stderr}')
    return ran.stdout.splitlines()


def in_bash(*line):
    """The words that may stand in place of the last one."""
    words = [part for word in line for part in re.findall('[=:]+|[^=:]+|^$', word)] # as readline takes them apart
    text = ' '.join(line)
    found = output('bash', '--norc', '-c', f'source {shlex.quote(folder)}/gpushim.bash; '
                  f'COMP_WORDS=({" ".join(shlex.quote(word) for word in words)}); COMP_CWORD={len(words) - 1}; '
                  f'COMP_LINE={shlex.quote(text)}; COMP_POINT={len(text)}; _gpushim; printf "%s\\n" '
                  f'"${{COMPREPLY[@]}}"')
    return [word for word in found if word]


def in_fish(*line):
    lines = output('fish', '--no-config', '-c', f'source {shlex.quote(folder)}/gpushim.fish; '
                   f'complete -C {shlex.quote(" ".join(line))}')
    return [each.split('\t')[0] for each in lines]


def expect(what, found, expected):
    check(set(found) == set(expected), f'{what}: {sorted(found)}, not {sorted(expected)}')


# Words of a line, and what may stand in place of the last; fish writes the whole word.
TOLD = [(['conf'], ['config']), (['config', '--'], ['--check', '--json', '--help']), (['config', '--ch'], ['--check']),
        (['set', '1', 'pool.dec'], ['pool.decay=']), (['ls', 'weights/'], ['weights/a']),
        (['run', '-o', 'pool.dec'], ['pool.decay=']),
        (['config', '--check', 'some'], ['some.conf']), (['trim', 'a'], ['all']), (['help', 'sta'], ['stats']),
        (['set', '1', 'pool.f'], []), (['config', '--ch', 'some'], ['some.conf']), (['config', '--', '--js'], []),
        (['nonsense', '--js'], []), (['run', '--', 'cat', 'so'], ['some.conf'])]
BASH = [(['run', '-o', 'pool.free='], ['deferred', 'native']), (['run', '--set', 'debug.user_vmm=of'], ['off']),
        (['run', './so'], ['./some.conf'])]
FISH = [(['run', '-o', 'pool.free='], ['pool.free=deferred', 'pool.free=native'])]


def check_bash():
    pid = str(one.pid)
    for line, expected in [*TOLD, *BASH, ([''], commands | {'--help', '--version'}), (['stats', pid], [pid]),
                           (['config', '-'], ['--check', '--json', '--help']),
                           (['stats', '--watch', '1', pid], [pid])]:
        expect(f'bash, {line}', in_bash('gpushim', *line), expected)
    check('gpushim' in in_bash('gpushim', 'run', '--', 'gpush'), 'bash: a program behind -- is not completed')
    names = in_bash('gpushim', 'run', '-o', '')
    check(len(names) >= 30 and {'log=', 'pool.decay='} <= set(names), f'bash, names of options: {names}')


def check_fish():
    for line, expected in [*TOLD[:7], *FISH, ([''], commands | {'--help', '--version'})]:
        expect(f'fish, {line}', in_fish('gpushim', *line), expected)


def read_until(terminal, text):
    got, end = '', time.monotonic() + LIMIT
    while text not in got and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            got += os.read(terminal, 65536).decode(errors='replace')
    return got


def check_zsh():
    """It completes only at a terminal."""
    os.makedirs(scratch + '/functions')
    shutil.copy(folder + '/gpushim.zsh', scratch + '/functions/_gpushim')
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(scratch)
        os.execvpe('zsh', ['zsh', '-f', '-i'], environment)
    os.write(terminal, b'fpath=($PWD/functions $fpath); autoload -U compinit; compinit -u -D; '
                       b'PROMPT=; echo rea""dy\n')
    read_until(terminal, 'ready')
    for typed, expected in (('gpushim conf\t', 'gpushim config '),
                            ('gpushim config --ch\t', 'gpushim config --check '),
                            ('gpushim config --check som\t', 'gpushim config --check some.conf'),
                            ('gpushim run -o pool.dec\t', 'gpushim run -o pool.decay='),
                            ('gpushim set 1 pool.dec\t', 'gpushim set 1 pool.decay='),
                            ('gpushim run -o pool.free=n\t', 'gpushim run -o pool.free=native '),
                            ('gpushim ls wei\t', 'gpushim ls weights/a '),
                            ('gpushim run -- cat som\t', 'gpushim run -- cat some.conf')):
        os.write(terminal, typed.encode())
        got = read_until(terminal, expected)
        check(expected in got, f'zsh: {typed!r} becomes {got!r}')
        os.write(terminal, b'\x15') # takes the line away
    os.close(terminal) # which ends it
    os.waitpid(child, 0)


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
    with open(scratch + '/some.conf', 'w', encoding='utf-8'):
        pass
    environment['HOME'] = environment['XDG_DATA_HOME'] = scratch
    environment['GPUSHIM_SHARE_DIR'] = scratch + '/share'
    os.mkdir(scratch + '/share', 0o700)
    one = Holder(scratch + '/share')
    one.do('alloc 4096')
    one.run(PUBLISH + 'assert publish(b"weights/a", held[0].value) == 0')
    turkish = {'LOCPATH': scratch, 'LC_ALL': 'tr_TR.UTF-8'} # where i is not between a and z
    if shutil.which('localedef') and subprocess.run(
            ['localedef', '-i', 'tr_TR', '-f', 'UTF-8', scratch + '/tr_TR.UTF-8'], capture_output=True,
            check=False).returncode == 0 and not subprocess.run(
                ['sh', '-c', 'locale >/dev/null'], env=environment | turkish, capture_output=True, check=False).stderr:
        environment.update(turkish)
    else:
        print('skipped: completions in a language with other letters: no localedef that knows tr_TR')
    shells = {'bash': check_bash, 'fish': check_fish, 'zsh': check_zsh}
    missing = [shell for shell in shells if not shutil.which(shell)]
    for shell, try_it in shells.items():
        if shell not in missing:
            try_it()
    one.end()
end_with_faults('there is none of ' + ', '.join(missing) if len(missing) == len(shells) else None)
