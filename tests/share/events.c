/*
 * CUDA IPC of events between processes that see neither one /dev/shm nor each other's pids, as in
 * containers.
 *
 *   events apart      both sides record, wait and ask; two of one pid are not taken for each other. Without the
 *                     library (the argument native) the driver finds nothing
 *   events one-side   where one of both has no library the driver finds it, as natively
 *   events many       200 processes, and 10,000 events of one
 *   events ended      a process that has ended, is killed while it is asked, or has left a child
 *   events closed     a program that closes descriptors it does not know
 *   events threads    opened by many threads at once
 *   events others     another user's, whom both name
 *   events names      what a program asks shm_open for by itself
 */
#include <sys/mount.h>

#undef BLOCK_SIZE /* the kernel's */
#include "importer.h"
#include "softcuda.h"
#include "tests/system.h"

#define EVENTS  10240
#define FILE_OF 4096 /* events */
#define NOBODY  65534
#define THREADS 8

/* ---- A process that does what it is told ----------------------------------------------------- */

struct order {
    enum {
        CREATE,
        OPEN,
        DESTROY,
        RECORD,
        GO,
        QUERY,
        SYNCHRONIZE,
        STREAM_WAIT,
        FILES,
        FORK,
        CLOSE_FILES,
        CLOSE_ALL,
        TOGETHER,
        WITHOUT_CONTEXT,
        RESET
    } op;
    uint32_t index;
    CUipcEventHandle handle;
};

struct answer {
    CUresult result;
    uint32_t number;
    CUipcEventHandle handle;
};

static CUevent events[EVENTS];
static CUstream stream;
static CUdeviceptr memory;

static bool is_file_of_events(int fd)
{
    char path[32], file[64];
    ssize_t size;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    size = readlink(path, file, sizeof file - 1);
    if (size < 0)
        return false;
    file[size] = 0;
    return strstr(file, "/cuda.shm.");
}

/* Descriptors of them; a program that this process executes has none. */
static uint32_t count_files(void)
{
    uint32_t count = 0;

    for (int fd = 0; fd < 1024; fd++) {
        if (!is_file_of_events(fd))
            continue;
        count++;
        if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC))
            fail("left open for a program that is executed", fd);
    }
    return count;
}

static void *open_often(void *handle)
{
    CUdevice device;
    CUcontext context;
    CUevent event;

    must("cuDeviceGet", cuDeviceGet(&device, 0));
    must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    for (int i = 0; i < 20; i++) {
        must("cuIpcOpenEventHandle", cuIpcOpenEventHandle(&event, *(CUipcEventHandle *)handle));
        must("cuEventQuery", cuEventQuery(event));
        must("cuEventDestroy", cuEventDestroy(event));
    }
    return NULL;
}

