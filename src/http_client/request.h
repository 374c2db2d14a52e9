/* SPDX-License-Identifier: Apache-2.0 */
/* What the requests of rollbox-http have in common. */
#ifndef ROLLBOX_HTTP_CLIENT_REQUEST_H
#define ROLLBOX_HTTP_CLIENT_REQUEST_H

#include <curl/curl.h>
#include <stdbool.h>

/* Each prints a line on standard error, and returns 1. */
int request_fail(const char *what, const char *why);

bool request_add_header(struct curl_slist **headers, const char *text);
/* The user agent, and the token of ROLLBOX_TOKEN_FILE. 0, or 1 after a message. */
int request_add_headers(struct curl_slist **headers);
/* The address, the limits, and the files that the environment names. `url` is changed. */
int request_prepare(CURL *curl, char *url);

/* mcp.c: MCP over standard input and output, for the server at `address`. */
int mcp_main(const char *address);

#endif
