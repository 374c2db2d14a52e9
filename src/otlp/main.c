/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox-otlp: sends spans to an OpenTelemetry collector, as OTLP/HTTP in JSON, by libcurl. A
 * program of its own, so that names, TLS and a collector that hangs never delay what makes the
 * spans.
 *
 * Standard input is a socket or a pipe with spans, one JSON object a line (trace/span.h). They wait
 * in a ring of SPANS_MAX; more are dropped, and counted. A request has BATCH spans, or what is
 * there BATCH_MS after the first of them. One that the collector cannot take now is tried again,
 * ATTEMPTS times in all. If standard input is a socket, it is sent the counts (struct
 * trace_report). After its end the rest is sent, within END_MS and up to the first
 * failure, and the program ends.
 *
 * OpenTelemetry's variables say where to: docs/reference/environment.md has those that are read.
 */
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "trace/exporter.h"

#define SPANS_MAX 10000u
#define BYTES_MAX ((size_t)32 << 20)
#define SPAN_BYTES_MAX ((size_t)1 << 20)
#define BATCH 512u
#define BATCH_MS INT64_C(5000)
#define TIMEOUT_MS 10000L
#define ATTEMPTS 5u
#define WAIT_MS 1000 /* after the first attempt; twice as long after each of the others */
#define END_MS 10000
#define MS INT64_C(1000000)

/* ---- the spans ---- */

static struct {
    char *lines[SPANS_MAX];
    size_t lengths[SPANS_MAX];
    unsigned first, n;
    size_t bytes;
    int64_t first_ns; /* the oldest one came */
    struct buf rest;  /* a line without its end */
    struct trace_report report;
} ring;

static void keep(const char *line, size_t length) {
    char *copy = ring.n < SPANS_MAX && ring.bytes + length <= BYTES_MAX ? malloc(length) : NULL;
    unsigned place = (ring.first + ring.n) % SPANS_MAX;

    if (!copy) {
        ring.report.dropped++;
        return;
    }
    memcpy(copy, line, length);
    ring.lines[place] = copy;
    ring.lengths[place] = length;
    ring.bytes += length;
    if (!ring.n++)
        ring.first_ns = clock_now_ns();
}

static void take(unsigned n) {
    while (n--) {
        ring.bytes -= ring.lengths[ring.first];
        free(ring.lines[ring.first]);
        ring.first = (ring.first + 1) % SPANS_MAX;
        ring.n--;
    }
    ring.first_ns = clock_now_ns();
}

static void split(void) {
    size_t done = 0;

    for (;;) {
        const char *line = ring.rest.data + done;
        const char *end =
            ring.rest.length > done ? memchr(line, '\n', ring.rest.length - done) : NULL;

        if (!end)
            break;
        if (end > line)
            keep(line, (size_t)(end - line));
        done += (size_t)(end - line) + 1;
    }
    if (done)
        memmove(ring.rest.data, ring.rest.data + done, ring.rest.length - done);
    ring.rest.length -= done;
    if (ring.rest.length > SPAN_BYTES_MAX)
        ring.rest.length = 0;
}

/* False: the end. */
static bool read_spans(void) {
    static char piece[256 << 10];

    for (;;) {
        ssize_t n = read(0, piece, sizeof piece);

        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        if (n == 0)
            return false;
        buf_add(&ring.rest, piece, (size_t)n);
        if (buf_failed(&ring.rest))
            return false;
        split();
    }
}

/* ---- the configuration ---- */

