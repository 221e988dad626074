/* Starting and talking to the other process of a test (other.h). */
#include "other.h"
#include "tests/children.h"
#include "tests/system.h"

#define NOBODY 65533

void ipc_handle_to_hex(const unsigned char *ipc_handle, char ret_hex[2 * GS_IPC_HANDLE_SIZE + 1])
{
    for (unsigned i = 0; i < GS_IPC_HANDLE_SIZE; i++)
        sprintf(ret_hex + 2 * i, "%02x", ipc_handle[i]);
}

void ipc_handle_from_hex(const char *hex, unsigned char *ret_ipc_handle)
{
    for (unsigned i = 0; i < GS_IPC_HANDLE_SIZE; i++) {
        char digits[3] = {hex[2 * i], hex[2 * i + 1], 0};

        ret_ipc_handle[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
}

void other_keep(void)
{
    static char path[32];
    int fd = open(OTHER_PROGRAM, O_PATH | O_CLOEXEC);

    if (fd < 0)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    setenv("SIDE_OTHER", path, 1);
}

void other_start(struct other *other, const char *dir, const char *extra)
{
    other_start2(other, dir, extra, NULL);
}

bool other_start_apart(struct other *other, const char *dir, const char *extra)
{
    int own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    bool made = own >= 0 && unshare(CLONE_NEWPID) == 0;

    if (made) {
        other_start(other, dir, extra);
        if (setns(own, CLONE_NEWPID) != 0)
            abort();
    }
    if (own >= 0)
        close(own); /* and LeakSanitizer starts something */
    return made;
}

void other_start2(struct other *other, const char *dir, const char *extra, const char *more)
{
    const char *program = getenv("SIDE_OTHER"); /* one that is linked otherwise */
    int in[2], out[2];

    memset(other, 0, sizeof *other);
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        abort();
    other->pid = fork_child();
    if (other->pid < 0)
        abort();
    if (other->pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        execl(program ? program : OTHER_PROGRAM, OTHER_PROGRAM, dir, extra, more, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    other->in = fdopen(in[1], "w");
    other->out = fdopen(out[0], "r");
}

const char *other_ask(struct other *other, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vfprintf(other->in, format, arguments);
    va_end(arguments);
    fputc('\n', other->in);
    fflush(other->in);
    if (!fgets(other->answer, sizeof other->answer, other->out))
        other->answer[0] = 0;
    other->answer[strcspn(other->answer, "\n")] = 0;
    return other->answer;
}

gs_status other_open(struct other *other, const unsigned char *ipc_handle,
                     unsigned long *ret_address)
{
    char hex[2 * GS_IPC_HANDLE_SIZE + 1];
    const char *answer;

    ipc_handle_to_hex(ipc_handle, hex);
    answer = other_ask(other, "open %s", hex);
    if (strncmp(answer, "ok ", 3) == 0) {
        *ret_address = strtoul(answer + 3, NULL, 16);
        return GS_OK;
    }
    return strncmp(answer, "status ", 7) == 0 ? atoi(answer + 7) : 12345;
}

void other_export(struct other *other, size_t offset, size_t size, int byte,
                  unsigned char *ret_ipc_handle)
{
    const char *answer = other_ask(other, "export %zu %zu %d", offset, size, byte);

    memset(ret_ipc_handle, 0, GS_IPC_HANDLE_SIZE);
    if (strncmp(answer, "ok ", 3) == 0)
        ipc_handle_from_hex(answer + 3, ret_ipc_handle);
}

bool other_withdraws(struct other *other)
{
    return !strcmp(other_ask(other, "withdraw"), "ok");
}

pid_t other_user_start(void (*play)(void *arg), void *arg)
{
    int done[2];
    char byte;
    pid_t child;

    if (pipe2(done, O_CLOEXEC) != 0 || (child = fork_child()) < 0)
        abort();
    if (child == 0) {
        close(done[0]);
        if (!become_user(NOBODY, NOBODY))
            _exit(1);
        play(arg);
        if (write(done[1], "", 1) == 1)
            pause();
        _exit(2);
    }
    close(done[1]);
    if (read(done[0], &byte, 1) != 1)
        abort();
    close(done[0]);
    return child;
}

void other_user_end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static int finish(struct other *other)
{
    int status = -1;

    waitpid(other->pid, &status, 0);
    fclose(other->in);
    fclose(other->out);
    other->pid = 0;
    return status;
}

void other_kill(struct other *other)
{
    kill(other->pid, SIGKILL);
    finish(other);
}

int other_stop(struct other *other)
{
    other_ask(other, "quit");
    return finish(other);
}
