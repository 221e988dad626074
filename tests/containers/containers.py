"""Two containers share GPU memory through one mounted folder (tests/containers/meson.build).

    containers.py bwrap|runc|podman PAIR SHIM LIBCUDA BROKER

Each container has PID, IPC, network, mount, UTS and user namespaces of its own, no capability, no
privilege and no device. What both see is one folder, writable, and nothing else that the other
can change. Inside are a static busybox, the dynamic loader, the libraries that PAIR needs, the
shim, its broker and the driver. The broker runs on the host, in a third container, or is started
by the process that shares, inside its own. Exit status 77 where such containers cannot be made here.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

os.umask(0o022)  # users of containers look at what is made here
HERE = 0        # the user inside whom the giver is
OTHER = 5       # another user inside
FIRST = 100000  # the user outside who is user 0 inside
TIMEOUT = 60


class Failure(Exception):
    """What went wrong."""


class Skip(Exception):
    """Why nothing can be proved here."""


def libraries(program, libcuda):
    """The libraries and the loader that the dynamic linker would map for `program`."""
    env = dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(libcuda))
    text = subprocess.run(["ldd", program], env=env, capture_output=True, text=True,
                          check=True).stdout
    return [path for path in re.findall(r"(/\S+)", text)]


def make_root(root, pair, shim, libcuda, broker):
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
    shutil.copy(pair, os.path.join(root, "bin/pair"))
    shutil.copy(broker, os.path.join(root, "bin/gpushim-broker"))
    shutil.copy(shim, os.path.join(root, "lib/libgpushim.so"))
    shutil.copy(libcuda, os.path.join(root, "lib/libcuda.so.1"))
    for path in libraries(pair, libcuda) + libraries(shim, libcuda) + libraries(broker, libcuda):
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


def wait_for(path, what, running):
    end = time.monotonic() + TIMEOUT
    while not os.path.exists(path):
        if time.monotonic() > end or running.process.poll() is not None:
            raise Failure(f"{what} does not happen")
        time.sleep(0.01)


def wait_for_silence(path):
    """Until nobody listens at that socket any more: a container dies after its first process."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
            try:
                caller.connect(path)
            except ConnectionRefusedError:
                return
        time.sleep(0.01)
    raise Failure(f"somebody still listens at {path}")


