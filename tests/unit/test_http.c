/* SPDX-License-Identifier: Apache-2.0 */
#include "net/http_relay.h"

#include <stdio.h>

#include "base/cleanup.h"
#include "test.h"

#define GET "GET / HTTP/1.1\r\nHost: a.example\r\n"
#define POST "POST / HTTP/1.1\r\nHost: a.example\r\n"

/* Requests that some server reads differently from another, one a line. */
static const char *const refused_requests[] = {
    /* Two framings, or an unclear one. */
    POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
    POST "Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
    POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\n",
    POST "Content-Length: 5, 5\r\n\r\n",
    POST "Content-Length: +5\r\n\r\n",
    POST "Content-Length: -1\r\n\r\n",
    POST "Content-Length: 0x5\r\n\r\n",
    POST "Content-Length: 5 5\r\n\r\n",
    POST "Content-Length:\r\n\r\n",
    POST "Content-Length: 99999999999999999999\r\n\r\n",
    POST "Content-Length : 5\r\n\r\n",
    POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    POST "Transfer-Encoding: chunked, identity\r\n\r\n",
    POST "Transfer-Encoding: gzip, chunked\r\n\r\n",
    POST "Transfer-Encoding: xchunked\r\n\r\n",
    POST "Transfer-Encoding: \"chunked\"\r\n\r\n",
    POST "Transfer-Encoding:\vchunked\r\n\r\n",
    POST "Transfer-Encoding : chunked\r\n\r\n",
    "POST / HTTP/1.0\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n",
    /* Line ends and white space. */
    "GET / HTTP/1.1\nHost: a.example\n\n",
    "GET / HTTP/1.1\r\nHost: a.example\n\r\n",
    "GET / HTTP/1.1\r\nHost: a.example\r\nX: 1\nY: 2\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a.example\r\nX: a\rb\r\n\r\n",
    "GET / HTTP/1.1\rHost: a.example\r\n\r\n",
    "\r\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
    " GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "GET  / HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "GET / HTTP/1.1 \r\nHost: a.example\r\n\r\n",
    "GET\t/\tHTTP/1.1\r\nHost: a.example\r\n\r\n",
    "GET / a HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "GET / HTTP/1.1\r\n Host: a.example\r\n\r\n",
    GET "X: 1\r\n folded\r\n\r\n",
    GET "X: 1\r\n\tTransfer-Encoding: chunked\r\n\r\n",
    GET "X\r\n\r\n",
    GET ": 1\r\n\r\n",
    GET "X(y): 1\r\n\r\n",
    GET "X y: 1\r\n\r\n",
    /* Hosts. */
    "GET / HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.1\r\nHost:\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a.example\r\nhOST: a.example\r\n\r\n",
    "GET / HTTP/1.0\r\n\r\n",
    /* Targets. */
    "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "GET //b.example:80@x HTTP/1.1 HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "CONNECT / HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "GET * HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "GET a HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "GET  HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "GET /#x HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "GET /\x80 HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "GET /\x01 HTTP/1.1\r\nHost: a.example\r\n\r\n",
    /* Versions and methods. */
    "GET /\r\nHost: a.example\r\n\r\n",
    "GET / HTTP/2.0\r\nHost: a.example\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "GET / HTTP/1.2\r\nHost: a.example\r\n\r\n",
    "GET / HTTP/1.10\r\nHost: a.example\r\n\r\n",
    "GET / http/1.1\r\nHost: a.example\r\n\r\n",
    "G(T / HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "\x16\x03\x01\x02\n",
};

static ssize_t read_request(const char *text, struct http_head *ret) {
    const char *why = "";
    size_t scanned = 0;

    return http_read_request(text, strlen(text), &scanned, ret, &why);
}

TEST(smuggled_requests_are_refused) {
    struct http_head head;

    for (size_t i = 0; i < ARRAY_SIZE(refused_requests); i++)
        if (read_request(refused_requests[i], &head) != -EBADMSG)
            FAIL("request %zu is taken: %s", i, refused_requests[i]);
}