static void open_together(CUipcEventHandle handle)
{
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, open_often, &handle) != 0)
            fail("pthread_create", i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void begin(void)
{
    start_driver();
    must("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    must("cuMemAlloc", cuMemAlloc(&memory, 64));
}

static struct answer obey(const struct order *order)
{
    struct answer answer = {.result = CUDA_SUCCESS};
    CUevent *event = &events[order->index];

    switch (order->op) {
    case CREATE:
        answer.result = cuEventCreate(event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
        if (answer.result == CUDA_SUCCESS)
            answer.result = cuIpcGetEventHandle(&answer.handle, *event);
        break;
    case OPEN:
        answer.result = cuIpcOpenEventHandle(event, order->handle);
        break;
    case DESTROY:
        answer.result = cuEventDestroy(*event);
        break;
    case RECORD:
        softcuda_hold(1);
        answer.result = cuMemsetD32Async(memory, 1, 16, stream);
        if (answer.result == CUDA_SUCCESS)
            answer.result = cuEventRecord(*event, stream);
        break;
    case GO:
        softcuda_hold(0);
        break;
    case QUERY:
        answer.result = cuEventQuery(*event);
        break;
    case SYNCHRONIZE:
        answer.result = cuEventSynchronize(*event);
        break;
    case STREAM_WAIT:
        answer.result = cuStreamWaitEvent(stream, *event, 0);
        if (answer.result == CUDA_SUCCESS)
            answer.result = cuStreamSynchronize(stream);
        break;
    case FILES:
        answer.number = count_files();
        break;
    case FORK:
        if (fork_child() == 0)
            stay_until_end_of(getppid());
        break;
    case CLOSE_FILES:
        for (int fd = PARTY_SOCKET + 1; fd < 1024; fd++)
            if (is_file_of_events(fd))
                close(fd);
        break;
    case CLOSE_ALL:
        for (int fd = PARTY_SOCKET + 1; fd < 1024; fd++)
            close(fd);
        break;
    case TOGETHER:
        open_together(order->handle);
        break;
    case WITHOUT_CONTEXT:
        must("cuCtxSetCurrent", cuCtxSetCurrent(NULL));
        answer.result = cuIpcOpenEventHandle(event, order->handle);
        start_driver();
        break;
    case RESET:
        answer.result = cuDevicePrimaryCtxReset(0);
        begin();
        break;
    }
    return answer;
}

static int process(void)
{
    struct order order;

    begin();
    while (hear_or_end(PARTY_SOCKET, &order, sizeof order)) {
        struct answer answer = obey(&order);

        say(PARTY_SOCKET, &answer, sizeof answer);
    }
    return 0;
}

/* ---- What it is told ------------------------------------------------------------------------- */

static void tell(const struct party *party, int op, uint32_t index)
{
    say(party->socket, &(struct order){.op = op, .index = index}, sizeof(struct order));
}

static struct answer answer_of(const struct party *party)
{
    struct answer answer;

    hear(party->socket, &answer, sizeof answer);
    return answer;
}

static struct answer ask(const struct party *party, int op, uint32_t index)
{
    tell(party, op, index);
    return answer_of(party);
}

static CUresult result_of(const struct party *party, int op, uint32_t index)
{
    return ask(party, op, index).result;
}

static CUipcEventHandle create(const struct party *party, uint32_t index)
{
    struct answer answer = ask(party, CREATE, index);

    must("an event, its handle", answer.result);
    return answer.handle;
}

static void tell_open(const struct party *party, uint32_t index, CUipcEventHandle handle)
{
    say(party->socket, &(struct order){OPEN, index, handle}, sizeof(struct order));
}

static CUresult open_there(const struct party *party, uint32_t index, CUipcEventHandle handle)
{
    tell_open(party, index, handle);
    return answer_of(party).result;
}

static bool is_ours(const CUipcEventHandle *handle)
{
    for (size_t i = 24; i < sizeof *handle; i++)
        if (handle->reserved[i])
            return true;
    return false;
}

static void without_library(void)
{
    unsetenv("LD_PRELOAD");
}

static void switched_off(void)
{
    setenv("GPUSHIM_ENABLE", "0", 1);
}

static bool enter_container(void)
{
    return unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWPID) == 0 &&
           mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("shm", "/dev/shm", "tmpfs", 0, "size=16m") == 0;
}

/* Its child is pid 1 there, and goes on. */
static void in_container(void)
{
    int status = -1;
    pid_t child;

    if (!enter_container() || (child = fork_child()) < 0)
        _exit(126);
    if (child != 0) {
        for (int fd = PARTY_SOCKET; fd < 1024; fd++) /* both ends of the socket */
            close(fd);
        waitpid(child, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128);
    }
    if (mount("proc", "/proc", "proc", 0, NULL) != 0)
        _exit(126);
}

static void need_containers(void)
{
    int status = -1;
    pid_t child = fork_child();

    if (child == 0)
        _exit(!enter_container());
    if (waitpid(child, &status, 0) != child || status != 0)
        skip("no namespaces of mounts and processes are to be had");
}

static struct party here(void)
{
    return party_start("process", NULL);
}

static struct party apart(void)
{
    return party_start_in("process", NULL, in_container);
}

/* What a killed process leaves in /dev/shm, as natively. */
static void clear_files_of(pid_t pid)
{
    char name[64];

    for (int number = 1; number < 4; number++) {
        snprintf(name, sizeof name, "/cuda.shm.%u.%x.%d", (unsigned)geteuid(), (unsigned)pid,
                 number);
        shm_unlink(name);
    }
}

static void kill_and_clear(struct party *party)
{
    party_kill(party);
    clear_files_of(party->pid);
}

static void end(struct party *party)
{
    expect("a process failed", party_end(party) == 0);
}

/* ---- Checks ---------------------------------------------------------------------------------- */

/* One records, the other asks and waits: on the host, in a stream. */
static void pass_on(const struct party *from, uint32_t at, const struct party *to, uint32_t there)
{
    for (int op = SYNCHRONIZE; op <= STREAM_WAIT; op++) {
        must("record", result_of(from, RECORD, at));
        expect("it is done there", result_of(to, QUERY, there) == CUDA_ERROR_NOT_READY);
        tell(to, op, there);
        must("go", result_of(from, GO, 0));
        must("a wait there", answer_of(to).result);
        must("a query there", result_of(to, QUERY, there));
        must("a query here", result_of(from, QUERY, at));
    }
}

static void check_apart(const char *how)
{
    struct party first = here(), second, importer;
    CUipcEventHandle handle = create(&first, 0), other;

    need_containers();
    importer = apart();
    if (!strcmp(how, "native")) {
        expect("the driver has found it",
               open_there(&importer, 0, handle) == CUDA_ERROR_MAP_FAILED);
        end(&importer);
        end(&first);
        return;
    }
    second = apart();
    create(&importer, 2); /* its own file has the same name as the other container's */
    other = create(&second, 0);
    say(importer.socket, &(struct order){WITHOUT_CONTEXT, 0, handle}, sizeof(struct order));
    expect("opened in no context", answer_of(&importer).result == CUDA_ERROR_INVALID_CONTEXT);
    must("open", open_there(&importer, 0, handle));
    must("open", open_there(&importer, 1, other));
    expect("a descriptor is left", ask(&importer, FILES, 0).number == 2); /* of its own file */
    pass_on(&first, 0, &importer, 0);
    pass_on(&importer, 0, &first, 0);
    pass_on(&second, 0, &importer, 1);
    pass_on(&importer, 1, &second, 0);
    must("record", result_of(&second, RECORD, 0));
    expect("one is taken for the other",
           result_of(&importer, QUERY, 0) == CUDA_SUCCESS &&
               result_of(&importer, QUERY, 2) == CUDA_SUCCESS &&
               result_of(&importer, QUERY, 1) == CUDA_ERROR_NOT_READY);
    must("go", result_of(&second, GO, 0));
    /* Opened again it is another one of the same; a file is asked for once. */
    must("open", open_there(&importer, 3, handle));
    pass_on(&first, 0, &importer, 3);
    must("destroy", result_of(&importer, DESTROY, 0));
    must("destroy", result_of(&importer, DESTROY, 3));
    must("open", open_there(&importer, 0, handle));
    must("open", open_there(&importer, 3, create(&first, 1)));
    expect("asked for more than once", times_logged("the file of events 1 was given") == 3);
    /* A driver that has forgotten the file asks for it, and gets it. */
    must("reset", result_of(&importer, RESET, 0));
    must("open", open_there(&importer, 0, handle));
    pass_on(&first, 0, &importer, 0);
    expect("its own opens", open_there(&first, 5, handle) == CUDA_ERROR_INVALID_CONTEXT);
    end(&importer);
    end(&second);
    end(&first);
}

static void check_one_side(const char *how)
{
    struct party with = here(), without = party_start_in("process", NULL, without_library);
    struct party off = party_start_in("process", NULL, switched_off);
    CUipcEventHandle ours = create(&with, 0), drivers = create(&without, 0),
                     switched = create(&off, 0);

    expect("whose handles they are", is_ours(&ours) && !is_ours(&drivers) && !is_ours(&switched));
    expect("a file is kept where the library is off", ask(&off, FILES, 0).number == 1);
    must("open where the library is off", open_there(&off, 1, ours));
    must("open what is of there", open_there(&with, 2, switched));
    end(&off);
    must("open a handle of the driver's", open_there(&with, 1, drivers));
    must("open a handle of the library's", open_there(&without, 1, ours));
    pass_on(&with, 0, &without, 1);
    pass_on(&without, 0, &with, 1);
    end(&without);
    end(&with);
}

static void check_many(const char *how)
{
    enum { PROCESSES = 200 };
    static struct party parties[PROCESSES];
    struct party importer;
    need_containers();
    importer = apart();
    parties[0] = here();
    must("open", open_there(&importer, 0, create(&parties[0], 0)));
    expect("the library has another than one of it", ask(&parties[0], FILES, 0).number == 2);
    for (uint32_t i = 1; i < PROCESSES; i++) {
        parties[i] = here();
        must("open", open_there(&importer, i, create(&parties[i], 0)));
    }
    for (uint32_t i = 1; i < PROCESSES; i += 50)
        pass_on(&parties[i], 0, &importer, i);
    for (uint32_t i = 1; i < EVENTS - PROCESSES; i++)
        must("open", open_there(&importer, PROCESSES + i, create(&parties[0], i)));
    pass_on(&parties[0], EVENTS - PROCESSES - 1, &importer, EVENTS - 1);
    /* What is mapped needs none. */
    expect("a descriptor is left there", ask(&importer, FILES, 0).number == 0);
    expect("the library has another than one of each", ask(&parties[0], FILES, 0).number == 6);
    for (int i = 0; i < PROCESSES; i++)
        end(&parties[i]);
    end(&importer);
}

static void check_ended(const char *how)
{
    struct party exporter = here(), stopped = here(), parent = here(), importer;
    CUipcEventHandle first, second, beyond, of_stopped, of_parent;

    need_containers();
    importer = apart();
    first = create(&exporter, 0);
    second = create(&exporter, 1);
    for (uint32_t i = 2; i < FILE_OF; i++)
        create(&exporter, i);
    beyond = create(&exporter, FILE_OF);
    of_stopped = create(&stopped, 0);
    of_parent = create(&parent, 0);
    must("open", open_there(&importer, 0, first));
    kill_and_clear(&exporter);
    must("a query of what is left", result_of(&importer, QUERY, 0));
    must("open of a file that is mapped", open_there(&importer, 1, second));
    expect("a file that nobody has was opened",
           open_there(&importer, 2, beyond) == CUDA_ERROR_MAP_FAILED);
    expect("why is not said",
           AWAIT(times_logged("does not find it either: the process that made it has ended")));
    halt(stopped.pid);
    tell_open(&importer, 3, of_stopped);
    usleep(10000); /* it is asked, most likely */
    kill_and_clear(&stopped);
    expect("opened of a killed process", answer_of(&importer).result == CUDA_ERROR_MAP_FAILED);
    ask(&parent, FORK, 0); /* the child has its socket */
    kill_and_clear(&parent);
    expect("opened of a child", open_there(&importer, 4, of_parent) == CUDA_ERROR_MAP_FAILED);
    end(&importer);
}

static void check_closed(const char *how)
{
    for (int op = CLOSE_FILES; op <= CLOSE_ALL; op++) {
        struct party exporter = here(), importer = here();
        CUipcEventHandle before = create(&exporter, 0), after;

        ask(&exporter, op, 0);
        after = create(&exporter, 1);
        expect("whose handles they are", is_ours(&before) && !is_ours(&after));
        must("open, by the driver alone", open_there(&importer, 0, before));
        must("open, by the driver alone", open_there(&importer, 1, after));
        pass_on(&importer, 0, &exporter, 0);
        end(&importer);
        end(&exporter);
    }
}

static void check_threads(const char *how)
{
    struct party exporter = here(), importer;

    need_containers();
    importer = apart();
    for (uint32_t i = 0; i < 3; i++) {
        CUipcEventHandle handle = create(&exporter, i * FILE_OF);

        say(importer.socket, &(struct order){TOGETHER, 0, handle}, sizeof(struct order));
        must("many at once", answer_of(&importer).result);
    }
    end(&importer);
    end(&exporter);
}

static void as_nobody(void)
{
    if (!become_user(NOBODY, NOBODY))
        _exit(126);
}

static void check_others(const char *how)
{
    struct party roots, nobodys;

    if (geteuid() != 0)
        skip("not root: there is no other user");
    if (chmod(surroundings_folder, 0755) != 0)
        fail("chmod", errno);
    setenv("GPUSHIM_SHARE_UIDS", "0,65534", 1);
    roots = here();
    nobodys = party_start_in("process", NULL, as_nobody);
    expect("another user's was opened",
           open_there(&nobodys, 0, create(&roots, 0)) == CUDA_ERROR_MAP_FAILED);
    expect("why is not said", AWAIT(times_logged("does not find it either: it is another user's")));
    end(&nobodys);
    end(&roots);
}

/* The same natively. */
static void check_names(const char *how)
{
    const char *none[] = {"/cuda.shm.0.0.0", "/cuda.shm.0.7f000001.1", "/gpushim-none",
                          "/cuda.shm.", "/cuda.shm.0.x.1"};
    CUipcEventHandle handle;
    char name[64];
    struct stat info;
    int fd, again;

    start_driver();
    must("cuEventCreate",
         cuEventCreate(&events[0], CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    must("cuIpcGetEventHandle", cuIpcGetEventHandle(&handle, events[0]));
    expect("whose handle it is", is_ours(&handle) == (strcmp(how, "native") != 0));
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        errno = 0;
        expect(none[i], shm_open(none[i], O_RDWR, 0) == -1 && errno == ENOENT);
    }
    expect("no name", shm_open("/", O_RDWR, 0) == -1 && errno == EINVAL);
    snprintf(name, sizeof name, "/gpushim-events-%d", (int)getpid());
    errno = 4711;
    fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0640);
    expect("errno stays", errno == 4711);
    expect("a file of its own", fd >= 0 && ftruncate(fd, 5) == 0 && fstat(fd, &info) == 0);
    expect("its mode", (info.st_mode & 0777) == 0640);
    expect("made twice", shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0640) == -1 && errno == EEXIST);
    again = shm_open(name, O_RDONLY, 0);
    expect("opened again", again >= 0 && fstat(again, &info) == 0 && info.st_size == 5);
    shm_unlink(name);
}

static const struct {
    const char *how;
    void (*check)(const char *more);
} checks[] = {{"apart", check_apart},   {"one-side", check_one_side}, {"many", check_many},
              {"ended", check_ended},   {"closed", check_closed},     {"threads", check_threads},
              {"others", check_others}, {"names", check_names}};

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "", *more = argc > 2 ? argv[2] : "";

    if (!strcmp(how, "process"))
        return process();
    surroundings_new();
    setenv("GPUSHIM_LOG", "debug", 1);
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (!strcmp(how, checks[i].how)) {
            checks[i].check(more);
            return 0;
        }
    return 2;
}
