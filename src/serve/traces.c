/* SPDX-License-Identifier: Apache-2.0 */
/* Spans of runs, sandboxes and calls; traces.h has the model. */
#include "serve/traces.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/side_watch.h"
#include "serve/usage.h"
#include "trace/command.h"

#define FLUSH_NS (INT64_C(200) * 1000000)
#define FINISH_MS 5000 /* for the last spans, at the end */
#define LABELS_MAX 32u
#define KEY_MAX 128

struct box_trace {
    struct trace_context context, parent, links[2];
    size_t n_links;
    int64_t start_ns;
};

static struct server *the_server;
static struct trace_exporter exporter = { .socket = -EBADF };
static struct trace_sampler sampler;
static struct loop_source source;
static struct loop_timer flush_timer;
static struct side_watch watch;
static bool is_on, flush_due;

/* ---- sending ---- */

static void on_flush(struct loop_timer *timer) {
    (void)timer;
    flush_due = false;
    trace_exporter_flush(&exporter);
}

static void flush_soon(void) {
    if (flush_due || !exporter.n_pending)
        return;
    flush_due = true;
    (void)loop_timer_set(the_server->loop, &flush_timer, clock_now_ns() + FLUSH_NS, on_flush);
}

static void emit(const struct trace_span *span) {
    trace_exporter_add(&exporter, span);
    flush_soon();
}

static void on_report(struct loop_source *of, uint32_t events) {
    (void)events;
    if (trace_exporter_read(&exporter))
        return;
    fprintf(stderr, "rollbox-serve: rollbox-otlp has ended; another one is started\n");
    loop_remove(the_server->loop, of);
    trace_exporter_lost(&exporter);
    side_watch_lost(&watch);
}

static int take_exporter(struct server *server, int take_socket) {
    int r = trace_exporter_adopt(&exporter, take_socket);

    if (r >= 0)
        r = loop_add(server->loop, &source, exporter.socket, EPOLLIN, on_report);
    if (r < 0)
        close_fd(&exporter.socket);
    return r;
}

/* ---- contexts ---- */

static bool is_same(const struct trace_context *a, const struct trace_context *b) {
    return !memcmp(a->trace, b->trace, sizeof a->trace) &&
           !memcmp(a->span, b->span, sizeof a->span);
}

void traces_request(struct exchange *exchange) {
    const struct http_request *request = http_request_of(exchange->connection);

    (void)trace_context_read(http_header(request, "traceparent"), &exchange->seen.caller);
}

/* The parent of a span within a rollout; *ret_link is the rollout if that is not the parent. */
static struct trace_context parent_of(
    const struct exchange *exchange, struct trace_context *ret_link) {
    const struct box_trace *rollout = exchange->box ? exchange->box->trace : NULL;
    const struct trace_context *caller = &exchange->seen.caller;

    *ret_link = (struct trace_context){ .is_sampled = false };
    if (!rollout)
        return *caller;
    if (trace_context_is_none(caller) || is_same(caller, &rollout->parent))
        return rollout->context;
    *ret_link = rollout->context;
    return *caller;
}

void traces_command_begins(struct exchange *exchange) {
    struct trace_context link;
    const struct trace_context parent = parent_of(exchange, &link);

    if (is_on)
        exchange->seen.span = trace_sampler_begin(&sampler, &parent);
}

bool traces_for_guest(const struct exchange *exchange, struct trace_context *ret) {
    *ret = is_on ? exchange->seen.span : exchange->seen.caller;
    return !trace_context_is_none(ret);
}

/* ---- spans ---- */

static void add_labels(struct buf *attributes, const json_t *labels) {
    const char *key;
    unsigned n = 0;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)labels, key, value) {
        char name[KEY_MAX];

        if (!json_is_string(value) || n++ == LABELS_MAX)
            continue;
        (void)snprintf(name, sizeof name, "rollbox.label.%s", key);
        trace_add_text(attributes, name, json_string_value(value));
    }
}

static void add_use(struct buf *attributes, const struct usage_sum *sum) {
    trace_add_number(attributes, "rollbox.memory_gib_s", sum->gib_s);
    if (usage_prices())
        trace_add_number(attributes, "rollbox.cost", usage_cost(usage_prices(), sum));
}

