"""Containers that have one mounted folder in common.

Each has PID, IPC, network, mount, UTS and user namespaces of its own, no capability, no privilege
and no device. What all see is one folder, writable, and nothing else that another can change.
Inside are a static busybox, the dynamic loader, a test's program and the libraries that it needs,
the library, a program of its own, and the driver.
"""

import json
import os
import re
import shutil
import subprocess
import time

os.umask(0o022)  # users of containers look at what is made here
HERE = 0        # the user inside whom the giver is
OTHER = 5       # another user inside
FIRST = 100000  # the user outside who is user 0 inside
TIMEOUT = 60


class Skip(Exception):
    """Why nothing can be proved here."""


def libraries(program, libcuda):
    """The libraries and the loader that the dynamic linker would map for `program`."""
    env = dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(libcuda))
    text = subprocess.run(["ldd", program], env=env, capture_output=True, text=True,
                          check=True).stdout
    return [path for path in re.findall(r"(/\S+)", text)]


def make_root(root, program, shim, libcuda, own):
    """A root file system of a few megabytes; every file keeps the path that the loader asks for."""
    for folder in ("bin", "lib", "proc", "dev", "tmp", "shared", "etc", "sys", "run", "var/tmp"):
        os.makedirs(os.path.join(root, folder), exist_ok=True)
    for file in ("etc/hosts", "etc/hostname", "etc/resolv.conf", "run/.containerenv"):
        with open(os.path.join(root, file), "w", encoding="utf-8"):
            pass  # what podman mounts over
    busybox = shutil.which("busybox")
    if not busybox:
        raise Skip("no busybox; busybox-static has it")
    shutil.copy(busybox, os.path.join(root, "bin/busybox"))
    shutil.copy(program, os.path.join(root, "bin"))
    shutil.copy(own, os.path.join(root, "bin"))
    shutil.copy(shim, os.path.join(root, "lib/libgpushim.so"))
    shutil.copy(libcuda, os.path.join(root, "lib/libcuda.so.1"))
    for path in libraries(program, libcuda) + libraries(shim, libcuda) + libraries(own, libcuda):
        if "libcuda" in path or "libgpushim" in path:
            continue
        target = root + path if "ld-" in os.path.basename(path) else \
            os.path.join(root, "lib", os.path.basename(path))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            shutil.copy(os.path.realpath(path), target)
    subprocess.run(["chmod", "-R", "a+rX", root], check=True)
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", f"{FIRST}:{FIRST}", root], check=True)


def environment(settings):
    """What a container's user sets: the preload and the folder, and what the case is about."""
    return {"PATH": "/bin", "LD_LIBRARY_PATH": "/lib", "LD_PRELOAD": "/lib/libgpushim.so",
            "GPUSHIM_SHARE_DIR": "/shared/run", "GPUSHIM_LOG": "debug",
            "SOFTCUDA_MEMORY": "16M", **settings}


class Bwrap:
    """bwrap gives a container one user, the same inside as outside; all others look alike."""

    name = "bwrap"
    others_look = "65534"
    outside = staticmethod(lambda user: 0 if user == HERE else FIRST + user)

    def __init__(self, root, _folder):
        self.root = root

    def command(self, user, shared, env, argv):
        command = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net",
                   "--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL", "--new-session",
                   "--die-with-parent", "--clearenv", "--ro-bind", self.root, "/", "--proc",
                   "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind", shared, "/shared"]
        for name, value in env.items():
            command += ["--setenv", name, value]
        command += ["--"] + argv
        if user != HERE:
            if os.geteuid() != 0:
                return None
            outside = str(self.outside(user))
            command = ["setpriv", "--reuid", outside, "--regid", outside, "--clear-groups"] + command
        return command

    def start(self, user, shared, env, argv, output, words=subprocess.DEVNULL):
        command = self.command(user, shared, env, argv)
        if not command:
            return None
        return Running(subprocess.Popen(command, stdin=words, stdout=output,
                                        stderr=subprocess.STDOUT))


class Runc:
    """runc, with a range of users that is the same for both containers."""

    name = "runc"
    others_look = str(OTHER)
    outside = staticmethod(lambda user: FIRST + user)

    def __init__(self, root, folder):
        if os.geteuid() != 0:
            raise Skip("runc makes these containers for root only")
        self.root = root
        self.folder = folder
        self.number = 0

    def config(self, user, shared, env, argv):
        ids = [{"containerID": 0, "hostID": FIRST, "size": 1000}]
        kinds = ["pid", "ipc", "uts", "mount", "network", "user"]
        private = ["nosuid", "noexec", "nodev"]
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False, "user": {"uid": user, "gid": user}, "args": argv, "cwd": "/",
                "env": [f"{name}={value}" for name, value in env.items()],
                "capabilities": {kind: [] for kind in ("bounding", "effective", "permitted")},
                "noNewPrivileges": True,
                "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]},
            "root": {"path": self.root, "readonly": True},
            "hostname": "container",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                 "options": ["nosuid", "mode=755", "size=64k"]},
                {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs",
                 "options": private + ["size=1m"]},
                {"destination": "/shared", "type": "bind", "source": shared,
                 "options": ["bind", "rw"] + private}],
            "linux": {"uidMappings": ids, "gidMappings": ids,
                      "namespaces": [{"type": kind} for kind in kinds],
                      "maskedPaths": ["/proc/kcore"], "readonlyPaths": ["/proc/sys"]}}

    def start(self, user, shared, env, argv, output, words=subprocess.DEVNULL):
        self.number += 1
        bundle = os.path.join(self.folder, f"bundle{self.number}")
        os.mkdir(bundle)
        with open(os.path.join(bundle, "config.json"), "w", encoding="utf-8") as file:
            json.dump(self.config(user, shared, env, argv), file)
        state = os.path.join(self.folder, "state")
        identity = f"gpushim-{os.getpid()}-{self.number}"
        process = subprocess.Popen(
            ["runc", "--root", state, "run", "--bundle", bundle, identity],
            stdin=words, stdout=output, stderr=subprocess.STDOUT)
        kill = ["runc", "--root", state, "kill", identity, "KILL"]
        return Running(process, kill, ["runc", "--root", state, "delete", "--force", identity])


