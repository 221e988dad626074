/*
 * Events of several processes. As the real driver (580, measured) a process keeps 4,096 of them in
 * a file of /dev/shm that shm_open makes, cuda.shm.UID.PID.N, and gives them from the last place to
 * the first. A handle is the pid, N and the place, 8 bytes each; what is behind them is zero, and
 * nobody looks at it. Who opens one maps the file of that pid and N, once, for as long as it runs;
 * the process's own pid is INVALID_CONTEXT, a file that is not there MAP_FAILED. The names are
 * found as any reference of a library's: whoever is preloaded and has shm_open is asked.
 *
 * A place has two numbers: how often it was recorded, and the highest record whose work is done.
 * Who waits for a record sleeps on the second number. One record that is done makes all earlier
 * ones so; one whose process was killed before is never done, as on the real driver.
 */
#include "internal.h"

#include <linux/futex.h>

#define PLACES 4096
#define LENGTH 81920

struct page {
    _Atomic uint32_t recorded, done; /* they go round */
    uint32_t unused[3];
};
_Static_assert(PLACES * sizeof(struct page) == LENGTH, "a file is full of places");

/* A mapped file: one that this process has made, or another's. */
struct file {
    struct file *next;
    uint64_t pid, number;
    bool own;
    bool forgotten; /* it is mapped, for events that there are, and not looked for */
    struct page *pages;
    unsigned used;      /* of an own one: how many places, */
    bool taken[PLACES]; /* and which */
};

struct sd_shared {
    unsigned refs; /* of events, nodes and operations; protected by sd_lock */
    struct file *file;
    uint64_t place;
    struct page *page;
};

/* What the 64 bytes hold. */
struct token {
    uint64_t pid, number, place;
    unsigned char zero[40];
};
_Static_assert(sizeof(struct token) == sizeof(CUipcEventHandle), "a token is a handle");

static struct file *files, **files_end = &files;
static uint64_t last_number;

static void name_of(uint64_t pid, uint64_t number, char ret_name[80])
{
    snprintf(ret_name, 80, "/cuda.shm.%u.%llx.%llu", (unsigned)geteuid(), (unsigned long long)pid,
             (unsigned long long)number);
}

static struct file *file_map(int fd, uint64_t pid, uint64_t number)
{
    struct file *file = calloc(1, sizeof *file);

    if (!file)
        return NULL;
    file->pages = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file->pages == MAP_FAILED) {
        free(file);
        return NULL;
    }
    file->pid = pid;
    file->number = number;
    *files_end = file;
    files_end = &file->next;
    return file;
}

/* What a killed process of this pid has left is passed by. */
static struct file *file_new(void)
{
    struct file *file;
    char name[80];
    int fd;

    do {
        name_of((uint64_t)getpid(), ++last_number, name);
        fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    } while (fd < 0 && errno == EEXIST);
    if (fd < 0)
        return NULL;
    /* It stays open, as the real one's does. */
    file = ftruncate(fd, LENGTH) == 0 ? file_map(fd, (uint64_t)getpid(), last_number) : NULL;
    if (file)
        file->own = true;
    else
        close(fd);
    return file;
}

/* At the end of the process that made them, not of a child. */
__attribute__((destructor)) static void unlink_own(void)
{
    char name[80];

    for (const struct file *file = files; file; file = file->next)
        if (file->own && file->pid == (uint64_t)getpid()) {
            name_of(file->pid, file->number, name);
            shm_unlink(name);
        }
}

static struct sd_shared *shared_at(struct file *file, uint64_t place)
{
    struct sd_shared *shared = calloc(1, sizeof *shared);

    if (!shared)
        return NULL;
    shared->refs = 1;
    shared->file = file;
    shared->place = place;
    shared->page = &file->pages[place];
    return shared;
}

struct sd_shared *sd_shared_new(void)
{
    struct sd_shared *shared;
    struct file *file = files;
    uint64_t place = PLACES - 1;

    while (file && (!file->own || file->used == PLACES || file->pid != (uint64_t)getpid()))
        file = file->next;
    if (!file)
        file = file_new();
    if (!file)
        return NULL;
    while (file->taken[place])
        place--;
    shared = shared_at(file, place);
    if (shared) {
        file->taken[place] = true;
        file->used++;
    }
    return shared;
}

