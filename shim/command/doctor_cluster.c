/* gpushim doctor --cluster: this machine's agent and its directory, and what IMEX gives: the channel without which
 * no memory leaves a machine, and the domain's nodes. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shim/command/doctor.h"
#include "shim/command/health.h"

#define CHANNELS "/dev/nvidia-caps-imex-channels"
#define NODES    "/etc/nvidia-imex/nodes_config.cfg"

static void say_health(void *arg, bool good, const char *what, const char *found)
{
    doctor_say(arg, good ? DOCTOR_OK : DOCTOR_FAIL, what,
               good ? "" : "see the log of gpushim-agent, and that it reaches its --directory", "%s", found);
}

static void look_at_channels(struct doctor *doctor)
{
    DIR *channels = opendir(CHANNELS);
    const struct dirent *entry;
    unsigned open_here = 0, there = 0;
    char first[sizeof entry->d_name] = "";

    while (channels && (entry = readdir(channels))) {
        int fd;

        if (strncmp(entry->d_name, "channel", 7) != 0)
            continue;
        there++;
        fd = openat(dirfd(channels), entry->d_name, O_RDWR | O_CLOEXEC);
        if (fd < 0)
            continue;
        close(fd);
        if (!open_here++)
            snprintf(first, sizeof first, "%s", entry->d_name);
    }
    if (channels)
        closedir(channels);
    if (open_here)
        doctor_say(doctor, DOCTOR_OK, "IMEX channel", "", "%s can be opened, one of %u in " CHANNELS, first, there);
    else if (there)
        doctor_say(doctor, DOCTOR_FAIL, "IMEX channel", "let this user read and write one, or give the container one",
                   "none of %u in " CHANNELS " can be opened by this user", there);
    else
        doctor_say(doctor, DOCTOR_WARN, "IMEX channel",
                   "on machines of one NVLink domain, start nvidia-imex and make a channel (nvidia-modprobe -c)",
                   "there is none in " CHANNELS ": memory stays on this machine");
}

static void look_at_domain(struct doctor *doctor)
{
    FILE *file = fopen(NODES, "re");
    char line[256];
    unsigned nodes = 0;

    while (file && fgets(line, sizeof line, file))
        nodes += line[0] > ' ' && line[0] != '#';
    if (file)
        fclose(file);
    if (nodes)
        doctor_say(doctor, DOCTOR_OK, "IMEX domain", "", "%u nodes in " NODES, nodes);
    else
        doctor_say(doctor, DOCTOR_WARN, "IMEX domain", "see nvidia-imex, where memory is to leave this machine",
                   "no nodes are named in " NODES);
}

void doctor_cluster(struct doctor *doctor)
{
    if (!health_tell(&doctor->options, say_health, doctor))
        doctor_say(doctor, DOCTOR_WARN, "agent", "start gpushim-agent beside the broker",
                   "no gpushim-agent runs here: nothing is shared with other machines");
    look_at_channels(doctor);
    look_at_domain(doctor);
}
