"""The packages that examples/packages/build.sh makes: built from the tree, they have nothing that the distribution's
checker minds; installed in a fresh system they work, with a program on the software driver; removed they leave nothing.

A fresh system of each RELEASE is made by debootstrap, which needs root and a network. RPMs are unpacked and run where
they lie, and so are Debian's packages where no system can be made.

usage: packages.py deb|rpm SOURCE BUILD VERSION SHARE_DRIVER HOLDER LIBCUDA [RELEASE...]
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import faults
import shell
import systems
from faults import check, end_with_faults

kind, source, build, version, share_driver, holder, libcuda = sys.argv[1:8]
releases = sys.argv[8:]
skipped, proved = [], []

ENVIRONMENT = {name: value for name, value in os.environ.items()
               if not name.startswith(('GPUSHIM_', 'LD_', 'MESON', 'DEB'))}
ENVIRONMENT.update(LC_ALL='C.UTF-8', PATH=os.environ['PATH'] + ':/usr/sbin:/sbin')
# In the fresh system; what a later one has besides is of dpkg's and ldconfig's own.
INSIDE = {'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'LC_ALL': 'C.UTF-8', 'HOME': '/nonexistent'}
OTHERS = re.compile(r'/(?:var/log|var/cache/ldconfig|var/lib/dpkg/[a-z]+-old$|var/lib/dpkg/lock|tmp|run|proc|dev)')
DRIVER = '/opt/driver'
HOMEPAGE = 'https://forge.invalid/libgpushim'
MIB = 1 << 20
# Mounts what programs expect, where nobody else sees it; $1 is the system, $2 the user.
ENTER = '''mount -t proc proc "$1/proc" || mount --rbind /proc "$1/proc" || exit 125
mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm" 2>/dev/null || exit 125
root=$1 user=$2; shift 2
exec chroot --userspec="$user" "$root" "$@"'''


def call(*words, environment=None, **options):
    return faults.call(words, environment or ENVIRONMENT, **options)


def end():
    for each in skipped:
        print('skipped:', each)
    end_with_faults(None if proved else 'nothing could be installed')


# ---- Building ---------------------------------------------------------------------------------------


def build_packages(folder):
    """Their paths by name."""
    ran = call('sh', f'{source}/examples/packages/build.sh', kind, folder,
               environment=ENVIRONMENT | {'GPUSHIM_BUILD': build, 'GPUSHIM_HOMEPAGE': HOMEPAGE})
    if ran.returncode == 77:
        skipped.append(ran.stderr.strip())
        end()
    if ran.returncode:
        check(False, f'build.sh ends with {ran.returncode}: {ran.stdout}{ran.stderr}')
        end()
    packages = {re.split(r'[_-]\d', os.path.basename(path))[0]: path for path in ran.stdout.split()}
    for name in ('gpushim', {'deb': 'libgpushim-dev', 'rpm': 'gpushim-devel'}[kind]):
        check(os.path.isfile(packages.get(name, '')), f'no package {name}: {ran.stdout}')
    if faults.faults:
        end()
    return packages


def check_fields(packages):
    """Who looks after it is the project, and where it is at home is what was said."""
    for name, path in packages.items():
        if name.endswith('dbgsym'):  # debhelper leaves the home page out of those
            continue
        words = ['dpkg-deb', '-f', path, 'Maintainer', 'Homepage']
        if kind == 'rpm':
            words = ['rpm', '-qp', '--queryformat', 'Maintainer: %{VENDOR}\\nHomepage: %{URL}\\n', path]
        said = call(*words).stdout
        check(re.fullmatch(rf'Maintainer: libgpushim maintainers( <\S+\.invalid>)?\nHomepage: {HOMEPAGE}\n', said),
              f'{path}: {said}')


def check_by_lintian(folder):
    if not shutil.which('lintian'):
        skipped.append('no lintian')
        return
    ran = call('lintian', '--display-info', '--pedantic', '--allow-root', *glob.glob(f'{folder}/*.changes'))
    check(ran.returncode == 0 and not ran.stdout.strip(),
          f'lintian ends with {ran.returncode}: {ran.stdout}{ran.stderr}')


# ---- What is installed ------------------------------------------------------------------------------


class Place:
    """Where the packages are installed: a folder, and how a command is run in it."""
    def __init__(self, name, root, chroot):
        self.name, self.root, self.chroot = name, root, chroot

    def run(self, *words, user='0:0', settings=None):
        if self.chroot:
            variables = [f'{name}={value}' for name, value in (settings or {}).items()]
            return call('unshare', '--mount', '--pid', '--fork', 'sh', '-c', ENTER, 'sh', self.root, user,
                        'env', *variables, *words, environment=INSIDE, timeout=600)
        settings = {name: self.path(value) if value.startswith('/') else value
                    for name, value in (settings or {}).items()}
        words = [self.path(word) if word.startswith('/') else word for word in words]
        return call(*words, timeout=600,
                    environment=INSIDE | {'PATH': f'{self.root}/usr/bin:' + INSIDE['PATH']} | settings)

    def shell(self, user='0:0'):
        """One that stays, with the software driver at hand; the folder is the one that the library chooses."""
        words = ['unshare', '--mount', '--pid', '--fork', 'sh', '-c', ENTER, 'sh', self.root, user, 'sh']
        settings = INSIDE | {'LD_LIBRARY_PATH': DRIVER}
        if not self.chroot:
            # Beside it others may share in that folder.
            os.makedirs(self.path('/tmp/share'), 0o700)
            words = ['sh']
            settings |= {'PATH': f'{self.root}/usr/bin:' + INSIDE['PATH'], 'LD_LIBRARY_PATH': self.path(DRIVER),
                         'GPUSHIM_SHARE_DIR': self.path('/tmp/share')}
        process = subprocess.Popen(words, env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        return shell.Shell(process, '/tmp' if self.chroot else self.path('/tmp'))

    def path(self, path):
        return self.root + path

    def seen(self, path):
        """As what runs in it calls it."""
        return path if self.chroot else os.path.realpath(self.path(path))


def library_of(place):
    found = [path for path in glob.glob(place.path('/usr/lib*/**/libgpushim.so'), recursive=True)]
    check(len(found) == 1, f'libraries: {found}')
    if not found:
        end()
    return found[0][len(place.root):]


def check_library(path):
    """The distribution's flags have not changed what it needs: libc alone, of 2.28 or older."""
    needed = re.findall(r'\(NEEDED\).*\[(.*)\]', call('readelf', '-dW', path).stdout)
    check(needed == ['libc.so.6'], f'{path} needs {needed}')
    versions = re.findall(r'@GLIBC_(\d+)\.(\d+)', call('nm', '-D', path).stdout)
    check(len(versions) > 20, f'{path}: {len(versions)} symbols of libc')
    newest = max(((int(major), int(minor)) for major, minor in versions), default=(0, 0))
    check(newest <= (2, 28), f'{path} needs glibc {newest}')
    ran = call(path)
    check(ran.returncode == 0 and ran.stdout.startswith(f'libgpushim {version}\n'),
          f'{path}, run as a program, ends with {ran.returncode}: {ran.stdout}{ran.stderr}')


