"""Checks the scripts that build, count and check (tests/lib.sh, tests/count.py, tests/check_docs.py,
tests/check_format.py, tests/check_version.py, tests/check_words.py, tests/layers/check_layers.py, shim/find_cuda.sh)
on projects, headers, logs, pages and sources made up here.

usage: check_scripts.py REPOSITORY
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])


def check(what, got, expected):
    if got != expected:
        sys.exit(f'{what}: {got!r}, not {expected!r}')


def shell(script, folder, **settings):
    """What the functions of lib.sh make of a repository that lies in `folder`."""
    environment = dict(os.environ, **settings)
    environment.pop('LD_PRELOAD', None)
    return subprocess.run(['sh', '-euc', f'root={folder}\n. {ROOT}/tests/lib.sh\n{script}'],
                          env=environment, text=True, capture_output=True, check=False,
                          stdin=subprocess.DEVNULL)


# A project as this one in small: a test is built only where a header was found.
PROJECT = '''project('small', 'c', meson_version: '>= 1.0.0')
cc = meson.get_compiler('c')
test('always', find_program('true'))
if cc.has_header('came_later.h') and get_option('tests') and get_option('examples')
  test('with the header', find_program('true'))
endif
'''


def tests_of(build):
    run = subprocess.run(['meson', 'test', '-C', build, '--list'], text=True, capture_output=True,
                         check=False)
    return sorted(line.rpartition('/')[2].strip() for line in run.stdout.splitlines()
                  if 'always' in line or 'header' in line)


def check_configure(folder):
    """A folder that was configured before a header was there, or with tests off, builds the tests
    that a new one does."""
    headers = folder / 'headers'
    headers.mkdir()
    (folder / 'meson.build').write_text(PROJECT)
    (folder / 'meson_options.txt').write_text(
        "option('tests', type: 'boolean', value: true)\n"
        "option('examples', type: 'boolean', value: true)\n")
    build = folder / 'build'
    configured = shell(f'configure {build}', folder, CPATH=str(headers))
    check('a new folder', (configured.returncode, tests_of(build)), (0, ['always']))
    (headers / 'came_later.h').write_text('')
    configured = shell(f'configure {build}', folder, CPATH=str(headers))
    check('the same folder, with what it lacked',
          (configured.returncode, tests_of(build)), (0, ['always', 'with the header']))
    subprocess.run(['meson', 'configure', build, '-Dtests=false'], check=True, capture_output=True)
    configured = shell(f'configure {build} -Dwerror=true', folder, CPATH=str(headers))
    check('a folder with tests off', (configured.returncode, tests_of(build)),
          (0, ['always', 'with the header']))


def toolkit(folder, version):
    """A folder with a cuda.h of that version."""
    place = folder / f'cuda-{version // 1000}.{version % 1000 // 10}'
    (place / 'include').mkdir(parents=True)
    (place / 'include' / 'cuda.h').write_text(f'#define CUDA_VERSION {version}\n')
    return place


def find_cuda(*arguments, **settings):
    run = subprocess.run(['sh', ROOT / 'shim' / 'find_cuda.sh', *arguments], text=True,
                         capture_output=True, env=dict(os.environ, **settings), check=False)
    return run.returncode, run.stdout.strip(), run.stderr.strip()


def check_find_cuda(folder):
    places = {version: toolkit(folder, version) for version in (12040, 12060, 12080, 13020)}
    modules = folder / 'modules'
    modules.mkdir()
    for version, place in places.items():
        text = f'{version // 1000}.{version % 1000 // 10}'
        (modules / f'cuda-{text}.pc').write_text(
            f'Name: cuda\nDescription: made up\nVersion: {text}\nCflags: -I{place}/include\n')
    for version, place in places.items():
        fits = version >= 12080
        text = f'{version // 1000}.{version % 1000 // 10}'
        expected = (0, f'{place}/include', '') if fits else (
            1, '', f'{place}/include/cuda.h is of CUDA {text}; 12.8 or newer is needed')
        check(f'{text} by name', find_cuda(str(place)), expected)
    check('nothing there', find_cuda(str(folder / 'nowhere')), (1, '', ''))
    check('CUDA_HOME', find_cuda(CUDA_HOME=str(places[12080]))[:2],
          (0, f'{places[12080]}/include'))
    if pathlib.Path('/usr/local/cuda/include/cuda.h').exists() or not shutil.which('pkg-config'):
        print('skipped: what pkg-config knows comes after /usr/local/cuda, which is here')
        return
    only = {'CUDA_HOME': '', 'PKG_CONFIG_LIBDIR': str(modules), 'PKG_CONFIG_PATH': ''}
    check('the newest that pkg-config knows', find_cuda(**only), (0, f'{places[13020]}/include', ''))
    for version in (13020, 12080):
        shutil.rmtree(places[version])
    status, found, said = find_cuda(**only)
    check('too old ones', (status, found, said.count('12.8 or newer')), (1, '', 2))
    check('lib.sh fetches then', shell('cuda_headers_found', ROOT, **only).returncode, 1)


def stand_ins(folder, **programs):
    """A folder with these, which a PATH begins with."""
    place = pathlib.Path(tempfile.mkdtemp(dir=folder))
    for name, text in programs.items():
        (place / name).write_text(f'#!/bin/sh\n{text}\n')
        (place / name).chmod(0o755)
    return place


def check_examples(_):
    """A program that ends before it has said anything is not waited for."""
    said = subprocess.run(['sh', '-euc', f"""root={ROOT} naps=0
