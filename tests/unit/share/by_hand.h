/*
 * What tests say by hand, and what they hear: whole messages, and processes that listen where
 * others look for somebody.
 */
#ifndef GS_TESTS_BY_HAND_H
#define GS_TESTS_BY_HAND_H

#include "core/share/wire.h"
#include "side.h"

/* A message, and what else is in it: MESSAGE(QUERY, 1, .query = {.about = GS_ABOUT_EVENTS}). */
#define MESSAGE(type, request, ...) \
    message_of(GS_WIRE_##type, request, (union gs_wire_message){__VA_ARGS__})
union gs_wire_message message_of(enum gs_wire_type type, uint32_t request,
                                 union gs_wire_message message);
/* HELLO to that instance; OPEN of what the handle is of; SHARE of it, in a chunk of 2 MiB and the
 * slot of its block's id. */
union gs_wire_message message_hello(const unsigned char *instance);
union gs_wire_message message_open(const unsigned char *ipc_handle, uint32_t request,
                                   enum gs_open_wants wants);
union gs_wire_message message_share(const unsigned char *ipc_handle);
/* A handle that nobody has made. */
void ipc_handle_by_hand(unsigned char instance, uint64_t block_id, uint64_t size,
                        unsigned char *ret_ipc_handle);

/* Says it, as far as it goes; the error of gs_wire_send. */
int say(int fd, union gs_wire_message message);
/* With a descriptor, as soon as one is taken. */
int say_with(int fd, union gs_wire_message message, int attached);
/* The type of what comes next; 0: it was hung up on; -1: nothing comes. Of descriptors that come
 * along there are so many. */
int hear(int fd, union gs_wire_message *ret_message);
int hear_fds(int fd, union gs_wire_message *ret_message, unsigned *ret_fds);
/* Whether it is hung up on, whatever is said before; and the reason of the refusal that is, where
 * it is hung up on after that, or -1. */
bool is_hung_up_on(int fd);
int refusal_and_end(int fd);

/* A holder that says who it is, over as many connections as it likes. */
int connect_by_name(const char *dir, const unsigned char *ipc_handle, uint32_t number,
                    uint32_t holds);
/* RESUME, CLOSE of a grant. */
void say_of_block(int fd, enum gs_wire_type type, uint32_t generation, uint64_t block_id);
/* The id of the block that is granted then. */
uint64_t open_again(int fd, const unsigned char *ipc_handle, uint32_t generation);

/* What a process says before it leaves a block with a broker: nobody else may open, and the blocks
 * 0 to 1023 are confirmed, each in the slot of its id. */
#define PUBLISH_SLOTS 1024
int leave_memory(void);
void leave_by_hand_in(int fd, int memory);
void leave_by_hand(int fd);
/* SHARE of it, in a chunk of 2 MiB. */
void share_by_hand(int fd, const unsigned char *ipc_handle, int memory);
/* The block in this slot is taken back, and the broker is told that there is something to read. */
void ring_by_hand(int fd, int memory, uint64_t slot);
/* Reads until it is asked for what is next; false: it has been hung up on. */
bool is_asked_by_hand(int fd);

/* A process that listens at a path, and plays there until it is killed or ends by itself. */
struct player {
    pid_t pid;
    char path[128];
};
void player_start(struct player *player, const char *path, void (*play)(int listener, void *arg),
                  void *arg);
/* As player_start, where whoever made the handle would listen; and under a name as a living process
 * of the user's has. */
void player_start_for(struct player *player, const char *dir, const unsigned char *ipc_handle,
                      void (*play)(int listener, void *arg), void *arg);
void player_start_named(struct player *player, const char *dir, unsigned number,
                        void (*play)(int listener, void *arg), void *arg);
/* Its exit status, when it has ended by itself; or it is killed. Its socket goes. */
int player_wait(struct player *player);
void player_kill(struct player *player);

#endif
