/* What else core/share asks the kernel for: names, memory behind descriptors, closing, a broker. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/share/discard.h"
#include "core/share/exporter.h"
#include "core/share/instance.h"
#include "core/share/memory.h"
#include "simulation.h"

/* ---- core/share/instance.h ------------------------------------------------------------------ */

bool gs_random(void *bytes, size_t size)
{
    unsigned char *out = bytes;

    for (size_t i = 0; i < size; i++)
        out[i] = (unsigned char)sim_random();
    return true;
}

bool gs_instance_new(pid_t pid, unsigned char ret_instance[GS_INSTANCE_SIZE])
{
    uint64_t number = ++world.next_number;

    gs_random(ret_instance, GS_INSTANCE_SIZE);
    memcpy(ret_instance + 8, &number, sizeof number);
    return true;
}

int64_t gs_clock_ahead_ns(void)
{
    return 0;
}

void gs_instance_name(const unsigned char *instance, char ret_name[GS_SOCKET_NAME_SIZE])
{
    static const char digits[] = "0123456789abcdef";

    for (unsigned i = 0; i < GS_INSTANCE_SIZE; i++) {
        ret_name[2 * i] = digits[instance[i] >> 4];
        ret_name[2 * i + 1] = digits[instance[i] & 15];
    }
    ret_name[GS_SOCKET_NAME_SIZE - 1] = 0;
}

/* ---- core/share/memory.h -------------------------------------------------------------------- */

/* The mapping is a reference, which goes with the process. */
int gs_memory_new(size_t size, uint64_t **ret_words)
{
    struct process *process = process_here();
    struct file *file = file_new(FILE_WORDS);
    int fd;

    file->words = sim_alloc(size);
    file->size = size;
    fd = fd_new(process, file);
    if (fd < 0)
        return -EMFILE;
    file_ref(file);
    file->next_mapped = process->mapped_words;
    process->mapped_words = file;
    *ret_words = file->words;
    return fd;
}

void gs_memory_free(uint64_t *words, size_t size)
{
    struct file **link = &process_here()->mapped_words, *file;

    while (*link && (*link)->words != words)
        link = &(*link)->next_mapped;
    file = *link;
    if (!file)
        return sim_fail("memory: process %u unmaps what it has not mapped", process_here()->index);
    *link = file->next_mapped;
    file_unref(file);
}

/* Of a program's: external.c. */
static struct phys *memfd(int fd)
{
    const struct file *file = fd_file(fd, FILE_MEMORY);

    return file && file->phys->host ? file->phys : NULL;
}

bool gs_memory_is_sound(int fd)
{
    return fd_file(fd, FILE_WORDS) || memfd(fd);
}

void gs_memory_read(int fd, size_t first, uint64_t *ret_words, size_t count)
{
    const struct file *file = fd_file(fd, FILE_WORDS);

    for (size_t i = 0; i < count; i++)
        ret_words[i] =
            file && first + i < file->size / sizeof *ret_words ? file->words[first + i] : 0;
}

bool gs_memory_may_be_drivers(int fd)
{
    return fd_file(fd, FILE_MEMORY) != NULL;
}

bool gs_memory_is_in_shm(int fd, uint64_t size)
{
    (void)size;
    return fd_file(fd, FILE_EVENTS) != NULL;
}

bool gs_memory_is_pages(uint64_t address, uint64_t size)
{
    return ((address | size) & 4095) == 0;
}

int gs_memory_seal(int fd, uint64_t end)
{
    return memfd(fd) ? 0 : -EINVAL;
}

int gs_memory_map(int fd, uint64_t offset, size_t size, size_t whole, bool read_only,
                  void **ret_memory)
{
    uint64_t base = 0;
    int error = memfd(fd) ? host_map(memfd(fd), &base) : -EINVAL;

    *ret_memory = (void *)(uintptr_t)base;
    return error;
}

void gs_memory_unmap(void *memory, size_t whole)
{
    host_unmap((uintptr_t)memory);
}

/* ---- core/share/discard.h ------------------------------------------------------------------- */

void gs_discard(int fd)
{
    fd_close(fd, "gs_discard");
}

void gs_hang_up(int socket)
{
    if (socket < 0)
        return;
    gs_conn_shut(socket);
    fd_close(socket, "gs_hang_up");
}

void gs_socket_take_no_rights(int socket)
{
}

/* ---- A broker ------------------------------------------------------------------------------- */

int gs_broker_start(const struct gs_share *share)
{
    struct process *broker = process_start(true, false, process_here()->machine);

    if (broker)
        broker->life->space = process_here()->life->space;
    return broker ? 0 : -EAGAIN;
}