/* The name of the program, without its arguments: these may have secrets. */
static void add_program(struct buf *attributes, const json_t *body) {
    const json_t *word = json_array_get(json_object_get(body, "argv"), 0);
    const char *language = json_string_value(json_object_get(body, "language"));
    const char *program = json_string_value(word);

    if (!program && json_object_get(body, "code"))
        program = language ? language : "python";
    if (program && strrchr(program, '/'))
        program = strrchr(program, '/') + 1;
    if (program)
        trace_add_text(attributes, "process.executable.name", program);
}

void traces_command_ended(
    const struct exchange *exchange, const char *id, const struct rollbox_result *result) {
    const struct box *box = exchange->box;
    auto_buf struct buf attributes = BUF_INIT;
    struct trace_command command = { .context = exchange->seen.span,
        .result = result,
        .outcome = rollbox_outcome_name(result->outcome),
        .code = rollbox_error_name(result->error.code),
        .attributes = &attributes,
        .is_exec = box != NULL,
        .end_ns = clock_real_ns() };

    if (!is_on || !exchange->seen.span.is_sampled)
        return;
    command.parent = parent_of(exchange, &command.link);
    if (exchange->seen.asked_ns)
        command.asked_ns = command.end_ns - (clock_now_ns() - exchange->seen.asked_ns);
    trace_add_text(&attributes, "rollbox.tenant", exchange->tenant->name);
    if (box)
        trace_add_text(&attributes, "rollbox.sandbox", box->name);
    if (id && *id)
        trace_add_text(&attributes, "gen_ai.tool.call.id", id);
    add_program(&attributes, exchange->body);
    if (!box) {
        const struct usage_sum use = usage_of_command(exchange, result);

        add_use(&attributes, &use);
    }
    add_labels(&attributes, box ? box->labels : json_object_get(exchange->body, "labels"));
    trace_command_add(&exporter, &command);
    flush_soon();
}

void traces_call_ended(struct exchange *exchange, const char *call, const char *snapshot) {
    auto_buf struct buf attributes = BUF_INIT, name = BUF_INIT;
    struct trace_context link;
    int64_t end_ns = clock_real_ns();

    if (!is_on)
        return;
    struct trace_span span = { .parent = parent_of(exchange, &link),
        .kind = TRACE_INTERNAL,
        .start_ns = end_ns - (clock_now_ns() - exchange->seen.begun_ns),
        .end_ns = end_ns,
        .attributes = &attributes,
        .links = &link,
        .n_links = !trace_context_is_none(&link) };
    exchange->seen.span = span.context = trace_sampler_begin(&sampler, &span.parent);
    buf_printf(&name, "rollbox.%s", call);
    trace_add_text(&attributes, "rollbox.tenant", exchange->tenant->name);
    trace_add_text(&attributes, "rollbox.sandbox", exchange->box->name);
    if (snapshot)
        trace_add_text(&attributes, "rollbox.snapshot", snapshot);
    if (buf_failed(&name))
        return;
    span.name = name.data;
    emit(&span);
}

/* ---- rollouts ---- */

static void end_rollout(struct box *box) {
    struct box_trace *trace = TAKE_PTR(box->trace);
    const struct usage_sum *sum = usage_of_box(box);
    auto_buf struct buf attributes = BUF_INIT;

    if (!trace)
        return;
    const struct trace_span span = { .context = trace->context,
        .parent = trace->parent,
        .name = "rollbox.rollout",
        .kind = TRACE_SERVER,
        .start_ns = trace->start_ns,
        .end_ns = clock_real_ns(),
        .attributes = &attributes,
        .links = trace->links,
        .n_links = trace->n_links };
    trace_add_text(&attributes, "rollbox.tenant", box->tenant->name);
    trace_add_text(&attributes, "rollbox.sandbox", box->name);
    if (box->lease[0])
        trace_add_text(&attributes, "rollbox.lease", box->lease);
    if (sum) {
        add_use(&attributes, sum);
        trace_add_number(&attributes, "rollbox.cpu_s", sum->cpu_ms / 1000);
        trace_add_integer(&attributes, "rollbox.commands", (int64_t)sum->commands);
        trace_add_number(&attributes, "rollbox.paused_s", sum->paused_s);
        trace_add_number(&attributes, "rollbox.hibernated_s", sum->hibernated_s);
    }
    add_labels(&attributes, box->labels);
    emit(&span);
    free(trace);
}

