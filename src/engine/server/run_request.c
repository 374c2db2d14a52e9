/* SPDX-License-Identifier: Apache-2.0 */
/* A client's RUN or EXEC: it is decoded, with its descriptors and the message for init; a retry
 * waits for the first run; any other is queued, or enters its session. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/command/result.h"
#include "engine/command/stream.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/pool/owned_image.h"
#include "engine/pool/profile.h"
#include "engine/pool/python_zygote.h"
#include "engine/run/admission.h"
#include "engine/hibernate/hibernate.h"
#include "engine/protocol.h"
#include "engine/run/run.h"
#include "engine/server/fingerprint.h"
#include "engine/server/run_request.h"
#include "engine/session/exec.h"
#include "engine/session/session.h"

#define MAX_ARGUMENTS 65536
#define MAX_ENVIRONMENT 8192

/* The descriptors that came with a request. */
struct given {
    bool stdin_file, stdio, input;
    unsigned streams, extra; /* bits; how many */
};

static int take_operation(
    struct run *run, const struct wire_field *field, struct rollbox_error *error) {
    if (field->length < 1 || field->length > 64)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "operation id: must have 1 to 64 bytes");
    memcpy(run->operation.id, field->data, field->length);
    run->operation.length = field->length;
    return 0;
}

/* "USER[:GROUP[:GROUPS]]". Init refuses names that are not in the sandbox. */
static int add_user(struct run *run, const char *text, struct rollbox_error *error) {
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-:,";

    if (!text || !*text || text[0] == ':' || text[strspn(text, allowed)])
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "user %.100s: must be USER, USER:GROUP or USER:GROUP:GROUPS, of names or numbers",
            text ? text : "?");
    wire_add_text(&run->given.message, GUEST_USER, text);
    return 0;
}

/* A field that only a command of a session has. 0; 1: it is none; or -errno. */
static int parse_exec_field(struct run *run, const struct wire_field *field, struct given *given,
    struct rollbox_error *error) {
    const char *text = wire_text(field);
    uint64_t number = 0;

    if (field->tag != TAG_SANDBOX && field->tag != TAG_USER && wire_u64(field, &number) < 0)
        return 1;
    switch (field->tag) {
    case TAG_SANDBOX: {
        int r = hibernate_find_session(run->engine, text, &run->session, error);
        if (r < 0)
            return r;
        run->profile = run->session->profile;
        return 0;
    }
    case TAG_USER:
        if (run->profile->plan->flags & PLAN_MANY_USERS)
            return add_user(run, text, error);
        return text && session_has_user(run->session, text)
                   ? 0
                   : error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "arguments",
                         "user %.100s: the sandbox has no other user than its policy's; it has "
                         "with "
                         "users many",
                         text ? text : "?");
    case TAG_INPUT:
        given->input = number;
        return 0;
    case TAG_STREAM:
        given->streams = (unsigned)number & 3;
        return 0;
    case TAG_EXTRA:
        given->extra = (unsigned)MIN(number, (uint64_t)ARRAY_SIZE(run->fds.extra) + 1);
        return 0;
    case TAG_DETACHED:
        run->given.is_detached = number;
        return 0;
    case TAG_TERMINAL:
        run->terminal.is_wanted = true;
        wire_add_u64(&run->given.message, GUEST_TERMINAL, number);
        return 0;
    case TAG_NO_TRACE:
        wire_add_u64(&run->given.message, GUEST_NO_TRACE, number);
        return 0;
    default:
        return 1;
    }
}

/* Adds the image's entry point and command. Returns their number of arguments. */
static size_t add_image_command(struct run *run) {
    const struct image *image = run->profile->image;
    size_t n = 0;

    if (!image || image->plan.places)
        return 0;
    for (char *const *word = image->stored->manifest.entrypoint; *word; word++, n++)
        wire_add_text(&run->given.message, GUEST_ARG, *word);
    for (char *const *word = image->stored->manifest.cmd; *word; word++, n++)
        wire_add_text(&run->given.message, GUEST_ARG, *word);
    return n;
}

/* python3 -c CODE ..., or python3 FILE ...: no other options, which would be for another
 * interpreter. */
static bool is_code(const struct run *run) {
    const char *words[3] = { "", "", "" };
    struct wire_field field;
    size_t position = 0, n = 0;

    while (n < ARRAY_SIZE(words) &&
           wire_next(run->given.message.data + sizeof(struct wire_header),
               run->given.message.length - sizeof(struct wire_header), &position, &field) > 0)
        if (field.tag == GUEST_ARG)
            words[n++] = field.data;
    return !strcmp(words[0], "python3") &&
           (words[1][0] == '-' ? n == 3 && !strcmp(words[1], "-c") : n >= 2 && words[1][0]);
}