TEST(nul_in_a_head_is_refused) {
    static const char text[] = GET "X: a\0b\r\n\r\n";
    struct http_head head;
    const char *why = NULL;
    size_t scanned = 0;

    ASSERT_EQ(http_read_request(text, sizeof text - 1, &scanned, &head, &why), -EBADMSG);
    ASSERT_NOT_NULL(why);
}

TEST(request_heads_are_read) {
    static const char text[] =
        "POST /a/b?c=d HTTP/1.1\r\nhost: A.example:443\r\n"
        "Content-Length: 12\r\nX-Empty:\r\nConnection: Keep-Alive, TE\r\n\r\n";
    struct http_head head;

    ASSERT_EQ(read_request(text, &head), (ssize_t)sizeof text - 1);
    ASSERT_TRUE(http_text_is(head.method, "POST"));
    ASSERT_TRUE(http_text_is(head.target, "/a/b?c=d"));
    ASSERT_TRUE(http_host_is(head.host, "a.example", 443));
    ASSERT_EQ(head.n_headers, 4);
    ASSERT_EQ(head.headers[2].value.length, 0);
    ASSERT_EQ(head.framing, HTTP_LENGTH);
    ASSERT_EQ(head.length, 12);
    ASSERT_TRUE(head.is_persistent);
    ASSERT_EQ(read_request("OPTIONS * HTTP/1.0\r\nHost: a\r\n\r\n", &head), 31);
    ASSERT_FALSE(head.is_persistent);
    ASSERT_EQ(read_request("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", &head), 46);
    ASSERT_FALSE(head.is_persistent);
    ASSERT_EQ(read_request("GET / HTTP/1.1\r\nHost: a\r\n", &head), 0);
    ASSERT_EQ(read_request("", &head), 0);
}

TEST(heads_are_bounded) {
    auto_buf struct buf text = BUF_INIT;
    struct http_head head;

    buf_add_text(&text, GET);
    for (int i = 0; i < HTTP_MAX_HEADERS; i++)
        buf_printf(&text, "X-%d: 1\r\n", i);
    buf_add_text(&text, "\r\n");
    ASSERT_EQ(read_request(text.data, &head), -EBADMSG);
    text.length = 0;
    buf_add_text(&text, GET "X: ");
    while (text.length < HTTP_MAX_HEAD)
        buf_add_text(&text, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    ASSERT_EQ(read_request(text.data, &head), -EBADMSG);
}

TEST(host_has_its_own_port_or_none) {
    static const struct {
        const char *host;
        bool is;
    } cases[] = {
        { "a.example", true },
        { "A.EXAMPLE", true },
        { "a.example:80", true },
        { "a.example:080", true },
        { "a.example:81", false },
        { "a.example:", false },
        { "a.example:8x", false },
        { "a.example:4294967376", false },
        { "a.example.", false },
        { "a.example.b", false },
        { "b.a.example", false },
        { "x@a.example", false },
        { "a.example@b", false },
        { "a.exampl", false },
        { "a.example, b.example", false },
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct http_text host = { cases[i].host, strlen(cases[i].host) };

        if (http_host_is(host, "a.example", 80) != cases[i].is)
            FAIL("%s", cases[i].host);
    }
}

TEST(paths_with_two_readings_match_no_rule) {
    static const char *const paths[] = { "", "*", "a", "//", "/a//b", "/./a", "/a/.", "/..",
        "/a/..", "/a/../b", "/%2e%2e/b", "/a/%2E./b", "/a%2fb", "/a%2Fb", "/a%5cb", "/a\\b",
        "/a%00", "/a%0a", "/a%252fb", "/a%", "/a%4", "/a%zz", "/a%7f", "/..;/b", "/.;x/b",
        "/a/..;x=1/b", "/;/a" };
    char *path = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(paths); i++)
        if (http_path_normal((struct http_text){ paths[i], strlen(paths[i]) }, &path) != -EINVAL)
            FAIL("'%s' has the normal form '%s'", paths[i], path);
}

