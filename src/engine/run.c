/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs: one command in a box of its own.
 *
 * A run ends in one place, `finish`, when three things are known: how the command ended (init's
 * word, or our own when we killed it), that nothing of it is alive, and that its streams are at
 * their ends. init tells of the end only after it has killed and reaped everything else, so a run
 * that ends by itself need not wait for the kernel to tear its namespaces down.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/engine.h"
#include "engine/log.h"
#include "engine/protocol.h"
#include "engine/session.h"
#include "engine/disk_upper.h"
#include "sys/proc.h"

#define MAX_ARGUMENTS 65536
#define MAX_ENVIRONMENT 8192
/* How fast a guest can use memory, a CPU: page faults bring in less than this. Without a memory
 * cgroup it says when the limit can be reached at the earliest. */
#define BYTES_A_SECOND (4ull << 30)
/* How far the watcher lets a sandbox of isolation process be over max_processes: by what the count
 * of the user's other processes may have changed. */
#define PROCESSES_SLACK 8
#define WATCH_LEAST_NS 2000000ll
#define MAX_WATCH_NS 200000000ll
#define MAX_HELD_BYTES (256u << 20) /* of one client's requests */
#define HELD_FDS_SHARE                                                                             \
    4u /* of the limit of open files, the part that descriptors of one client's requests may be */
#define HELD_FDS_LEAST 64u
#define KEPT_FOR_OTHERS                                                                            \
    (UINT64_C(512) << 20) /* of a shared engine's budget, one run of the default policy */
#define MAX_LOOK_NS                                                                                \
    50000000ll /* a look that takes longer than this is not what a kill waits for                  \
                */

/* ---- the request ---- */

static struct run *run_new(struct engine *engine) {
    struct run *run = calloc(1, sizeof *run);

    if (!run)
        return NULL;
    run->engine = engine;
    list_init(&run->in_queue);
    list_init(&run->of_session);
    list_init(&run->of_client);
    list_init(&run->waiters);
    list_add_tail(&engine->runs, &run->of_engine);
    run->input = run->recorded_stdin = -EBADF;
    for (size_t i = 0; i < ARRAY_SIZE(run->stdio); i++)
        run->stdio[i] = -EBADF;
    for (size_t i = 0; i < ARRAY_SIZE(run->outputs); i++) {
        list_init(&run->outputs[i].streams);
        run->outputs[i].fd = run->outputs[i].spool = run->streams[i] = -EBADF;
        run->outputs[i].run = run;
    }
    for (size_t i = 0; i < ARRAY_SIZE(run->pipes); i++)
        run->pipes[i].kept = -EBADF;
    return run;
}

struct run *run_adopt(struct session *session, const struct checkpoint_command *command) {
    struct run *run = run_new(session->engine);

    if (!run)
        return NULL;
    run->profile = session->profile;
    run->session = session;
    run->box = session->box;
    run->state = RUN_STARTING;
    run->main_pid = command->pid;
    run->is_detached = true;
    run->timeout_ms = command->timeout_ms;
    run->output_limit = command->output_limit;
    run->has_terminal = command->has_terminal;
    memcpy(run->operation, command->operation, command->operation_length);
    run->operation_length = command->operation_length;
    session_name_operation(session, run->operation, &run->operation_length);
    wire_begin(&run->request, GUEST_EXEC, 0);
    wire_add_text(&run->request, GUEST_ARG, command->description);
    exec_adopt(run);
    return run;
}

/* ---- what a client has in the engine ---- */

static void hold_run(struct run *run) {
    run->held_by = run->client;
    run->held_by->held_bytes += run->held_bytes;
    run->held_by->held_fds += run->held_fds;
}

void run_handed_over(struct run *run) {
    if (run->held_by)
        run->held_by->held_fds -= run->held_fds;
    run->held_fds = 0;
}

static void unhold_run(struct run *run) {
    struct client *client = TAKE_PTR(run->held_by);

    if (!client)
        return;
    client->held_bytes -= run->held_bytes;
    client->held_fds -= run->held_fds;
}

static void charge_run(struct run *run) {
    run->charged_to = run->client;
    run->charged_to->memory_reserved += run->profile->policy->max_memory_bytes;
    run->charged_to->n_running++;
}

static void uncharge_run(struct run *run) {
    struct client *client = TAKE_PTR(run->charged_to);

    if (!client)
        return;
    client->memory_reserved -= run->profile->policy->max_memory_bytes;
    client->n_running--;
}

static void join_queue(struct run *run) {
    struct client *client = run->queued_at = run->client;

    if (list_empty(&client->queue))
        list_add_tail(&run->engine->turns, &client->in_turns);
    list_add_tail(&client->queue, &run->in_queue);
    client->n_queued++;
}

/* Also of one that waits elsewhere. */
static void leave_queue(struct run *run) {
    struct client *client = TAKE_PTR(run->queued_at);

    list_remove(&run->in_queue);
    if (!client)
        return;
    client->n_queued--;
    if (list_empty(&client->queue)) {
        list_remove(&client->in_turns);
        client->passed = 0;
    }
}

/* 0, or it is more than one client may have the engine keep. A single request may be larger than
 * that. */
