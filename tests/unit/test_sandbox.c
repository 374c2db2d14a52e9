/* SPDX-License-Identifier: Apache-2.0 */
/*
 * src/client/sandbox.c: what each call says to the engine, and what becomes of its answers. The
 * engine is a thread that writes every message down as a line and answers as the case has told it.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "client/client.h"
#include "client/sandbox.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/protocol.h"
#include "test.h"

#define ISOLATION "{\"namespaces\":[\"user\",\"pid\"]}"

/* ---- the engine ---- */

struct fake {
    struct rollbox_engine *engine;
    struct rollbox_plan plan;
    int socket;
    pthread_t thread;
    const char *answer; /* the text of TEXT; NULL: FAILED with the next three */
    int fds[2];         /* that come with it */
    size_t n_fds;
    enum rollbox_error_code code;
    int error_number;
    bool silent;    /* commands get no result */
    char write[32]; /* what goes into the first descriptor of a message that has one */
    pthread_mutex_t lock;
    struct buf log; /* a line a message, HELLO left out */
};

static void describe(struct buf *to, const struct wire_message *message) {
    static const struct {
        uint32_t tag;
        const char *name;
        bool number;
    } tags[] = {
        { TAG_VERB, "verb", true },
        { TAG_PLAN, "plan", true },
        { TAG_SANDBOX, "sandbox", false },
        { TAG_OPERATION, "operation", false },
        { TAG_ARG, "arg", false },
        { TAG_ENV, "env", false },
        { TAG_CWD, "cwd", false },
        { TAG_USER, "user", false },
        { TAG_TIMEOUT, "timeout", true },
        { TAG_OUTPUT_LIMIT, "limit", true },
        { TAG_STDIN, "stdin", true },
        { TAG_INPUT, "input", true },
        { TAG_TERMINAL, "terminal", true },
        { TAG_STREAM, "stream", true },
        { TAG_EXTRA, "extra", true },
        { TAG_DETACHED, "detached", true },
        { TAG_IDLE, "idle", true },
        { TAG_TTL, "ttl", true },
        { TAG_LIFETIME, "lifetime", true },
        { TAG_EXEC, "exec", false },
        { TAG_NUMBER, "number", true },
        { TAG_SCOPE, "scope", true },
        { TAG_NAME, "name", false },
        { TAG_SNAPSHOT, "snapshot", false },
        { TAG_TO, "to", false },
        { TAG_TEXTUAL, "textual", true },
        { TAG_PATH, "path", false },
        { TAG_FORCE, "force", true },
        { TAG_DROPS, "drops", true },
        { TAG_TARGET, "target", true },
        { TAG_OUTCOME, "outcome", true },
        { TAG_FILE_PATH, "file", false },
        { TAG_FILE_MODE, "mode", true },
        { TAG_FILE_DATA, "data", false },
    };
    struct wire_field field;
    size_t position = 0;

    buf_printf(to, "%u", message->header.type);
    while (wire_next(message->data, message->length, &position, &field) > 0)
        for (size_t i = 0; i < ARRAY_SIZE(tags); i++)
            if (tags[i].tag == field.tag) {
                uint64_t number = 0;

                if (tags[i].number)
                    ASSERT_OK(wire_u64(&field, &number));
                if (tags[i].number)
                    buf_printf(to, " %s=%llu", tags[i].name, (unsigned long long)number);
                else
                    buf_printf(
                        to, " %s=%.*s", tags[i].name, (int)field.length, (const char *)field.data);
            }
    if (message->n_fds)
        buf_printf(to, " fds=%zu", message->n_fds);
    buf_add_text(to, "\n");
}

