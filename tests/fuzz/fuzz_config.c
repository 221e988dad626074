/* The configuration file (config/config.h): any bytes at all. */
#include "fuzz.h"

#include "config/config.h"

static void complain(void *arg, const char *line)
{
    unsigned *complaints = arg;
    size_t length = strnlen(line, GS_CONFIG_LINE_SIZE);

    CHECK(length > 0 && length < GS_CONFIG_LINE_SIZE);
    CHECK(fuzz_is_printable(line));
    ++*complaints;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct gs_config config, again, standard;
    unsigned complaints = 0, more = 0;
    char *text = malloc(size ? size : 1); /* of its exact size: a byte too far is noticed */

    CHECK(text);
    memcpy(text, data, size);
    memset(&config, 0, sizeof config);
    memset(&again, 0, sizeof again);
    memset(&standard, 0, sizeof standard);
    gs_config_parse(&config, "file", text, size, complain, &complaints);
    gs_config_parse(&again, "file", text, size, complain, &more);
    CHECK(memcmp(&config, &again, sizeof config) == 0 && complaints == more);
    gs_config_parse(&standard, "empty", "", 0, NULL, NULL);
    CHECK(config.share.dir.text[0] == 0 || config.share.dir.text[0] == '/');
    CHECK(memchr(config.share.dir.text, 0, sizeof config.share.dir.text));
    CHECK(config.share.uids.count <= GS_CONFIG_IDS_MAX);
    /* A longer file is refused whole. */
    if (size > GS_CONFIG_FILE_SIZE)
        CHECK(memcmp(&config, &standard, sizeof config) == 0);
    free(text);
    return 0;
}