static const char *variable(const char *name) {
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

/* OTEL_EXPORTER_OTLP_TRACES_x, or OTEL_EXPORTER_OTLP_x. */
static const char *option(const char *name) {
    auto_buf struct buf key = BUF_INIT;
    const char *value;

    buf_printf(&key, "OTEL_EXPORTER_OTLP_TRACES_%s", name);
    if (buf_failed(&key))
        return NULL;
    value = variable(key.data);
    if (value)
        return value;
    key.length = 0;
    buf_printf(&key, "OTEL_EXPORTER_OTLP_%s", name);
    return variable(key.data);
}

static void add_address(struct buf *to) {
    const char *exact = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    const char *base = variable("OTEL_EXPORTER_OTLP_ENDPOINT");

    if (exact) {
        buf_add_text(to, exact);
        return;
    }
    if (!base)
        base = "http://localhost:4318";
    buf_add_text(to, base);
    if (base[strlen(base) - 1] != '/')
        buf_add_text(to, "/");
    buf_add_text(to, "v1/traces");
}

/* "K=V,K=V", percent-encoded: calls `each` with a copy of each pair, decoded. */
static void for_pairs(
    const char *text, void (*each)(const char *key, const char *value, void *data), void *data) {
    auto_free char *copy = text ? strdup(text) : NULL;
    char *place = copy, *pair;

    while ((pair = strsep(&place, ","))) {
        char *value = strchr(pair, '=');
        int length = 0;

        if (!value)
            continue;
        *value++ = '\0';
        pair += strspn(pair, " \t");
        pair[strcspn(pair, " \t")] = '\0';
        value += strspn(value, " \t");
        char *decoded = curl_easy_unescape(NULL, value, 0, &length);
        if (*pair && decoded)
            each(pair, decoded, data);
        curl_free(decoded);
    }
}

static void add_header(const char *key, const char *value, void *data) {
    struct curl_slist **headers = data, *longer;
    auto_buf struct buf line = BUF_INIT;

    if (strpbrk(value, "\r\n"))
        return;
    buf_printf(&line, "%s: %s", key, value);
    longer = buf_failed(&line) ? NULL : curl_slist_append(*headers, line.data);
    if (longer)
        *headers = longer;
}

struct resource {
    struct buf attributes;
    const char *name; /* service.name */
};

static void add_attribute(const char *key, const char *value, void *data) {
    struct resource *resource = data;
    struct buf *to = &resource->attributes;

    if (!strcmp(key, "service.name") && resource->name)
        return;
    buf_add_text(to, to->length ? ",{\"key\":" : "{\"key\":");
    (void)utf8_json(to, key, strlen(key));
    buf_add_text(to, ",\"value\":{\"stringValue\":");
    (void)utf8_json(to, value, strlen(value));
    buf_add_text(to, "}}");
}

/* The beginning of each request. */
static void add_beginning(struct buf *to) {
    struct resource resource = { .attributes = BUF_INIT, .name = variable("OTEL_SERVICE_NAME") };
    const char *given = variable("OTEL_RESOURCE_ATTRIBUTES"), *name = resource.name;

    resource.name = NULL;
    if (name)
        add_attribute("service.name", name, &resource);
    else if (!given || !strstr(given, "service.name="))
        add_attribute("service.name", "rollbox", &resource);
    resource.name = name;
    for_pairs(given, add_attribute, &resource);
    buf_add_text(to, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[");
    buf_add(to, resource.attributes.data, resource.attributes.length);
    buf_add_text(to,
        "]},\"scopeSpans\":[{\"scope\":{\"name\":\"rollbox\",\"version\":\"" ROLLBOX_VERSION
        "\"},\"spans\":[");
    buf_done(&resource.attributes);
}

/* ---- sending ---- */

static struct {
    CURLM *multi;
    CURL *curl;
    struct buf beginning, body;
    unsigned n, attempts; /* of the request that is under way or waits; 0: none */
    int64_t again_ns;     /* it waits until then; 0: it is under way */
    bool has_complained;
    int64_t batch_ms;
} sender;

static size_t drop_answer(char *data, size_t size, size_t n, void *userdata) {
    (void)data;
    (void)userdata;
    return size * n;
}

static int prepare(void) {
    auto_buf struct buf address = BUF_INIT;
    struct curl_slist *headers = NULL;
    const char *timeout = option("TIMEOUT"), *delay = variable("OTEL_BSP_SCHEDULE_DELAY"), *file;

    sender.multi = curl_multi_init();
    sender.curl = curl_easy_init();
    add_address(&address);
    add_beginning(&sender.beginning);
    if (!sender.multi || !sender.curl || buf_failed(&address) || buf_failed(&sender.beginning))
        return -ENOMEM;
    add_header("Content-Type", "application/json", &headers);
    add_header("User-Agent", "rollbox/" ROLLBOX_VERSION, &headers);
    for_pairs(option("HEADERS"), add_header, &headers);
    sender.batch_ms = delay ? strtol(delay, NULL, 10) : BATCH_MS;
    if (sender.batch_ms < 0)
        sender.batch_ms = BATCH_MS;
    long most = timeout ? strtol(timeout, NULL, 10) : 0;
    curl_easy_setopt(sender.curl, CURLOPT_URL, address.data);
    curl_easy_setopt(sender.curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(sender.curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(sender.curl, CURLOPT_TIMEOUT_MS, most > 0 ? most : TIMEOUT_MS);
    curl_easy_setopt(sender.curl, CURLOPT_WRITEFUNCTION, drop_answer);
    curl_easy_setopt(sender.curl, CURLOPT_NOSIGNAL, 1L);
    file = option("CERTIFICATE");
    if (file)
        curl_easy_setopt(sender.curl, CURLOPT_CAINFO, file);
    file = option("CLIENT_CERTIFICATE");
    if (file)
        curl_easy_setopt(sender.curl, CURLOPT_SSLCERT, file);
    file = option("CLIENT_KEY");
    if (file)
        curl_easy_setopt(sender.curl, CURLOPT_SSLKEY, file);
    return 0;
}

static void send_again(void) {
    sender.again_ns = 0;
    sender.attempts++;
    curl_multi_add_handle(sender.multi, sender.curl);
}

static void send_batch(void) {
    struct buf *body = &sender.body;

    sender.n = MIN(ring.n, BATCH);
    sender.attempts = 0;
    body->length = 0;
    buf_add(body, sender.beginning.data, sender.beginning.length);
    for (unsigned i = 0; i < sender.n; i++) {
        unsigned place = (ring.first + i) % SPANS_MAX;

        buf_add_text(body, i ? "," : "");
        buf_add(body, ring.lines[place], ring.lengths[place]);
    }
    buf_add_text(body, "]}]}]}");
    take(sender.n);
    if (buf_failed(body)) {
        ring.report.dropped += sender.n;
        sender.n = 0;
        *body = BUF_INIT;
        return;
    }
    curl_easy_setopt(sender.curl, CURLOPT_POSTFIELDS, body->data);
    curl_easy_setopt(sender.curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->length);
    send_again();
}

/* Once in a row of failures. */
static void complain(CURLcode r, long status) {
    if (sender.has_complained)
        return;
    sender.has_complained = true;
    if (r != CURLE_OK)
        fprintf(stderr, "rollbox-otlp: spans are not sent: %s\n", curl_easy_strerror(r));
    else
        fprintf(stderr, "rollbox-otlp: spans are not sent: the collector answers %ld\n", status);
}

static bool is_temporary(CURLcode r, long status) {
    return r != CURLE_OK || status == 429 || (status >= 502 && status <= 504);
}

static void end_request(CURLcode r, bool is_last) {
    long status = 0;

    curl_easy_getinfo(sender.curl, CURLINFO_RESPONSE_CODE, &status);
    curl_multi_remove_handle(sender.multi, sender.curl);
    if (r == CURLE_OK && status >= 200 && status < 300) {
        ring.report.exported += sender.n;
        sender.has_complained = false;
        sender.n = 0;
    } else {
        complain(r, status);
        if (is_temporary(r, status) && sender.attempts < ATTEMPTS && !is_last) {
            sender.again_ns = clock_now_ns() + ((int64_t)WAIT_MS << (sender.attempts - 1)) * MS;
            return;
        }
        ring.report.dropped += sender.n;
        sender.n = 0;
    }
    (void)send(0, &ring.report, sizeof ring.report, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void look_for_end(bool is_last) {
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(sender.multi, &left)))
        if (message->msg == CURLMSG_DONE)
            end_request(message->data.result, is_last);
}

/* ---- the loop ---- */

/* Until something is to be done by the clock. */
static int wait_ms(void) {
    int64_t now = clock_now_ns(), due = now + 60000 * MS;

    if (sender.n && !sender.again_ns)
        return 1000;
    if (sender.n)
        due = sender.again_ns;
    else if (ring.n >= BATCH)
        due = now;
    else if (ring.n)
        due = ring.first_ns + sender.batch_ms * MS;
    return (int)((MAX(due - now, 0) + MS - 1) / MS);
}

static void act(bool has_ended) {
    int64_t now = clock_now_ns();

    if (sender.n && sender.again_ns && now >= sender.again_ns)
        send_again();
    if (!sender.n && ring.n &&
        (ring.n >= BATCH || has_ended || now >= ring.first_ns + sender.batch_ms * MS))
        send_batch();
}

static void run(void) {
    struct curl_waitfd input = { .fd = 0, .events = CURL_WAIT_POLLIN };
    int64_t end_ns = 0;
    int n;

    while (!end_ns || ring.n || sender.n) {
        int64_t left = end_ns ? (end_ns - clock_now_ns()) / MS : INT32_MAX;

        if (left <= 0)
            return;
        if (end_ns && sender.again_ns)
            sender.again_ns = 1; /* its last attempt, at once */
        act(end_ns != 0);
        (void)curl_multi_perform(sender.multi, &n);
        look_for_end(end_ns != 0);
        if (end_ns && (sender.has_complained || (!ring.n && !sender.n)))
            return;
        input.revents = 0;
        (void)curl_multi_poll(
            sender.multi, &input, end_ns ? 0 : 1, (int)MIN((int64_t)wait_ms(), left), NULL);
        if (!end_ns && input.revents && !read_spans())
            end_ns = clock_now_ns() + END_MS * MS;
    }
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1) {
        fprintf(stderr, "rollbox-otlp: reads spans from standard input, and has no options\n");
        return 2;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    if (fcntl(0, F_SETFL, O_NONBLOCK) < 0 || curl_global_init(CURL_GLOBAL_DEFAULT) ||
        prepare() < 0) {
        fprintf(stderr, "rollbox-otlp: cannot start\n");
        return 1;
    }
    run();
    return 0;
}
