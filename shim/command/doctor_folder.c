/* gpushim doctor: the folder of the sockets, who answers there, and the broker. */

#include "core/share/directory.h"
#include "shim/command/ask.h"
#include "shim/command/doctor.h"

void doctor_folder(struct doctor *doctor)
{
    char reason[GS_REASON_SIZE], path[GS_FOLDER_SIZE], name[32];
    bool well;

    if (!doctor->config->share.enable)
        doctor_say(doctor, DOCTOR_WARN, "folder", "set share.enable = on to share with others",
                   "sharing is switched off (share.enable)");
    snprintf(name, sizeof name, "doctor.%d", (int)getpid());
    well = gs_directory_try(doctor->options, name, path, reason); /* as the library's first use */
    doctor_say(
        doctor, well ? DOCTOR_OK : DOCTOR_FAIL, "folder",
        "name a folder of this user's, mode 0700, in GPUSHIM_SHARE_DIR, the same for all that are to share",
        well ? "a process here puts its socket up in %s" : "no socket can be put up: %s",
        !well     ? reason
        : path[0] ? path
                  : "a folder of its own there");
}

/* Who is asked, and what came of it. */
struct asking {
    struct doctor *doctor;
    long only; /* 0: all */
    bool seen; /* it has a socket */
    unsigned answered, brokers;
};

/* Of what is not known to be of another version it says no such thing. */
static void say_silent(const struct asking *asking, const struct who *who, const char *name,
                       int error, const union gs_wire_message *answer)
{
    struct who_shown whom = who_shown(who);
    char why[128];

    if (!who->pid)
        snprintf(whom.text, sizeof whom.text, "socket %.40s of another PID namespace", name);
    ask_silence(why, sizeof why, error, answer);
    doctor_say(asking->doctor, DOCTOR_WARN, ask_is_broker(name) ? "broker" : "sockets",
               who->stopped ? "let it go on (kill -CONT), or end it"
               : error == -EPROTONOSUPPORT
                   ? "run the same version of the library in all processes that share"
                   : "ask again; if it stays so, see what it is at: its log, its threads (ps -L)",
               "%s %s%s", whom.text, why, who->stopped ? ", as it is stopped" : "");
}

/* To who asks why it does nothing. */
static void say_asleep(const struct asking *asking, const struct who *who,
                       const struct gs_wire_report *report)
{
    char remedy[64];

    snprintf(remedy, sizeof remedy, "gpushim wake %ld", who->pid);
    if (report->asleep.ns)
        doctor_say(asking->doctor, asking->only ? DOCTOR_WARN : DOCTOR_OK, "asleep",
                   asking->only ? remedy : "",
                   "process %ld has been for %s: %s off the GPU, and its calls wait", who->pid,
                   show_age(report->asleep.ns).text, show_size(report->asleep.bytes).text);
}

static void ask_one(void *arg, int fd, const char *name, struct who *who)
{
    struct asking *asking = arg;
    union gs_wire_message answer;
    int error;

    if (asking->only && who->pid != asking->only)
        return;
    asking->seen = true;
    error = ask(fd, UINT32_MAX, 0, &answer, NULL);
    if (error) {
        say_silent(asking, who, name, error, &answer);
        return;
    }
    asking->answered++;
    say_asleep(asking, who, &answer.report);
    asking->brokers += ask_is_broker(name);
    if (ask_is_broker(name))
        doctor_say(asking->doctor, DOCTOR_OK, "broker", "", "one answers, process %ld", who->pid);
}

void doctor_sockets(struct doctor *doctor)
{
    const bool wanted = doctor->config->share.strategy == GS_CONFIG_SHARE_STRATEGY_BROKER;
    struct asking asking = {.doctor = doctor};

    ask_each(NULL, ask_one, &asking);
    doctor_say(doctor, DOCTOR_OK, "sockets", "",
               "%u processes answer in the protocol of this version (%d), %u of them brokers%s",
               asking.answered, GS_WIRE_VERSION, asking.brokers,
               wanted && !asking.brokers ? ": the first that shares starts one" : "");
}

void doctor_look_for_socket(struct doctor *doctor, long pid)
{
    struct asking asking = {.doctor = doctor, .only = pid};
    char why[QUIET_WHY];

    ask_each(NULL, ask_one, &asking);
    quiet_say(pid, why);
    if (asking.answered)
        doctor_say(doctor, DOCTOR_OK, "socket", "", "it answers in the folder");
    else if (!asking.seen)
        doctor_say(doctor, DOCTOR_OK, "socket", "",
                   "it has none in the folder that is seen here: it %s", why);
}