static int take_hold(struct run *run, struct rollbox_error *error) {
    const struct client *client = run->client;
    const struct engine *engine = run->engine;
    const unsigned max_fds =
        engine->is_private ? UINT_MAX : MAX(engine->open_files / HELD_FDS_SHARE, HELD_FDS_LEAST);

    run->held_bytes = run->request.length;
    for (size_t i = 0; i < ARRAY_SIZE(run->stdio); i++)
        run->held_fds += run->stdio[i] >= 0;
    run->held_fds += (run->input >= 0) + run->n_extra;
    if (client->held_bytes && client->held_bytes + run->held_bytes > MAX_HELD_BYTES)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOBUFS, "request",
            "requests of this connection that wait in the engine have %zu MiB, and it keeps %u MiB "
            "of one connection; wait for some of their results, or give "
            "large data as stdin",
            client->held_bytes >> 20, MAX_HELD_BYTES >> 20);
    if (client->held_fds + run->held_fds > max_fds)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOBUFS, "request",
            "requests of this connection that wait in the engine have %zu descriptors, and it "
            "keeps %u of one connection (a share of its limit of open files); wait "
            "for some of their results",
            client->held_fds, max_fds);
    hold_run(run);
    return 0;
}

static void run_free(struct run *run) {
    loop_timer_clear(run->engine->loop, &run->timeout);
    loop_timer_clear(run->engine->loop, &run->watch);
    for (size_t i = 0; i < ARRAY_SIZE(run->stdio); i++)
        close_fd(&run->stdio[i]);
    run->terminal_input = terminal_input_free(run->terminal_input);
    close_fd(&run->input);
    close_fd(&run->recorded_stdin);
    while (run->n_extra)
        close(run->extra[--run->n_extra]);
    for (size_t i = 0; i < ARRAY_SIZE(run->pipes); i++)
        close_fd(&run->pipes[i].kept);
    for (size_t i = 0; i < ARRAY_SIZE(run->outputs); i++) {
        close_fd(&run->streams[i]);
        output_done(&run->outputs[i]);
    }
    buf_done(&run->request);
    buf_done(&run->action);
    list_for_each(node, &run->waiters) {
        list_remove(node);
        free(container_of(node, struct waiter, node));
    }
    leave_queue(run);
    list_remove(&run->of_session);
    unhold_run(run);
    uncharge_run(run);
    list_remove(&run->of_client);
    list_remove(&run->of_engine);
    free(run);
}

/* "NAME" of "NAME=value" is the same. */
static bool same_name(const char *a, const char *b) {
    size_t n = strcspn(a, "=");

    return !strncmp(a, b, n) && b[n] == '=';
}

static bool named_in(const char *entry, const char *const *entries, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (same_name(entry, entries[i]))
            return true;
    return false;
}

/* The policy's environment, then which clone it is, then the request's; of two with one name the
 * later. How many are the request's. */
size_t run_add_environment(struct buf *to, const struct profile *profile,
    const struct session *session, const char *const *entries, size_t n) {
    char clone[40] = "";
    const char *end = profile->environment.data + profile->environment.length;

    if (session && session->clone_id >= 0)
        snprintf(clone, sizeof clone, "CLONE_ID=%lld", (long long)session->clone_id);
    for (const char *entry = profile->environment.data; entry < end; entry += strlen(entry) + 1) {
        bool replaced = named_in(entry, entries, n) || same_name(entry, clone);

        for (const char *later = entry + strlen(entry) + 1; !replaced && later < end;
             later += strlen(later) + 1)
            replaced = same_name(entry, later);
        if (!replaced)
            wire_add_text(to, GUEST_ENV, entry);
    }
    if (clone[0] && !named_in(clone, entries, n))
        wire_add_text(to, GUEST_ENV, clone);
    size_t own = 0;
    for (size_t i = 0; i < n; i++)
        if (!named_in(entries[i], entries + i + 1, n - i - 1)) {
            wire_add_text(to, GUEST_ENV, entries[i]);
            own++;
        }
    return own;
}

/* Which of a request's descriptors there are. */
struct given {
    bool stdin_file, stdio, input;
    unsigned streams, extra; /* bits; how many */
};

static int take_operation(
    struct run *run, const struct wire_field *field, struct rollbox_error *error) {
    if (field->length < 1 || field->length > 64)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "operation id: must have 1 to 64 bytes");
    memcpy(run->operation, field->data, field->length);
    run->operation_length = field->length;
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
        int r = session_look_up(run->engine, text, &run->session, error);
        if (r < 0)
            return r;
        run->profile = run->session->profile;
        return 0;
    }
    case TAG_USER:
        return text && session_has_user(run->session, text)
                   ? 0
                   : error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "arguments",
                         "user %.100s: the sandbox has no other user than its policy's",
                         text ? text : "?");
    case TAG_INPUT:
        given->input = number;
        return 0;
    case TAG_STREAM:
        given->streams = (unsigned)number & 3;
        return 0;
    case TAG_EXTRA:
        given->extra = (unsigned)MIN(number, (uint64_t)ARRAY_SIZE(run->extra) + 1);
        return 0;
    case TAG_DETACHED:
        run->is_detached = number;
        return 0;
    case TAG_TERMINAL:
        run->has_terminal = true;
        wire_add_u64(&run->request, GUEST_TERMINAL, number);
        return 0;
    case TAG_NO_TRACE:
        wire_add_u64(&run->request, GUEST_NO_TRACE, number);
        return 0;
    default:
        return 1;
    }
}

/* What the image is for: its entry point and command. How many arguments that is. */
static size_t add_image_command(struct run *run) {
    const struct image *image = run->profile->image;
    size_t n = 0;

    if (!image || image->plan.places)
        return 0;
    for (char *const *word = image->stored->manifest.entrypoint; *word; word++, n++)
        wire_add_text(&run->request, GUEST_ARG, *word);
    for (char *const *word = image->stored->manifest.cmd; *word; word++, n++)
        wire_add_text(&run->request, GUEST_ARG, *word);
    return n;
}

