/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of upstream servers, and which of them no guest may reach.
 *
 * A sandbox with net "allow" reaches public addresses only. The refused ranges are private and
 * special networks, the metadata services of clouds, and every form in which an IPv6 address
 * contains one of these. The addresses of the host itself are found by its routing table
 * (egress/route.h), because they may change at any time.
 */
#ifndef ROLLBOX_NET_ADDRESS_H
#define ROLLBOX_NET_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "policy/network.h"

#define ADDRESS_TEXT 46 /* INET6_ADDRSTRLEN */

/* IPv4 addresses are in their mapped form, ::ffff:a.b.c.d, so that one address has one value. */
struct address {
    uint8_t bytes[16];
};

struct address address_of_v4(uint32_t v4);
bool address_is_v4(const struct address *address);
/* In host order; only for those that are one. */
uint32_t address_v4(const struct address *address);
/* Of the policy, with its prefix left out. */
struct address address_of_rule(const struct net_address *address);

/* False for ranges that are refused (see above). `own`: addresses that are refused besides. */
bool address_is_public(const struct address *address, const struct address *own, size_t n_own);
/* Is the address in the network that the rule names? */
bool address_matches(const struct address *address, const struct net_address *network);
bool address_equal(const struct address *a, const struct address *b);

/* 0 or -EAFNOSUPPORT. */
int address_of_socket(
    const struct sockaddr_storage *from, struct address *ret_address, uint16_t *ret_port);
/* Returns the length. IPv4 becomes AF_INET. */
socklen_t address_to_socket(
    const struct address *address, uint16_t port, struct sockaddr_storage *ret_socket);
/* 0 or -EINVAL. Accepts only the text form that inet_pton does. */
int address_parse(const char *text, struct address *ret_address);
const char *address_text(const struct address *address, char ret_text[ADDRESS_TEXT]);

#endif
