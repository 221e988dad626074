/*
 * Two machines that are two folders, each with a broker, and a test that plays both agents: the
 * process beside it (`other`) shares on the far one, its own side opens on the near one.
 */
#ifndef GS_TESTS_CLUSTER_SCENE_H
#define GS_TESTS_CLUSTER_SCENE_H

#include <pthread.h>

#include "broker_scene.h"

extern char far_dir[64];

/* Both folders, the near broker, the near side; and the process beside it. */
void cluster_setup(void);
void cluster_teardown(void);

/* An agent, to the folder's broker. */
int agent_dial(const char *at);
void agent_say(int fd, union gs_wire_message message);
/* The next message to the agent, or the end of the test where it is of another type; a descriptor
 * that came along, or -1. */
int agent_hears(int fd, enum gs_wire_type type, union gs_wire_message *ret_message);
/* As agent_hears, of the next message of this type: others before it are passed over. */
int agent_awaits(int fd, enum gs_wire_type type, union gs_wire_message *ret_message);
bool agent_hears_nothing(int fd);

/* Of the far broker's agent: opens the block for a machine; the type of the answer. */
void take_say(int fd, const unsigned char *ipc_handle, uint32_t request);
int take(int fd, const unsigned char *ipc_handle, uint32_t request,
         union gs_wire_message *ret_answer);
/* CLOSE, RECALL. */
void say_of(int fd, enum gs_wire_type type, const unsigned char *ipc_handle);
/* Asks the folder's broker: the connection. And what it says where there is no agent. */
int ask_at(const char *at, const char *forget);
struct gs_wire_machine told_at(const char *at);

/* In a thread: the near side opens. */
struct opening {
    pthread_t thread;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    gs_status status;
    CUdeviceptr address;
};
void open_begin(struct opening *opening, const unsigned char *ipc_handle);
gs_status open_end(struct opening *opening);

#endif