/* Among its files is what Python looks for at its start, which one that is started already would
 * not find. */
static bool brings_packages(const struct run *run) {
    static const char *const parts[] = { "/site-packages/", "/dist-packages/", "/sitecustomize",
        "/usercustomize", "/pyvenv.cfg" };
    struct wire_field field;
    size_t position = 0;

    while (wire_next(run->given.message.data + sizeof(struct wire_header),
               run->given.message.length - sizeof(struct wire_header), &position, &field) > 0)
        for (size_t i = 0; field.tag == GUEST_FILE_PATH && i < ARRAY_SIZE(parts); i++)
            if (memmem(field.data, field.length, parts[i], strlen(parts[i])))
                return true;
    return false;
}

static int decode_fields(struct run *run, struct wire_message *message, struct given *given,
    struct rollbox_error *error) {
    auto_free const char **env = NULL;
    struct wire_field field;
    size_t position = 0, n_env = 0, n_args = 0, n_fields = 0;
    uint64_t number, timeout = 0, output = UINT64_MAX;
    bool have_timeout = false, have_profile = false, have_cwd = false;
    int r;

    while ((r = wire_next(message->data, message->length, &position, &field)) > 0)
        n_fields++;
    if (r < 0 || !(env = calloc(n_fields + 1, sizeof *env)))
        return error_set(error, r < 0 ? ROLLBOX_ERR_PROTOCOL : ROLLBOX_ERR_RESOURCE_EXHAUSTED,
            r < 0 ? EBADMSG : ENOMEM, "arguments", "the request cannot be read");
    wire_begin(&run->given.message, GUEST_EXEC, 0);
    position = 0;
    while (wire_next(message->data, message->length, &position, &field) > 0) {
        const char *text = wire_text(&field);

        switch (field.tag) {
        case TAG_PLAN:
            have_profile = wire_u64(&field, &number) == 0 &&
                           (run->profile = profile_find(run->engine, number));
            break;
        case TAG_OPERATION:
            if ((r = take_operation(run, &field, error)) < 0)
                return r;
            break;
        case TAG_ARG:
            if (!text || ++n_args > MAX_ARGUMENTS)
                return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, text ? E2BIG : EINVAL,
                    "arguments", "argv: %s",
                    text ? "too many arguments" : "an argument has a NUL inside");
            wire_add(&run->given.message, GUEST_ARG, field.data, field.length);
            break;
        case TAG_ENV:
            if (!text || !strchr(text, '=') || text[0] == '=' || n_env == MAX_ENVIRONMENT)
                return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                    "env: each entry must be NAME=value, and there may be at most %d",
                    MAX_ENVIRONMENT);
            env[n_env++] = text;
            break;
        case TAG_CWD:
            if (!text || text[0] != '/')
                return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                    "cwd: must be an absolute path inside the sandbox");
            have_cwd = true;
            wire_add(&run->given.message, GUEST_CWD, field.data, field.length);
            break;
        case TAG_TIMEOUT:
            have_timeout = wire_u64(&field, &timeout) == 0;
            if (!have_timeout || timeout > INT64_MAX / 2 / 1000000)
                return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                    "timeout: is too long");
            break;
        case TAG_OUTPUT_LIMIT:
            (void)wire_u64(&field, &output);
            output =
                output == UINT64_MAX
                    ? output
                    : MIN(output,
                          (uint64_t)
                              INT64_MAX); /* JSON has no larger number (hibernate_manifest.c) */
            break;
        case TAG_FILE_PATH:
            wire_add(&run->given.message, GUEST_FILE_PATH, field.data, field.length);
            break;
        case TAG_FILE_MODE:
            wire_add(&run->given.message, GUEST_FILE_MODE, field.data, field.length);
            break;
        case TAG_FILE_DATA:
            wire_add(&run->given.message, GUEST_FILE_DATA, field.data, field.length);
            break;
        case TAG_STDIN:
            given->stdin_file = wire_u64(&field, &number) == 0 && number;
            break;
        case TAG_STDIO:
            given->stdio = wire_u64(&field, &number) == 0 && number;
            break;
        case TAG_PRIORITY:
            if (wire_u64(&field, &number) < 0 || number > ROLLBOX_PRIORITY_LOW)
                return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                    "priority: must be normal, high or low");
            run->admission.rank =
                (number == ROLLBOX_PRIORITY_HIGH) - (number == ROLLBOX_PRIORITY_LOW);
            break;
        case TAG_CODE:
            run->code.is_wanted = wire_u64(&field, &number) == 0 && number;
            break;
        default:
            r = message->header.type == PROTOCOL_EXEC ? parse_exec_field(run, &field, given, error)
                                                      : 1;
            if (r < 0)
                return r;
            if (r == 0)
                break;
            return error_set(error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "arguments",
                "the request has a field (%u) that this engine does not know", field.tag);
        }
    }
    if (message->header.type == PROTOCOL_EXEC ? !run->session : !have_profile)
        return error_set(error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "arguments",
            "the engine does not know that policy any more; prepare it again");
    if (have_profile && (r = profile_renew(&run->profile, error)) < 0)
        return r;
    if (have_profile && run->profile->policy->publish.n)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "policy",
            "publish: a single run has no published ports; use a session (rollbox create, or the "
            "calls of a Sandbox in a with block)");
    if (have_profile && run->profile->policy->network_name)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "policy",
            "network: a single run is in no private network; use sessions (rollbox create, or the "
            "calls of a Sandbox in a with block)");
    if (!n_args)
        n_args = add_image_command(run);
    if (!n_args)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "argv: must have at least one argument, unless the policy has an image that says what "
            "to run");
    if (!have_cwd)
        wire_add_text(&run->given.message, GUEST_CWD,
            run->profile->policy->cwd                  ? run->profile->policy->cwd
            : run->profile->plan->flags & PLAN_PROCESS ? ""
                                                       : "/tmp");
    run->given.n_env = profile_add_environment(&run->given.message, run->profile,
        run->session ? run->session->origin.clone_id : -1, env, n_env);
    /* A started interpreter cannot get another environment or other streams. */
    const bool suits_interpreter = !n_env && !given->stdio && !run->session;
    run->code.is_wanted =
        run->code.is_wanted && suits_interpreter && is_code(run) && !brings_packages(run);
    run->limits.timeout_ms = have_timeout   ? (int64_t)timeout
                             : run->session ? run->profile->policy->timeout_ms
                                            : policy_run_timeout_ms(run->profile->policy);
    run->limits.output_limit =
        output == UINT64_MAX ? run->profile->policy->max_output_bytes : output;
    return buf_failed(&run->given.message) ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED,
                                                 ENOMEM, "arguments", "out of memory")
                                           : 0;
}

