/* SPDX-License-Identifier: Apache-2.0 */
#include "egress_tls/box.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/text.h"
#include "net/match.h"

#define MAX_SECRETS_BYTES (1u << 20)

struct session {
    struct list node;
    char *name;
    uint16_t port;
    SSL_SESSION *ssl;
};

static int parse(const char *text, size_t length, struct policy **ret) {
    struct policy_problems problems;
    int result = policy_parse(text, length, ret, &problems);

    policy_problems_done(&problems);
    return result;
}

int box_new(const char *id, const char *policy, size_t length, struct tls_box **ret) {
    struct tls_box *box = calloc(1, sizeof *box);
    int result;

    if (box == NULL)
        return -ENOMEM;
    list_init(&box->node);
    list_init(&box->sessions);
    list_init(&box->connections);
    box->recorder.fd = -EBADF;
    box->id = strdup(id);
    result = box->id == NULL ? -ENOMEM : parse(policy, length, &box->policy);
    if (result < 0) {
        box_free(box);
        return result;
    }
    *ret = box;
    return 0;
}

static void session_free(struct session *session) {
    list_remove(&session->node);
    SSL_SESSION_free(session->ssl);
    free(session->name);
    free(session);
}

static void forget_secrets(struct tls_box *box) {
    if (box->secrets == NULL)
        return;
    explicit_bzero(box->secrets, box->secrets_bytes);
    munmap(box->secrets, box->secrets_bytes);
    box->secrets = NULL;
}

struct tls_box *box_free(struct tls_box *box) {
    if (box == NULL)
        return NULL;
    list_remove(&box->node);
    while (!list_empty(&box->sessions))
        session_free(container_of(box->sessions.next, struct session, node));
    recorder_done(&box->recorder);
    recording_free(box->recording);
    forget_secrets(box);
    policy_free(box->policy);
    free(box->id);
    free(box);
    return NULL;
}

int box_set_rules(struct tls_box *box, const char *text, size_t length) {
    struct policy *policy = NULL;
    int result = parse(text, length, &policy);

    if (result < 0)
        return result;
    policy_free(box->policy);
    box->policy = policy;
    return 0;
}

/* A line end in a value would begin another header. */
static bool is_header_value(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (((unsigned char)text[i] < ' ' && text[i] != '\t') || text[i] == 0x7f)
            return false;
    return true;
}

static int store_secrets(struct tls_box *box, json_t *all) {
    size_t bytes = 1;
    const char *name;
    json_t *value;
    char *at;

    json_object_foreach(all, name, value) bytes += strlen(name) + json_string_length(value) + 2;
    at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return -ENOMEM;
    (void)madvise(at, bytes, MADV_DONTDUMP);
    box->secrets = at;
    box->secrets_bytes = bytes;
    json_object_foreach(all, name, value) {
        const char *text = json_string_value(value);

        if (text == NULL || *name == 0 || !is_header_value(text, json_string_length(value)))
            continue;
        at = stpcpy(at, name) + 1;
        at = stpcpy(at, text) + 1;
    }
    return 0;
}

