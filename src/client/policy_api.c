/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies, and the engine's other blocking requests.
 *
 * Policy text is parsed here first, so that an invalid policy is reported without an engine and
 * with all its problems. Plans are kept by their exact text for the lifetime of the engine handle.
 * If the policy keeps the caller's environment (clean_env false), the environment is part of the
 * key.
 */
#include "client/client.h"
#include "client/net_sets.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/text.h"
#include "engine/protocol.h"
#include "policy/policy.h"

/* ---- checking ---- */

/* One line a problem, as many as fit; whole lines only. A text of one line, as programs write it,
 * needs no line numbers. */
static void word_problems(
    const struct policy_problems *problems, bool has_lines, struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT;
    size_t told = 0;

    for (size_t i = 0; i < problems->n; i++) {
        const struct policy_problem *problem = &problems->items[i];
        size_t before = text.length;

        if (i)
            buf_add_text(&text, "\n");
        if (has_lines && problem->line)
            buf_printf(&text, "line %u: ", problem->line);
        if (problem->key && problem->key[0])
            buf_printf(&text, "%s: ", problem->key);
        buf_add_text(&text, problem->message);
        if (problem->hint && problem->hint[0])
            buf_printf(&text, " (%s)", problem->hint);
        /* Room for the line that counts the rest; a first problem too long for that is cut. */
        if (i && text.length + 32 > sizeof error->message) {
            text.length = before;
            buf_add(&text, "", 0);
            break;
        }
        told++;
    }
    if (told < problems->n)
        buf_printf(&text, "\n... and %zu more", problems->n - told);
    error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy", "%s",
        text.data ? text.data : "the policy is not valid");
}

/* Parses and words. On success the policy is the caller's. */
static int parse_policy(const char *json, size_t length, struct policy **ret_policy,
    struct policy_problems *problems, struct rollbox_error *error) {
    struct rollbox_error unused;

    if (!json)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "the policy is NULL; \"{}\" is the default policy");
    int r = policy_parse(json, length, ret_policy, problems);
    if (r == -EINVAL)
        word_problems(problems, memchr(json, '\n', length), error ? error : &unused);
    else if (r < 0)
        error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "policy",
            "cannot parse the policy: %s", strerror(-r));
    return r;
}

static char *problems_json(const struct policy_problems *problems) {
    auto_buf struct buf to = BUF_INIT;

    buf_add_text(&to, "[");
    for (size_t i = 0; i < problems->n; i++) {
        const struct policy_problem *problem = &problems->items[i];
        const char *const texts[][2] = { { "key", problem->key }, { "message", problem->message },
            { "hint", problem->hint } };

        buf_printf(&to, "%s{\"line\":%u", i ? "," : "", problem->line);
        for (size_t j = 0; j < ARRAY_SIZE(texts); j++) {
            const char *text = texts[j][1] ? texts[j][1] : "";

            buf_printf(&to, ",\"%s\":", texts[j][0]);
            result_json_string(&to, text, strlen(text));
        }
        buf_add_text(&to, "}");
    }
    buf_add_text(&to, "]");
    return buf_take(&to);
}

/* The sets of hosts that the policy names exist; else one more problem. */
static int check_sets(const char *json, size_t length, struct policy_problems *problems,
    struct rollbox_error *error) {
    struct rollbox_error unknown = { 0 };
    auto_free char *filled = NULL;

    int r = net_sets_fill(json, length, &filled, &unknown);
    if (r == 0)
        return 0;
    const char *message =
        strncmp(unknown.message, "net_allow: ", 11) == 0 ? unknown.message + 11 : unknown.message;
    problems->items = calloc(1, sizeof *problems->items);
    if (problems->items) {
        problems->n = 1;
        problems->items[0] = (struct policy_problem){
            .key = strdup("net_allow"), .message = strdup(message), .hint = strdup("")
        };
    }
    if (error)
        *error = unknown;
    return -EINVAL;
}

ROLLBOX_PUBLIC int rollbox_policy_check(
    const char *json, size_t length, char **ret_problems, struct rollbox_error *error) {
    struct policy_problems problems = { 0 };
    struct policy *policy = NULL;

    int r = parse_policy(json, length, &policy, &problems, error);
    if (r >= 0) {
        policy_free(policy);
        r = check_sets(json, length, &problems, error);
    }
    if (ret_problems && (r >= 0 || r == -EINVAL)) {
        char *text = problems_json(&problems);

        if (text)
            *ret_problems = text;
        else
            r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    }
    policy_problems_done(&problems);
    return r < 0 ? r : 0;
}

