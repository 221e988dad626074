"""CUDA IPC of events between processes that see neither one /dev/shm nor each other's pids, as in containers.

    events.py PUPPET SHIM BROKER HOW...

On a GPU tests/gpu/run.sh runs `driver` of it.
"""
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from puppet import (INVALID_CONTEXT, INVALID_VALUE, MAP_FAILED, NOBODY, NOT_READY, OUT, OUT4, Handle, Out, Puppet,
                    around, await_that,
                    check, fail, main, set_for_all, skip, times_logged)

INVALID_HANDLE, CAPTURE_UNSUPPORTED = 400, 900
WITHOUT_TIMING = 2
INTERPROCESS = WITHOUT_TIMING | 4  # without it there is none
FILE_OF = 4096  # events
OWN_SHM = ('sh', '-c', 'mount -t tmpfs -o size=16m shm /dev/shm && exec "$@"', '-')
OTHER_PIDS = ('unshare', '--mount', '--pid', '--fork', '--kill-child', '--mount-proc')
APART = (*OTHER_PIDS, '--ipc', '--uts', '--net', *OWN_SHM)
ENOENT, EINVAL, EEXIST = 2, 22, 17


class Process(Puppet):
    """One that has events, by numbers of its own, and a stream with work in it."""

    def __init__(self, begin=True, **settings):
        super().__init__(begin=begin, **settings)
        self.events = {}
        if begin:
            self.begin_work()

    def begin_work(self):
        self.work, self.memory = self.stream(), self.alloc(64)

    def create(self, number):
        self.events[number] = self.cuEventCreate(OUT, INTERPROCESS)
        return Handle(self.cuIpcGetEventHandle(Out(64), self.events[number]))

    def opens(self, number, handle):
        result, self.events[number] = self.call('cuIpcOpenEventHandle', OUT, handle)
        return result

    def must_open(self, number, handle):
        result = self.opens(number, handle)
        check(result == 0, f'cuIpcOpenEventHandle gave {result}')

    def query(self, number):
        return self.result('cuEventQuery', self.events[number])

    def record(self, number):
        """It is done when the GPU goes on."""
        self.hold(1)
        self.cuMemsetD32Async(self.memory, 1, 16, self.work)
        self.cuEventRecord(self.events[number], self.work)

    def wait_in_stream(self, number):
        self.cuStreamWaitEvent(self.work, self.events[number], 0)

    def event_files(self):
        """Descriptors of the files that events lie in; a program that this process executes has none."""
        numbers = self.files('/cuda.shm.')
        check(all(self.result('fcntl', number, 1) & 1 for number in numbers),
              'none is left open for a program that is executed')
        return numbers

    def kill(self):
        """And clears up what a killed process leaves in /dev/shm, as natively."""
        super().kill()
        for number in range(1, 4):
            try:
                os.unlink(f'/dev/shm/cuda.shm.{os.geteuid()}.{self.pid:x}.{number}')
            except FileNotFoundError:
                pass