int box_set_secrets(struct tls_box *box, int fd) {
    void *data = NULL;
    size_t length = 0;
    json_t *all;
    int result = fd_map_memory_file(fd, MAX_SECRETS_BYTES, &data, &length);

    if (result < 0)
        return result;
    all = length > 0 ? json_loadb(data, length, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (length > 0)
        munmap(data, length);
    forget_secrets(box);
    result = json_is_object(all) ? store_secrets(box, all) : -EINVAL;
    json_decref(all);
    recorder_set_secrets(&box->recorder, box->secrets);
    return result;
}

int box_set_recording(struct tls_box *box, int fd) {
    void *data = NULL;
    size_t length = 0;
    int result = fd_map_memory_file(fd, RECORDING_MAX_BYTES, &data, &length);

    if (result < 0 || data == NULL)
        return result < 0 ? result : -EBADMSG;
    result = recording_read(data, length, &box->recording);
    munmap(data, length);
    return result;
}

static const char *find_secret(const struct tls_box *box, const char *name, size_t length) {
    const char *at = box->secrets != NULL ? box->secrets : "";

    while (*at != 0) {
        const char *value = at + strlen(at) + 1;

        if (strlen(at) == length && memcmp(at, name, length) == 0)
            return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}

static bool is_declared(const struct net_rules *rules, const char *name, size_t length) {
    for (size_t i = 0; i < rules->n_secrets; i++)
        if (strlen(rules->secrets[i].name) == length &&
            memcmp(rules->secrets[i].name, name, length) == 0)
            return true;
    return false;
}

static void refuse(struct ruling *ruling, unsigned status, const char *why, const char *text) {
    ruling->status = status;
    ruling->why = why;
    snprintf(ruling->text, sizeof ruling->text, "rollbox: %s", text);
}

/* Appends a header's value with the secrets in their places. */
static void add_value(struct tls_box *box, const char *template, struct ruling *ruling) {
    const char *at = template;

    while (*at != 0) {
        size_t plain = strcspn(at, "{"), name;
        const char *value;

        buf_add(&ruling->values, at, plain);
        at += plain;
        if (*at == 0)
            break;
        name = strcspn(at + 1, "}");
        if (at[1 + name] != '}' || !is_declared(box_rules(box), at + 1, name)) {
            buf_add(&ruling->values, at++, 1);
            continue;
        }
        value = find_secret(box, at + 1, name);
        if (value == NULL) {
            refuse(ruling, 502, "secret_missing", "");
            snprintf(ruling->text, sizeof ruling->text,
                "rollbox: the gateway has no value of the secret \"%.*s\"; give the secrets again",
                (int)MIN(name, (size_t)80), at + 1);
            return;
        }
        buf_add_text(&ruling->values, value);
        at += name + 2;
    }
}

static void inject(struct tls_box *box, const struct net_rule *rule, struct ruling *ruling) {
    size_t ends[BOX_MAX_HEADERS], begin = 0, n = MIN(rule->n_inject, (size_t)BOX_MAX_HEADERS);

    if (rule->n_inject > BOX_MAX_HEADERS)
        refuse(ruling, 502, "gateway", "a rule sets too many headers");
    for (size_t i = 0; i < n && ruling->status == 0; i++) {
        add_value(box, rule->inject[i].value, ruling);
        ends[i] = ruling->values.length;
    }
    if (ruling->status == 0 && buf_failed(&ruling->values))
        refuse(ruling, 502, "gateway", "the gateway is out of memory");
    if (ruling->status != 0)
        return;
    for (size_t i = 0; i < n; i++) {
        const char *name = rule->inject[i].name;

        ruling->set[i] = (struct http_header){ { name, strlen(name) },
            { ruling->values.data != NULL ? ruling->values.data + begin : "", ends[i] - begin } };
        begin = ends[i];
    }
    ruling->n_set = n;
}

static bool is_over(uint64_t count, uint64_t limit) {
    return limit > 0 && count >= limit;
}

static bool check_limits(const struct tls_box *box, struct ruling *ruling) {
    const struct net_rules *rules = box_rules(box);

    if (is_over(box->n_requests, rules->max_requests))
        refuse(ruling, 429, "limit_requests", "the sandbox has used up net_max_requests");
    else if (is_over(box->up, rules->max_upload_bytes))
        refuse(ruling, 429, "limit_bytes", "the sandbox has used up net_max_upload");
    else if (is_over(box->down, rules->max_download_bytes))
        refuse(ruling, 429, "limit_bytes", "the sandbox has used up net_max_download");
    return ruling->status == 0;
}

void box_rule_on(struct tls_box *box, size_t rule, const char *name, uint16_t port,
    struct http_text method, struct http_text target, struct ruling *ret) {
    auto_free char *method_text = text_copy(method.text, method.length);
    auto_free char *path = text_copy(target.text, target.length);

    *ret = (struct ruling){ .rule = -1, .values = BUF_INIT };
    if (method_text == NULL || path == NULL)
        refuse(ret, 502, "gateway", "the gateway is out of memory");
    else if (rule < box_rules(box)->n)
        ret->rule = match_request(box_rules(box), rule, port, method_text, path);
    if (ret->status != 0 || (ret->rule >= 0 && !check_limits(box, ret)))
        return;
    if (ret->rule < 0) {
        refuse(ret, 403, "method_path", "");
        snprintf(ret->text, sizeof ret->text, "rollbox: no rule for %.80s allows %.16s %.100s",
            name, method_text, path);
        ret->text[strcspn(ret->text, "\r\n")] = 0;
        return;
    }
    if (box->recording == NULL) /* a recording needs no secret */
        inject(box, &box_rules(box)->items[ret->rule], ret);
    if (ret->status == 0)
        box->n_requests++;
}

void ruling_done(struct ruling *ruling) {
    if (ruling->values.data != NULL)
        explicit_bzero(ruling->values.data, ruling->values.capacity);
    buf_done(&ruling->values);
}

static struct session *find_session(struct tls_box *box, const char *name, uint16_t port) {
    list_for_each(node, &box->sessions) {
        struct session *session = container_of(node, struct session, node);

        if (session->port == port && strcmp(session->name, name) == 0)
            return session;
    }
    return NULL;
}

SSL_SESSION *box_session(struct tls_box *box, const char *name, uint16_t port) {
    struct session *session = find_session(box, name, port);

    return session != NULL ? session->ssl : NULL;
}

void box_keep_session(
    struct tls_box *box, const char *name, uint16_t port, SSL_SESSION *take_session) {
    struct session *session = find_session(box, name, port);

    if (session == NULL) {
        session = calloc(1, sizeof *session);
        if (session == NULL || (session->name = strdup(name)) == NULL) {
            free(session);
            SSL_SESSION_free(take_session);
            return;
        }
        session->port = port;
        list_init(&session->node);
        box->n_sessions++;
    }
    list_remove(&session->node);
    list_add_tail(box->sessions.next, &session->node);
    SSL_SESSION_free(session->ssl);
    session->ssl = take_session;
    if (box->n_sessions > BOX_MAX_SESSIONS) {
        session_free(container_of(box->sessions.prev, struct session, node));
        box->n_sessions--;
    }
}
