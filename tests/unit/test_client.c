/* SPDX-License-Identifier: Apache-2.0 */
/* src/client: the connection's life, its threads, its errors. The engine is a thread or this very
 * thread, at the other end of a socket pair. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "client/client.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/protocol.h"
#include "test.h"

#define ISOLATION "{\"namespaces\":[\"user\",\"pid\"]}"

/* ---- the other end ---- */

/* A message the client sent. */
struct got {
    uint32_t type;
    uint64_t serial;
    char first_arg[64];
    uint64_t target;
    unsigned n_env;
    unsigned n_fds;
};

static struct wire_message *message_new(void) {
    struct wire_message *message = calloc(1, sizeof *message);

    ASSERT_NOT_NULL(message);
    return message;
}

/* False at end of file. */
static bool receive(int fd, struct got *got) {
    auto_free struct wire_message *message = message_new();
    struct wire_field field;
    size_t position = 0;

    int r = wire_receive(fd, message);
    if (r <= 0) {
        if (r < 0 && r != -ECONNRESET)
            FAIL("receiving: %s", strerror(-r));
        return false;
    }
    *got = (struct got){ .type = message->header.type,
        .serial = message->header.serial,
        .n_fds = (unsigned)message->n_fds };
    while (wire_next(message->data, message->length, &position, &field) > 0) {
        if (field.tag == TAG_ARG && !got->first_arg[0])
            (void)snprintf(got->first_arg, sizeof got->first_arg, "%s", wire_text(&field));
        if (field.tag == TAG_TARGET)
            ASSERT_OK(wire_u64(&field, &got->target));
        if (field.tag == TAG_ENV)
            got->n_env++;
    }
    wire_message_done(message);
    return true;
}

static void send_message(int fd, struct buf *message) {
    int r = wire_send(fd, message, NULL, 0);

    if (r != -EPIPE)
        ASSERT_OK(r);
    buf_done(message);
}

static void send_welcome(int fd, uint64_t serial, uint64_t version) {
    struct buf message = BUF_INIT;

    wire_begin(&message, PROTOCOL_WELCOME, serial);
    wire_add_u64(&message, TAG_VERSION, version);
    wire_add_u64(&message, TAG_PID, 4242);
    send_message(fd, &message);
}

static void send_prepared(int fd, uint64_t serial, uint64_t plan) {
    struct buf message = BUF_INIT;

    wire_begin(&message, PROTOCOL_PREPARED, serial);
    wire_add_u64(&message, TAG_PLAN, plan);
    wire_add_text(&message, TAG_ISOLATION, ISOLATION);
    send_message(fd, &message);
}

static void send_exit(int fd, uint64_t serial, uint64_t code, const char *out) {
    struct buf message = BUF_INIT;

    wire_begin(&message, PROTOCOL_RESULT, serial);
    wire_add_u64(&message, TAG_OUTCOME, ROLLBOX_OUTCOME_EXIT);
    wire_add_u64(&message, TAG_EXIT_CODE, code);
    wire_add(&message, TAG_STDOUT, out, strlen(out));
    send_message(fd, &message);
}

static void send_text(int fd, uint64_t serial, const char *text) {
    struct buf message = BUF_INIT;

    wire_begin(&message, PROTOCOL_TEXT, serial);
    wire_add_text(&message, TAG_TEXT_DATA, text);
    send_message(fd, &message);
}

/* Answers everything at once; a run "echo" says its second word, "never" gets no answer. */
static void *serve(void *argument) {
    int fd = *(int *)argument;
    uint64_t plans = 0;
    struct got got;

    while (receive(fd, &got)) {
        if (got.type == PROTOCOL_HELLO)
            send_welcome(fd, got.serial, PROTOCOL_VERSION);
        else if (got.type == PROTOCOL_PREPARE)
            send_prepared(fd, got.serial, ++plans);
        else if (got.type == PROTOCOL_EXPLAIN || got.type == PROTOCOL_STATUS)
            send_text(fd, got.serial, "{}");
        else if (got.type == PROTOCOL_RUN && strcmp(got.first_arg, "never"))
            send_exit(fd, got.serial, 0, got.first_arg);
    }
    close(fd);
    return NULL;
}

/* ---- fixtures ---- */

struct pair {
    struct rollbox_engine *engine;
    int server;
    pthread_t thread;
};

static void socket_pair(int pair[2]) {
    ASSERT_CALL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
    ASSERT_CALL(fcntl(pair[0], F_SETFL, O_NONBLOCK));
}

/* Connected, with nobody at the other end yet. */
static void connect_pair(struct pair *pair) {
    struct rollbox_error error = { 0 };
    int sockets[2];

    socket_pair(sockets);
    ASSERT_OK(handle_new(sockets[0], 77, -EBADF, "test", &pair->engine, &error));
    pair->server = sockets[1];
}

static void connect_served(struct pair *pair) {
    connect_pair(pair);
    ASSERT_EQ(pthread_create(&pair->thread, NULL, serve, &pair->server), 0);
}

static void close_served(struct pair *pair) {
    ASSERT_NULL(rollbox_engine_close(pair->engine));
    ASSERT_EQ(pthread_join(pair->thread, NULL), 0);
}

static struct rollbox_plan *prepare(struct rollbox_engine *engine, const char *policy) {
    struct rollbox_error error = { 0 };
    struct rollbox_plan *plan = NULL;

    if (rollbox_prepare(engine, policy, strlen(policy), &plan, &error) < 0)
        FAIL("prepare: %s", error.message);
    return plan;
}

static void say_welcome(struct pair *pair) {
    struct got got;

    ASSERT_TRUE(receive(pair->server, &got));
    ASSERT_EQ(got.type, PROTOCOL_HELLO);
    send_welcome(pair->server, got.serial, PROTOCOL_VERSION);
}

/* A plan without having asked for it, so that a case can play the engine in its own thread. */
static struct rollbox_plan plan_of(struct rollbox_engine *engine) {
    static char isolation[] = ISOLATION;

    return (struct rollbox_plan){ .engine = engine, .id = 1, .isolation = isolation };
}