static void reply(struct fake *fake, const struct wire_message *message) {
    auto_buf struct buf to = BUF_INIT;
    uint64_t serial = message->header.serial;
    const int *fds = NULL;
    size_t n_fds = 0;

    switch ((enum protocol_type)message->header.type) {
    case PROTOCOL_HELLO:
        wire_begin(&to, PROTOCOL_WELCOME, serial);
        wire_add_u64(&to, TAG_VERSION, PROTOCOL_VERSION);
        break;
    case PROTOCOL_EXEC:
    case PROTOCOL_ATTACH:
        if (fake->silent)
            return;
        wire_begin(&to, PROTOCOL_RESULT, serial);
        wire_add_u64(&to, TAG_OUTCOME, ROLLBOX_OUTCOME_EXIT);
        wire_add_u64(&to, TAG_EXIT_CODE, 3);
        break;
    case PROTOCOL_SANDBOX:
        if (fake->answer) {
            wire_begin(&to, PROTOCOL_TEXT, serial);
            wire_add_text(&to, TAG_TEXT_DATA, fake->answer);
            fds = fake->fds;
            n_fds = fake->n_fds;
        } else {
            wire_begin(&to, PROTOCOL_FAILED, serial);
            wire_add_u64(&to, TAG_ERROR_CODE, fake->code);
            wire_add_u64(&to, TAG_ERROR_NUMBER, (uint64_t)fake->error_number);
            wire_add_text(&to, TAG_ERROR_STAGE, "run");
            wire_add_text(&to, TAG_ERROR_MESSAGE, "it was refused");
        }
        break;
    case PROTOCOL_WELCOME:
    case PROTOCOL_PREPARE:
    case PROTOCOL_PREPARED:
    case PROTOCOL_EXPLAIN:
    case PROTOCOL_STATUS:
    case PROTOCOL_TEXT:
    case PROTOCOL_RUN:
    case PROTOCOL_RESULT:
    case PROTOCOL_KILL:
    case PROTOCOL_FAILED:
        return;
    }
    int r = wire_send(fake->socket, &to, fds, n_fds);
    if (r != -EPIPE)
        ASSERT_OK(r);
}

static void *serve(void *argument) {
    struct fake *fake = argument;
    auto_free struct wire_message *message = calloc(1, sizeof *message);

    ASSERT_NOT_NULL(message);
    while (wire_receive(fake->socket, message) > 0) {
        pthread_mutex_lock(&fake->lock);
        if (message->header.type != PROTOCOL_HELLO)
            describe(&fake->log, message);
        pthread_mutex_unlock(&fake->lock);
        if (message->n_fds && fake->write[0])
            ASSERT_OK(fd_write_all(message->fds[0], fake->write, strlen(fake->write)));
        reply(fake, message);
        wire_message_done(message);
    }
    close(fake->socket);
    return NULL;
}

static void fake_open(struct fake *fake) {
    static char isolation[] = ISOLATION;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    int sockets[2];

    *fake = (struct fake){ .answer = "{}", .lock = PTHREAD_MUTEX_INITIALIZER, .log = BUF_INIT };
    ASSERT_CALL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets));
    ASSERT_CALL(fcntl(sockets[0], F_SETFL, O_NONBLOCK));
    ASSERT_OK(handle_new(sockets[0], 77, -EBADF, "test", &fake->engine, &error));
    fake->plan = (struct rollbox_plan){ .engine = fake->engine, .id = 5, .isolation = isolation };
    fake->socket = sockets[1];
    ASSERT_EQ(pthread_create(&fake->thread, NULL, serve, fake), 0);
}

/* Ends the connection, and with it the thread: the log is whole then. */
static void fake_close(struct fake *fake) {
    fake->engine = rollbox_engine_close(fake->engine);
    ASSERT_EQ(pthread_join(fake->thread, NULL), 0);
}

/* What was said is exactly this. Closes. */
static void expect_said(struct fake *fake, const char *lines) {
    fake_close(fake);
    ASSERT_STR_EQ(fake->log.data ? fake->log.data : "", lines);
    buf_done(&fake->log);
}

static struct rollbox_sandbox *open_box(struct fake *fake) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_sandbox *sandbox = NULL;

    fake->answer = "{\"name\": \"box\", \"isolation\": {\"told\": true}}";
    if (rollbox_sandbox_open(fake->engine, "box", &sandbox, &error) < 0)
        FAIL("open: %s", error.message);
    fake->answer = "{}";
    return sandbox;
}

/* The line of open_box. */
#define OPENED "14 verb=2 sandbox=box\n"

static struct rollbox_exec_options exec_of(const char *const *argv) {
    return (struct rollbox_exec_options){
        .size = sizeof(struct rollbox_exec_options),
        .argv = argv,
        .timeout_ms = -1,
        .output_limit = -1,
        .operation_id = "op",
        .input_fd = -1,
        .stream_fds = { -1, -1 },
    };
}

/* ---- handles ---- */

