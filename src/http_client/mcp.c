/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `rollbox mcp`: the Model Context Protocol over standard input and output. The server has the
 * tools; this program carries messages between lines and POST /mcp, several at a time.
 *
 * A line of standard input is a message, and its request has the headers that say what the message
 * says. The answers, one JSON object or events, become lines of standard output. A message that
 * the server does not answer in the protocol, for instance since it cannot be reached, is answered
 * here with an error, so no client waits in vain. notifications/cancelled ends the request that it
 * names, and with it the call.
 *
 * At the end of standard input the calls that run are still answered; the session is ended then. A
 * client that reads no more has left: nothing is waited for.
 */
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/list.h"
#include "http_client/request.h"

#define LINE_MAX_BYTES ((size_t)96 << 20)
#define CALLS_MAX 256u
#define STEP_MS 1000
#define RPC_INTERNAL (-32603)
#define VERSION_KEY "io.modelcontextprotocol/protocolVersion"

struct bridge {
    CURLM *multi;
    const char *address;
    struct list calls;
    unsigned n_calls;
    struct buf input;
    bool has_ended, was_left; /* standard input has no more; nobody reads the output */
    char *session, *version;  /* of "initialize" */
};

struct call {
    struct list of_bridge;
    struct bridge *bridge;
    CURL *curl;
    struct curl_slist *headers;
    json_t *message;
    struct buf line, answer;
    bool is_events;
    char why[CURL_ERROR_SIZE];
};

static const char *member(const json_t *object, const char *name) {
    return json_string_value(json_object_get(object, name));
}

/* ---- output ---- */

static void print_line(struct bridge *bridge, const char *text, size_t length) {
    if (bridge->was_left || !length)
        return;
    if (fd_write_all(STDOUT_FILENO, text, length) < 0 || fd_write_all(STDOUT_FILENO, "\n", 1) < 0)
        bridge->was_left = true;
}

static void print_message(struct bridge *bridge, json_t *take_message) {
    auto_free char *text = json_dumps(take_message, JSON_COMPACT);

    json_decref(take_message);
    if (text)
        print_line(bridge, text, strlen(text));
}

/* Only requests are answered. */
static void print_error(struct bridge *bridge, const json_t *message, const char *text) {
    json_t *id = json_object_get(message, "id");

    if (id && member(message, "method"))
        print_message(bridge, json_pack("{s:s, s:O, s:{s:i, s:s}}", "jsonrpc", "2.0", "id", id,
                                  "error", "code", RPC_INTERNAL, "message", text));
    else
        fprintf(stderr, "rollbox mcp: %s\n", text);
}

/* ---- answers ---- */

static void take_event_lines(struct call *call) {
    struct buf *answer = &call->answer;
    char *end;

    while (answer->length && (end = memchr(answer->data, '\n', answer->length))) {
        size_t length = (size_t)(end - answer->data);
        const char *data = answer->data;

        if (length > 5 && !strncmp(data, "data:", 5)) {
            size_t skip = data[5] == ' ' ? 6 : 5;

            print_line(call->bridge, data + skip, length - skip - (end[-1] == '\r'));
        }
        answer->length -= length + 1;
        memmove(answer->data, end + 1, answer->length);
    }
}

static size_t on_body(char *data, size_t size, size_t n, void *userdata) {
    struct call *call = userdata;

    buf_add(&call->answer, data, size * n);
    if (call->is_events)
        take_event_lines(call);
    return buf_failed(&call->answer) || call->answer.length > LINE_MAX_BYTES ? 0 : size * n;
}

/* The value of a header line, if it is of this name. */
static char *value_of(const char *line, size_t length, const char *name) {
    size_t n = strlen(name);

    if (length <= n || strncasecmp(line, name, n) != 0 || line[n] != ':')
        return NULL;
    for (n++; n < length && line[n] == ' ';)
        n++;
    while (length > n && strchr("\r\n ", line[length - 1]))
        length--;
    return strndup(line + n, length - n);
}

static size_t on_header(char *data, size_t size, size_t n, void *userdata) {
    struct call *call = userdata;
    auto_free char *type = value_of(data, size * n, "Content-Type");
    char *session = value_of(data, size * n, "Mcp-Session-Id");

    if (type && !strncmp(type, "text/event-stream", 17))
        call->is_events = true;
    if (session) {
        free(call->bridge->session);
        call->bridge->session = session;
    }
    return size * n;
}

/* The version that a session has begun with. */
static void learn_version(struct bridge *bridge, const json_t *answer) {
    const char *version = member(json_object_get(answer, "result"), "protocolVersion");

    if (version) {
        free(bridge->version);
        bridge->version = strdup(version);
    }
}