/* python3 -c CODE ..., or python3 FILE ...: no other options, which would be for another
 * interpreter. */
static bool is_code(const struct run *run) {
    const char *words[3] = { "", "", "" };
    struct wire_field field;
    size_t position = 0, n = 0;

    while (n < ARRAY_SIZE(words) &&
           wire_next(run->request.data + sizeof(struct wire_header),
               run->request.length - sizeof(struct wire_header), &position, &field) > 0)
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

    while (wire_next(run->request.data + sizeof(struct wire_header),
               run->request.length - sizeof(struct wire_header), &position, &field) > 0)
        for (size_t i = 0; field.tag == GUEST_FILE_PATH && i < ARRAY_SIZE(parts); i++)
            if (memmem(field.data, field.length, parts[i], strlen(parts[i])))
                return true;
    return false;
}

static int parse_run(struct run *run, struct wire_message *message, struct given *given,
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
    wire_begin(&run->request, GUEST_EXEC, 0);
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
            wire_add(&run->request, GUEST_ARG, field.data, field.length);
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
            wire_add(&run->request, GUEST_CWD, field.data, field.length);
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
            wire_add(&run->request, GUEST_FILE_PATH, field.data, field.length);
            break;
        case TAG_FILE_MODE:
            wire_add(&run->request, GUEST_FILE_MODE, field.data, field.length);
            break;
        case TAG_FILE_DATA:
            wire_add(&run->request, GUEST_FILE_DATA, field.data, field.length);
            break;
        case TAG_STDIN:
            given->stdin_file = wire_u64(&field, &number) == 0 && number;
            break;
        case TAG_STDIO:
            given->stdio = wire_u64(&field, &number) == 0 && number;
            break;
        case TAG_CODE:
            run->is_code = wire_u64(&field, &number) == 0 && number;
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
    if (!n_args)
        n_args = add_image_command(run);
    if (!n_args)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "argv: must have at least one argument, unless the policy has an image that says what "
            "to run");
    if (!have_cwd)
        wire_add_text(&run->request, GUEST_CWD,
            run->profile->policy->cwd                  ? run->profile->policy->cwd
            : run->profile->plan->flags & PLAN_PROCESS ? ""
                                                       : "/tmp");
    run->n_env = run_add_environment(&run->request, run->profile, run->session, env, n_env);
    /* What was started already cannot be given another environment, and has made up its mind about
     * its streams. */
    run->is_code = run->is_code && !n_env && !given->stdio && !run->session && is_code(run) &&
                   !brings_packages(run);
    run->timeout_ms = have_timeout   ? (int64_t)timeout
                      : run->session ? run->profile->policy->timeout_ms
                                     : policy_run_timeout_ms(run->profile->policy);
    run->output_limit = output == UINT64_MAX ? run->profile->policy->max_output_bytes : output;
    return buf_failed(&run->request) ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM,
                                           "arguments", "out of memory")
                                     : 0;
}

static int take_descriptors(struct run *run, struct wire_message *message,
    const struct given *given, struct rollbox_error *error) {
    size_t next = 0, n = given->stdin_file + (given->stdio ? 3 : 0) + given->input +
                         (given->streams & 1) + (given->streams >> 1) + given->extra;

    if (message->n_fds != n || given->stdin_file + given->stdio + given->input > 1 ||
        (given->stdio && message->header.type == PROTOCOL_EXEC) ||
        (given->stdin_file && run->has_terminal) || given->extra > ARRAY_SIZE(run->extra))
        return error_set(error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "arguments",
            "the request has not the descriptors that it names");
    for (size_t i = 0; i < (given->stdio ? 3u : given->stdin_file ? 1u : 0u); i++)
        run->stdio[i] = wire_take_fd(message, next++);
    if (given->input)
        *(run->has_terminal ? &run->input : &run->stdio[0]) = wire_take_fd(message, next++);
    for (unsigned i = 0; i < 2; i++)
        if (given->streams & 1u << i)
            run->streams[i] = wire_take_fd(message, next++);
    run->stdin_is_data = given->stdin_file;
    run->stdin_is_piped = given->input;
    run->n_extra_given = given->extra;
    while (run->n_extra < given->extra)
        run->extra[run->n_extra++] = wire_take_fd(message, next++);
    for (size_t i = 0; i < ARRAY_SIZE(run->stdio); i++)
        if (run->stdio[i] >= 0 && !given->stdin_file)
            stream_let_open(run->engine, run->stdio[i]);
    for (unsigned i = 0; i < run->n_extra; i++)
        stream_let_open(run->engine, run->extra[i]);
    return 0;
}

static bool is_operation(const struct run *run, const unsigned char *operation, size_t length) {
    return run->outcome != ROLLBOX_OUTCOME_ERROR && run->operation_length == length &&
           !memcmp(run->operation, operation, length);
}

/* One that has failed is none: a retry of it is meant to try again. */
struct run *run_find(struct engine *engine, const struct run *except,
    const unsigned char *operation, size_t length) {
    list_for_each(node, &engine->runs) {
        struct run *run = container_of(node, struct run, of_engine);

        if (run != except && is_operation(run, operation, length))
            return run;
    }
    return NULL;
}

int run_wait_for(struct client *client, uint64_t serial, struct run *run) {
    struct waiter *waiter = calloc(1, sizeof *waiter);

    if (!waiter)
        return -ENOMEM;
    waiter->client = client;
    waiter->serial = serial;
    list_add_tail(&run->waiters, &waiter->node);
    return 0;
}

