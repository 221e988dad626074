"""gpushim config: what it says of every option, of variables and files that are wrong, and that this is
what the library itself finds; --check of one file alone.

usage: config.py GPUSHIM SAMPLE [LIBGPUSHIM FOLDER_OF_LIBCUDA]
"""
import json
import os
import re
import sys
import tempfile

from alone import check, end_with_faults, run

command, sample = os.path.realpath(sys.argv[1]), sys.argv[2]
library, driver = (os.path.realpath(sys.argv[3]), sys.argv[4]) if len(sys.argv) > 3 else (None, None)
CALL = '''import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
ok = cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0) == 0
assert ok
'''
OURS = re.compile(r'_?(lib)?gpu_?shi?m', re.I)  # names that only look like it


def holds(condition, what, *seen):
    check(condition, f'{what}: ' + '; '.join(str(each) for each in seen))


def without(**settings):
    """Nothing of the caller's that the library goes by, a home neither."""
    return {name: None for name in os.environ
            if OURS.match(name)} | {'HOME': None, 'XDG_CONFIG_HOME': None, 'GPUSHIM_CONFIG': ''} | settings


def config(*arguments, **settings):
    return run([command, 'config', *arguments], without(**settings))


def as_json(what, status, *arguments, **settings):
    """The object; complaints are in it and not on standard error, and the exit status goes by them."""
    ran = config('--json', *arguments, **settings)
    holds(ran.returncode == status and not ran.stderr, what, f'it ends with {ran.returncode}, not {status}', ran.stderr)
    found = json.loads(ran.stdout)
    holds(bool(found['complaints']) == (status == 1), what, 'complaints', found['complaints'])
    return {option['name']: option for option in found['options']}, found


def write(folder, name, text, mode=0o644):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def expect_origin(what, option, kind, file=None, line=None, variable=None, refused=False):
    expected = {'kind': kind, 'refused': refused, 'file': file, 'line': line, 'variable': variable}
    holds(option['origin'] == expected, what, option['origin'], f'not {expected}')


def expect(what, ran, status, *patterns, of='stderr'):
    """It ended so, and each pattern is on a line of its own of what it said."""
    lines = getattr(ran, of).splitlines()
    holds(ran.returncode == status, what, f'it ends with {ran.returncode}, not {status}', ran.stdout, ran.stderr)
    for pattern in patterns:
        holds(any(re.fullmatch(pattern, line) for line in lines), what, f'no line is {pattern}', *lines)


# ---- Every option ------------------------------------------------------------------------------


def rows(text):
    """{(section, key): (value, remark)} of a listing, read as a configuration file is."""
    found, section = {}, 'general'
    for line in text.splitlines():
        if re.fullmatch(r'\[\w+\]', line):
            section = line[1:-1]
        match = re.fullmatch(r'(\w+) = ?(.*?)(?:\s+# (.*))?', line)
        if match:
            found[section, match[1]] = match[2], match[3]
    return found


def check_defaults():
    with open(sample, encoding='utf-8') as file:
        defaults = rows(''.join(re.sub(r'^#(?=\w+ =)', '', line) for line in file))
    ran = config()
    expect('defaults', ran, 0, '# No file is read: GPUSHIM_CONFIG is there and empty.', of='stdout')
    holds(rows(ran.stdout) == defaults and len(defaults) >= 30 and not ran.stderr, 'defaults of the sample',
          rows(ran.stdout), ran.stderr)
    remarks = {remark for _, remark in rows(ran.stdout).values()}
    holds(remarks == {None}, 'defaults have no remark', remarks)
    options, found = as_json('defaults as JSON', 0)
    holds({(o['section'], o['key']): o['value']
           for o in options.values()} == {name: value for name, (value, _) in defaults.items()},
          'defaults as JSON', options)
    holds(not found['files'], 'no file', found['files'])
    for option in options.values():
        expect_origin('a default', option, 'default')
        holds(option['is_default'] and option['default'] == option['value'] and option['help'], 'a default', option)
        holds(option['name'].endswith(option['key']) and option['type'] and option['allowed'], 'a name', option)