static void take_answer(struct call *call) {
    const struct buf *body = &call->answer;
    json_t *answer = json_loadb(body->data ? body->data : "", body->length, 0, NULL);
    long status = 0;
    char text[400];

    curl_easy_getinfo(call->curl, CURLINFO_RESPONSE_CODE, &status);
    if (member(answer, "jsonrpc")) {
        learn_version(call->bridge, answer);
        print_message(call->bridge, answer);
        return;
    }
    if (status >= 400) {
        const char *detail = member(answer, "detail");

        (void)snprintf(text, sizeof text, "the server answers %ld: %s", status,
            detail ? detail : "is this the address of rollbox serve?");
        print_error(call->bridge, call->message, text);
    } else if (json_object_get(call->message, "id") && member(call->message, "method")) {
        print_error(call->bridge, call->message, "the server's answer is no message");
    }
    json_decref(answer);
}

static struct call *call_free(struct call *call) {
    if (call->curl) {
        curl_multi_remove_handle(call->bridge->multi, call->curl);
        curl_easy_cleanup(call->curl);
    }
    curl_slist_free_all(call->headers);
    list_remove(&call->of_bridge);
    call->bridge->n_calls--;
    json_decref(call->message);
    buf_done(&call->line);
    buf_done(&call->answer);
    free(call);
    return NULL;
}

static void take_ended(struct bridge *bridge) {
    const CURLMsg *ended;
    int left;

    while ((ended = curl_multi_info_read(bridge->multi, &left))) {
        CURLcode r = ended->data.result;
        struct call *call = NULL;

        if (ended->msg != CURLMSG_DONE ||
            curl_easy_getinfo(ended->easy_handle, CURLINFO_PRIVATE, (char **)&call) || !call)
            continue;
        if (r != CURLE_OK)
            print_error(bridge, call->message, call->why[0] ? call->why : curl_easy_strerror(r));
        else if (!call->is_events)
            take_answer(call);
        call_free(call);
    }
}

/* ---- requests ---- */

static bool add_named(struct call *call, const char *name, const char *value) {
    auto_buf struct buf line = BUF_INIT;

    if (!value || value[strcspn(value, "\r\n")])
        return true;
    buf_printf(&line, "%s: %s", name, value);
    return !buf_failed(&line) && request_add_header(&call->headers, line.data);
}

/* What the protocol wants to be said twice. */
static bool add_headers(struct call *call) {
    const struct bridge *bridge = call->bridge;
    const json_t *params = json_object_get(call->message, "params");
    const char *method = member(call->message, "method");
    const char *version = member(json_object_get(params, "_meta"), VERSION_KEY);

    if (request_add_headers(&call->headers) ||
        !request_add_header(&call->headers, "Content-Type: application/json") ||
        !request_add_header(&call->headers, "Accept: application/json, text/event-stream"))
        return false;
    if (version)
        return add_named(call, "MCP-Protocol-Version", version) &&
               add_named(call, "Mcp-Method", method) &&
               add_named(call, "Mcp-Name", member(params, "name"));
    if (method && !strcmp(method, "initialize"))
        return true;
    return add_named(call, "MCP-Protocol-Version", bridge->version) &&
           add_named(call, "Mcp-Session-Id", bridge->session);
}