static struct rollbox_run_options options_of(const char *const *argv) {
    return (struct rollbox_run_options){ .size = sizeof(struct rollbox_run_options),
        .argv = argv,
        .timeout_ms = -1,
        .output_limit = -1 };
}

static struct rollbox_run *start(struct rollbox_engine *engine, struct rollbox_plan *plan,
    const char *word, rollbox_callback callback, void *userdata) {
    const char *argv[] = { word, NULL };
    struct rollbox_run_options options = options_of(argv);
    struct rollbox_error error = { 0 };
    struct rollbox_run *run = NULL;

    options.callback = callback;
    options.userdata = userdata;
    if (rollbox_start(engine, plan, &options, &run, &error) < 0)
        FAIL("start: %s", error.message);
    return run;
}

static const struct rollbox_result *wait_for(struct rollbox_run *run) {
    const struct rollbox_result *result = NULL;

    ASSERT_OK(rollbox_wait(run, -1, &result));
    return result;
}

static int open_fds(void) {
    int n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static bool readable(int fd) {
    struct pollfd poller = { .fd = fd, .events = POLLIN };

    return poll(&poller, 1, 0) == 1;
}

static void count(struct rollbox_run *run, void *userdata) {
    (void)run;
    atomic_fetch_add((atomic_int *)userdata, 1);
}

/* ---- the plain course of things ---- */

TEST(run_works_from_open_to_close) {
    int before = open_fds();
    struct pair pair;

    connect_served(&pair);
    struct rollbox_plan *plan = prepare(pair.engine, "{}");
    ASSERT_EQ(rollbox_engine_pid(pair.engine), 77); /* as the kernel says, not as the engine does */
    struct rollbox_run *run = start(pair.engine, plan, "hello", NULL, NULL);
    const struct rollbox_result *result = wait_for(run);
    ASSERT_EQ(result->outcome, ROLLBOX_OUTCOME_EXIT);
    ASSERT_EQ(result->exit_code, 0);
    ASSERT_MEM_EQ(result->stdout_data, result->stdout_length, "hello", 5);
    ASSERT_NULL(result->stderr_data);
    ASSERT_STR_EQ(result->isolation, ISOLATION);
    ASSERT_OK(rollbox_kill(run, ROLLBOX_OUTCOME_TIMEOUT));
    ASSERT_NULL(rollbox_run_free(run));
    close_served(&pair);
    ASSERT_EQ(open_fds(), before);
}

TEST(same_policy_text_is_one_plan) {
    struct pair pair;

    connect_served(&pair);
    struct rollbox_plan *first = prepare(pair.engine, "{}");
    struct rollbox_plan *other = prepare(pair.engine, "{ }");
    ASSERT_TRUE(first == prepare(pair.engine, "{}"));
    ASSERT_TRUE(first != other);
    ASSERT_EQ(first->id, 1);
    ASSERT_EQ(other->id, 2);
    close_served(&pair);
}

TEST(plan_contains_a_kept_environment) {
    struct pair pair;

    connect_served(&pair);
    struct rollbox_plan *first = prepare(pair.engine, "{\"clean_env\": false}");
    ASSERT_TRUE(first == prepare(pair.engine, "{\"clean_env\": false}"));
    setenv("TEST_CLIENT_NEW", "1", 1);
    ASSERT_TRUE(first != prepare(pair.engine, "{\"clean_env\": false}"));
    close_served(&pair);
}

TEST(invalid_policy_needs_no_engine) {
    struct rollbox_error error = { 0 };
    struct rollbox_plan *plan = NULL;
    struct pair pair;

    connect_pair(&pair);
    close(pair.server);
    ASSERT_ERR(rollbox_prepare(pair.engine, "{\n\"fs_readible\": []}", 20, &plan, &error), -EINVAL);
    ASSERT_EQ(error.code, ROLLBOX_ERR_POLICY_INVALID);
    ASSERT_STR_CONTAINS(error.message, "line 2: fs_readible: ");
    ASSERT_NULL(rollbox_engine_close(pair.engine));
}

TEST(problems_are_json_also_without_any) {
    struct rollbox_error error = { 0 };
    auto_free char *none = NULL;
    auto_free char *some = NULL;

    ASSERT_OK(rollbox_policy_check("{}", 2, &none, &error));
    ASSERT_STR_EQ(none, "[]");
    ASSERT_ERR(rollbox_policy_check("{\"x\":1}", 7, &some, &error), -EINVAL);
    ASSERT_STR_CONTAINS(some, "\"line\":1,\"key\":\"x\",\"message\":\"");
    ASSERT_ERR(rollbox_policy_check(NULL, 0, NULL, NULL), -EINVAL);
}

TEST(status_and_plan_are_texts) {
    auto_free char *status = NULL;
    auto_free char *plan = NULL;
    struct rollbox_error error = { 0 };
    struct pair pair;

    connect_served(&pair);
    ASSERT_OK(rollbox_engine_status(pair.engine, &status, &error));
    ASSERT_STR_EQ(status, "{}");
    ASSERT_OK(rollbox_policy_plan(pair.engine, "{}", 2, &plan, &error));
    ASSERT_STR_EQ(plan, "{}");
    close_served(&pair);
}

TEST(wait_gives_up_after_its_timeout) {
    struct pair pair;

    connect_served(&pair);
    struct rollbox_plan *plan = prepare(pair.engine, "{}");
    struct rollbox_run *run = start(pair.engine, plan, "never", NULL, NULL);
    ASSERT_ERR(rollbox_wait(run, 0, NULL), -ETIMEDOUT);
    ASSERT_ERR(rollbox_wait(run, 20, NULL), -ETIMEDOUT);
    ASSERT_OK(rollbox_kill(run, ROLLBOX_OUTCOME_TIMEOUT));
    ASSERT_ERR(rollbox_kill(run, ROLLBOX_OUTCOME_EXIT), -EINVAL);
    ASSERT_NULL(rollbox_run_free(run));
    close_served(&pair);
}

TEST(standard_input_and_files_travel) {
    const char *argv[] = { "x", NULL };
    const char *env[] = { "A=1", "B=", NULL };
    struct rollbox_file files[] = { { "dir/a", "one", 3, 0 }, { "/tmp/b", NULL, 0, 0755 } };
    struct rollbox_run_options options = options_of(argv);
    struct rollbox_run *run = NULL;
    char input[100000];
    struct pair pair;
    struct got got;

    connect_pair(&pair);
    say_welcome(&pair);
    struct rollbox_plan plan = plan_of(pair.engine);
    memset(input, 'i', sizeof input);
    options.env = env;
    options.files = files;
    options.n_files = 2;
    options.stdin_data = input;
    options.stdin_length = sizeof input;
    ASSERT_OK(rollbox_start(pair.engine, &plan, &options, &run, NULL));
    ASSERT_TRUE(receive(pair.server, &got));
    ASSERT_EQ(got.type, PROTOCOL_RUN);
    ASSERT_EQ(got.n_env, 2);
    ASSERT_EQ(got.n_fds, 1);
    rollbox_run_free(run);

    int fds[3] = { 0, 1, 2 };
    options.stdin_data = NULL;
    options.stdin_length = 0;
    options.stdio_fds = fds;
    ASSERT_OK(rollbox_start(pair.engine, &plan, &options, &run, NULL));
    ASSERT_TRUE(receive(pair.server, &got));
    ASSERT_EQ(got.type, PROTOCOL_KILL);
    ASSERT_TRUE(receive(pair.server, &got));
    ASSERT_EQ(got.n_fds, 3);
    rollbox_run_free(run);
    rollbox_engine_close(pair.engine);
    close(pair.server);
}

/* ---- what a caller gets wrong ---- */

static struct rollbox_engine *refusing;
static struct rollbox_plan refusing_plan;

static void refused(const struct rollbox_run_options *options, int error_number, const char *part) {
    struct rollbox_error error = { 0 };
    struct rollbox_run *run = NULL;

    ASSERT_ERR(rollbox_start(refusing, &refusing_plan, options, &run, &error), -error_number);
    ASSERT_EQ(error.code, ROLLBOX_ERR_INVALID_ARGUMENT);
    ASSERT_STR_EQ(error.stage, "arguments");
    ASSERT_STR_CONTAINS(error.message, part);
    ASSERT_NULL(run);
    ASSERT_TRUE(list_empty(&refusing->runs));
}

TEST(invalid_run_options_are_refused) {
    const char *argv[] = { "x", NULL };
    const struct rollbox_run_options good = options_of(argv);
    struct rollbox_run_options options;
    struct pair pair;

    connect_pair(&pair);
    refusing = pair.engine;
    refusing_plan = plan_of(pair.engine);
#define REFUSED(error_number, part, ...)                                                           \
    (options = good, (void)(__VA_ARGS__), refused(&options, error_number, part))
    REFUSED(EINVAL, "size", options.size = 8);
    REFUSED(EINVAL, "argv is empty", options.argv = (const char *[]){ NULL });
    REFUSED(EINVAL, "argv[0]", options.argv = (const char *[]){ "", NULL });
    REFUSED(EINVAL, "timeout_ms is 0", options.timeout_ms = 0);
    REFUSED(EINVAL, "timeout_ms is -2", options.timeout_ms = -2);
    REFUSED(EINVAL, "timeout_ms", options.timeout_ms = INT64_MAX);
    REFUSED(EINVAL, "output_limit is -2", options.output_limit = -2);
    REFUSED(EINVAL, "cwd", options.cwd = "relative");
    REFUSED(EINVAL, "cwd", options.cwd = "");
    REFUSED(EINVAL, "env[1]", options.env = (const char *[]){ "A=", "B", NULL });
    REFUSED(EINVAL, "env[0]", options.env = (const char *[]){ "=B", NULL });
    REFUSED(EINVAL, "stdin_length", options.stdin_length = 1);
    REFUSED(EINVAL, "exclude", options.stdin_data = "x", options.stdio_fds = (int[]){ 0, 1, 2 });
    REFUSED(EBADF, "stdio_fds[1]", options.stdio_fds = (int[]){ 0, -1, 2 });
    REFUSED(EINVAL, "operation_id", options.operation_id = "");
    REFUSED(EINVAL, "operation_id",
        options.operation_id = "12345678901234567890123456789012345678901234567890123456789012345");
    REFUSED(EINVAL, "n_files", options.n_files = 1);
#define FILE_REFUSED(error_number, part, ...)                                                      \
    REFUSED(error_number, part, options.n_files = 1,                                               \
        options.files = &(struct rollbox_file)__VA_ARGS__)
    FILE_REFUSED(EINVAL, "path", { NULL, "x", 1, 0 });
    FILE_REFUSED(EINVAL, "path", { "", "x", 1, 0 });
    FILE_REFUSED(EINVAL, "path", { "a/../b", "x", 1, 0 });
    FILE_REFUSED(EINVAL, "path", { "a/", "x", 1, 0 });
    FILE_REFUSED(EINVAL, "data", { "a", NULL, 1, 0 });
    FILE_REFUSED(EINVAL, "mode", { "a", "x", 1, 04755 });
    FILE_REFUSED(E2BIG, "bytes", { "a", "x", (size_t)2 << 30, 0 });

    auto_free char *large = malloc(200000);
    memset(large, 'a', 200000);
    large[199999] = '\0';
    REFUSED(E2BIG, "argv[1] has 199999 bytes", options.argv = (const char *[]){ "x", large, NULL });
    large[131000] = '\0';
    const char *many[20] = { "x" };
    for (int i = 1; i < 19; i++)
        many[i] = large;
    REFUSED(E2BIG, "together", options.argv = many);

    struct rollbox_run *run = NULL;
    struct rollbox_plan foreign = plan_of(NULL);
    ASSERT_ERR(rollbox_start(pair.engine, &foreign, &good, &run, NULL), -EINVAL);
    ASSERT_ERR(rollbox_start(pair.engine, NULL, &good, &run, NULL), -EINVAL);
    rollbox_engine_close(pair.engine);
    close(pair.server);
}

TEST(options_of_another_size_are_refused) {
    struct rollbox_engine_options options = { .size = 4 };
    struct rollbox_engine *engine = NULL;
    struct rollbox_error error = { 0 };

    ASSERT_ERR(rollbox_engine_open(&options, &engine, &error), -EINVAL);
    ASSERT_EQ(error.code, ROLLBOX_ERR_INVALID_ARGUMENT);
}

/* ---- what an engine gets wrong ---- */

TEST(engine_of_another_version_is_refused) {
    struct rollbox_error error = { 0 };
    char *text = NULL;
    struct pair pair;
    struct got got;

    connect_pair(&pair);
    ASSERT_TRUE(receive(pair.server, &got));
    send_welcome(pair.server, got.serial, 999);
    ASSERT_ERR(rollbox_engine_status(pair.engine, &text, &error), -ENOTCONN);
    ASSERT_EQ(error.code, ROLLBOX_ERR_PROTOCOL);
    ASSERT_STR_CONTAINS(error.message, "version");
    ASSERT_NULL(text);
    rollbox_engine_close(pair.engine);
    close(pair.server);
}

TEST(engine_refusal_has_a_reason) {
    struct rollbox_error error = { 0 };
    struct buf message = BUF_INIT;
    char *text = NULL;
    struct pair pair;
    struct got got;

    connect_pair(&pair);
    ASSERT_TRUE(receive(pair.server, &got));
    wire_begin(&message, PROTOCOL_FAILED, got.serial);
    wire_add_u64(&message, TAG_ERROR_CODE, ROLLBOX_ERR_RESOURCE_EXHAUSTED);
    wire_add_u64(&message, TAG_ERROR_NUMBER, EMFILE);
    wire_add_text(&message, TAG_ERROR_STAGE, "connect");
    wire_add_text(&message, TAG_ERROR_MESSAGE, "too many clients");
    send_message(pair.server, &message);
    close(pair.server);
    ASSERT_ERR(rollbox_engine_status(pair.engine, &text, &error), -ENOTCONN);
    ASSERT_EQ(error.code, ROLLBOX_ERR_RESOURCE_EXHAUSTED);
    ASSERT_EQ(error.error_number, EMFILE);
    ASSERT_STR_EQ(error.message, "too many clients");
    rollbox_engine_close(pair.engine);
}

TEST(lost_engine_ends_every_run) {
    struct rollbox_run *runs[50];
    struct rollbox_error error = { 0 };
    atomic_int called = 0;
    char *text = NULL;
    struct pair pair;

    connect_pair(&pair);
    say_welcome(&pair);
    struct rollbox_plan plan = plan_of(pair.engine);
    for (int i = 0; i < 50; i++)
        runs[i] = start(pair.engine, &plan, "x", count, &called);
    ASSERT_EQ(rollbox_dispatch(pair.engine), 0);
    close(pair.server);
    ASSERT_TRUE(readable(rollbox_engine_fd(pair.engine)));
    ASSERT_EQ(rollbox_dispatch(pair.engine), 50);
    ASSERT_EQ(called, 50);
    ASSERT_ERR(rollbox_dispatch(pair.engine), -ENOTCONN);
    for (int i = 0; i < 50; i++) {
        const struct rollbox_result *result = wait_for(runs[i]);

        ASSERT_EQ(result->outcome, ROLLBOX_OUTCOME_ERROR);
        ASSERT_EQ(result->error.code, ROLLBOX_ERR_ENGINE_LOST);
        ASSERT_EQ(result->exit_code, -1);
        ASSERT_OK(rollbox_kill(runs[i], ROLLBOX_OUTCOME_ERROR));
        rollbox_run_free(runs[i]);
    }
    ASSERT_ERR(rollbox_engine_status(pair.engine, &text, &error), -ENOTCONN);
    ASSERT_EQ(error.code, ROLLBOX_ERR_ENGINE_LOST);
    struct rollbox_run *run = NULL;
    const char *argv[] = { "x", NULL };
    struct rollbox_run_options options = options_of(argv);
    ASSERT_ERR(rollbox_start(pair.engine, &plan, &options, &run, &error), -ENOTCONN);
    rollbox_engine_close(pair.engine);
}

TEST(results_before_the_loss_still_count) {
    struct pair pair;
    struct got got;

    connect_pair(&pair);
    say_welcome(&pair);
    struct rollbox_plan plan = plan_of(pair.engine);
    struct rollbox_run *first = start(pair.engine, &plan, "x", NULL, NULL);
    ASSERT_TRUE(receive(pair.server, &got));
    send_exit(pair.server, got.serial, 7, "");
    close(pair.server);
    const char *argv[] = { "x", NULL };
    struct rollbox_run_options options = options_of(argv);
    struct rollbox_run *second = NULL;
    ASSERT_ERR(rollbox_start(pair.engine, &plan, &options, &second, NULL), -ENOTCONN);
    ASSERT_EQ(wait_for(first)->exit_code, 7);
    rollbox_run_free(first);
    rollbox_engine_close(pair.engine);
}

TEST(runs_outlive_the_closed_engine) {
    struct pair pair;

    connect_pair(&pair);
    struct rollbox_plan plan = plan_of(pair.engine);
    struct rollbox_run *run = start(pair.engine, &plan, "x", NULL, NULL);
    rollbox_engine_close(pair.engine);
    ASSERT_EQ(wait_for(run)->error.code, ROLLBOX_ERR_ENGINE_LOST);
    ASSERT_STR_EQ(wait_for(run)->isolation, ISOLATION);
    ASSERT_OK(rollbox_kill(run, ROLLBOX_OUTCOME_TIMEOUT));
    rollbox_run_free(run);
    close(pair.server);
}

TEST(malformed_result_ends_its_own_run_only) {
    struct buf message = BUF_INIT;
    struct pair pair;
    struct got bad, good;

    connect_pair(&pair);
    say_welcome(&pair);
    struct rollbox_plan plan = plan_of(pair.engine);
    struct rollbox_run *first = start(pair.engine, &plan, "x", NULL, NULL);
    struct rollbox_run *second = start(pair.engine, &plan, "x", NULL, NULL);
    ASSERT_TRUE(receive(pair.server, &bad));
    ASSERT_TRUE(receive(pair.server, &good));
    wire_begin(&message, PROTOCOL_RESULT, bad.serial);
    wire_add_u64(&message, TAG_OUTCOME, 77);
    send_message(pair.server, &message);
    /* Of nobody: dropped. */
    send_exit(pair.server, 1000000, 0, "");
    send_exit(pair.server, good.serial, 3, "");
    ASSERT_EQ(wait_for(second)->exit_code, 3);
    ASSERT_EQ(wait_for(first)->outcome, ROLLBOX_OUTCOME_ERROR);
    ASSERT_EQ(wait_for(first)->error.code, ROLLBOX_ERR_PROTOCOL);
    rollbox_run_free(first);
    rollbox_run_free(second);
    rollbox_engine_close(pair.engine);
    close(pair.server);
}

TEST(reply_of_the_wrong_kind_is_an_error) {
    struct pair pair;
    struct got got;

    connect_pair(&pair);
    say_welcome(&pair);
    struct rollbox_plan plan = plan_of(pair.engine);
    struct rollbox_run *run = start(pair.engine, &plan, "x", NULL, NULL);
    ASSERT_TRUE(receive(pair.server, &got));
    send_text(pair.server, got.serial, "text");
    ASSERT_EQ(wait_for(run)->error.code, ROLLBOX_ERR_PROTOCOL);
    rollbox_run_free(run);
    rollbox_engine_close(pair.engine);
    close(pair.server);
}

TEST(message_without_a_header_ends_the_connection) {
    struct pair pair;

    connect_pair(&pair);
    say_welcome(&pair);
    struct rollbox_plan plan = plan_of(pair.engine);
    struct rollbox_run *run = start(pair.engine, &plan, "x", NULL, NULL);
    ASSERT_OK(fd_send(pair.server, "short", 5, NULL, 0));
    ASSERT_EQ(wait_for(run)->error.code, ROLLBOX_ERR_PROTOCOL);
    ASSERT_ERR(rollbox_dispatch(pair.engine), -ENOTCONN);
    rollbox_run_free(run);
    rollbox_engine_close(pair.engine);
    close(pair.server);
}

/* A result whose output cannot be received without a free descriptor must not be waited for for
 * ever.
 */
TEST(result_without_room_for_its_descriptors_is_an_error) {
    struct rlimit limit = { 0, 0 };
    struct buf message = BUF_INIT;
    struct pair pair;
    struct got got;

    connect_pair(&pair);
    say_welcome(&pair);
    struct rollbox_plan plan = plan_of(pair.engine);
    struct rollbox_run *run = start(pair.engine, &plan, "x", NULL, NULL);
    ASSERT_TRUE(receive(pair.server, &got));
    int file = fd_memory_file("out", "output", 6);
    ASSERT_OK(file);
    wire_begin(&message, PROTOCOL_RESULT, got.serial);
    wire_add_u64(&message, TAG_OUTCOME, ROLLBOX_OUTCOME_EXIT);
    wire_add_u64(&message, TAG_EXIT_CODE, 0);
    wire_add_u64(&message, TAG_STDOUT_FD, 1);
    ASSERT_OK(wire_send(pair.server, &message, &file, 1));
    buf_done(&message);
    ASSERT_CALL(getrlimit(RLIMIT_NOFILE, &limit));
    rlim_t soft = limit.rlim_cur;
    limit.rlim_cur = 3;
    ASSERT_CALL(setrlimit(RLIMIT_NOFILE, &limit));
    const struct rollbox_result *result = wait_for(run);
    limit.rlim_cur = soft;
    ASSERT_CALL(setrlimit(RLIMIT_NOFILE, &limit));
    ASSERT_EQ(result->outcome, ROLLBOX_OUTCOME_ERROR);
    ASSERT_EQ(result->error.code, ROLLBOX_ERR_RESOURCE_EXHAUSTED);
    ASSERT_EQ(result->error.error_number, EMFILE);
    rollbox_run_free(run);
    rollbox_engine_close(pair.engine);
    close(pair.server);
    close(file);
}

/* ---- freeing, callbacks, event loops ---- */

TEST(freeing_a_run_under_way_kills_it) {
    int before = open_fds();
    atomic_int called = 0;
    struct pair pair;
    struct got run_message, kill_message;

    connect_pair(&pair);
    say_welcome(&pair);
    struct rollbox_plan plan = plan_of(pair.engine);
    struct rollbox_run *run = start(pair.engine, &plan, "x", count, &called);
    rollbox_run_free(run);
    ASSERT_TRUE(receive(pair.server, &run_message));
    ASSERT_TRUE(receive(pair.server, &kill_message));
    ASSERT_EQ(kill_message.type, PROTOCOL_KILL);
    ASSERT_EQ(kill_message.target, run_message.serial);
    send_exit(pair.server, run_message.serial, 0, "late");
    ASSERT_EQ(rollbox_dispatch(pair.engine), 0);
    ASSERT_EQ(called, 0);
    rollbox_engine_close(pair.engine);
    close(pair.server);
    ASSERT_EQ(open_fds(), before);
}

static void free_self(struct rollbox_run *run, void *userdata) {
    ++*(int *)userdata;
    rollbox_run_free(run);
}

TEST(callback_may_free_its_run) {
    struct pair pair;
    struct got got;
    int called = 0;

    connect_pair(&pair);
    say_welcome(&pair);
    struct rollbox_plan plan = plan_of(pair.engine);
    (void)start(pair.engine, &plan, "x", free_self, &called);
    ASSERT_TRUE(receive(pair.server, &got));
    send_exit(pair.server, got.serial, 0, "");
    ASSERT_EQ(rollbox_dispatch(pair.engine), 1);
    ASSERT_EQ(called, 1);
    rollbox_engine_close(pair.engine);
    close(pair.server);
}

TEST(ends_that_are_asked_for) {
    struct pair pair;
    struct got got;
    int marks[4], order[] = { 2, 0, 3 };
    uint64_t serials[4];
    struct rollbox_run *runs[4];

    connect_pair(&pair);
    say_welcome(&pair);
    struct rollbox_plan plan = plan_of(pair.engine);
    for (int i = 0; i < 4; i++) {
        runs[i] = start(pair.engine, &plan, "x", rollbox_queued, &marks[i]);
        ASSERT_TRUE(receive(pair.server, &got));
        serials[i] = got.serial;
    }
    ASSERT_EQ(rollbox_dispatch(pair.engine), 0);
    ASSERT_NULL(rollbox_next_ended(pair.engine));
    ASSERT_FALSE(readable(rollbox_engine_fd(pair.engine)));
    for (size_t i = 0; i < ARRAY_SIZE(order); i++)
        send_exit(pair.server, serials[order[i]], 0, "");
    ASSERT_EQ(rollbox_dispatch(pair.engine), 3);
    /* Another call does not lose the result of a caller that has not asked yet. */
    ASSERT_EQ(rollbox_dispatch(pair.engine), 0);
    ASSERT_TRUE(readable(rollbox_engine_fd(pair.engine)));
    ASSERT_TRUE(rollbox_next_ended(pair.engine) == &marks[2]);
    ASSERT_TRUE(rollbox_next_ended(pair.engine) == &marks[2]);
    rollbox_told(pair.engine, &marks[2]);
    rollbox_told(pair.engine, &marks[2]);
    rollbox_run_free(runs[0]);
    ASSERT_TRUE(readable(rollbox_engine_fd(pair.engine)));
    ASSERT_TRUE(rollbox_next_ended(pair.engine) == &marks[3]);
    rollbox_told(pair.engine, &marks[3]);
    ASSERT_NULL(rollbox_next_ended(pair.engine));
    ASSERT_FALSE(readable(rollbox_engine_fd(pair.engine)));
    /* One that another thread's wait has found is there for who polls. */
    send_exit(pair.server, serials[1], 0, "");
    (void)wait_for(runs[1]);
    ASSERT_TRUE(readable(rollbox_engine_fd(pair.engine)));
    ASSERT_EQ(rollbox_dispatch(pair.engine), 0);
    ASSERT_TRUE(rollbox_next_ended(pair.engine) == &marks[1]);
    for (int i = 1; i < 4; i++)
        rollbox_run_free(runs[i]);
    rollbox_engine_close(pair.engine);
    close(pair.server);
}

static void wait_inside(struct rollbox_run *run, void *userdata) {
    (void)run;
    ASSERT_OK(rollbox_wait(userdata, -1, NULL));
}

TEST(callback_may_wait_for_another_run) {
    struct pair pair;

    connect_served(&pair);
    struct rollbox_plan *plan = prepare(pair.engine, "{}");
    struct rollbox_run *other = start(pair.engine, plan, "other", NULL, NULL);
    struct rollbox_run *run = start(pair.engine, plan, "x", wait_inside, other);
    wait_for(run);
    rollbox_run_free(run);
    rollbox_run_free(other);
    close_served(&pair);
}

/* A result that a blocking request came across is the event loop's to hear of. */
TEST(descriptor_is_readable_for_results_found_by_other_threads) {
    atomic_int called = 0;
    struct pair pair;
    char *text = NULL;

    connect_served(&pair);
    struct rollbox_plan *plan = prepare(pair.engine, "{}");
    int fd = rollbox_engine_fd(pair.engine);
    ASSERT_OK(fd);
    ASSERT_FALSE(readable(fd));
    struct rollbox_run *run = start(pair.engine, plan, "x", count, &called);
    /* The status is answered after the run. */
    ASSERT_OK(rollbox_engine_status(pair.engine, &text, NULL));
    free(text);
    ASSERT_EQ(called, 0);
    ASSERT_TRUE(readable(fd));
    ASSERT_EQ(rollbox_dispatch(pair.engine), 1);
    ASSERT_EQ(called, 1);
    ASSERT_FALSE(readable(fd));
    rollbox_run_free(run);
    close_served(&pair);
}

/* The engine answers every run with 20 kB and stops while nobody takes the answers: starting must
 * still take them. */
static void *serve_flood(void *argument) {
    int fd = *(int *)argument;
    char out[20001];
    struct got got;

    memset(out, 'x', sizeof out - 1);
    out[sizeof out - 1] = '\0';
    while (receive(fd, &got))
        if (got.type == PROTOCOL_HELLO)
            send_welcome(fd, got.serial, PROTOCOL_VERSION);
        else if (got.type == PROTOCOL_RUN)
            send_exit(fd, got.serial, 0, out);
    close(fd);
    return NULL;
}

TEST(starting_does_not_deadlock_with_a_full_socket) {
    static struct rollbox_run *runs[2000];
    atomic_int called = 0;
    struct pair pair;

    connect_pair(&pair);
    ASSERT_EQ(pthread_create(&pair.thread, NULL, serve_flood, &pair.server), 0);
    struct rollbox_plan plan = plan_of(pair.engine);
    int n = (int)ARRAY_SIZE(runs);
    for (int i = 0; i < n; i++)
        runs[i] = start(pair.engine, &plan, "x", count, &called);
    ASSERT_EQ(called, 0);
    for (int i = 0; i < n; i++) {
        ASSERT_EQ(wait_for(runs[i])->stdout_length, 20000);
        rollbox_run_free(runs[i]);
    }
    ASSERT_EQ(called, n);
    close_served(&pair);
}

/* ---- threads ---- */

#define RUNS_PER_THREAD 300

struct worker {
    struct pair *pair;
    struct rollbox_plan *plan;
    atomic_int *called;
    pthread_t thread;
};

static void *work(void *argument) {
    struct worker *worker = argument;

    for (int i = 0; i < RUNS_PER_THREAD; i++) {
        struct rollbox_run *run =
            start(worker->pair->engine, worker->plan, "word", count, worker->called);
        struct rollbox_run *freed =
            start(worker->pair->engine, worker->plan, i % 2 ? "never" : "x", NULL, NULL);
        const struct rollbox_result *result = wait_for(run);

        ASSERT_MEM_EQ(result->stdout_data, result->stdout_length, "word", 4);
        if (i % 50 == 0) {
            char policy[64];
            char *text = NULL;

            (void)snprintf(policy, sizeof policy, "{\"max_processes\": %d}", i + 1);
            ASSERT_NOT_NULL(prepare(worker->pair->engine, policy));
            ASSERT_OK(rollbox_engine_status(worker->pair->engine, &text, NULL));
            free(text);
        }
        rollbox_run_free(freed);
        rollbox_run_free(run);
    }
    return NULL;
}

static atomic_bool stop_loop;

static void *loop(void *argument) {
    struct rollbox_engine *engine = argument;
    struct pollfd poller = { .fd = rollbox_engine_fd(engine), .events = POLLIN };

    while (!stop_loop) {
        (void)poll(&poller, 1, 10);
        ASSERT_OK(rollbox_dispatch(engine));
    }
    return NULL;
}

static void many_threads(bool with_loop) {
    struct worker workers[6];
    atomic_int called = 0;
    pthread_t looper;
    struct pair pair;

    connect_served(&pair);
    struct rollbox_plan *plan = prepare(pair.engine, "{}");
    if (with_loop)
        ASSERT_EQ(pthread_create(&looper, NULL, loop, pair.engine), 0);
    for (size_t i = 0; i < ARRAY_SIZE(workers); i++) {
        workers[i] = (struct worker){ .pair = &pair, .plan = plan, .called = &called };
        ASSERT_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (size_t i = 0; i < ARRAY_SIZE(workers); i++)
        ASSERT_EQ(pthread_join(workers[i].thread, NULL), 0);
    if (with_loop) {
        stop_loop = true;
        ASSERT_EQ(pthread_join(looper, NULL), 0);
    } else {
        ASSERT_EQ(pair.engine->n_pending, 0);
    }
    ASSERT_LE(called, (int)ARRAY_SIZE(workers) * RUNS_PER_THREAD);
    ASSERT_GT(called, 0);
    close_served(&pair);
}

TEST(threads_share_a_connection) {
    many_threads(false);
}

TEST(threads_and_an_event_loop_share_a_connection) {
    many_threads(true);
}

/* ---- fork ---- */

TEST(forked_child_cannot_use_the_handles) {
    struct pair pair;

    connect_served(&pair);
    struct rollbox_plan *plan = prepare(pair.engine, "{}");
    struct rollbox_run *run = start(pair.engine, plan, "never", NULL, NULL);
    pid_t child = fork();
    ASSERT_CALL(child);
    if (!child) {
        struct rollbox_error error = { 0 };
        struct rollbox_plan *again = NULL;
        struct rollbox_run *another = NULL;
        const char *argv[] = { "x", NULL };
        struct rollbox_run_options options = options_of(argv);
        char *text = NULL;

        ASSERT_ERR(rollbox_wait(run, -1, NULL), -ECHILD);
        ASSERT_ERR(rollbox_kill(run, ROLLBOX_OUTCOME_TIMEOUT), -ECHILD);
        ASSERT_ERR(rollbox_dispatch(pair.engine), -ECHILD);
        ASSERT_ERR(rollbox_engine_fd(pair.engine), -ECHILD);
        ASSERT_ERR(rollbox_engine_pid(pair.engine), -ECHILD);
        ASSERT_ERR(rollbox_engine_status(pair.engine, &text, &error), -ECHILD);
        ASSERT_ERR(rollbox_prepare(pair.engine, "{}", 2, &again, &error), -ECHILD);
        ASSERT_ERR(rollbox_policy_plan(pair.engine, "{}", 2, &text, &error), -ECHILD);
        ASSERT_ERR(rollbox_start(pair.engine, plan, &options, &another, &error), -ECHILD);
        ASSERT_STR_CONTAINS(error.message, "fork");
        rollbox_engine_close(pair.engine);
        rollbox_run_free(run);
        _exit(0);
    }
    int status;
    ASSERT_CALL(waitpid(child, &status, 0));
    ASSERT_EQ(status, 0);
    struct rollbox_run *after = start(pair.engine, plan, "after", NULL, NULL);
    ASSERT_EQ(wait_for(after)->stdout_length, 5);
    rollbox_run_free(after);
    rollbox_run_free(run);
    close_served(&pair);
}

/* ---- starting an engine ---- */

static char *engine_script(const char *body) {
    char *path = NULL;
    FILE *file;

    ASSERT_CALL(asprintf(&path, "%s/engine", test_directory()));
    file = fopen(path, "we");
    ASSERT_NOT_NULL(file);
    ASSERT_GT(fprintf(file, "#!/bin/sh\n%s\n", body), 0);
    ASSERT_EQ(fclose(file), 0);
    ASSERT_CALL(chmod(path, 0755));
    return path;
}

static void open_script(const char *path, struct rollbox_engine **ret_engine) {
    struct rollbox_engine_options options = { .size = sizeof options, .engine_path = path };
    struct rollbox_error error = { 0 };

    if (rollbox_engine_open(&options, ret_engine, &error) < 0)
        FAIL("open: %s", error.message);
}

TEST(engine_that_ends_at_once_is_a_start_error) {
    auto_free char *path = engine_script("exit 3");
    struct rollbox_engine *engine = NULL;
    struct rollbox_error error = { 0 };
    struct rollbox_plan *plan = NULL;
    int before = open_fds();

    open_script(path, &engine);
    ASSERT_ERR(rollbox_prepare(engine, "{}", 2, &plan, &error), -ENOTCONN);
    ASSERT_EQ(error.code, ROLLBOX_ERR_ENGINE_START);
    ASSERT_STR_CONTAINS(error.message, "ended with status 3 before it answered");
    ASSERT_NULL(plan);
    rollbox_engine_close(engine);
    ASSERT_EQ(open_fds(), before);
    ASSERT_ERR(waitpid(-1, NULL, 0) < 0 ? -errno : 0, -ECHILD);
}

TEST(engine_inherits_nothing_from_the_caller) {
    auto_free char *out = NULL;
    auto_free char *body = NULL;
    auto_buf struct buf got = BUF_INIT;
    struct rollbox_engine *engine = NULL;
    char session[32];
    sigset_t set;

    ASSERT_CALL(asprintf(&out, "%s/out", test_directory()));
    ASSERT_CALL(asprintf(&body,
        "(echo args=$*; tr '\\0' '\\n' </proc/$$/environ; for fd in /proc/$$/fd/*; do echo "
        "\"${fd##*/} $(readlink $fd)\"; done;"
        " grep -E '^Sig(Blk|Ign)' /proc/$$/status; cut -d' ' -f6 /proc/$$/stat | sed "
        "s/^/session=/) >%s 2>&1\ncat <&3 >/dev/null",
        out));
    auto_free char *path = engine_script(body);
    setenv("SECRET_TOKEN", "do-not-leak", 1);
    setenv("ROLLBOX_KFEAT", "-landlock", 1);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGUSR2, SIG_IGN);
    int leak = fcntl(0, F_DUPFD, 50);
    ASSERT_CALL(leak);
    open_script(path, &engine);
    int pid = rollbox_engine_pid(engine);
    rollbox_engine_close(engine);
    ASSERT_OK(fd_read_file(out, 65536, &got));
    ASSERT_STR_CONTAINS(got.data, "args=--fd 3\n");
    ASSERT_STR_CONTAINS(got.data, "ROLLBOX_KFEAT=-landlock\n");
    ASSERT_STR_CONTAINS(got.data, "0 /dev/null\n");
    ASSERT_STR_CONTAINS(got.data, "\n3 socket:");
    ASSERT_STR_CONTAINS(got.data, "SigBlk:\t0000000000000000\n");
    /* 32 and 33 are the C library's own, which posix_spawn itself sets to be ignored. */
    const char *ignored = strstr(got.data, "SigIgn:\t");
    ASSERT_NOT_NULL(ignored);
    ASSERT_EQ(strtoull(ignored + strlen("SigIgn:\t"), NULL, 16) & ~0x180000000ull, 0);
    (void)snprintf(session, sizeof session, "session=%d\n", pid);
    ASSERT_STR_CONTAINS(got.data, session);
    ASSERT_NULL(strstr(got.data, "SECRET"));
    ASSERT_NULL(strstr(got.data, "\n50 "));
    close(leak);
}

TEST(missing_engine_is_named) {
    struct rollbox_engine_options options = { .size = sizeof options,
        .engine_path = "/nonexistent/rollbox-engine" };
    struct rollbox_engine *engine = NULL;
    struct rollbox_error error = { 0 };

    ASSERT_ERR(rollbox_engine_open(&options, &engine, &error), -ENOENT);
    ASSERT_EQ(error.code, ROLLBOX_ERR_ENGINE_START);
    ASSERT_STR_CONTAINS(error.message, "/nonexistent/rollbox-engine");
    ASSERT_NULL(engine);
    options.engine_path = NULL;
    setenv("ROLLBOX_ENGINE", "/nonexistent/other", 1);
    ASSERT_ERR(rollbox_engine_open(&options, &engine, &error), -ENOENT);
    ASSERT_STR_CONTAINS(error.message, "/nonexistent/other");
}

/* A forked worker that outlives its parent must not keep the parent's engine alive. */
TEST(forked_child_does_not_hold_the_engine) {
    auto_free char *path = engine_script("cat <&3 >/dev/null");
    struct rollbox_engine *engine = NULL;
    int gate[2];

    ASSERT_CALL(pipe2(gate, O_CLOEXEC));
    open_script(path, &engine);
    int socket = engine->socket;
    pid_t child = fork();
    ASSERT_CALL(child);
    if (!child) {
        char byte;

        ASSERT_EQ(engine->socket, -EBADF);
        ASSERT_EQ(fcntl(socket, F_GETFD), -1);
        close(gate[1]);
        _exit(read(gate[0], &byte, 1) != 0);
    }
    close(gate[0]);
    rollbox_engine_close(engine);
    int status;
    ASSERT_EQ(waitpid(child, &status, WNOHANG), 0);
    close(gate[1]);
    ASSERT_CALL(waitpid(child, &status, 0));
    ASSERT_EQ(status, 0);
}

TEST(closing_tolerates_a_host_that_reaps) {
    auto_free char *path = engine_script("cat <&3 >/dev/null");
    struct rollbox_engine *engine = NULL;

    open_script(path, &engine);
    pid_t pid = rollbox_engine_pid(engine);
    ASSERT_CALL(kill(pid, SIGKILL));
    ASSERT_CALL(waitpid(pid, NULL, 0));
    rollbox_engine_close(engine);
    signal(SIGCHLD, SIG_IGN);
    open_script(path, &engine);
    rollbox_engine_close(engine);
}

TEST(joining_where_no_engine_is) {
    auto_free char *path = NULL;
    struct rollbox_engine *engine = NULL;
    struct rollbox_error error = { 0 };
    char too_long[200];

    ASSERT_CALL(asprintf(&path, "%s/socket", test_directory()));
    struct rollbox_engine_options options = { .size = sizeof options, .socket_path = path };
    ASSERT_ERR(rollbox_engine_open(&options, &engine, &error), -ENOENT);
    ASSERT_EQ(error.code, ROLLBOX_ERR_ENGINE_LOST);
    ASSERT_STR_CONTAINS(error.message, "start one");
    memset(too_long, 'x', sizeof too_long);
    too_long[sizeof too_long - 1] = '\0';
    options.socket_path = too_long;
    ASSERT_ERR(rollbox_engine_open(&options, &engine, &error), -ENAMETOOLONG);
    ASSERT_EQ(error.code, ROLLBOX_ERR_INVALID_ARGUMENT);
}