sleep() {{ command sleep "$1"; naps=$((naps + 1)); [ $naps -lt 1000 ] || exit 9; }}
. {ROOT}/examples/lib.sh
start dead 3 sh -c 'echo of this >&2; exit 1'
echo goes on"""], text=True, capture_output=True, check=False)
    check('a program that says nothing', (said.returncode, said.stdout, said.stderr),
          (1, 'sh: dead says nothing\n', 'of this\n'))


def check_what_stands_in_the_way(folder):
    """Each of the two commands says at once what does, and names the cause."""
    spaced = folder / 'a space'
    for name in ('tests/lib.sh', 'tests/run.sh', 'examples/quickstart.sh'):
        (spaced / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, spaced / name)
    for name, begins in (('examples/quickstart.sh', 'quickstart: failed: '), ('tests/run.sh', 'failed: ')):
        run = subprocess.run(['sh', spaced / name], text=True, capture_output=True, check=False,
                             stdin=subprocess.DEVNULL)
        check(f'{name} in a folder with a space', (run.returncode, run.stdout.splitlines()[0], run.stderr), (
            1, f"{begins}the folder '{spaced}' has a space or a colon in its name, where the dynamic linker splits "
            'LD_PRELOAD: use another one', ''))
    programs = stand_ins(folder, id='echo 1000', basename='echo x', **{'apt-get': ''})
    said = shell(f'PATH={programs}; install_packages "one two three" two', ROOT)
    check('no root', (said.returncode, said.stderr), (1, 'x: missing: two; as root, for this and for all tests: '
          'apt-get update && apt-get install -y --no-install-recommends one two three\n'))
    said = shell(f'PATH={stand_ins(folder, dpkg="")}; missing_for_build /nonexistent', ROOT)
    check("Debian's folder of libraries", 'dpkg-dev' in said.stdout.split(), True)
    fetched = 'Failed to fetch http://a.mirror/x  Temporary failure resolving a.mirror'
    programs = stand_ins(folder, id='echo 0', sleep='', **{'apt-get': f"""case $* in