void traces_box_created(
    struct box *box, const struct exchange *exchange, const struct box *fork_of) {
    const struct box_trace *before = fork_of ? fork_of->trace : NULL;
    struct box_trace *trace = is_on ? calloc(1, sizeof *trace) : NULL;

    if (!trace)
        return;
    trace->parent = exchange->seen.caller;
    if (before) {
        if (trace_context_is_none(&trace->parent))
            trace->parent = before->parent;
        trace->links[trace->n_links++] = before->context;
        trace->links[trace->n_links++] = exchange->seen.span;
    }
    trace->context = trace_sampler_begin(&sampler, &trace->parent);
    trace->start_ns = clock_real_ns();
    box->trace = trace;
    box->freed = end_rollout;
}

/* ---- start and end ---- */

static void set(const char *name, const char *value) {
    if (value && setenv(name, value, 1) < 0)
        fprintf(stderr, "rollbox-serve: out of memory\n");
}

/* The options of the server win over the environment. */
static void set_variables(const struct config *config) {
    auto_buf struct buf headers = BUF_INIT;

    for (size_t i = 0; i < config->otlp_header.n; i++)
        buf_printf(&headers, "%s%s", i ? "," : "", config->otlp_header.values[i]);
    set("OTEL_EXPORTER_OTLP_ENDPOINT", config->otlp_endpoint);
    if (config->otlp_endpoint)
        (void)unsetenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    if (config->otlp_header.n)
        set("OTEL_EXPORTER_OTLP_HEADERS", headers.data);
    set("OTEL_SERVICE_NAME", config->otlp_service_name);
    set("OTEL_TRACES_SAMPLER", config->otlp_sampler);
    set("OTEL_TRACES_SAMPLER_ARG", config->otlp_sampler_arg);
}

static const char *const secret_variables[] = { "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS" };
static char *secrets[ARRAY_SIZE(secret_variables)];

/* They may have a password, and engines inherit the environment. */
static void hide_secrets(void) {
    for (size_t i = 0; i < ARRAY_SIZE(secrets); i++) {
        const char *value = getenv(secret_variables[i]);

        secrets[i] = value ? strdup(value) : NULL;
        (void)unsetenv(secret_variables[i]);
    }
}

/* In a process that a side process has forked for it. */
static void become_exporter(int socket, const void *data) {
    (void)data;
    for (size_t i = 0; i < ARRAY_SIZE(secrets); i++)
        set(secret_variables[i], secrets[i]);
    pid_t pid = trace_exporter_spawn(socket);
    if (pid < 0)
        fprintf(stderr, "rollbox-serve: cannot start rollbox-otlp: %s\n", strerror(-pid));
    _exit(pid < 0);
}

int traces_start(struct server *server, const struct config *config) {
    const char *name, *argument;

    the_server = server;
    set_variables(config);
    if (!trace_exporter_wanted())
        return 0;
    name = getenv("OTEL_TRACES_SAMPLER");
    argument = getenv("OTEL_TRACES_SAMPLER_ARG");
    if (!trace_sampler_read(name, argument, &sampler)) {
        fprintf(stderr,
            "rollbox-serve: OTEL_TRACES_SAMPLER or OTEL_TRACES_SAMPLER_ARG is not known: the "
            "sampler is always_on, always_off or traceidratio, or parentbased_ and one of these; "
            "its argument is a ratio of 0 to 1\n");
        return 1;
    }
    int r = trace_exporter_start(&exporter);
    if (r >= 0)
        r = loop_add(server->loop, &source, exporter.socket, EPOLLIN, on_report);
    if (r < 0) {
        fprintf(stderr,
            "rollbox-serve: cannot start rollbox-otlp, which sends traces: %s; it is built where "
            "libcurl is; without OTEL_EXPORTER_OTLP_ENDPOINT nothing is traced\n",
            strerror(-r));
        return 1;
    }
    hide_secrets();
    side_process_define(SIDE_TRACES, "rollbox-otlp", become_exporter, NULL);
    watch = (struct side_watch){ .server = server,
        .side = SIDE_TRACES,
        .helper = &server->keeper_socket,
        .take = take_exporter };
    is_on = true;
    return 0;
}

void traces_stop(void) {
    for (size_t i = 0; is_on && i < SERVER_BUCKETS; i++)
        list_for_each(node, &the_server->boxes[i])
            end_rollout(container_of(node, struct box, of_names));
    trace_exporter_finish(&exporter, FINISH_MS);
}

bool traces_counts(uint64_t *ret_exported, uint64_t *ret_dropped) {
    *ret_exported = exporter.exported_before + exporter.report.exported;
    *ret_dropped = exporter.report.dropped + exporter.dropped;
    return is_on;
}