def check_files(place, library):
    check_library(place.path(library))
    ran = call(sys.executable, f'{source}/tests/preload/check_broker.py', place.path('/usr/bin/gpushim-broker'),
               version)
    check(ran.returncode == 0, ran.stdout + ran.stderr)
    for path in ('include/gpushim.h', 'lib/systemd/user/gpushim-broker.socket',
                 'lib/systemd/user/gpushim-exporter.service', 'share/zsh/site-functions/_gpushim',
                 'share/bash-completion/completions/gpushim', 'share/fish/vendor_completions.d/gpushim.fish'):
        check(os.path.isfile(place.path('/usr/' + path)), f'/usr/{path} is not there')
    with open(place.path('/usr/lib/systemd/user/gpushim-broker.service'), encoding='utf-8') as file:
        check('\nExecStart=/usr/bin/gpushim-broker\n' in file.read(), 'the unit starts another program')
    if not shutil.which('pkg-config'):
        skipped.append('no pkg-config')
        return
    settings = ENVIRONMENT | {'PKG_CONFIG_LIBDIR': os.path.dirname(place.path(library)) + '/pkgconfig'}
    for what, expected in (('--modversion', version), ('--variable=library', library),
                           ('--variable=command', '/usr/bin/gpushim'), ('--variable=includedir', '/usr/include')):
        ran = call('pkg-config', what, 'gpushim', environment=settings)
        check(ran.stdout.strip() == expected, f'pkg-config {what} gpushim: {ran.stdout}{ran.stderr}')


