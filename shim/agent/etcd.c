/*
 * The directory in etcd (directory.h): version 3 by its JSON gateway, with libcurl and jansson.
 *
 * Several endpoints: a request goes to the one that answered last, and to the others in turn where
 * that does not. Writes go as one transaction.
 */
#include "shim/agent/directory.h"

#include <curl/curl.h>
#include <inttypes.h>
#include <jansson.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENDPOINT   256
#define PREFIX     64
#define SECRET     256
#define TOKEN      4096
#define BODY_MAX   (4u << 20) /* of an answer: no value is larger */
#define CONNECT_MS 1500
#define SLOW       8 /* times as long as one may be silent, for an answer that comes */

struct directory {
    struct directory_head head;
    CURL *curl;
    char endpoints[DIRECTORY_ENDPOINTS][ENDPOINT];
    unsigned endpoint_count, endpoint; /* the one that answered last */
    char prefix[PREFIX], user[SECRET], password[SECRET], token[TOKEN];
    unsigned lease_s;
    int64_t lease;
    bool is_full;     /* so it said of the last request that failed */
    bool is_too_long; /* the last answer was */
    char *body;       /* of the answer */
    size_t size;
    char curl_error[CURL_ERROR_SIZE];
    const struct directory_options *options;
};

/* ---- Requests ------------------------------------------------------------------------------- */

static size_t on_body(char *bytes, size_t one, size_t count, void *arg)
{
    struct directory *directory = arg;
    char *body;

    directory->is_too_long = directory->size + count > BODY_MAX;
    if (directory->is_too_long)
        return 0;
    body = realloc(directory->body, directory->size + count + 1);
    if (!body)
        return 0;
    directory->body = body;
    memcpy(body + directory->size, bytes, count);
    directory->size += count;
    body[directory->size] = 0;
    return count;
}

static void set_up(struct directory *directory)
{
    const struct directory_options *options = directory->options;
    CURL *curl = directory->curl;

    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROXY, ""); /* whatever the environment says */
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, directory->curl_error);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, directory);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    if (options->ca)
        curl_easy_setopt(curl, CURLOPT_CAINFO, options->ca);
    if (options->cert)
        curl_easy_setopt(curl, CURLOPT_SSLCERT, options->cert);
    if (options->key)
        curl_easy_setopt(curl, CURLOPT_SSLKEY, options->key);
}

/* One request to one endpoint, which may be silent for limit_s, and answer for SLOW times that. The
 * status of HTTP, or 0 where there was none. */