/* A retry gets the first one's answer: at once if it is there, else when it is. 1, 0 if it is none,
 * or -ENOMEM. */
static int take_retry(struct client *client, const struct run *run) {
    if (result_replay(client, run->serial, run->operation, run->operation_length))
        return 1;
    struct run *first = run_find(client->engine, run, run->operation, run->operation_length);
    if (!first)
        return 0;
    int r = run_wait_for(client, run->serial, first);
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
    run->input_client = client;
    run->serial = message->header.serial;
    list_add_tail(&client->runs, &run->of_client);
    if (parse_run(run, message, &given, &error) < 0 ||
        take_descriptors(run, message, &given, &error) < 0 || take_hold(run, &error) < 0) {
        run->profile = NULL;
        run->session = NULL;
        run_fail(run, error.code, error.error_number, error.stage, error.message);
        return;
    }
    if (run->session)
        session_name_operation(run->session, run->operation, &run->operation_length);
    int retry = run->operation_length ? take_retry(client, run) : 0;
    if (retry < 0) {
        run->profile = NULL;
        run->session = NULL;
        run_fail(run, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments",
            "the engine is out of memory");
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
    run->engine->n_queued++;
    if (run->is_code && interpreter_queue(run))
        return;
    run_enqueue(run);
    run_schedule(run->engine);
}

void run_enqueue(struct run *run) {
    struct profile *base = run->profile;

    if (run->is_code && (run->profile = interpreter_profile(base)) != base) {
        base->n_runs--;
        base->n_running--;
        run->profile->n_runs++;
        run->profile->n_running++;
    }
    run->is_cold = run->is_code && run->profile == base;
    base->n_cold += run->is_cold;
    join_queue(run);
}

/* ---- the course ---- */

/* Of a session's: its box stays, and so does what it left running. */
static void finish_exec(struct run *run) {
    run->state = RUN_ENDED;
    for (size_t i = 0; i < ARRAY_SIZE(run->outputs); i++)
        output_hand_over(&run->outputs[i]);
    for (size_t i = 0; i < ARRAY_SIZE(run->pipes) && run->session->box; i++)
        box_close(run->session->box, &run->pipes[i].kept);
    record_run_ended(
        run); /* before anybody knows: what a client has seen is recorded, whoever is killed next */
    result_send(run);
    uint64_t step = run->step;
    bool has_run = run->outcome != ROLLBOX_OUTCOME_ERROR;
    struct session *session = exec_leave(run);
    run_free(run);
    if (session)
        session_exec_ended(session, step, has_run);
}

static void finish_run(struct run *run) {
    struct engine *engine = run->engine;
    struct profile *profile = run->profile;
    struct box *box = run->box;

    if (run->state == RUN_ENDED)
        return;
    log_at(LOG_DEBUG, "run",
        ABOUT(.sandbox = run->session ? run->session->name : NULL, .run = run->exec), "ends: %s",
        rollbox_outcome_name(run->outcome));
    if (run->session) {
        finish_exec(run);
        return;
    }
    run->state = RUN_ENDED;
    for (size_t i = 0; i < ARRAY_SIZE(run->outputs); i++)
        output_drain(&run->outputs[i]);
    if (box) {
        uint64_t peak;

        if (box->slot && cgroup_slot_peak(box->slot->cgroup, &peak) == 0)
            run->peak_memory = MAX(run->peak_memory, peak);
        box->run = NULL;
        run->box = NULL;
        if (box->state != BOX_DYING)
            box_kill(box);
    }
    if (run->reserved) {
        uncharge_run(run);
        engine->memory_reserved -= profile->policy->max_memory_bytes;
        engine->n_running--;
    }
    if (run->is_cold) {
        profile->n_cold--;
        interpreter_release_queue(profile->interpreter);
    }
    result_send(run);
    run_free(run);
    run_schedule(engine);
    if (!profile)
        return;
    profile->n_running--;
    if (profile->serves)
        profile = interpreter_base_of(profile);
    else if (profile->number)
        (void)profile_keep_spares(profile);
    profile_leave(profile);
}

void run_finish(struct run *run) {
    finish_run(run);
}

static bool streams_ended(const struct run *run) {
    return run->outputs[0].fd < 0 && run->outputs[1].fd < 0;
}

void run_fail(struct run *run, enum rollbox_error_code code, int error_number, const char *stage,
    const char *message) {
    if (run->state == RUN_ENDED || run->outcome == ROLLBOX_OUTCOME_ERROR)
        return;
    run->outcome = ROLLBOX_OUTCOME_ERROR;
    error_set(&run->error, code, error_number, stage, "%s", message);
    if (run->session) {
        list_remove(&run->in_queue);
        if (run->state == RUN_QUEUED || !exec_kill(run))
            finish_run(run);
        return; /* else it ends when init says so */
    }
    if (!list_empty(&run->in_queue)) {
        leave_queue(run);
        run->engine->n_queued--;
    }
    if (run->box && run->box->pidfd >= 0 && run->state == RUN_RUNNING) {
        run->killed = true;
        box_kill(run->box); /* the end comes with its death */
        return;
    }
    finish_run(run);
}

/* Past the limit a figure says only that it was passed: shared memory is taken for used as far as
 * it is mapped. */
static void note_memory(struct run *run, uint64_t memory) {
    run->peak_memory = MAX(run->peak_memory, MIN(memory, run->profile->policy->max_memory_bytes));
}

/* Before a kill: what the dead cannot be asked any more. */
static void note_usage(struct run *run) {
    uint64_t memory, cpu;
    uint32_t processes;

    if (!run->box || run->look_ns > MAX_LOOK_NS ||
        box_usage(run->box, &memory, &cpu, &processes) < 0)
        return;
    note_memory(run, memory);
    run->cpu_ns = MAX(run->cpu_ns, cpu);
    run->processes_peak = MAX(run->processes_peak, processes);
}

static int handle_started(struct run *run);

void run_kill(struct run *run, enum rollbox_outcome outcome) {
    if (run->killed || run->exited || run->state == RUN_ENDED)
        return;
    if (outcome == ROLLBOX_OUTCOME_ERROR) {
        run_fail(run, ROLLBOX_ERR_CANCELLED, ECANCELED, "run", "cancelled");
        return;
    }
    if (run->state != RUN_RUNNING) {
        run_fail(run, ROLLBOX_ERR_CANCELLED, ECANCELED, "run", "cancelled before the command ran");
        return;
    }
    if (!run->session)
        note_usage(run);
    run->killed = true;
    run->outcome = outcome;
    run->wall_ns = (uint64_t)(clock_now_ns() - run->started_ns);
    loop_timer_clear(run->engine->loop, &run->timeout);
    loop_timer_clear(run->engine->loop, &run->watch);
    if (run->session) {
        if (!exec_kill(run))
            finish_run(run);
        return;
    }
    if (run->box->pidfd >= 0)
        box_kill(run->box);
    else
        run->box->state = BOX_DYING; /* box_created does it */
}

/* The same whether the end of the command, its output, or init's word of its start is seen first.
 */
void run_overflow(struct run *run) {
    if (!run->killed && (run->exited || run->state == RUN_ENDED)) {
        if (run->outcome == ROLLBOX_OUTCOME_EXIT || run->outcome == ROLLBOX_OUTCOME_SIGNAL)
            run->outcome = ROLLBOX_OUTCOME_OUTPUT_LIMIT;
        return;
    }
    if (run->state == RUN_STARTING && handle_started(run) < 0)
        return;
    run_kill(run, ROLLBOX_OUTCOME_OUTPUT_LIMIT);
}

static const char broken[] =
    "the process that captured the sandbox was killed from outside while it made calls in a "
    "process of it, which would not have gone on as it was; what ran is ended, the files are kept";

void run_broken(struct run *run) {
    if (run->state != RUN_QUEUED && !run->killed && !run->exited)
        run_fail(run, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "run", broken);
}

static const char host_has_no_memory[] =
    "the host ran out of memory and its OOM killer ended the command; run fewer sandboxes at once";

void run_out_of_memory(struct run *run, enum oom_cause cause) {
    if (run->state == RUN_QUEUED || (run->state == RUN_STARTING && handle_started(run) < 0))
        return;
    if (cause == OOM_LIMIT)
        run_kill(run, ROLLBOX_OUTCOME_OUT_OF_MEMORY);
    else if (!run->killed && !run->exited)
        run_fail(run, ROLLBOX_ERR_HOST_OUT_OF_MEMORY, ENOMEM, "run", host_has_no_memory);
}

void run_output_lost(struct run *run, int error_number) {
    static const char message[] = "the host has no memory left for the output of the command";
    enum rollbox_error_code code = error_code_of(error_number, ROLLBOX_ERR_RESOURCE_EXHAUSTED);

    if (run->state != RUN_ENDED) {
        run_fail(run, code, error_number, "result", message);
    } else if (run->outcome != ROLLBOX_OUTCOME_ERROR) {
        run->outcome = ROLLBOX_OUTCOME_ERROR;
        error_set(&run->error, code, error_number, "result", "%s", message);
    }
}

static void on_timeout(struct loop_timer *timer) {
    struct run *run = container_of(timer, struct run, timeout);

    run_kill(run, ROLLBOX_OUTCOME_TIMEOUT);
}

int64_t run_filling_ns(const struct engine *engine, uint64_t bytes) {
    return (int64_t)(bytes / (BYTES_A_SECOND * engine->features.cpus / 1000000000ull + 1));
}

/* Without a memory cgroup: looks as often as the limit could have been reached since the last look,
 * never mind what the guest does. */
static void on_watch(struct loop_timer *timer) {
    struct run *run = container_of(timer, struct run, watch);
    uint64_t limit = run->profile->policy->max_memory_bytes, memory, cpu;
    const int64_t begun = clock_now_ns();
    uint32_t processes;

    if (run->box && box_usage(run->box, &memory, &cpu, &processes) == 0) {
        note_memory(run, memory);
        run->cpu_ns = MAX(run->cpu_ns, cpu);
        run->processes_peak = MAX(run->processes_peak, processes);
        if (box_is_over(run->box, memory)) {
            run_kill(run, ROLLBOX_OUTCOME_OUT_OF_MEMORY);
            return;
        }
        /* Without a namespace of its own a sandbox's processes are counted with others', so the
         * kernel's limit may leave it more than its due. */
        if (run->box->private_dir && !run->box->slot &&
            processes > run->profile->policy->max_processes + PROCESSES_SLACK) {
            run->status = SIGKILL;
            run_kill(run, ROLLBOX_OUTCOME_SIGNAL);
            return;
        }
    }
    if (run->box && run->box->private_dir &&
        private_dir_is_over(run->box->private_dir, run->profile->policy->max_disk_bytes)) {
        run->status = SIGXFSZ; /* what a single file past the limit ends with */
        run_kill(run, ROLLBOX_OUTCOME_SIGNAL);
        return;
    }
    /* What takes long to look at, by its processes and mappings, is no reason to do nothing else:
     * others have their turn for as long. */
    const int64_t now = clock_now_ns();
    run->look_ns = now - begun;
    uint64_t left = run->box && run->box->slot ? limit : limit - MIN(run->peak_memory, limit);
    loop_timer_set(run->engine->loop, &run->watch,
        now + MAX(MAX(WATCH_LEAST_NS, run->look_ns),
                  MIN(run_filling_ns(run->engine, left), MAX_WATCH_NS)),
        on_watch);
}

/* 0, or -ENOMEM: it has failed, and may be gone. */
static int handle_started(struct run *run) {
    struct loop *loop = run->engine->loop;
    int64_t now = clock_now_ns();

    run->state = RUN_RUNNING;
    run->started_ns = now;
    loop_timer_clear(loop, run->session ? &run->timeout : &run->box->deadline); /* of its start */
    run->processes_peak = 1;
    hoards_watch(run->engine);
    if (run->session)
        return run->timeout_ms > 0 ? loop_timer_set(loop, &run->timeout,
                                         now + run->timeout_ms * 1000000, on_timeout)
                                   : 0;
    int r = run->timeout_ms > 0
                ? loop_timer_set(loop, &run->timeout, now + run->timeout_ms * 1000000, on_timeout)
                : 0;
    if (r == 0)
        r = loop_timer_set(loop, &run->watch,
            now + MAX(WATCH_LEAST_NS,
                      MIN(run_filling_ns(run->engine, run->profile->policy->max_memory_bytes),
                          MAX_WATCH_NS)),
            on_watch);
    if (r < 0)
        run_fail(run, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "run", "the engine is out of memory");
    return r;
}

/* The word of an OOM kill may come after that of the end it has caused. */
/* By the group's own count where there is one: the host's counts every group's kills, so it is
 * asked only of who was killed. Which command of several lost a process to it can be told of who
 * was killed alone, too. */
static enum oom_cause oom_cause(struct run *run, bool was_killed) {
    struct box *box = run->session ? run->session->box : run->box;
    uint64_t none = 0;

    if (!run->session && box && box->oom)
        return OOM_LIMIT;
    if (box && box->slot && run->session)
        return was_killed ? session_oom_cause(run->session) : OOM_NONE;
    if (box && box->slot)
        return was_killed || cgroup_lease_oom_told(box->slot)
                   ? cgroup_lease_oom_cause(box->slot, &none)
                   : OOM_NONE;
    /* One that lives for hours is none of all that were killed meanwhile. */
    if (run->session)
        return was_killed && !run->was_sent_kill && engine_oom_lately(run->engine) ? OOM_HOST
                                                                                   : OOM_NONE;
    return was_killed && engine_oom_kills(run->engine, true) > run->oom_kills_before ? OOM_HOST
                                                                                     : OOM_NONE;
}

static void handle_exited(struct run *run, const struct guest_record *record) {
    run->exited = true;
    run->wall_ns = record->wall_ns;
    run->cpu_ns = MAX(run->cpu_ns, record->cpu_ns);
    run->read_bytes = record->read_bytes;
    run->written_bytes = record->written_bytes;
    run->peak_memory = MAX(run->peak_memory, record->max_rss_bytes);
    /* Who was killed for a limit of its files ends by the signal that says so. */
    if (!run->killed || run->outcome != ROLLBOX_OUTCOME_SIGNAL)
        run->status = (int)record->value;
    if (run->killed || run->outcome == ROLLBOX_OUTCOME_ERROR)
        return;
    run->outcome = WIFSIGNALED(run->status) ? ROLLBOX_OUTCOME_SIGNAL : ROLLBOX_OUTCOME_EXIT;
    if (run->session && dump_job_has_broken(run->session)) {
        run->outcome = ROLLBOX_OUTCOME_ERROR;
        error_set(&run->error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "run", "%s", broken);
        return;
    }
    enum oom_cause cause =
        oom_cause(run, WIFSIGNALED(run->status) && WTERMSIG(run->status) == SIGKILL);
    if (cause == OOM_LIMIT)
        run->outcome = ROLLBOX_OUTCOME_OUT_OF_MEMORY;
    if (cause != OOM_HOST)
        return;
    run->outcome = ROLLBOX_OUTCOME_ERROR;
    error_set(&run->error, ROLLBOX_ERR_HOST_OUT_OF_MEMORY, ENOMEM, "run", "%s", host_has_no_memory);
}

/* Of the request as init got it. */
static const char *first_text(const struct run *run, uint32_t tag) {
    struct wire_field field;
    size_t position = 0;

    if (run->request.length < sizeof(struct wire_header))
        return NULL;
    while (wire_next(run->request.data + sizeof(struct wire_header),
               run->request.length - sizeof(struct wire_header), &position, &field) > 0)
        if (field.tag == tag)
            return wire_text(&field);
    return NULL;
}

/* Also called (with NULL) when a stream has come to its end. */
void run_answer(struct run *run, const struct guest_record *record) {
    struct rollbox_error error;

    if (record && record->kind == GUEST_STARTED && run->state == RUN_STARTING) {
        if (run->is_code && run->profile->serves)
            interpreter_started(run->profile, record);
        (void)handle_started(run);
        return; /* its streams may be at their ends, but it is not */
    } else if (record && record->kind == GUEST_EXEC_FAILED) {
        guest_error_to_text(
            run->profile, record, first_text(run, GUEST_ARG), first_text(run, GUEST_CWD), &error);
        run_fail(run, error.code, error.error_number, error.stage, error.message);
        return;
    } else if (record && record->kind == GUEST_FROZEN) {
        if (run->box)
            disk_upper_stands(run->box, (int)record->error);
        return;
    } else if (record && record->kind == GUEST_EXITED) {
        handle_exited(run, record);
    }
    if (run->exited && (run->session ? record != NULL : !run->killed && streams_ended(run)))
        finish_run(run);
}

void run_box_dead(struct run *run) {
    if (!run->exited && !run->killed && run->outcome != ROLLBOX_OUTCOME_ERROR) {
        enum oom_cause cause = oom_cause(run, true);

        run->outcome = ROLLBOX_OUTCOME_ERROR;
        if (cause != OOM_NONE)
            error_set(&run->error, ROLLBOX_ERR_HOST_OUT_OF_MEMORY, ENOMEM, "run",
                "the sandbox' init was killed for want of memory; run fewer sandboxes at once");
        else
            error_set(&run->error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "run",
                "the sandbox' init was killed from outside");
        if (cause == OOM_LIMIT && run->state == RUN_RUNNING)
            run->outcome = ROLLBOX_OUTCOME_OUT_OF_MEMORY;
    }
    finish_run(run);
}

static void waiter_free(struct waiter *waiter) {
    list_remove(&waiter->node);
    free(waiter);
}

static void forget_waiter(struct run *run, const struct client *client) {
    list_for_each(node, &run->waiters) {
        struct waiter *waiter = container_of(node, struct waiter, node);

        if (waiter->client == client)
            waiter_free(waiter);
    }
}

void run_abandon(struct run *run) {
    /* From here on nobody may find the run by its client, so no pointer to that may stay in it. */
    forget_waiter(run, run->client);
    struct waiter *heir =
        list_empty(&run->waiters) ? NULL : container_of(run->waiters.next, struct waiter, node);
    list_remove(&run->of_client);
    if (heir) { /* somebody else waits for the same operation: it is theirs now */
        bool was_queued = run->queued_at, was_charged = run->charged_to;

        if (was_queued) /* a run that waits elsewhere, for its sandbox, waits on */
            leave_queue(run);
        unhold_run(run);
        uncharge_run(run);
        run->client = heir->client;
        hold_run(run);
        if (was_charged)
            charge_run(run);
        if (was_queued)
            join_queue(run);
        run->serial = heir->serial;
        list_add_tail(&heir->client->runs, &run->of_client);
        waiter_free(heir);
        return;
    }
    unhold_run(run);
    uncharge_run(run);
    run->client = NULL;
    if (!run->session || !run->is_detached)
        run_fail(run, ROLLBOX_ERR_CANCELLED, ECANCELED, "run", "the client is gone");
}

void run_forget_client(struct client *client) {
    list_for_each(node, &client->engine->runs)
        forget_waiter(container_of(node, struct run, of_engine), client);
}

/* Whoever waits for another's run gives up waiting and leaves the run alone. False if it is nobody
 * who waits. */
static bool cancel_waiter(struct run *run, const struct client *client, uint64_t serial) {
    list_for_each(node, &run->waiters) {
        struct waiter *waiter = container_of(node, struct waiter, node);

        if (waiter->client == client && waiter->serial == serial) {
            struct rollbox_error error;

            error_set(&error, ROLLBOX_ERR_CANCELLED, ECANCELED, "run", "cancelled");
            result_send_error(waiter->client, serial, &error);
            waiter_free(waiter);
            return true;
        }
    }
    return false;
}

void run_cancel(struct client *client, uint64_t serial, enum rollbox_outcome outcome) {
    list_for_each(node, &client->runs) {
        struct run *run = container_of(node, struct run, of_client);

        if (run->serial != serial)
            continue;
        if (outcome == ROLLBOX_OUTCOME_OUTPUT_LIMIT)
            run_overflow(run); /* of streams that the client reads itself */
        else
            run_kill(run, outcome);
        return;
    }
    list_for_each(node, &client->engine->runs)
        if (cancel_waiter(container_of(node, struct run, of_engine), client, serial))
            return;
}

/* ---- starting ---- */

int run_open_streams(struct run *run) {
    if (run->stdio[1] >= 0)
        return 0; /* the client's own */
    if (run->session && run->outputs[0].fd >= 0)
        return 0; /* tried before */
    if (run->stdio[0] < 0 && (run->stdio[0] = fcntl(run->engine->null_fd, F_DUPFD_CLOEXEC, 3)) < 0)
        return -errno;
    for (int i = 0; i < 2; i++) {
        int r = output_open(&run->outputs[i], run, &run->stdio[i + 1]);
        if (r < 0)
            return r;
    }
    return 0;
}

static void close_streams_again(struct run *run) {
    for (int i = 0; i < 2; i++) {
        if (run->outputs[i].fd < 0)
            continue;
        output_done(&run->outputs[i]);
        close_fd(&run->stdio[i + 1]);
    }
}

static int hand_over(struct run *run, const struct box *box) {
    auto_buf struct buf fixed = BUF_INIT;
    bool restored = run->is_code && run->profile->serves,
         is_fixed = run->is_code && interpreter_is_fixed(run->profile);
    auto_close int code = restored || is_fixed ? interpreter_code(&run->request) : -EBADF;
    const int fds[5] = { run->stdio[0], run->stdio[1], run->stdio[2], code, run->engine->null_fd };

    if ((restored || is_fixed) && code < 0)
        return code;
    int r = is_fixed ? interpreter_request(&run->request, &fixed) : 0;
    if (r < 0)
        return r;
    struct buf *request = is_fixed ? &fixed : &run->request;
    ((struct wire_header *)(void *)request->data)->flags =
        GUEST_EXEC_FINAL | (restored ? GUEST_EXEC_RESTORED : 0) |
        (restored && is_fixed ? GUEST_EXEC_ALIKE : 0);
    return wire_send_patiently(box->socket, request, fds, is_fixed ? 5 : restored ? 4 : 3);
}

static int start_run(struct run *run, struct rollbox_error *error) {
    struct box *box = box_take_spare(run->profile, false);
    bool is_spare = box;
    uint64_t processes;
    int r = run_open_streams(run);

    if (r < 0) {
        if (box)
            box_make_spare(box);
        close_streams_again(run);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "setup",
            "the pipes of the command cannot be made: %s", strerror(-r));
    }
    if (!box && (r = box_new(run->profile, &(struct box_options){ 0 }, &box, error)) < 0) {
        close_streams_again(run);
        return r;
    }
    run->state = RUN_STARTING;
    run->oom_kills_before = engine_oom_kills(run->engine, false);
    run->box = box;
    box->run = run;
    box_expect_start(box);
    if (box->private_dir && (processes = process_limit(run->profile)))
        wire_add_u64(&run->request, GUEST_PROCESSES, processes);
    r = hand_over(run, box);
    /* A new one that has ended already has said why: that is in its socket yet. */
    if (!is_spare && (r == -EPIPE || r == -ECONNRESET))
        r = 0;
    if (r < 0) {
        box->run = NULL;
        run->box = NULL;
        box_kill(box);
        close_streams_again(run);
        if (is_spare && (r == -EPIPE || r == -ECONNRESET))
            return start_run(
                run, error); /* it has died and we have not heard yet; there are not many */
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "setup",
            "the command cannot be handed to the sandbox: %s", strerror(-r));
    }
    for (size_t i = 0; i < ARRAY_SIZE(run->stdio); i++)
        close_fd(&run->stdio[i]);
    run_handed_over(run);
    return 0;
}