struct sd_shared *sd_shared_ref(struct sd_shared *shared)
{
    shared->refs++;
    return shared;
}

void sd_shared_unref(struct sd_shared *shared)
{
    if (!shared || --shared->refs)
        return;
    if (shared->file->own) {
        shared->file->taken[shared->place] = false;
        shared->file->used--;
    }
    free(shared);
}

static bool is_shared(const struct sd_work *work)
{
    return work->kind == SD_SIGNAL || work->kind == SD_AWAIT;
}

void sd_work_ref(const struct sd_work *work)
{
    if (is_shared(work))
        sd_shared_ref(work->event.shared);
}

void sd_work_unref(const struct sd_work *work)
{
    if (is_shared(work))
        sd_shared_unref(work->event.shared);
}

void sd_shared_number(struct sd_work *work)
{
    if (work->kind == SD_SIGNAL)
        work->event.record = sd_shared_record(work->event.shared);
    else if (work->kind == SD_AWAIT)
        work->event.record = sd_shared_last(work->event.shared);
}

uint32_t sd_shared_record(struct sd_shared *shared)
{
    return atomic_fetch_add(&shared->page->recorded, 1) + 1;
}

uint32_t sd_shared_last(const struct sd_shared *shared)
{
    return atomic_load(&shared->page->recorded);
}

static bool reaches(uint32_t done, uint32_t record)
{
    return (int32_t)(done - record) >= 0;
}

bool sd_shared_is_done(const struct sd_shared *shared, uint32_t record)
{
    return reaches(atomic_load(&shared->page->done), record);
}

void sd_shared_done(struct sd_shared *shared, uint32_t record)
{
    uint32_t done = atomic_load(&shared->page->done);

    while (!reaches(done, record))
        if (atomic_compare_exchange_weak(&shared->page->done, &done, record))
            break;
    syscall(SYS_futex, &shared->page->done, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void sd_shared_wait(struct sd_shared *shared, uint32_t record)
{
    uint32_t done = atomic_load(&shared->page->done);

    while (!reaches(done, record)) {
        syscall(SYS_futex, &shared->page->done, FUTEX_WAIT, done, NULL, NULL, 0);
        done = atomic_load(&shared->page->done);
    }
}

/* Whether a real driver does, at the reset of its context, was not looked at: it may. */
void sd_shared_forget(void)
{
    for (struct file *file = files; file; file = file->next)
        file->forgotten = !file->own;
}

CUresult sd_ipc_get_event_handle(CUipcEventHandle *handle, CUevent event_handle)
{
    const struct sd_event *event = sd_object_check(event_handle, SD_EVENT);
    struct token token;

    if (!event || !(event->flags & CU_EVENT_INTERPROCESS))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    token = (struct token){.pid = event->shared->file->pid,
                           .number = event->shared->file->number,
                           .place = event->shared->place};
    memcpy(handle, &token, sizeof token);
    return CUDA_SUCCESS;
}

/* Another process's, mapped before or now. NULL: there is none. */
static struct file *file_of(uint64_t pid, uint64_t number)
{
    struct file *file = files;
    char name[80];
    int fd;

    while (file && (file->own || file->forgotten || file->pid != pid || file->number != number))
        file = file->next;
    if (file)
        return file;
    name_of(pid, number, name);
    fd = shm_open(name, O_RDWR, 0);
    if (fd < 0)
        return NULL;
    file = file_map(fd, pid, number);
    close(fd);
    return file;
}

CUresult sd_ipc_open_event_handle(CUevent *event, CUipcEventHandle handle)
{
    struct sd_shared *shared;
    struct sd_context *context;
    struct token token;
    struct file *file;
    CUresult result = sd_current_owner(&context);

    if (result)
        return result;
    memcpy(&token, &handle, sizeof token);
    if (!event || token.place >= PLACES) /* not measured */
        return CUDA_ERROR_INVALID_VALUE;
    if (token.pid == (uint64_t)getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    file = file_of(token.pid, token.number);
    if (!file)
        return CUDA_ERROR_MAP_FAILED;
    shared = shared_at(file, token.place);
    if (!shared)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* Not INTERPROCESS: only who made it gives handles of it. */
    return sd_event_new(context, CU_EVENT_DISABLE_TIMING, shared, event);
}
