"""Lines of gpushim that are wrong are refused in one line, with the cause and where help is; each command helps; and
what cannot be written is a failure.

    lines.py GPUSHIM
"""
import os
import re
import subprocess
import sys
import tempfile
import time

from alone import check, end_with_faults, expect, run

gpushim = os.path.realpath(sys.argv[1])
# A command, its line, and what is said of that, before where help is.
WRONG = [
    ('run', '-o', '-o: SECTION.KEY=VALUE is missing after it'), ('run', '', 'run: PROGRAM is missing'),
    ('run', '--', 'run: PROGRAM is missing'),
    ('run', '--prnt x', r"run does not know '--prnt'; did you mean --print\?"),
    ('run', '-x x', "run does not know '-x'"), ('record', '', 'record: PROGRAM is missing'),
    ('run', '--record', '--record: FILE is missing after it'),
    ('stats', 'x', "'x' is no process id"), ('stats', '--watch x', '--watch takes seconds from .*, and not .x.'),
    ('stats', '--watch', '--watch: TIME is missing after it'), ('stats', '1 2', "stats does not know '2'"),
    ('stats', '--wach 1', r"stats does not know '--wach'; did you mean --watch\?"),
    ('top', '-x', "top does not know '-x'"),
    ('who', '-1', "who does not know '-1'"), ('ls', 'a b', "ls does not know 'b'"),
    ('doctor', '12x', "'12x' is no process id"), ('doctor', '99999999999999', ".* is no process id"),
    ('doctor', '-' + 60000 * 'aq' + ' x', "'x' is no process id"), # letters of one word without end
    ('trim', '', r'trim: PID\|all is missing'), ('trim', 'x', "'x' is no process id"),
    ('trim', 'all 1', "trim does not know '1'"), ('trim', '-1', "trim does not know '-1'"),
    ('set', '1', 'set: SECTION.KEY=VALUE is missing'), ('set', 'x log=info', "'x' is no process id"),
    ('set', '1 log=info log=off', "set does not know 'log=off'"),
    ('sleep', '', r'sleep: PID\|CGROUP... is missing'), ('swap', '1', 'swap: .* is missing'),
    ('cluster', 'forget', "cluster knows 'forget MACHINE' alone"),
    ('cluster', 'remember x', "cluster knows 'forget MACHINE' alone"),
    ('cluster', 'forget a --json', 'cluster forget has nothing for --json'),
    ('report', '', 'report: FILE is missing'), ('report', 'a b', "report does not know 'b'"),
    ('report', 'a --html', '--html: PAGE is missing after it'),
    ('export', '', 'export: for what is missing: --prometheus; .*'),
    ('export', '--listen :0', 'export: for what is missing: .*'),
    ('export', '--prometheus x', "export does not know 'x'"),
    ('export', '--prometheus --textfile', '--textfile: FILE is missing after it'),
    ('export', '--prometheus --listen :0 --textfile x', '--listen and --textfile are two ways: choose one'),
    ('export', '--prometheus --host x', '--host is for --listen: a name that it is asked by'),
    ('export', '--prometheus --textfile=', '--textfile takes the path of a file'),
    ('config', 'log', "config does not know 'log'"), ('config', '--check', '--check: FILE is missing after it'),
    ('config', '--chek a', r"config does not know '--chek'; did you mean --check\?"),
    ('cdi', '', 'cdi: generate is missing'), ('cdi', 'make', "cdi does not know 'make'"),
    ('cdi', 'generate --output', '--output: FILE is missing after it'),
    ('cdi', 'generate --output x', '--output: .* does not end in .*'),
    ('broker', '--startd', "broker does not know '--startd'"), # what people are not told of is not meant
    ('help', 'a b', "help does not know 'b'"),
    *[('export', f'--prometheus --listen={where}', r'--listen takes ADDRESS:PORT, and not .*127\.0\.0\.1:9465.*')
      for where in ('', 'x', '127.0.0.1', '127.0.0.1:', '127.0.0.1:65536', '127.0.0.1:-1', '::1:1', '[::1:1', ':1x',
                    '300.0.0.1:1',
                    'a' * 99 + ':1', '[]:1', '[:1')],
    *[('sleep', f'1 --timeout={time}', f"--timeout takes seconds from 0 to 86400, and not '{time}'")
      for time in ('soon', '', '-1', '86401', 'nan', '1sec')]]