/*
 * Whose run is next. Each client has a queue of its own, which is in order. Of the clients whose
 * first run has room, it is that with the least memory reserved by what runs for it, and of several
 * such the one that was served longest ago; so a long queue delays nobody else's, and shares are of
 * memory and not of numbers.
 *
 * A large run finds no room as long as small ones of others take what becomes free. Once others
 * have been given as much as the whole budget past it, nothing else is started before it.
 */
static struct run *first_of(const struct client *client) {
    return container_of(client->queue.next, struct run, in_queue);
}

/* Part of a shared engine's budget is for clients for which nothing runs yet: who comes while one
 * client's long runs have all the rest need not wait for the end of one. */
static bool has_room(const struct client *client) {
    const struct engine *engine = client->engine;
    const uint64_t budget = engine->memory_budget,
                   memory = first_of(client)->profile->policy->max_memory_bytes;
    const uint64_t kept =
        engine->is_private || !client->n_running ? 0 : MIN(budget / 8, KEPT_FOR_OTHERS);

    return !engine->n_running || !budget || engine->memory_reserved + memory <= budget - kept;
}

/* Its results wait: nothing of its is started that would add to them. */
static bool is_behind(const struct client *client) {
    return sender_is_paused(&client->sender);
}

static struct client *next_client(struct engine *engine) {
    struct client *best = NULL;