static long send_to(struct directory *directory, unsigned endpoint, const char *path,
                    const char *text, long limit_s)
{
    char url[ENDPOINT + 64], authorization[TOKEN + 64];
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    long status = 0;
    CURLcode code;

    snprintf(url, sizeof url, "%s/v3/%s", directory->endpoints[endpoint], path);
    snprintf(authorization, sizeof authorization, "Authorization: %s", directory->token);
    if (directory->token[0])
        headers = curl_slist_append(headers, authorization);
    directory->size = 0;
    directory->is_too_long = false;
    directory->curl_error[0] = 0;
    curl_easy_setopt(directory->curl, CURLOPT_URL, url);
    curl_easy_setopt(directory->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(directory->curl, CURLOPT_POSTFIELDS, text);
    curl_easy_setopt(directory->curl, CURLOPT_TIMEOUT, limit_s * SLOW);
    curl_easy_setopt(directory->curl, CURLOPT_LOW_SPEED_TIME, limit_s);
    code = curl_easy_perform(directory->curl);
    curl_slist_free_all(headers);
    curl_easy_getinfo(directory->curl, CURLINFO_RESPONSE_CODE, &status);
    return code == CURLE_OK ? status : 0;
}

static json_t *answer_of(struct directory *directory)
{
    json_error_t error;

    return directory->size
               ? json_loadb(directory->body, directory->size, JSON_DISABLE_EOF_CHECK, &error)
               : NULL;
}

static const char *string_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

/* A number of 64 bits is text there; what is left out is 0. */
static int64_t number_of(const json_t *object, const char *key)
{
    const json_t *number = json_object_get(object, key);

    return json_is_integer(number) ? json_integer_value(number)
                                   : strtoll(string_of(object, key), NULL, 10);
}

/* Why it refuses: since etcd 3.5 in "message" alone, of a stream in an object. */
static const char *error_of(const json_t *answer)
{
    const json_t *error = json_object_get(answer, "error");
    const char *text = string_of(answer, "error");

    return text[0] ? text : string_of(json_is_object(error) ? error : answer, "message");
}

static void complain(struct directory *directory, long status, const json_t *answer)
{
    const char *text = error_of(answer); /* as it came: lines of the log are made printable */

    if (directory->is_too_long)
        text = "what it answers is longer than anything of ours";
    if (!text[0])
        text = directory->curl_error[0] ? directory->curl_error : "it gives no reason";
    directory->is_full = strstr(text, "space exceeded") != NULL;
    if (directory->is_full) {
        snprintf(directory->head.reason, sizeof directory->head.reason,
                 "etcd at %.128s has no room (%.128s); compact and defragment it, or raise its "
                 "--quota-backend-bytes, and then say etcdctl alarm disarm",
                 directory->endpoints[directory->endpoint], text);
        return;
    }
    snprintf(
        directory->head.reason, sizeof directory->head.reason,
        status == 401 || status == 403 || strstr(text, "permission") || strstr(text, "auth") ||
                strstr(text, "user name")
            ? "etcd at %.128s lets this agent not do that (%.128s); see its user, its password, "
              "and that its role may read and write \"%s\""
            : "etcd at %.128s does not answer (%.128s); see that it runs, that a majority of its "
              "members does, and --directory (keys begin with \"%s\")",
        directory->endpoints[directory->endpoint], text, directory->prefix);
}

/* To each endpoint in turn, until one has an answer that is of use: 503 and the like are none. */
static json_t *ask_all(struct directory *directory, const char *path, const json_t *request,
                       long *ret_status)
{
    char *text = json_dumps(request, JSON_COMPACT);
    json_t *answer = NULL;

    *ret_status = 0;
    for (unsigned i = 0; text && i < directory->endpoint_count; i++) {
        const unsigned endpoint = (directory->endpoint + i) % directory->endpoint_count;

        json_decref(answer);
        *ret_status =
            send_to(directory, endpoint, path, text,
                    directory->endpoint_count > 1 ? DIRECTORY_WAIT_S / 2 : DIRECTORY_WAIT_S);
        answer = answer_of(directory);
        if (directory->is_too_long) /* so the others' would be */
            break;
        if (*ret_status == 0 || *ret_status >= 500 || !answer)
            continue;
        directory->endpoint = endpoint;
        break;
    }
    free(text);
    return answer;
}

static bool sign_in(struct directory *directory)
{
    json_t *request =
        json_pack("{s:s, s:s}", "name", directory->user, "password", directory->password);
    long status;
    json_t *answer;
    bool good;

    directory->token[0] = 0;
    answer = ask_all(directory, "auth/authenticate", request, &status);
    good = status == 200 && strlen(string_of(answer, "token")) < sizeof directory->token &&
           !strpbrk(string_of(answer, "token"), "\r\n"); /* it becomes a line of HTTP */
    if (good)
        snprintf(directory->token, sizeof directory->token, "%s", string_of(answer, "token"));
    else
        complain(directory, status, answer);
    json_decref(request);
    json_decref(answer);
    return good;
}

/* The answer, the caller's; NULL, and the reason: there is none. Takes the request. Tokens end:
 * then it signs in again, once. */
static json_t *ask(struct directory *directory, const char *path, json_t *request)
{
    json_t *answer = NULL;
    long status = 0;

    for (int i = 0; i < 2; i++) {
        if (directory->user[0] && !directory->token[0] && !sign_in(directory))
            break;
        json_decref(answer);
        answer = ask_all(directory, path, request, &status);
        if (status == 200)
            break;
        complain(directory, status, answer);
        if (!directory->user[0] || !(status == 401 || strstr(error_of(answer), "auth")))
            break;
        directory->token[0] = 0;
    }
    json_decref(request);
    if (status == 200)
        return answer;
    json_decref(answer);
    return NULL;
}

/* ---- Keys and values, which are base64 there ------------------------------------------------ */

static json_t *bytes(const void *value, size_t size)
{
    char text[(DIRECTORY_VALUE + DIRECTORY_KEY + 2) / 3 * 4 + 1];

    sodium_bin2base64(text, sizeof text, value, size, sodium_base64_VARIANT_ORIGINAL);
    return json_string(text);
}

static json_t *key_of(const struct directory *directory, const char *key)
{
    char whole[PREFIX + DIRECTORY_KEY];
    int length = snprintf(whole, sizeof whole, "%s%s", directory->prefix, key);

    return bytes(whole, (size_t)length);
}

/* ---- Operations ----------------------------------------------------------------------------- */

/* Its first line. */
static bool read_password(struct directory *directory, const char *path, char *ret_reason)
{
    char line[SECRET + 2];
    FILE *file = fopen(path, "re");
    bool good = file && fgets(line, sizeof line, file);

    if (file)
        fclose(file);
    if (!good) {
        snprintf(ret_reason, DIRECTORY_REASON, "no password of etcd's user can be read from %s",
                 path);
        return false;
    }
    line[strcspn(line, "\r\n")] = 0;
    good = strlen(line) < sizeof directory->password;
    if (good)
        strcpy(directory->password, line);
    else
        snprintf(ret_reason, DIRECTORY_REASON,
                 "the password in %s has more than %d characters; choose a shorter one", path,
                 SECRET - 1);
    sodium_memzero(line, sizeof line);
    return good;
}

/* All URLs, or the reason. */
static bool read_endpoints(struct directory *directory, const char *at, char *ret_reason)
{
    while (*at) {
        const size_t length = strcspn(at, ",");
        char *endpoint = directory->endpoints[directory->endpoint_count];

        if (directory->endpoint_count == DIRECTORY_ENDPOINTS || length >= ENDPOINT) {
            snprintf(
                ret_reason, DIRECTORY_REASON,
                "--directory has more than %d URLs, or one of more than %d characters; name fewer "
                "members of etcd, in a shorter way",
                DIRECTORY_ENDPOINTS, ENDPOINT - 1);
            return false;
        }
        snprintf(endpoint, ENDPOINT, "%.*s", (int)length, at);
        if (length > 0 && endpoint[length - 1] == '/')
            endpoint[length - 1] = 0;
        directory->endpoint_count++;
        at += length + (at[length] == ',');
    }
    return true;
}

static void close_etcd(struct directory *directory)
{
    curl_easy_cleanup(directory->curl);
    sodium_memzero(directory->password, sizeof directory->password);
    free(directory->body);
    free(directory);
}

static struct directory *open_etcd(const struct directory_options *options, char *ret_reason)
{
    struct directory *directory = calloc(1, sizeof *directory);

    if (!directory)
        return NULL;
    directory->head.ops = &directory_etcd;
    directory->options = options;
    directory->lease_s = options->lease_s;
    snprintf(directory->prefix, sizeof directory->prefix, "%s", options->prefix);
    snprintf(directory->user, sizeof directory->user, "%s", options->user ? options->user : "");
    if (options->user && strlen(options->user) >= SECRET) {
        snprintf(ret_reason, DIRECTORY_REASON, "--etcd-user has more than %d characters",
                 SECRET - 1);
        close_etcd(directory);
        return NULL;
    }
    directory->curl = curl_easy_init();
    if (!directory->curl || !read_endpoints(directory, options->place, ret_reason) ||
        (options->password_file && !read_password(directory, options->password_file, ret_reason))) {
        close_etcd(directory);
        return NULL;
    }
    set_up(directory);
    return directory;
}

static bool keep(struct directory *directory, bool *ret_anew)
{
    json_t *answer;

    *ret_anew = false;
    if (directory->lease) {
        answer = ask(directory, "lease/keepalive",
                     json_pack("{s:I}", "ID", (json_int_t)directory->lease));
        if (!answer)
            return false;
        if (number_of(json_object_get(answer, "result"), "TTL") <= 0)
            directory->lease = 0; /* it has died */
        json_decref(answer);
    }
    if (directory->lease)
        return true;
    answer = ask(directory, "lease/grant", json_pack("{s:i}", "TTL", (int)directory->lease_s));
    if (!answer)
        return false;
    directory->lease = number_of(answer, "ID");
    *ret_anew = true;
    json_decref(answer);
    return directory->lease != 0;
}

/* The request that makes the changes; or those alone that take keys away. */
static json_t *changes_of(const struct directory *directory, const struct directory_change *changes,
                          unsigned count, bool ends_alone)
{
    json_t *all = json_array();

    for (unsigned i = 0; i < count; i++) {
        json_t *key;

        if (ends_alone && changes[i].value)
            continue;
        key = key_of(directory, changes[i].key);
        if (changes[i].value)
            json_array_append_new(all, json_pack("{s:{s:o, s:o, s:I}}", "requestPut", "key", key,
                                                 "value", bytes(changes[i].value, changes[i].size),
                                                 "lease", (json_int_t)directory->lease));
        else
            json_array_append_new(all, json_pack("{s:{s:o}}", "requestDeleteRange", "key", key));
    }
    return json_pack("{s:o}", "success", all);
}

/* Where there is no room for what is new, what is old goes all the same: it is what makes room. */
static bool write_changes(struct directory *directory, const struct directory_change *changes,
                          unsigned count)
{
    json_t *answer;

    directory->is_full = false;
    answer = ask(directory, "kv/txn", changes_of(directory, changes, count, false));
    json_decref(answer);
    if (answer)
        return true;
    if (directory->is_full)
        json_decref(ask(directory, "kv/txn", changes_of(directory, changes, count, true)));
    return false;
}

static enum directory_found get(struct directory *directory, const char *key, void *ret_value,
                                size_t *ret_size)
{
    json_t *answer = ask(directory, "kv/range", json_pack("{s:o}", "key", key_of(directory, key)));
    const json_t *first = json_array_get(json_object_get(answer, "kvs"), 0);
    const char *text = string_of(first, "value");
    enum directory_found found = !answer ? DIRECTORY_FAILED : DIRECTORY_NONE;

    if (first && sodium_base642bin(ret_value, DIRECTORY_VALUE, text, strlen(text), NULL, ret_size,
                                   NULL, sodium_base64_VARIANT_ORIGINAL) == 0)
        found = DIRECTORY_FOUND;
    json_decref(answer);
    return found;
}

static void give_up(struct directory *directory)
{
    if (directory->lease)
        json_decref(
            ask(directory, "lease/revoke", json_pack("{s:I}", "ID", (json_int_t)directory->lease)));
    directory->lease = 0;
}

const struct directory_ops directory_etcd = {.open = open_etcd,
                                             .close = close_etcd,
                                             .keep = keep,
                                             .write = write_changes,
                                             .get = get,
                                             .give_up = give_up};