class Podman:
    """podman, with runc below it; the root file system is used as it lies there."""

    name = "podman"
    options = () # more of podman run's
    others_look = str(OTHER)
    outside = staticmethod(lambda user: FIRST + user)

    def __init__(self, root, folder):
        if os.geteuid() != 0:
            raise Skip("these podman containers are for root only")
        self.root = root
        self.folder = folder
        self.number = 0

    def start(self, user, shared, env, argv, output, words=subprocess.DEVNULL):
        self.number += 1
        identity = f"gpushim-{os.getpid()}-{self.number}"
        store = ["podman", "--root", os.path.join(self.folder, "store"), "--runroot",
                 os.path.join(self.folder, "runroot"), "--cgroup-manager", "cgroupfs"]
        if shutil.which("runc"):
            store += ["--runtime", shutil.which("runc")]
        command = store + [
            "run", *self.options, "--interactive", "--rm", "--name", identity, "--network", "none", "--ipc", "private",
            "--cap-drop", "all", "--security-opt", "no-new-privileges",
            "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
            "--uidmap", f"0:{FIRST}:1000", "--gidmap", f"0:{FIRST}:1000",
            "--user", f"{user}:{user}", "--read-only", "--volume", f"{shared}:/shared:rw"]
        for name, value in env.items():
            command += ["--env", f"{name}={value}"]
        command += ["--rootfs", self.root] + argv
        return Running(
            subprocess.Popen(command, stdin=words, stdout=output, stderr=subprocess.STDOUT),
            store + ["kill", "--signal", "KILL", identity], store + ["rm", "--force", identity])


class Running:
    """A container that runs; `kill` ends all in it, as a container's end does."""

    def __init__(self, process, kill=None, remove=None):
        self.process = process
        self.kill_command = kill
        self.remove_command = remove

    def kill(self):
        if self.kill_command:
            subprocess.run(self.kill_command, capture_output=True, timeout=TIMEOUT, check=False)
        else:
            self.process.kill()
        self.process.wait(TIMEOUT)

    def wait(self):
        return self.process.wait(TIMEOUT)

    def remove(self):
        if self.process.poll() is None:
            try:
                self.kill()
            except subprocess.TimeoutExpired:
                self.process.kill()
        if self.remove_command:
            subprocess.run(self.remove_command, capture_output=True, timeout=TIMEOUT, check=False)


class Case:
    """Some containers, and a folder between them."""

    def __init__(self, runtime, folder, kind):
        self.runtime = runtime
        self.kind = kind
        self.shared = os.path.join(folder, "shared-" + kind)
        for name in ("", "run", "talk"):
            os.mkdir(os.path.join(self.shared, name))
        owner = runtime.outside(HERE)
        if os.geteuid() == 0:
            os.chown(os.path.join(self.shared, "run"), owner, owner)
        os.chmod(self.shared, 0o755)
        os.chmod(os.path.join(self.shared, "run"), 0o755)
        os.chmod(os.path.join(self.shared, "talk"), 0o777)
        self.logs = {}
        self.running = []

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for one in reversed(self.running):
            one.remove()
        for role in self.logs if kind else ():
            print(f"--- {self.kind}: {role}\n{self.log(role)}")

    def start(self, role, user, settings, argv):
        """None: there can be none of that user."""
        self.logs[role] = os.path.join(self.shared, role + ".log")
        with open(self.logs[role], "wb") as output:
            one = self.runtime.start(user, self.shared, environment(settings), argv, output)
        self.running += [one] if one else []
        return one

    def talk(self, name):
        return os.path.join(self.shared, "talk", name)

    def make_older(self):
        """As if all that is in the folder had been left two hours ago."""
        then = time.time() - 7200
        for name in os.listdir(os.path.join(self.shared, "run")):
            os.utime(os.path.join(self.shared, "run", name), (then, then))

    def log(self, role):
        with open(self.logs[role], encoding="utf-8", errors="replace") as file:
            return file.read()

    def broker_socket(self):
        """Where a broker listens under this kernel."""
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip().replace("-", "")
        return os.path.join(self.shared, "run", "broker." + boot)


def try_out(runtime, folder):
    """Whether a container of this kind can be made here at all."""
    shared = os.path.join(folder, "trial")
    os.makedirs(shared)
    path = os.path.join(folder, "trial.log")
    with open(path, "wb") as output:
        one = runtime.start(HERE, shared, {"PATH": "/bin"}, ["/bin/busybox", "true"], output)
    status = one.wait()
    one.remove()
    if status != 0:
        with open(path, encoding="utf-8", errors="replace") as file:
            said = file.read().strip().splitlines()
        raise Skip(f"{runtime.name} makes no container here: {said[-1] if said else status}")