static int take_descriptors(struct run *run, struct wire_message *message,
    const struct given *given, struct rollbox_error *error) {
    size_t next = 0, n = given->stdin_file + (given->stdio ? 3 : 0) + given->input +
                         (given->streams & 1) + (given->streams >> 1) + given->extra;

    if (message->n_fds != n || given->stdin_file + given->stdio + given->input > 1 ||
        (given->stdio && message->header.type == PROTOCOL_EXEC) ||
        (given->stdin_file && run->terminal.is_wanted) || given->extra > ARRAY_SIZE(run->fds.extra))
        return error_set(error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "arguments",
            "the request has not the descriptors that it names");
    const size_t n_stdio = given->stdio ? 3 : (size_t)given->stdin_file;
    for (size_t i = 0; i < n_stdio; i++)
        run->fds.stdio[i] = wire_take_fd(message, next++);
    if (given->input)
        *(run->terminal.is_wanted ? &run->terminal.input : &run->fds.stdio[0]) =
            wire_take_fd(message, next++);
    for (unsigned i = 0; i < 2; i++)
        if (given->streams & 1u << i)
            run->fds.streams[i] = wire_take_fd(message, next++);
    run->given.stdin_kind = given->stdin_file ? RUN_STDIN_DATA
                            : given->input    ? RUN_STDIN_PIPED
                                              : RUN_STDIN_FILE;
    run->given.n_extra_given = given->extra;
    while (run->fds.n_extra < given->extra)
        run->fds.extra[run->fds.n_extra++] = wire_take_fd(message, next++);
    for (size_t i = 0; i < ARRAY_SIZE(run->fds.stdio); i++)
        if (run->fds.stdio[i] >= 0 && !given->stdin_file)
            stream_let_open(run->engine, run->fds.stdio[i]);
    for (unsigned i = 0; i < run->fds.n_extra; i++)
        stream_let_open(run->engine, run->fds.extra[i]);
    return 0;
}