TEST(creating_says_all_that_is_asked_for) {
    struct rollbox_sandbox_options options = {
        .size = sizeof options,
        .name = "a-b.C_1",
        .detached = true,
        .idle_ms = 1,
        .ttl_ms = 2,
        .lifetime_ms = 3,
        .operation_id = "once",
    };
    struct rollbox_sandbox *sandbox = NULL;
    struct fake fake;

    fake_open(&fake);
    fake.answer = "{\"name\": \"a-b.C_1\"}";
    ASSERT_OK(rollbox_sandbox_create(fake.engine, &fake.plan, &options, &sandbox, NULL));
    ASSERT_STR_EQ(rollbox_sandbox_name(sandbox), "a-b.C_1");
    ASSERT_NULL(rollbox_sandbox_free(sandbox));
    fake.answer = "{\"name\": \"made-up\"}";
    ASSERT_OK(rollbox_sandbox_create(fake.engine, &fake.plan, NULL, &sandbox, NULL));
    ASSERT_STR_EQ(rollbox_sandbox_name(sandbox), "made-up");
    rollbox_sandbox_free(sandbox);
    expect_said(&fake, "14 verb=1 plan=5 operation=once sandbox=a-b.C_1 idle=1 ttl=2 lifetime=3 "
                       "detached=1\n14 verb=1 plan=5\n");
}

TEST(invalid_session_is_refused_by_the_client) {
    static const char *const names[] = { "", "a b", "a/b", "\xc3\xa4",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" };
    struct rollbox_sandbox_options options = { .size = sizeof options };
    struct rollbox_sandbox *sandbox = NULL;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_plan foreign = { .engine = NULL };
    struct fake fake;

    fake_open(&fake);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        options.name = names[i];
        ASSERT_EQ(
            rollbox_sandbox_create(fake.engine, &fake.plan, &options, &sandbox, &error), -EINVAL);
        ASSERT_EQ(error.code, ROLLBOX_ERR_INVALID_ARGUMENT);
        ASSERT_EQ(rollbox_sandbox_open(fake.engine, names[i], &sandbox, &error), -EINVAL);
    }
    options.name = NULL;
    options.ttl_ms = -1;
    ASSERT_EQ(rollbox_sandbox_create(fake.engine, &fake.plan, &options, &sandbox, &error), -EINVAL);
    ASSERT_NOT_NULL(strstr(error.message, "ttl_ms is -1"));
    options.ttl_ms = INT64_MAX;
    ASSERT_EQ(rollbox_sandbox_create(fake.engine, &fake.plan, &options, &sandbox, &error), -EINVAL);
    options.ttl_ms = 0;
    ASSERT_EQ(rollbox_sandbox_create(fake.engine, &foreign, &options, &sandbox, &error), -EINVAL);
    options.size--;
    ASSERT_EQ(rollbox_sandbox_create(fake.engine, &fake.plan, &options, &sandbox, &error), -EINVAL);
    ASSERT_NULL(sandbox);
    expect_said(&fake, "");
}

TEST(invalid_name_is_a_malformed_answer) {
    static const char *const answers[] = { "{}", "nonsense", "{\"name\": 7}", "{\"name\": \"a b\"}",
        "{\"name\": \"\"}", "[]" };
    struct rollbox_sandbox *sandbox = NULL;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct fake fake;

    fake_open(&fake);
    for (size_t i = 0; i < ARRAY_SIZE(answers); i++) {
        fake.answer = answers[i];
        ASSERT_EQ(rollbox_sandbox_open(fake.engine, "box", &sandbox, &error), -EPROTO);
        ASSERT_EQ(error.code, ROLLBOX_ERR_PROTOCOL);
    }
    ASSERT_NULL(sandbox);
    fake_close(&fake);
    buf_done(&fake.log);
}

TEST(closing_what_is_gone_is_no_error) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *gone = open_box(&fake), *held = open_box(&fake);
    fake.answer = NULL;
    fake.code = ROLLBOX_ERR_NOT_FOUND;
    fake.error_number = ENOENT;
    ASSERT_OK(rollbox_sandbox_close(gone, &error));
    fake.code = ROLLBOX_ERR_INTERNAL;
    fake.error_number = EIO;
    ASSERT_EQ(rollbox_sandbox_close(held, &error), -EIO);
    ASSERT_STR_EQ(error.message, "it was refused");
    ASSERT_OK(rollbox_sandbox_close(NULL, &error));
    expect_said(&fake, OPENED OPENED "14 verb=8 sandbox=box\n14 verb=8 sandbox=box\n");
}