def check_pages(place):
    if not re.match(r'man \d', call('man', '--version').stdout if shutil.which('man') else ''):
        skipped.append('no man')
        return
    for page in ('man1/gpushim.1', 'man1/gpushim-broker.1', 'man5/gpushim.conf.5', 'man7/libgpushim.7'):
        found = glob.glob(place.path(f'/usr/share/man/{page}*'))
        ran = call('man', '--warnings', '-l', *found)
        check(len(found) == 1 and ran.returncode == 0 and not ran.stderr and 'SEE ALSO' in ran.stdout,
              f'man -l {found}: {ran.returncode}: {ran.stdout[-200:]}{ran.stderr}')


def check_command(place, library):
    ran = place.run('gpushim', 'version')
    check(ran.returncode == 0 and version in ran.stdout and place.seen(library) in ran.stdout and not ran.stderr,
          f'gpushim version ends with {ran.returncode}: {ran.stdout}{ran.stderr}')
    ran = place.run('gpushim', 'doctor', '--json', settings={'LD_LIBRARY_PATH': DRIVER})
    try:
        rows = json.loads(ran.stdout)['rows']
    except ValueError:
        rows = []
    states = {row['subject']: (row['state'], row['found']) for row in rows}
    for subject, found in (('driver', DRIVER + '/libcuda.so.1'), ('library', library)):
        state, said = states.get(subject, ('absent', ''))
        check(state == 'ok' and place.seen(found) in said, f'gpushim doctor: {subject}: {state} {said}{ran.stderr}')


def check_sharing(place):
    """Memory that cannot be shared is shared with the library: as root, and as a user."""
    settings = {'LD_LIBRARY_PATH': DRIVER}
    for user in ('0:0', '65534:65534') if place.chroot else ('0:0',):
        for start, ends in (((), 'memory cannot be shared'), (('gpushim', 'run', '--'), 'consumer read the bytes')):
            ran = place.run(*start, DRIVER + '/share_driver', 'b', user=user, settings=settings)
            check(ran.returncode == 0 and ends in ran.stdout,
                  f'{start} share_driver b as {user} ends with {ran.returncode}: {ran.stdout}{ran.stderr}')


def check_steps(session, place, where):
    """What a new user does: doctor, run, and a look at what runs."""
    start = f'gpushim run -- {place.seen(DRIVER)}/holder'
    giver = shell.Driven(session, start)
    check(giver.do(f'alloc {96 * MIB}') == 'done', f'{where}: no memory: {giver.log()}')
    taker = shell.Driven(session, start, first=5)
    check(taker.do('open ' + giver.do('share 0')) == 'done', f'{where}: it cannot be opened: {taker.log()}')
    processes = 2 if place.chroot else r'\d+'

    for command, expected in (
            ('gpushim version', rf'gpushim {re.escape(version)}\nlibrary /'),
            ('gpushim doctor',
             rf'^ok +driver .*^ok +library .*^ok +processes +{processes} use CUDA with this library'),
            (f'gpushim doctor {giver.pid}', r'^ok +libraries +it has the library, '),
            ('gpushim top', rf'^ *{giver.pid} +\S+ +0 +[\d.]+ MiB +96\.0 MiB .* holder'),
            ('gpushim stats', rf'^ *{giver.pid} +\S+ +0 +[\d.]+ MiB +96\.0 MiB .* holder'),
            ('gpushim who', rf'^process pid {giver.pid} \(holder\): 1 blocks shared.*^ +held by pid {taker.pid} ')):
        ran = session.run(command)
        check(ran.returncode == 0 and re.search(expected, ran.stdout, re.M | re.S), f'{where}: {ran}')
    for program in taker, giver:
        status = program.end()
        check(status == 0, f'{where}: the program ended with {status}')