CLOSED = """import os
for fd in range(3):
    try:
        os.fstat(fd)
    except OSError:
        continue
    os._exit(1)
os._exit(0)"""


def gpushim_says(*words, **options):
    return run([gpushim, *words], {'GPUSHIM_SHARE_DIR': scratch}, **options)


with tempfile.TemporaryDirectory(prefix='gpushim-lines-', ignore_cleanup_errors=True) as scratch:
    told = gpushim_says('help')
    commands = re.findall(r'^  ([a-z]+) ', told.stdout, re.M)
    check({command for command, _, _ in WRONG} <= set(commands), f'commands: {commands}')
    for command, line, said in [*WRONG, *[(command, '--nonsense', f"{command} does not know '--nonsense'")
                                          for command in commands]]:
        expect(gpushim_says(command, *line.split()), 2, '', fr'gpushim: {said} \(gpushim help {command}\)\n')
    for words, said in ((['statts'], r"there is no command 'statts'; did you mean stats\?"), ([], 'COMMAND is missing'),
                        (['help', 'wh'], r"there is no command 'wh'; did you mean who\?"),
                        (['nonsense'], "there is no command 'nonsense'.*")):
        expect(gpushim_says(*words), 2, '', fr'gpushim: {said} \(gpushim help\)\n')
    for command in commands:
        helped = expect(gpushim_says('help', command), 0, f'usage: gpushim {command} .*\nExamples:\n.*')
        for words in ([command, '--help'], [command, '-h']):
            expect(gpushim_says(*words), 0, re.escape(helped.stdout))
    for words in (['--help'], ['-h'], ['help']):
        expect(gpushim_says(*words), 0, re.escape(told.stdout))
    expect(gpushim_says('--version'), 0, re.escape(gpushim_says('version').stdout))
    with open('/dev/full', 'w', encoding='utf-8') as full:
        for words in (['--help'], ['config'], ['config', '--json'], ['version'], ['version', '--json'], ['stats'],
                      ['who', '--json'], ['run', '--print'], ['cdi', 'generate'], ['export', '--prometheus'],
                      ['doctor', str(os.getpid())], ['doctor', str(os.getpid()), '--json']):
            ran = gpushim_says(*words, capture_output=False, stdout=full)
            check(ran.returncode == 1, f'to a full disk: {words}: {ran}')

    # Whoever closed the three standard files gets no line of ours into a socket that has such a number; what it runs
    # finds them closed.
    closed = {'capture_output': False, 'preexec_fn': lambda: os.closerange(0, 3)}
    check(gpushim_says('stats', **closed).returncode == 1, 'nobody reads it')
    check(gpushim_says('run', '--', sys.executable, '-c', CLOSED, **closed).returncode == 0,
          'what it runs has files that it was not given')
    with subprocess.Popen([gpushim, 'broker'], preexec_fn=closed['preexec_fn'],
                          env=dict(os.environ, GPUSHIM_CONFIG='', GPUSHIM_SHARE_DIR=scratch)) as broker:
        deadline = time.monotonic() + 60
        while not any(re.fullmatch(r'broker(\.[0-9a-f-]+)?', name)
                      for name in os.listdir(scratch)) and time.monotonic() < deadline:
            time.sleep(0.01)
        files = [os.readlink(f'/proc/{broker.pid}/fd/{fd}') for fd in range(3)]
        check(files == 3 * ['/dev/null'], f'its standard files: {files}')
        broker.terminate()
end_with_faults()