TEST(lost_engine_ends_its_own_sandboxes) {
    struct rollbox_sandbox_options options = { .size = sizeof options };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_sandbox *own = NULL;
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *other = open_box(&fake);
    fake.answer = "{\"name\": \"own\"}";
    ASSERT_OK(rollbox_sandbox_create(fake.engine, &fake.plan, &options, &own, NULL));
    shutdown(fake.socket, SHUT_RDWR);
    ASSERT_EQ(rollbox_pause(own, &error), -ENOTCONN);
    ASSERT_EQ(error.code, ROLLBOX_ERR_ENGINE_LOST);
    ASSERT_OK(rollbox_sandbox_close(own, &error));
    /* One that others may hold is not known to be gone. */
    ASSERT_EQ(rollbox_sandbox_close(other, &error), -ENOTCONN);
    fake_close(&fake);
    buf_done(&fake.log);
}

TEST(every_call_has_its_verb) {
    auto_free char *list = NULL, *inspect = NULL, *processes = NULL, *tree = NULL, *execs = NULL;
    struct rollbox_terminal terminal = { .rows = 24, .columns = 80 };
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    fake.answer = "{\"x\": 1}";
    ASSERT_OK(rollbox_sandbox_list(fake.engine, &list, NULL));
    ASSERT_OK(rollbox_sandbox_query(box, ROLLBOX_QUERY_INSPECT, &inspect, NULL));
    ASSERT_OK(rollbox_sandbox_query(box, ROLLBOX_QUERY_PROCESSES, &processes, NULL));
    ASSERT_OK(rollbox_sandbox_query(box, ROLLBOX_QUERY_TREE, &tree, NULL));
    ASSERT_OK(rollbox_sandbox_query(box, ROLLBOX_QUERY_EXECS, &execs, NULL));
    ASSERT_EQ(rollbox_sandbox_query(box, (enum rollbox_query)9, &tree, NULL), -EINVAL);
    ASSERT_OK(rollbox_pause(box, NULL));
    ASSERT_OK(rollbox_resume(box, NULL));
    ASSERT_OK(rollbox_signal(box, "op", 15, ROLLBOX_SCOPE_GROUP, NULL));
    ASSERT_OK(rollbox_signal(box, NULL, 9, ROLLBOX_SCOPE_TREE, NULL));
    ASSERT_OK(rollbox_resize(box, "op", &terminal, NULL));
    ASSERT_STR_EQ(list, "{\"x\": 1}");
    ASSERT_STR_EQ(tree, "{\"x\": 1}");
    rollbox_sandbox_free(box);
    expect_said(&fake,
        OPENED "14 verb=9\n14 verb=3 sandbox=box\n14 verb=4 sandbox=box\n14 verb=5 sandbox=box\n14 "
               "verb=27 sandbox=box\n14 verb=6 sandbox=box\n14 verb=7 sandbox=box\n"
               "14 verb=10 sandbox=box exec=op number=15 scope=4\n14 verb=10 sandbox=box number=9 "
               "scope=2\n14 verb=11 sandbox=box exec=op terminal=1572944\n");
}

TEST(signals_that_are_none_are_refused) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    ASSERT_EQ(rollbox_signal(box, "op", 0, ROLLBOX_SCOPE_MAIN, &error), -EINVAL);
    ASSERT_EQ(rollbox_signal(box, "op", 65, ROLLBOX_SCOPE_MAIN, &error), -EINVAL);
    ASSERT_EQ(rollbox_signal(box, "op", 9, (enum rollbox_scope)0, &error), -EINVAL);
    ASSERT_EQ(rollbox_signal(box, "", 9, ROLLBOX_SCOPE_MAIN, &error), -EINVAL);
    ASSERT_EQ(rollbox_signal(box, NULL, 15, ROLLBOX_SCOPE_TREE, &error), -EINVAL);
    ASSERT_EQ(rollbox_resize(box, "op", NULL, &error), -EINVAL);
    rollbox_sandbox_free(box);
    expect_said(&fake, OPENED);
}

/* ---- commands ---- */

