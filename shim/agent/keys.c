/* Keys of the directory, and what they are made of (agent.h). */
#include "shim/agent/agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const unsigned char agent_nobody[GS_MACHINE_SIZE];
const unsigned char agent_unknown[GS_MACHINE_SIZE] = {[0 ... GS_MACHINE_SIZE - 1] = 0xff};

bool agent_unhex(const char *text, unsigned char *ret_bytes, size_t size)
{
    if (strlen(text) != 2 * size || strspn(text, "0123456789abcdef") != 2 * size)
        return false;
    for (size_t i = 0; i < size; i++) {
        const char two[3] = {text[2 * i], text[2 * i + 1], 0};

        ret_bytes[i] = (unsigned char)strtoul(two, NULL, 16);
    }
    return true;
}

void agent_key(const char *prefix, const unsigned char bytes[16], char ret_key[DIRECTORY_KEY])
{
    char text[HEX_SIZE(16)];

    gs_text_hex(bytes, 16, text);
    snprintf(ret_key, DIRECTORY_KEY, "%s%s", prefix, text);
}
