/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox-http: one HTTP request of the command line, by libcurl. A program of its own, so that the
 * rollbox command stays static and starts fast, and TLS gets its updates with libcurl.
 *
 *   rollbox-http [--header TEXT]... METHOD URL
 *
 * The URL is http://, https://, or unix:PATH with "#" and the path of the request after it. The
 * body is standard input. TRACEPARENT of the environment becomes the header traceparent. Standard
 * output gets a line with the status and the type of the answer, and the answer's body as it
 * arrives. Files are named by the environment: ROLLBOX_TOKEN_FILE, ROLLBOX_CA, ROLLBOX_CLIENT_CERT
 * and ROLLBOX_CLIENT_KEY. Exit status: 0 after a complete answer; else 1 with a line on standard
 * error.
 *
 *   rollbox-http mcp URL
 *
 * is the other half of `rollbox mcp`: see mcp.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "http_client/request.h"

#define TOKEN_MAX ((size_t)4096)
#define CONNECT_S 30L

struct answer {
    CURL *curl;
    bool has_begun;
};

int request_fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

static size_t take_body(char *data, size_t size, size_t n, void *userdata) {
    struct answer *answer = userdata;
    long status = 0;
    char *type = NULL;

    if (!answer->has_begun) {
        answer->has_begun = true;
        curl_easy_getinfo(answer->curl, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_getinfo(answer->curl, CURLINFO_CONTENT_TYPE, &type);
        printf("%ld %s\n", status, type ? type : "");
    }
    size_t done = fwrite(data, size, n, stdout);
    return fflush(stdout) ? 0 : done;
}

bool request_add_header(struct curl_slist **headers, const char *text) {
    struct curl_slist *longer = curl_slist_append(*headers, text);

    if (longer)
        *headers = longer;
    return longer != NULL;
}

/* The token's line of the file, as a header. */
static int add_token(struct curl_slist **headers) {
    const char *path = getenv("ROLLBOX_TOKEN_FILE");
    auto_buf struct buf text = BUF_INIT, header = BUF_INIT;

    if (!path || !*path)
        return 0;
    int r = fd_read_file(path, TOKEN_MAX, &text);
    if (r < 0)
        return request_fail(path, strerror(-r));
    size_t length = strcspn(text.data ? text.data : "", "\r\n");
    if (!length)
        return request_fail(path, "the file of the token is empty");
    buf_printf(&header, "Authorization: Bearer %.*s", (int)length, text.data);
    bool added = !buf_failed(&header) && request_add_header(headers, header.data);
    explicit_bzero(text.data, text.length);
    if (header.data)
        explicit_bzero(header.data, header.length);
    return added ? 0 : request_fail(path, "out of memory");
}

/* The span to which the request belongs. */
static bool add_parent(struct curl_slist **headers) {
    const char *parent = getenv("TRACEPARENT");
    auto_buf struct buf header = BUF_INIT;

    if (!parent || !*parent || parent[strspn(parent, "0123456789abcdef-")])
        return true;
    buf_printf(&header, "traceparent: %s", parent);
    return !buf_failed(&header) && request_add_header(headers, header.data);
}

static void set_files(CURL *curl) {
    const char *ca = getenv("ROLLBOX_CA"), *certificate = getenv("ROLLBOX_CLIENT_CERT");
    const char *key = getenv("ROLLBOX_CLIENT_KEY");

    if (ca && *ca)
        curl_easy_setopt(curl, CURLOPT_CAINFO, ca);
    if (certificate && *certificate)
        curl_easy_setopt(curl, CURLOPT_SSLCERT, certificate);
    if (key && *key)
        curl_easy_setopt(curl, CURLOPT_SSLKEY, key);
}

static int set_url(CURL *curl, char *url) {
    auto_buf struct buf local = BUF_INIT;
    char *path = strncmp(url, "unix:", 5) ? NULL : strchr(url, '#');

    if (strncmp(url, "unix:", 5) != 0)
        return curl_easy_setopt(curl, CURLOPT_URL, url) ? request_fail(url, "out of memory") : 0;
    if (!path)
        return request_fail(
            url, "an address of a Unix socket has # before the path of the request");
    *path++ = '\0';
    buf_printf(&local, "http://localhost%s", path);
    if (buf_failed(&local) || curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, url + 5) ||
        curl_easy_setopt(curl, CURLOPT_URL, local.data))
        return request_fail(url, "out of memory");
    return 0;
}

static void set_method(CURL *curl, const char *method) {
    struct stat st = { 0 };
    bool has_body = !strcmp(method, "POST") || !strcmp(method, "PUT");

    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    if (!has_body)
        return;
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    if (fstat(0, &st) == 0 && S_ISREG(st.st_mode))
        curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)st.st_size);
}

int request_add_headers(struct curl_slist **headers) {
    /* Waiting for "100 Continue" would cost a turn, and its absence a second. */
    if (!request_add_header(headers, "Expect:") ||
        !request_add_header(headers, "User-Agent: rollbox/" ROLLBOX_VERSION))
        return request_fail("rollbox-http", "out of memory");
    return add_token(headers);
}

int request_prepare(CURL *curl, char *url) {
    int status = set_url(curl, url);

    if (status)
        return status;
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, CONNECT_S);
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
    set_files(curl);
    return 0;
}

static int perform(CURL *curl, char *url) {
    struct answer answer = { .curl = curl };
    char why[CURL_ERROR_SIZE] = "";
    const char *shown = strndup(url, strcspn(url, "#"));

    int status = request_prepare(curl, url);
    if (status)
        return status;
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    CURLcode r = curl_easy_perform(curl);
    if (r != CURLE_OK) {
        if (!*why)
            (void)snprintf(why, sizeof why, "%s", curl_easy_strerror(r));
        return request_fail(shown ? shown : "", why);
    }
    if (!answer.has_begun)
        (void)take_body((char[]){ "" }, 1, 0, &answer);
    return 0;
}

int main(int argc, char **argv) {
    struct curl_slist *headers = NULL;
    int i = 1;

    if (curl_global_init(CURL_GLOBAL_DEFAULT))
        return request_fail("libcurl", "it cannot be started");
    if (argc == 3 && !strcmp(argv[1], "mcp"))
        return mcp_main(argv[2]);
    bool ok = add_parent(&headers);
    for (; ok && i + 1 < argc && !strcmp(argv[i], "--header"); i += 2)
        ok = request_add_header(&headers, argv[i + 1]);
    if (!ok || argc - i != 2)
        return request_fail("rollbox-http", "usage: rollbox-http [--header TEXT]... METHOD URL");
    if (request_add_headers(&headers))
        return 1;
    CURL *curl = curl_easy_init();
    if (!curl)
        return request_fail("rollbox-http", "out of memory");
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    set_method(curl, argv[i]);
    int status = perform(curl, argv[i + 1]);
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
    return status;
}