class Case:
    """One giver and one taker, and a folder between them."""

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

    def start(self, role, user, settings, argv=None):
        self.logs[role] = os.path.join(self.shared, role + ".log")
        with open(self.logs[role], "wb") as output:
            running = self.runtime.start(user, self.shared, environment(settings),
                                         argv or ["/bin/pair", role, "/shared/talk"], output)
        return running

    def talk(self, name):
        return os.path.join(self.shared, "talk", name)

    def say(self, name):
        """Tells a program that waits for it."""
        with open(self.talk("made-" + name), "w", encoding="utf-8") as file:
            file.write("x")
        os.chmod(self.talk("made-" + name), 0o644)
        os.rename(self.talk("made-" + name), self.talk(name))

    def make_older(self):
        """As if all that is in the folder had been left two hours ago; and others may talk there."""
        then = time.time() - 7200
        for name in os.listdir(os.path.join(self.shared, "run")):
            os.utime(os.path.join(self.shared, "run", name), (then, then))
        for name in os.listdir(self.talk("")):
            os.unlink(self.talk(name))

    def explained(self, failure):
        said = "\n".join(f"--- {role}\n{self.log(role)}" for role in self.logs)
        return Failure(f"{self.kind}: {failure}\n{said}")

    def log(self, role):
        with open(self.logs[role], encoding="utf-8", errors="replace") as file:
            return file.read()

    def check(self, role, running):
        status = running.wait()
        lines = self.log(role).strip().splitlines()
        if status != 0 or "ok" not in lines:
            raise Failure(f"{self.kind}: {role} ended with {status}:\n" + "\n".join(lines[-12:]))

    def play(self, give, take, taker=HERE, settings=None, killed=False):
        running = []
        try:
            for role, user in ((give, HERE), (take, taker)):
                one = self.start(role, user, settings or {})
                if one is None:
                    return None
                running.append(one)
            if killed:
                wait_for(os.path.join(self.shared, "talk", "freed"), "the giver's free",
                         running[0])
                running[1].kill()
            else:
                self.check(take, running[1])
            self.check(give, running[0])
            left = os.listdir(os.path.join(self.shared, "run"))
            if len(left) > killed:
                raise Failure(f"{self.kind}: {left} is left in the runtime directory")
            return self.log(give) + self.log(take)
        except (Failure, subprocess.TimeoutExpired) as failure:
            raise self.explained(failure) from failure
        finally:
            for one in running:
                one.remove()

    def play_shell(self, script, settings, stays):
        """The taker is a shell's child: the shell is the first process of its PID namespace."""
        give = self.start("give-held", HERE, settings)
        take = self.start("take-held", HERE, settings, ["/bin/busybox", "sh", "-c", script])
        try:
            wait_for(self.talk("freed"), "the giver's free", give)
            if stays:
                self.say("kill")
            else:
                take.kill()
            self.check("give-held", give)
            if stays and take.process.poll() is not None:
                raise Failure("the container of the killed process ended")
        except (Failure, subprocess.TimeoutExpired) as failure:
            raise self.explained(failure) from failure
        finally:
            take.remove()
            give.remove()

    def broker_socket(self):
        """Where a broker listens under this kernel."""
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip().replace("-", "")
        return os.path.join(self.shared, "run", "broker." + boot)

    def play_left(self, broker, host, kill_giver):
        """The giver ends, or its container is killed; another container opens what it shared."""
        settings = {**BROKERED, "GPUSHIM_SHARE_BROKER": "installed"}
        running = [broker.start(self)]
        try:
            wait_for(self.broker_socket(), "the broker's start", running[0])
            give = self.start("give-left", HERE, settings)
            running += [give, self.start("take-left", HERE, settings)]
            wait_for(self.talk("handle"), "the giver's handle", give)
            host.wait_for_block(self)
            if kill_giver:
                give.kill()
            else:
                self.say("leave")
                self.check("give-left", give)
            self.say("gone")
            self.check("take-left", running[2])
        except (Failure, subprocess.TimeoutExpired) as failure:
            raise self.explained(failure) from failure
        finally:
            for one in reversed(running):
                one.remove()

    def play_within(self, host):
        """The giver starts the broker in its own container, and ends; then all of that container is
        killed, the broker in it too."""
        settings = {**BROKERED, "GPUSHIM_SHARE_BROKER": "/bin/gpushim-broker"}
        script = "/bin/pair give-left /shared/talk; echo ended >/shared/talk/ended; " \
                 "while :; do /bin/busybox sleep 1; done"
        give = self.start("give-left", HERE, settings, ["/bin/busybox", "sh", "-c", script])
        running = [give]
        try:
            running.append(self.start("take-left", HERE, settings))
            wait_for(self.broker_socket(), "the broker's start", give)
            wait_for(self.talk("handle"), "the giver's handle", give)
            host.wait_for_block(self)
            self.say("leave")
            wait_for(self.talk("ended"), "the giver's end", give)
            self.say("gone")
            self.check("take-left", running[1])
            give.kill()
            wait_for_silence(self.broker_socket())
            running.append(self.start("take-lost", HERE, settings))
            self.check("take-lost", running[2])
            if "has ended, or uses another directory" not in self.log("take-lost"):
                raise Failure("who comes too late is not told why")
        except (Failure, subprocess.TimeoutExpired) as failure:
            raise self.explained(failure) from failure
        finally:
            for one in running:
                one.remove()


BROKERED = {"GPUSHIM_SHARE_STRATEGY": "broker", "GPUSHIM_SHARE_KEEP": "60 s"}


class HostBroker:
    """A broker on the host, of the user who is user 0 inside."""

    def __init__(self, program):
        self.program = program

    def command(self, case, *arguments):
        """And its environment."""
        outside = str(case.runtime.outside(HERE))
        command = [self.program, *arguments]
        if os.geteuid() == 0 and outside != "0":
            command = ["setpriv", "--reuid", outside, "--regid", outside, "--clear-groups"] + command
        return command, {"PATH": os.environ["PATH"], "GPUSHIM_CONFIG": "", "GPUSHIM_LOG": "debug",
                         "GPUSHIM_SHARE_DIR": os.path.join(case.shared, "run"), **BROKERED}

    def start(self, case):
        command, env = self.command(case)
        case.logs["broker"] = os.path.join(case.shared, "broker.log")
        with open(case.logs["broker"], "wb") as output:
            return Running(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL,
                                            stdout=output, stderr=subprocess.STDOUT))

    def wait_for_block(self, case):
        """Until the broker, wherever it runs, has what the giver shared."""
        command, env = self.command(case, "ps")
        end = time.monotonic() + TIMEOUT
        said = ""
        while not re.search(r"from pid .*: 1 blocks left here", said):
            if time.monotonic() > end:
                raise Failure(f"the giver's block is not left with the broker: {said}")
            time.sleep(0.01)
            said = subprocess.run(command, env=env, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=TIMEOUT, check=False).stdout