*update) echo 'W: {fetched}' ;;
*) echo 'E: Package two has no installation candidate'; exit 100 ;;
esac"""}, python3="""echo "WARNING: Retrying (Retry(total=0)) after connection broken by 'no name resolution'"
echo 'ERROR: No matching distribution found'
exit 1""")
    path = {'PATH': f'{programs}:{os.environ["PATH"]}'}
    said = shell('install_packages two two', ROOT, **path)
    check('no network for apt-get', (said.returncode, fetched in said.stderr), (1, True))
    log = re.search(r'\(log: ([^)]*)\)', said.stderr)[1]
    check('its log', 'no installation candidate' in pathlib.Path(log).read_text(), True)
    os.unlink(log)
    said = shell(f'cuda_headers_found() {{ false; }}; fetch_cuda_headers {folder}', ROOT, **path)
    check('no network for pip', (said.returncode, "'no name resolution'" in said.stderr), (1, True))
    log = re.search(r'\(log: ([^)]*)\)', said.stderr)[1]
    check("pip's log", 'No matching distribution' in pathlib.Path(log).read_text(), True)


def check_count(folder):
    log = folder / 'testlog.json'
    tests = (('one', 'OK', 'fine\n', ''), ('fails as it should', 'EXPECTEDFAIL', '', ''),
             ('whole', 'SKIP', 'skipped: no podman here\n', ''), ('mute', 'SKIP', '', ''),
             ('criterion', 'OK', '', '[SKIP] suite::of_two: one device\n[PASS] suite::other: (0.1s)\n'
              '[SKIP] suite::filtered: Test is disabled\n'),
             ('in colours', 'OK', '[\x1b[0;33mSKIP\x1b[0m] \x1b[1ma::b\x1b[0m: why: so\n', ''),
             ('part', 'OK', 'ok\nskipped: only root can be two users\n', ''),
             ('bad', 'FAIL', 'a\nb\n', 'c\n[SKIP] bad::too: so\n'), ('slow', 'TIMEOUT', '', ''),
             ('far above', 'FAIL', '', '[PASS] far::one\n[\x1b[0;34m----\x1b[0m] x.c:1: Assertion Failed\n'
              '[FAIL] far::two\n' + 'more\n' * 30))
    log.write_text(''.join(json.dumps(dict(zip(('name', 'result', 'stdout', 'stderr'), test))) + '\n'
                           for test in tests))
    run = subprocess.run([sys.executable, ROOT / 'tests' / 'count.py', log], text=True,
                         capture_output=True, check=True)
    check('counts', run.stdout.splitlines(), [
        '5 3 6', 'failed: bad (FAIL)', 'failed: slow (TIMEOUT)', 'failed: far above (FAIL)',
        'skipped: whole: no podman here', 'skipped: mute: no reason given',
        'skipped: criterion: suite::of_two: one device', 'skipped: in colours: a::b: why: so',
        'skipped: part: only root can be two users', 'skipped: bad: bad::too: so',
        '== bad', 'a', 'b', '', 'c', '[SKIP] bad::too: so', '== slow', '== far above',
        '[\x1b[0;34m----\x1b[0m] x.c:1: Assertion Failed', '[FAIL] far::two', *['more'] * 30])


def faults_of_pages(folder):
    run = subprocess.run([sys.executable, ROOT / 'tests' / 'check_docs.py', folder], text=True,
                         capture_output=True, check=False)
    check('the status', run.returncode, 1 if run.stdout else 0)
    return run.stdout.splitlines()


def check_pages(folder):
    pages = {'README.md': '# A project\n\nSee [the pool](core/pool/README.md#its-locks), `core/pool`,\n'
                          '[a site](https://a.site/x.c#y), a_file.c, tests/*.txt and `gs_pool_take_locked`.\n',
             'core/pool/README.md': '# The pool\n\n## Its locks\n\nblock.c, ../../a_file.c\n'}
    (folder / 'tests').mkdir()
    (folder / 'core' / 'pool').mkdir(parents=True)
    for name in ('a_file.c', 'tests/a.txt', 'core/pool/block.c'):
        (folder / name).write_text('int gs_pool_take_locked(void);\n')
    (folder / 'tests' / 'b.c').write_text('')
    for name, text in pages.items():
        (folder / name).write_text(text)
    check('pages as they are to be', faults_of_pages(folder), [])
    wrong = (('README.md', 'no.c', 'README.md:5: names no.c, which is not there'),
             ('README.md', 'core/no', 'README.md:5: names core/no, which is not there'),
             ('README.md', 'tests/*.py', 'README.md:5: names tests/*.py, which is not there'),
             ('README.md', '`gs_pool_no`', 'README.md:5: names gs_pool_no, which is in no source'),
             ('README.md', 'GPUSHIM_NO', 'README.md:5: names GPUSHIM_NO, which is in no source'),
             ('README.md', '[x](no.md)', 'README.md:5: a link to no.md, which is not there'),
             ('README.md', '`gs_pool_take_locked` (tests/b.c)',
              'README.md: says that gs_pool_take_locked is in tests/b.c, and it is not'),
             ('core/pool/README.md', '[x](../../README.md#no)', 'core/pool/README.md:6: a link to '
              '#no, a heading that README.md has not'),
             ('README.md', '\n' * 106, 'README.md: 111 lines, 110 at most'),
             ('README.md', 'a' * 111, 'README.md:5: 111 columns, 110 at most'),
             ('core/pool/README.md', '| ' + 'a' * 119, 'core/pool/README.md:6: 121 columns, 120 at most'),
             ('README.md', '\n' + 'a ' * 31, f'README.md: a sentence of 31 words, 30 at most: {("a " * 31).strip()}'),
             ('core/pool/README.md', '\n' + 'a.\n' * 1150, 'core/pool/README.md: 1158 words, 1150 at most'))
    for name, more, fault in wrong:
        (folder / name).write_text(pages[name] + more + '\n')
        check(f'{name} and {more!r}', faults_of_pages(folder), [fault])
        (folder / name).write_text(pages[name])
    (folder / 'core' / 'pool' / 'new.c').write_text('')
    check('a new file', faults_of_pages(folder), ['core/pool/README.md: does not name new.c'])
    (folder / 'core' / 'base').mkdir()
    (folder / 'core' / 'base' / 'log.c').write_text('')
    check('a new folder', faults_of_pages(folder), [
        'core/base: has no README.md', 'core/pool/README.md: does not name new.c'])


def check_version(folder):
    """One line changes the version: all others are told of, and written."""
    def said(*words):
        return subprocess.run([sys.executable, ROOT / 'tests' / 'check_version.py', folder, *words], text=True,
                              capture_output=True, check=False).stdout.splitlines()

    project = "project('small', 'c',\n  version: '{}',\n)\n"
    texts = {'shim/gpushim.h': '#define GPUSHIM_VERSION_MAJOR 1\n#define GPUSHIM_VERSION_MINOR 0\n'
                               '#define GPUSHIM_VERSION_PATCH 0\n#define GPUSHIM_VERSION "1.0.0"\n',
             'examples/containers/a.yaml': 'newTag: 1.0.0\n',
             'examples/a/README.md': 'gpushim 1.0.0, of glibc 2.36.1\n'}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / 'meson.build').write_text(project.format('1.0.0'))
    (folder / 'CHANGELOG.md').write_text('# Changes\n\n## 1.0.0\n\n- All.\n')
    check('one version', said(), [])
    (folder / 'meson.build').write_text(project.format('2.1.3'))
    check('another version', [line.partition(':')[0] for line in said()], [*texts, 'CHANGELOG.md'])
    check('written', said('--write'), ['CHANGELOG.md: its first entry is not of 2.1.3'])
    (folder / 'CHANGELOG.md').write_text('# Changes\n\n## 2.1.3\n' + '\n' * 60 + '## 1.0.0\n')
    check('a long entry', said(), ['CHANGELOG.md: the entry of 2.1.3 has more than 60 lines'])
    check('what is written', [(folder / name).read_text() for name in texts],
          ['#define GPUSHIM_VERSION_MAJOR 2\n#define GPUSHIM_VERSION_MINOR 1\n#define GPUSHIM_VERSION_PATCH 3\n'
           '#define GPUSHIM_VERSION "2.1.3"\n', 'newTag: 2.1.3\n', 'gpushim 2.1.3, of glibc 2.36.1\n'])


# A core as this one in small. Each of its files, of which the one above may call the one below.
LAYERS = {
    'core/base/log.h': '''struct gs_log {
    void (*line)(const char *text);
};
''',
    'core/base/log.c': '''#include "core/base/log.h"
void log_line(const char *text)
{
}
''',
    'core/pool/pool.c': '''/* As in core/base/log.c. */
#include <stddef.h>
#include "core/base/log.h"
void log_line(const char *text);
void pool_take(void)
{
    log_line("}{");
}
''',
    'core/share/share.c': 'void share_open(void)\n{\n}\n',
    'core/regcache/pins.c': 'int pins = 1;\n',
    'shim/start.c': 'void start(void)\n{\n}\n',
    'tests/unit/fixture.h': '#include "core/api/core.h"\n',
    'tests/unit/process/pool.c': '#include "core/pool/pool.h"\n#include "tests/unit/fixture.h"\n',
    'core/README.md': '| `line` of `struct gs_log` (core/base/log.h) | all | why |\n',
    'tests/layers/exceptions.txt': '# Why.\n\ncallback gs_log.line: who owns the log\n',
}


def faults_of_layers(folder):
    """Builds what is there, as meson would, and has it checked."""
    objects = {'core': [], 'shim': []}
    shutil.rmtree(folder / 'built', ignore_errors=True)
    for source in sorted(folder.glob('core/*/*.c')) + sorted(folder.glob('shim/*.c')):
        top, *names = source.relative_to(folder).parts
        (folder / 'built' / top).mkdir(parents=True, exist_ok=True)
        objects[top].append(folder / 'built' / top / ('_'.join(names) + '.o'))
        subprocess.run([*os.environ.get('CC', 'cc').split(), '-w', '-I', folder, '-c', source, '-o', objects[top][-1]],
                       check=True)
    archive = folder / 'built' / 'core.a'
    subprocess.run(['ar', 'rcs', archive, *objects['core']], check=True)
    run = subprocess.run([sys.executable, folder / 'tests' / 'layers' / 'check_layers.py', archive,
                          folder / 'built' / 'shim'], text=True, capture_output=True, check=False)
    check('the status', run.returncode, 0 if run.stdout.startswith('ok: ') else 1)
    return [] if run.stdout.startswith('ok: ') else (run.stdout + run.stderr).splitlines()


def members(count):
    return ''.join(f'    int of_{i};\n' for i in range(count))


def check_layers(folder):
    (folder / 'tests' / 'layers').mkdir(parents=True)
    for name, text in LAYERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / 'config').mkdir()
    shutil.copy(ROOT / 'tests' / 'layers' / 'check_layers.py', folder / 'tests' / 'layers')
    check('sources as they are to be', faults_of_layers(folder), [])
    up, across = "['pool_take'] is called up, or across", "['share_open'] is called up, or across"
    wrong = (
        ('core/base/log.c', 'void pool_take(void);\nvoid up(void)\n{\n    pool_take();\n}\n',
         [f'call base/log pool/pool: {up}']),
        ('core/base/log.c', 'void pool_take(void) __attribute__((weak));\nvoid *up = pool_take;\n',
         [f'call base/log pool/pool: {up}']),
        ('core/base/log.c', 'extern int pins;\nint *up = &pins;\n',
         ["call base/log regcache/pins: ['pins'] is called up, or across"]),
        ('core/regcache/pins.c', 'void share_open(void);\nvoid over(void)\n{\n    share_open();\n}\n',
         [f'call regcache/pins share/share: {across}']),
        ('core/share/share.c', '#include <poll.h>\n#include <fcntl.h>\nvoid wait_here(struct pollfd *of)\n{\n'
         '    poll(of, fcntl(of->fd, F_DUPFD, 0), -1);\n}\n',
         ["kernel core/share/share.c: ['fcntl', 'poll'] meet the kernel, as system files alone do"]),
        ('core/share/conn.c', '#include <poll.h>\nvoid wait_here(struct pollfd *of)\n{\n'
         '    poll(of, 1, -1);\n}\n', []),
        ('core/share/alive.c', 'int alive;\n', ['kernel core/share/alive.c: is called a system file, and '
         'nothing of it meets the kernel']),
        ('core/base/log.h', '#ifdef NO\n#include "../pool/pool.h"\n#endif\n',
         ['include core/base/log.h ../pool/pool.h: is not named by its path from the root']),
        ('config/table.h', '#ifdef NO\n#include "core/base/log.h"\n#include "core/gpu/map.h"\n#endif\n',
         ['include config/table.h core: core and config know of nothing above']),
        ('tests/unit/base/log.c', '#include "tests/unit/api/more.h"\n#include "../api/more.h"\n',
         ['include tests/unit/base/log.c api: a test of base includes up, or across',
          'include tests/unit/base/log.c ..: a test of base includes up, or across']),
        ('shim/start.c', '\n' * 600, ['file shim/start.c: 603 lines, 600 are enough']),
        ('tests/some.c', '\n' * 811, ['file tests/some.c: 811 lines, 810 are enough']),
        ('shim/start.c', '__attribute__((noinline)) static int longest(int first,\n'
         '            int second)\n{\n    char c = \'"\';\n' + '    ;\n' * 60 + '}\n',
         ['function shim/start.c longest: 61 lines']),
        ('shim/start.c', 'typedef struct {\n    struct {\n' + members(29) + '    } in;\n'
         '    void (*run)(void (*visit)(int a, int b), int c);\n    int a;\n} gs_much;\n',
         ['struct gs_much: 31 fields, 30 are enough']),
        ('core/base/log.h', 'typedef void gs_fn(int a);\nstruct gs_up {\n    gs_fn *ask;\n};\n',
         ['callback gs_up.ask: is not listed']),
        ('shim/start.c', '/* As in core/pool/no.c. */\n',
         ['name shim/start.c core/pool/no.c: a comment names a file that is not there']),
        ('core/README.md',
         '| ' + ', '.join(f'`f{i}`' for i in 'abcdefghijk') + ' of `struct gs_up` (core/base/log.h) | all | why |\n',
         [f'callback gs_up.f{i}: core/README.md has it, exceptions.txt not, or the other way round'
          for i in 'abcdefghijk'] +
         ['core/README.md: 12 callbacks, 11 are enough']),
        ('tests/layers/exceptions.txt', 'file core/base/log.c: long\n',
         ['exceptions.txt: not needed any more: file core/base/log.c']),
        ('tests/layers/exceptions.txt', 'file core/base/log.c\n',
         ['exceptions.txt: no reason is given: file core/base/log.c']),
        ('tests/layers/exceptions.txt', 'callback gs_log.line: again\n',
         ['exceptions.txt: twice: callback gs_log.line']),
    )
    for name, more, faults in wrong:
        text = (folder / name).read_text() if (folder / name).exists() else None
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text((text or '') + more)
        check(f'{name} and {more!r}', faults_of_layers(folder), faults)
        if text is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(text)
    for i in range(7):
        (folder / 'core' / 'pool' / f'of{i}.c').write_text(
            f'void of_{(i + 1) % 7}(void);\nvoid of_{i}(void)\n{{\n    of_{(i + 1) % 7}();\n}}\n')
    check('a circle', faults_of_layers(folder),
          ['circle core/pool: 7 files call each other in a circle'])
    (folder / 'core' / 'pool' / 'of6.c').write_text('')
    check('a file of which nothing is known', faults_of_layers(folder)[0].split(' in ')[0],
          "nothing is known of ['pool/of6']")


def check_format(folder):
    """Of lines that are too long; how C is laid out is clang-format's to say."""
    for name, text in {
            'core/base/log.c': f'/* {"x" * 94} */\n/* {"x" * 95} */\n#define LONG {"x" * 100} \\\n    1\n',
            'core/base/table.h': f'/* clang-format off */\n{"x" * 200}\n/* clang-format on */\n{"x" * 101}\n',
            'core/share/share.c': f'/* {"x" * 124} */\n/* {"x" * 125} */\n', 'tests/some.txt': 'x' * 200,
            'tests/some.py': f'# {"x" * 118}\n# {"x" * 119}\n', 'examples/some.sh': f'# {"x" * 119}\n'}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    run = subprocess.run([sys.executable, ROOT / 'tests' / 'check_format.py', folder, folder], text=True,
                         capture_output=True, check=False)
    check('long lines', run.stderr.splitlines(), [
        'core/base/log.c:2: 101 columns, 100 at most', 'core/base/table.h:4: 101 columns, 100 at most',
        'core/share/share.c:2: 131 columns, 130 at most', 'examples/some.sh:1: 121 columns, 120 at most',
        'tests/some.py:2: 121 columns, 120 at most'])
    check('their status', run.returncode, 1)


def check_words(folder):
    texts = {
        'core/pool/a.c': '/* The same of all. */\nint gs_chunk_size, stripe, purgeable;\n/* The same tree. */\n',
        'core/share/b.c': 'int chunk;\n', 'tests/c.py': '"""The same where nothing is."""\nhe = her_own = "Himself"\n',
        'examples/d.sh': '# dpkg --purge is no word of ours, purge is.\n', 'README.md': 'A plea.\n'}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    run = subprocess.run([sys.executable, ROOT / 'tests' / 'check_words.py', folder], text=True, capture_output=True,
                         check=False)
    check('words', [line.split(' is retired')[0] for line in run.stdout.splitlines()], [
        "README.md:1: 'plea'", "core/pool/a.c:1: '/* The same of'", "core/pool/a.c:2: 'chunk'",
        "examples/d.sh:1: 'purge'", "tests/c.py:1: '\"\"\"The same where'", "tests/c.py:2: 'he'"])
    check('their status', run.returncode, 1)


for case in (check_configure, check_find_cuda, check_examples,
             check_what_stands_in_the_way, check_count, check_pages, check_version, check_format, check_words,
             check_layers):
    with tempfile.TemporaryDirectory() as name:
        case(pathlib.Path(name))