TEST(command_request_has_all_options) {
    const char *const argv[] = { "sh", "", NULL }, *const env[] = { "A=1", NULL };
    const struct rollbox_file file = { .path = "f", .data = "data", .length = 4 };
    const struct rollbox_terminal terminal = { .rows = 2, .columns = 3 };
    struct rollbox_exec_options options = exec_of(argv);
    const struct rollbox_result *result;
    struct rollbox_run *run = NULL;
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    options.env = env;
    options.cwd = "/work";
    options.user = "root";
    options.files = &file;
    options.n_files = 1;
    options.timeout_ms = 1500;
    options.output_limit = 0;
    options.terminal = &terminal;
    options.input_fd = 0;
    options.stream_fds[0] = 1;
    options.extra_fds = (const int[]){ 0, 1, 2 };
    options.n_extra_fds = 3;
    options.detached = true;
    ASSERT_OK(rollbox_exec(box, &options, &run, NULL));
    /* The handle may go before its commands. */
    rollbox_sandbox_free(box);
    ASSERT_OK(rollbox_wait(run, -1, &result));
    ASSERT_EQ(result->outcome, ROLLBOX_OUTCOME_EXIT);
    ASSERT_EQ(result->exit_code, 3);
    ASSERT_STR_EQ(result->isolation, "{\"told\":true}");
    rollbox_run_free(run);
    expect_said(&fake,
        OPENED "12 sandbox=box operation=op arg=sh arg= env=A=1 cwd=/work timeout=1500 limit=0 "
               "file=f mode=420 data=data input=1 stream=1 user=root "
               "terminal=131075 extra=3 detached=1 fds=5\n");
}

TEST(standard_input_comes_before_the_streams) {
    const char *const argv[] = { "cat", NULL };
    struct rollbox_exec_options options = exec_of(argv);
    struct rollbox_run *run = NULL;
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    options.stdin_data = "x";
    options.stdin_length = 1;
    options.stream_fds[1] = 2;
    ASSERT_OK(rollbox_exec(box, &options, &run, NULL));
    ASSERT_OK(rollbox_wait(run, -1, NULL));
    rollbox_run_free(run);
    rollbox_sandbox_free(box);
    expect_said(&fake, OPENED "12 sandbox=box operation=op arg=cat stdin=1 stream=2 fds=2\n");
}

TEST(commands_that_cannot_be_are_refused) {
    const char *const argv[] = { "true", NULL }, *const empty[] = { NULL };
    const struct rollbox_terminal terminal = { .rows = 2, .columns = 3 };
    const struct rollbox_exec_options good = exec_of(argv);
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_exec_options bad[14];
    struct rollbox_run *run = NULL;
    struct fake fake;
    size_t n = 0;

    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        bad[i] = good;
    bad[n++].size--;
    bad[n++].argv = empty;
    bad[n++].timeout_ms = 0;
    bad[n++].output_limit = -2;
    bad[n++].cwd = "relative";
    bad[n++].user = "";
    bad[n++].input_fd = 999;
    bad[n++].stream_fds[1] = 999;
    bad[n].n_extra_fds = 9;
    bad[n++].extra_fds = (const int[]){ 0, 0, 0, 0, 0, 0, 0, 0, 0 };
    bad[n++].n_extra_fds = 1;
    bad[n].n_extra_fds = 1;
    bad[n++].extra_fds = (const int[]){ 999 };
    bad[n].stdin_data = "x";
    bad[n++].input_fd = 0;
    bad[n].stdin_data = "x";
    bad[n++].terminal = &terminal;
    bad[n++].operation_id = "";
    ASSERT_EQ(n, ARRAY_SIZE(bad));
    for (size_t i = 0; i < n; i++) {
        error.code = ROLLBOX_OK;
        ASSERT_TRUE(rollbox_exec(box, &bad[i], &run, &error) < 0);
        ASSERT_EQ(error.code, ROLLBOX_ERR_INVALID_ARGUMENT);
    }
    ASSERT_NULL(run);
    rollbox_sandbox_free(box);
    expect_said(&fake, OPENED);
}

TEST(freeing_kills_what_is_not_detached) {
    const char *const argv[] = { "sleep", NULL };
    struct rollbox_exec_options options = exec_of(argv);
    struct rollbox_attach_options attach = {
        .size = sizeof attach, .operation_id = "op", .input_fd = -1, .stream_fds = { -1, -1 }
    };
    struct rollbox_run *run = NULL;
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    fake.silent = true;
    ASSERT_OK(rollbox_exec(box, &options, &run, NULL));
    uint64_t serial = run->pending.serial;
    rollbox_run_free(run);
    options.detached = true;
    ASSERT_OK(rollbox_exec(box, &options, &run, NULL));
    rollbox_run_free(run);
    ASSERT_OK(rollbox_attach(box, &attach, &run, NULL));
    rollbox_run_free(run);
    rollbox_sandbox_free(box);
    char expected[400];
    (void)snprintf(expected, sizeof expected,
        OPENED "12 sandbox=box operation=op arg=sleep\n10 target=%llu outcome=5\n12 sandbox=box "
               "operation=op arg=sleep detached=1\n13 sandbox=box exec=op\n",
        (unsigned long long)serial);
    expect_said(&fake, expected);
}

