/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Published ports: addresses of the host that lead to ports inside a sandbox.
 *
 * A text has the form [ADDRESS:]PORT, where PORT is inside the sandbox. ADDRESS is on the host: a
 * port, an address and a port, or the path of a Unix socket. Without one, or with port 0, the
 * kernel chooses a free port of 127.0.0.1.
 */
#ifndef ROLLBOX_POLICY_PUBLISH_H
#define ROLLBOX_POLICY_PUBLISH_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "policy/policy.h"

#define PUBLISH_MAX 64 /* ports of one sandbox */
#define NETWORK_NAME_MAX 64
#define PUBLISH_ADDRESS_TEXT 128 /* bytes: a path of a Unix socket has 107 at most */

/* The address of a listener. */
struct publish_address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_un local;
    };
    socklen_t length;
};

struct publish_port {
    struct publish_address address;
    uint16_t port; /* inside */
};

/* "PORT", "HOST:PORT", "[V6]:PORT" or a path with a '/'. 0 or -EINVAL. */
int publish_parse_address(const char *text, struct publish_address *ret);
/* "[ADDRESS:]PORT". 0 or -EINVAL. */
int publish_parse(const char *text, struct publish_port *ret);
/* Does the text name the one place where it can be? A port that the kernel chooses is none. */
bool publish_is_fixed(const struct publish_address *address);
/* "127.0.0.1:8080", "[::1]:8080" or a path. */
const char *publish_address_text(
    const struct publish_address *address, char text[PUBLISH_ADDRESS_TEXT]);

#endif
