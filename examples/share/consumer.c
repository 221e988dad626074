/*
 * The consumer: opens the block that it is offered and reads it until it is told to stop.
 */
#include "talk.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

bool talk_send(int socket, const void *message, size_t size)
{
    /* A message is far smaller than the socket's buffer, so it leaves whole. */
    return send(socket, message, size, MSG_NOSIGNAL) == (ssize_t)size;
}

bool talk_receive(int socket, void *ret, size_t size)
{
    return recv(socket, ret, size, MSG_WAITALL) == (ssize_t)size;
}

static void note_failure(struct report *report, const char *call, const char *error)
{
    snprintf(report->failed, sizeof(report->failed), "%s: %s", call, error);
}

static bool told_to_stop(int socket)
{
    struct pollfd wait = {.fd = socket, .events = POLLIN};
    return poll(&wait, 1, 1) != 0;
}

/* Reads the block once and looks at every byte. False when there is no point in going on. */
static bool look(gpu_address block, const struct offer *offer, uint8_t *buffer,
                 struct report *report)
{
    const char *error = gpu_read(block, buffer, offer->bytes);
    if (error) {
        note_failure(report, "reading the block", error);
        return false;
    }
    report->reads++;
    for (uint32_t i = 0; i < offer->bytes; i++) {
        if (buffer[i] != offer->byte) {
            report->foreign = true;
            report->byte = buffer[i];
            return false;
        }
    }
    return true;
}

/* Reads at least once before it answers and once after it was told to stop. */
static void watch(int socket, gpu_address block, const struct offer *offer, uint8_t *buffer,
                  struct report *report)
{
    bool go_on = look(block, offer, buffer, report);
    if (!talk_send(socket, report, sizeof(*report)))
        return;
    while (!told_to_stop(socket)) {
        if (go_on)
            go_on = look(block, offer, buffer, report);
    }
    if (go_on)
        look(block, offer, buffer, report);
}

int consumer_main(int socket)
{
    struct report report = {.reads = 0};
    struct offer offer;
    char name[64];
    gpu_address block = 0;
    uint8_t *buffer = NULL;
    const char *error = gpu_start(name, sizeof(name));
    if (error)
        note_failure(&report, "starting CUDA", error);
    bool offered = talk_receive(socket, &offer, sizeof(offer));
    if (offered && !report.failed[0]) {
        error = gpu_open(&offer.handle, &block);
        if (error)
            note_failure(&report, "opening the handle", error);
        buffer = malloc(offer.bytes);
    }
    if (block && buffer)
        watch(socket, block, &offer, buffer, &report);
    if (block) {
        error = gpu_close(block);
        if (error && !report.failed[0])
            note_failure(&report, "closing the block", error);
    }
    free(buffer);
    error = gpu_stop();
    if (error && !report.failed[0])
        note_failure(&report, "ending", error);
    return offered && talk_send(socket, &report, sizeof(report)) && !report.failed[0] ? 0 : 1;
}