TEST(command_of_a_lost_engine_ends) {
    const char *const argv[] = { "sleep", NULL };
    struct rollbox_exec_options options = exec_of(argv);
    const struct rollbox_result *result;
    struct rollbox_run *run = NULL;
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    fake.silent = true;
    ASSERT_OK(rollbox_exec(box, &options, &run, NULL));
    rollbox_sandbox_free(box);
    fake_close(&fake);
    ASSERT_OK(rollbox_wait(run, -1, &result));
    ASSERT_EQ(result->error.code, ROLLBOX_ERR_ENGINE_LOST);
    ASSERT_STR_EQ(result->isolation, "{\"told\":true}");
    rollbox_run_free(run);
    buf_done(&fake.log);
}

TEST(forked_child_cannot_use_a_sandbox) {
    const char *const argv[] = { "true", NULL };
    struct rollbox_exec_options options = exec_of(argv);
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    pid_t child = fork();
    ASSERT_CALL(child);
    if (child == 0) {
        struct rollbox_run *run = NULL;
        struct rollbox_error error;
        auto_free char *json = NULL;

        ASSERT_EQ(rollbox_exec(box, &options, &run, &error), -ECHILD);
        ASSERT_EQ(rollbox_pause(box, &error), -ECHILD);
        ASSERT_EQ(rollbox_snapshot(box, NULL, NULL, &json, &error), -ECHILD);
        ASSERT_EQ(rollbox_sandbox_list(fake.engine, &json, &error), -ECHILD);
        ASSERT_EQ(rollbox_sandbox_close(box, &error), -ECHILD);
        _exit(0);
    }
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    rollbox_sandbox_free(box);
    expect_said(&fake, OPENED);
}

/* ---- snapshots of files ---- */

TEST(states_say_what_they_are_about) {
    auto_free char *snapshot = NULL, *diff = NULL, *commit = NULL, *shown = NULL, *verified = NULL;
    const struct rollbox_state_options drop = { .size = sizeof drop,
        .processes = ROLLBOX_PROCESSES_DROP };
    struct rollbox_sandbox *forks[2] = { NULL, NULL };
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    ASSERT_OK(rollbox_snapshot(box, "base", NULL, &snapshot, NULL));
    fake.answer = "{\"sandboxes\": [\"one\", \"two\"]}";
    ASSERT_OK(rollbox_fork(box, "s1", 2, NULL, forks, NULL));
    ASSERT_STR_EQ(rollbox_sandbox_name(forks[0]), "one");
    ASSERT_STR_EQ(rollbox_sandbox_name(forks[1]), "two");
    ASSERT_STR_EQ(forks[1]->isolation->text, "{\"told\":true}");
    fake.answer = "{}";
    ASSERT_OK(rollbox_reset(box, NULL, NULL, NULL));
    ASSERT_OK(rollbox_reset(box, "s1", &drop, NULL));
    ASSERT_OK(rollbox_snapshot_drop(box, "s1", NULL));
    ASSERT_OK(rollbox_diff(box, "s1", "s2", true, &diff, NULL));
    ASSERT_OK(rollbox_commit(box, "/srv/data", true, &commit, NULL));
    ASSERT_OK(rollbox_snapshot_show(box, "s1", &shown, NULL));
    ASSERT_OK(rollbox_snapshot_verify(box, NULL, &verified, NULL));
    rollbox_sandbox_free(forks[0]);
    rollbox_sandbox_free(forks[1]);
    rollbox_sandbox_free(box);
    expect_said(&fake,
        OPENED "14 verb=13 sandbox=box name=base\n14 verb=14 sandbox=box snapshot=s1 number=2\n14 "
               "verb=15 sandbox=box\n14 verb=15 sandbox=box snapshot=s1 drops=1\n"
               "14 verb=16 sandbox=box snapshot=s1\n14 verb=17 sandbox=box snapshot=s1 to=s2 "
               "textual=1\n14 verb=18 sandbox=box path=/srv/data force=1\n"
               "14 verb=25 sandbox=box snapshot=s1\n14 verb=26 sandbox=box\n");
}