static bool start(struct call *call) {
    auto_buf struct buf url = BUF_INIT;
    bool is_local = !strncmp(call->bridge->address, "unix:", 5);

    buf_printf(&url, "%s%s/mcp", call->bridge->address, is_local ? "#" : "");
    call->curl = curl_easy_init();
    if (!call->curl || buf_failed(&url) || !add_headers(call) ||
        request_prepare(call->curl, url.data))
        return false;
    curl_easy_setopt(call->curl, CURLOPT_HTTPHEADER, call->headers);
    curl_easy_setopt(call->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->line.length);
    curl_easy_setopt(call->curl, CURLOPT_POSTFIELDS, call->line.data);
    curl_easy_setopt(call->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(call->curl, CURLOPT_WRITEDATA, call);
    curl_easy_setopt(call->curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(call->curl, CURLOPT_HEADERDATA, call);
    curl_easy_setopt(call->curl, CURLOPT_ERRORBUFFER, call->why);
    curl_easy_setopt(call->curl, CURLOPT_PRIVATE, call);
    return curl_multi_add_handle(call->bridge->multi, call->curl) == CURLM_OK;
}

/* Ends the request whose id the notification names. */
static void cancel(struct bridge *bridge, const json_t *message) {
    const json_t *id = json_object_get(json_object_get(message, "params"), "requestId");

    list_for_each(node, &bridge->calls) {
        struct call *call = container_of(node, struct call, of_bridge);

        if (id && member(call->message, "method") &&
            json_equal(json_object_get(call->message, "id"), id))
            call_free(call);
    }
}

static void take_line(struct bridge *bridge, const char *line, size_t length) {
    struct call *call = calloc(1, sizeof *call);
    json_t *message = json_loadb(line, length, 0, NULL);
    const char *method = member(message, "method");

    if (method && !strcmp(method, "notifications/cancelled"))
        cancel(bridge, message);
    if (!call) {
        print_error(bridge, message, "out of memory");
        json_decref(message);
        return;
    }
    call->bridge = bridge;
    call->message = message;
    list_add_tail(&bridge->calls, &call->of_bridge);
    bridge->n_calls++;
    buf_add(&call->line, line, length);
    if (buf_failed(&call->line) || !start(call)) {
        print_error(bridge, message, "the request cannot be made");
        call_free(call);
    }
}

/* ---- the loop ---- */

static void read_input(struct bridge *bridge) {
    struct buf *input = &bridge->input;
    void *room = buf_reserve(input, (size_t)64 << 10);
    ssize_t n = room ? read(STDIN_FILENO, room, (size_t)64 << 10) : 0;

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0 || input->length > LINE_MAX_BYTES) {
        bridge->has_ended = true;
        return;
    }
    size_t from = input->length, begin = 0;
    input->length += (size_t)n;
    for (char *end; (end = memchr(input->data + from, '\n', input->length - from));) {
        size_t at = (size_t)(end - input->data), length = at - begin;

        if (length && end[-1] == '\r')
            length--;
        if (length)
            take_line(bridge, input->data + begin, length);
        begin = from = at + 1;
    }
    input->length -= begin;
    memmove(input->data, input->data + begin, input->length);
}

/* Whether the reader of the output is gone. */
static bool is_left(void) {
    struct pollfd out = { .fd = STDOUT_FILENO };

    return poll(&out, 1, 0) > 0 && out.revents & (POLLERR | POLLNVAL);
}

static void run(struct bridge *bridge) {
    while (!bridge->was_left && (!bridge->has_ended || bridge->n_calls)) {
        struct curl_waitfd in = { .fd = STDIN_FILENO, .events = CURL_WAIT_POLLIN };
        bool listens = !bridge->has_ended && bridge->n_calls < CALLS_MAX;
        struct pollfd ready = { .fd = STDIN_FILENO, .events = POLLIN };
        int running;

        (void)curl_multi_perform(bridge->multi, &running);
        take_ended(bridge);
        if (!bridge->has_ended || bridge->n_calls)
            (void)curl_multi_poll(bridge->multi, &in, listens, STEP_MS, NULL);
        if (listens && poll(&ready, 1, 0) > 0)
            read_input(bridge);
        bridge->was_left = bridge->was_left || is_left();
    }
}

/* The sandboxes of a session end with it. */
static void end_session(struct bridge *bridge) {
    auto_buf struct buf url = BUF_INIT, line = BUF_INIT;
    struct curl_slist *headers = NULL;
    CURL *curl = curl_easy_init();
    bool is_local = !strncmp(bridge->address, "unix:", 5);

    buf_printf(&url, "%s%s/mcp", bridge->address, is_local ? "#" : "");
    buf_printf(&line, "Mcp-Session-Id: %s", bridge->session);
    if (curl && !buf_failed(&url) && !buf_failed(&line) && !request_add_headers(&headers) &&
        request_add_header(&headers, line.data) && !request_prepare(curl, url.data)) {
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, "DELETE");
        curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
        curl_easy_setopt(curl, CURLOPT_TIMEOUT, 5L);
        (void)curl_easy_perform(curl);
    }
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
}

int mcp_main(const char *address) {
    auto_free char *copy = strdup(address);
    struct bridge bridge = { .multi = curl_multi_init(), .address = copy };

    if (!copy || !bridge.multi)
        return request_fail("rollbox mcp", "out of memory");
    for (size_t n = strlen(copy); n && copy[n - 1] == '/' && strncmp(copy, "unix:", 5); n--)
        copy[n - 1] = '\0';
    list_init(&bridge.calls);
    run(&bridge);
    list_for_each(node, &bridge.calls) {
        call_free(container_of(node, struct call, of_bridge));
    }
    if (bridge.session)
        end_session(&bridge);
    curl_multi_cleanup(bridge.multi);
    free(bridge.session);
    free(bridge.version);
    buf_done(&bridge.input);
    return 0;
}
