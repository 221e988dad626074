/*
 * A program that calls what it is told, by name: the driver, the library, and whatever else is in
 * its process. tests/puppet.py has what it is told, and what a test makes of that.
 *
 *   puppet CHANNEL...       a thread for each of these sockets; when the first hangs up, it ends
 *   puppet PATH             the same for the socket that listens there
 *   puppet watch FOLDER     clears the folder up once its input has ended (tests/folder.h)
 *
 * A line is `[forked] FUNCTION ARGUMENT...`, and the answer `RESULT ERRNO BUFFER...`. FUNCTION is a
 * name, or an address (0x...). An argument is a number, ~ and the bytes of a buffer, of which a
 * pointer is passed, or @ and those of an IPC handle, which is passed by value, the second one. All
 * bytes are hexadecimal digits. The answer has what is in each buffer afterwards. A call that is
 * `forked` is made by a child, which ends with its result.
 */
#include <cuda.h>

#include "tests/children.h"
#include "tests/folder.h"
#include "tests/forbid.h"
#include "tests/rest.h"
#include "tests/system.h"

#define ARGUMENTS 8
#define ERRNO     4711 /* before each call: one that leaves it alone leaves this */
#define UNKNOWN   126  /* a test asked for what is not there */

typedef uint64_t call_fn(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                         uint64_t);
typedef uint64_t call_with_handle_fn(uint64_t, CUipcMemHandle, uint64_t);

struct buffer {
    unsigned char *bytes;
    size_t size;
};

struct call {
    void (*function)(void);
    uint64_t arguments[ARGUMENTS];
    unsigned count, buffers;
    struct buffer buffer[ARGUMENTS];
    const CUipcMemHandle *handle;
};

static struct buffer bytes_of(const char *digits)
{
    struct buffer buffer = {.size = strlen(digits) / 2};

    buffer.bytes = malloc(buffer.size + 1);
    for (size_t i = 0; i < buffer.size; i++)
        if (sscanf(digits + 2 * i, "%2hhx", &buffer.bytes[i]) != 1)
            _exit(UNKNOWN);
    return buffer;
}

static struct call read_call(char *words)
{
    struct call call = {0};
    char *rest, *word = strtok_r(words, " \n", &rest);

    call.function =
        (void (*)(void))(strncmp(word, "0x", 2) == 0 ? (void *)(uintptr_t)strtoull(word, NULL, 0)
                                                     : dlsym(RTLD_DEFAULT, word));
    if (!call.function) {
        fprintf(stderr, "puppet: there is no %s\n", word);
        _exit(UNKNOWN);
    }
    while ((word = strtok_r(NULL, " \n", &rest)) && call.count < ARGUMENTS) {
        if (*word != '~' && *word != '@') {
            call.arguments[call.count++] = strtoull(word, NULL, 0);
            continue;
        }
        call.buffer[call.buffers] = bytes_of(word + 1);
        if (*word == '@')
            call.handle = (const CUipcMemHandle *)call.buffer[call.buffers].bytes;
        else
            call.arguments[call.count++] = (uintptr_t)call.buffer[call.buffers].bytes;
        call.buffers++;
    }
    return call;
}

static uint64_t make(const struct call *call)
{
    const uint64_t *with = call->arguments;

    errno = ERRNO;
    if (call->handle)
        return ((call_with_handle_fn *)call->function)(with[0], *call->handle, with[1]);
    return ((call_fn *)call->function)(with[0], with[1], with[2], with[3], with[4], with[5],
                                       with[6], with[7]);
}

#ifdef __SANITIZE_ADDRESS__
/* Leaks are not looked for in a child: a thread that it has not may have held a lock of the heap as
 * it was forked, and it would wait for that for good. */
static bool is_child;

__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return is_child;
}
#endif

static uint64_t make_in_child(const struct call *call)
{
    int status = -1;
    pid_t child = fork();

#ifdef __SANITIZE_ADDRESS__
    is_child = child == 0;
#endif
    if (child == 0)
        exit((int)make(call));
    return waitpid(child, &status, 0) == child ? (uint64_t)status : UINT64_MAX;
}

/* All of it, also where the thread was cancelled meanwhile; and with no stream's buffer, which the
 * end of the process would write once more. */
static void answer(int to, uint64_t result, int error, const struct call *call)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file;
    int state;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    file = open_memstream(&text, &size);
    fprintf(file, "%llu %d", (unsigned long long)result, error);
    for (unsigned i = 0; i < call->buffers; i++) {
        fputc(' ', file);
        for (size_t byte = 0; byte < call->buffer[i].size; byte++)
            fprintf(file, "%02x", call->buffer[i].bytes[byte]);
    }
    fputc('\n', file);
    fclose(file);
    for (size_t sent = 0; sent < size;) {
        ssize_t more = send(to, text + sent, size - sent, MSG_NOSIGNAL);

        if (more < 0)
            break; /* the test has ended */
        sent += (size_t)more;
    }
    free(text);
    pthread_setcancelstate(state, NULL);
}

/* Also where the thread is cancelled in the call. */
static void drop_buffers(void *arg)
{
    const struct call *call = arg;

    for (unsigned i = 0; i < call->buffers; i++)
        free(call->buffer[i].bytes);
}

static void drop_line(void *line)
{
    free(*(char **)line);
}

