/*
 * What siege.c, which judges, and the attackers have in common. An attacker is a process of its own
 * that goes on until it is killed, which is after an honest importer was served.
 */
#ifndef GS_TESTS_SIEGE_H
#define GS_TESTS_SIEGE_H

#include "by_hand.h"
#include "tests/system.h"

enum siege_position {
    UNINVITED,     /* another user, whom nobody names */
    LISTED,        /* another user, who is named (share.uids) and has no handle */
    LISTED_HOLDER, /* of one handle */
    SAME_USER,     /* without a handle */
    HOLDER,        /* the same user with one */
    FAKE_BROKER,   /* the same user, under another's name */
    FAKE_EXPORTER,
    SIEGE_POSITIONS
};

/* What is taken, or would be if nobody saw to it. */
enum siege_resource {
    CONNECTIONS,
    EXPORTS,       /* that a broker keeps, with their descriptors */
    UNDER_WAY,     /* descriptors that were sent and not read */
    LIMBO,         /* memory that is freed and held */
    SOCKET_MEMORY, /* the kernel's */
    LEASES,        /* what others have open */
    TURNS,         /* the time of the one thread that serves */
    SIEGE_RESOURCES
};

enum siege_target { EXPORTER, BROKER, IMPORTER, PUBLISHER, SIEGE_TARGETS };

#define SAYS(type)      (UINT64_C(1) << GS_WIRE_##type)
#define TAKES(resource) (1u << (resource))

struct siege_attack {
    const char *name;
    enum siege_target target;
    enum siege_position position;
    uint64_t types;     /* bits: what it says, or is told and does not heed */
    unsigned resources; /* bits */
    void (*play)(void); /* all that it does; or NULL, and it connects again and again: */
    struct siege_words {
        void (*say)(int fd, unsigned round);
        unsigned rounds; /* from then on the attack is under way */
        bool greets;     /* before */
        bool reads;      /* and closes as soon as all that was said is read */
    } words;
};

extern const struct siege_attack siege_clients[], siege_posers[];
extern const size_t siege_client_count, siege_poser_count;

/* Shared with the attacker. */
struct siege {
    char dir[64];
    unsigned char
        ipc_handle[GS_IPC_HANDLE_SIZE];    /* of the block that it opens; what it is asked for */
    unsigned char other[GS_INSTANCE_SIZE]; /* whose name it may take */
    pid_t honest;                          /* what it may claim to be */
    enum siege_target target;
    uint64_t said;  /* atomic: types that were, or were not heeded, */
    uint64_t tried; /* atomic: or were said when it had been hung up on */
    bool listens;   /* atomic: who poses as somebody can be connected to */
    bool holds;     /* atomic: the attack is under way; it stays so */
};
extern struct siege *siege;

/* The attacker's: from now on an honest importer is to be served; and nothing more happens. */
void siege_holds(void);
_Noreturn void siege_stays(void);
/* To whom is attacked: a connection, or -1. */
int siege_dial(void);
/* Sends with a descriptor, if one goes, or -1; the error of gs_wire_send. */
int siege_say(int fd, union gs_wire_message message, int attached);
/* A message of that type, zero or made of the handle otherwise. */
int siege_say_type(int fd, enum gs_wire_type type);
/* It would have said so, and was hung up on for what came before. */
void siege_tried(enum gs_wire_type type);
/* HELLO to an instance, from one or NULL. */
void siege_greet(int fd, const unsigned char *to, const unsigned char *from);
/* A connection that has greeted whom it attacks. */
int siege_greeted(void);
int siege_ask(int fd, uint32_t want_fd);
/* Waits for a message and does not heed it; its type, 0: hung up. */
int siege_hear(int fd, union gs_wire_message *ret_message);
/* At the name of the handle's exporter, or of the broker; its path. */
int siege_listen_as(enum siege_position position, char ret_path[108]);

#endif