def need_containers():
    if subprocess.run([*APART, 'true'], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
        skip('no namespaces of mounts and processes are to be had')


def process_apart():
    return Process(before=APART)


def is_ours(handle):
    return any(handle[24:])


def files_given():
    """Who gave one says so a moment later. It is the first of its process, or the second where a killed one of that
    pid left the first."""
    return len(re.findall(r'the file of events \d+ was given', around.said()))


def pass_on(one, at, other, there):
    """One records, the other asks and waits: on the host, in a stream."""
    for in_stream in False, True:
        one.record(at)
        check(other.query(there) == NOT_READY, 'it is not done there')
        if in_stream:
            other.wait_in_stream(there)
            other.tell('cuStreamSynchronize', other.work)
        else:
            other.tell('cuEventSynchronize', other.events[there])
        one.hold(0)
        check(other.answer()[0] == 0, 'it is waited for there')
        check(other.query(there) == 0 and one.query(at) == 0, 'it is done')


def apart(*native):
    """Both sides record, wait and ask; two of one pid are not taken for each other. Without the library the driver
    finds nothing."""
    need_containers()
    if native:
        set_for_all(LD_PRELOAD=None)
    first = Process()
    handle = first.create(0)
    importer = process_apart()
    if native:
        check(importer.opens(0, handle) == MAP_FAILED, 'the driver has not found it')
        return
    second = process_apart()
    importer.create(2)  # its own file has the same name as the other container's
    other = second.create(0)
    importer.set_context(0)
    check(importer.opens(0, handle) == INVALID_CONTEXT, 'it is not opened in no context')
    importer.begin()
    importer.must_open(0, handle)
    importer.must_open(1, other)
    check(importer.result('count_event_files') == 2, 'no descriptor is left')  # of its own file
    pass_on(first, 0, importer, 0)
    pass_on(importer, 0, first, 0)
    pass_on(second, 0, importer, 1)
    pass_on(importer, 1, second, 0)
    second.record(0)
    check([importer.query(number) for number in (0, 2, 1)] == [0, 0, NOT_READY], 'one is not taken for the other')
    second.hold(0)
    # Opened again it is another one of the same; a file is asked for once.
    importer.must_open(3, handle)
    pass_on(first, 0, importer, 3)
    for number in 0, 3:
        importer.cuEventDestroy(importer.events[number])
    importer.must_open(0, handle)
    importer.must_open(3, first.create(1))
    await_that(lambda: files_given() >= 3, 'each is asked for')
    check(files_given() == 3, 'and that once')
    # A driver that has forgotten the file asks for it, and gets it.
    importer.cuDevicePrimaryCtxReset(0)
    importer.begin()
    importer.begin_work()
    importer.must_open(0, handle)
    pass_on(first, 0, importer, 0)
    check(first.opens(5, handle) == INVALID_CONTEXT, 'its own does not open')


def one_side():
    """Where one of both has no library the driver finds it, as natively."""
    ours, drivers, off = Process(), Process(LD_PRELOAD=None), Process(GPUSHIM_ENABLE=0)
    handles = [process.create(0) for process in (ours, drivers, off)]
    check([is_ours(handle) for handle in handles] == [True, False, False], 'whose handles they are')
    check(len(off.event_files()) == 1, 'no file is kept where the library is off')
    off.must_open(1, handles[0])
    ours.must_open(2, handles[2])
    off.end()
    ours.must_open(1, handles[1])
    drivers.must_open(1, handles[0])
    pass_on(ours, 0, drivers, 1)
    pass_on(drivers, 0, ours, 1)


def many():
    """200 processes, and 10,000 events of one."""
    count, events = 200, 10240
    need_containers()
    importer, exporters = process_apart(), [Process()]
    importer.must_open(0, exporters[0].create(0))
    check(len(exporters[0].event_files()) == 2, 'the library has another than one of it')
    for number in range(1, count):
        exporters.append(Process())
        importer.must_open(number, exporters[number].create(0))
    for number in range(1, count, 50):
        pass_on(exporters[number], 0, importer, number)
    for number in range(1, events - count):
        importer.must_open(count + number, exporters[0].create(number))
    pass_on(exporters[0], events - count - 1, importer, events - 1)
    check(importer.result('count_event_files') == 0, 'what is mapped needs no descriptor')
    check(len(exporters[0].event_files()) == 6, 'the library has another than one of each')


def ended():
    """A process that has ended, is killed while it is asked, or has left a child."""
    need_containers()
    exporter, stopped, parent, importer = Process(), Process(), Process(), process_apart()
    first, second = exporter.create(0), exporter.create(1)
    for number in range(2, FILE_OF):
        exporter.create(number)
    beyond, of_stopped, of_parent = exporter.create(FILE_OF), stopped.create(0), parent.create(0)
    importer.must_open(0, first)
    exporter.kill()
    check(importer.query(0) == 0, 'what is left can be asked')
    importer.must_open(1, second)  # of a file that is mapped
    check(importer.opens(2, beyond) == MAP_FAILED, 'no file that nobody has is opened')
    await_that(lambda: times_logged('does not find it either: the process that made it has ended'), 'why is said')
    stopped.stop()
    importer.tell('cuIpcOpenEventHandle', OUT, of_stopped)
    time.sleep(0.01)  # it is asked, most likely
    stopped.kill()
    check(importer.answer()[0] == MAP_FAILED, 'not of a killed process')
    parent.pointer('leave_child')  # which has its socket
    parent.kill()
    check(importer.opens(4, of_parent) == MAP_FAILED, 'not of a child')


def closed():
    """A program that closes descriptors it does not know: those of events, or all."""
    for words in '/cuda.shm.', '':
        exporter, importer = Process(), Process()
        before = exporter.create(0)
        keeps = {0, 1, 2, *exporter.channels}
        for number in exporter.files(words):
            if number not in keeps:
                exporter.result('close', number)
        after = exporter.create(1)
        check(is_ours(before) and not is_ours(after), 'whose handles they are')
        importer.must_open(0, before)  # by the driver alone
        importer.must_open(1, after)
        pass_on(importer, 0, exporter, 0)


def threads():
    """Opened by many threads at once."""
    need_containers()
    exporter = Process()
    importer = Process(before=APART, threads=8)
    for file in range(3):
        handle = exporter.create(file * FILE_OF)
        for thread in importer.threads:
            thread.tell('open_event_often', handle)
        for thread in importer.threads:
            check(thread.answer()[0] == 0, 'many at once')


def others():
    """Another user's, whom both name."""
    if os.geteuid() != 0:
        skip('not root: there is no other user')
    os.chmod(around.folder, 0o755)
    set_for_all(GPUSHIM_SHARE_UIDS='0,65533')
    roots = Process()
    nobodys = Process(begin=False)
    for call in 'setgid', 'setuid':
        check(nobodys.result(call, NOBODY) == 0, 'it is another user')
    nobodys.begin()
    nobodys.begin_work()
    check(nobodys.opens(0, roots.create(0)) == MAP_FAILED, "another user's is not opened")
    await_that(lambda: times_logged("does not find it either: it is another user's"), 'why is said')


def names(*native):
    """What a program asks shm_open for by itself; the same natively."""
    if native:
        set_for_all(LD_PRELOAD=None)
    one = Process()
    check(is_ours(one.create(0)) != bool(native), 'whose handle it is')

    def shm_open(name, flags, error):
        number = one.result('shm_open', name, flags, 0o640)
        check(error in (0, one.errno) and (number == -1) == (error != 0), f'{name}: {number}, {one.errno}')
        return number
    for name in '/cuda.shm.0.0.0', '/cuda.shm.0.7f000001.1', '/gpushim-none', '/cuda.shm.', '/cuda.shm.0.x.1':
        shm_open(name, os.O_RDWR, ENOENT)
    shm_open('/', os.O_RDWR, EINVAL)
    os.umask(mask := os.umask(0))
    name, new = f'/gpushim-events-{one.pid}', os.O_RDWR | os.O_CREAT | os.O_EXCL
    number = shm_open(name, new, 0)
    check(one.errno == 4711, 'errno stays')
    check(one.result('ftruncate', number, 5) == 0, 'a file of its own')
    check(os.stat(f'/dev/shm{name}').st_mode & 0o777 == 0o640 & ~mask, 'its mode')
    shm_open(name, new, EEXIST)
    again = shm_open(name, os.O_RDONLY, 0)
    check(os.stat(f'/proc/{one.pid}/fd/{again}').st_size == 5, 'opened again')
    one.result('shm_unlink', name)


# ---- What a driver answers
# ---------------------------------------------------------------------------------------------


class Asked:
    """Two processes, of which one makes an event and the other opens it, and what a driver answers them: that is what
    two that share everything have heard on an H200 with driver 580. A RESULT is the same natively and under the
    library; a GAIN is so under the library alone."""
    wrong = []

    def __init__(self, place, before=(), first_before=(), is_gain=False):
        self.place, self.is_gain = place, is_gain
        self.first, self.second = Process(before=first_before), Process(before=before)

    def say(self, name, answer, expected=0):
        is_right = answer == expected
        print('GAIN' if self.is_gain else 'RESULT', f'{self.place}_{name}',
              'ok' if self.is_gain and is_right else answer, flush=True)
        if not is_right and (not self.is_gain or 'LD_PRELOAD' in os.environ):
            Asked.wrong.append(f'{self.place}_{name}')

    def ask(self, name, one, call, *arguments, expected=0):
        answer, outs = one.call(call, *arguments)
        self.say(name, answer, expected)
        return outs

    def half_a_second(self, one, event, name):
        """And then the event is recorded."""
        one.cuLaunchHostFunc(one.work, one.pointer('dlsym', 0, 'usleep'), 500000)
        self.ask(name, one, 'cuEventRecord', event, one.work)

    def make(self):
        event = self.ask('make', self.first, 'cuEventCreate', OUT, INTERPROCESS)
        handle = Handle(self.ask('handle', self.first, 'cuIpcGetEventHandle', Out(64), event))
        self.ask('make_timed', self.first, 'cuEventCreate', OUT, INTERPROCESS & ~WITHOUT_TIMING, expected=INVALID_VALUE)
        self.ask('open_own', self.first, 'cuIpcOpenEventHandle', OUT, handle, expected=INVALID_CONTEXT)
        ordinary = self.first.cuEventCreate(OUT, WITHOUT_TIMING)
        self.ask('handle_of_ordinary', self.first, 'cuIpcGetEventHandle', Out(64), ordinary, expected=INVALID_HANDLE)
        self.ask('elapsed', self.first, 'cuEventElapsedTime', OUT4, event, event, expected=INVALID_HANDLE)
        self.ask('query_before_record', self.first, 'cuEventQuery', event)
        return event, handle

    def pass_on(self, event, there):
        self.half_a_second(self.first, event, 'record')
        own = self.second.cuEventCreate(OUT, INTERPROCESS)
        self.ask('query_at_once', self.first, 'cuEventQuery', event, expected=NOT_READY)
        self.ask('importer_query_at_once', self.second, 'cuEventQuery', there, expected=NOT_READY)
        self.ask('own_query', self.second, 'cuEventQuery', own)
        self.ask('importer_wait', self.second, 'cuStreamWaitEvent', self.second.work, there, 0)
        self.ask('importer_synchronize', self.second, 'cuEventSynchronize', there)
        self.ask('importer_has_waited', self.first, 'cuStreamQuery', self.first.work)
        self.ask('importer_elapsed', self.second, 'cuEventElapsedTime', OUT4, there, there, expected=INVALID_HANDLE)
        self.ask('importer_stream', self.second, 'cuStreamSynchronize', self.second.work)
        self.half_a_second(self.second, there, 'importer_record')
        self.ask('query_of_importers_record', self.first, 'cuEventQuery', event, expected=NOT_READY)
        self.ask('wait_for_importers_record', self.first, 'cuStreamWaitEvent', self.first.work, event, 0)
        self.ask('stream_behind_it', self.first, 'cuStreamSynchronize', self.first.work)
        self.ask('stream_has_waited', self.second, 'cuStreamQuery', self.second.work)

    def capture(self, event):
        one, stream = self.first, self.first.work
        one.cuStreamBeginCapture(stream, 2)
        self.ask('record_in_capture', one, 'cuEventRecord', event, stream, expected=CAPTURE_UNSUPPORTED)
        self.ask('end_capture', one, 'cuStreamEndCapture', stream, OUT)
        one.cuStreamBeginCapture(stream, 2)
        self.ask('record_external', one, 'cuEventRecordWithFlags', event, stream, 1)
        self.ask('wait_external', one, 'cuStreamWaitEvent', stream, event, 1)
        self.ask('end_capture_2', one, 'cuStreamEndCapture', stream, OUT)

    def all(self):
        event, handle = self.make()
        result, there = self.second.call('cuIpcOpenEventHandle', OUT, handle)
        self.say('open', result)
        if result != 0:
            return
        self.say('another_event', self.ask('open_again', self.second, 'cuIpcOpenEventHandle', OUT, handle) != there,
                 True)
        self.ask('importers_handle', self.second, 'cuIpcGetEventHandle', Out(64), there, expected=INVALID_HANDLE)
        self.ask('importer_query_before_record', self.second, 'cuEventQuery', there)
        self.pass_on(event, there)
        self.capture(event)
        self.ask('destroy', self.first, 'cuEventDestroy', event)
        self.ask('importer_destroy', self.second, 'cuEventDestroy', there)
        self.ask('open_of_a_destroyed_event', self.second, 'cuIpcOpenEventHandle', OUT, handle)
        self.second.cuDevicePrimaryCtxReset(0)
        self.second.begin()
        self.ask('open_after_reset', self.second, 'cuIpcOpenEventHandle', OUT, handle)


def driver():
    """Natively, and under the library where this program is started with it."""
    set_for_all(LD_PRELOAD=os.environ.get('LD_PRELOAD'))
    check('LD_PRELOAD' not in os.environ or Puppet(begin=False).has('gpushim_version'), 'the library is not there')
    need_containers()
    for asked in (Asked('same'), Asked('ipc', ('unshare', '--ipc')),
                  Asked('shm', ('unshare', '--mount', *OWN_SHM), is_gain=True),
                  Asked('pid', OTHER_PIDS, is_gain=True), Asked('container', APART, is_gain=True),
                  Asked('twins', APART, APART, is_gain=True)):  # each is pid 1
        asked.all()
    if Asked.wrong:
        fail(f'not as they are to be: {Asked.wrong}')


set_for_all(GPUSHIM_DEBUG_RECLAIM_FROM_PEERS='on', GPUSHIM_LOG='debug')
main(globals())
