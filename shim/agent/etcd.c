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

#define BODY_MAX   (4u << 20) /* of an answer: no value is larger */
#define CONNECT_MS 1500
#define SLOW       8 /* times as long as one may be silent, for an answer that comes */

struct directory {
    struct directory_head head;
    const struct directory_options *options;
    CURL *curl;
    const char *endpoint; /* in options->place: the one that answered last */
    char *password, *token;
    int64_t lease;
    char curl_error[CURL_ERROR_SIZE];
    size_t size; /* of the answer */
    char body[BODY_MAX];
};

/* ---- Requests ------------------------------------------------------------------------------- */

static size_t on_body(char *bytes, size_t one, size_t count, void *arg)
{
    struct directory *directory = arg;

    if (count > BODY_MAX - directory->size)
        return 0;
    memcpy(directory->body + directory->size, bytes, count);
    directory->size += count;
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

/* The URL that begins there, up to the next comma. */
static int length_of(const char *endpoint)
{
    return (int)strcspn(endpoint, ",");
}

/* One request to one endpoint, which may be silent for limit_s, and answer for SLOW times that.
 * *ret_status is that of HTTP, or 0 where there was none; 200 is with an answer alone. */
static json_t *send_to(struct directory *directory, const char *endpoint, const char *path,
                       const char *text, long limit_s, long *ret_status)
{
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    json_t *answer;
    int length = length_of(endpoint);
    char *url = NULL, *token = NULL;
    CURLcode code = CURLE_OUT_OF_MEMORY;

    length -= length > 0 && endpoint[length - 1] == '/';
    if (directory->token && asprintf(&token, "Authorization: %s", directory->token) >= 0)
        headers = curl_slist_append(headers, token);
    directory->size = 0;
    directory->curl_error[0] = 0;
    curl_easy_setopt(directory->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(directory->curl, CURLOPT_POSTFIELDS, text);
    curl_easy_setopt(directory->curl, CURLOPT_TIMEOUT, limit_s * SLOW);
    curl_easy_setopt(directory->curl, CURLOPT_LOW_SPEED_TIME, limit_s);
    if (asprintf(&url, "%.*s/v3/%s", length, endpoint, path) >= 0 &&
        curl_easy_setopt(directory->curl, CURLOPT_URL, url) == CURLE_OK)
        code = curl_easy_perform(directory->curl);
    curl_slist_free_all(headers);
    free(token);
    free(url);
    *ret_status = 0;
    if (code == CURLE_WRITE_ERROR)
        strcpy(directory->curl_error, "what it answers is longer than anything of ours");
    if (code != CURLE_OK)
        return NULL;
    curl_easy_getinfo(directory->curl, CURLINFO_RESPONSE_CODE, ret_status);
    answer = json_loadb(directory->body, directory->size, JSON_DISABLE_EOF_CHECK, NULL);
    if (!answer && *ret_status == 200)
        *ret_status = 0;
    return answer;
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
    const int length = length_of(directory->endpoint) < 128 ? length_of(directory->endpoint) : 128;

    if (!text[0])
        text = directory->curl_error[0] ? directory->curl_error : "it gives no reason";
    snprintf(
        directory->head.reason, sizeof directory->head.reason,
        strstr(text, "space exceeded")
            ? "etcd at %.*s has no room (%.128s); compact and defragment it, or raise its "
              "--quota-backend-bytes, and then say etcdctl alarm disarm"
        : status == 401 || status == 403 || strstr(text, "permission") || strstr(text, "auth") ||
                strstr(text, "user name")
            ? "etcd at %.*s lets this agent not do that (%.128s); see its user, its password, "
              "and that its role may read and write \"%s\""
            : "etcd at %.*s does not answer (%.128s); see that it runs, that a majority of its "
              "members does, and --directory (keys begin with \"%s\")",
        length, directory->endpoint, text, directory->options->prefix);
}

/* To each endpoint in turn, until one has an answer that is of use: 503 and the like are none. */
static json_t *ask_all(struct directory *directory, const char *path, const json_t *request,
                       long *ret_status)
{
    const char *place = directory->options->place, *at = directory->endpoint;
    const long limit_s = strchr(place, ',') ? DIRECTORY_WAIT_S / 2 : DIRECTORY_WAIT_S;
    char *text = json_dumps(request, JSON_COMPACT);
    json_t *answer = NULL;

    *ret_status = 0;
    if (!text)
        strcpy(directory->curl_error, "no memory is left for what is asked");
    do {
        json_decref(answer);
        answer = text ? send_to(directory, at, path, text, limit_s, ret_status) : NULL;
        if (answer && *ret_status < 500) {
            directory->endpoint = at;
            break;
        }
        at += length_of(at);
        at = *at ? at + 1 : place;
    } while (at != directory->endpoint);
    free(text);
    return answer;
}

static bool sign_in(struct directory *directory)
{
    json_t *request = json_pack("{s:s, s:s}", "name", directory->options->user, "password",
                                directory->password ? directory->password : "");
    long status;
    json_t *answer = ask_all(directory, "auth/authenticate", request, &status);
    const char *token = string_of(answer, "token");

    if (status == 200 && token[0] && !strpbrk(token, "\r\n")) /* it becomes a line of HTTP */
        directory->token = strdup(token);
    else
        complain(directory, status, answer);
    json_decref(request);
    json_decref(answer);
    return directory->token != NULL;
}

/* The answer, the caller's; NULL, and the reason: there is none. Takes the request. Tokens end:
 * then it signs in again, once. */
static json_t *ask(struct directory *directory, const char *path, json_t *request)
{
    json_t *answer = NULL;
    long status = 0;

    for (int i = 0; i < 2; i++) {
        if (directory->options->user && !directory->token && !sign_in(directory))
            break;
        json_decref(answer);
        answer = ask_all(directory, path, request, &status);
        if (status == 200)
            break;
        complain(directory, status, answer);
        if (!directory->token || !(status == 401 || strstr(error_of(answer), "auth")))
            break;
        free(directory->token);
        directory->token = NULL;
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
    char text[(DIRECTORY_VALUE + 2) / 3 * 4 + 1];

    sodium_bin2base64(text, sizeof text, value, size, sodium_base64_VARIANT_ORIGINAL);
    return json_string(text);
}

static json_t *key_of(const struct directory *directory, const struct directory_key *key)
{
    char name[DIRECTORY_NAME];

    directory_name(key, directory->options->prefix, '/', name);
    return bytes(name, strlen(name));
}

/* ---- Operations ----------------------------------------------------------------------------- */

/* Its first line, or NULL. */
static char *read_password(const char *path)
{
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    const bool good = file && getline(&line, &room, file) > 0;

    if (file)
        fclose(file);
    if (!good) {
        free(line);
        return NULL;
    }
    line[strcspn(line, "\r\n")] = 0;
    return line;
}

static struct directory *open_etcd(const struct directory_options *options, char *ret_reason)
{
    char *password = options->password_file ? read_password(options->password_file) : NULL;
    struct directory *directory;

    if (options->password_file && !password) {
        snprintf(ret_reason, DIRECTORY_REASON, "no password of etcd's user can be read from %s",
                 options->password_file);
        return NULL;
    }
    directory = calloc(1, sizeof *directory);
    if (!directory || !(directory->curl = curl_easy_init()))
        return NULL;
    directory->head.ops = &directory_etcd;
    directory->options = options;
    directory->endpoint = options->place;
    directory->password = password;
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
    answer =
        ask(directory, "lease/grant", json_pack("{s:i}", "TTL", (int)directory->options->lease_s));
    if (!answer)
        return false;
    directory->lease = number_of(answer, "ID");
    if (!directory->lease)
        complain(directory, 200, answer);
    *ret_anew = true;
    json_decref(answer);
    return directory->lease != 0;
}

/* One that puts a value, or takes a key away. */
static json_t *change_of(const struct directory *directory, const struct directory_change *change)
{
    json_t *key = key_of(directory, &change->key);

    return change->value ? json_pack("{s:{s:o, s:o, s:I}}", "requestPut", "key", key, "value",
                                     bytes(change->value, change->size), "lease",
                                     (json_int_t)directory->lease)
                         : json_pack("{s:{s:o}}", "requestDeleteRange", "key", key);
}

/* Keys go first, which is what makes room where there is none for values. */
static bool write_changes(struct directory *directory, const struct directory_change *changes,
                          unsigned count)
{
    bool good = true;

    for (int puts = 0; good && puts < 2; puts++) {
        json_t *all = json_array(), *answer = NULL;
        unsigned wanted = 0;

        for (unsigned i = 0; i < count; i++) {
            if (puts != (changes[i].value != NULL))
                continue;
            wanted++;
            json_array_append_new(all, change_of(directory, &changes[i]));
        }
        if (wanted > 0) { /* what there was no memory for is no request, and fails */
            answer =
                ask(directory, "kv/txn",
                    json_array_size(all) == wanted ? json_pack("{s:O}", "success", all) : NULL);
            good = answer != NULL;
        }
        json_decref(all);
        json_decref(answer);
    }
    return good;
}

static enum directory_found get(struct directory *directory, const struct directory_key *key,
                                void *ret_value, size_t *ret_size)
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

const struct directory_ops directory_etcd = {
    .open = open_etcd, .keep = keep, .write = write_changes, .get = get, .give_up = give_up};