TEST(paths_have_a_normal_form) {
    static const char *const paths[][2] = {
        { "/", "/" },
        { "/?a=/../b", "/" },
        { "/a/b/", "/a/b/" },
        { "/%61/%7eb", "/a/~b" },
        { "/a%20b%c3%a4", "/a%20b%C3%A4" },
        { "/...", "/..." },
        { "/.well-known/x", "/.well-known/x" },
        { "/a;b=c/d", "/a;b=c/d" },
        { "/a%3fb?c", "/a%3Fb" },
        { "/@scope/x:y", "/@scope/x:y" },
    };

    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        auto_free char *path = NULL;

        ASSERT_OK(http_path_normal((struct http_text){ paths[i][0], strlen(paths[i][0]) }, &path));
        ASSERT_STR_EQ(path, paths[i][1]);
    }
}

TEST(path_patterns_match) {
    ASSERT_TRUE(http_path_matches("/a/*", "/a/b/c"));
    ASSERT_TRUE(http_path_matches("*", "/"));
    ASSERT_TRUE(http_path_matches("/a*c", "/abcbc"));
    ASSERT_TRUE(http_path_matches("/a", "/a"));
    ASSERT_TRUE(http_path_matches("/*/x", "/x/y/x"));
    ASSERT_FALSE(http_path_matches("/a", "/a/"));
    ASSERT_FALSE(http_path_matches("/a/*", "/a"));
    ASSERT_FALSE(http_path_matches("/*/x", "/x/y"));
    ASSERT_FALSE(http_path_matches("", "/"));
}

static void take_all(const char *text, const struct http_head *head, bool is_good) {
    for (size_t step = 1; step <= strlen(text) + 1; step++) {
        struct http_body body;
        size_t at = 0, length = strlen(text);
        ssize_t n = 0;

        http_body_start(&body, head);
        while (at < length && !body.is_done && n >= 0) {
            n = http_body_take(&body, text + at, MIN(step, length - at), NULL);
            at += n > 0 ? (size_t)n : 0;
        }
        if ((n >= 0 && body.is_done && at == length) != is_good)
            FAIL("in steps of %zu: %s", step, text);
    }
}

TEST(chunks_are_strict) {
    static const char *const good[] = { "0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n",
        "A\r\n0123456789\r\n00a\r\n0123456789\r\n000\r\n\r\n" };
    static const char *const bad[] = { "0\n\r\n", "0\r\n\n", "5;x=1\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n", "5\r\nhello0\r\n\r\n", "5\r\nhelloxx0\r\n\r\n",
        "0x5\r\nhello\r\n", "-1\r\n", "\r\n", "g\r\n", "10000000000000000\r\n",
        "5\nhello\r\n0\r\n\r\n", "5\r\nhello\n0\r\n\r\n", "5\r\nhello\r\n0\r\nX: 1\r\n\r\n",
        "5\r\nhel" };
    struct http_head head = { .framing = HTTP_CHUNKED };

    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        take_all(good[i], &head, true);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        take_all(bad[i], &head, false);
    head.status = 200;
    take_all("5;x=1\r\nhello\r\n0 \r\nX-Sum: 1\r\nY:\r\n\r\n", &head, true);
    take_all("0\r\n X: 1\r\n\r\n", &head, false);
    take_all("0\r\nX 1\r\n\r\n", &head, false);
}

TEST(endless_chunk_framing_is_refused) {
    auto_buf struct buf text = BUF_INIT;
    struct http_head head = { .framing = HTTP_CHUNKED, .status = 200 };

    buf_add_text(&text, "1;");
    for (int i = 0; i < 600; i++)
        buf_add(&text, "x", 1);
    take_all(text.data, &head, false);
    text.length = 0;
    for (int i = 0; i < 600; i++)
        buf_add(&text, "0", 1);
    take_all(text.data, &head, false);
}

static const char *answer_framing(
    const char *text, struct http_asked asked, enum http_framing *ret) {
    struct http_head head;
    const char *why = NULL;
    size_t scanned = 0;

    if (http_read_answer(text, strlen(text), &scanned, asked, &head, &why) > 0)
        *ret = head.framing;
    return why;
}

