"""Fresh systems: a Debian or an Ubuntu with nothing installed, in a folder, made by debootstrap."""
import base64
import collections
import os
import re
import shutil
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PATH = os.environ['PATH'] + ':/usr/sbin:/sbin'
# Where a release comes from, and who signs it. Debian has no package with Ubuntu's keys: the one here is the public key
# F6EC B376 2474 EDA9 D21B 7022 8719 20D1 991B C93C. debootstrap's script is named for one older than the release.
Archive = collections.namedtuple('Archive', 'mirror keys script components')
DEBIAN = Archive('http://deb.debian.org/debian', '/usr/share/keyrings/debian-archive-keyring.gpg', 'sid', 'main')
UBUNTU = Archive('http://archive.ubuntu.com/ubuntu', f'{HERE}/packages/ubuntu-archive-2018.asc', 'gutsy',
                 'main,universe')
ARCHIVES = {'bullseye': DEBIAN, 'bookworm': DEBIAN, 'trixie': DEBIAN, 'forky': DEBIAN, 'jammy': UBUNTU, 'noble': UBUNTU}


def keyring(path, folder):
    """As gpgv takes it: in binary."""
    if not path.endswith('.asc'):
        return path
    with open(path, encoding='ascii') as file:
        body = re.search(r'\n\n(.*?)\n=', file.read(), re.S)[1]
    with tempfile.NamedTemporaryFile(dir=folder, suffix='.gpg', delete=False) as file:
        file.write(base64.b64decode(body))
    return file.name


def make(release, folder, scratch, include=''):
    """With these packages, too. Why it is not; None: it is."""
    archive = ARCHIVES[release]
    if os.geteuid() != 0 or not shutil.which('debootstrap', path=PATH):
        return 'needs root and debootstrap'
    if not os.path.exists(archive.keys):
        return f"no keys of its archive's ({archive.keys})"
    ran = subprocess.run(['debootstrap', '--variant=minbase', '--force-check-gpg', f'--components={archive.components}',
                          *([f'--include={include}'] if include else []),
                          f'--keyring={keyring(archive.keys, scratch)}', release, folder, archive.mirror,
                          archive.script], env=os.environ | {'PATH': PATH, 'LC_ALL': 'C.UTF-8'}, text=True,
                         errors='replace', stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=1200)
    return f'debootstrap: {" ".join(ran.stdout.splitlines()[-1:])}{ran.stderr}' if ran.returncode else None
