/*
 * 4,000 shared blocks, each in a chunk of its own, between processes that may have 256 descriptors,
 * and what is shared for reading only.
 *
 *   many embedded      one process opens all, holds them and passes them on; when their process has
 *                      ended another opens none
 *   many broker        another opens all
 *   many narrow        the same where the broker may have 256 descriptors itself: what it can keep
 *   many read-only     no copy goes into what is shared for reading, passed on, or left there
 *   many open          the importer: told handles, tells how many it could open
 *
 * The library is preloaded. The software driver keeps its memory's descriptors, of which the real
 * one has none, above the soft limit; so descriptors below it are the library's and the program's.
 */
#include "program.h"
#include "tests/folder.h"
#include "tests/system.h"
#include "tests/unit/share/side.h"

#define BLOCKS 4000
#define LIMIT  256
#define SIZE   ((size_t)2 << 20)
#define OWN    24 /* descriptors of a process for itself: its streams, socket, directory, ... */

static int descriptors(void)
{
    DIR *list = opendir("/proc/self/fd");
    const struct dirent *entry;
    int count = 0;

    while ((entry = readdir(list)))
        count += entry->d_name[0] != '.' && atoi(entry->d_name) < LIMIT;
    closedir(list);
    return count - 1; /* the list's own */
}

/* ---- The importer ---------------------------------------------------------------------------- */

static CUdeviceptr opened[BLOCKS];

static void open_all(int count, int *ret_opened, int *ret_most)
{
    *ret_opened = *ret_most = 0;
    for (int i = 0; i < count; i++) {
        CUipcMemHandle handle;
        uint32_t stamp = 0;

        if (fread(&handle, sizeof handle, 1, stdin) != 1)
            fail("no handle", i);
        opened[i] = 0;
        if (cuIpcOpenMemHandle(&opened[i], handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) !=
            CUDA_SUCCESS)
            continue;
        must("cuMemcpyDtoH", cuMemcpyDtoH(&stamp, opened[i], sizeof stamp));
        if (stamp != (uint32_t)i + 1)
            fail("another block was opened", i);
        (*ret_opened)++;
        if (i % 64 == 0 || i == count - 1)
            *ret_most = descriptors() > *ret_most ? descriptors() : *ret_most;
    }
}

static int importer(void)
{
    int32_t count, answer[3];

    start_driver();
    while (fread(&count, sizeof count, 1, stdin) == 1) {
        uint32_t word = 1; /* what is there: where it may be written nothing changes */
        CUipcMemHandle handle;

        if (count == 0) { /* closes all */
            for (int i = 0; i < BLOCKS; i++)
                if (opened[i])
                    must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(opened[i]));
            continue;
        }
        open_all(count, &answer[0], &answer[1]);
        answer[2] = opened[0] ? (int)cuMemcpyHtoD(opened[0], &word, sizeof word) : -1;
        for (int i = count - 1; i >= 0; i--) {
            memset(&handle, 0, sizeof handle);
            if (opened[i])
                must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, opened[i]));
        }
        answer[1] = descriptors() > answer[1] ? descriptors() : answer[1];
        fwrite(answer, sizeof answer, 1, stdout);
        fwrite(&handle, sizeof handle, 1, stdout);
        fflush(stdout);
    }
    return 0;
}

struct importer {
    pid_t pid;
    FILE *in, *out;
};

struct answer {
    int32_t opened, most, write;
    CUipcMemHandle handle; /* of the first, passed on */
};