/* A digest of the request: command, files, environment, policy, limits, and standard input if it
 * is short. */
static uint64_t fingerprint_of(const struct run *run) {
    const struct buf *message = &run->given.message;
    char input[4096];
    uint64_t of = FINGERPRINT_BEGIN;
    struct stat st = { 0 };

    of = fingerprint_add(of, message->data + sizeof(struct wire_header),
        message->length - sizeof(struct wire_header));
    of = fingerprint_add(of, run->profile->key.text, run->profile->key.length);
    of = fingerprint_add(of, &run->limits.timeout_ms, sizeof run->limits.timeout_ms);
    of = fingerprint_add(of, &run->limits.output_limit, sizeof run->limits.output_limit);
    of = fingerprint_add(of, &run->given.stdin_kind, sizeof run->given.stdin_kind);
    if (run->given.stdin_kind == RUN_STDIN_DATA && fstat(run->fds.stdio[0], &st) == 0) {
        ssize_t n = pread(run->fds.stdio[0], input, sizeof input, 0);

        of = fingerprint_add(of, &st.st_size, sizeof st.st_size);
        of = fingerprint_add(of, input, (size_t)MAX(n, (ssize_t)0));
    }
    return of ? of : 1;
}

/* Two sessions may use the same id, and so may two users. */
static void name_operation(struct run *run) {
    const uint64_t owner = UINT64_C(1) << 63 | run->client->uid;

    if (run->session) {
        session_name_operation(run->session, run->operation.id, &run->operation.length);
    } else if (run->operation.length) {
        memmove(run->operation.id + sizeof owner, run->operation.id, run->operation.length);
        memcpy(run->operation.id, &owner, sizeof owner);
        run->operation.length += sizeof owner;
    }
    run->operation.fingerprint = fingerprint_of(run);
}

/* A retry gets the first one's answer: at once if it is there, else when it is. 1, 0 if it is none,
 * -EEXIST if the id is another request's, or -ENOMEM. */
static int take_retry(struct client *client, const struct run *run) {
    const struct run_operation *operation = &run->operation;
    int r = result_replay(
        client, run->serial, operation->id, operation->length, operation->fingerprint);

    if (r)
        return r;
    struct run *first = run_find(client->engine, run, operation->id, operation->length);
    if (!first)
        return 0;
    if (first->operation.fingerprint && first->operation.fingerprint != operation->fingerprint)
        return -EEXIST;
    r = run_wait_for(client, run->serial, first);
    return r < 0 ? r : 1;
}

void run_request(struct client *client, struct wire_message *message) {
    struct run *run = run_new(client->engine);
    struct rollbox_error error;
    struct given given = { 0 };

    if (!run) {
        error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments",
            "the engine is out of memory");
        result_send_error(client, message->header.serial, &error);
        return;
    }
    run->client = client;
    run->terminal.input_client = client;
    run->serial = message->header.serial;
    list_add_tail(&client->runs, &run->of_client);
    int r = decode_fields(run, message, &given, &error);
    if (r == -EINPROGRESS && owned_image_defer(client, message)) {
        run->profile = NULL;
        run->session = NULL;
        run_free(run);
        return;
    }
    if (r < 0 || take_descriptors(run, message, &given, &error) < 0 ||
        admission_hold(run, &error) < 0) {
        run->profile = NULL;
        run->session = NULL;
        run_fail(run, error.code, error.error_number, error.stage, error.message);
        return;
    }
    int retry = 0;
    if (run->operation.length) {
        name_operation(run);
        retry = take_retry(client, run);
    }
    if (retry < 0) {
        bool is_other = retry == -EEXIST;

        run->profile = NULL;
        run->session = NULL;
        run_fail(run, is_other ? ROLLBOX_ERR_INVALID_ARGUMENT : ROLLBOX_ERR_RESOURCE_EXHAUSTED,
            -retry, "arguments",
            is_other ? "operation id: it was used for another request; give this one an id of its "
                       "own"
                     : "the engine is out of memory");
        return;
    }
    if (retry) {
        run_free(run);
        return;
    }
    if (run->session) {
        exec_enter(run);
        return;
    }
    run->profile->n_runs++;
    run->profile->n_running++;
    run->engine->runs.n_queued++;
    if (run->code.is_wanted && interpreter_queue(run->profile, &run->in_queue))
        return;
    run_enqueue(run);
    run_schedule(run->engine);
}