/* Is it valid, and does it keep the caller's environment? */
static int examine_policy(const char *json, size_t length, bool *ret_keeps_environment,
    char **ret_secrets, struct rollbox_error *error) {
    struct policy_problems problems = { 0 };
    struct policy *policy = NULL;

    int r = parse_policy(json, length, &policy, &problems, error);
    if (r >= 0) {
        *ret_keeps_environment = !policy->clean_env;
        if (ret_secrets)
            r = secrets_read(policy, ret_secrets, error);
        policy_free(policy);
    }
    policy_problems_done(&problems);
    return r;
}

/* ---- plans ---- */

/* FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/. */
static uint64_t hash_text(const char *text, size_t length) {
    uint64_t hash = 0xcbf29ce484222325;

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3;
    return hash;
}

/* The caller's variables, each with its NUL. Variables without a name, or that execve cannot pass
 * on, are left out. */
static void take_environment(struct buf *to) {
    buf_add(to, "", 0);
    for (char **variable = environ; variable && *variable; variable++)
        if (strchr(*variable, '=') && (*variable)[0] != '=')
            buf_add(to, *variable, strlen(*variable) + 1);
}

static bool environment_is_now(const struct rollbox_plan *plan) {
    auto_buf struct buf now = BUF_INIT;

    if (!plan->environment)
        return true;
    take_environment(&now);
    return !buf_failed(&now) && now.length == plan->environment_length &&
           !memcmp(now.data, plan->environment, now.length);
}

static bool secrets_are(const struct rollbox_plan *plan, const char *secrets) {
    if (!plan->secrets || !secrets)
        return plan->secrets == secrets;
    return strcmp(plan->secrets, secrets) == 0;
}

/* Needs the lock. `secrets` NULL: the plan of a policy without any. */
static struct rollbox_plan *find_plan(struct rollbox_engine *engine, const char *text,
    size_t length, uint64_t hash, const char *secrets) {
    for (struct rollbox_plan *plan = engine->plans[hash % CONNECTION_PLAN_BUCKETS]; plan;
         plan = plan->next)
        if (plan->hash == hash && plan->length == length && !memcmp(plan->text, text, length) &&
            secrets_are(plan, secrets) && environment_is_now(plan))
            return plan;
    return NULL;
}

int64_t policy_api_run_timeout_ms(const struct rollbox_plan *plan) {
    return plan->timeout_ms < 0 ? ROLLBOX_NO_TIMEOUT : plan->timeout_ms;
}

struct rollbox_plan *policy_api_free_plan(struct rollbox_plan *plan) {
    free(plan->text);
    free(plan->environment);
    secrets_free(plan->secrets);
    free(plan->isolation);
    free(plan);
    return NULL;
}

static int read_prepared(const struct buf *body, struct rollbox_plan *plan) {
    struct wire_field field;
    bool have_id = false;
    size_t position = 0;
    int r;

    while ((r = wire_next(body->data, body->length, &position, &field)) > 0) {
        const char *text;

        switch (field.tag) {
        case TAG_PLAN:
            if (wire_u64(&field, &plan->id) < 0)
                return -EBADMSG;
            have_id = true;
            break;
        case TAG_ISOLATION:
            text = wire_text(&field);
            if (!text || plan->isolation)
                return -EBADMSG;
            plan->isolation = result_json_object(text);
            if (!plan->isolation)
                return -EBADMSG;
            break;
        case TAG_DEFAULT_TIMEOUT: {
            uint64_t timeout;

            if (wire_u64(&field, &timeout) < 0)
                return -EBADMSG;
            plan->timeout_ms = (int64_t)timeout;
            break;
        }
        default:
            break;
        }
    }
    return r < 0 || !have_id ? -EBADMSG : 0;
}

static int request_plan(struct rollbox_engine *engine, struct rollbox_plan *plan,
    const char *policy, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;
    struct request request = { .takes_fds = false };
    auto_close int secrets = -EBADF;

    if (plan->secrets) {
        secrets = fd_memory_file("rollbox-secrets", plan->secrets, strlen(plan->secrets));
        if (secrets < 0)
            return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -secrets, "policy",
                "cannot make a memory file for the secrets: %s", strerror(-secrets));
    }
    wire_begin(&message, PROTOCOL_PREPARE, 0);
    wire_add_text(&message, TAG_POLICY, policy);
    for (size_t at = 0; at < plan->environment_length; at += strlen(plan->environment + at) + 1)
        wire_add_text(&message, TAG_ENV, plan->environment + at);
    int r = connection_call(
        engine, &message, &secrets, secrets >= 0, PROTOCOL_PREPARED, &request, error);
    if (r >= 0 && read_prepared(&request.body, plan) < 0)
        r = request_malformed(error);
    buf_done(&request.body);
    return r;
}