static void do_as_told(char *line, int to)
{
    const bool forked = strncmp(line, "forked ", 7) == 0;
    struct call call = read_call(forked ? line + 7 : line);

    pthread_cleanup_push(drop_buffers, &call);
    uint64_t result = forked ? make_in_child(&call) : make(&call);
    answer(to, result, errno, &call);
    pthread_cleanup_pop(1);
}

static void *serve(void *channel)
{
    int fd = (int)(intptr_t)channel;
    FILE *from = fdopen(fd, "r");
    size_t size = 0;
    char *line = NULL;

    fcntl(fd, F_SETFD, FD_CLOEXEC);
    __fsetlocking(from, FSETLOCKING_BYCALLER); /* exit of glibc 2.41 waits for who reads */
    pthread_cleanup_push(drop_line, &line);
    while (getline(&line, &size, from) > 0)
        do_as_told(line, fd);
    pthread_cleanup_pop(1);
    return NULL;
}

/* ---- What the program has for its test to call ----------------------------------------------- */

#pragma GCC visibility push(default)

/* Bytes that stay where they are. */
void *place(const void *bytes, size_t size);
void *place(const void *bytes, size_t size)
{
    static _Alignas(16) char places[1 << 16];
    static size_t used;
    char *at = places + used;

    if (size > sizeof places - used)
        _exit(UNKNOWN);
    used += (size + 15) & ~(size_t)15;
    return memcpy(at, bytes, size);
}

/* For whoever is to be called. */
int nothing(void);
int nothing(void)
{
    return 0;
}

/* What a pointer points to. */
uint64_t peek(const uint64_t *at);
uint64_t peek(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}

void poke(uint64_t *at, uint64_t value);
void poke(uint64_t *at, uint64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
}

/* The kernel's call has that error in this thread, and those that it starts; 0: its thread is
 * killed. */
int forbid(const char *call, int error);
int forbid(const char *call, int error)
{
#define CALL(name)        \
    {                     \
        #name, SYS_##name \
    }
    static const struct {
        const char *name;
        unsigned number;
    } calls[] = {CALL(socket),    CALL(listen),     CALL(epoll_create1),   CALL(clone3),
                 CALL(connect),   CALL(sendmsg),    CALL(recvmsg),         CALL(poll),
                 CALL(epoll_ctl), CALL(membarrier), CALL(get_robust_list), CALL(process_vm_readv)};

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(calls[i].name, call) == 0 &&
            forbid_call(calls[i].number,
                        error ? SECCOMP_RET_ERRNO | (unsigned)error : SECCOMP_RET_KILL_THREAD))
            return 0;
    return -1;
}

bool all_come_to_rest(void);
bool all_come_to_rest(void)
{
    return all_rest(0);
}

/* A child that does nothing, and has all that this process has. */
void leave_child(void);
void leave_child(void)
{
    if (fork_child() == 0)
        stay_until_end_of(getppid());
}

/* A child becomes this program anew, and allocates: its wait status. */
int execute(void);
int execute(void)
{
    int status = -1;
    pid_t child = fork();

    if (child == 0) {
        execl("/proc/self/exe", "puppet", "allocate", (char *)NULL);
        _exit(UNKNOWN);
    }
    return waitpid(child, &status, 0) == child ? status : -1;
}

static int allocate(void)
{
    CUcontext context;
    CUdeviceptr block;

    return cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
           cuMemAlloc(&block, 4096) || cuMemsetD8(block, 1, 4096) || cuMemFree(block);
}

/* Of external memory. What its argument names is called by it, last. */
struct deletions {
    uint64_t count, could_call;
    CUcontext context;
    int64_t tell; /* a descriptor to write to: y, or n where no memory could be had */
};
struct deletions deletions = {.tell = -1};
void note_deleted(void *then);
void note_deleted(void *then)
{
    CUdeviceptr block;
    bool could = cuMemAlloc(&block, 4096) == CUDA_SUCCESS && cuMemFree(block) == CUDA_SUCCESS;

    deletions.could_call = could;
    cuCtxGetCurrent(&deletions.context);
    __atomic_add_fetch(&deletions.count, 1, __ATOMIC_SEQ_CST);
    if (deletions.tell >= 0 && write((int)deletions.tell, could ? "y" : "n", 1) != 1)
        _exit(UNKNOWN);
    if (then)
        ((void (*)(void *))then)(NULL);
}

#pragma GCC visibility pop

/* A descriptor's number, or the path of a socket that listens. */
static void *channel_of(const char *word)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd;

    if (*word != '/')
        return (void *)(intptr_t)atoi(word);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", word);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0)
        _exit(UNKNOWN);
    return (void *)(intptr_t)fd;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    char byte;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc == 3 && strcmp(argv[1], "watch") == 0) {
        folder_watch(argv[2]);
        return read(STDIN_FILENO, &byte, 1) != 0;
    }
    if (argc == 2 && strcmp(argv[1], "allocate") == 0)
        return allocate();
    for (int i = 2; i < argc; i++)
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)atoi(argv[i])) != 0 ||
            pthread_detach(thread) != 0) /* one may be in a call until the end */
            return UNKNOWN;
    serve(channel_of(argc > 1 ? argv[1] : "0"));
    return 0;
}