TEST(states_that_cannot_be_are_refused) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_sandbox *fork_of = NULL;
    auto_free char *json = NULL;
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    ASSERT_EQ(rollbox_snapshot(box, "a b", NULL, &json, &error), -EINVAL);
    ASSERT_EQ(rollbox_fork(box, NULL, 0, NULL, &fork_of, &error), -EINVAL);
    ASSERT_EQ(rollbox_fork(box, NULL, 1000000, NULL, &fork_of, &error), -EINVAL);
    ASSERT_EQ(rollbox_reset(box, "", NULL, &error), -EINVAL);
    ASSERT_EQ(rollbox_snapshot_drop(box, NULL, &error), -EINVAL);
    ASSERT_EQ(rollbox_diff(box, "s1", "..//", false, &json, &error), -EINVAL);
    ASSERT_EQ(rollbox_snapshot_show(box, "", &json, &error), -EINVAL);
    ASSERT_EQ(rollbox_commit(box, "relative", false, &json, &error), -EINVAL);
    ASSERT_EQ(rollbox_export(box, NULL, "", &error), -EINVAL);
    rollbox_sandbox_free(box);
    expect_said(&fake, OPENED);
}

TEST(claimed_streams_arrive_by_index) {
    int ends[2], claimed[ROLLBOX_CLAIM_FDS];
    char byte = 0;
    struct fake fake;

    ASSERT_CALL(pipe(ends));
    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    fake.answer = "{\"fds\": [{\"slot\": 0, \"mode\": \"w\"}, {\"slot\": 10, \"mode\": \"r\"}]}";
    fake.fds[0] = ends[1];
    fake.fds[1] = ends[0];
    fake.n_fds = 2;
    ASSERT_OK(rollbox_claim(box, "a", 0x401, claimed, NULL));
    for (size_t i = 0; i < ARRAY_SIZE(claimed); i++)
        ASSERT_EQ(claimed[i] >= 0, i == 0 || i == 10);
    ASSERT_EQ(write(claimed[0], "x", 1), 1);
    ASSERT_EQ(read(claimed[10], &byte, 1), 1);
    ASSERT_EQ(byte, 'x');
    rollbox_sandbox_free(box);
    expect_said(&fake, OPENED "14 verb=22 sandbox=box exec=a number=1025\n");
}

TEST(claimed_streams_must_match) {
    static const char *const answers[] = { "{}", "{\"fds\": [{\"slot\": 11}]}",
        "{\"fds\": [{\"slot\": -1}]}", "{\"fds\": []}", "{\"fds\": [{\"slot\": 1}, {\"slot\": 1}]}",
        "[" };
    int claimed[ROLLBOX_CLAIM_FDS];
    struct rollbox_error error;
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    fake.fds[0] = fake.fds[1] = STDIN_FILENO;
    for (size_t i = 0; i < ARRAY_SIZE(answers); i++) {
        fake.answer = answers[i];
        fake.n_fds = i == 4 ? 2 : 1;
        ASSERT_EQ(rollbox_claim(box, "a", 1, claimed, &error), -EPROTO);
    }
    ASSERT_EQ(rollbox_claim(box, "", 1, claimed, &error), -EINVAL);
    rollbox_sandbox_free(box);
    fake_close(&fake);
    buf_done(&fake.log);
}

TEST(forks_are_all_or_none) {
    static const char *const answers[] = { "{}", "{\"sandboxes\": [\"one\"]}",
        "{\"sandboxes\": [\"one\", \"t w o\"]}", "{\"sandboxes\": [\"one\", 2]}" };
    struct rollbox_sandbox *forks[2] = { NULL, NULL };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    for (size_t i = 0; i < ARRAY_SIZE(answers); i++) {
        fake.answer = answers[i];
        ASSERT_EQ(rollbox_fork(box, NULL, 2, NULL, forks, &error), -EPROTO);
        ASSERT_EQ(error.code, ROLLBOX_ERR_PROTOCOL);
    }
    rollbox_sandbox_free(box);
    fake_close(&fake);
    /* The one that had a handle was closed again. */
    ASSERT_NOT_NULL(strstr(fake.log.data, "14 verb=8 sandbox=one\n"));
    buf_done(&fake.log);
}