    list_for_each(node, &engine->turns) {
        struct client *client = container_of(node, struct client, in_turns);

        if (is_behind(client))
            continue;
        if (engine->memory_budget && client->passed >= engine->memory_budget)
            return has_room(client) ? client : NULL;
        if (has_room(client) && (!best || client->memory_reserved < best->memory_reserved))
            best = client;
    }
    return best;
}

/* It has been given that much: those who had less, and no room, were passed. */
static void note_passed(struct engine *engine, const struct client *served, uint64_t memory) {
    list_for_each(node, &engine->turns) {
        struct client *client = container_of(node, struct client, in_turns);

        if (client != served && client->memory_reserved <= served->memory_reserved &&
            !is_behind(client) && !has_room(client))
            client->passed += memory;
    }
}

/* Starts queued runs, as far as memory allows: the sum of their limits stays within the budget, or
 * one runs alone. When the host is out of something, spares go and what runs already is waited for;
 * only a run that fails alone fails. */
static void start_queued(struct engine *engine) {
    struct client *client;

    while (!engine->stopping && (client = next_client(engine))) {
        struct run *run = first_of(client);
        uint64_t memory = run->profile->policy->max_memory_bytes;
        struct rollbox_error error;

        if (!run->profile->n_spares && !tracking_make_room(engine)) {
            profile_drop_spares(engine);
            return;
        }
        if (start_run(run, &error) < 0) {
            if (error.code == ROLLBOX_ERR_RESOURCE_EXHAUSTED && engine->n_boxes) {
                profile_drop_spares(engine);
                if (engine->n_boxes)
                    return; /* the next box to be freed schedules again */
                continue;
            }
            run_fail(run, error.code, error.error_number, error.stage, error.message);
            continue;
        }
        note_passed(engine, client, memory);
        client->passed = 0;
        leave_queue(run);
        engine->n_queued--;
        engine->memory_reserved += memory;
        engine->n_running++;
        run->reserved = true;
        charge_run(run);
        if (!list_empty(&client->queue)) {
            list_remove(&client->in_turns);
            list_add_tail(&engine->turns, &client->in_turns);
        }
        (void)profile_keep_spares(run->profile);
    }
}

static void on_schedule(struct loop_task *task) {
    start_queued(container_of(task, struct engine, schedule_runs));
}

void run_schedule(struct engine *engine) {
    if (!list_empty(&engine->turns))
        loop_defer(engine->loop, &engine->schedule_runs, on_schedule);
}