class ContainedBroker:
    """A broker in a container of its own."""

    @staticmethod
    def start(case):
        return case.start("broker", HERE, BROKERED, ["/bin/gpushim-broker"])


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


def prove_broker(runtime, folder, broker):
    host = HostBroker(broker)
    Case(runtime, folder, "broker on the host").play_left(host, host, False)
    Case(runtime, folder, "broker on the host, giver killed").play_left(host, host, True)
    print("a broker on the host: serves what a container shared that ended or was killed")
    Case(runtime, folder, "broker in a container").play_left(ContainedBroker, host, True)
    print("a broker in a third container: the same")
    Case(runtime, folder, "broker on demand").play_within(host)
    print("a broker that a process starts in its container: serves until that is killed")


def prove_kills(runtime, folder):
    wait = "while [ ! -e /shared/talk/kill ]; do /bin/busybox usleep 10000; done; "
    stay = "while :; do /bin/busybox sleep 1; done"
    for name, settings in (("embedded", {}), ("broker", {
            **BROKERED, "GPUSHIM_SHARE_BROKER": "/bin/gpushim-broker"})):
        Case(runtime, folder, f"killed inside, {name}").play_shell(
            "/bin/pair take-held /shared/talk & taker=$!; " + wait + "kill -9 $taker; " + stay,
            settings, True)
        Case(runtime, folder, f"first process killed, {name}").play_shell(
            "/bin/pair take-held /shared/talk & " + stay, settings, False)
        print(f"{name}: killed inside its container, or with its first process: memory came back")


def prove(runtime, folder):
    Case(runtime, folder, "same user").play("give", "take")
    print("the same user in two containers: shared")
    case = Case(runtime, folder, "killed")
    case.play("give-held", "take-held", killed=True)
    print("a container that has it open is killed: the memory stayed until then and came back")
    case.make_older()
    case.play("give", "take")
    print("its socket, unseen for more than an hour, is taken away by the next")
    Case(runtime, folder, "own").play("give-own", "take-kept")
    print("what a program maps itself: shared, and kept when that is unmapped")
    Case(runtime, folder, "external").play("give-external", "take")
    Case(runtime, folder, "external, killed").play("give-external-held", "take-held", killed=True)
    print("what it attaches: shared, and detached when the container that has it open is killed")
    said = Case(runtime, folder, "other user").play("give-refused", "take-refused", taker=OTHER)
    if said is None:
        print("another user: not tried, it takes root to start one")
        return
    if "another process's memory cannot be opened" not in said and "was refused" not in said:
        raise Failure("another user was refused without a reason in the log:\n" + said)
    print("another user: refused, and the log says why")
    uids = {"GPUSHIM_SHARE_UIDS": f"{HERE} {runtime.others_look}"}
    Case(runtime, folder, "listed user").play("give", "take", taker=OTHER, settings=uids)
    print(f"another user whom share.uids names ({runtime.others_look} as seen inside): shared")


def main():
    kinds = {"bwrap": Bwrap, "runc": Runc, "podman": Podman}
    name, pair, shim, libcuda, broker = sys.argv[1:]
    if not shutil.which(name):
        print(f"skipped: no {name} here")
        return 77
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = tempfile.mkdtemp(prefix="gpushim-containers-", dir="/tmp")
    os.chmod(folder, 0o755)
    try:
        root = os.path.join(folder, "root")
        make_root(root, pair, shim, libcuda, broker)
        runtime = kinds[name](root, folder)
        try_out(runtime, folder)
        prove(runtime, folder)
        prove_kills(runtime, folder)
        prove_broker(runtime, folder, os.path.abspath(broker))
        print("ok")
        return 0
    except Skip as skip:
        print(f"skipped: {skip}")
        return 77
    except Failure as failure:
        print(failure)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == '__main__':
    sys.exit(main())