def check_origins(folder):
    home = os.path.join(folder, 'home\nof # mine')
    user = write(home, 'gpushim.conf', '[pool]\ndecay = 3 s\ncache_limit = 10 %\nlimit = off\n')
    shown = user.replace('\n', r'\x0a')
    settings = {'XDG_CONFIG_HOME': home, 'GPUSHIM_CONFIG': None, 'GPUSHIM_LOG': 'info', 'GPUSHIM_POOL_DECAY': '60 s'}
    options, found = as_json('origins', 0, **settings)
    listed = config(**settings)
    for name, origin, value, default, remark in (
            ('general.log', ('environment', None, None, 'GPUSHIM_LOG'), 'info', 'warning',
             'changed by environment GPUSHIM_LOG, default: warning'),
            ('pool.decay', ('environment', None, None, 'GPUSHIM_POOL_DECAY'), '1 min', '2 s',
             'changed by environment GPUSHIM_POOL_DECAY, default: 2 s'),
            ('pool.cache_limit', ('file', user, 3), '10 %', 'unlimited', f'changed by {shown}:3, default: unlimited'),
            ('pool.limit', ('file', user, 4), 'off', 'off', f'{shown}:4')):
        option = options[name.removeprefix('general.')]
        expect_origin(name, option, *origin)
        check((option['value'], option['default'], option['is_default']) == (value, default, value == default),
              f'{option}')
        check(rows(listed.stdout)[tuple(name.split('.'))][1] == remark, f'{name}: not {remark}: {listed.stdout}')
    holds(found['files'][0] == {'path': user, 'read': True, 'why_not': None} and len(found['files']) >= 2, 'files',
          found['files'])
    expect('the list of files', listed, 0, re.escape(f'#   {shown}: read'), of='stdout')


def check_listing_is_a_file(folder):
    """What is listed can be read as a configuration, and is the same one."""
    settings = {'GPUSHIM_LOG': 'off', 'GPUSHIM_POOL_CACHE_LIMIT': '18446744073709551614',
                'GPUSHIM_SHARE_UIDS': '1 2,3', 'GPUSHIM_DEBUG_GRACE': '1500us',
                'GPUSHIM_LOG_TARGET': '/tmp/a b#c', 'GPUSHIM_SHARE_DIR': '/' + 'd' * 1022,
                'GPUSHIM_SHARE_ISOLATE': 'ALONE'}
    options, _ = as_json('as set', 0, **settings)
    changed = [option for option in options.values() if not option['is_default']]
    holds(len(changed) == len(settings), 'as set', changed)
    path = write(folder, 'listed.conf', config(**settings).stdout)
    expect('its check', config('--check', path), 0,
           f'{re.escape(path)}: {len(options)} options, no mistake', of='stdout')
    again, _ = as_json('as listed', 0, GPUSHIM_CONFIG=path)
    holds({name: o['value'] for name, o in again.items()} == {name: o['value'] for name, o in options.items()},
          'as listed', again)
    # What no file can say is no line of it.
    ran = config(GPUSHIM_SHARE_DIR='/a #b')
    expect('a # behind a blank', ran, 0, r'#dir = /a #b +# a file cannot say this, only '
           'GPUSHIM_SHARE_DIR: .*', of='stdout')
    expect('its check', config(f'--check={write(folder, "listed.conf", ran.stdout)}'), 0,
           f'.*: {len(options) - 1} options, no mistake', of='stdout')


# ---- What is wrong -----------------------------------------------------------------------------


def check_mistakes(folder):
    path = write(folder, 'bad.conf', '[pool]\ndecay = soon\n')
    settings = {'GPUSHIM_LOG': 'loud', 'GPUSHIM_LGO': 'info', 'GPUSHIM_CONFIG': path}
    patterns = [r'environment: GPUSHIM_LOG = "loud" is none of the words; allowed: off, .* the default '
                '"warning" is used',
                r'environment: "GPUSHIM_LGO" = "info" is ignored: .* did you mean GPUSHIM_LOG\?',
                rf'{re.escape(path)}:2: pool.decay = "soon" is not a time; .*']
    ran = config(**settings)
    expect('mistakes', ran, 1, *[f'gpushim: {pattern}' for pattern in patterns])
    expect('what is refused', ran, 1,
           r'log = warning +# default, for what environment GPUSHIM_LOG says is not allowed',
           rf'decay = 2 s +# default, for what {re.escape(path)}:2 says is not allowed', of='stdout')
    options, found = as_json('mistakes as JSON', 1, **settings)
    expect_origin('refused', options['log'], 'default', variable='GPUSHIM_LOG', refused=True)
    expect_origin('refused', options['pool.decay'], 'default', path, 2, refused=True)
    holds(sorted(found['complaints']) == sorted(line.removeprefix('gpushim: ') for line in ran.stderr.splitlines()),
          'complaints', found['complaints'], ran.stderr)


def check_misspelt():
    """Unless it is another's name (tests/unit/config/explain.c)."""
    pattern = (r"environment: GPU_SHIM_LOG is ignored: the library's variables begin with GPUSHIM_; "
               r"did you mean GPUSHIM_LOG\?")
    expect('misspelt', config(GPU_SHIM_LOG='x\ny'), 1, 'gpushim: ' + pattern)
    _, found = as_json('misspelt', 1, GPU_SHIM_LOG='x')
    holds(len(found['complaints']) == 1 and re.fullmatch(pattern, found['complaints'][0]), 'misspelt',
          found['complaints'])
    ran = config(GPU_SHIM_COLOUR='red')
    holds(ran.returncode == 0 and not ran.stderr, "another's name", ran.stderr)


