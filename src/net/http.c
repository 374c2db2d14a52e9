/* SPDX-License-Identifier: Apache-2.0 */
#include "net/http.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* RFC 9110, 5.6.2 */
static bool is_token_character(char c) {
    return is_letter(c) || is_digit(c) || (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool is_token(struct http_text text) {
    for (size_t i = 0; i < text.length; i++)
        if (!is_token_character(text.text[i]))
            return false;
    return text.length > 0;
}

/* RFC 9110, 5.5, with obs-text: clients send UTF-8 there. */
static bool is_value(struct http_text text) {
    for (size_t i = 0; i < text.length; i++) {
        unsigned char c = (unsigned char)text.text[i];

        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

static int hex_value(char c) {
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool http_text_is(struct http_text text, const char *want) {
    return strlen(want) == text.length && strncasecmp(text.text, want, text.length) == 0;
}

const struct http_header *http_find(const struct http_head *head, const char *name) {
    const struct http_header *found = NULL;

    for (size_t i = 0; i < head->n_headers; i++) {
        if (!http_text_is(head->headers[i].name, name))
            continue;
        if (found != NULL)
            return NULL;
        found = &head->headers[i];
    }
    return found;
}

static int refuse(const char **ret_why, const char *why) {
    *ret_why = why;
    return -EBADMSG;
}

/* Returns the length of the head with its empty line, 0 or -EBADMSG. */
static ssize_t find_end(const char *data, size_t length, size_t *scanned, const char **ret_why) {
    size_t end = MIN(length, (size_t)HTTP_MAX_HEAD);

    while (*scanned < end) {
        const char *feed = memchr(data + *scanned, '\n', end - *scanned);
        size_t at;

        if (feed == NULL) {
            *scanned = end;
            break;
        }
        at = (size_t)(feed - data);
        if (at == 0 || data[at - 1] != '\r')
            return refuse(ret_why, "a line ends without a carriage return");
        if (at == 1)
            return refuse(ret_why, "it begins with an empty line");
        if (at >= 3 && data[at - 2] == '\n')
            return (ssize_t)at + 1;
        *scanned = at + 1;
    }
    return length >= HTTP_MAX_HEAD ? refuse(ret_why, "its headers are too long") : 0;
}

/* The text up to the next CR LF, which find_end has seen. */
static struct http_text take_line(const char **at) {
    const char *end = rawmemchr(*at, '\n');
    struct http_text line = { *at, (size_t)(end - *at) - 1 };

    *at = end + 1;
    return line;
}

static struct http_text trim(struct http_text text) {
    while (text.length > 0 && (*text.text == ' ' || *text.text == '\t')) {
        text.text++;
        text.length--;
    }
    while (text.length > 0 &&
           (text.text[text.length - 1] == ' ' || text.text[text.length - 1] == '\t'))
        text.length--;
    return text;
}

static int read_headers(
    const char *at, const char *end, struct http_head *head, const char **ret_why) {
    while (at < end - 2) {
        struct http_text line = take_line(&at);
        const char *colon = memchr(line.text, ':', line.length);
        struct http_header *header;

        if (*line.text == ' ' || *line.text == '\t')
            return refuse(ret_why, "a header is continued on another line");
        if (colon == NULL)
            return refuse(ret_why, "a header has no colon");
        if (head->n_headers == HTTP_MAX_HEADERS)
            return refuse(ret_why, "it has too many headers");
        header = &head->headers[head->n_headers++];
        header->name = (struct http_text){ line.text, (size_t)(colon - line.text) };
        header->value =
            trim((struct http_text){ colon + 1, line.length - header->name.length - 1 });
        if (!is_token(header->name))
            return refuse(ret_why, "the name of a header has a character that is not allowed");
        if (!is_value(header->value))
            return refuse(ret_why, "the value of a header has a control character");
    }
    return 0;
}

/* Is the token one of the comma-separated list? */
static bool has_token(struct http_text list, const char *token) {
    const char *at = list.text, *end = list.text + list.length;

    while (at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma != NULL ? comma : end;

        if (http_text_is(trim((struct http_text){ at, (size_t)(stop - at) }), token))
            return true;
        at = stop + 1;
    }
    return false;
}

static int read_length(struct http_text text, uint64_t *ret) {
    uint64_t value = 0;

    if (text.length == 0 || text.length > 18)
        return -EBADMSG;
    for (size_t i = 0; i < text.length; i++) {
        if (!is_digit(text.text[i]))
            return -EBADMSG;
        value = value * 10 + (uint64_t)(text.text[i] - '0');
    }
    *ret = value;
    return 0;
}

/* The headers about the connection and the body. */
static int read_framing(struct http_head *head, const char **ret_why) {
    size_t n_lengths = 0, n_codings = 0, n_upgrades = 0;
    bool closes = false, keeps = false, upgrades = false, is_websocket = false;

    for (size_t i = 0; i < head->n_headers; i++) {
        const struct http_header *header = &head->headers[i];

        if (http_text_is(header->name, "Content-Length")) {
            if (n_lengths++ > 0 || read_length(header->value, &head->length) < 0)
                return refuse(ret_why, "its Content-Length is not one number");
        } else if (http_text_is(header->name, "Transfer-Encoding")) {
            if (n_codings++ > 0 || !http_text_is(header->value, "chunked"))
                return refuse(ret_why, "its Transfer-Encoding is not 'chunked'");
        } else if (http_text_is(header->name, "Connection")) {
            closes |= has_token(header->value, "close");
            keeps |= has_token(header->value, "keep-alive");
            upgrades |= has_token(header->value, "upgrade");
        } else if (http_text_is(header->name, "Upgrade")) {
            is_websocket = n_upgrades++ == 0 && http_text_is(header->value, "websocket");
        }
    }
    if (n_lengths + n_codings > 1)
        return refuse(ret_why, "it has a Content-Length and a Transfer-Encoding");
    if (n_codings > 0 && head->minor == 0)
        return refuse(ret_why, "it is HTTP/1.0 and has a Transfer-Encoding");
    head->framing = HTTP_NO_BODY;
    if (n_codings > 0)
        head->framing = HTTP_CHUNKED;
    else if (n_lengths > 0)
        head->framing = HTTP_LENGTH;
    head->is_persistent = !closes && (head->minor == 1 || keeps);
    head->has_upgrade = n_upgrades > 0;
    head->is_websocket = is_websocket && upgrades && head->minor == 1;
    return 0;
}

static int read_version(struct http_text text, struct http_head *head, const char **ret_why) {
    if (text.length != 8 || memcmp(text.text, "HTTP/1.", 7) != 0 ||
        (text.text[7] != '0' && text.text[7] != '1'))
        return refuse(ret_why, "it is not HTTP/1.1 or HTTP/1.0");
    head->minor = text.text[7] == '1';
    return 0;
}

static int read_target(struct http_head *head, const char **ret_why) {
    struct http_text target = head->target;

    if (target.length > HTTP_MAX_TARGET)
        return refuse(ret_why, "its target is too long");
    if (http_text_is(head->method, "CONNECT"))
        return refuse(ret_why, "the gateway is not a proxy: CONNECT is refused");
    if (target.length == 1 && *target.text == '*')
        return http_text_is(head->method, "OPTIONS") ? 0 : refuse(ret_why, "its target is '*'");
    if (target.length == 0 || *target.text != '/')
        return refuse(ret_why, "its target does not begin with '/'");
    for (size_t i = 0; i < target.length; i++)
        if (target.text[i] <= ' ' || target.text[i] > '~' || target.text[i] == '#')
            return refuse(ret_why, "its target has a character that is not allowed");
    return 0;
}

static int read_request_line(struct http_text line, struct http_head *head, const char **ret_why) {
    const char *first = memchr(line.text, ' ', line.length), *last;
    int result;

    if (first == NULL)
        return refuse(ret_why, "its first line is not a request");
    last = memrchr(line.text, ' ', line.length);
    head->method = (struct http_text){ line.text, (size_t)(first - line.text) };
    if (last == first || !is_token(head->method) || head->method.length > 32)
        return refuse(ret_why, "its first line is not a request");
    head->target = (struct http_text){ first + 1, (size_t)(last - first) - 1 };
    result =
        read_version((struct http_text){ last + 1, line.length - (size_t)(last + 1 - line.text) },
            head, ret_why);
    return result < 0 ? result : read_target(head, ret_why);
}

static int read_host(struct http_head *head, const char **ret_why) {
    const struct http_header *host = http_find(head, "Host");

    if (host == NULL || host->value.length == 0)
        return refuse(ret_why, "it has not exactly one Host");
    head->host = host->value;
    return 0;
}

static int parse_request(
    const char *data, size_t length, struct http_head *head, const char **ret_why) {
    const char *at = data;
    int result = read_request_line(take_line(&at), head, ret_why);

    if (result == 0)
        result = read_headers(at, data + length, head, ret_why);
    if (result == 0)
        result = read_framing(head, ret_why);
    return result < 0 ? result : read_host(head, ret_why);
}

/* A NUL would end what take_line looks at. */
static ssize_t complete_head(
    const char *data, size_t length, size_t *scanned, struct http_head *ret, const char **ret_why) {
    ssize_t end = find_end(data, length, scanned, ret_why);

    if (end > 0 && memchr(data, 0, (size_t)end) != NULL)
        return refuse(ret_why, "its head has a NUL character");
    if (end > 0) {
        ret->method = ret->target = ret->host = (struct http_text){ data, 0 };
        ret->status = 0;
        ret->length = 0;
        ret->n_headers = 0;
    }
    return end;
}

ssize_t http_read_request(
    const char *data, size_t length, size_t *scanned, struct http_head *ret, const char **ret_why) {
    ssize_t end = complete_head(data, length, scanned, ret, ret_why);
    int result = end > 0 ? parse_request(data, (size_t)end, ret, ret_why) : 0;

    return result < 0 ? result : end;
}

static int read_status_line(struct http_text line, struct http_head *head, const char **ret_why) {
    const char *digits = line.text + 9;
    struct http_text reason = { line.text + 12, line.length - 12 };

    if (line.length < 12 || line.text[8] != ' ')
        return refuse(ret_why, "its first line is not a status line");
    if (read_version((struct http_text){ line.text, 8 }, head, ret_why) < 0)
        return -EBADMSG;
    if (!is_digit(digits[0]) || !is_digit(digits[1]) || !is_digit(digits[2]) || digits[0] == '0')
        return refuse(ret_why, "its first line is not a status line");
    if (reason.length > 0 && (*reason.text != ' ' || !is_value(reason)))
        return refuse(ret_why, "its first line is not a status line");
    head->status = (unsigned)((digits[0] - '0') * 100 + (digits[1] - '0') * 10 + digits[2] - '0');
    return 0;
}

/* RFC 9112, 6.3 */
static int answer_framing(struct http_asked asked, struct http_head *head, const char **ret_why) {
    if (head->status == 101) {
        if (!asked.is_websocket || !head->is_websocket)
            return refuse(ret_why, "it switches to a protocol that nobody asked for");
        head->framing = HTTP_TUNNEL;
    } else if (head->status < 200 || head->status == 204 || head->status == 304 || asked.is_head)
        head->framing = HTTP_NO_BODY;
    else if (head->framing == HTTP_NO_BODY)
        head->framing = HTTP_UNTIL_CLOSE;
    return 0;
}

ssize_t http_read_answer(const char *data, size_t length, size_t *scanned, struct http_asked asked,
    struct http_head *ret, const char **ret_why) {
    ssize_t end = complete_head(data, length, scanned, ret, ret_why);
    const char *at = data;
    int result;

    if (end <= 0)
        return end;
    result = read_status_line(take_line(&at), ret, ret_why);
    if (result == 0)
        result = read_headers(at, data + end, ret, ret_why);
    if (result == 0)
        result = read_framing(ret, ret_why);
    if (result == 0)
        result = answer_framing(asked, ret, ret_why);
    return result < 0 ? result : end;
}

void http_body_start(struct http_body *body, const struct http_head *head) {
    *body = (struct http_body){
        .framing = head->framing,
        .state = HTTP_SIZE,
        .is_answer = head->status != 0,
        .is_done =
            head->framing == HTTP_NO_BODY || (head->framing == HTTP_LENGTH && head->length == 0),
        .left = head->framing == HTTP_LENGTH ? head->length : 0,
    };
}

static int take_size(struct http_body *body, char c) {
    int digit = hex_value(c);

    if (digit >= 0) {
        if (body->left >> 56 != 0)
            return -EBADMSG;
        body->left = body->left << 4 | (uint64_t)digit;
        body->has_digits = true;
        return 0;
    }
    if (!body->has_digits)
        return -EBADMSG;
    if (c == '\r')
        body->state = HTTP_SIZE_LF;
    else if (body->is_answer && (c == ';' || c == ' ' || c == '\t'))
        body->state = HTTP_EXTENSION;
    else
        return -EBADMSG;
    return 0;
}

static int expect(struct http_body *body, char c, char want, int next) {
    if (c != want)
        return -EBADMSG;
    body->state = (__typeof__(body->state))next;
    return 0;
}

/* Trailers of requests are refused: some servers merge them with the headers, behind the back of
 * the rules. */
static int take_trailer(struct http_body *body, char c) {
    switch (body->state) {
    case HTTP_TRAILER:
        if (c == '\r')
            body->state = HTTP_END_LF;
        else if (is_token_character(c) && body->is_answer)
            body->state = HTTP_TRAILER_NAME;
        else
            return -EBADMSG;
        return 0;
    case HTTP_TRAILER_NAME:
        if (c == ':')
            body->state = HTTP_TRAILER_VALUE;
        else if (!is_token_character(c))
            return -EBADMSG;
        return 0;
    case HTTP_TRAILER_VALUE:
        if (c == '\r')
            body->state = HTTP_TRAILER_LF;
        else if (!is_value((struct http_text){ &c, 1 }))
            return -EBADMSG;
        return 0;
    case HTTP_TRAILER_LF:
        return expect(body, c, '\n', HTTP_TRAILER);
    case HTTP_END_LF:
        body->is_done = c == '\n';
        return body->is_done ? 0 : -EBADMSG;
    case HTTP_SIZE:
    case HTTP_EXTENSION:
    case HTTP_SIZE_LF:
    case HTTP_DATA:
    case HTTP_DATA_CR:
    case HTTP_DATA_LF:
        break;
    }
    return -EBADMSG;
}

/* One byte of framing. */
static int take_framing(struct http_body *body, char c) {
    if (++body->n_framing > (body->state >= HTTP_TRAILER ? HTTP_MAX_TRAILERS : 256))
        return -EBADMSG;
    switch (body->state) {
    case HTTP_SIZE:
        return take_size(body, c);
    case HTTP_EXTENSION:
        if (c == '\r')
            body->state = HTTP_SIZE_LF;
        return is_value((struct http_text){ &c, 1 }) || c == '\r' ? 0 : -EBADMSG;
    case HTTP_SIZE_LF:
        body->n_framing = 0;
        return expect(body, c, '\n', body->left > 0 ? HTTP_DATA : HTTP_TRAILER);
    case HTTP_DATA_CR:
        return expect(body, c, '\r', HTTP_DATA_LF);
    case HTTP_DATA_LF:
        body->has_digits = false;
        body->n_framing = 0;
        return expect(body, c, '\n', HTTP_SIZE);
    case HTTP_DATA:
    case HTTP_TRAILER:
    case HTTP_TRAILER_NAME:
    case HTTP_TRAILER_VALUE:
    case HTTP_TRAILER_LF:
    case HTTP_END_LF:
        break;
    }
    return take_trailer(body, c);
}

static size_t take_data(
    struct http_body *body, const char *data, size_t length, struct http_text *ret_piece) {
    size_t n = body->framing == HTTP_UNTIL_CLOSE || body->framing == HTTP_TUNNEL
                   ? length
                   : (size_t)MIN((uint64_t)length, body->left);

    *ret_piece = (struct http_text){ data, n };
    if (body->framing == HTTP_LENGTH || body->framing == HTTP_CHUNKED)
        body->left -= n;
    if (body->framing == HTTP_LENGTH)
        body->is_done = body->left == 0;
    else if (body->framing == HTTP_CHUNKED && body->left == 0)
        body->state = HTTP_DATA_CR;
    return n;
}

ssize_t http_body_take(
    struct http_body *body, const char *data, size_t length, struct http_text *ret_piece) {
    struct http_text piece = { data, 0 };
    size_t taken = 0;

    while (!body->is_done && taken < length) {
        if (body->framing != HTTP_CHUNKED || body->state == HTTP_DATA) {
            if (piece.length > 0 && ret_piece != NULL)
                break;
            taken += take_data(body, data + taken, length - taken, &piece);
            continue;
        }
        if (take_framing(body, data[taken++]) < 0)
            return -EBADMSG;
    }
    if (ret_piece != NULL)
        *ret_piece = piece;
    return (ssize_t)taken;
}

int http_body_eof(struct http_body *body) {
    if (body->framing == HTTP_UNTIL_CLOSE || body->framing == HTTP_TUNNEL)
        body->is_done = true;
    return body->is_done ? 0 : -EBADMSG;
}

bool http_host_is(struct http_text host, const char *name, uint16_t port) {
    size_t length = strlen(name);
    uint32_t number = 0;

    if (host.length < length || strncasecmp(host.text, name, length) != 0)
        return false;
    if (host.length == length)
        return true;
    if (host.text[length] != ':' || host.length == length + 1 || host.length > length + 6)
        return false;
    for (size_t i = length + 1; i < host.length; i++) {
        if (!is_digit(host.text[i]))
            return false;
        number = number * 10 + (uint32_t)(host.text[i] - '0');
    }
    return number == port;
}

/* Appends the escaped character. Returns -EINVAL for those that change the path's structure. */
static int add_escaped(char **to, const char *at, const char *end) {
    static const char digits[] = "0123456789ABCDEF";
    int high, low;
    char c;

    if (end - at < 3)
        return -EINVAL;
    high = hex_value(at[1]);
    low = hex_value(at[2]);
    if (high < 0 || low < 0)
        return -EINVAL;
    c = (char)(high << 4 | low);
    if ((c >= 0 && c < ' ') || c == 0x7f || strchr("./\\%", c) != NULL)
        return -EINVAL;
    if (is_letter(c) || is_digit(c) || strchr("-_~", c) != NULL) {
        *(*to)++ = c;
        return 0;
    }
    *(*to)++ = '%';
    *(*to)++ = digits[high];
    *(*to)++ = digits[low];
    return 0;
}

/* Are all segments names? Some servers cut a segment at ';' before they look for dots. */
static bool segments_are_names(const char *path) {
    while (*path == '/') {
        size_t length = strcspn(++path, "/"), name = strcspn(path, "/;");

        if ((length == 0 || name == 0) && path[length] != 0)
            return false;
        if ((name == 1 && *path == '.') || (name == 2 && path[0] == '.' && path[1] == '.'))
            return false;
        path += length;
    }
    return true;
}

int http_path_normal(struct http_text target, char **ret) {
    const char *query = memchr(target.text, '?', target.length);
    const char *at = target.text, *end = query != NULL ? query : target.text + target.length;
    auto_free char *path = malloc((size_t)(end - at) + 1);
    char *to = path;

    if (path == NULL)
        return -ENOMEM;
    if (at == end || *at != '/')
        return -EINVAL;
    while (at < end) {
        if (*at == '%') {
            if (add_escaped(&to, at, end) < 0)
                return -EINVAL;
            at += 3;
        } else if (*at == '\\' || *at <= ' ' || *at > '~')
            return -EINVAL;
        else
            *to++ = *at++;
    }
    *to = 0;
    if (!segments_are_names(path))
        return -EINVAL;
    *ret = TAKE_PTR(path);
    return 0;
}

/* Goes back to the last '*' only, so that the time is bounded by the product of both lengths. */
bool http_path_matches(const char *pattern, const char *path) {
    const char *star = NULL, *retry = NULL;

    while (*path != 0) {
        if (*pattern == '*') {
            star = ++pattern;
            retry = path;
        } else if (*pattern == *path) {
            pattern++;
            path++;
        } else if (star != NULL) {
            pattern = star;
            path = ++retry;
        } else
            return false;
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == 0;
}

const char *http_status_text(unsigned status) {
    switch (status) {
    case 400:
        return "Bad Request";
    case 403:
        return "Forbidden";
    case 429:
        return "Too Many Requests";
    case 502:
        return "Bad Gateway";
    case 503:
        return "Service Unavailable";
    case 504:
        return "Gateway Timeout";
    default:
        return "Error";
    }
}

void http_add_refusal(
    struct buf *to, unsigned status, const char *why, const char *text, bool is_head) {
    buf_printf(to,
        "HTTP/1.1 %u %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %zu\r\n"
        "Rollbox-Refused: %s\r\nConnection: close\r\n\r\n",
        status, http_status_text(status), strlen(text) + 1, why);
    if (!is_head)
        buf_printf(to, "%s\n", text);
}
