/* The commands (commands.h). */
#include "shim/command/commands.h"

#ifdef FOR_PAGES /* pages.c, which runs while building */
#define RUNS(function) NULL
#else
#include "shim/command/command.h"
#define RUNS(function) function
#endif

#define LIST_JSON \
    {"json", 0, NULL, TAKES_TEXT, "the same for programs: one object, with a list of rows"}
#define JSON  {"json", 0, NULL, TAKES_TEXT, "the same as one object, for programs"}
#define WATCH "TIME", TAKES_TEXT
#define TIMEOUT(what) \
    {"timeout", 0, "SECONDS", TAKES_TEXT, "waits so long " what ": 30s; 0s: not at all"}

/* Of run and record. */
#define RUN_OPTIONS                                                                                               \
    {"set", 'o', "SECTION.KEY=VALUE", TAKES_OPTION,                                                               \
     "sets an option of the library (gpushim.conf(5), 'gpushim config'); those of [general] by their key alone"}, \
        {"record-stacks", 0, "N", TAKES_TEXT, "records with N return addresses of each call"},                    \
        {"print", 0, NULL, TAKES_TEXT,                                                                            \
         "prints the variables that it would set, a line each, and starts nothing"}

/* clang-format off */
const struct command commands[] = {
    {"run", RUNS(command_run), "starts a program with the library", "[--] PROGRAM [ARGUMENT]...", 1, -1U,
     {TAKES_PROGRAM},
     "Starts PROGRAM with the library, which comes first in LD_PRELOAD. What would keep it out of PROGRAM is said on "
     "standard error before it starts, and it is started all the same. Signals and exit status are PROGRAM's; 126: it "
     "cannot be started, 127: it is not found.",
     {RUN_OPTIONS,
      {"record", 0, "FILE", TAKES_FILE,
       "records what becomes of its GPU memory, for 'gpushim report'; %p in the name is the process id"}},
     {{"gpushim run python3 train.py", "as the program runs without it"},
      {"gpushim run -o log=info -o pool.decay=30s ./serve", "two options set"}}},
    {"record", RUNS(command_record), "the same, and records what becomes of its GPU memory",
     "[--] PROGRAM [ARGUMENT]...", 1, -1U, {TAKES_PROGRAM},
     "The same as 'gpushim run', and records what becomes of its GPU memory, for 'gpushim report': into PROGRAM-PID.trace "
     "in the folder that it is started in.",
     {RUN_OPTIONS,
      {"output", 0, "FILE", TAKES_FILE, "into FILE; %p in its name is the process id, so that each process has its own"}},
     {{"gpushim record --record-stacks 8 python3 train.py", "with eight callers of each call"}}},
    {"top", RUNS(command_top), "what every process has of the GPUs' memory, refreshed", "[PID]", 0, 1, {TAKES_PID},
     "As 'gpushim stats', on a page that is refreshed every 2 seconds, with a bar for each GPU; once, where standard output "
     "is no terminal. Keys: m, c, p and r sort by memory, command, process id and rate of allocations; g shows the "
     "processes of one GPU after the other; / and a text those that have it in their command line, user or container, or as "
     "their process id (Enter ends it, Escape shows all); a blank asks at once; q ends. NO_COLOR=1 switches colours off.",
     {{"watch", 0, WATCH, "how often, as 1s or 0.5s"}},
     {{"gpushim top", "everybody whom this user may ask"}}},
    {"stats", RUNS(command_stats), "the same once, or for programs", "[PID]", 0, 1, {TAKES_PID},
     "What every process with the library has of each GPU's memory: had from the driver (reserved), the "
     "program's (live), free for it (cached), freed and waiting for the GPU (retired), freed and still used by other "
     "processes (limbo); what it has open of others' (opened); how often it allocated (calls) and took a millisecond "
     "or more (slow), since it began or, with --watch, a second; and how often it waited for the GPU (waits).",
     {{"watch", 0, WATCH, "again and again, so often: 1s, 0.5s"}, LIST_JSON},
     {{"gpushim stats 4711 --json", "one process, for a program"}}},
    {"who", RUNS(command_who), "who shares GPU memory, and who holds it", "[PID]", 0, 1, {TAKES_PID},
     "Lists the processes that share GPU memory, who holds what of theirs and since when, what is freed and still "
     "held, and whose memory each has open, also of processes that have ended. With PID, what that process shares or holds.",
     {LIST_JSON},
     {{"gpushim who", "everybody"}, {"gpushim who 4711", "what that process shares, and holds of others"}}},
    {"ls", RUNS(command_ls), "the names under which GPU memory is published", "[NAME]", 0, 1, {TAKES_NAME},
     "Lists the names under which programs have published GPU memory (gpushim_publish in gpushim.h): whose, how much, "
     "by whom and since when, and whether a broker keeps it beyond the end of that process. With NAME, that one.",
     {LIST_JSON},
     {{"gpushim ls weights/layer-0", "whose it is"}}},
    {"doctor", RUNS(command_doctor), "what stands in the way of the library here, or in a process", "[PID]", 0, 1,
     {TAKES_PID},
     "Looks for what stands in the way of the library: the driver and its GPUs, the folder of the sockets, the broker, "
     "LD_PRELOAD, and processes that use CUDA without the library. With PID, in that process. Each line is ok, "
     "warn or FAIL, with the way out after ->; the last sums up. Ends with 1 if one is FAIL.",
     {{"all", 'a', NULL, TAKES_TEXT, "all lines, whole; else as much as a screen of 30 lines has, what is wrong first"},
      {"quiet", 'q', NULL, TAKES_TEXT, "only what is FAIL"},
      LIST_JSON},
     {{"gpushim doctor", "before the first program"},
      {"gpushim doctor 4711", "why that one has not the library"},
      {"gpushim doctor --quiet && ./serve", "in a script"}}},
    {"export", RUNS(command_export), "the same figures for Prometheus, as a page or a file", "", 0, 0, {TAKES_TEXT},
     "What every process with the library has of each GPU's memory, in the text format of Prometheus: once on standard "
     "output, once into a file, or served.",
     {{"prometheus", 0, NULL, TAKES_TEXT, "for whom; there is no other yet"},
      {"listen", 0, "ADDRESS:PORT", TAKES_TEXT,
       "served over HTTP at /metrics until SIGTERM or SIGINT; :9465 is 127.0.0.1:9465, and other machines reach only an "
       "address that they can, as 0.0.0.0:9465 or [::]:9465"},
      {"host", 0, "NAME", TAKES_TEXT,
       "a name by which it may be asked, besides addresses, localhost and this machine's own name; as often as needed"},
      {"textfile", 0, "FILE", TAKES_FILE,
       "written once into FILE, which is exchanged as a whole: for node_exporter's textfile collector, which wants it to "
       "end in .prom. A file that is there and that this command did not make stays"}},
     {{"gpushim export --prometheus --listen :9465", "for a Prometheus on this machine"}}},
    {"report", RUNS(command_report), "what a recorded program's GPU memory came to, as text or a page", "FILE", 1, 1,
     {TAKES_FILE},
     "Says what became of a program's GPU memory, from the FILE that it recorded ('gpushim record'): allocations and "
     "frees, peaks, who held memory at the peak, what was never freed, and the slowest calls. A file that ends early, as "
     "its process was killed, is read as far as it goes.\n\n"
     "Files are written in the place of no file but one that the same option made, and are of mode 0600 unless all may "
     "read FILE.",
     {{"html", 0, "PAGE", TAKES_FILE,
       "writes one page for a browser, which needs nothing else: memory over time, a map of it at any moment, and who "
       "holds it"},
      {"against", 0, "EARLIER", TAKES_FILE,
       "says instead what FILE differs in from this one: peaks, what was never freed, and who held more or less"},
      {"memory-viz", 0, "OUT", TAKES_FILE, "writes a snapshot for pytorch.org/memory_viz"},
      JSON},
     {{"gpushim report train.trace", "as text"},
      {"gpushim report train.trace --html train.html", "as a page"},
      {"gpushim report new.trace --against old.trace", "what has become more, or less"}}},
    {"trim", RUNS(command_trim), "has processes give back what they keep and do not use", "PID|all", 1, 1,
     {TAKES_PID_OR_ALL},
     "Has that process, or all of this user's (for root: of everybody), give back to the driver what they keep of GPU "
     "memory and do not use. They have to have debug.reclaim_from_peers on, as they do where nobody says otherwise.",
     {LIST_JSON},
     {{"gpushim trim all", "before a large program without the library"}}},
    {"sleep", RUNS(command_sleep), "takes a process's memory off the GPU", "PID|CGROUP...", 1, 64,
     {TAKES_PID_OR_GROUP, TAKES_PID_OR_GROUP},
     "Has each process take its memory off the GPU: what is live is kept on the host, what is free goes. Its calls of CUDA "
     "that need the GPU wait until 'gpushim wake'; those that only ask are answered. Pointers, streams and graphs stay "
     "good. What others have open stays, and is said; of several that are told together what they have open of each other "
     "goes too, but for what a program made by cuMemCreate and exported (NCCL's, by default). A process that cannot be put to "
     "sleep runs on as before. "
     "CGROUP is the path of a control group: all in it, and below, that have memory of the library's.",
     {TIMEOUT("for calls under way and the GPU's work"),
      {"to", 0, "FOLDER", TAKES_FILE, "keeps the contents in a file in FOLDER, of mode 0600 and without a name"},
      {"discard", 0, "TAG", TAKES_TEXT, "does not keep what the program gave that tag (gpushim_tag)"},
      LIST_JSON},
     {{"gpushim sleep 4711 4712", "their GPU is free for others, with what the two share"},
      {"gpushim sleep /sys/fs/cgroup/system.slice/serve.service", "all that the service has"},
      {"gpushim sleep 4711 --to /var/tmp", "where the host has no room"}}},
    {"wake", RUNS(command_wake), "brings it back", "PID|CGROUP...", 1, 64,
     {TAKES_PID_OR_GROUP, TAKES_PID_OR_GROUP},
     "Brings the memory of each process back to the GPU, at the same addresses: all of it, or none. Where the GPU is full "
     "it is waited for. A process that cannot be woken sleeps on, whole. Processes that share among themselves are woken in one "
     "command.",
     {TIMEOUT("for the GPU's memory"), LIST_JSON},
     {{"gpushim wake 4711 --timeout 5s", "it goes on where it was"}}},
    {"swap", RUNS(command_swap), "one sleeps, another wakes", "PID|CGROUP PID|CGROUP", 2, 2, {TAKES_PID_OR_GROUP, TAKES_PID_OR_GROUP},
     "Puts the first process to sleep and wakes the second. Where the first fails to sleep, or sleeps already, the second is not "
     "woken.",
     {TIMEOUT("for each"), LIST_JSON},
     {{"gpushim swap 4711 4712", "4712 has the GPU now"}}},
    {"cluster", RUNS(command_cluster), "what other machines have of this one, and it of theirs", "[forget MACHINE]", 0, 2,
     {TAKES_FORGET},
     "Lists what the brokers here have to do with other machines (share.reach = cluster): their agent, what may be "
     "opened on other machines, what of other machines is open here, and which machines have leases of what is here.\n\n"
     "With forget that MACHINE (its name, its id, or unknown) is gone for good, and what it has open is used again. One "
     "that runs on and reads would read others' data: see that it does not.",
     {LIST_JSON},
     {{"gpushim cluster", "all of it"}, {"gpushim cluster forget node7", "node7 has burnt down"}}},
    {"set", RUNS(command_set), "changes an option of a process that runs", "PID SECTION.KEY=VALUE", 2, 2,
     {TAKES_PID, TAKES_SETTING},
     "Gives an option of that process another value, for as long as it runs, and says what it was. The process has to "
     "be this user's; root may change anybody's. Those that can change are marked in gpushim.conf(5) and listed by "
     "'gpushim help set'.",
     {LIST_JSON},
     {{"gpushim set 4711 log=debug", "it says more from now on"}}},
    {"config", RUNS(command_config_list), "every option, its value, and where that comes from", "", 0, 0, {TAKES_TEXT},
     "Lists every option as a program has it that this user starts in this environment, in the form of gpushim.conf(5), "
     "and says what is wrong with variables and files. What is set is marked, with the variable, or the file and its line. Names in the environment that "
     "only look like the library's are named with the right one. Ends with 1 if there is something to complain about.",
     {{"check", 0, "FILE", TAKES_FILE, "reads FILE alone, as the library would, and reports every mistake in it"},
      {"json", 0, NULL, TAKES_TEXT, "all of it as one object: options, files and complaints"}},
     {{"gpushim config", "what is set, and where"},
      {"gpushim config --check gpushim.conf", "before it is installed"}}},
    {"cdi", RUNS(command_cdi), "gives containers the library, as engines give them devices", "generate", 1, 1,
     {TAKES_GENERATE},
     "Writes a specification of the Container Device Interface, by which podman, docker and other engines give a "
     "container the library, with this program, as they give it a device: podman run --device "
     "libgpushim.dev/shim=all. Engines look for it in /etc/cdi and /var/run/cdi.\n\n"
     "The device all replaces what the image has in LD_PRELOAD. The device all-run does not; there "
     "/opt/gpushim/bin/gpushim run is to be the entry point, which keeps it behind the library.",
     {{"output", 0, "FILE", TAKES_FILE, "writes FILE, whole or not at all; without it, standard output"},
      {"share-dir", 0, "FOLDER", TAKES_FILE, "the host's folder for sockets, by which containers with these devices share"}},
     {{"gpushim cdi generate --output /etc/cdi/libgpushim.json --share-dir /run/gpushim", "one folder for all"}}},
    {"broker", RUNS(command_broker), "keeps shared GPU memory beyond the end of its processes", "", 0, 1, {TAKES_TEXT},
     "Keeps GPU memory that processes share beyond their end. gpushim-broker is another name of it. Without an option it "
     "serves in the foreground, until SIGTERM or SIGINT; under systemd, the socket that it is given. It goes by the "
     "configuration of the user who runs it: GPUSHIM_SHARE_DIR names the folder of the sockets.",
     {{"detach", 0, NULL, TAKES_TEXT, "serves in the background, until nobody needs it"},
      {"started", 0, NULL, TAKES_TEXT, NULL},
      {"version", 0, NULL, TAKES_TEXT, NULL}},
     {{"gpushim broker --detach", "for what runs from now on"}}},
    {"version", RUNS(command_version), "the version of this program, and where its library is", "", 0, 0, {TAKES_TEXT},
     "Writes the version of this program, and the path of the library that belongs to it.",
     {JSON},
     {{"gpushim version", "as gpushim --version"}}},
    {"help", RUNS(command_help), "what a command does, and its options", "[COMMAND]", 0, 1, {TAKES_COMMAND},
     "Says what COMMAND does, as 'gpushim COMMAND --help' does; without it, which commands there are.",
     {{NULL, 0, NULL, TAKES_TEXT, NULL}},
     {{"gpushim help who", "what who lists"}}},
};
/* clang-format on */

const size_t command_count = sizeof commands / sizeof *commands;