static void importer_start(struct importer *importer)
{
    int in[2], out[2];

    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        fail("pipe", errno);
    importer->pid = fork_child();
    if (importer->pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        execl("/proc/self/exe", "many", "open", (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    importer->in = fdopen(in[1], "w");
    importer->out = fdopen(out[0], "r");
}

static struct answer importer_ask(struct importer *importer, const CUipcMemHandle *handles,
                                  int32_t count)
{
    struct answer answer;

    fwrite(&count, sizeof count, 1, importer->in);
    fwrite(handles, sizeof *handles, (size_t)count, importer->in);
    fflush(importer->in);
    if (fread(&answer, sizeof answer, 1, importer->out) != 1)
        fail("the importer is gone", 0);
    return answer;
}

static void importer_stop(struct importer *importer)
{
    int status;

    fclose(importer->in);
    waitpid(importer->pid, &status, 0);
    fclose(importer->out);
    if (status != 0)
        fail("the importer failed", status);
}

/* ---- The exporter --------------------------------------------------------------------------- */

/* In a process of its own: shares, writes the handles, and ends when its input does. */
static int exporter(int count)
{
    static CUdeviceptr block[BLOCKS];
    int32_t most;

    start_driver();
    for (int i = 0; i < count; i++) {
        CUipcMemHandle handle;

        must("cuMemAlloc", cuMemAlloc(&block[i], SIZE));
        must("cuMemsetD32", cuMemsetD32(block[i], (unsigned)i + 1, 1));
        must("cuCtxSynchronize", cuCtxSynchronize());
        must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, block[i]));
        fwrite(&handle, sizeof handle, 1, stdout);
    }
    fflush(stdout);
    while (getchar() == 'n') {
        most = descriptors();
        fwrite(&most, sizeof most, 1, stdout);
        fflush(stdout);
    }
    return 0;
}

static struct importer exporter_start(int count, CUipcMemHandle *ret_handles)
{
    struct importer it;
    int in[2], out[2];
    char text[16];

    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        fail("pipe", errno);
    snprintf(text, sizeof text, "%d", count);
    it.pid = fork_child();
    if (it.pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        execl("/proc/self/exe", "many", "share", text, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    it.in = fdopen(in[1], "w");
    it.out = fdopen(out[0], "r");
    if (fread(ret_handles, sizeof *ret_handles, (size_t)count, it.out) != (size_t)count)
        fail("the exporter is gone", 0);
    return it;
}

static int exporter_descriptors(struct importer *it)
{
    int32_t most = -1;

    fputc('n', it->in);
    fflush(it->in);
    if (fread(&most, sizeof most, 1, it->out) != 1)
        fail("the exporter is gone", 0);
    return most;
}

/* ---- The broker ----------------------------------------------------------------------------- */

static void broker_start(const char *program)
{
    struct rlimit limit = {.rlim_cur = LIMIT, .rlim_max = LIMIT};
    int status;
    pid_t child = fork_child();

    if (child == 0) {
        setrlimit(RLIMIT_NOFILE, &limit);
        unsetenv("LD_PRELOAD");
        execl(program, program, "--detach", (char *)NULL);
        _exit(127);
    }
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("no broker", status);
}

/* ---- What is shown -------------------------------------------------------------------------- */

static CUipcMemHandle handles[BLOCKS];

/* `least` of the blocks can be opened when their process has ended. To whom it leaves them has
 * taken them before: who is slow for a second is left alone for as long. */
static void check_many(int least, const char *broker_dir)
{
    struct importer first, second, shares = exporter_start(BLOCKS, handles);
    struct answer answer;
    int most;

    importer_start(&first);
    answer = importer_ask(&first, handles, BLOCKS);
    if (answer.opened != BLOCKS)
        fail("not all can be opened, but", answer.opened);
    if (answer.most > OWN)
        fail("descriptors of the importer", answer.most);
    most = exporter_descriptors(&shares);
    if (most > LIMIT / 8 + OWN)
        fail("descriptors of the exporter", most);
    printf("the importer has %d descriptors, the exporter %d\n", (int)answer.most, most);
    for (int i = 0; broker_dir && i < 30000 && side_broker_published(broker_dir) < (uint64_t)least;
         i++)
        usleep(1000);
    importer_stop(&shares);
    importer_start(&second);
    answer = importer_ask(&second, handles, BLOCKS);
    printf("%d of %d are opened after their process's end\n", (int)answer.opened, BLOCKS);
    if (answer.opened < least)
        fail("opened after their process's end", answer.opened);
    if (!broker_dir && answer.opened > 0)
        fail("opened after their process's end, at nobody", answer.opened);
    if (answer.most > OWN)
        fail("descriptors of the second importer", answer.most);
    importer_stop(&second);
    importer_stop(&first);
}

/* The exporter's option is that of the importers here: it says what others may do. */
static void check_read_only(const char *dir, bool by_importer, bool with_broker)
{
    struct importer first, second, third, shares;
    struct answer answer;

    setenv("GPUSHIM_DEBUG_ACCESS", by_importer ? "read-write" : "read-only", 1);
    shares = exporter_start(1, handles);
    setenv("GPUSHIM_DEBUG_ACCESS", by_importer ? "read-only" : "read-write", 1);
    importer_start(&first);
    answer = importer_ask(&first, handles, 1);
    if (answer.opened != 1 || answer.write != CUDA_ERROR_INVALID_VALUE)
        fail("a copy into what is shared for reading", answer.write);
    if (memcmp(&answer.handle, &handles[0], sizeof handles[0]) != 0)
        fail("what is passed on has another handle", 0);
    importer_start(&second);
    answer = importer_ask(&second, &answer.handle, 1);
    if (answer.opened != 1 || answer.write != CUDA_ERROR_INVALID_VALUE)
        fail("a copy into what was passed on", answer.write);
    if (with_broker && !SIDE_WAIT(side_broker_published(dir) >= (by_importer ? 2u : 1u)))
        fail("the broker has it", 0);
    importer_stop(&shares);
    setenv("GPUSHIM_DEBUG_ACCESS", "read-write", 1);
    importer_start(&third);
    answer = importer_ask(&third, handles, 1);
    if (answer.opened != with_broker)
        fail("opened after its process's end", answer.opened);
    if (with_broker && !by_importer && answer.write != CUDA_ERROR_INVALID_VALUE)
        fail("a copy into it, after its process's end", answer.write);
    importer_stop(&first);
    importer_stop(&second);
    importer_stop(&third);
}

int main(int argc, char **argv)
{
    const char *dir, *how = argc > 1 ? argv[1] : "";
    struct rlimit limit;

    if (!strcmp(how, "open"))
        return importer();
    if (!strcmp(how, "share"))
        return exporter(atoi(argv[2]));
    if (argc != 3)
        fail("usage: many WHAT BROKER", argc);
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < 2 * BLOCKS && strcmp(how, "read-only")) {
        printf("skipped: the hard limit of descriptors (ulimit -Hn) leaves the software driver's "
               "memory no room\n");
        return 77;
    }
    limit.rlim_cur = LIMIT;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        fail("setrlimit", errno);
    dir = folder_new("many");
    setenv("GPUSHIM_SHARE_BROKER", argv[2], 1);
    setenv("GPUSHIM_SHARE_STRATEGY", strcmp(how, "embedded") ? "broker" : "embedded", 1);
    if (!strcmp(how, "narrow"))
        broker_start(argv[2]);
    if (!strcmp(how, "embedded")) {
        check_many(0, NULL);
    } else if (!strcmp(how, "broker")) {
        check_many(BLOCKS, dir);
    } else if (!strcmp(how, "narrow")) {
        check_many(LIMIT / 4, dir);
    } else if (!strcmp(how, "read-only")) {
        check_read_only(dir, false, true);
        check_read_only(dir, true, true);
        side_broker_end(dir);
        setenv("GPUSHIM_SHARE_STRATEGY", "embedded", 1);
        check_read_only(dir, false, false);
        check_read_only(dir, true, false);
    } else {
        fail("what is to be shown", argc);
    }
    side_broker_end(dir);
    if (rmdir(dir) != 0)
        fail("something is left in the directory", errno);
    printf("ok\n");
    return 0;
}
