/* Keys of the directory, and what they are made of (agent.h). */
#include "shim/agent/agent.h"

#include <stdio.h>

const unsigned char agent_nobody[GS_MACHINE_SIZE];
const unsigned char agent_unknown[GS_MACHINE_SIZE] = {[0 ... GS_MACHINE_SIZE - 1] = 0xff};

void agent_key(const char *prefix, const unsigned char bytes[16], char ret_key[DIRECTORY_KEY])
{
    char text[HEX_SIZE(16)];

    gs_text_hex(bytes, 16, text);
    snprintf(ret_key, DIRECTORY_KEY, "%s%s", prefix, text);
}