def check_use(place):
    for user in ('0:0', '65534:65534') if place.chroot else ('0:0',):
        session = place.shell(user)
        try:
            check_steps(session, place, f'{place.name} as {user}')
            session.end()
        except (shell.Ended, ValueError, subprocess.TimeoutExpired) as failure:
            check(False, f'{place.name} as {user}: {failure}')
            session.process.kill()
            session.process.wait()


def check_place(place):
    library = library_of(place)
    os.makedirs(place.path(DRIVER))
    shutil.copy(share_driver, place.path(DRIVER + '/share_driver'))
    shutil.copy(holder, place.path(DRIVER + '/holder'))
    shutil.copy(libcuda, place.path(DRIVER + '/libcuda.so.1'))
    check_files(place, library)
    check_pages(place)
    check_command(place, library)
    check_sharing(place)
    check_use(place)
    shutil.rmtree(place.path(DRIVER))
    proved.append(place.name)


# ---- A fresh system ---------------------------------------------------------------------------------


def fresh_system(release, folder):
    """None, with the reason in skipped, where none can be made."""
    place = Place(release, folder, True)
    why = systems.make(release, folder, temporary)
    if not why:
        ran = place.run('sh', '-c', '. /etc/os-release; echo $VERSION_CODENAME')
        why = f'no mounts or chroot here: {ran.stderr.strip()}' if ran.returncode else None
        check(why or ran.stdout == f'{release}\n', f'{release} is {ran.stdout}')
    if why:
        skipped.append(f'installing and removing in {release}: {why}')
    return None if why else place


def paths(place):
    found = set()
    for folder, folders, names in os.walk(place.root):
        found.update(os.path.join(folder, name)[len(place.root):] for name in folders + names)
    return {path for path in found if not OTHERS.match(path)}


def check_system(place, packages):
    before = paths(place)
    names = ['gpushim', 'libgpushim-dev']
    os.makedirs(place.path('/tmp/packages'))
    for name in names:
        shutil.copy(packages[name], place.path(f'/tmp/packages/{name}.deb'))
    ran = place.run('dpkg', '-i', *(f'/tmp/packages/{name}.deb' for name in names))
    check(ran.returncode == 0, f'dpkg -i in {place.name} ends with {ran.returncode}: {ran.stdout}{ran.stderr}')
    if ran.returncode:
        return
    ran = place.run('true', settings={'LD_PRELOAD': 'libgpushim.so'})
    check(ran.returncode == 0 and not ran.stderr, f'LD_PRELOAD=libgpushim.so in {place.name}: {ran.stderr}')
    check_place(place)
    ran = place.run('dpkg', '--purge', *names)
    check(ran.returncode == 0, f'dpkg --purge in {place.name} ends with {ran.returncode}: {ran.stdout}{ran.stderr}')
    left, taken = sorted(paths(place) - before), sorted(before - paths(place))
    check(not left, f'{place.name}: after removal there is still: {left}')
    check(not taken, f'{place.name}: removal took along: {taken}')


def unpack(packages, folder):
    for name, path in packages.items():
        if name.endswith(('dbgsym', 'debuginfo', 'debugsource')):
            continue
        words = ['dpkg-deb', '-x', path, folder]
        if kind == 'rpm':
            words = ['sh', '-c', 'cd "$1" && rpm2cpio "$0" | cpio -idm --quiet', path, folder]
        ran = call(*words)
        check(ran.returncode == 0, f'{words}: {ran.stdout}{ran.stderr}')
    return Place('unpacked', folder, False)


with tempfile.TemporaryDirectory(prefix='gpushim-packages-', ignore_cleanup_errors=True) as temporary:
    os.chmod(temporary, 0o755)
    os.mkdir(f'{temporary}/packages')
    built = build_packages(f'{temporary}/packages')
    check_fields(built)
    if kind == 'deb':
        check_by_lintian(f'{temporary}/packages')
    elif not shutil.which('cpio'):
        skipped.append('no cpio to unpack an RPM')
        end()
    for each in releases:
        system = fresh_system(each, f'{temporary}/{each}')
        if system:
            check_system(system, built)
    if not proved and not faults.faults:
        os.mkdir(f'{temporary}/unpacked')
        check_place(unpack(built, f'{temporary}/unpacked'))
end()