TEST(export_is_complete_or_missing) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_free char *path = NULL, *missing = NULL;
    auto_buf struct buf content = BUF_INIT;
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    ASSERT_TRUE(asprintf(&path, "%s/export", test_directory()) > 0);
    ASSERT_TRUE(asprintf(&missing, "%s/no/such/place", test_directory()) > 0);
    (void)snprintf(fake.write, sizeof fake.write, "half");
    fake.answer = NULL;
    fake.code = ROLLBOX_ERR_RESOURCE_EXHAUSTED;
    fake.error_number = ENOSPC;
    ASSERT_EQ(rollbox_export(box, "s1", path, &error), -ENOSPC);
    ASSERT_EQ(access(path, F_OK), -1);
    (void)snprintf(fake.write, sizeof fake.write, "whole");
    fake.answer = "{}";
    ASSERT_OK(rollbox_export(box, "s1", path, &error));
    ASSERT_OK(fd_read_file(path, 100, &content));
    ASSERT_STR_EQ(content.data, "whole");
    ASSERT_EQ(rollbox_export(box, "s1", missing, &error), -ENOENT);
    ASSERT_EQ(error.code, ROLLBOX_ERR_IO);
    rollbox_sandbox_free(box);
    expect_said(&fake, OPENED
        "14 verb=19 sandbox=box snapshot=s1 fds=1\n14 verb=19 sandbox=box snapshot=s1 fds=1\n");
}

/* ---- threads ---- */

static void *call_many(void *argument) {
    for (int i = 0; i < 200; i++) {
        auto_free char *json = NULL;

        ASSERT_OK(rollbox_sandbox_query(argument, ROLLBOX_QUERY_INSPECT, &json, NULL));
        ASSERT_STR_EQ(json, "{}");
    }
    return NULL;
}

TEST(threads_share_a_sandbox) {
    pthread_t threads[4];
    struct fake fake;

    fake_open(&fake);
    struct rollbox_sandbox *box = open_box(&fake);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        ASSERT_EQ(pthread_create(&threads[i], NULL, call_many, box), 0);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        ASSERT_EQ(pthread_join(threads[i], NULL), 0);
    rollbox_sandbox_free(box);
    fake_close(&fake);
    buf_done(&fake.log);
}

/* ---- calls that do not wait ---- */

static void count_end(struct rollbox_run *run, void *userdata) {
    (void)run;
    ++*(unsigned *)userdata;
}

TEST(call_ends_as_a_run_does) {
    struct rollbox_call_options call = { .size = sizeof call,
        .call = ROLLBOX_CALL_FORK,
        .sandbox = "box",
        .n = 2,
        .callback = count_end };
    struct rollbox_run *forks, *refused;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    const struct rollbox_result *result;
    struct rollbox_sandbox *kid;
    unsigned ends = 0;
    struct fake fake;

    fake_open(&fake);
    call.userdata = &ends;
    fake.answer = "{\"sandboxes\": [\"one\", \"two\"]}";
    ASSERT_OK(rollbox_call_start(fake.engine, &call, &forks, &error));
    ASSERT_OK(rollbox_wait(forks, -1, &result));
    ASSERT_EQ(result->error.code, ROLLBOX_OK);
    ASSERT_STR_EQ(rollbox_call_json(forks), fake.answer);
    ASSERT_OK(rollbox_call_sandbox(forks, 1, &kid, &error));
    ASSERT_STR_EQ(rollbox_sandbox_name(kid), "two");
    rollbox_sandbox_free(kid);
    ASSERT_EQ(rollbox_call_sandbox(forks, 2, &kid, &error), -EPROTO);
    rollbox_run_free(forks);

    fake.answer = NULL;
    fake.code = ROLLBOX_ERR_NOT_FOUND;
    call.call = ROLLBOX_CALL_INSPECT;
    ASSERT_OK(rollbox_call_start(fake.engine, &call, &refused, &error));
    ASSERT_OK(rollbox_wait(refused, -1, &result));
    ASSERT_EQ(result->outcome, ROLLBOX_OUTCOME_ERROR);
    ASSERT_EQ(result->error.code, ROLLBOX_ERR_NOT_FOUND);
    ASSERT_NULL(rollbox_call_json(refused));
    rollbox_run_free(refused);
    ASSERT_EQ(ends, 2);
    call.call = (enum rollbox_call)77;
    ASSERT_EQ(rollbox_call_start(fake.engine, &call, &refused, &error), -EINVAL);
    expect_said(&fake, "14 verb=14 sandbox=box number=2\n14 verb=3 sandbox=box\n");
}
