/* What the tests of the broker have in common: the scene's side and the process beside it, which
 * leaves what it exports with the broker; brokers that the test starts; and what is said to one by
 * hand. */
#ifndef GS_TESTS_BROKER_SCENE_H
#define GS_TESTS_BROKER_SCENE_H

#include "by_hand.h"
#include "scene.h"

gs_status open_it(const unsigned char *ipc_handle, CUdeviceptr *ret_address);
void export_and_leave(unsigned long number, unsigned char *ret_ipc_handle);
/* A connection to the broker that has greeted it, and has said what it confirms. */
int greet_broker(const unsigned char *instance, int pidfd);
int dial_broker(const unsigned char *instance, int pidfd);
/* The reason of the refusal, 0 for a grant, -1 for a hang-up without a word. */
int answer_to_open(int fd);
int ask_open(int fd, const unsigned char *ipc_handle);
int run_broker(const char *argument, char *ret_text, size_t size);
pid_t program_by_hand(const char *program, const char *name, const char *value);
pid_t broker_by_hand(const char *name, const char *value);
/* A process that publishes what it exports to a broker, where there is one. */
struct side_chunk sharer_start(struct side *sharer);
void sharer_stop(struct side *sharer, struct side_chunk *piece, pid_t broker);
/* Killed; or by a signal at which it takes its socket along. */
void end_process(pid_t process);
void end_broker(pid_t broker);

#endif