TEST(framing_of_answers) {
    static const struct {
        const char *text;
        struct http_asked asked;
        enum http_framing framing;
    } cases[] = {
        { "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", { 0 }, HTTP_LENGTH },
        { "HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n", { 0 }, HTTP_CHUNKED },
        { "HTTP/1.1 200 \r\n\r\n", { 0 }, HTTP_UNTIL_CLOSE },
        { "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", { .is_head = true }, HTTP_NO_BODY },
        { "HTTP/1.1 204 No\r\n\r\n", { 0 }, HTTP_NO_BODY },
        { "HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n", { 0 }, HTTP_NO_BODY },
        { "HTTP/1.1 100 Continue\r\n\r\n", { 0 }, HTTP_NO_BODY },
        { "HTTP/1.1 101 S\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n\r\n",
            { .is_websocket = true }, HTTP_TUNNEL },
    };
    static const char *const bad[] = { "HTTP/1.1 101 S\r\nUpgrade: websocket\r\n\r\n",
        "HTTP/1.1 101 S\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nX: 1\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "ICY 200 OK\r\n\r\n", "HTTP/1.1 099 OK\r\n\r\n", "\r\n\r\n" };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        enum http_framing framing = HTTP_NO_BODY;

        ASSERT_NULL(answer_framing(cases[i].text, cases[i].asked, &framing));
        ASSERT_EQ(framing, cases[i].framing);
    }
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        enum http_framing framing;

        if (answer_framing(bad[i], (struct http_asked){ 0 }, &framing) == NULL)
            FAIL("%s", bad[i]);
    }
}

struct relayed {
    struct http_relay relay;
    struct buf up, down;
    unsigned n_answered, refused;
    char why[40];
};

static struct http_header token = { { "Authorization", 13 }, { "Bearer s3cret", 13 } };

static void decide(
    struct http_relay *relay, const struct http_head *head, struct http_decision *decision) {
    (void)relay;
    if (head->target.length >= 7 && memcmp(head->target.text, "/secret", 7) == 0) {
        decision->set = &token;
        decision->n_set = 1;
    } else if (http_text_is(head->method, "DELETE"))
        *decision = (struct http_decision){ 403, "method_path", "rollbox: no", NULL, 0 };
}

static void refused(struct http_relay *relay, unsigned status, const char *why, const char *text) {
    struct relayed *all = (struct relayed *)relay;

    (void)text;
    all->refused = status;
    snprintf(all->why, sizeof all->why, "%s", why);
}

static void answered(struct http_relay *relay, unsigned status, uint64_t up, uint64_t down) {
    (void)status;
    (void)up;
    (void)down;
    ((struct relayed *)relay)->n_answered++;
}

static const struct http_relay_calls calls = { decide, refused, answered, NULL };

static void finish(struct relayed *all) {
    buf_done(&all->up);
    buf_done(&all->down);
}
#define auto_relayed __attribute__((cleanup(finish)))

static void start(struct relayed *all) {
    finish(all);
    memset(all, 0, sizeof *all);
    http_relay_init(&all->relay, &calls, "a.example", 80);
}

static size_t from_guest(struct relayed *all, const char *text) {
    return http_relay_guest(&all->relay, text, strlen(text), &all->up, &all->down);
}

static size_t from_upstream(struct relayed *all, const char *text) {
    return http_relay_upstream(&all->relay, text, strlen(text), &all->down);
}