def check_files(folder):
    def of_user(name, text, mode=0o644):
        home = os.path.join(folder, name)
        return write(home, 'gpushim.conf', text, mode), {'XDG_CONFIG_HOME': home, 'GPUSHIM_CONFIG': None}

    for name, text, mode, why in (('open to others', 'log = info\n', 0o666,
                                   r'others may write to it \(mode 666\); chmod go-w .*'),
                                  ('too long', '#' * 70000, 0o644, 'longer than 65536 bytes')):
        path, settings = of_user(name, text, mode)
        options, found = as_json(name, 1, **settings)
        file = found['files'][0]
        holds(file['path'] == path and not file['read'] and re.fullmatch(why, file['why_not']), name, found['files'])
        holds(options['log']['origin']['file'] != path, name, options['log'])
        ran = config(**settings)
        expect(name, ran, 1, f'gpushim: {re.escape(path)}: the configuration is ignored: {why}')
        expect(name, ran, 1, f'#   {re.escape(path)}: {why}', of='stdout')
    ran = config(GPUSHIM_CONFIG=folder + '/none')
    expect('a named one that is absent', ran, 1, 'gpushim: .*/none: the configuration is ignored: No such '
           'file or directory; correct GPUSHIM_CONFIG or unset it')
    expect('a named one that is absent', ran, 1, '# GPUSHIM_CONFIG names the file .*', '#   .*/none: No '
           'such file .*', of='stdout')
    expect('absent', config(GPUSHIM_CONFIG=None, HOME=folder + '/empty'), 0,
           '# Files, the strongest first:', '#   .*/empty/.config/gpushim.conf: absent', of='stdout')


# ---- One file alone ----------------------------------------------------------------------------


def check_check(folder):
    with open(sample, encoding='utf-8') as file:  # which others may write to where the tree was made so
        expect('the sample', config('--check', write(folder, 'sample.conf', file.read())), 0,
               r'.*: 0 options, no mistake', of='stdout')
    path = write(folder, 'one.conf', 'log = info\n')
    ran = config('--check', path, GPUSHIM_LOG='loud', GPU_SHIM_LOG='x')
    expect('one option, whatever the environment is', ran, 0,
           f'{re.escape(path)}: 1 option, no mistake', of='stdout')
    holds(not ran.stderr and len(ran.stdout.splitlines()) == 1, 'one option', ran.stdout, ran.stderr)
    path = write(folder, 'many.conf', 'nonsense\n' * 300 + 'log = info\nenable = perhaps\n[pol]\n')
    ran = config('--check', path)
    expect('every mistake', ran, 1, f'{re.escape(path)}: 1 option, 302 mistakes', of='stdout')
    expect('every mistake', ran, 1,
           *[f'gpushim: {re.escape(path)}:{line}: .*' for line in [*range(1, 301), 302, 303]])
    options, found = as_json('a check as JSON', 1, '--check', path)
    expect_origin('of the file', options['log'], 'file', path, 301)
    holds(len(found['complaints']) == 302 and [file['path'] for file in found['files']] == [path], 'a check as JSON',
          found['files'])
    expect('one that is absent', config('--check', folder + '/none'), 1,
           'gpushim: .*/none: the configuration is ignored: No such file or directory')
    expect('one that others may write to', config('--check', write(folder, 'w.conf', '', 0o622)), 1,
           r'gpushim: .*/w.conf: .* others may write to it \(mode 622\); .*')
    expect('a folder', config('--check', folder), 1, 'gpushim: .* not a regular file')


# ---- The library -------------------------------------------------------------------------------


def check_library(folder):
    """It reads the files that the command says, and complains of the same."""
    home = os.path.join(folder, 'library')
    user = write(home, 'gpushim.conf', 'log = info\ncolour = red\n[pool]\ndecay = soon\n')
    settings = {'XDG_CONFIG_HOME': home, 'GPUSHIM_CONFIG': None, 'GPUSHIM_LGO': 'x',
                'GPUSHIM_POOL_FREE': 'never'}
    _, found = as_json('what the library complains of', 1, **settings)
    ran = run([sys.executable, '-c', CALL], without(LD_PRELOAD=library, LD_LIBRARY_PATH=driver, **settings))
    lines = ran.stderr.splitlines()
    for complaint in found['complaints']:
        holds(any(line.endswith(': ' + complaint) for line in lines), 'the library does not complain', complaint,
              *lines)
    read = ', '.join(file['path'] for file in found['files'] if file['read'])
    holds(len(found['complaints']) >= 4 and user in read
          and any(line.endswith(f'configuration read from {read}') for line in lines),
          'the library', f'it has not read {read}', found['complaints'], *lines)


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
    check_defaults()
    check_origins(scratch)
    check_listing_is_a_file(scratch)
    check_mistakes(scratch)
    check_misspelt()
    check_files(scratch)
    check_check(scratch)
    if library:
        check_library(scratch)
end_with_faults()