/* The text as a C string. A NUL inside is for policy_parse to refuse, which has seen it by now. */
static struct rollbox_plan *new_plan(struct rollbox_engine *engine, const char *json, size_t length,
    uint64_t hash, bool keeps_environment, char **take_secrets) {
    struct rollbox_plan *plan = calloc(1, sizeof *plan);
    auto_buf struct buf environment = BUF_INIT;

    if (!plan)
        return NULL;
    plan->engine = engine;
    plan->hash = hash;
    plan->length = length;
    plan->text = text_copy(json, length);
    plan->secrets = TAKE_PTR(*take_secrets);
    if (keeps_environment) {
        take_environment(&environment);
        plan->environment_length = environment.length;
        plan->environment = buf_take(&environment);
    }
    if (!plan->text || (keeps_environment && !plan->environment))
        return policy_api_free_plan(plan);
    return plan;
}

static void erase_secrets(char **secrets) {
    *secrets = secrets_free(*secrets);
}

ROLLBOX_PUBLIC int rollbox_prepare(struct rollbox_engine *engine, const char *json, size_t length,
    struct rollbox_plan **ret_plan, struct rollbox_error *error) {
    bool keeps_environment = false;
    __attribute__((cleanup(erase_secrets))) char *secrets = NULL;

    if (!engine || !json || !ret_plan)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "engine and policy must be given; \"{}\" is the default policy");
    int r = connection_check_owner(engine->owner, error);
    if (r < 0)
        return r;
    uint64_t hash = hash_text(json, length);
    pthread_mutex_lock(&engine->lock);
    struct rollbox_plan *known = find_plan(engine, json, length, hash, NULL);
    pthread_mutex_unlock(&engine->lock);
    if (known) {
        *ret_plan = known;
        return 0;
    }
    auto_free char *filled = NULL;
    r = examine_policy(json, length, &keeps_environment, &secrets, error);
    if (r >= 0 && secrets) {
        /* Its plan is looked up with the values that the secrets have now. */
        pthread_mutex_lock(&engine->lock);
        known = find_plan(engine, json, length, hash, secrets);
        pthread_mutex_unlock(&engine->lock);
    }
    if (known) {
        *ret_plan = known;
        return 0;
    }
    if (r >= 0)
        r = net_sets_fill(json, length, &filled, error);
    if (r < 0)
        return r;
    struct rollbox_plan *plan = new_plan(engine, json, length, hash, keeps_environment, &secrets);
    if (!plan)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    r = request_plan(engine, plan, filled ? filled : plan->text, error);
    if (r < 0) {
        policy_api_free_plan(plan);
        return r;
    }
    pthread_mutex_lock(&engine->lock);
    /* Another thread may have prepared the same text meanwhile: the same text gives the same plan.
     */
    known = find_plan(engine, json, length, hash, plan->secrets);
    if (!known) {
        struct rollbox_plan **bucket = &engine->plans[hash % CONNECTION_PLAN_BUCKETS];

        plan->next = *bucket;
        *bucket = plan;
    }
    pthread_mutex_unlock(&engine->lock);
    if (known)
        policy_api_free_plan(plan);
    *ret_plan = known ? known : plan;
    return 0;
}

/* ---- texts ---- */

ROLLBOX_PUBLIC int rollbox_policy_plan(struct rollbox_engine *engine, const char *json,
    size_t length, char **ret_text, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;
    auto_free char *text = NULL;
    bool keeps_environment;

    int r = connection_check_owner(engine->owner, error);
    if (r >= 0)
        r = examine_policy(json, length, &keeps_environment, NULL, error);
    if (r >= 0)
        r = net_sets_fill(json, length, &text, error);
    if (r < 0)
        return r;
    if (!text)
        text = text_copy(json, length);
    if (!text)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    wire_begin(&message, PROTOCOL_EXPLAIN, 0);
    wire_add_text(&message, TAG_POLICY, text);
    return request_text(engine, &message, NULL, 0, ret_text, error);
}

ROLLBOX_PUBLIC int rollbox_engine_status(
    struct rollbox_engine *engine, char **ret_json, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    int r = connection_check_owner(engine->owner, error);
    if (r < 0)
        return r;
    wire_begin(&message, PROTOCOL_STATUS, 0);
    return request_text(engine, &message, NULL, 0, ret_json, error);
}