TEST(relay_passes_one_exchange_after_the_other) {
    auto_relayed struct relayed all = { 0 };

    start(&all);
    ASSERT_EQ(from_guest(&all, GET "\r\n" GET "\r\n"), strlen(GET "\r\n"));
    ASSERT_STR_EQ(all.up.data, GET "\r\n");
    from_upstream(
        &all, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    ASSERT_EQ(all.n_answered, 1);
    ASSERT_EQ(all.relay.state, HTTP_RELAY_IDLE);
    from_guest(&all, POST "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n");
    from_guest(&all, "0\r\n\r\n");
    from_upstream(&all, "HTTP/1.0 200 OK\r\n\r\nuntil");
    http_relay_upstream_eof(&all.relay, &all.down);
    ASSERT_EQ(all.n_answered, 2);
    ASSERT_EQ(all.relay.state, HTTP_RELAY_ENDED);
    ASSERT_STR_CONTAINS(all.down.data, "until");
}

TEST(relay_writes_headers_about_the_connection_itself) {
    auto_relayed struct relayed all = { 0 };

    start(&all);
    from_guest(&all, GET "Connection: close, X-A, Authorization\r\nKeep-Alive: 5\r\nX-A: 1\r\n"
                         "Upgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n");
    ASSERT_STR_EQ(all.up.data, GET "X-A: 1\r\nConnection: close\r\n\r\n");
}

TEST(relay_replaces_headers_of_the_guest) {
    auto_relayed struct relayed all = { 0 };

    start(&all);
    from_guest(&all, "GET /secret HTTP/1.1\r\nHost: a.example\r\nauthorization: mine\r\n"
                     "AUTHORIZATION: mine\r\nX: {token}\r\n\r\n");
    ASSERT_STR_EQ(all.up.data, "GET /secret HTTP/1.1\r\nHost: a.example\r\nX: {token}\r\n"
                               "Authorization: Bearer s3cret\r\n\r\n");
}

TEST(relay_refuses_and_ends) {
    static const struct {
        const char *request, *why;
    } cases[] = {
        { "DELETE / HTTP/1.1\r\nHost: a.example\r\n\r\n", "method_path" },
        { "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n", "host_other" },
        { "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", "bad_request" },
        { POST "Transfer-Encoding: chunked\r\n\r\n5;x\r\nhello\r\n", "bad_request" },
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        auto_relayed struct relayed all = { 0 };

        start(&all);
        from_guest(&all, GET "\r\n");
        from_upstream(&all, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        all.up.length = all.down.length = 0;
        from_guest(&all, cases[i].request);
        ASSERT_STR_EQ(all.why, cases[i].why);
        ASSERT_EQ(all.relay.state, HTTP_RELAY_ENDED);
        ASSERT_STR_CONTAINS(all.down.data, "Connection: close\r\n");
        ASSERT_EQ(from_guest(&all, GET "\r\n"), strlen(GET "\r\n"));
        ASSERT_EQ(all.refused, strtoul(all.down.data + 9, NULL, 10));
    }
}

TEST(relay_tunnels_web_sockets_alone) {
    auto_relayed struct relayed all = { 0 };

    start(&all);
    from_guest(&all, GET "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    ASSERT_STR_CONTAINS(all.up.data, "Connection: Upgrade\r\n");
    ASSERT_EQ(from_guest(&all, "early"), 0);
    from_upstream(&all, "HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nframe");
    ASSERT_EQ(all.relay.state, HTTP_RELAY_TUNNEL);
    ASSERT_EQ(from_guest(&all, "\x81\x01x"), 3);
    http_relay_upstream_eof(&all.relay, &all.down);
    ASSERT_EQ(all.relay.state, HTTP_RELAY_ENDED);
    start(&all);
    from_guest(&all, GET "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n");
    from_upstream(&all, "HTTP/1.1 101 S\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n");
    ASSERT_STR_EQ(all.why, "upstream_http");
}

TEST(relay_does_not_pass_half_answers_as_complete) {
    auto_relayed struct relayed all = { 0 };

    start(&all);
    from_guest(&all, GET "\r\n");
    from_upstream(&all, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhal");
    http_relay_upstream_eof(&all.relay, &all.down);
    ASSERT_EQ(all.relay.state, HTTP_RELAY_CUT);
    start(&all);
    from_guest(&all, GET "\r\n");
    http_relay_upstream_eof(&all.relay, &all.down);
    ASSERT_STR_EQ(all.why, "upstream_closed");
    ASSERT_EQ(all.refused, 502);
}

TEST(relay_ends_on_an_answer_without_a_request) {
    auto_relayed struct relayed all = { 0 };

    start(&all);
    from_upstream(&all, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    ASSERT_EQ(all.relay.state, HTTP_RELAY_ENDED);
    ASSERT_EQ(all.down.length, 0);
}
